#!/usr/bin/env bash
# Builds for release by a profile of what production does (PGO): counted programs run, then the compiler lays code out by the counts.
#
#   tools/pgo.sh [OPTION…] [COMMAND…]   makes the profile where it is older than the programs it is of, then runs COMMAND with
#                                       cargo's environment set, so that all that it builds is optimized by the profile:
#                                         tools/pgo.sh ./install.sh PREFIX       (or ./install.sh --pgo PREFIX)
#                                         tools/pgo.sh --memory-only tools/instructions.sh …   (or tools/instructions.sh --pgo …)
#   --profile FILE                      takes this profile (as target/pgo/corelane.profdata of an earlier run) and makes none: the same
#                                       profile gives the same programs
#   --tool                              says which llvm-profdata it takes, and no more; as root installs it first where it is missing
#   --memory-only                       leaves out the rows over AF_XDP on a veth, which are run as root only
#
# It needs the llvm-profdata of rustc's own LLVM: rustup component add llvm-tools, or Debian's llvm-22 (which root gets installed).
# Exit codes: 2 for wrong arguments, 1 where something is missing or fails, else COMMAND's.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

usage() { sed -n '2,15s/^# \{0,1\}//p' "$0"; exit "$1"; }
fail() { printf 'pgo.sh: %s\n' "$1" >&2; exit "${2:-1}"; }

given='' devices=yes only_tool=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage 0 ;;
        --profile) [ $# -ge 2 ] || fail "--profile needs a FILE" 2; given=$2; shift 2 ;;
        --memory-only) devices=no; shift ;;
        --tool) only_tool=yes; shift ;;
        --) shift; break ;;
        -*) fail "no such option: $1 (see --help)" 2 ;;
        *) break ;;
    esac
done
[ -z "$given" ] || [ -f "$given" ] || fail "no profile $given: leave out --profile to make one"
command -v cargo >/dev/null || fail "needs cargo: see README.md for Rust"

host=$(rustc -vV | sed -n 's/^host: //p')
major=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
[ "${CARGO_BUILD_TARGET:-$host}" = "$host" ] || fail "CARGO_BUILD_TARGET is $CARGO_BUILD_TARGET: a profile is made where it runs, on $host"

# What the user has set stays, and ours goes behind it. RUSTFLAGS would replace what stands in cargo's configuration.
flags=()
if [ -n "${CARGO_ENCODED_RUSTFLAGS:-}" ]; then
    IFS=$'\x1f' read -ra flags <<<"$CARGO_ENCODED_RUSTFLAGS"
elif [ -n "${RUSTFLAGS:-}" ]; then
    read -ra flags <<<"$RUSTFLAGS"
else
    # Not grep -q, which ends before it has read all: with pipefail, what it has found would be a failure then.
    ! compgen -e | grep -E '^CARGO_(BUILD|TARGET_.*)_RUSTFLAGS$' >/dev/null || fail "CARGO_…_RUSTFLAGS would be lost: give them as RUSTFLAGS"
    for table in build target; do
        if (cd "$here" && RUSTC_BOOTSTRAP=1 cargo -Zunstable-options config get "$table" 2>/dev/null) | grep rustflags >/dev/null; then
            fail "cargo's configuration has rustflags under $table, which would be lost: give them as RUSTFLAGS"
        fi
    done
fi
encoded() { local IFS=$'\x1f'; printf '%s' "${flags[*]}${flags[*]:+$IFS}$*"; }

profdata() {
    local each
    for each in "$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" "llvm-profdata-$major" \
        "/usr/lib/llvm-$major/bin/llvm-profdata" llvm-profdata; do
        if "$each" --version 2>/dev/null | grep "LLVM version $major\." >/dev/null; then
            printf '%s\n' "$each"
            return 0
        fi
    done
    return 1
}

# The compiler refuses profiles of another LLVM's.
tool() {
    profdata && return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        # The smallest that has it: 50 MB to fetch, 240 MB installed.
        printf 'pgo.sh: installing llvm-%s for its llvm-profdata\n' "$major" >&2
        apt-get update -qq >&2 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "llvm-$major" >/dev/null || true
        profdata && return 0
    fi
    fail "needs llvm-profdata of LLVM $major: rustup component add llvm-tools, or apt install llvm-$major"
}

if [ -n "$only_tool" ]; then tool; exit; fi
[ $# = 0 ] || command -v "$1" >/dev/null || fail "no such command: $1" 2

home=${CARGO_TARGET_DIR:-$here/target}/pgo
mkdir -p "$home/raw" || fail "cannot make $home"
home=$(cd "$home" && pwd)
# Without rows over devices it is another one.
profile=$home/memory.profdata
if [ "$(id -u)" = 0 ] && [ $devices = yes ]; then profile=$home/corelane.profdata; fi
# One at a time: two would count into one profile.
exec 9>"$home/lock"
flock -n 9 || { printf 'pgo.sh: waiting for another one\n' >&2; flock 9; }
# Programs of the build itself, such as macros, get no flags when a target is named, even where it is the host.
export CARGO_BUILD_TARGET=$host
unset RUSTFLAGS

# Fixed counts of work. The first five are of one thread with told time, so they differ by little more than the secrets in hashes.
counted() { "$@" || exit 1; }
workload() {
    local examples=$1/examples corelane=$1/corelane
    counted "$examples/transactions" 300000
    counted "$examples/flows" 1000 600000
    # More than are kept whole: idle ones are parked, and wake.
    counted "$examples/flows" 60000 400000
    counted "$examples/bulk" 256
    counted "$examples/bulk" 64 mtu=1500 offload=false
    # More connections than on a lone lane, or what several lanes need beside would not count as hot.
    counted "$examples/lanes" 2 400000
    # The command's own client and server, by the clock, in each model.
    if [ "$(nproc)" -ge 2 ]; then
        local first last model
        first=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
        last=$(taskset -cp $$ | sed 's/.*[-, ]//')
        for model in inline paired guarded; do
            counted "$corelane" bench-part memory http://10.99.0.2/ --cores "$first" --server-cores "$last" --model $model -c 256 -n 20000
        done
        counted "$corelane" bench-part memory http://10.99.0.2/ --cores "$first" --server-cores "$last" -c 64 -n 5000 -m 16 --message 4096
    fi
}
# By time: the bench measures rates. Few seconds, so that the counts above rule.
device_rows() {
    local corelane=$1/corelane each
    for each in "fig7a --system corelane" "fig7b --quick --system corelane" "bulk --quick --system corelane" "fig7a --system libmtcp"; do
        # shellcheck disable=SC2086
        "$corelane" bench $each --wire xdp --rounds 1 --seconds 1 || return 1
    done
}

make_profile() {
    local merge programs each stale=''
    merge=$(tool)
    programs=$home/generate/$host/release
    # Counted before anything is optimized over all crates, which would take longer than all else here. Counters are atomic: lanes share them.
    (
        cd "$here"
        CARGO_ENCODED_RUSTFLAGS=$(encoded "-Cprofile-generate=$home/raw" -Cllvm-args=-instrprof-atomic-counter-update-all \
            -Clto=off -Clinker-plugin-lto=no -Cembed-bitcode=no)
        export CARGO_ENCODED_RUSTFLAGS CARGO_TARGET_DIR=$home/generate
        cargo build --release --locked -p corelane --example transactions --example flows --example bulk --example lanes &&
            cargo build --release --locked -p cli --bin corelane
    ) || fail "the counted programs could not be built: see above"
    for each in "$programs"/corelane "$programs"/examples/{transactions,flows,bulk,lanes} "$here/tools/pgo.sh"; do
        [ "$profile" -nt "$each" ] || stale=yes
    done
    [ -n "$stale" ] || return 0

    printf 'pgo.sh: making the profile\n' >&2
    rm -f "$home"/raw/*.profraw
    export LLVM_PROFILE_FILE=$home/raw/%p-%m.profraw
    (workload "$programs") >"$home/workload.log" 2>&1 || { tail -3 "$home/workload.log" >&2; fail "the workload failed: see $home/workload.log"; }
    if [ "$profile" = "$home/corelane.profdata" ] && ! device_rows "$programs" >>"$home/workload.log" 2>&1; then
        printf 'pgo.sh: no rows over AF_XDP (see %s): what they reach only is compiled as without a profile\n' "$home/workload.log" >&2
    fi
    unset LLVM_PROFILE_FILE
    # What has no counts would be taken for cold, and made small and slow. But the workload reaches neither everything that is hot elsewhere
    # (other devices, completion channels) nor what is needed in worse networks; so it is left out, and compiled as without a profile.
    "$merge" merge --text "$home"/raw/*.profraw |
        awk 'BEGIN { RS = ""; FS = "\n"; ORS = "\n\n" }
            {
                run = NR == 1
                for (i = 1; i < NF && $i != "# Counter Values:"; i++) if ($i == "# Num Counters:") n = $(i + 1)
                while (n-- > 0) if ($(++i) > 0) run = 1
            }
            run' >"$home/profile.text" &&
        "$merge" merge -o "$home/new.profdata" "$home/profile.text" || fail "llvm-profdata could not merge what was counted"
    rm -f "$home/profile.text"
    mv "$home/new.profdata" "$profile"
    rm -f "$home"/raw/*.profraw
}

if [ -n "$given" ]; then profile=$given; else make_profile; fi
sum=$(sha256sum "$profile" | cut -c1-16)
# cargo does not look into a profile: each has a folder of its own. Those of profiles that are gone go, too.
use=$home/use-$sum
for each in "$home"/use-*; do
    case $each in
        "$use" | "$home/use-*") ;;
        *) cmp -s "$each/profdata" "$home/memory.profdata" || cmp -s "$each/profdata" "$home/corelane.profdata" || rm -rf "$each" ;;
    esac
done
mkdir -p "$use"
cmp -s "$profile" "$use/profdata" || cp "$profile" "$use/profdata"
printf 'pgo.sh: profile %s, sha256 %s\n' "$profile" "$sum" >&2
[ $# -gt 0 ] || exit 0
CARGO_ENCODED_RUSTFLAGS=$(encoded "-Cprofile-use=$use/profdata")
# Whose budget tools/instructions.sh takes.
export CARGO_ENCODED_RUSTFLAGS CARGO_TARGET_DIR=$use CORELANE_PGO=yes
exec "$@" 9>&-
