#!/usr/bin/env bash
# Runs in a guest: the rows that are named as arguments, one after the other. tools/drivers/run.sh builds, boots and prints the table.
#
# The client's interface is eth0 in namespace a (10.97.0.1, fd97::1), the server's is eth1 in namespace b (10.97.0.2, fd97::2).
# A row is a function `row_NAME`. It ends with `served DETAIL`, `refused SENTENCE`, `absent WHY` (the guest has no such thing) or
# `failed WHY`; these lines are what run.sh reads. Every row leaves the interfaces as it found them (`plain` makes sure).
set -u
echo BEGUN
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin HOME=/root LC_ALL=C.UTF-8
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC1091 # written by run.sh: where the binaries are
. "${CORELANE_DRIVERS_ENV:-$here/../../target/drivers/env}"
R=/tmp/lab
mkdir -p $R/www
cd $R || exit 1
printf hello >www/one
head -c 1000000 /dev/urandom >www/big
# Clocks of new guests are good enough; entropy is there by the CPU.

A() { ip netns exec a "$@"; }
B() { ip netns exec b "$@"; }

name_interfaces() {
    local i n
    for i in /sys/class/net/*; do
        n=$(basename "$i")
        case $(cat "$i/address" 2>/dev/null) in
        52:54:00:00:00:01) ip link set "$n" name tmpa ;;
        52:54:00:00:00:02) ip link set "$n" name tmpb ;;
        esac
    done
    ip link set tmpa name eth0
    ip link set tmpb name eth1
}

# Waits until the client's kernel reaches an address.
reach() { for _ in $(seq 1 40); do A ping -c 1 -W 1 "$1" >/dev/null 2>&1 && return 0; done; return 1; }

# The interfaces as every row finds them.
plain() {
    stop_server
    local dev
    for dev in bond7 br7 v5 dum7; do B ip link del $dev 2>/dev/null; A ip link del $dev 2>/dev/null; done
    B ip link set eth1 nomaster 2>/dev/null
    A ip link set eth0 down; B ip link set eth1 down
    A ip link set eth0 mtu 1500; B ip link set eth1 mtu 1500 address 52:54:00:00:00:02
    A ip addr flush dev eth0; B ip addr flush dev eth1; B ip addr flush dev lo scope global
    A ip addr add 10.97.0.1/24 dev eth0; A ip addr add fd97::1/64 dev eth0 nodad; A ip link set eth0 up
    B ip addr add 10.97.0.2/24 dev eth1; B ip addr add fd97::2/64 dev eth1 nodad; B ip link set eth1 up
    A ip neigh flush all; B ip neigh flush all
    A tc qdisc del dev eth0 root 2>/dev/null
    local_ports 32768 60999
    reach 10.97.0.2
}

# local_ports FIRST LAST: the range of the kernel beside the server.
local_ports() { B sh -c "echo $1 $2 >/proc/sys/net/ipv4/ip_local_port_range"; }

# serve ARGS…: starts the server in b and waits until it is ready or ends. Its words are in $R/log.
serve() {
    : >$R/log
    # Not by B: the process to end is the command's own.
    ip netns exec b "$CORELANE" serve $R/www --port 80 "$@" >$R/log 2>&1 &
    server=$!
    local _
    for _ in $(seq 1 300); do
        grep -q '^serving' $R/log && return 0
        kill -0 $server 2>/dev/null || { wait $server; code=$?; server=; return 1; }
        sleep 0.1
    done
    return 2
}

server=
stop_server() { [ -n "$server" ] && kill $server 2>/dev/null && wait $server; code=$?; server=; }

# How frames come to the sockets of a device: where its program is, by the kernel's word, and what `ss` tells of the sockets. It tells
# nothing where the kernel is built without xsk_diag, as Debian's 6.1.
mode() {
    local dev=$1 link ss without all
    link=$(B ip link show dev "$dev")
    case $link in
    *xdpgeneric*)
        if grep -q 'generic mode' $R/log; then echo "generic"; else echo "no note of generic mode"; fi
        return
        ;;
    *xdp*) ;;
    *) echo "no program on $dev"; return ;;
    esac
    ss=$(B ss --xdp -e 2>/dev/null)
    without=$(grep -o 'zc:1' <<<"$ss" | wc -l) all=$(grep -o 'zc:[01]' <<<"$ss" | wc -l)
    case $without in
    0) if [ "$all" -gt 0 ]; then echo "native, copy"; else echo "native, mode not told"; fi ;;
    "$all") echo "zero-copy" ;;
    *) echo "zero-copy on $without of $all sockets" ;;
    esac
}

queues() { B sh -c "ls -d /sys/class/net/$1/queues/rx-*" 2>/dev/null | wc -l; }

# What can be seen from outside of a server that does not answer: the addresses that each end knows, what the driver and the sockets
# counted, and the last frames that the server's stack saw, where `serve` was given `--pcap $R/seen.pcapng`.
picture() {
    {
        echo "--- neighbours"; A ip neigh; B ip neigh
        echo "--- counters"; B ip -s link show eth1; B ethtool -S eth1 | grep -v ': 0$'
        echo "--- sockets"; B ss --xdp -e
        echo "--- interrupts"; grep -E 'CPU|virtio|eth' /proc/interrupts
        echo "--- the server's stack"
        [ ! -s $R/seen.pcapng ] || python3 - $R/seen.pcapng <<'PY'
import struct, sys
data, at, frames = open(sys.argv[1], "rb").read(), 0, []
while at + 12 <= len(data):
    kind, length = struct.unpack_from("<II", data, at)
    if kind == 6:
        high, low, caught = struct.unpack_from("<III", data, at + 12)
        frames.append(((high << 32 | low), data[at + 28 : at + 28 + min(caught, 74)].hex()))
    at += max(length, 12)
print(len(frames), "frames, the last of them:")
for when, frame in frames[-20:]:
    print(when, frame)
PY
    } 2>&1 | sed 's/^/  log: /'
}
# fetch HOST: one byte more than nothing and a megabyte, whose bytes must be the same.
fetch() {
    [ "$(A curl -g -s -m 60 "http://$1/one")" = hello ] || { why="no answer from $1"; picture; return 1; }
    A curl -g -s -m 200 "http://$1/big" | cmp -s - $R/www/big || { why="other bytes from $1"; return 1; }
}

# download DEVICE HOST: three times a megabyte, to a client that has the interface. The kernel there merges segments where it may, and a
# client that loses what is merged has not even one in that time.
download() {
    local text
    text=$(B timeout 200 "$CORELANE" load "http://$2:8080/big" --dev "xdp:$1" -n 3 -c 1 --timeout 20 2>&1)
    printf '%s\n' "--- $1 from $2" "$text" >>$R/log
    case $text in
    *"lost on the way in"*) why="$1: frames are lost on the way to a client" ;;
    *"no errors"*) return 0 ;;
    *) why="$1: a client does not have its bytes" ;;
    esac
    return 1
}

served() { echo "RESULT|$row|served|$*"; }
refused() { echo "RESULT|$row|refused|$*"; }
absent() { echo "RESULT|$row|absent|$*"; }
failed() {
    echo "RESULT|$row|FAILED|$*"
    sed 's/^/  log: /' $R/log
}
# What the log says first that is no note.
sentence() { grep -v '^note:' $R/log | head -1; }

# must_refuse PATTERN ARGS…: rc 1 at once, with a sentence.
must_refuse() {
    local pattern=$1 status
    shift
    serve "$@"
    status=$?
    if [ $status != 1 ]; then failed "it was not refused"; stop_server; return; fi
    if [ "$code" = 1 ] && sentence | grep -qE "$pattern"; then refused "$(sentence)"; else failed "rc $code: $(sentence)"; fi
}

# must_serve DEVICE HOSTS… after `serve`: both families' bytes.
must_serve() {
    local dev=$1 host
    shift
    # Which VLAN a frame is of, nobody knows there.
    case $dev in
    bond* | br*) grep -q "note: $dev .*VLAN tags are taken off" $R/log || { failed "nothing is said of other VLANs"; return 1; } ;;
    esac
    for host in "$@"; do fetch "$host" || { failed "$why"; return 1; }; done
    served "$(mode "$dev")${extra:+; $extra}"
}

both="10.97.0.2 [fd97::2]"

row_basic() {
    local lanes=1 text sockets
    [ "$(queues eth1)" -ge 2 ] && lanes=2
    if ! serve --dev xdp:eth1 --lanes $lanes --pcap $R/seen.pcapng; then failed "it did not start: $(sentence)"; return; fi
    for host in $both; do fetch "$host" || { failed "$why"; return; }; done
    text=$(A timeout 400 ab -q -c 20 -n 2000 http://10.97.0.2/one 2>&1)
    case $text in
    *"Complete requests:      2000"*"Failed requests:        0"*) ;;
    *) failed "ab: $(echo "$text" | grep -E 'apr|Complete|Failed' | tr '\n' ' ')"; return ;;
    esac
    # A queue without a socket is deaf, and drivers may turn queues on for a program.
    sockets=$(B awk '$1 == "XDP" { print $3 }' /proc/net/protocols)
    [ "$sockets" = "$(queues eth1)" ] || { failed "$(queues eth1) queues have $sockets sockets"; return; }
    # ping is the kernel's.
    reach 10.97.0.2 || { failed "the kernel does not answer ping: $(A ping -c 3 -W 5 10.97.0.2 2>&1 | tr '\n' ' '); $(A ip neigh | tr '\n' ' '); $(B ip neigh | tr '\n' ' ')"; return; }
    local how
    how=$(mode eth1)
    stop_server
    [ "$code" = 0 ] || { failed "rc $code at the end"; return; }
    # Both ends' last word: the interface is the kernel's again.
    reach 10.97.0.2 || { failed "the kernel's interface is not as it was"; return; }
    served "$how, $lanes lane(s)"
}

# pages NODE: those of the server's large mappings that lie there.
pages() { awk -v node="N$1" '/ anon=[0-9][0-9][0-9][0-9]+ / { for (i = 3; i <= NF; i++) if (split($i, of, "=") && of[1] == node) n += of[2] } END { print n + 0 }' "/proc/$server/numa_maps"; }

# The frames of a lane lie on the node of its core.
row_numa() {
    local core here there frames how
    [ -d /sys/devices/system/node/node1 ] || { absent "the guest has one NUMA node"; return; }
    for core in 0 1 0 1; do
        serve --dev xdp:eth1 --lanes 2 --cores $core,$core || { failed "it did not start: $(sentence)"; return; }
        fetch 10.97.0.2 || { failed "$why"; return; }
        frames=$(B ss --xdp -e | grep -oE 'umem.*,size:[0-9]+' | awk -F: '{ n += $NF / 4096 } END { print n + 0 }')
        here=$(pages $core) there=$(pages $((1 - core)))
        if [ "$frames" = 0 ] || [ "$here" -lt "$frames" ] || [ "$there" -gt $((frames / 20)) ]; then
            failed "lanes on core $core: $frames pages of frames; of the large mappings $here pages lie on its node, $there on the other"
            return
        fi
        how=$(mode eth1)
        stop_server
    done
    served "$how; frames on the node of their lane's core"
}

row_restart() {
    local how _
    for _ in 1 2 3; do
        serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
        fetch 10.97.0.2 || { failed "$why"; return; }
        how=$(mode eth1)
        stop_server
        [ "$code" = 0 ] || { failed "rc $code"; return; }
    done
    served "$how; three times"
}

# Features that are off while the server has the interface.
features() { B ethtool -k eth1 | grep -E '^(generic-receive-offload|rx-vlan-offload|rx-gro-hw):'; }

row_kill() {
    local before how
    before=$(features)
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    ip netns exec a timeout 60 ab -q -c 50 -n 1000000 http://10.97.0.2/one >/dev/null 2>&1 &
    local load=$!
    sleep 3
    kill -9 $server; wait $server 2>/dev/null; server=
    kill $load 2>/dev/null; wait $load 2>/dev/null
    reach 10.97.0.2 || { failed "the kernel's interface is not as it was"; return; }
    serve --dev xdp:eth1 || { failed "it did not start again: $(sentence)"; return; }
    for host in $both; do fetch "$host" || { failed "$why"; return; }; done
    how=$(mode eth1)
    stop_server
    [ "$(features)" = "$before" ] || { failed "features were $before, and are $(features)"; return; }
    served "$how; again after kill -9 under load, and features as before"
}

row_flap() {
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    fetch 10.97.0.2 || { failed "$why"; return; }
    B ip link set eth1 down; sleep 1; B ip link set eth1 up; B ip addr add fd97::2/64 dev eth1 nodad 2>/dev/null
    reach 10.97.0.2
    fetch 10.97.0.2 || { failed "after the server's link came back: $why"; return; }
    A ip link set eth0 down; sleep 1; A ip link set eth0 up; A ip addr add fd97::1/64 dev eth0 nodad 2>/dev/null
    reach 10.97.0.2
    fetch 10.97.0.2 || { failed "after the client's link came back: $why"; return; }
    extra="link down and up at either end" must_serve eth1 $both
}

row_reset() {
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    fetch 10.97.0.2 || { failed "$why"; return; }
    B ethtool -r eth1 >/dev/null 2>&1 || { absent "the driver has no ethtool -r"; return; }
    reach 10.97.0.2
    extra="ethtool -r" must_serve eth1 $both
}

row_rings() {
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    fetch 10.97.0.2 || { failed "$why"; return; }
    B ethtool -G eth1 rx 512 tx 512 >/dev/null 2>&1 || { absent "the driver has no ethtool -G"; return; }
    reach 10.97.0.2
    extra="ring size changed by ethtool -G" must_serve eth1 $both
}

row_jumbo() {
    A ip link set eth0 mtu 9000 && B ip link set eth1 mtu 9000 || { absent "the driver takes no MTU of 9000"; return; }
    reach 10.97.0.2
    if ! serve --dev xdp:eth1; then
        case $(sentence) in
        *"Linux 6.6"*) refused "$(sentence)" ;;
        *) failed "rc $code: $(sentence)" ;;
        esac
        return
    fi
    if [ "$(mode eth1)" = generic ] && ! grep -qE 'MTU of [0-9]+' $R/log; then failed "no MTU that fits is named: $(cat $R/log)"; return; fi
    extra=$(grep -oE 'an MTU of [0-9]+ or less' $R/log | head -1) must_serve eth1 $both
}

# The MTU that notes and refusals of `jumbo` name is one that the driver takes a program with.
row_mtu3000() {
    A ip link set eth0 mtu 3000 && B ip link set eth1 mtu 3000 || { absent "the driver takes no MTU of 3000"; return; }
    reach 10.97.0.2
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    [ "$(mode eth1)" != generic ] || { failed "generic mode: $(cat $R/log)"; return; }
    extra="MTU 3000" must_serve eth1 $both
}

# Queues that are turned on later come to nobody, and a line says so.
row_channels() {
    B ethtool -L eth1 combined 1 2>/dev/null || { absent "the driver has no ethtool -L"; return; }
    reach 10.97.0.2
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; B ethtool -L eth1 combined 2; return; }
    fetch 10.97.0.2 || { failed "$why"; B ethtool -L eth1 combined 2; return; }
    if ! B ethtool -L eth1 combined 2 2>$R/refusal; then
        extra="ethtool -L is refused by the kernel meanwhile" must_serve eth1 $both
        stop_server
        B ethtool -L eth1 combined 2
        return
    fi
    reach 10.97.0.2
    local _
    for _ in $(seq 1 50); do grep -q 'it has 2 receive queues now' $R/log && break; sleep 0.2; done
    grep -q 'it has 2 receive queues now, and frames of 1 are taken' $R/log || { failed "more queues, and not a word of it"; return; }
    stop_server
    serve --dev xdp:eth1 || { failed "it did not start again: $(sentence)"; return; }
    extra="a queue more is told, and served by the next start" must_serve eth1 $both
}

# Interfaces on eth1 of the server's side; a VLAN has its own addresses, and is on the client's side too.
shape_bridge() {
    B ip link add br7 type bridge || return
    B ip addr flush dev eth1; B ip link set eth1 master br7; B ip link set br7 up
    B ip addr add 10.97.0.2/24 dev br7; B ip addr add fd97::2/64 dev br7 nodad
}
shape_vlan() {
    A ip link add link eth0 name v5 type vlan id 5 && B ip link add link eth1 name v5 type vlan id 5 || return
    A ip addr add 10.95.0.1/24 dev v5; A ip addr add fd95::1/64 dev v5 nodad; A ip link set v5 up
    B ip addr add 10.95.0.2/24 dev v5; B ip addr add fd95::2/64 dev v5 nodad; B ip link set v5 up
}
shape_bond() {
    B ip link add bond7 type bond mode active-backup miimon 100 || return
    B ip link set eth1 down; B ip addr flush dev eth1; B ip link set eth1 master bond7; B ip link set bond7 up
    B ip addr add 10.97.0.2/24 dev bond7; B ip addr add fd97::2/64 dev bond7 nodad
}

row_vlan() {
    shape_vlan || { absent "no VLAN interface"; return; }
    reach 10.95.0.2
    serve --dev xdp:v5 || { failed "it did not start: $(sentence)"; return; }
    must_serve v5 10.95.0.2
}

# Frames of another VLAN are the kernel's: its untagged interface would not take them, so nobody answers. They must have come, though, as
# far as the server's kernel; and the same client without the tag must be answered.
row_foreign_vlan() {
    local them=10.97.0.77 listener sniffer status
    A ip link add link eth0 name v5 type vlan id 5 || { absent "no VLAN interface"; return; }
    A ip addr add $them/24 dev v5; A ip link set v5 up
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    fetch 10.97.0.2 || { failed "$why"; return; }
    A ip neigh replace 10.97.0.2 lladdr 52:54:00:00:00:02 dev v5
    # Static, so that an answer would find its way.
    B ip neigh replace $them lladdr 52:54:00:00:00:01 dev eth1
    ip netns exec a tcpdump -lni eth0 -c 1 "tcp and src port 80 and dst host $them" >$R/heard 2>/dev/null &
    listener=$!
    # It makes the NIC take all frames: a filter of VLANs in front of the program would hide these from it.
    ip netns exec b tcpdump -lni eth1 -c 1 "vlan 5 and tcp dst port 80 and src host $them" >$R/came 2>/dev/null &
    sniffer=$!
    sleep 3
    A curl -s -m 10 --interface v5 http://10.97.0.2/one -o $R/got
    status=$?
    sleep 1
    kill $listener $sniffer 2>/dev/null; wait $listener $sniffer 2>/dev/null
    [ $status != 0 ] || { failed "another VLAN's client was answered: $(cat $R/got)"; return; }
    # 28: no answer in time.
    [ $status = 28 ] || { failed "another VLAN's client could not ask: curl ends with $status"; return; }
    grep -q 'Flags \[S\]' $R/came || { failed "another VLAN's SYN did not reach the server's kernel"; return; }
    if grep -q Flags $R/heard; then failed "another VLAN's SYN was answered: $(cat $R/heard)"; return; fi
    A ip link del v5
    A ip addr add $them/24 dev eth0
    [ "$(A curl -s -m 60 --interface $them http://10.97.0.2/one)" = hello ] || { failed "the same client is not answered without the tag"; return; }
    B ip neigh del $them dev eth1
    extra="another VLAN's frames come, and get no answer" must_serve eth1 10.97.0.2
}

row_bond() {
    shape_bond || { absent "no bonding"; return; }
    reach 10.97.0.2
    serve --dev xdp:bond7
    case $? in
    0) must_serve bond7 10.97.0.2 ;;
    1) if [ "$code" = 1 ] && sentence | grep -qE 'bond.*(packet:|kernel)'; then refused "$(sentence)"; else failed "rc $code: $(sentence)"; fi ;;
    *) failed "neither served nor refused" ;;
    esac
}

row_slave() {
    shape_bond || { absent "no bonding"; return; }
    must_refuse 'bond7' --dev xdp:eth1
}

row_bridge() {
    shape_bridge || { absent "no bridge"; return; }
    reach 10.97.0.2
    serve --dev xdp:br7 || { failed "it did not start: $(sentence)"; return; }
    must_serve br7 $both
}

row_member() {
    shape_bridge || { absent "no bridge"; return; }
    must_refuse 'br7' --dev xdp:eth1
}

# download, of a sender whose segments are lost one by one: bursts that it leaves to the NIC would be lost whole.
lossy() {
    local tso status
    tso=$(A ethtool -k eth0 | sed -n 's/^tcp-segmentation-offload: \([a-z]*\).*/\1/p')
    A ethtool -K eth0 tso off gso off >/dev/null 2>&1
    A ethtool -K v5 tso off gso off >/dev/null 2>&1
    A tc qdisc add dev eth0 root netem loss 3% || { why="no netem"; return 1; }
    download "$@"
    status=$?
    lost=$((lost + $(A tc -s qdisc show dev eth0 root | sed -n 's/.*(dropped \([0-9]*\).*/\1/p')))
    A tc qdisc del dev eth0 root
    A ethtool -K eth0 gso on tso "$tso" >/dev/null 2>&1
    return $status
}

# Bytes to a client on the bare interface, a bridge, a VLAN and a bond: both families, then with 3 % of the segments lost.
row_bulk() {
    local source shape dev host hosts us before seen how lost=0
    ip netns exec a "$CORELANE" serve $R/www --kernel --port 8080 >$R/source 2>&1 &
    source=$!
    for _ in $(seq 1 300); do grep -q '^serving' $R/source && break; sleep 0.1; done
    for shape in bare bridge vlan bond; do
        B ethtool -K eth1 gro on 2>/dev/null
        hosts="10.97.0.1 [fd97::1]" us=10.97.0.2
        case $shape in
        bare) dev=eth1 ;;
        bridge) dev=br7 ;;
        vlan) dev=v5 hosts="10.95.0.1 [fd95::1]" us=10.95.0.2 ;;
        bond) dev=bond7 ;;
        esac
        [ $shape = bare ] || shape_$shape || { absent "no $shape"; break; }
        reach "$us"
        before=$(features)
        for host in $hosts; do download $dev "$host" || { failed "$why"; break 2; }; done
        lossy $dev "${hosts%% *}" || { failed "with 3 % loss: $why"; break; }
        [ "$(features)" = "$before" ] || { failed "$shape: features were $before, and are $(features)"; break; }
        seen="${seen:+$seen, }$shape"
        plain
    done
    kill $source; wait $source 2>/dev/null
    [ "$shape" = bond ] && [ "${seen##* }" = bond ] || return
    [ "$lost" -gt 0 ] || { failed "no segment was lost where 3 % were to be"; return; }
    how=$(grep -c 'merging of segments is off' $R/log)
    served "to a client: $seen; both families, and with $lost segments lost; merging turned off $how times"
}

# A machine whose range of local ports leaves none to others: a server starts there, and so does a client, beside the kernel's own
# connections to the same port; and a range that becomes so while a client has connections.
row_range() {
    local source load host text n kernels=0
    local_ports 1024 65535
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    for host in $both; do fetch "$host" || { failed "$why"; return; }; done
    stop_server
    ip netns exec a "$CORELANE" serve $R/www --kernel --port 8080 >$R/source 2>&1 &
    source=$!
    for _ in $(seq 1 300); do grep -q '^serving' $R/source && break; sleep 0.1; done
    for n in 1024 32768; do
        local_ports $n $((n == 1024 ? 65535 : 60999))
        ip netns exec b timeout 200 "$CORELANE" load http://10.97.0.1:8080/one --dev xdp:eth1 -c 50 -d 15 >$R/load 2>&1 &
        load=$!
        sleep 5
        local_ports 1024 65535
        sleep 3
        for _ in $(seq 1 20); do [ "$(B curl -s -m 20 http://10.97.0.1:8080/one)" = hello ] && kernels=$((kernels + 1)); done
        wait $load
        text=$(cat $R/load)
        printf '%s\n' "--- from $n on" "$text" >>$R/log
        case $text in *"no errors"*) ;; *) failed "a client whose range begins at $n: $(grep -v '^note:' $R/load | head -1)"; break ;; esac
    done
    kill $source; wait $source 2>/dev/null
    case $text in *"no errors"*) ;; *) return ;; esac
    [ $kernels = 40 ] || { failed "of 40 connections of the kernel's beside a client $kernels were answered"; return; }
    served "a server with 1024 to 65535; clients with it, and with one that becomes it, beside 40 connections of the kernel's"
}

row_mac() {
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    fetch 10.97.0.2 || { failed "$why"; return; }
    B ip link set eth1 address 02:00:00:00:aa:02 || { absent "the driver changes no address"; return; }
    A ip neigh flush all
    reach 10.97.0.2
    extra="hardware address changed" must_serve eth1 $both
}

row_vip() {
    B ip link add dum7 type dummy || { absent "no dummy interface"; return; }
    B ip link set dum7 up; B ip addr add 10.96.0.7/32 dev dum7; B ip addr add 10.96.0.8/32 dev lo
    A ip route replace 10.96.0.0/24 via 10.97.0.2
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    extra="addresses of dum7 and lo" must_serve eth1 10.97.0.2 10.96.0.7 10.96.0.8
}

row_gone() {
    local bus driver
    bus=$(basename "$(B readlink /sys/class/net/eth1/device)")
    driver=$(B readlink -f /sys/class/net/eth1/device/driver)
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    echo "$bus" >"$driver/unbind"
    for _ in $(seq 1 100); do kill -0 $server 2>/dev/null || break; sleep 0.1; done
    if kill -0 $server 2>/dev/null; then failed "it goes on without its interface"; else wait $server; code=$?; server=; fi
    echo "$bus" >"$driver/bind"
    sleep 2
    for n in /sys/class/net/*; do [ "$(cat "$n/address")" = 52:54:00:00:00:02 ] && ip link set "$(basename "$n")" name eth1; done
    ip link set eth1 netns b
    plain
    [ "$code" = 1 ] || { failed "rc $code"; return; }
    refused "rc 1: $(grep -i gone $R/log | tail -1)"
}

# The first SYNs of a load generator that attaches to a real driver are answered without a retransmission.
row_first_syn() {
    ip netns exec b python3 -m http.server -d $R/www 8080 >/dev/null 2>&1 &
    local web=$!
    for _ in $(seq 1 50); do A curl -s -m 2 http://10.97.0.2:8080/one >/dev/null && break; sleep 0.2; done
    A "$CORELANE" load http://10.97.0.2:8080/one --dev xdp:eth0 -c 4 -n 20 --json --pcap $R/load.pcapng >$R/load 2>$R/log
    local status=$?
    kill $web; wait $web 2>/dev/null
    local resent
    # SYNs of ours in the capture that were there before.
    resent=$(python3 - $R/load.pcapng <<'PY'
import struct, sys
data, at, seen, again = open(sys.argv[1], "rb").read(), 0, set(), 0
while at + 12 <= len(data):
    kind, length = struct.unpack_from("<II", data, at)
    if kind == 6:
        frame = data[at + 28 : at + 28 + struct.unpack_from("<I", data, at + 20)[0]]
        if frame[12:14] == b"\x08\x00" and frame[23] == 6:
            tcp = frame[14 + (frame[14] & 15) * 4 :]
            if tcp[13] & 0x12 == 2:
                key = tcp[:8]
                again += key in seen
                seen.add(key)
    at += length
print(again if seen else "no")
PY
)
    if [ $status != 0 ]; then failed "load: rc $status"; cat $R/load; return; fi
    [ "$resent" = 0 ] || { failed "$resent SYNs were sent again"; return; }
    served "load: no SYN sent again"
}

# load with two lanes: where the driver hides its hash key, the lanes learn which local ports lead back to them.
row_key() {
    [ "$(queues eth1)" -ge 2 ] || { absent "one queue"; return; }
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    A "$CORELANE" load http://10.97.0.2/one --dev xdp:eth0 --lanes 2 -c 4 -n 1000 --json >$R/load 2>>$R/log ||
        { failed "load: rc $?"; cat $R/load; return; }
    # Frames that came by the other lane's queue, of all that came; a lane counts what it is handed among those. Without what is
    # learnt it is every other one.
    local counts handed came
    counts=$(python3 -c 'import json, sys
lanes = json.load(open(sys.argv[1]))["lanes"]
handed = sum(lane["handed_in"] for lane in lanes)
print(handed, sum(lane["rx_frames"] for lane in lanes) - handed)' $R/load) || { failed "load says: $(head -c 300 $R/load)"; return; }
    handed=${counts% *} came=${counts#* }
    [ "$((handed * 8))" -lt "$came" ] || { failed "$handed of $came frames were handed over"; return; }
    served "$handed of $came frames handed over"
}

# clients FAMILY FIRST: one connection of each of 3,000 addresses of the client, 16 at a time; prints how many were answered, and why not.
clients() {
    A python3 - "$@" <<'PY'
import collections, concurrent.futures, ipaddress, socket, sys
family, first, server = sys.argv[1], ipaddress.ip_address(sys.argv[2]), sys.argv[3]
kind = socket.AF_INET6 if family == "6" else socket.AF_INET
answered, errors = 0, collections.Counter()
def client(n):
    with socket.socket(kind, socket.SOCK_STREAM) as s:
        s.settimeout(60)
        s.bind((str(first + n), 0))
        s.connect((server, 80))
        s.sendall(b"GET /one HTTP/1.0\r\n\r\n")
        # To the end: what is left unread would make the close a reset.
        return b"".join(iter(lambda: s.recv(4096), b"")).endswith(b"hello")
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    for future in [pool.submit(client, n) for n in range(3000)]:
        try:
            answered += future.result()
        except OSError as e:
            errors[str(e)] += 1
print(answered, dict(errors) or "")
PY
}

# More clients on the link than the kernel's table of neighbours has room for: all are answered, a line names the limit, no entry is kept
# for the server, not even after `kill -9`, and the kernel collects what is there as it does its own.
row_neighbors() {
    local family first server_at got entries _ n
    sysctl -qw net.ipv4.neigh.default.gc_thresh3=1024 net.ipv6.neigh.default.gc_thresh3=1024
    # 10.98.1.0 and fd98::1:0, and those that follow.
    for n in $(seq 0 2999); do
        echo "addr add 10.98.$((1 + n / 256)).$((n % 256))/16 dev eth0"
        printf 'addr add fd98::1:%x/64 dev eth0 nodad\n' "$n"
    done | A ip -batch - || { failed "no addresses"; return; }
    B ip addr add 10.98.0.1/16 dev eth1; B ip addr add fd98::1/64 dev eth1 nodad
    serve --dev xdp:eth1 || { failed "it did not start: $(sentence)"; return; }
    for family in 4 6; do
        if [ $family = 4 ]; then first=10.98.1.0 server_at=10.98.0.1; else first=fd98::1:0 server_at=fd98::1; fi
        B ip neigh flush dev eth1
        got=$(clients $family $first $server_at)
        entries=$(B ip -$family neigh show dev eth1 | wc -l)
        extra="$extra; IPv$family: $entries entries"
        [ "$got" = "3000 " ] || { failed "of 3,000 clients of IPv$family $got were answered, $entries entries"; return; }
        [ "$(B ip neigh show dev eth1 | grep -c managed)" = 0 ] || { failed "managed entries of IPv$family"; return; }
        n=ipv$family
        grep -q "table of neighbours is full.*net.$n.neigh.default.gc_thresh3" $R/log || { failed "$entries entries, and no line on IPv$family's limit"; return; }
        # The next family's line comes a minute later at the earliest.
        [ $family = 6 ] || sleep 61
    done
    extra="$(mode eth1); 3,000 clients$extra"
    kill -9 $server; wait $server 2>/dev/null; server=
    [ "$(B ip neigh show dev eth1 | grep -c managed)" = 0 ] || { failed "managed entries after the end"; return; }
    # Unused for gc_stale_time (60 s) they are collected, by a sweep each 8 to 23 s (half of reachable_time).
    for _ in $(seq 1 24); do
        entries=$(B ip neigh show dev eth1 | wc -l)
        [ "$entries" -gt 512 ] || break
        sleep 5
    done
    [ "$entries" -le 512 ] || { failed "$entries entries are left two minutes after the end"; return; }
    A ip addr add 10.97.0.99/24 dev eth0
    B ping -c 5 -W 5 10.97.0.99 >/dev/null || { failed "the kernel cannot reach a new peer"; return; }
    served "$extra"
}

# Writes a program that opens connections to hosts on each core, and prints how many of all had their replies there.
openers_script() {
    cat >$R/openers.py <<'PY'
import os, socket, sys
INCOMING_CPU = 49
cores = sorted(os.sched_getaffinity(0))
def opens(core, host):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.settimeout(60)
        s.connect((host, 9000))
        seen = [s.getsockopt(socket.SOL_SOCKET, INCOMING_CPU)]
        s.sendall(b"x" * 64)
        if b"".join(iter(lambda: s.recv(1 << 16), b"")) != b"y" * 20000:
            sys.exit("other bytes from " + host)
        seen.append(s.getsockopt(socket.SOL_SOCKET, INCOMING_CPU))
        return seen == [core, core]
local = 0
for core in cores:
    os.sched_setaffinity(0, {core})
    local += sum(opens(core, host) for host in sys.argv[1:] for _ in range(100))
print(local, "of", len(cores) * 100 * len(sys.argv[1:]))
PY
}

# CPU masks of eth1: handlers of interrupts, then files of its queues.
masks() {
    B sh -c 'for i in /sys/class/net/eth1/device/msi_irqs/* /sys/class/net/eth1/device/../msi_irqs/*; do
            i=/proc/irq/${i##*/}
            for h in "$i"/*/; do [ -d "$h" ] && echo "$(basename "$h") $(cat "$i/smp_affinity")"; done
        done
        cd /sys/class/net/eth1/queues && grep . ./*/[rx]ps_cpus | tr : " "'
}
# Interrupts of queues that are another core's than the queue's, of two.
astray() { awk '$1 ~ /(rx|tx|put)[-.][0-9]+$/ { n = $1; sub(/.*[-.]/, "", n); if ($2 + 0 != n % 2 + 1) print }' IGNORECASE=1 "$1"; }

# `corelane run --dev`: queues of eth1 are set to cores, and back, after a kill of everything too.
zone() {
    local i
    for i in /proc/irq/*/smp_affinity; do echo 3 >"$i" 2>/dev/null; done
    masks >$R/before
    [ -n "$(astray $R/before)" ] || { echo "no interrupt of a queue is known: $(head -3 $R/before | tr '\n' ' ')"; return; }
    B "$CORELANE" run --dev eth1 -- sh -c "touch $R/up; exec sleep 100" 2>/dev/null &
    for _ in $(seq 1 100); do [ -e $R/up ] && break; sleep 0.1; done
    masks >$R/during
    [ -z "$(astray $R/during)" ] || echo "interrupts of other cores: $(astray $R/during | tr '\n' ' ')"
    pkill -KILL -f 'run-helper --program'
    kill -KILL $!
    wait $! 2>/dev/null
    # The driver takes its queues down and up again as it loses the program.
    for _ in $(seq 1 50); do masks >$R/killed; [ "$(wc -l <$R/killed)" = "$(wc -l <$R/before)" ] && break; sleep 0.1; done
    B "$CORELANE" tune --undo >$R/undone 2>&1
    masks | cmp -s - $R/before || echo "not undone: $(cat $R/undone); $(masks | diff $R/before - | tr '\n' ' '); killed: $(diff $R/during $R/killed | tr '\n' ' ')"
}

# `corelane run --dev`: replies to connections that an unmodified program opens come to its core; with a VLAN on the interface, of its
# network and the VLAN's.
row_deliver() {
    local plain got hosts want answerer
    A python3 -c 'import socket, threading
def serve(c):
    with c:
        c.recv(64)
        c.sendall(b"y" * 20000)
s = socket.create_server(("::", 9000), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()' &
    answerer=$!
    for _ in $(seq 1 50); do A ss -Hltn 'sport = 9000' | grep -q . && break; sleep 0.1; done
    openers_script
    plain=$(B python3 $R/openers.py 10.97.0.1 fd97::1)
    for want in driver generic; do
        hosts="10.97.0.1 fd97::1"
        if [ "$want" = generic ]; then
            A ip link add link eth0 name v5 type vlan id 5; B ip link add link eth1 name v5 type vlan id 5
            A ip addr add 10.95.0.1/24 dev v5; B ip addr add 10.95.0.2/24 dev v5
            A ip link set v5 up; B ip link set v5 up
            hosts="$hosts 10.95.0.1"
        fi
        : >$R/log
        # shellcheck disable=SC2086 # several
        got=$(B "$CORELANE" run --strict --dev eth1 --report $R/report.json -- python3 $R/openers.py $hosts 2>$R/log)
        if [ -z "$got" ] && grep -q 'Linux 6.3 and later' $R/log; then kill $answerer; refused "$(sentence)"; return; fi
        for _ in $(seq 1 50); do grep -q opened $R/log && break; sleep 0.1; done
        grep -q "$want mode" $R/log && [ "${got%% *}" = "${got##* }" ] || { kill $answerer; failed "$got on their core: $(tail -1 $R/log)"; return; }
        extra="$extra; $got local ($(grep -o '[a-z]* mode' $R/log))"
    done
    kill $answerer
    B ip link show eth1 | grep -q xdp && { failed "the program is still on eth1"; return; }
    B ip link del v5
    got=$(zone)
    [ -z "$got" ] || { failed "$got"; return; }
    extra="$extra; $(grep -o '[0-9]* settings' $R/undone) undone"
    served "native, cpumap$extra; $plain without"
}

# A virtual function of the server's NIC.
row_igbvf() {
    echo 1 >/sys/bus/pci/devices/"$(basename "$(B readlink /sys/class/net/eth1/device)")"/sriov_numvfs 2>/dev/null || { absent "no SR-IOV"; return; }
    sleep 3
    local vf n
    for n in /sys/class/net/*; do [ -e "$n/device/physfn" ] && vf=$(basename "$n"); done
    [ -n "${vf:-}" ] || { absent "the kernel has no driver for the virtual function"; return; }
    B ip addr flush dev eth1
    ip link set "$vf" name vf1; ip link set vf1 netns b
    B ip link set vf1 up; B ip addr add 10.97.0.2/24 dev vf1; B ip addr add fd97::2/64 dev vf1 nodad
    A ip neigh flush all
    reach 10.97.0.2 || { absent "the emulated virtual function passes no frames"; echo 0 >/sys/bus/pci/devices/"$(basename "$(B readlink /sys/class/net/eth1/device)")"/sriov_numvfs; return; }
    if serve --dev xdp:vf1; then must_serve vf1 $both; else failed "it did not start: $(sentence)"; fi
    stop_server
    echo 0 >/sys/bus/pci/devices/"$(basename "$(B readlink /sys/class/net/eth1/device)")"/sriov_numvfs
}

# suite NAME BINARY: a test binary of the repository, built outside.
suite() {
    local text
    if [ ! -x "$2" ]; then failed "no such binary: $2"; return; fi
    ip link set lo up
    # Without --show-output nothing is seen of what a test that passes has printed: that it, or a part of it, was skipped.
    (cd "$(dirname "$3")" && CI=true timeout 2900 "$2" --test-threads 1 --show-output) >$R/log 2>&1
    local status=$?
    text=$(grep -E '^test result' $R/log | tail -1)
    if [ $status = 0 ] && ! grep -q SKIPPED $R/log; then served "$(echo "$text" | sed 's/test result: ok\. //; s/;.*passed//; s/; 0 failed.*//')"; else
        failed "$1: $(grep -E 'FAILED|SKIPPED' $R/log | head -5 | tr '\n' ' ') $text"
    fi
}
row_lab() { suite lab "$LAB_TEST" "$LAB_DIR/Cargo.toml"; }
row_verdicts() { suite verdicts "$VERDICTS_TEST" "$IO_DIR/Cargo.toml"; }
row_model() { suite model "$MODEL_TEST" "$IO_DIR/Cargo.toml"; }
row_sums() { suite sums "$SUMS_TEST" "$IO_DIR/Cargo.toml"; }

ip link set lo up
name_interfaces
ip netns add a
ip netns add b
ip link set eth0 netns a
ip link set eth1 netns b
A ip link set lo up
B ip link set lo up
# The processes of a row, but for this shell and the kernel's: a row that takes too long leaves some.
end_processes() {
    local p
    for p in /proc/[0-9]*; do
        p=${p#/proc/}
        [ "$p" != 1 ] && [ "$p" != $$ ] && readlink -q "/proc/$p/exe" >/dev/null && kill -9 "$p" 2>/dev/null
    done
}
complaints() { dmesg | grep -E 'BUG:|WARNING: |Oops|UBSAN|lockup|hung task'; }
heard=0
for row in "$@"; do
    began=$SECONDS
    case $row in lab | verdicts | model | sums) limit=3000 ;; *) limit=900 ;; esac
    # In a shell of its own, that is ended where it takes too long: the other rows are run all the same.
    (
        plain
        extra='' why='' code=''
        "row_$row"
        stop_server
    ) &
    worker=$!
    (
        sleep $limit
        echo "RESULT|$row|FAILED|no end after $limit s"
        ps -eo pid,stat,wchan:20,args | grep -v '\]$' | sed 's/^/  log: /'
        sed 's/^/  log: /' $R/log
        kill -9 $worker
    ) &
    watch=$!
    wait $worker 2>/dev/null
    kill $watch 2>/dev/null && wait $watch 2>/dev/null
    end_processes
    # A kernel that was brought into trouble is no success, whatever was served.
    said=$(complaints | tail -n +$((heard + 1)) | head -1)
    heard=$(complaints | wc -l)
    [ -z "$said" ] || { echo "KERNEL|$row|$said"; dmesg | grep -F -A 25 "$said" | head -40 | sed 's/^/  kernel: /'; }
    echo "TOOK|$row|$((SECONDS - began))"
done
