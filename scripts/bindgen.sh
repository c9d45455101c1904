#!/bin/bash
# Prints include/gloo_rs.h as Rust, for Python's module.
set -euo pipefail
cd "$(dirname "$0")/.."
bindgen=$(scripts/pinned.sh bindgen)
exec "$bindgen" include/gloo_rs.h --allowlist-item '(gloo_rs|GLOO_RS)_.*' --no-doc-comments --no-layout-tests \
  --default-enum-style consts --no-prepend-enum-name --use-core --ctypes-prefix core::ffi --rust-target 1.85 --rust-edition 2024
