#!/usr/bin/env bash
# Production drivers and other kernels: `./ci.sh drivers`.
#
#   tools/drivers/run.sh             every row; prints a table, and writes it into docs/drivers.md with --write
#   tools/drivers/run.sh quick       one row of each driver and kernel
#   tools/drivers/run.sh igb new     the rows of one driver (and one kernel)
#   tools/drivers/run.sh igb new bond,slave     these rows
#
# Guests are booted under QEMU with Debian's kernels; this system's root directory is theirs, read-only. A row is `served`, or
# `refused` with a sentence, or it has FAILED. A guest that lacks something (a module, a function of the emulated device) says `absent`.
# What is absent, or cannot be prepared, is a skip; with CI=true a skip that tools/drivers/skips does not list is a failure.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tools/drivers
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
dir=${CORELANE_DRIVERS_DIR:-$target/drivers}
write=
[ "${1:-}" != --write ] || { write=1; shift; }
only_device=${1:-} only_kernel=${2:-} only_rows=${3:-}
quick=
[ "$only_device" != quick ] || { quick=1; only_device=; }

# What is booted: device, kernel, rows. The rows up to a bar are those of `quick`.
table='
igb       new     basic | restart kill flap reset rings mac vip gone first_syn vlan foreign_vlan bond slave bridge member jumbo
igb       new     igbvf
igb       stable  basic | kill flap bond slave
igb       old     basic | restart kill flap reset mac vip vlan foreign_vlan bond slave bridge member jumbo
vmxnet3   new     basic | kill flap mac jumbo
virtio    new     basic kill flap mac
virtio-mq new     basic | restart kill flap rings mac jumbo first_syn
e1000e    new     basic | kill flap mac jumbo
e1000     new     basic
igb       new     lab verdicts sums
igb       old     lab verdicts sums
'

skips=()
failures=0
skip() {
    if grep -qs "^$1\b" "$here/skips"; then echo "skipped: $1: $2 (listed)"; else echo "SKIPPED: $1: $2"; skips+=("$1: $2"); fi
}
finish() {
    if [ ${#skips[@]} -gt 0 ] && [ "${CI:-}" = true ]; then exit 1; fi
    [ "$failures" = 0 ] || exit 1
    exit 0
}

while IFS= read -r line; do
    case $line in
    "SKIP all: "*) skip all "${line#SKIP all: }"; finish ;;
    SKIP*) line=${line#SKIP }; skip "${line%%: *}" "${line#*: }" ;;
    *) echo "$line" ;;
    esac
done < <("$here/prepare.sh" "$dir" 2>&1)

cargo build -p cli --bins --locked --quiet
# binary PACKAGE TEST: a test program, built here.
binary() { cargo test -p "$1" --test "$2" --no-run --locked --message-format=json 2>/dev/null | python3 -c 'import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("executable") and m["target"]["name"] == sys.argv[1] and "test" in m["target"]["kind"]:
        print(m["executable"])' "$2"; }
mkdir -p "$dir"
{
    echo "CORELANE=$target/debug/corelane"
    echo "LAB_DIR=$PWD/crates/cli IO_DIR=$PWD/crates/io"
    if [ -z "$quick" ]; then
        echo "LAB_TEST=$(binary cli lab)"
        echo "VERDICTS_TEST=$(binary io verdicts)"
        echo "SUMS_TEST=$(binary io sums)"
    fi
} >"$dir/env"
# The guest finds its words by a path of its own.
sed "s|\${CORELANE_DRIVERS_ENV:-[^}]*}|$dir/env|" "$here/guest.sh" >"$dir/guest.sh"

results=$dir/results
: >"$results"
machines() { sed '/^ *$/d' <<<"$table"; }
while read -r device kernel rows; do
    [ -z "$only_device" ] || [ "$only_device" = "$device" ] || continue
    [ -z "$only_kernel" ] || [ "$only_kernel" = "$kernel" ] || continue
    if [ -n "$quick" ]; then
        case $rows in *'|'*) rows=${rows%%|*} ;; *) continue ;; esac
    fi
    if [ -n "$only_rows" ]; then
        case " $rows " in *"${only_rows%%,*}"*) rows=${only_rows//,/ } ;; *) continue ;; esac
    fi
    rows=$(tr -d '|' <<<"$rows" | xargs)
    if [ ! -f "$dir/$kernel/vmlinuz" ]; then continue; fi
    if [ "$device" = virtio-mq ] && [ "$(id -u)" != 0 ]; then skip virtio-mq "several queues by tap need root"; continue; fi
    release=$(cat "$dir/$kernel/release")
    release=${release%-amd64}
    log=$dir/$device-$kernel.log
    LIMIT=${LIMIT:-1800} "$here/boot.sh" "$dir/$kernel" "$device" "$dir/guest.sh" "${rows// /,}" >"$log" 2>&1 || true
    tr -d '\r' <"$log" >"$log.text" && mv "$log.text" "$log"
    for row in $rows; do
        result=$(grep -a "^RESULT|$row|" "$log" | head -1 || true)
        IFS='|' read -r _ _ verdict detail <<<"${result:-||FAILED|no word of it: see $log}"
        printf '%-10s %-16s %-13s %-8s %s\n' "$device" "$release" "$row" "$verdict" "$detail"
        echo "$device|$release|$row|$verdict|$detail" >>"$results"
        case $verdict in
        absent) skip "$device-$kernel-$row" "$detail" ;;
        FAILED)
            failures=$((failures + 1))
            grep -a -A12 "^RESULT|$row|" "$log" | grep -a '^  log:' | head -12 || tail -15 "$log"
            ;;
        esac
    done
done < <(machines)

if [ -n "$write" ]; then python3 "$here/table.py" "$results" docs/drivers.md; fi
echo "$failures failed, ${#skips[@]} skipped"
finish
