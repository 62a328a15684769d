/* Stands in for the .cu files of this folder in builds without CUDA. */
#include <inttypes.h>

#include "cuda/cuda.h"

gm_status gm_cuda_status(int32_t device) {
  return gm_fail(GM_ERROR_BACKEND, "backend = 2 (CUDA), device = %" PRId32 ": this build has no CUDA backend", device);
}

const char *gm_cuda_build_info(void) { return "absent"; }
