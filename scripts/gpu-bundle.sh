#!/usr/bin/env bash
# What a GPU machine without Rust needs to test and measure gatemix, in one folder: gpu-bundle.sh DIR
# There, DIR/run.sh does it. GATEMIX_CUDA_ARCHS: for which GPUs, 90a if not set. Needs nvcc, or installs one into target/.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

target="${CARGO_TARGET_DIR:-$PWD/target}"
command -v nvcc >/dev/null || {
  exports=$(scripts/cuda-toolkit.sh "${GATEMIX_CUDA_TOOLKIT:-$target/cuda-toolkit}")
  eval "$exports"
}
export GATEMIX_CUDA_ARCHS="${GATEMIX_CUDA_ARCHS:-90a}"
export CARGO_TARGET_DIR="$target/gpu-bundle" # its own: other architectures

# executables KIND CARGO_ARGUMENT...: NAME and path of each test or bench.
executables() {
  local kind=$1
  shift
  cargo "$@" --no-run --features cudarc --message-format=json | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and sys.argv[1] in message["target"]["kind"]:
        print(message["target"]["name"], message["executable"])
' "$kind"
}

copy_stripped() { # NAME and path on stdin, to the folder $1
  mkdir -p "$1"
  while read -r name path; do strip -o "$1/$name" "$path"; done
}

rm -rf "$dir"/{tests,cpu-tests,benches,bin,lib,data,scripts,run.sh}
mkdir -p "$dir/cpu-tests" "$dir/bin" "$dir/lib" "$dir/scripts/gpu"
# compile_fail needs cargo; the others say nothing about a machine.
executables test test --release | grep -vE '^(compile_fail|support|support_log|types) ' | copy_stripped "$dir/tests"
for binary in "$dir"/tests/*; do
  "$binary" --list 2>/dev/null | grep '^cuda::' >/dev/null || mv "$binary" "$dir/cpu-tests/"
done
executables bench bench | copy_stripped "$dir/benches"

build="$CARGO_TARGET_DIR/cmake-$(cksum <<<"$PWD" | cut -d ' ' -f 1)" # checkouts may share the folder
cmake -S . -B "$build" -DGATEMIX_CUDA=ON -DGATEMIX_CUDA_ARCHS="${GATEMIX_CUDA_ARCHS//[, ]/;}" >/dev/null
cmake --build "$build" -j "$(nproc)" --target gatemix gatemix_static >/dev/null
strip -o "$dir/lib/libgatemix.so" "$build/libgatemix.so"

gencode=()
for arch in ${GATEMIX_CUDA_ARCHS//[,;]/ }; do gencode+=("-gencode=arch=compute_$arch,code=sm_$arch"); done
nvcc -shared -O3 -std=c++17 -Xcompiler=-fPIC "${gencode[@]}" benches/cuda/copy.cu -o "$dir/lib/libcopy.so"
nvcc -O3 -std=c++17 -Iinclude -Icsrc "${gencode[@]}" benches/cuda/gated_mla_forms.cu "$build/libgatemix.a" -ldl \
  -o "$dir/bin/gated_mla_forms"

cp -r tests/data "$dir/data"
cp scripts/peers.py "$dir/scripts/"
cp scripts/gpu/*.py "$dir/scripts/gpu/"
cp scripts/gpu/run.sh "$dir/"
chmod +x "$dir/run.sh"
du -ch --apparent-size "$dir"/*tests/* "$dir"/{benches,bin,lib}/* "$dir/data"
