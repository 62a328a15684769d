#include "cuda/cuda.h"

extern "C" gm_status gm_gated_mla_cuda(const gm_exec *exec, const gm_gated_mla_problem *) {
  return gm_fail(GM_ERROR_BACKEND, "backend = 2 (CUDA), device = %d: gated_mla has no CUDA kernel in this version",
                 exec->device);
}
