#ifndef GATEMIX_CPU_SCALAR_H
#define GATEMIX_CPU_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "gatemix.h"

/* Results are defined to the bit. */
#if defined(__FAST_MATH__)
#error "gatemix must not be compiled with -ffast-math"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "gatemix needs float arithmetic in float"
#endif
_Static_assert(sizeof(void *) == 8, "gatemix needs a 64-bit target");

/* One element at a time: the arithmetic of the portable kernels. */

static inline uint32_t gm_float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float gm_bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float gm_from_bf16(uint16_t value) { return gm_bits_float((uint32_t)value << 16); }

/* Round to nearest even; NaN stays NaN (quiet). */
static inline uint16_t gm_to_bf16(float value) {
  const uint32_t bits = gm_float_bits(value);
  if (value != value) {
    return (uint16_t)(bits >> 16 | 0x40);
  }
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float gm_from_f16(uint16_t value) {
  const uint32_t sign = (uint32_t)(value & 0x8000) << 16, magnitude = value & 0x7fff;
  if (magnitude >= 0x7c00) { /* inf, NaN */
    return gm_bits_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  }
  if (magnitude < 0x400) { /* zero, subnormal: magnitude * 2^-24 is exact */
    return gm_bits_float(sign | gm_float_bits((float)magnitude * 0x1p-24f));
  }
  return gm_bits_float(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

/* Round to nearest even; NaN stays NaN (quiet). */
static inline uint16_t gm_to_f16(float value) {
  const uint32_t bits = gm_float_bits(value), magnitude = bits & 0x7fffffff;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (magnitude > 0x7f800000) {
    return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  }
  if (magnitude >= 0x477ff000) { /* rounds to 65536 or more */
    return (uint16_t)(sign | 0x7c00);
  }
  if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 leaves the f16 subnormal, rounded, in the low bits */
    return (uint16_t)(sign | (gm_float_bits(gm_bits_float(magnitude) + 0.5f) - 0x3f000000));
  }
  return (uint16_t)(sign | ((magnitude - ((127u - 15u) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

/* 1 / sqrt(v) in double, then rounded to fp32: an ulp of it moves every element of a row. */
static inline float gm_rsqrt(float v) { return (float)(1.0 / sqrt((double)v)); }

/* 1 / (1 + exp(-z)) with small relative error for every z: exp never sees a positive argument, so it can't overflow,
 * and a very negative z gives exp(z) itself. NaN in, NaN out. */
static inline float gm_sigmoid(float z) {
  const float e = expf(-fabsf(z));
  return (z < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* Long sums run in lanes, element j in lane j mod kSumLanes, that are added up as a tree: more exact than one chain, and
 * compilers turn lanes into vectors without being allowed to reorder. */
enum { kSumLanes = 64 };

static inline float gm_sum_lanes(float lane[kSumLanes]) {
  for (int width = kSumLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) {
      lane[l] += lane[l + width];
    }
  }
  return lane[0];
}

/* Rows are summed in blocks of this length, so that the error does not grow with the row. */
enum { kSumBlock = 8192 };

static inline float gm_load(const void *base, int64_t i, int32_t dtype) {
  switch (dtype) {
  case GM_BF16: return gm_from_bf16(((const uint16_t *)base)[i]);
  case GM_F16: return gm_from_f16(((const uint16_t *)base)[i]);
  default: return ((const float *)base)[i];
  }
}

/* Sum of x^2. The same bits as vf_sum_of_squares for bf16 and f16, whose squares are exact in fp32. */
static inline float gm_sum_of_squares(const void *x, int64_t count, int32_t dtype) {
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kSumBlock) {
    const int64_t length = count - begin < kSumBlock ? count - begin : kSumBlock;
    float lane[kSumLanes] = {0};
    for (int64_t j = 0; j < length; ++j) {
      const float v = gm_load(x, begin + j, dtype);
      lane[j % kSumLanes] += v * v;
    }
    total += (double)gm_sum_lanes(lane);
  }
  return (float)total;
}

#endif
