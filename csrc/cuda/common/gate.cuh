#ifndef GATEMIX_CUDA_COMMON_GATE_CUH
#define GATEMIX_CUDA_COMMON_GATE_CUH

#include "cuda/common/ptx.cuh"

namespace gm {

// 1 / (1 + exp(-z)) with small relative error for every z: exp never sees a positive argument, so it can't overflow, and
// a very negative z gives exp(z) itself. NaN in, NaN out.
__device__ __forceinline__ float sigmoid(float z) {
  const float e = expf(-fabsf(z));
  return __fdiv_rn(z < 0.0f ? e : 1.0f, __fadd_rn(1.0f, e));
}

// attn * sigmoid(z), as sigmoid() but with the reciprocal of 1 + exp(-|z|), which lies in 1..2, in one instruction: its
// relative error is below 2^-22 all the same.
__device__ __forceinline__ float gated(float attn, float z) {
  const float e = expf(-fabsf(z));
  return attn * (z < 0.0f ? e : 1.0f) * ptx::rcp_approx(1.0f + e);
}

// sigmoid(mix * scale + base) + eps, every step rounded.
__device__ __forceinline__ float gate(float mix, float scale, float base, float eps) {
  return __fadd_rn(sigmoid(__fadd_rn(__fmul_rn(mix, scale), base)), eps);
}

} // namespace gm

#endif
