#!/usr/bin/env bash
# Checks, for people and for CI alike, the fast ones first.
#
#   ./ci.sh                the gate, which every change must pass: formatting, lints, tests, what is installed; installs what they need
#   ./ci.sh quick          formatting, lints, the tests that need no privileges, and the documentation
#   ./ci.sh full           the gate, then what a change seldom breaks: documentation, loom, fuzz targets, instructions, servers, guests
#   ./ci.sh long           what takes hours: before a release, and before a larger change is called done
#   ./ci.sh soak [HOURS]   a long run under mixed load that must leave nothing behind; 2 hours, fractions are allowed
#   ./ci.sh fuzz MINUTES   every fuzz target for so many minutes, from its seeds and what earlier runs found
#   ./ci.sh drivers […]    production drivers and other kernels in guests under QEMU (docs/drivers.md); the rest as tools/drivers/run.sh
#   ./ci.sh help           this
#
# Without root it runs what it can and lists what it skipped; in CI (CI=true) a skip is a failure. At the end stands how long each
# step took, and each test program. docs/testing.md says what each mode runs. What is built and installed is in target, or in CARGO_TARGET_DIR.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never} RUST_BACKTRACE=${RUST_BACKTRACE:-1}

usage() { sed -n '4,11s/^# \{0,1\}//p' "$0"; }
wrong() { printf 'ci.sh: %s\n' "$1" >&2; usage >&2; exit 2; }
is_number() { [[ $1 =~ ^[0-9]+(\.[0-9]+)?$ ]] && [[ $1 =~ [1-9] ]]; }
seconds_of() { awk -v m="$1" 'BEGIN { printf "%d", m * 60 + 0.5 }'; }

mode=${1:-gate}
[ $# = 0 ] || shift
most=0
case $mode in
    help | -h | --help) usage; exit 0 ;;
    gate | quick | full | long) ;;
    soak) most=1; [ $# = 0 ] || is_number "$1" || wrong "HOURS is a number above 0, as in ./ci.sh soak 0.5" ;;
    drivers) most=4 ;;
    fuzz)
        most=1
        [ $# -ge 1 ] && is_number "$1" || wrong "fuzz needs MINUTES, as in ./ci.sh fuzz 10"
        [ "$(seconds_of "$1")" -ge 1 ] || wrong "$1 minutes are less than a second: nothing would be run"
        ;;
    *) wrong "unknown mode: $mode" ;;
esac
[ $# -le $most ] || wrong "too much: $*"

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
skipped=() times=() name='' machine=''
root=$([ "$(id -u)" = 0 ] && echo yes || echo no)

# Sets CPU to what all children used so far, in hundredths of a second. Not in a subshell, whose children are others.
scratch=$(mktemp)
trap closing EXIT
cpu() {
    local each minutes seconds own
    times >"$scratch"
    { read -r own; read -r -a each; } <"$scratch"
    CPU=0
    for own in "${each[@]}"; do
        minutes=${own%%m*} seconds=${own#*m}
        seconds=${seconds%s}
        CPU=$((CPU + minutes * 6000 + 10#${seconds%.*} * 100 + 10#${seconds#*.} / 10))
    done
}
over() {
    [ -n "$name" ] || return 0
    cpu
    times+=("$(printf '%8d %8d  %s' $((SECONDS - begun)) $(((CPU - used) / 100)) "$name")")
    name=
}
step() {
    over
    cpu
    name=$* begun=$SECONDS used=$CPU
    printf '\n== %s (%ss)\n' "$name" "$SECONDS"
}
skip() { printf 'SKIPPED: %s\n' "$1"; skipped+=("$1"); }

# At the end, after a failure too: how long each step took, and what was skipped.
closing() {
    local status=$?
    # Nothing began.
    [ ${#times[@]} -gt 0 ] || [ -n "$name" ] || { rm -f "$scratch"; return; }
    over
    printf '\n== times\n%8s %8s  %s\n' seconds cpu step
    printf '%s\n' "${times[@]}"
    cpu
    printf '%8d %8d  all\n' "$SECONDS" $((CPU / 100))
    printf '%s\n' "$machine"
    rm -f "$scratch" "$scratch".*
    if [ ${#skipped[@]} -gt 0 ]; then
        printf 'skipped: %s\n' "${skipped[@]}"
        if [ "${CI:-}" = true ]; then
            echo "ci.sh: with CI=true a skip is a failure" >&2
            [ $status != 0 ] || status=1
        fi
    fi
    # Last, as cargo ends: what CI's reader looks for.
    [ $status != 0 ] || [ ! -f "$target/test-result.txt" ] || case $mode in gate | quick | full) cat "$target/test-result.txt" ;; esac
    exit $status
}

# Installs Debian packages for commands that are missing: command:package ...
need() {
    missing "$@"
    [ ${#missing[@]} -gt 0 ] || return 0
    local why="install them, or run as root" said
    if [ "$root" = yes ]; then
        said=$(install 2>&1 >/dev/null) || true
        missing "$@"
        [ ${#missing[@]} -gt 0 ] || return 0
        why="apt-get could not install them: $(last_line "$said")"
    fi
    skip "what needs ${missing[*]} ($why)"
    # Nothing that comes after it would make it pass.
    [ "${CI:-}" != true ] || exit 1
}
# Servers among them are not started: nginx would take port 80. To be called in a subshell.
install() {
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap "rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}
# Sets `missing` to the packages of commands that are not there.
missing() {
    local pair
    missing=()
    for pair in "$@"; do
        [ -x "$(command -v "${pair%%:*}")" ] || [ -x "/usr/sbin/${pair%%:*}" ] || missing+=("${pair##*:}")
    done
}
last_line() { sed -n '$s/^ *//p' <<<"$1"; }
# ran NAME… -- COMMAND…: runs tests, of which at least one must have each of the names in its own: a filter that matches nothing
# passes by itself.
ran() {
    local wanted=() each
    while [ "$1" != -- ]; do wanted+=("$1"); shift; done
    shift
    "$@" | tee "$scratch.ran"
    for each in "${wanted[@]}"; do
        grep -qE "^test .*$each.* \.\.\. ok" "$scratch.ran" || { echo "ci.sh: no test has run that is named $each: $*" >&2; return 1; }
    done
    rm -f "$scratch.ran"
}
# What every mode stands on.
foundations() {
    fail() { printf 'ci.sh: %s\n' "$1" >&2; exit "$2"; }
    case $mode in
        gate | quick | full | long)
            mkdir -p "$target" || exit 1
            # Held until this process and those that it started have ended.
            exec 9>"$target/ci.lock" || exit 1
            flock --nonblock 9 || fail "$target is used by another run: wait for its end, or name another folder in CARGO_TARGET_DIR" 2
            ;;
    esac
    # g++ brings the C library's headers, which gcc only recommends.
    need python3:python3 cc:g++
    local each
    for each in cargo cc python3; do
        command -v "$each" >/dev/null ||
            fail "$each is missing, and nothing runs without it: see README.md for Rust, apt install gcc libc6-dev python3 for the others" 2
    done
    machine=$(tools/machine.py --disk 8 --memory 4 "$target") || exit 1
    printf '%s\nDescriptors: %s; locked memory: %s KiB\n' "$machine" "$(ulimit -n)" "$(ulimit -l)"
    local said
    said=$(cargo fetch --quiet --locked --target "$(rustc -vV | sed -n 's/^host: //p')" 2>&1) ||
        fail "crates of Cargo.lock are missing here, and could not be fetched: $(last_line "$said")" 1
}
nightly() { cargo +nightly --version >/dev/null 2>&1; }
# Whether the nightly toolchain has a component, by a file of it.
has() { [ -e "$(rustc +nightly --print sysroot 2>/dev/null)/$1" ]; }

lints() {
    step "formatting"
    cargo fmt --all --check
    step "lints"
    cargo clippy --workspace --all-targets --locked -- -D warnings
    # The fuzz targets are a workspace of their own, whose lock file follows ours.
    cargo metadata --manifest-path fuzz/Cargo.toml --locked --format-version 1 >/dev/null
    step "faults that can be put back"
    tools/faults.py --list >/dev/null
    step "how tests are run"
    tools/selftest.py --quiet
    step "layers"
    tools/circles.py --self-test
    tools/circles.py protocol stack tcp >/dev/null
    # A file of more than 600 lines, its tests aside, has more than one concern.
    git ls-files -co --exclude-standard 'crates/*/src/*.rs' | xargs awk '
        FNR == 1 { counts = 1 }
        /^#\[cfg\((all\()?test/ { counts = 0 }
        counts && FNR == 601 { print FILENAME " has more than 600 lines: divide it"; long = 1 }
        END { exit long }' >&2
    # The sans-I/O crates touch nothing outside, and say so to the compiler.
    for crate in wire protocol tcp stack socket; do
        grep -q 'forbid(unsafe_code)' "crates/$crate/src/lib.rs"
        if grep -rnE 'std::(net|fs|thread|time)\b' "crates/$crate/src" --include='*.rs' | grep -v '/tests'; then
            echo "crates/$crate is sans-I/O" >&2
            exit 1
        fi
    done
}

tests() {
    step "test programs"
    [ $root = yes ] || [ "$mode" = quick ] || skip "network namespaces, AF_XDP, AF_PACKET, TAP, XDP programs (they need root)"
    # A channel of io_uring is charged some 140 KiB, and the limit is of all processes of the user: a test has up to three,
    # and two programs run at once.
    local locked few threads
    locked=$(ulimit -l)
    if [ $root = no ] && [ "$locked" != unlimited ] && [ "$locked" -lt 65536 ]; then
        few=$((locked / 1024))
        [ $few -ge 1 ] || few=1
        threads=${RUST_TEST_THREADS:-$(nproc)}
        printf 'Locked memory is limited to %s KiB (ulimit -l)' "$locked"
        if [ "$threads" -gt $few ]; then
            export RUST_TEST_THREADS=$few
            printf ': %s tests at once instead of %s' "$few" "$threads"
        fi
        printf '. Below 8192 tests of io_uring fail or are skipped.\n'
    fi
    # The full form is to show what is unsteady, and computes more.
    local once=()
    if [ "$mode" = full ]; then
        once=(--once)
        export CORELANE_TESTS=full
    fi
    tools/test.py --result "$target/test-result.txt" "${once[@]}" --workspace --locked
}

documentation() {
    step "examples in the documentation"
    cargo test --workspace --locked --doc --quiet
    step "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
}

# Rings, pools, turns, bells, mailboxes: every order of what two threads do. Without optimizing the whole program: the models spend
# their time in loom, and linking would take longer than they do.
models() {
    step "every order of threads, under loom"
    ran a_full_ring -- under_loom --test loom
    ran models:: -- under_loom --lib models::
}
under_loom() {
    RUSTFLAGS="--cfg loom" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=none \
        cargo test -p mem -p runtime --release --locked --target-dir "$target/loom" "$@"
}

fuzzers() {
    step "fuzzing, ${1} s a target"
    if ! command -v c++ >/dev/null; then
        skip "fuzzing (needs a C++ compiler: apt install g++)"
    elif ! nightly; then
        skip "fuzzing (needs a nightly toolchain: rustup toolchain install nightly)"
    else
        tools/fuzz.py --seconds "$1" "${@:2}"
    fi
}

under_miri() { MIRIFLAGS="-Zmiri-disable-isolation" cargo +nightly miri test --locked --target-dir "$target/miri" "$@"; }
miri() {
    step "memory rules under miri"
    if nightly && has bin/cargo-miri && has lib/rustlib/src/rust/library; then
        under_miri -p mem
        # Of io what opens no socket: miri has none.
        local parts=(xdp::ring:: rss::tests::what_ vnet:: pcap::)
        ran "${parts[@]}" -- under_miri -p io --lib -- "${parts[@]}"
    else
        skip "miri (rustup +nightly component add miri rust-src)"
    fi
}

# The standard library must be compiled with it too: its locks and channels are else unknown to it.
races() {
    step "data races under ThreadSanitizer"
    if nightly && has lib/rustlib/src/rust/library; then
        local host
        host=$(rustc -vV | sed -n 's/^host: //p')
        RUSTFLAGS="-Zsanitizer=thread" TSAN_OPTIONS="halt_on_error=1" \
            cargo +nightly test -Zbuild-std --target "$host" -p channel -p runtime -p corelane --lib --tests --locked --target-dir "$target/tsan"
    else
        skip "ThreadSanitizer (rustup +nightly component add rust-src)"
    fi
}

seeds() { CORELANE_SEEDS=$1 cargo test --locked "${@:2}"; }

faults() {
    [ "$root" = yes ] || skip "faults of the XDP program (they need root)"
    tools/faults.py
}

instructions() {
    step "instructions of the hot paths, against their budget"
    if command -v valgrind >/dev/null; then tools/instructions.sh; else skip "the instruction budget (needs valgrind)"; fi
}

# What the tests were run with, installed; nothing is built again.
as_tested() {
    mkdir -p "$target/built"
    ln -sf "$target"/debug/corelane "$target"/debug/deps/libcorelane_preload.so "$target"/debug/deps/lib{mtcp,megapipe}.{so,a} "$target/built/"
    ./install.sh --from "$target/built" "$target/prefix"
}

# The installed command, libraries and C examples: as_tested, or "./install.sh $target/prefix", which builds a release.
installed() {
    step "what is installed, and a demonstration"
    local each
    for each in make pkg-config; do
        command -v $each >/dev/null || { skip "what is installed (needs $each: apt install make pkg-config)"; return; }
    done
    "$@"
    make -s -C examples/c PREFIX="$target/prefix" OUT="$target/examples"
    "$target"/prefix/bin/corelane demo --seconds 1 --json | grep '"ratio"'
    # The library is found.
    [ "$root" = no ] || "$target"/prefix/bin/corelane run --strict -- true
}

# Runs the servers that `installed` has made.
servers() {
    step "key-value servers under our client and another's"
    if [ $root = no ]; then
        skip "key-value servers in namespaces (they need root)"
        return
    fi
    if [ ! -x "$target/examples/kvserver" ]; then
        skip "key-value servers (nothing is installed)"
        return
    fi
    for client in "" "--client memcaslap --share 60 --connections 64"; do
        # shellcheck disable=SC2086 # some words or none
        "$target"/prefix/bin/corelane bench memcached --quick --seconds 1 --kv "$target/examples/kvserver" $client --json |
            python3 -c 'import json, sys
said = json.load(sys.stdin)
rows = said["rows"]
assert {row["system"] for row in rows} == {"kv-lane", "kv-uring", "memcached"}, said["notes"]
for row in rows:
    assert row["messages_per_s"] > 0 and row["misses"] == 0 and not row["errors"], row
print(len(rows), "rows, no miss, no error")'
    done
}

# The build that packages use, and whether it is worth it.
profiled() {
    step "a profile-guided build, and its instructions against their budget"
    if ! command -v valgrind >/dev/null; then
        skip "the instruction budget of a profile-guided build (needs valgrind)"
    elif ! tools/pgo.sh --tool; then
        skip "a profile-guided build (needs llvm-profdata of rustc's LLVM: see tools/pgo.sh --help)"
    else
        ./install.sh --pgo "$target/prefix-pgo"
        "$target"/prefix-pgo/bin/corelane demo --seconds 1 --json | grep '"ratio"'
        tools/instructions.sh --pgo
    fi
}

# Production drivers and other kernels: what run.sh takes. It prints its own skips, and fails with CI=true where one is not listed.
drivers() {
    step "production drivers and other kernels"
    if [ "$root" = no ]; then
        skip "production drivers in guests (QEMU, kernels and tools are installed as root)"
        return
    fi
    local status=0 line
    : >"$scratch.skips"
    CORELANE_SKIPS=$scratch.skips tools/drivers/run.sh "$@" || status=$?
    while IFS= read -r line; do skipped+=("drivers: $line"); done <"$scratch.skips"
    return $status
}

# Every tool of the tests; the fuzzers' engine is C++.
debian=(curl:curl wrk:wrk ab:apache2-utils ip:iproute2 ethtool:ethtool pgrep:procps c++:g++ clang:clang nginx:nginx haproxy:haproxy readelf:binutils
    pkg-config:pkg-config make:make valgrind:valgrind memccapable:libmemcached-tools memcached:memcached nft:nftables)

# The gate: whatever a change breaks at once.
gate() {
    step "what the tests need"
    need "${debian[@]}"
    lints
    tests
    installed as_tested
}

foundations
case $mode in
    quick)
        lints
        tests
        documentation
        ;;
    gate)
        gate
        ;;
    full)
        gate
        documentation
        models
        fuzzers "${CORELANE_FUZZ_SECONDS:-10}" --seeds-only
        instructions
        servers
        drivers ci
        ;;
    drivers)
        drivers "$@"
        ;;
    long)
        step "what the tests need"
        need "${debian[@]}"
        installed ./install.sh "$target/prefix"
        servers
        profiled
        miri
        races
        fuzzers 120
        # Not as a release: that is without overflow checks, and without the invariants that are looked at after each turn. But for the
        # thousand flows, which take far longer with them; fewer are among the tests.
        step "twenty thousand simulated networks, and a thousand flows to their end"
        seeds 20000 -p sim --test lossy --test extremes --test links --test hops --test segments
        seeds 2000 -p sim --test scarce
        CORELANE_TESTS=long cargo test --release -p sim --locked --test fairness
        step "ten thousand histories of channels, a thousand of lanes"
        seeds 10000 -p channel --test random
        seeds 1000 -p corelane --test histories
        step "all faults put back"
        faults
        drivers
        step "a soak of half an hour"
        cargo build --locked -p corelane --example soak
        cargo build --locked -p cli
        if [ $root = yes ]; then tools/soak.py 0.5; else skip "the soak (network namespaces and AF_XDP need root)"; fi
        ;;
    soak)
        step "what the soak needs"
        need ip:iproute2 ethtool:ethtool curl:curl
        [ $root = yes ] || skip "the soak (network namespaces and AF_XDP need root)"
        if [ $root = yes ]; then
            step "building"
            cargo build --locked -p corelane --example soak
            cargo build --locked -p cli
            step "soak, ${1:-2} h"
            tools/soak.py "${1:-2}"
        fi
        ;;
    fuzz)
        step "what the fuzzers need"
        need c++:g++
        fuzzers "$(seconds_of "$1")"
        ;;
esac
