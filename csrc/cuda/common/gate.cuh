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

// The gate where logits are moderate: gated() of two columns with one reciprocal between them, since 1 / (d0 d1) times d1
// is 1 / d0. Half of its operations are the multiprocessor's slow ones, a third less than in gated().
constexpr float kModerateLogit = 43.0f; // d0 d1 stays below 2^125

__device__ __forceinline__ float one_plus_exp(float minus_z) {
  // exp2 of the rounded product, times what the rounding lost.
  const float t = minus_z * 1.4426950408889634f, e = ptx::ex2_approx(t);
  return 1.0f + fmaf(e, fmaf(t, -0.6931471805599453f, minus_z), e);
}

__device__ __forceinline__ uint32_t gated_moderate(uint32_t attn, float z0, float z1) {
  const float d0 = one_plus_exp(-z0), d1 = one_plus_exp(-z1), r = ptx::rcp_approx(d0 * d1);
  return ptx::pack_bf16x2(__uint_as_float(attn << 16) * (r * d1), __uint_as_float(attn & 0xffff0000) * (r * d0));
}

__device__ __forceinline__ uint32_t gated(uint32_t attn, float z0, float z1) {
  return ptx::pack_bf16x2(gated(__uint_as_float(attn << 16), z0), gated(__uint_as_float(attn & 0xffff0000), z1));
}

// sigmoid(mix * scale + base) + eps, every step rounded.
__device__ __forceinline__ float gate(float mix, float scale, float base, float eps) {
  return __fadd_rn(sigmoid(__fadd_rn(__fmul_rn(mix, scale), base)), eps);
}

} // namespace gm

#endif
