#include <cuda_runtime_api.h>

#include "cuda/cuda.h"

// Shows that each architecture of the build compiles. Static: nvcc makes kernels of an anonymous namespace global.
static __global__ void probe() {}

extern "C" gm_status gm_cuda_status(int32_t device) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError(); // ours: leave none behind
    return gm_fail(GM_ERROR_BACKEND, "backend = 2 (CUDA), device = %d: %s", device, cudaGetErrorString(error));
  }
  if (device < 0 || device >= count) {
    return gm_fail(GM_ERROR_BACKEND, "backend = 2 (CUDA), device = %d must be in 0..%d", device, count - 1);
  }
  return gm_fail(GM_ERROR_BACKEND, "backend = 2 (CUDA), device = %d: this version has no CUDA operator yet", device);
}

extern "C" const char *gm_cuda_build_info(void) {
  static_assert(CUDART_VERSION >= 12090, "CUDA 12.9 or later is needed");
  (void)probe;
  return "runtime only, no operators";
}
