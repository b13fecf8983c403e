#!/usr/bin/env bash
# corelane against the kernel on the same veth with the same client, in ABBA rounds; numbers for docs/benchmarks.md.
#
#   tools/bench-veth.sh [CONCURRENT=200] [SECONDS=5] [ROUNDS=3] [MESSAGE=64]
#
# The server's core (1) and the client's (0) are apart, softirq work included: both ends get threaded NAPI pinned to their
# own side's core. Each round has fresh namespaces, and the kernel's rounds run without an XDP program on their interface
# and with GRO. Needs root, iproute2, ethtool, python3.
set -eu
bin=${CORELANE_BIN:-$(dirname "$0")/../target/release/corelane}
concurrent=${1:-200} seconds=${2:-5} rounds=${3:-3} message=${4:-64}
a=clb-a-$$ b=clb-b-$$
# Told apart by name: NAPI threads carry it.
declare -A dev=([$a]=clba$(($$ % 10000)) [$b]=clbb$(($$ % 10000)))
server=

clean() {
    [ -z "$server" ] || kill -INT "$server" 2>/dev/null || true
    ip netns del $a 2>/dev/null || true
    ip netns del $b 2>/dev/null || true
}
trap clean EXIT

links() {
    ip netns add $a
    ip netns add $b
    ip link add ${dev[$a]} netns $a type veth peer name ${dev[$b]} netns $b
    local n=1
    for ns in $a $b; do
        ip -n $ns link set lo up
        ip -n $ns link set ${dev[$ns]} up
        ip -n $ns addr add 10.99.0.$n/24 dev ${dev[$ns]}
        ip netns exec $ns tc qdisc replace dev ${dev[$ns]} root pfifo limit 10000
        # Segments as they are on a wire; CUBIC, this kernel's default may be another.
        ip netns exec $ns ethtool -K ${dev[$ns]} tso off gso off >/dev/null
        ip netns exec $ns sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null || true
        n=2
    done
}

# NAPI threads exist once GRO is on or a program is attached.
pin() {
    local core=0
    for ns in $a $b; do
        ip netns exec $ns sh -c "echo 1 >/sys/class/net/${dev[$ns]}/threaded" 2>/dev/null || true
        sleep 0.1
        for pid in $(pgrep "napi/${dev[$ns]}"); do
            taskset -pc $core "$pid" >/dev/null 2>&1 || true
        done
        core=1
    done
}

load() { ip netns exec $a taskset -c 0 "$bin" load http://10.99.0.2/ --dev xdp:${dev[$a]} --cores 0 -c "$concurrent" --json "$@"; }

round() {
    clean
    links
    case $1 in
    corelane) ip netns exec $b taskset -c 1 "$bin" serve --message "$message" --dev xdp:${dev[$b]} --cores 1 >/dev/null & ;;
    kernel)
        ip netns exec $b ethtool -K ${dev[$b]} gro on >/dev/null
        ip netns exec $b taskset -c 1 "$bin" serve --message "$message" --kernel --cores 1 >/dev/null &
        ;;
    esac
    server=$!
    sleep 1
    (load -d 1 >/dev/null) &
    local warm=$!
    sleep 0.5
    pin
    wait $warm || true
    pin
    local before after
    before=$(grep '^cpu1 ' /proc/stat)
    load -d "$seconds" >"${TMPDIR:-/tmp}/clb-$$.json"
    after=$(grep '^cpu1 ' /proc/stat)
    python3 - "$1" "$before" "$after" "${TMPDIR:-/tmp}/clb-$$.json" <<'P'
import json, sys
name, before, after, path = sys.argv[1:]
d = json.load(open(path))
delta = [y - x for x, y in zip(*([int(w) for w in s.split()[1:9]] for s in (before, after)))]
busy = 1 - (delta[3] + delta[4]) / sum(delta)
rate, lat = d["connections_per_s"], d["latency_us"]["total"]
print(f"{name:9} {rate:9,.0f} conn/s  server core {100 * busy:5.1f} % busy, {busy * 1e6 / max(rate, 1):6.2f} us/conn  "
      f"p50 {lat['p50']:5.0f} p99 {lat['p99']:5.0f} max {lat['max']:6.0f} us  errors {d['errors']}  steal {delta[7]}  "
      f"client {'was' if d['generator_was_bottleneck'] else 'was not'} the bottleneck", flush=True)
P
    rm -f "${TMPDIR:-/tmp}/clb-$$.json"
    kill -INT "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
}

for _ in $(seq "$rounds"); do
    for kind in corelane kernel kernel corelane; do round $kind; done
done
