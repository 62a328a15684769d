#ifndef GATEMIX_CUDA_COMMON_GATED_MLA_CUH
#define GATEMIX_CUDA_COMMON_GATED_MLA_CUH

#include "cuda/common/launch.cuh"

// The forms of gated_mla. gated_mla.cu chooses one.

// Any shape, any alignment, every GPU.
extern "C" gm_status gm_gated_mla_sm80(const gm_exec *exec, const gm_gated_mla_problem *problem);

#endif
