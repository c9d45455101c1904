#!/bin/bash
# Finds a Rust that Cargo.toml's rust-version allows: of the cargos on PATH, and rustup's, the first that is new enough.
# usage: scripts/rust.sh check         fails, and says what was found and what to do, if there is none
#        scripts/rust.sh path          prints PATH, with that cargo's folder in front if another cargo stands before it
#        scripts/rust.sh allows TOOL   whether TOOL, a rustc or cargo with its first arguments, is new enough
set -euo pipefail
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")

version() { "$@" --version 2>/dev/null | awk 'NR == 1 { print $2 }' || true; }
allows() { # VERSION
  [ -n "$1" ] && printf '%s\n' "$wanted" "$1" | sort --version-sort --check=silent
}

cargos() { # each once, also where /bin is /usr/bin
  { type -aP cargo || true; echo "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo"; } | while read -r cargo; do
    echo "$(realpath --quiet "${cargo%/cargo}") $cargo"
  done | awk '!seen[$1]++' | cut -d' ' -f2-
}

case $1 in
  check | path)
    found=()
    while read -r cargo; do
      [ -x "$cargo" ] || continue
      # Rustup's cargo calls the rustc of its toolchain; any other the first on PATH, which path makes the one beside it.
      rustc=${cargo%cargo}rustc
      if allows "$(version "$cargo")" && allows "$(version "$rustc")"; then
        first=$(type -P cargo || true)
        if [ "$1" = path ]; then
          [ "$cargo" = "$first" ] && echo "$PATH" || echo "${cargo%/cargo}:$PATH"
        fi
        exit 0
      fi
      found+=("$cargo is $(version "$cargo" | grep . || echo "broken, or without a toolchain"), its rustc $(version "$rustc" | grep . || echo missing)")
    done < <(cargos)
    if [ "$1" = path ]; then
      echo "$PATH"
      exit 0
    fi
    {
      echo "Rust $wanted or newer is needed."
      if ((${#found[@]} == 0)); then
        echo "There is no cargo on PATH, nor in ${CARGO_HOME:-${HOME:-}/.cargo}/bin."
      else
        printf '%s.\n' "${found[@]}"
      fi
      if type -P rustup >/dev/null || [ -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/rustup" ]; then
        echo "To get it: rustup toolchain install stable && rustup default stable"
      else
        echo "To get it: curl --proto '=https' -sSf https://sh.rustup.rs | sh    (https://rustup.rs)"
      fi
    } >&2
    exit 1
    ;;
  allows) allows "$(version "${@:2}")" ;;
  *) echo "rust.sh: no such command: $1" >&2 && exit 2 ;;
esac
