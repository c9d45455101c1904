#!/bin/bash
# Installs the Debian package into a minimal Debian 12, and runs README's C program
# there as a job of two ranks. What it mounts, it mounts in namespaces of its own.
# usage: scripts/test-deb.sh    (after scripts/deb.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
at=$PWD/build/deb

fail() {
  echo "test-deb: $*" >&2
  exit 1
}
deb=$(compgen -G 'build/gloo-rs_*.deb') || fail "there is no build/gloo-rs_*.deb: make deb"
rm -rf "$at"
mkdir -p "$at/root"

echo "--- what the package says of itself"
dpkg-deb --info "$deb"
depends=$(dpkg-deb --field "$deb" Depends)
[ "$(sed -E 's/ \([^)]*\)//g' <<<"$depends")" = "libc6, libgcc-s1" ] || fail "it depends on $depends"
# All that CMake installs but debug information, and nothing else.
DESTDIR=$at/installed cmake --install build/cmake --prefix /usr --component gloo_rs >"$at/install.log"
(cd "$at/installed" && find . ! -type d) | LC_ALL=C sort >"$at/wanted"
dpkg-deb --fsys-tarfile "$deb" | tar --list | grep -v '/$' | LC_ALL=C sort >"$at/contents"
diff "$at/wanted" "$at/contents" || fail "what it lacks is marked <, and what CMake does not install >"
for name in bin/gloo-rs include/gloo_rs.h include/gloo_rs.hpp; do grep -xF "./usr/$name" "$at/contents" >/dev/null || fail "/usr/$name is not in it"; done
if grep -F .debug "$at/contents"; then fail "it has debug information"; fi

echo "--- README's program, compiled with what is in it"
dpkg-deb --extract "$deb" "$at/extracted"
scripts/extract-examples.sh README.md "$at/examples"
cc -I"$at/extracted/usr/include" -o "$at/sum" "$at/examples/sum.c" -L"$at/extracted/usr/lib" -lgloo_rs

base=$(scripts/minimal-debian.sh)
echo "--- installed in a minimal Debian, a job of two ranks"
cp "$deb" "$at/gloo-rs.deb"
# Who is no root here is root there, and owns all files: what belongs to others in a real machine cannot be told apart.
# shellcheck disable=SC2016 # the inner shell's arguments
unshare --user --map-root-user --mount --pid --fork --kill-child bash -euc '
  tar -xf "$1" -C "$0/root" --no-same-owner --exclude "./dev/*"
  cp "$0/gloo-rs.deb" "$0/sum" "$0/root/"
  mount --rbind /dev "$0/root/dev"
  mount -t proc proc "$0/root/proc"
  exec chroot "$0/root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C bash -euc "
    dpkg --install /gloo-rs.deb
    gloo-rs --version
    gloo-rs run -n 2 -- /sum
    dpkg --purge gloo-rs
    ! test -e /usr/bin/gloo-rs"' "$at" "$base" | tee "$at/said"
for rank in 0 1; do
  grep "rank $rank of 2: 2 ranks, their numbers add up to 1" "$at/said" >/dev/null || fail "rank $rank did not run"
done
echo "test-deb: all passed"
