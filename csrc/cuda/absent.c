/* Stands in for the .cu files of this folder in builds without CUDA. */
#include <inttypes.h>

#include "cuda/cuda.h"

gm_status gm_cuda_status(int32_t device) {
  return gm_fail(GM_ERROR_BACKEND, "backend = 2 (CUDA), device = %" PRId32 ": this build has no CUDA backend", device);
}

const char *gm_cuda_build_info(void) { return "absent"; }

const char *gm_cuda_code(void) { return ""; }

/* Not reached: gm_check_exec has asked gm_cuda_status. */
#define GM_ABSENT(op)                                                               \
  gm_status gm_##op##_cuda(const gm_exec *exec, const gm_##op##_problem *problem) { \
    (void)problem;                                                                  \
    return gm_cuda_status(exec->device);                                            \
  }

GM_ABSENT(gated_mla)
GM_ABSENT(rms_norm)
GM_ABSENT(hc_collapse)
GM_ABSENT(hc_head)
GM_ABSENT(mhc_pre_mix)
GM_ABSENT(mhc_post_collapse_rms_norm)
