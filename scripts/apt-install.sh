#!/bin/bash
# Installs Debian packages, as root, and neither starts nor enables the services among them: the tests start the servers that
# they need by themselves, on ports of their own.
# usage: scripts/apt-install.sh PACKAGE...
set -euo pipefail
# update-rc.d and dpkg's own tools are not on everybody's PATH.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
folder=$(mktemp -d)
log=$folder/log
policy=/usr/sbin/policy-rc.d
clean_up=(rm -rf "$folder")
trap '"${clean_up[@]}"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

services=() # of the packages that were not there
for package in "$@"; do
  [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] && continue
  case $package in
    openssh-server) services+=(ssh) ;;
    redis-server) services+=(redis-server) ;;
  esac
done
# Asked by every package that would start a service. One that is there already is the owner's.
if [ ! -e "$policy" ]; then
  clean_up=(rm -rf "$folder" "$policy")
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

# Says every few seconds how far it is.
tell() {
  local began=$SECONDS
  # The sleep may outlive this, and must not hold the caller's output meanwhile.
  while sleep 10 >/dev/null 2>&1; do
    echo "  ... $((SECONDS - began)) s: $(tail -n 1 "$log" | cut -c1-100)"
  done
}
run() {
  local teller status=0
  tell &
  teller=$!
  "$@" >>"$log" 2>&1 </dev/null || status=$?
  kill "$teller"
  wait "$teller" 2>/dev/null || true
  return "$status"
}

export DEBIAN_FRONTEND=noninteractive
echo "apt-install: $*"
# Lists that cannot be read anew may do as they are.
run apt-get update -q || true
# dpkg's progress goes by lines, of which the last is shown.
if ! run apt-get install --yes -q --no-install-recommends "$@"; then
  clean_up=("${clean_up[@]/$folder/}") # which is kept
  reason=$(grep -m 1 -E '^(Err:|W: Failed|E:)' "$log" || tail -n 1 "$log")
  echo "apt-install: the packages could not be installed; is there a network? $reason (all that apt said: $log)" >&2
  exit 1
fi
for service in "${services[@]}"; do
  # Takes away systemd's links, too.
  update-rc.d "$service" disable >>"$log" 2>&1 || true
done
