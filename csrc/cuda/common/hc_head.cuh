#ifndef GATEMIX_CUDA_COMMON_HC_HEAD_CUH
#define GATEMIX_CUDA_COMMON_HC_HEAD_CUH

#include "cuda/cuda.h"

// What the forms of hc_head share.
namespace gm {

__device__ __forceinline__ float inverse_rms(float square_sum, int64_t width, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(square_sum, static_cast<float>(width)), eps));
}

// hc_head_sm90.cu: 4 streams, aligned vectors, a hidden size that fits.
bool hc_head_cluster_fits(const gm_hc_head_problem *problem);
gm_status hc_head_cluster_launch(const gm_exec *exec, const gm_hc_head_problem *problem);

} // namespace gm

#endif
