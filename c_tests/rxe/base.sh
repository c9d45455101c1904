#!/bin/bash
# Makes what every guest boots: a kernel of Debian with the driver of software RoCE (rdma_rxe), and a small system. Prints the folder, in
# .cache/rxe, where it stays until these scripts, the kernel or the programs change. Installs nothing, and needs no root.
# usage: c_tests/rxe/base.sh          makes it, with a kernel that was downloaded before or is downloaded now
#        c_tests/rxe/base.sh kernel   downloads the kernel, unless there is one: remove .cache/rxe for a newer one
set -euo pipefail
cd "$(dirname "$0")/../.."
here=c_tests/rxe
cache=$PWD/.cache/rxe
. "$here/image.sh"

fail() {
  echo "rxe: $*" >&2
  exit 1
}

# All other commands are busybox's. Its own that run a command prefer its own for that, too, so env and timeout are not.
programs=(bash env ibv_devinfo ibv_rc_pingpong ip rdma setpriv ss strace tc timeout)
# Loaded by the guest's init, or by tests.
modules=(virtio_pci virtio_console virtio_net virtio-rng dummy ib_uverbs rdma_rxe crc32_generic crc32c_generic sch_netem)
# The files come from these packages.
packages=(bash busybox-static coreutils ibverbs-providers ibverbs-utils iproute2 libc6 libibverbs1 libstdc++6 strace util-linux)
PATH="$PATH:/usr/sbin:/sbin"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

kernel() { # its package's file
  find "$cache" -maxdepth 1 -name 'linux-image-*.deb' | LC_ALL=C sort | tail -n 1
}
if [ -z "$(kernel)" ]; then
  # Lists that are old name files that are gone.
  ((EUID != 0)) || apt-get update -q >/dev/null 2>&1 || true
  name=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
  [ -n "$name" ] || fail "apt knows no linux-image-amd64; run apt-get update, as root"
  echo "rxe: fetching the kernel $name, 70 MB" >&2
  rm -rf "$cache/part"
  mkdir "$cache/part"
  said=$(cd "$cache/part" && apt-get download -q "$name" 2>&1) ||
    fail "the kernel could not be fetched; is there a network? $(tail -n 1 <<<"$said")"
  mv "$cache/part"/*.deb "$cache/"
  rmdir "$cache/part"
fi
[ "${1:-}" != kernel ] || exit 0

package=$(kernel)
version=$(dpkg-deb --field "$package" Version)
digest=$({ cat "$here"/{image.sh,base.sh,init,tsc_khz.c}; dpkg-query --show "${packages[@]}"; } | sha256sum | cut -c1-16)
base=$cache/$version-$digest
if [ -e "$base/initrd" ]; then
  echo "$base"
  exit 0
fi
# What is there is of other scripts, or of a run that was interrupted.
find "$cache" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +

unpacked=$cache/unpacked
root=$base/root
mkdir -p "$unpacked"
dpkg-deb --fsys-tarfile "$package" | tar -x -C "$unpacked" --wildcards './boot/vmlinuz-*' './lib/modules/*'
release=$(ls "$unpacked/lib/modules")
from=$unpacked/lib/modules/$release
busybox depmod -b "$unpacked" "$release"

skeleton "$root"
mkdir -p "$root"/{dev,etc/libibverbs.d,home/user,proc,root,sys,tmp}
chmod 1777 "$root/tmp"

# The modules, with those that they need, not compressed: busybox inserts them.
to=$root/usr/lib/modules/$release
for module in "${modules[@]}"; do
  line=$(grep -E "(^|/)${module//[_-]/[_-]}\.ko[^:]*:" "$from/modules.dep") || fail "the kernel $release has no module $module"
  # shellcheck disable=SC2086 # a list of paths without spaces
  for file in ${line/:/ }; do
    [ ! -e "$to/${file%.xz}" ] || continue
    mkdir -p "$to/${file%/*}"
    cp "$from/$file" "$to/$file"
    [[ $file != *.xz ]] || unxz "$to/$file"
  done
done
cp "$from"/modules.{builtin,order} "$to/"
busybox depmod -b "$root" "$release"

files=()
for program in "${programs[@]}"; do
  file=$(type -P "$program") || fail "$program is missing: scripts/setup.sh"
  files+=("$file")
done
# libibverbs loads it by its name. The number in it is libibverbs's interface to its drivers.
driver=$(find /usr/lib/*/libibverbs -name 'librxe-rdmav*.so' | head -n 1)
[ -n "$driver" ] || fail "libibverbs has no driver for rxe: scripts/setup.sh"
echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"
files+=("$driver")
place "$root" "${files[@]}"
mapfile -t needed < <(libraries "${files[@]}")
place "$root" "${needed[@]}"
# Loaded by glibc where a thread ends, and by programs in C++ and Rust.
for name in libgcc_s.so.1 libstdc++.so.6; do
  place "$root" "$(ldconfig -p | sed -n "s/^\t$name (libc6,x86-64.*) => //p" | head -n 1)"
done
cp "$(type -P busybox)" "$root/usr/bin/busybox"
for command in $(busybox --list); do
  [ -e "$root/usr/bin/$command" ] || [ -e "$root/usr/sbin/$command" ] || ln -s busybox "$root/usr/bin/$command"
done
# Where scripts look for it, and where the kernel looks for what loads modules.
[ -e "$root/usr/sbin/ip" ] || ln -s "$(type -P ip)" "$root/usr/sbin/ip"
ln -s ../bin/busybox "$root/usr/sbin/modprobe"

printf 'root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n' >"$root/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' >"$root/etc/group"
printf '127.0.0.1 localhost\n::1 localhost\n10.77.0.1 guest0\n10.77.0.2 guest1\n' >"$root/etc/hosts"
echo 'hosts: files' >"$root/etc/nsswitch.conf"
cp "$here/init" "$root/init"
chmod 755 "$root/init"

# QEMU boots a kernel that is not compressed at once. Unpacking it in the guest, emulated, takes seconds; it is done where this does not
# know the compression.
python3 - "$unpacked/boot/vmlinuz-$release" "$base/vmlinux" <<'PYTHON'
import lzma, sys
image = open(sys.argv[1], "rb").read()
start = image.find(b"\xfd7zXZ\0")
if start >= 0:
    image = lzma.LZMADecompressor().decompress(image[start:])
open(sys.argv[2], "wb").write(image)
PYTHON
cc -std=gnu11 -O1 -Wall -Wextra -Werror "$here/tsc_khz.c" -o "$base/tsc_khz"
pack "$root" "$base/part"
mv "$base/part" "$base/initrd"
rm -rf "$unpacked"
echo "$base"
