#!/usr/bin/env bash
# Brings a CUDA 13.0 toolkit into a folder, from the Python package index, without root:
#   eval "$(scripts/cuda-toolkit.sh target/cuda-toolkit)" && cargo build --features cuda
# Prints the line to export on stdout, everything else on stderr. A second run finds its own work and is instant.
set -euo pipefail

# cuobjdump and nvdisasm are not published for 13.0; they read the code of older releases.
pins='
nvidia-cuda-nvcc==13.0.88
nvidia-cuda-crt==13.0.88
nvidia-nvvm==13.0.88
nvidia-cuda-runtime==13.0.96
nvidia-cuda-cccl==13.0.85
nvidia-cuda-cuobjdump==13.2.78
nvidia-cuda-nvdisasm==13.2.78
'
check_targets='sm_80 sm_90a sm_100f sm_120 compute_80'

fail() { echo "cuda-toolkit.sh: $*" >&2; exit 1; }

[ $# -eq 1 ] || fail "usage: $0 DIR"
python=${PYTHON:-python3}
mkdir -p "$1"
dir=$(cd "$1" && pwd)
stamp="$dir/.pins"

if ! printf '%s' "$pins" | cmp -s - "$stamp"; then
  "$python" -m pip --version >/dev/null 2>&1 || fail "needs $python with pip (Debian: python3-pip)"
  [ -z "$(ls -A "$dir")" ] || [ -e "$stamp" ] || [ -e "$dir/.stage" ] || fail "$dir has other contents"
  rm -rf "$stamp" "$dir"/.stage "$dir"/{bin,include,lib,lib64,nvvm,licenses}
  echo "cuda-toolkit.sh: fetching CUDA 13.0 into $dir" >&2
  # shellcheck disable=SC2086
  "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
    --only-binary :all: --target "$dir/.stage" $pins >&2
  mv "$dir"/.stage/nvidia/cu13/* "$dir/"
  mkdir -p "$dir/licenses"
  cp "$dir"/.stage/nvidia_cuda_nvcc-*.dist-info/licenses/* "$dir/licenses/" 2>/dev/null || true
  chmod +x "$dir"/bin/* "$dir"/nvvm/bin/*
  ln -sfn lib "$dir/lib64"
  ln -sfn libcudart.so.13 "$dir/lib/libcudart.so"

  cat >"$dir/.stage/check.cu" <<'CU'
#include <cuda_bf16.h>
namespace {
__global__ void twice(__nv_bfloat16 *p) { p[threadIdx.x] = __hadd(p[threadIdx.x], p[threadIdx.x]); }
}
int main() {
  twice<<<1, 1>>>(nullptr);
  return cudaGetLastError() == cudaSuccess ? 1 : 0;
}
CU
  gencode=
  for t in $check_targets; do gencode="$gencode -gencode arch=compute_${t#*_},code=$t"; done
  # shellcheck disable=SC2086
  "$dir/bin/nvcc" $gencode -o "$dir/.stage/check" "$dir/.stage/check.cu" >&2 || fail "the toolkit does not compile"
  "$dir/bin/cuobjdump" --list-elf --list-ptx "$dir/.stage/check" >&2 || fail "cuobjdump does not run"
  rm -rf "$dir/.stage"
  printf '%s' "$pins" >"$stamp"
fi

printf 'export CUDA_HOME=%q PATH=%q:"$PATH"\n' "$dir" "$dir/bin"
