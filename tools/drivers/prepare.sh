#!/usr/bin/env bash
# Fetches what the drivers' laboratory needs: QEMU, Debian's kernels, and an initramfs for each of them.
#
#   tools/drivers/prepare.sh DIR [KERNEL…]      (old, stable, new; else all)
#
# DIR gets a folder for each kernel with `vmlinuz`, `initramfs` and `release`. What is there already, and still the package that the
# archive names, is not fetched again. Prints one line for each kernel, and exits with 0 if it has come to the end:
#
#   READY name
#   SKIP name: why, and what to install         (name: the kernel's, or `all`)
#
# Everything comes from the Debian archive by apt; its package lists for newer suites are kept in DIR, apart from the system's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- old stable new
wanted=" $* "
wants() { [[ $wanted == *" $1 "* ]]; }

skip() { printf 'SKIP %s: %s\n' "$1" "$2"; }

command -v apt-get >/dev/null && [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] ||
    { skip all "kernels and QEMU are taken from Debian's archive: needs a Debian system"; exit 0; }

# The mirror that this system uses.
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | grep -v security | head -1)
[ -n "$mirror" ] || mirror=$(sed -n 's/^deb \(\[[^]]*\] \)\?\([^ ]*\).*/\2/p' /etc/apt/sources.list 2>/dev/null | grep -v security | head -1)
[ -n "$mirror" ] || mirror=http://deb.debian.org/debian

# archive SUITES: options for apt that make it see these suites only.
archive() {
    local state=$dir/apt-${1%% *}
    mkdir -p "$state/lists/partial"
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
        "$mirror" "$1" >"$state/debian.sources"
    apt=(-o "Dir::Etc::sourcelist=$state/debian.sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$state/lists"
        -o "Dir::Cache::pkgcache=$state/pkgcache.bin" -o "Dir::Cache::srcpkgcache=$state/srcpkgcache.bin" -o DPkg::Lock::Timeout=300
        -o APT::Sandbox::User=root)
    # Lists of today are new enough.
    [ -n "$(find "$state" -maxdepth 1 -name updated -mtime -1)" ] && return
    # By itself apt takes lists that it could not fetch for no failure.
    apt-get "${apt[@]}" update -qq -o APT::Update::Error-Mode=any >"$state/log" 2>&1 || return 1
    touch "$state/updated"
}

# QEMU with igb, which came with 8.0: from this system's release, else from its backports.
has_igb() { command -v qemu-system-x86_64 >/dev/null && qemu-system-x86_64 -device help 2>/dev/null | grep -q '^name "igb"'; }
tools=()
pairs='busybox:busybox-static cpio:cpio zstd:zstd depmod:kmod dpkg-deb:dpkg xz:xz-utils curl:curl ab:apache2-utils ethtool:ethtool ip:iproute2
    python3:python3 setpriv:util-linux tcpdump:tcpdump ping:iputils-ping'
for pair in $pairs; do
    command -v "${pair%%:*}" >/dev/null || [ -x "/usr/sbin/${pair%%:*}" ] || tools+=("${pair##*:}")
done
# 9p shares this system's busybox with nobody: it must be the static one, since it goes into the initramfs alone.
! ldd "$(command -v busybox 2>/dev/null)" >/dev/null 2>&1 || tools+=(busybox-static)
install() { DEBIAN_FRONTEND=noninteractive apt-get "$@" install -y -qq --no-install-recommends; }
if [ "$(id -u)" = 0 ]; then
    if [ ${#tools[@]} -gt 0 ]; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${tools[@]}" >/dev/null || true
    fi
    if ! has_igb; then
        release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
        if archive "$release $release-updates $release-backports"; then
            DEBIAN_FRONTEND=noninteractive apt-get "${apt[@]}" install -y -qq --no-install-recommends -t "$release-backports" \
                qemu-system-x86 ipxe-qemu seabios >"$dir/qemu.log" 2>&1 || true
        fi
    fi
fi
has_igb || { skip all "QEMU 8.0 or later with igb: apt-get install -t $(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)-backports qemu-system-x86"; exit 0; }
for pair in $pairs; do
    tool=${pair%%:*}
    command -v "$tool" >/dev/null || [ -x "/usr/sbin/$tool" ] || { skip all "$tool: apt-get install ${tools[*]}"; exit 0; }
done
PATH=$PATH:/usr/sbin

# What guests need of a kernel, and what the tests in them need.
modules='9p 9pnet_virtio overlay virtio_pci virtio_net igb igbvf e1000e vmxnet3 e1000 sch_netem sch_fq veth tun xsk_diag inet_diag tcp_diag
    8021q bonding bridge dummy macvlan nf_tables af_packet_diag'

# kernel NAME PACKAGES…: fetched, unpacked, an initramfs made.
kernel() {
    local at=$dir/$1 version root
    shift
    if [ "$(cat "$at/packages" 2>/dev/null)" != "$*" ] || [ ! -s "$at/vmlinuz" ]; then
        rm -rf "$at"
        mkdir -p "$at/root"
        (cd "$at" && apt-get "${apt[@]}" download -qq "$@")
        for deb in "$at"/*.deb; do
            dpkg-deb -x "$deb" "$at/root"
            rm "$deb"
        done
        [ -d "$at/root/lib/modules" ] || ln -s usr/lib "$at/root/lib"
        version=$(ls "$at/root/lib/modules")
        depmod -b "$at/root" "$version"
        cp "$(find "$at/root" -name 'vmlinuz*' -type f | head -1)" "$at/vmlinuz"
        echo "$version" >"$at/release"
        # Last: what it says is all there.
        echo "$*" >"$at/packages"
    fi
    version=$(cat "$at/release")
    root=$at/initramfs.d
    rm -rf "$root" "$at/initramfs"
    mkdir -p "$root"/{bin,mods,proc,sys,dev,new,ro,rw}
    cp "$(command -v busybox)" "$root/bin/"
    cp "$here/init.sh" "$root/init"
    chmod +x "$root/init"
    # What a kernel has no module for is built into it, or a row finds it absent.
    for m in $modules; do modprobe -d "$at/root" -S "$version" --show-depends "$m" 2>/dev/null | awk '/^insmod/ { print $2 }' || true; done |
        awk '!seen[$0]++' | while read -r file; do
            out=$(basename "${file%.xz}")
            case $file in *.xz) xz -dc "$file" >"$root/mods/$out" ;; *) cp "$file" "$root/mods/$out" ;; esac
            echo "$out" >>"$root/mods/order"
        done
    [ -s "$root/mods/order" ]
    (cd "$root" && find . | cpio -o -H newc 2>/dev/null | zstd -3 -q -f -o "$at/initramfs")
    rm -rf "$root"
}
# made NAME PACKAGES…: the kernel is ready, or it is a skip.
made() {
    # A process of its own: in a function that is called in a condition, `set -e` holds for none of its steps.
    kernel "$@" >"$dir/$1.log" 2>&1 &
    if wait $!; then echo "READY $1"; else skip "$1" "its packages could not be fetched or unpacked (see $dir/$1.log): ${*:2}"; fi
}

# newest PATTERN: of the packages that the archive has, the one with the greatest version; nothing where there is none.
newest() { apt-cache "${apt[@]}" search --names-only "$1" | awk '!/rt-amd64|cloud|dbg|unsigned/ { print $1 }' | sort -V | tail -1; }

# The oldest that is supported, stable's, and the newest that is packaged. A package each, or three since 6.19.
if ! wants old; then :
elif archive "bookworm bookworm-updates"; then
    p=$(newest '^linux-image-6\.1\.[0-9].*-amd64$')
    if [ -n "$p" ]; then made old "$p"; else skip old "no kernel 6.1 in bookworm (see $dir/apt-bookworm)"; fi
else skip old "no package lists of bookworm (see $dir/apt-bookworm/log)"; fi
if ! wants stable; then :
elif archive "trixie trixie-updates"; then
    p=$(newest '^linux-image-6\.12\.[0-9].*-amd64$')
    if [ -n "$p" ]; then made stable "$p"; else skip stable "no kernel 6.12 in trixie (see $dir/apt-trixie)"; fi
else skip stable "no package lists of trixie (see $dir/apt-trixie/log)"; fi
if ! wants new; then :
elif archive "trixie-backports sid"; then
    p=$(newest '^linux-binary-[0-9].*-amd64$')
    v=${p#linux-binary-}
    if [ -n "$v" ]; then made new "linux-binary-$v" "linux-modules-$v" "linux-base-$v"; else skip new "no linux-binary package in trixie-backports and sid (see $dir/apt-trixie-backports)"; fi
else skip new "no package lists of trixie-backports and sid (see $dir/apt-trixie-backports/log)"; fi
