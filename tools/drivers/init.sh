#!/bin/busybox sh
# First process of a guest: loads the modules, lays a tmpfs over the host's root directory (9p, read-only), and runs the script that
# the kernel's command line names in it.
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/bin
mount -t proc p /proc
mount -t sysfs s /sys
mount -t devtmpfs d /dev
while read -r m; do insmod "/mods/$m" 2>/dev/null || echo "insmod $m failed"; done </mods/order
if ! mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /ro; then
    echo "no 9p"
    poweroff -f
fi
mount -t tmpfs t /rw
mkdir -p /rw/up /rw/work
mount -t overlay -o lowerdir=/ro,upperdir=/rw/up,workdir=/rw/work o /new || echo "no overlay"
mount -t proc p /new/proc
mount -t sysfs s /new/sys
mount -t devtmpfs d /new/dev
mount -t tmpfs t /new/run
mkdir -p /new/dev/shm /new/run/netns
mount -t tmpfs t /new/dev/shm
mount -t bpf b /new/sys/fs/bpf
mount -t cgroup2 c /new/sys/fs/cgroup
script=$(sed -n 's/.*script=\([^ ]*\).*/\1/p' /proc/cmdline)
rows=$(sed -n 's/.*rows=\([^ ]*\).*/\1/p' /proc/cmdline | tr , ' ')
echo "guest up $(uname -r)"
# shellcheck disable=SC2086 # words
chroot /new /bin/bash "$script" $rows
echo "guest done $?"
poweroff -f
