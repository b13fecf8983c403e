#!/usr/bin/env bash
# Boots a guest with two network interfaces of one kind on one wire and runs a script in it, with the host's files.
#
#   tools/drivers/boot.sh KERNEL-DIR DEVICE SCRIPT ROWS SECONDS
#
# DEVICE: igb, vmxnet3, e1000e, e1000, virtio (one queue), virtio-mq (several queues by tap, in a network namespace of its own; needs
# root), virtio-zc (the same, with memory that the driver maps itself, as AF_XDP without copying asks).
# The hardware addresses end in 01 (the client's interface) and 02 (the server's).
set -euo pipefail
kernel=$1 device=$2 script=$3 rows=$4 limit=${5:-540}
# Seconds until a guest begins its script, at most; some 15 where nothing else runs.
BOOT=${BOOT:-240}
nic=()
prefix=()
mac=52:54:00:00:00:0
case $device in
igb)
    for i in 0 1; do
        nic+=(-device "pcie-root-port,id=rp$i,chassis=$((i + 1)),slot=$((i + 1))" -netdev "hubport,id=h$i,hubid=0" -device "igb,bus=rp$i,netdev=h$i,mac=$mac$((i + 1))")
    done
    ;;
virtio-mq | virtio-zc)
    own=
    [ "$device" = virtio-mq ] || own=,disable-legacy=on,iommu_platform=on
    ns=corelane-drivers-$$
    trap 'ip netns del "$ns"' EXIT
    ip netns add "$ns"
    ip -n "$ns" link add hub type bridge
    ip -n "$ns" link set hub up
    for i in 0 1; do
        ip -n "$ns" tuntap add dev "t$i" mode tap multi_queue vnet_hdr
        ip -n "$ns" link set "t$i" master hub up
        nic+=(-netdev "tap,id=h$i,ifname=t$i,script=no,downscript=no,queues=4,vhost=off" -device "virtio-net-pci,netdev=h$i,mac=$mac$((i + 1)),mq=on,vectors=10$own")
    done
    prefix=(ip netns exec "$ns")
    ;;
*)
    [ "$device" != virtio ] || device=virtio-net-pci
    nic=(-netdev hubport,id=h0,hubid=0 -device "e1000e,netdev=h0,mac=${mac}1,addr=0x5" -netdev hubport,id=h1,hubid=0 -device "$device,netdev=h1,mac=${mac}2,addr=0x6")
    ;;
esac
# Two NUMA nodes, with a core and half of the memory each.
nodes=()
for i in 0 1; do nodes+=(-object "memory-backend-ram,id=m$i,size=1536M" -numa "node,nodeid=$i,cpus=$i,memdev=m$i"); done
# Always the emulator, so that all machines see the same; times mean nothing in it.
accel=tcg,thread=multi
guest() {
    exec "${prefix[@]}" timeout "$limit" qemu-system-x86_64 -M q35 -accel "$accel" -cpu max -smp 2,sockets=2 -m 3G "${nodes[@]}" -nographic -no-reboot -kernel "$kernel/vmlinuz" \
        -initrd "$kernel/initramfs" -append "console=ttyS0 quiet panic=-1 oops=panic net.ifnames=0 script=$script rows=$rows" \
        -virtfs local,path=/,mount_tag=root,security_model=passthrough,readonly=on,multidevs=remap -nodefaults -serial stdio -monitor none "${nic[@]}" </dev/null
}
# On a busy machine the emulator may give an old kernel no timer while it boots, and the guest stands still for ever ("rcu_preempt kthread
# timer wakeup didn't happen"). One that has not come to its script after a while is ended, and another one started.
for try in 1 2 3; do
    exec {out}< <(guest 2>&1)
    pid=$! begun='' end=$((SECONDS + BOOT)) wait=$BOOT
    while IFS= read -r -t "$wait" line <&"$out"; do
        printf '%s\n' "$line"
        case $line in BEGUN*) begun=yes ;; esac
        wait=$((end - SECONDS))
        [ -z "$begun" ] || wait=$limit
        [ "$wait" -ge 1 ] || wait=1
    done
    if [ -z "$begun" ] && kill "$pid" 2>/dev/null; then
        echo "the guest did not begin its script in $BOOT s (try $try of 3)"
    fi
    exec {out}<&-
    wait "$pid" || true
    [ -z "$begun" ] || break
done
