#!/bin/bash
# What is tried on a fresh machine. scripts/test-fresh.sh makes it, and calls this in namespaces of its own:
#   fresh-machine.sh enter ROOT USER CHECKOUT VARIABLE=VALUE...   makes ROOT the root folder, and there goes on with
#   fresh-machine.sh try USER VARIABLE=VALUE...                   as root, in the checkout
set -euo pipefail

fail() {
  echo "fresh-machine: $*" >&2
  exit 1
}

if [ "$1" = enter ]; then
  root=$2 user=$3 checkout=$4
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
    bash scripts/fresh-machine.sh try "$user" "$@" || status=$?
  exit "$status"
fi

[ "$1" = try ] || fail "no such command: $1"
user=$2
variables=("${@:3}")
if [ "$user" = root ]; then
  home=/root
else
  home=/home/$user
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
variables+=(CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0)
as_user() {
  runuser -u "$user" -- env -i PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 HOME="$home" "${variables[@]}" "$@" </dev/null
}
there() { # COMMAND...: none of these may be there yet
  local command
  for command in "$@"; do type -P "$command" >/dev/null && echo "$command"; done
  return 0
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

# Installed packages' services would be started and enabled on a real machine.
tools=(g++ cmake python3 valgrind redis-server sshd mpirun.openmpi mpiexec.mpich nft wine x86_64-w64-mingw32-gcc qemu-system-x86_64)
[ -z "$(there "${tools[@]}")" ] || fail "already there: $(there "${tools[@]}")"

step "without a Rust that is new enough"
refused "Rust [0-9.]+ or newer is needed" as_user env HOME=/nowhere make demo
grep -q "/usr/bin/cargo is 1.63.0" "$said" || fail "it does not name the cargo that it found"
if [ "$user" = root ]; then
  step "without a network"
  refused "is there a network\?" as_user unshare --net make demo
fi

provide demo
not_for_the_demo=(valgrind redis-server sshd mpirun.openmpi mpiexec.mpich nft ninja wine x86_64-w64-mingw32-gcc qemu-system-x86_64)
[ -z "$(there "${not_for_the_demo[@]}")" ] || fail "installed for the demo: $(there "${not_for_the_demo[@]}")"

step "a program written for Gloo, with what the demo needs"
as_user rm -rf build/gloo
as_user cmake -S cmake/test/gloo -B build/gloo -DCMAKE_PREFIX_PATH="$PWD/build/prefix/lib/gloo_rs/gloo" -DPLACE="$PWD" -DSOURCE="$PWD/c_tests/gloo_compat/program.cc"
as_user cmake --build build/gloo
as_user ctest --test-dir build/gloo --output-on-failure

provide setup
[ ! -e /usr/sbin/policy-rc.d ] || fail "policy-rc.d is left"
if [ "$user" = root ]; then
  enabled=$(find /etc/systemd/system /etc/rc[2-5].d \( -path '*.wants/*' -o -name 'S*' \) \( -name '*ssh*' -o -name '*redis*' \))
  [ -z "$enabled" ] || fail "services are enabled: $enabled"
fi
step "make setup, again"
as_user make setup | tee "$said"
grep -q "all is there" "$said" || fail "set-up is not done after set-up"

try_install() {
  step "make install"
  as_user make install PREFIX="$home/a prefix"
  [ -e "$home/a prefix/lib/libgloo_rs.so" ] || fail "nothing was installed into $home/a prefix"
}
if [ "$user" = root ]; then # the tests are tried by who may do less
  try_install
  step "all passed"
  exit 0
fi

# As make's own, cargo is found.
with_cargo() { as_user env PATH="$home/.cargo/bin:/usr/local/bin:/usr/bin:/bin" "$@"; }
step "formatting; lints, of one choice of features"
as_user make test-format
with_cargo cargo clippy --locked --all-features --all-targets -- -D warnings
step "Rust tests: all are built"
cargo_test() { with_cargo cargo test --locked --all-features "$@"; }
cargo_test --no-run
step "Rust tests: those that need something of the machine"
cargo_test --lib rendezvous::redis
cargo_test --test stores file::
cargo_test --test hygiene both_families
cargo_test --test hosts listen
cargo_test --test cli_hosts a_job_over_two_hosts
step "header, ABI, dependencies"
as_user make test-header test-abi test-deny
step "aarch64, Miri, loom: a few tests of each"
with_cargo scripts/test-aarch64.sh wire::fingerprint
with_cargo scripts/miri.sh ffi::tests::plain_arguments
with_cargo scripts/loom.sh
step "macOS and Windows: lints for one, a job on the other"
with_cargo scripts/test-systems.sh build/prefix quick
step "C tests: some"
as_user scripts/test-c.sh build/prefix plain -R '^(basics|cplusplus|static_library|redis|launchers|gloo\.(headers|program))$'
step "emulated machines: their devices, in one and between two"
as_user scripts/test-ibverbs.sh build/prefix one verbs
as_user scripts/test-ibverbs.sh build/prefix two verbs
step "C tests under valgrind: one"
as_user scripts/test-c.sh build/prefix valgrind -R '^basics'
step "ThreadSanitizer: one program; a toolchain with sources that is too old is passed over"
old=$home/.rustup/toolchains/0-old
as_user mkdir -p "$old/bin" "$old/lib/rustlib/src/rust/library"
printf '#!/bin/sh\n[ "$1" = --print ] && echo "%s" || echo "rustc 1.63.0 (of an old Debian)"\n' "$old" >"$old/bin/rustc"
chmod 755 "$old/bin/rustc"
with_cargo scripts/tsan.sh unbound_buffer
step "endurance: what is built"
as_user scripts/test-c.sh build/prefix endurance --show-only
step "instructions: they are counted, of other code than was recorded"
as_user scripts/test-instructions.sh build/prefix 2>&1 | tee "$said" || true
grep -q "15 calls" "$said" || fail "no instructions were counted"
step "README's examples"
as_user make test-readme
step "package"
as_user make test-package
step "PyTorch's backend"
as_user make test-torch
step "benchmarks"
as_user make test-bench

try_install
step "sudo make install"
make install
[ -x /usr/local/bin/gloo-rs ] || fail "nothing was installed into /usr/local"
[ -z "$(find . ! -user "$user" -print -quit)" ] || fail "root left this in the user's folder: $(find . ! -user "$user")"
touch src/lib.rs
refused "src/lib.rs is newer than what was built" make install
step "all passed"
