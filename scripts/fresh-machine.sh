#!/bin/bash
# What is tried on a fresh machine. scripts/test-fresh.sh makes it, and calls this in namespaces of its own:
#   fresh-machine.sh enter ROOT TIER CHECKOUT VARIABLE=VALUE...   makes ROOT the root folder, and there goes on with
#   fresh-machine.sh try TIER VARIABLE=VALUE...                   as root, in the checkout
# TIER is test: README's commands by an ordinary user, and a bit of every part of make test that needs something of the machine that no other
# part needs; or more: the same of make test-more, by root.
set -euo pipefail

fail() {
  echo "fresh-machine: $*" >&2
  exit 1
}

if [ "$1" = enter ]; then
  root=$2 tier=$3 checkout=$4
  shift 4
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir "$root"/dev/{pts,shm}
  mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for number in 0 1 2; do ln -s "/proc/self/fd/$number" "$root/dev/$(printf 'stdin\nstdout\nstderr' | sed -n "$((number + 1))p")"; done
  cd "$root"
  pivot_root . mnt
  umount -l /mnt
  cd "$checkout"
  # Not by exec: the first process of a pid namespace is nobody's child, and takes in what others leave.
  status=0
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root \
    bash scripts/fresh-machine.sh try "$tier" "$@" || status=$?
  exit "$status"
fi

[ "$1" = try ] || fail "no such command: $1"
tier=$2
variables=("${@:3}")
if [ "$tier" = more ]; then
  user=root home=/root
else
  user=newcomer home=/home/newcomer
  useradd --home-dir "$home" --shell /bin/bash "$user"
  chown -R "$user:" "$home" .
fi
# An older Rust stands first, as Debian's does; rustup's folder is not on PATH at all.
for tool in cargo rustc; do
  printf '#!/bin/sh\necho "%s 1.63.0 (of an old Debian)"\n' "$tool" >"/usr/bin/$tool"
  chmod 755 "/usr/bin/$tool"
done

step() {
  printf '\n=== %s, %s s: %s\n' "$user" "$SECONDS" "$*"
}
# Whether all is there does not depend on how well the code is optimised; how long the builds take does.
variables+=(CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
  CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0)
as_user() {
  runuser -u "$user" -- env -i PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 HOME="$home" "${variables[@]}" "$@" </dev/null
}
# With cargo on PATH, as make has it.
with_cargo() { as_user env PATH="$home/.cargo/bin:/usr/local/bin:/usr/bin:/bin" "$@"; }
there() { # COMMAND...: prints those that are there
  local command
  for command in "$@"; do type -P "$command" >/dev/null && echo "$command"; done
  return 0
}
absent() { # WHY COMMAND...
  [ -z "$(there "${@:2}")" ] || fail "$1: $(there "${@:2}")"
}
said=/tmp/said
provide() { # TARGET: an ordinary user is told a command, which root runs
  if [ "$user" != root ]; then
    as_user make "$1" 2>&1 | tee "$said" && fail "make $1 passed, with nothing installed"
    command=$(sed -n 's/^  \(apt-get update && apt-get install .*\)$/\1/p' "$said")
    [ -n "$command" ] || fail "make $1 printed no command for root"
    step "root: $command"
    DEBIAN_FRONTEND=noninteractive bash -c "$command" >/tmp/apt.log 2>&1 || { tail /tmp/apt.log; fail "that command failed"; }
  fi
  step "make $1"
  as_user make "$1"
}
refused() { # PATTERN COMMAND...: the command fails, and says that in one of at most six lines, progress aside
  local pattern=$1
  shift
  "$@" >"$said" 2>&1 && fail "passed: $*"
  cat "$said"
  grep -qE "$pattern" "$said" || fail "does not say $pattern: $*"
  (($(grep -cv '^  \.\.\. ' "$said") <= 6)) || fail "says it in more than six lines: $*"
}

ran() { # COMMAND...: it passes, and at least one Rust test has run
  "$@" 2>&1 | tee "$said"
  grep -qE '^running [1-9][0-9]* tests?$' "$said" || fail "no test has run: $*"
}

if [ "$tier" = more ]; then
  step "scripts/container.sh, which the Dockerfile runs"
  with_cargo scripts/container.sh
  step "the set-up of make test-more"
  as_user make setup-test-more
  enabled=$(find /etc/systemd/system /etc/rc[2-5].d \( -path '*.wants/*' -o -name 'S*' \) \( -name '*ssh*' -o -name '*redis*' \))
  [ -z "$enabled" ] || fail "services are enabled: $enabled"
  [ ! -e /usr/sbin/policy-rc.d ] || fail "policy-rc.d is left"
  step "dependencies"
  as_user make test-deny
  step "aarch64: a few tests"
  ran with_cargo scripts/test-aarch64.sh wire::fingerprint
  step "macOS and Windows: lints for one, a job on the other"
  as_user make prefix
  with_cargo scripts/test-systems.sh build/prefix quick
  step "the kernels for GPUs"
  as_user make test-ptx
  step "emulated machines: their devices, between two"
  with_cargo scripts/test-ibverbs.sh build/prefix two verbs
  step "Gloo's API beside PyTorch"
  as_user make test-beside-torch
  step "Python's package"
  as_user make test-python
  step "fuzzing: one target"
  with_cargo scripts/fuzz.sh run 2 matching
  step "ThreadSanitizer: one program; a toolchain with sources that is too old is passed over"
  old=$home/.rustup/toolchains/0-old
  mkdir -p "$old/bin" "$old/lib/rustlib/src/rust/library"
  printf '#!/bin/sh\n[ "$1" = --print ] && echo "%s" || echo "rustc 1.63.0 (of an old Debian)"\n' "$old" >"$old/bin/rustc"
  chmod 755 "$old/bin/rustc"
  with_cargo scripts/tsan.sh unbound_buffer
  step "all passed"
  exit 0
fi

# Installed packages' services would be started and enabled on a real machine.
tools=(g++ cmake python3 valgrind redis-server sshd mpirun.openmpi mpiexec.mpich nft qemu-system-x86_64)
absent "already there" "${tools[@]}"

step "without a Rust that is new enough"
refused "Rust [0-9.]+ or newer is needed" as_user env HOME=/nowhere make demo
grep -q "/usr/bin/cargo is 1.63.0" "$said" || fail "it does not name the cargo that it found"
step "without a network, by root"
refused "is there a network\?" unshare --net env HOME="$home" scripts/setup.sh demo
# rustup, called by root there, has made folders.
chown -R "$user:" "$home"

provide demo
absent "installed for the demo" valgrind redis-server sshd mpirun.openmpi mpiexec.mpich nft ninja qemu-system-x86_64

step "a program written for Gloo, with what the demo needs"
as_user rm -rf build/gloo
as_user cmake -S cmake/test/gloo -B build/gloo -DCMAKE_PREFIX_PATH="$PWD/build/prefix/lib/gloo_rs/gloo" -DPLACE="$PWD" -DSOURCE="$PWD/c_tests/gloo_compat/program.cc"
as_user cmake --build build/gloo
as_user ctest --test-dir build/gloo --output-on-failure

provide setup
absent "installed for make test" wine x86_64-w64-mingw32-gcc aarch64-linux-gnu-gcc
step "make setup, again"
as_user make setup | tee "$said"
grep -q "all is there" "$said" || fail "set-up is not done after set-up"

step "make install, by the user and by root"
as_user make install PREFIX="$home/a prefix"
[ -e "$home/a prefix/lib/libgloo_rs.so" ] || fail "nothing was installed into $home/a prefix"
make install
[ -x /usr/local/bin/gloo-rs ] || fail "nothing was installed into /usr/local"
strays=$(find . ! -user "$user" -print -quit)
[ -z "$strays" ] || fail "root left this in the user's folder: $strays"

# Lints, documentation, loom, the jobs in simulation and the long runs need nothing that these do not.
step "formatting"
as_user make test-format
step "Rust tests: those that need something of the machine"
ran as_user make test-rust T=rendezvous::redis
for test in stores::file:: both_families hosts::by_default a_job_over_two_hosts; do ran with_cargo scripts/test-jobs.sh test "$test"; done
step "C tests: some"
as_user make test-c T='^(basics|cplusplus|static_library|redis|launchers|gloo\.(headers|program))$'
as_user make test-c-core T='^basics'
as_user make test-valgrind T='^basics'
step "an emulated machine: its devices"
with_cargo scripts/test-ibverbs.sh build/prefix one verbs
step "header, ABI, README"
as_user make test-header test-abi test-readme
step "instructions: they are counted, of other code than was recorded"
with_cargo scripts/test-instructions.sh build/prefix 2>&1 | tee "$said" || true
grep -q "15 calls" "$said" || fail "no instructions were counted"
step "Miri: a few tests"
ran with_cargo scripts/miri.sh ffi::tests::plain_arguments

step "root does not build in the user's folder"
for file in src/lib.rs tool/src/main.rs; do
  touch "$file"
  refused "$file is newer than what was built" make install
  touch --date=2000-01-01 "$file"
done
step "all passed"
