#!/usr/bin/env bash
# Production drivers and other kernels: `./ci.sh drivers`.
#
#   tools/drivers/run.sh             every row
#   tools/drivers/run.sh quick       one row of each driver and kernel
#   tools/drivers/run.sh ci          what `./ci.sh full` runs: a row or two of each driver, and of each kernel
#   tools/drivers/run.sh igb new     the rows of one driver (and one kernel)
#   tools/drivers/run.sh igb new bond,slave     these rows
#   tools/drivers/run.sh --write …   and puts what was seen into docs/drivers.md
#
# Guests are booted under QEMU with Debian's kernels; this system's root directory is theirs, read-only. Each row that was chosen ends with
# one verdict. It is `served`, or `refused` with a sentence, or it has FAILED; so has one that was served in another mode than its line
# says, and one after which the kernel complains of a fault of its own. A guest that lacks something (a module, a function of the
# emulated device) says `absent`; a row whose guest cannot be booted is `skipped`. Both are skips with a name; with CI=true a skip that
# tools/drivers/skips does not list is a failure. CORELANE_SKIPS=FILE gets them, a line each.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tools/drivers
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
dir=${CORELANE_DRIVERS_DIR:-$target/drivers}
write=
[ "${1:-}" != --write ] || { write=1; shift; }
only_device=${1:-} only_kernel=${2:-} only_rows=${3:-}

# What is booted: device, kernel, how frames come to the sockets, rows. A row for which they come otherwise says so; tests of the
# repository and `load` do not tell. The rows up to a bar are those of `quick`.
#   zero-copy   without copying, to each socket; partly: to some at least
#   copy        by the driver's own XDP, and copied
#   native      by the driver's own XDP; 6.1 as Debian builds it cannot be asked for more
#   generic     by the kernel, whatever the driver
table='
igb       new     zero-copy basic | restart kill flap reset rings channels mac bulk=- range=- vip gone numa first_syn key vlan=generic foreign_vlan bond=generic slave bridge=generic member jumbo=generic mtu3000 neighbors deliver=native
igb       new     zero-copy | igbvf
igb       stable  copy      basic | kill flap first_syn key vlan=generic foreign_vlan bond=generic slave mtu3000 deliver=native
igb       old     native    basic | restart kill flap reset mac bulk=- range=- vip first_syn key vlan=generic foreign_vlan bond=generic slave bridge=generic member jumbo mtu3000 neighbors
vmxnet3   new     copy      basic | restart kill flap mac bulk=- foreign_vlan jumbo=generic
virtio    new     copy      basic | kill flap mac foreign_vlan jumbo
virtio-mq new     copy      basic | restart kill flap channels mac bulk=- foreign_vlan jumbo first_syn key deliver=native
virtio-mq stable  copy      basic | bulk=-
virtio-mq old     native    basic | bulk=-
virtio-zc new     partly    basic | restart kill flap mac first_syn
e1000e    new     generic   basic | restart kill flap reset mac bulk=- foreign_vlan jumbo
e1000     new     generic   basic | kill mac foreign_vlan
igb       new     -         | verdicts model sums lab
igb       stable  -         | verdicts model sums lab
igb       old     -         | verdicts model sums lab
'
# `ci`: each driver and each kernel.
ci='
igb       old     verdicts model bulk range
igb       stable  foreign_vlan first_syn
igb       new     basic neighbors deliver bulk
vmxnet3   new     basic bulk
virtio-mq stable  basic bulk
virtio-zc new     basic
e1000e    new     basic bulk
e1000     new     basic
'
wrong() { printf 'run.sh: %s\n' "$1" >&2; exit 2; }
case $only_device in -h | --help | help) sed -n '4,9s/^# *//p' "$here/run.sh"; exit 0 ;; esac

skips=()
failures=0
skip() {
    if grep -qs "^$1 " "$here/skips"; then echo "skipped: $1: $2 (listed)"; return; fi
    echo "SKIPPED: $1: $2"
    skips+=("$1: $2")
    [ -z "${CORELANE_SKIPS:-}" ] || echo "$1: $2" >>"$CORELANE_SKIPS"
}

# What there is, by "device kernel row": how frames come. And what was asked for: device, kernel, rows.
declare -A frames=()
chosen=()
# choose DEVICE KERNEL ROWS…: those that are wanted.
choose() {
    local device=$1 kernel=$2 row wanted=()
    shift 2
    for row; do
        [ -z "$only_rows" ] || [[ ,$only_rows, == *,$row,* ]] || continue
        wanted+=("$row")
    done
    [ ${#wanted[@]} = 0 ] || chosen+=("$device $kernel ${wanted[*]}")
}
some=$only_device
case $some in quick | ci) [ $# = 1 ] || wrong "$some takes no more words: ${*:2}"; only_device= ;; esac
while read -r device kernel mode rows; do
    [ -n "$device" ] || continue
    [ "$some" != quick ] || rows=${rows%%|*}
    names=()
    for row in ${rows//|/}; do
        names+=("${row%=*}")
        case $row in
        first_syn | key | verdicts | model | sums | lab) frames["$device $kernel $row"]=- ;;
        *=*) frames["$device $kernel ${row%=*}"]=${row#*=} ;;
        *) frames["$device $kernel $row"]=$mode ;;
        esac
    done
    [ "$some" != ci ] || continue
    [ -z "$only_device" ] || [ "$only_device" = "$device" ] || continue
    [ -z "$only_kernel" ] || [ "$only_kernel" = "$kernel" ] || continue
    choose "$device" "$kernel" "${names[@]}"
done <<<"$table"
if [ "$some" = ci ]; then
    while read -r device kernel rows; do
        # shellcheck disable=SC2086 # words
        [ -z "$device" ] || choose "$device" "$kernel" $rows
    done <<<"$ci"
fi
[ ${#chosen[@]} -gt 0 ] || wrong "no such rows: $* (see --help)"
for row in ${only_rows//,/ }; do
    case " ${chosen[*]} " in *" $row "*) ;; *) wrong "no row $row for $only_device $only_kernel" ;; esac
done
# What has no verdict yet.
declare -A open=()
for line in "${chosen[@]}"; do
    read -r device kernel rows <<<"$line"
    for row in $rows; do
        [ -n "${frames["$device $kernel $row"]:-}" ] || wrong "no row $row for $device $kernel"
        open["$device $kernel $row"]=1
    done
done

results=$dir/results
mkdir -p "$dir"
: >"$results"
declare -A count=([served]=0 [refused]=0 [absent]=0 [FAILED]=0 [skipped]=0)
# told ROW VERDICT DETAIL SECONDS: the one verdict of a row.
told() {
    printf '%-10s %-16s %-13s %-8s %4s s  %s\n' "$device" "$release" "$1" "$2" "$4" "$3"
    count[$2]=$((count[$2] + 1))
    [ "$2" != FAILED ] || failures=$((failures + 1))
    if [ -z "${open["$device $kernel $1"]:-}" ]; then
        echo "FAILED: $device $kernel $1 was not asked for, or has a verdict already"
        failures=$((failures + 1))
    fi
    unset "open[$device $kernel $1]"
}
finish() {
    local row
    for row in "${!open[@]}"; do
        echo "FAILED: $row has no verdict"
        failures=$((failures + 1))
    done
    echo "${count[served]} served, ${count[refused]} refused, ${count[absent]} absent, ${count[skipped]} skipped, ${count[FAILED]} FAILED"
    echo "$failures failed, ${#skips[@]} skipped"
    if [ ${#skips[@]} -gt 0 ] && [ "${CI:-}" = true ]; then exit 1; fi
    [ "$failures" = 0 ] || exit 1
    exit 0
}

# The kernels, each with what became of it.
declare -A prepared=()
mapfile -t kernels < <(printf '%s\n' "${chosen[@]}" | awk '{ print $2 }' | sort -u)
status=0
"$here/prepare.sh" "$dir" "${kernels[@]}" >"$dir/prepare.log" 2>&1 || status=$?
while IFS= read -r line; do
    case $line in
    "READY "*) prepared[${line#READY }]=ready ;;
    "SKIP all: "*)
        skip all "${line#SKIP all: }"
        for kernel in "${kernels[@]}"; do prepared[$kernel]=skipped; done
        ;;
    "SKIP "*)
        line=${line#SKIP }
        skip "${line%%: *}" "${line#*: }"
        prepared[${line%%: *}]=skipped
        ;;
    *) echo "$line" ;;
    esac
done <"$dir/prepare.log"
if [ $status != 0 ]; then
    echo "FAILED: prepare.sh ended with $status (see $dir/prepare.log)"
    # Of no row there is more to say.
    [ ${#prepared[@]} -gt 0 ] || exit 1
    failures=$((failures + 1))
fi
# Rows that no guest can be booted for.
bootable=()
for line in "${chosen[@]}"; do
    read -r device kernel rows <<<"$line"
    release=$kernel
    verdict='' why=''
    case ${prepared[$kernel]:-} in
    ready) [ -s "$dir/$kernel/vmlinuz" ] || { verdict=FAILED why="no vmlinuz in $dir/$kernel"; } ;;
    skipped) verdict=skipped why="no kernel to boot: see above" ;;
    *) verdict=FAILED why="prepare.sh says nothing of this kernel" ;;
    esac
    case $verdict$device in virtio-mq | virtio-zc) [ "$(id -u)" = 0 ] || { verdict=skipped why="several queues by tap need root"; skip "$device" "$why"; } ;; esac
    if [ -z "$verdict" ]; then bootable+=("$line"); else for row in $rows; do told "$row" "$verdict" "$why" -; done; fi
done
[ ${#bootable[@]} -gt 0 ] || finish
chosen=("${bootable[@]}")

cargo build -p cli --bins --locked --quiet
cargo build -p preload --locked --quiet
# binary PACKAGE TEST: a test program, built here.
binary() { cargo test -p "$1" --test "$2" --no-run --locked --message-format=json 2>/dev/null | python3 -c 'import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("executable") and m["target"]["name"] == sys.argv[1] and "test" in m["target"]["kind"]:
        print(m["executable"])' "$2"; }
# A copy, so that a build meanwhile changes nothing.
cp "$target/debug/corelane" "$target/debug/libcorelane_preload.so" "$dir/"
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

# came ROW HOW: whether frames came as the row's line says.
came() {
    case ${frames["$device $kernel $1"]:--} in
    -) ;;
    copy) [[ $2 == "native, copy"* ]] ;;
    native) [[ $2 == native,* ]] ;;
    zero-copy) [[ $2 =~ ^zero-copy($|[,\;]) ]] ;;
    partly) [[ $2 == zero-copy* ]] ;;
    generic) [[ $2 == generic* ]] ;;
    *) false ;;
    esac
}
# verdict ROW RESULT SECONDS: prints and keeps what a guest said of a row.
verdict() {
    local row=$1 what detail
    IFS='|' read -r _ _ what detail <<<"$2"
    if [ "$what" = served ] && ! came "$row" "$detail"; then
        what=FAILED detail="frames are to come by ${frames["$device $kernel $row"]}, and it is served by $detail"
    fi
    told "$row" "$what" "$detail" "$3"
    echo "$device|$release|$row|$what|$detail" >>"$results"
    case $what in
    absent) skip "$device-$kernel-$row" "$detail" ;;
    FAILED) grep -aE '^  (log|kernel):' "$log" | tail -150 || true ;;
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
