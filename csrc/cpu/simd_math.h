#ifndef GATEMIX_CPU_SIMD_MATH_H
#define GATEMIX_CPU_SIMD_MATH_H

/* What is the same for every vector width; include simd_<isa>.h before. */

#include "cpu/scalar.h"

#define GM_INLINE static inline __attribute__((always_inline))

/* Loops over registers, which must be unrolled for arrays of vectors to stay in them. */
#if defined(__clang__)
#define GM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GM_UNROLL _Pragma("GCC unroll 32")
#endif

GM_INLINE vf vf_load_as(const void *base, int64_t i, int64_t count, int32_t dtype) {
  switch (dtype) {
  case GM_BF16: return vf_load_bf16((const uint16_t *)base + i, count);
  case GM_F16: return vf_load_f16((const uint16_t *)base + i, count);
  default: return vf_load((const float *)base + i, count);
  }
}

/* Sum of x^2, lanes and blocks as in gm_sum_of_squares. */
GM_INLINE float vf_sum_of_squares(const void *x, int64_t count, int32_t dtype) {
  enum { kChains = kSumLanes / kLanes };
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kSumBlock) {
    const int64_t end = count - begin < kSumBlock ? count : begin + kSumBlock;
    vf sum[kChains];
    float lane[kSumLanes];
    GM_UNROLL
    for (int c = 0; c < kChains; ++c) {
      sum[c] = vf_zero();
    }
    int64_t j = begin;
    for (; j + kSumLanes <= end; j += kSumLanes) {
      GM_UNROLL
      for (int c = 0; c < kChains; ++c) {
        const vf v = vf_load_as(x, j + c * kLanes, kLanes, dtype);
        sum[c] = vf_fma(v, v, sum[c]);
      }
    }
    GM_UNROLL
    for (int c = 0; c < kChains; ++c) {
      vf_store(lane + c * kLanes, sum[c], kLanes);
    }
    for (float *next = lane; j < end; j += kLanes, next += kLanes) {
      const vf v = vf_load_as(x, j, end - j < kLanes ? end - j : kLanes, dtype);
      vf_store(next, vf_fma(v, v, vf_load(next, kLanes)), kLanes);
    }
    total += (double)gm_sum_lanes(lane);
  }
  return (float)total;
}

/* exp for x <= 0 or NaN, to 1 ulp; below -104 the result is 0.
 * Cody-Waite reduction to |f| <= ln(2)/2, then a Taylor polynomial whose first term left out, f^8/8!, is below 2^-27. */
static inline vf vf_exp_nonpositive(vf x) {
  const vf clamped = vf_max(vf_set1(-104.0f), x); /* keeps NaN: see vf_max */
  const vf n = vf_round(vf_mul(clamped, vf_set1(0x1.715476p+0f)));
  vf f = vf_fma(n, vf_set1(-0x1.62e4p-1f), clamped); /* ln(2) in two parts; n times the first is exact */
  f = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), f);
  vf p = vf_set1(1.0f / 5040.0f);
  p = vf_fma(p, f, vf_set1(1.0f / 720.0f));
  p = vf_fma(p, f, vf_set1(1.0f / 120.0f));
  p = vf_fma(p, f, vf_set1(1.0f / 24.0f));
  p = vf_fma(p, f, vf_set1(1.0f / 6.0f));
  p = vf_fma(p, f, vf_set1(0.5f));
  p = vf_fma(p, f, vf_set1(1.0f));
  p = vf_fma(p, f, vf_set1(1.0f));
  return vf_scale(p, n);
}

/* See gm_sigmoid. */
static inline vf vf_sigmoid(vf z) {
  const vf one = vf_set1(1.0f);
  const vf abs_z = vf_abs(z);
  const vf e = vf_exp_nonpositive(vf_mul(abs_z, vf_set1(-1.0f)));
  return vf_div(vf_where_negative(z, e, one), vf_add(one, e));
}

#endif
