#ifndef GATEMIX_CUDA_COMMON_HC_HEAD_CUH
#define GATEMIX_CUDA_COMMON_HC_HEAD_CUH

#include "cuda/cuda.h"

// The form of hc_head_sm90.cu: can it run this problem, and the launch.
extern "C" bool gm_hc_head_sm90_fits(const gm_exec *exec, const gm_hc_head_problem *problem);
extern "C" gm_status gm_hc_head_sm90(const gm_exec *exec, const gm_hc_head_problem *problem);

#endif
