#!/usr/bin/env bash
# Production drivers and other kernels: `./ci.sh drivers`.
#
#   tools/drivers/run.sh             every row
#   tools/drivers/run.sh quick       one row of each driver and kernel
#   tools/drivers/run.sh ci          what `./ci.sh` runs: two drivers, and the oldest kernel
#   tools/drivers/run.sh igb new     the rows of one driver (and one kernel)
#   tools/drivers/run.sh igb new bond,slave     these rows
#   tools/drivers/run.sh --write …   and puts what was seen into docs/drivers.md
#
# Guests are booted under QEMU with Debian's kernels; this system's root directory is theirs, read-only. A row is `served`, or
# `refused` with a sentence, or it has FAILED; so has one after which the kernel complains of a fault of its own. A guest that lacks
# something (a module, a function of the emulated device) says `absent`. What is absent, or cannot be prepared, is a skip; with CI=true
# a skip that tools/drivers/skips does not list is a failure.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tools/drivers
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
dir=${CORELANE_DRIVERS_DIR:-$target/drivers}
write=
[ "${1:-}" != --write ] || { write=1; shift; }
only_device=${1:-} only_kernel=${2:-} only_rows=${3:-}

# What is booted: device, kernel, rows. The rows up to a bar are those of `quick`.
table='
igb       new     basic | restart kill flap reset rings channels mac vip gone first_syn key vlan foreign_vlan bond slave bridge member jumbo mtu3000
igb       new     igbvf
igb       stable  basic | kill flap first_syn key vlan foreign_vlan bond slave mtu3000
igb       old     basic | restart kill flap reset mac vip first_syn key vlan foreign_vlan bond slave bridge member jumbo mtu3000
vmxnet3   new     basic | restart kill flap key mac foreign_vlan jumbo
virtio    new     basic | kill flap mac foreign_vlan jumbo
virtio-mq new     basic | restart kill flap channels mac foreign_vlan jumbo first_syn key
virtio-mq stable  basic
virtio-mq old     basic
virtio-zc new     basic | restart kill flap mac first_syn
e1000e    new     basic | restart kill flap reset mac foreign_vlan jumbo
e1000     new     basic | kill mac foreign_vlan
igb       new     verdicts model sums lab
igb       stable  verdicts model sums lab
igb       old     verdicts model sums lab
'
case $only_device in
quick)
    # One row of each driver and kernel.
    table=$(sed -n 's/ *|.*//p' <<<"$table")
    only_device=
    ;;
ci)
    # Kernels that change only as Debian's releases do.
    table='
igb       old     verdicts
igb       stable  foreign_vlan first_syn
virtio-mq stable  basic
'
    only_device=
    ;;
esac

skips=()
failures=0
skip() {
    if grep -qs "^$1 " "$here/skips"; then echo "skipped: $1: $2 (listed)"; else echo "SKIPPED: $1: $2"; skips+=("$1: $2"); fi
}
finish() {
    echo "$failures failed, ${#skips[@]} skipped"
    if [ ${#skips[@]} -gt 0 ] && [ "${CI:-}" = true ]; then exit 1; fi
    [ "$failures" = 0 ] || exit 1
    exit 0
}

# What was asked for: device, kernel, rows.
chosen=()
while read -r device kernel rows; do
    [ -n "$device" ] || continue
    [ -z "$only_device" ] || [ "$only_device" = "$device" ] || continue
    [ -z "$only_kernel" ] || [ "$only_kernel" = "$kernel" ] || continue
    rows=$(tr -d '|' <<<"$rows" | xargs)
    if [ -n "$only_rows" ]; then
        wanted=
        for row in $rows; do [[ ,$only_rows, != *,$row,* ]] || wanted+=" $row"; done
        [ -n "$wanted" ] || continue
        rows=$wanted
    fi
    chosen+=("$device $kernel $rows")
done <<<"$table"
[ ${#chosen[@]} -gt 0 ] || { echo "run.sh: no such rows: $*" >&2; exit 2; }

while IFS= read -r line; do
    case $line in
    "SKIP all: "*) skip all "${line#SKIP all: }"; finish ;;
    SKIP*) line=${line#SKIP }; skip "${line%%: *}" "${line#*: }" ;;
    *) echo "$line" ;;
    esac
done < <(printf '%s\n' "${chosen[@]}" | awk '{ print $2 }' | sort -u | xargs "$here/prepare.sh" "$dir" 2>&1)

cargo build -p cli --bins --locked --quiet
# binary PACKAGE TEST: a test program, built here.
binary() { cargo test -p "$1" --test "$2" --no-run --locked --message-format=json 2>/dev/null | python3 -c 'import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("executable") and m["target"]["name"] == sys.argv[1] and "test" in m["target"]["kind"]:
        print(m["executable"])' "$2"; }
# A copy, so that a build meanwhile changes nothing.
cp "$target/debug/corelane" "$dir/corelane"
{
    echo "CORELANE=$dir/corelane"
    echo "LAB_DIR=$PWD/crates/cli IO_DIR=$PWD/crates/io"
    case " ${chosen[*]} " in *" lab "*) echo "LAB_TEST=$(binary cli lab)" ;; esac
    for test in verdicts model sums; do
        case " ${chosen[*]} " in *" $test "*) echo "${test^^}_TEST=$(binary io $test)" ;; esac
    done
} >"$dir/env"
# The guest finds its words by a path of its own.
sed "s|\${CORELANE_DRIVERS_ENV:-[^}]*}|$dir/env|" "$here/guest.sh" >"$dir/guest.sh"

results=$dir/results
: >"$results"
# verdict ROW RESULT SECONDS: prints and keeps what a guest said of a row.
verdict() {
    local row=$1 what detail
    IFS='|' read -r _ _ what detail <<<"$2"
    printf '%-10s %-16s %-13s %-8s %4s s  %s\n' "$device" "$release" "$row" "$what" "$3" "$detail"
    echo "$device|$release|$row|$what|$detail" >>"$results"
    case $what in
    absent) skip "$device-$kernel-$row" "$detail" ;;
    FAILED)
        failures=$((failures + 1))
        grep -aE '^  (log|kernel):' "$log" | tail -40 || true
        ;;
    esac
}
# guest ROWS…: boots one and takes its verdicts; `rest` is what it did not come to.
guest() {
    local line row result='' limit
    rest=" $* "
    # Each row is ended by itself; this is for a guest that hangs.
    limit=$((300 + $# * 950))
    case $rest in *" lab "* | *" sums "*) limit=$((limit + 12000)) ;; esac
    log=$dir/$device-$kernel-$1.log
    while IFS= read -r line; do
        case $line in
        "RESULT|"*) [ -n "$result" ] || result=$line ;;
        "KERNEL|"*) result="RESULT||FAILED|the kernel says: ${line##*|}" ;;
        "TOOK|"*)
            row=${line#TOOK|} row=${row%%|*}
            verdict "$row" "${result:-RESULT||FAILED|it says nothing}" "${line##*|}"
            rest=${rest/" $row "/" "}
            result=
            ;;
        esac
    done < <("$here/boot.sh" "$dir/$kernel" "$device" "$dir/guest.sh" "$(tr ' ' , <<<"$*")" $limit 2>&1 | stdbuf -oL tr -d '\r' | tee "$log")
}
for line in "${chosen[@]}"; do
    read -r device kernel rows <<<"$line"
    [ -f "$dir/$kernel/vmlinuz" ] || continue
    case $device in virtio-mq | virtio-zc) [ "$(id -u)" = 0 ] || { skip "$device" "several queues by tap need root"; continue; } ;; esac
    release=$(cat "$dir/$kernel/release")
    release=${release%-amd64}
    rest=$rows
    while [ -n "${rest// /}" ]; do
        # shellcheck disable=SC2086 # words
        guest $rest
        # shellcheck disable=SC2086
        set -- $rest
        [ $# -gt 0 ] || break
        # A guest that ended within a row takes the others with it; they get another one.
        verdict "$1" "RESULT||FAILED|the guest ended: see $log" -
        tail -15 "$log"
        shift
        rest=$*
    done
    [ -z "$write" ] || python3 "$here/table.py" "$results" docs/drivers.md
done
finish
