#ifndef GATEMIX_CPU_SIMD_MATH_H
#define GATEMIX_CPU_SIMD_MATH_H

/* What is the same for every vector width; include simd_<isa>.h before. */

#define GM_INLINE static inline __attribute__((always_inline))

/* Loops over registers, which must be unrolled for arrays of vectors to stay in them. */
#if defined(__clang__)
#define GM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GM_UNROLL _Pragma("GCC unroll 32")
#endif

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
