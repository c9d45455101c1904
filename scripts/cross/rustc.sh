#!/bin/sh
# Cargo's RUSTC_WRAPPER for Windows. libuv-sys2's build script asks cfg!(windows) which of libuv's files to compile: that is the
# system that it runs on, not the one that it builds for. So here it is compiled as if it ran there.
if [ "${CARGO_PKG_NAME:-}" = libuv-sys2 ] && [ "${CARGO_CRATE_NAME:-}" = build_script_build ]; then
  exec "$@" --cfg windows --allow explicit_builtin_cfgs_in_flags
fi
exec "$@"
