#!/bin/bash
# Makes a minimal Debian 12 with make and this machine's Rust, and there does what a newcomer does (scripts/fresh-machine.sh).
# usage: scripts/test-fresh.sh test | more
# It needs root. What it mounts, it mounts in namespaces of its own, which end with it, however it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
tier=$1
cache=$PWD/.cache/fresh
at=$PWD/build/fresh
checkout="/srv/work of mine/gloo_rs" # there; with spaces, which are what scripts trip over

fail() {
  echo "test-fresh: $*" >&2
  exit 1
}

case $tier in
  test) home=/home/newcomer ;;
  more) home=/root ;;
  *) fail "no such tier: $tier" ;;
esac
((EUID == 0)) || fail "it needs root, to make a machine of its own"
unshare --mount --pid --fork --kill-child true 2>/dev/null ||
  fail "it needs the right to make mount and pid namespaces; a container needs --privileged, or --cap-add SYS_ADMIN"
command -v rustup >/dev/null || fail "it takes this machine's Rust over, which must be rustup's"
mkdir -p "$cache/debs" "$at"
exec 9>"$at/lock"
flock --nonblock 9 || fail "another one is running"

# No mount of ours can be seen here; one of somebody else's is not crossed.
there=
remove_root() {
  if [ -n "$there" ]; then
    kill -KILL "$there" 2>/dev/null || true
    wait "$there" 2>/dev/null || true
  fi
  rm -rf --one-file-system "$at"/root
}
remove_root
trap remove_root EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The way to the registries, as this machine has it: apt's sources and proxies come with the minimal Debian; here variables and files.
carried=()
while IFS= read -r -d '' pair; do
  name=${pair%%=*}
  shopt -s nocasematch
  case $name in
    *token* | *password* | pip_find_links) ;;
    http_proxy | https_proxy | all_proxy | no_proxy | ssl_cert_file | ssl_cert_dir | curl_ca_bundle | requests_ca_bundle | pip_* | \
      cargo_http_* | cargo_net_* | cargo_registries_* | cargo_registry_* | rustup_dist_server | rustup_update_root)
      carried+=("$pair")
      ;;
  esac
  shopt -u nocasematch
done < <(env -0)

toolchain=$(rustup show active-toolchain | cut -d' ' -f1)
sysroot=$(rustc "+$toolchain" --print sysroot)
cargo_home=${CARGO_HOME:-$HOME/.cargo}

make_root() { # ROOT: a machine with Rust in $home
  local root=$1 home=$1$home file pair
  mkdir "$root"
  tar -xf "$base" -C "$root"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates/*.crt; do
    [ ! -f "$file" ] || cp -L --parents "$file" "$root"
  done
  for pair in "${carried[@]}"; do
    [ ! -f "${pair#*=}" ] || cp -L --parents "${pair#*=}" "$root"
  done
  mkdir -p "$home/.cargo/registry" "$home/.rustup/toolchains" "$root/var/cache/apt/archives" "$root$checkout"
  for file in .config/pip/pip.conf .pip/pip.conf; do
    [ ! -f "$HOME/$file" ] || (cd "$HOME" && cp -L --parents "$file" "$home")
  done
  cp -a "$cargo_home/bin" "$home/.cargo/"
  for file in config.toml registry/cache registry/index; do
    [ ! -e "$cargo_home/$file" ] || cp -a "$cargo_home/$file" "$home/.cargo/$(dirname "$file")/"
  done
  tar -cf - -C "$sysroot" --exclude=./share/doc . | tar -xf - -C "$(mkdir -p "$home/.rustup/toolchains/$toolchain" && echo "$_")"
  printf 'version = "12"\nprofile = "minimal"\ndefault_toolchain = "%s"\n' "$toolchain" >"$home/.rustup/settings.toml"
  # What is not flushed to the disk at each step is as well for a machine that lives for minutes.
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/fresh"
  find "$cache/debs" -name '*.deb' -exec cp -t "$root/var/cache/apt/archives" {} +
}

run_there() { # ROOT
  # In the background, since bash hears of signals in `wait`. What runs there, and its mounts, end with unshare, which takes no
  # other signal than SIGKILL.
  unshare --mount --pid --fork --kill-child --propagation private -- \
    scripts/fresh-machine.sh enter "$1" "$tier" "$checkout" "${carried[@]}" </dev/null 9<&- &
  there=$!
  wait "$there"
  there=
  # What was downloaded need not be again.
  find "$1/var/cache/apt/archives" -name '*.deb' -exec cp -t "$cache/debs" {} +
}

began=$SECONDS
base=$(scripts/minimal-debian.sh)
make_root "$at/root"
tar -cf - --exclude=./target --exclude=./build --exclude=./.cache --exclude=./.git . | tar -xf - -C "$at/root$checkout"
run_there "$at/root"
echo "test-fresh: all passed after $((SECONDS - began)) s"
