#!/bin/bash
# Prints the path of a tar archive with a minimal Debian 12 with make and certificates; makes it if there is none, or it is a month old.
set -euo pipefail
cd "$(dirname "$0")/.."
release=bookworm
cache=$PWD/.cache/debian

fail() {
  echo "minimal-debian: $*" >&2
  exit 1
}
command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing: scripts/setup.sh fresh"
mkdir -p "$cache"
# The way to Debian's mirror, as this machine has it.
options=$cache/apt.conf sources=$cache/sources.list
apt-config dump | grep -E '^Acquire::(https?::(Proxy|CAInfo|Verify)|Retries|Check-Valid-Until)' >"$options" || true
# shellcheck disable=SC2016 # apt's own variables
apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
  awk -v release="$release" '$2 ~ "^" release "(-updates|-security)?$" && $3 == "main" && !seen[$0]++ { print "deb", $0 }' >"$sources"
[ -s "$sources" ] || echo "deb http://deb.debian.org/debian $release main" >"$sources"
base=$cache/$release-$(cat "$options" "$sources" | sha256sum | cut -c1-16).tar
if [ -z "$(find "$base" -mtime -30 2>/dev/null)" ]; then
  echo "making a minimal Debian" >&2
  rm -f "$cache"/*.tar
  mmdebstrap --quiet --variant=minbase --include=make,ca-certificates --aptopt="$options" --aptopt='Apt::Install-Recommends "false"' \
    "$release" "$cache/part.tar" - <"$sources" >"$cache/mmdebstrap.log" 2>&1 || fail "no Debian came of it: $(tail -n 3 "$cache/mmdebstrap.log")"
  mv "$cache/part.tar" "$base"
fi
echo "$base"
