#!/bin/bash
# Compiles src/cuda/kernels.cu, the kernels for NVIDIA's GPUs, to the PTX in src/cuda/kernels.ptx, which drivers compile for their GPU.
# usage: scripts/ptx.sh write    makes kernels.ptx anew, and kernels.ptx.deflate, the same compressed
#        scripts/ptx.sh check    compares it with what a compilation gives now, and assembles it for several GPUs
# The compiler is NVIDIA's NVRTC and the assemblers are its ptxas, out of the wheels of scripts/cuda.txt, into .cache/cuda: no GPU is needed.
# The compiler's version decides the PTX's, and so the oldest driver that takes it: 8.1, of CUDA 12.1.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  write | check) ;;
  *) sed -n 's/^# usage: /usage: /p' "$0" >&2 && exit 2 ;;
esac
if [ "$(uname -sm)" != "Linux x86_64" ]; then
  echo "ptx: there is a compiler of this version for Linux on x86_64 only, so src/cuda/kernels.ptx was not compared" >&2
  [ "$1" = check ] && exit 0 || exit 1
fi

pinned=scripts/cuda.txt
tools=.cache/cuda
# NAME FILE: what is taken out of the wheel of that name; the rest takes half a gigabyte.
taken=(
  "nvidia_cuda_nvrtc_cu12 nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
  "nvidia_cuda_nvrtc_cu12 nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.1"
  "nvidia_cuda_nvcc_cu12 nvidia/cuda_nvcc/bin/ptxas"
  "nvidia_cuda_nvcc nvidia/cu13/bin/ptxas"
)
fetch() {
  local said name file at
  at=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$at'" EXIT
  echo "ptx: fetching NVRTC and ptxas, 100 MB"
  if ! said=$(python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes --requirement "$pinned" \
    --dest "$at" 2>&1); then
    echo "ptx: NVRTC and ptxas could not be fetched; is there a network? $(tail -n 1 <<<"$said")" >&2
    exit 1
  fi
  rm -rf "$tools"
  mkdir -p "$tools"
  for row in "${taken[@]}"; do
    read -r name file <<<"$row"
    python3 -m zipfile -e "$at/$name"-[0-9]*.whl "$at/$name"
    mkdir -p "$tools/$name"
    mv "$at/$name/$file" "$tools/$name/"
  done
  chmod +x "$tools"/*/ptxas
  cp "$pinned" "$tools/"
}
cmp --silent "$pinned" "$tools/cuda.txt" || fetch

compile() { # FILE
  python3 - "$tools/nvidia_cuda_nvrtc_cu12/libnvrtc.so.12" src/cuda/kernels.cu "$1" <<'PYTHON'
import ctypes
import os
import sys

library, source, target = sys.argv[1:]
nvrtc = ctypes.CDLL(os.path.abspath(library))
# An addition or a multiplication is rounded by itself, quotients are exact to the last bit, and subnormal numbers are kept.
options = ["--gpu-architecture=compute_70", "--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"]


def check(status):
    if status != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise SystemExit(f"ptx: {nvrtc.nvrtcGetErrorString(status).decode()}")


def text(what):
    size = ctypes.c_size_t()
    check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.value.decode()


program = ctypes.c_void_p()
with open(source, "rb") as file:
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), file.read(), source.encode(), 0, None, None))
status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
log = text("ProgramLog").strip("\n")
if log:
    print(log, file=sys.stderr)
    raise SystemExit("ptx: the compiler has something to say, see above; that is an error here")
check(status)
# NVRTC's own header adds constants to every program, which nothing here uses.
lines = [line for line in text("PTX").splitlines(keepends=True) if "nv6target" not in line]
with open(target, "w", encoding="ascii") as file:
    file.writelines(lines)
PYTHON
}

if [ "$1" = write ]; then
  compile src/cuda/kernels.ptx
  python3 - src/cuda/kernels.ptx <<'PYTHON'
import sys
import zlib

# Raw DEFLATE (RFC 1951). What it inflates to is compared in the library's tests: another zlib may compress otherwise.
compressor = zlib.compressobj(9, wbits=-15)
with open(sys.argv[1], "rb") as text, open(sys.argv[1] + ".deflate", "wb") as file:
    file.write(compressor.compress(text.read()) + compressor.flush())
PYTHON
  exit
fi
mkdir -p build
compile build/kernels.ptx
cmp src/cuda/kernels.ptx build/kernels.ptx || { echo "ptx: src/cuda/kernels.ptx is not what src/cuda/kernels.cu compiles to: scripts/ptx.sh write" >&2; exit 1; }
echo "ok: src/cuda/kernels.ptx is what src/cuda/kernels.cu compiles to"
assemble() { # WHEEL ARCHITECTURE...: without a warning, and with no register spilled to memory
  local ptxas=$tools/$1/ptxas said architecture
  for architecture in "${@:2}"; do
    said=$("$ptxas" --gpu-name "$architecture" --warning-as-error --verbose --output-file build/kernels.cubin build/kernels.ptx 2>&1) ||
      { echo "$said" >&2; exit 1; }
    if grep -E '[1-9][0-9]* bytes (stack frame|spill)' <<<"$said" >&2; then
      echo "ptx: a kernel uses memory of its threads on $architecture" >&2
      exit 1
    fi
    echo "ok: $("$ptxas" --version | sed -n 's/^Cuda compilation tools, //p') assembles it for $architecture: $(grep -c 'Used [0-9]* registers' <<<"$said") kernels, of at most $(grep -oE 'Used [0-9]+' <<<"$said" | cut -d' ' -f2 | sort -n | tail -n 1) registers"
  done
}
assemble nvidia_cuda_nvcc_cu12 sm_70 sm_80 sm_90 sm_100
assemble nvidia_cuda_nvcc sm_80 sm_90 sm_100
