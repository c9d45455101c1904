#!/bin/bash
# The Rust documentation, private items too, all warnings being errors: links that lead nowhere, code that is no Rust.
set -euo pipefail
cd "$(dirname "$0")/.."
# Here links to private items lead somewhere.
export RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links"
doc() { scripts/cargo.sh doc --quiet --no-deps --document-private-items "$@"; }
doc --lib
# By itself, since cargo gives library and tool one folder.
doc --bins
