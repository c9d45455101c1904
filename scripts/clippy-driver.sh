#!/bin/bash
# The compiler of this workspace's crates in scripts/cargo.sh: clippy's, without thin LTO between the codegen units of a crate. That pass takes as long as
# all others together, and no test needs it. Cargo calls this with rustc's path and arguments.
#
# `lto = "off"` in the profile would hold for dependencies, too. Those that macros use are compiled with it only where a command needs them for something
# else as well, so that they, and all that uses them, would be compiled twice.
exec clippy-driver "$@" -C lto=off
