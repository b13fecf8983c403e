#!/usr/bin/env bash
# Builds corelane for release and installs the command, the C libraries and their headers under a prefix:
#
#   ./install.sh PREFIX               bin/corelane, lib/lib*.so*, lib/lib*.a, include/*.h, lib/pkgconfig/*.pc
#   ./install.sh --pgo PREFIX         the same, optimized by a profile that is made first (tools/pgo.sh)
#   ./install.sh --from DIR PREFIX    the same of what was built in DIR, as target/debug, without building
#
# It needs cargo, a C compiler with binutils, and minutes: the release is optimized as a whole.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit "$1"; }
fail() { printf 'install.sh: %s\n' "$1" >&2; exit 1; }

from='' pgo=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage 0 ;;
        --pgo) pgo=yes; shift ;;
        --from) [ $# -ge 2 ] || usage 2; from=$2; shift 2 ;;
        -*) usage 2 ;;
        *) break ;;
    esac
done
[ $# = 1 ] || usage 2
if [ -n "$pgo" ]; then
    [ -z "$from" ] || fail "--pgo builds, --from takes what was built: give one of them"
    # Itself, with what makes cargo use the profile.
    exec "$here/tools/pgo.sh" "$here/install.sh" "$1"
fi
mkdir -p "$1" || fail "cannot make $1"
prefix=$(cd "$1" && pwd)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")
major=${version%%.*}
libraries=()
for name in mtcp megapipe; do
    [ ! -d "$here/crates/$name" ] || libraries+=("$name")
done
for tool in cc ld nm objcopy ar strip; do
    command -v "$tool" >/dev/null || fail "needs $tool (Debian: gcc, binutils)"
done

if [ -z "$from" ]; then
    cd "$here"
    cargo build --release --locked -p cli --bin corelane
    cargo rustc --release --locked -p preload --lib --crate-type cdylib
    for name in "${libraries[@]}"; do
        # Without the Rust form of the library, which would keep it from being optimized as a whole.
        cargo rustc --release --locked -p "$name" --lib --crate-type cdylib,staticlib
    done
    from=${CARGO_TARGET_DIR:-$here/target}/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release
fi

mkdir -p "$prefix/bin" "$prefix/lib/pkgconfig" "$prefix/include"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -x "$from/corelane" ]; then
    install -m 755 "$from/corelane" "$prefix/bin/corelane"
else
    printf 'install.sh: no corelane in %s: the command is left out\n' "$from" >&2
fi

# Loaded by `corelane run`, which looks beside its own folder; never linked, so without a version and a .pc.
preload=$from/libcorelane_preload.so
[ -f "$preload" ] || fail "no libcorelane_preload.so in $from"
install -m 755 "$preload" "$prefix/lib/libcorelane-preload.so"
strip --strip-unneeded "$prefix/lib/libcorelane-preload.so"

for name in "${libraries[@]}"; do
    shared=$from/lib$name.so static=$from/lib$name.a
    [ -f "$shared" ] && [ -f "$static" ] || fail "no lib$name.so and lib$name.a in $from"
    install -m 755 "$shared" "$prefix/lib/lib$name.so.$version"
    # What is exported stays; the rest is for debuggers, and several times as large.
    strip --strip-unneeded "$prefix/lib/lib$name.so.$version"
    ln -sf "lib$name.so.$version" "$prefix/lib/lib$name.so.$major"
    ln -sf "lib$name.so.$major" "$prefix/lib/lib$name.so"

    # The archive has one object with the API's names and no other, so that it goes with any other library.
    nm -D --defined-only "$shared" | awk '{ print $3 }' | sort >"$work/names"
    sed 's/^/-u /' "$work/names" >"$work/roots"
    ld -r --gc-sections --gc-keep-exported "@$work/roots" -o "$work/whole.o" "$static"
    objcopy --strip-debug -R .llvmbc -R .llvmcmd --keep-global-symbols="$work/names" "$work/whole.o" "$work/$name.o"
    rm -f "$prefix/lib/lib$name.a"
    ar rcs "$prefix/lib/lib$name.a" "$work/$name.o"

    cat >"$prefix/lib/pkgconfig/$name.pc" <<PC
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: $name
Description: corelane's C API ($name)
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -l$name
Libs.private: -lpthread -lm -ldl -lc
PC
done
install -m 644 "$here"/crates/capi/include/*.h "$prefix/include/"
printf 'installed in %s\n' "$prefix"
