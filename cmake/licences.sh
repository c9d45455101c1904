#!/bin/bash
# Writes the licences of all that is linked into library and tool: those of the crates, and of what the crates contain.
# usage: cmake/licences.sh FILE HOST COMMAND...    (COMMAND is the call of cargo that has built them, with --target HOST)
set -euo pipefail
file=$1 host=$2
shift 2

# Cargo says of each crate where its manifest is and what files it made. What is linked lies in the folder of the target; build scripts
# and macros, which only ran, lie beside it. Everything is built already, so this takes no time.
said=$("$@" --quiet --message-format json)
mapfile -t manifests < <(grep '^{"reason":"compiler-artifact"' <<<"$said" |
  grep -E "\"filenames\":\[\"[^]]*/$host/release/" |
  sed -E 's/.*"manifest_path":"([^"]*)".*/\1/' | LC_ALL=C sort -u)
if ((${#manifests[@]} == 0)); then
  echo "licences: cargo names no crates: $said" >&2
  exit 1
fi

# Only part of what a crate's folder contains is compiled; rdma-core, of which the crate ibverbs-sys has the types, is not linked.
licence_files() { # FOLDER
  find "$1" -maxdepth 2 -not -path '*/vendor/*' -type f \
    \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'copyright*' -o -iname 'notice*' -o -iname 'unlicense*' \) \
    -not -name '*.rs' -not -name '*.toml' | LC_ALL=C sort
}
field() { # NAME MANIFEST: of its package
  sed -n "/^\[package\]/,/^\[[^p]/s/^$1 = \"\(.*\)\"\$/\1/p" "$2" | head -n 1
}

declare -A text_of users
sums=()
crates=()
for manifest in "${manifests[@]}"; do
  name=$(field name "$manifest")
  case $name in gloo_rs | gloo-rs-tool) continue ;; esac
  crate="$name $(field version "$manifest")"
  licence=$(field license "$manifest")
  note=
  mapfile -t texts < <(licence_files "${manifest%/Cargo.toml}")
  ((${#texts[@]})) || note=" (its sources do not contain the text; LICENSE-MIT and LICENSE-APACHE are such texts)"
  crates+=("$crate: ${licence:-see its text}$note")
  for text in "${texts[@]}"; do
    # Most crates have the same texts.
    sum=$(tr -d ' \r\n\t' <"$text" | cksum)
    [ -n "${text_of[$sum]:-}" ] || sums+=("$sum")
    text_of[$sum]=${text_of[$sum]:-$text}
    users[$sum]+="${users[$sum]:+, }$crate"
  done
done

{
  echo "gloo_rs is licensed as LICENSE-MIT and LICENSE-APACHE say. Its library and its tool contain code of these crates, and of Rust's"
  echo "standard library (https://www.rust-lang.org, MIT OR Apache-2.0):"
  echo
  printf '  %s\n' "${crates[@]}"
  for sum in "${sums[@]}"; do
    printf '\n%.0s' 1 2
    printf -- '-%.0s' {1..100}
    printf '\n'
    fold -s -w 100 <<<"${users[$sum]}:"
    echo
    tr -d '\r' <"${text_of[$sum]}"
  done
} >"$file.part"
mv "$file.part" "$file"
