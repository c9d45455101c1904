#!/bin/bash
# Compiles include/gloo_rs.h alone, as the oldest C and C++ that it promises, without a warning.
set -euo pipefail
cd "$(dirname "$0")/.."
warnings=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude)
echo '#include <gloo_rs.h>' | cc -std=c11 "${warnings[@]}" -Wstrict-prototypes -x c -
echo "ok: C11"
echo '#include <gloo_rs.h>' | c++ -std=c++17 "${warnings[@]}" -x c++ -
echo "ok: C++17"
