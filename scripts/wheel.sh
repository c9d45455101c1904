#!/bin/bash
# Makes Python's package of an installed gloo_rs, with the versions of python/requirements.txt in a virtual environment, tags it for the glibc
# that it needs, and prints what its parts take.
# usage: scripts/wheel.sh PREFIX    (in the environment PYTHON names another python3, WHEELS another folder for the wheel than build/wheel)
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
environment=build/python
scripts/venv.sh "$environment" python/requirements.txt
wheels=${WHEELS:-build/wheel}
rm -rf "$wheels"
mkdir -p "$wheels"
PATH=$PWD/$environment/bin:$(scripts/rust.sh path)
export GLOO_RS_PREFIX=$prefix
pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir "$wheels" .
# The newest symbol of glibc that any part refers to says on which systems the wheel can be installed.
unzipped=$(mktemp -d)
trap 'rm -r "$unzipped"' EXIT
python -m zipfile --extract "$wheels"/*.whl "$unzipped"
parts=("$unzipped"/gloo_rs/_native*.so "$unzipped"/gloo_rs/lib/libgloo_rs.so.* "$unzipped/gloo_rs/bin/gloo-rs")
glibc=$("${OBJDUMP:-objdump}" --dynamic-syms "${parts[@]}" | grep -o 'GLIBC_[0-9.]*' | sort --version-sort --unique | tail -n 1)
[[ $glibc =~ ^GLIBC_([0-9]+)\.([0-9]+)$ ]] || { echo "wheel: found no symbol of glibc" >&2; exit 1; }
platform=manylinux_${BASH_REMATCH[1]}_${BASH_REMATCH[2]}_${MANYLINUX_ARCHITECTURE:-$(uname -m)}
python -m wheel tags --remove --platform-tag "$platform" "$wheels"/*.whl >/dev/null
python - "$wheels"/*.whl <<'END'
import collections, os, sys, zipfile

import deflate

LIMIT_BYTES = 8_000_000


class Compressor:
    """What zipfile takes for one of zlib: compresses a whole file by libdeflate, to 3 % less than zlib's level 9 does."""

    def __init__(self, *_):
        self.data = bytearray()

    def compress(self, data):
        self.data += data
        return b""

    def flush(self):
        return deflate.deflate_compress(self.data, 12)


zipfile._get_compressor = Compressor
# Packs the wheel anew at the highest level of deflate, which maturin does not use.
with zipfile.ZipFile(sys.argv[1]) as made, zipfile.ZipFile(sys.argv[1] + ".part", "w") as smaller:
    for file in made.infolist():
        smaller.writestr(file, made.read(file), zipfile.ZIP_DEFLATED)
os.replace(sys.argv[1] + ".part", sys.argv[1])
with zipfile.ZipFile(sys.argv[1]) as smaller:
    if broken := smaller.testzip():
        sys.exit(f"wheel: {broken} is broken")
parts = collections.Counter()
for file in zipfile.ZipFile(sys.argv[1]).infolist():
    name = file.filename.removeprefix("gloo_rs/")
    parts[name if ".so" in name or name.startswith(("bin/", "THIRD")) else name.split("/")[0]] += file.compress_size
for name, size in parts.most_common(7):
    print(f"{size:9} {name}")
total = os.path.getsize(sys.argv[1])
print(f"{total:9} {sys.argv[1]}")
if total > LIMIT_BYTES:
    sys.exit(f"wheel: more than {LIMIT_BYTES} bytes")
END
