#!/bin/bash
# The Rust documentation, private items too, all warnings being errors: links that lead nowhere, code that is no Rust.
set -euo pipefail
cd "$(dirname "$0")/.."
# Here links to private items lead somewhere.
export RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links"
exec cargo doc --locked --quiet --no-deps --lib --all-features --document-private-items
