#ifndef GATEMIX_CPU_SIMD_AVX512_H
#define GATEMIX_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Vectors of kLanes floats: AVX-512 F, BW, DQ, VL. Twin of simd_avx2.h.
 * Where a load or store takes `count`, it touches that many elements, 1 to kLanes, and loads zeros for the rest; a
 * constant kLanes makes the mask go away. */

#define GM_TWIN(kernel) kernel##_avx512

typedef __m512 vf;
enum { kLanes = 16, kRegisters = 32 };

static inline vf vf_set1(float value) { return _mm512_set1_ps(value); }
static inline vf vf_zero(void) { return _mm512_setzero_ps(); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_abs(vf a) { return _mm512_abs_ps(a); }

/* a where z < 0, else b; NaN counts as not negative */
static inline vf vf_where_negative(vf z, vf a, vf b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(z, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
}

/* exp(x) = 2^n * exp(f) */
static inline vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_scale(vf a, vf n) { return _mm512_scalef_ps(a, n); }
/* the larger; b if either is NaN */
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }

static inline float vf_sum(vf a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

static inline __mmask16 vf_mask(int64_t count) { return (__mmask16)((1u << count) - 1u); }

static inline vf vf_load(const float *p, int64_t count) {
  return count == kLanes ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(vf_mask(count), p);
}

static inline void vf_store(float *p, vf a, int64_t count) {
  if (count == kLanes) {
    _mm512_storeu_ps(p, a);
  } else {
    _mm512_mask_storeu_ps(p, vf_mask(count), a);
  }
}

static inline __m256i vf_load_16(const uint16_t *p, int64_t count) {
  return count == kLanes ? _mm256_loadu_si256((const __m256i *)(const void *)p)
                         : _mm256_maskz_loadu_epi16(vf_mask(count), p);
}

static inline void vf_store_16(uint16_t *p, __m256i a, int64_t count) {
  if (count == kLanes) {
    _mm256_storeu_si256((__m256i *)(void *)p, a);
  } else {
    _mm256_mask_storeu_epi16(p, vf_mask(count), a);
  }
}

static inline vf vf_load_bf16(const uint16_t *p, int64_t count) {
  /* one permutation, word i to word 2 i + 1, instead of a widening and a shift */
  const __m512i upper = _mm512_set_epi32(0xf0000, 0xe0000, 0xd0000, 0xc0000, 0xb0000, 0xa0000, 0x90000, 0x80000,
                                         0x70000, 0x60000, 0x50000, 0x40000, 0x30000, 0x20000, 0x10000, 0);
  const __m512i words = _mm512_castsi256_si512(vf_load_16(p, count));
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, upper, words));
}

/* 2 * kLanes bf16 values as their even and odd elements: cheaper to widen than neighbours. */
typedef struct vf_pair {
  vf even, odd;
} vf_pair;

static inline vf_pair vf_load_bf16_pair(const uint16_t *p, int64_t count) {
  const __m512i a = count == 2 * kLanes ? _mm512_loadu_si512(p)
                                        : _mm512_maskz_loadu_epi16((__mmask32)((UINT64_C(1) << count) - 1), p);
  const vf_pair pair = {_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                        _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000)))};
  return pair;
}

/* The bf16 value next to each lane, to nearest even, as a float. NaN stays NaN. Not vcvtneps2bf16, which flushes
 * subnormals. */
static inline vf vf_round_bf16(vf a) {
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i rounded = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), up, quiet);
  return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000)));
}

/* vf_round_bf16 where the low half of every NaN is zero, as in NaNs that come from bf16 values or from the hardware:
 * rounding can't carry those into another number. */
static inline vf vf_round_bf16_clean_nan(vf a) {
  const __m512i bits = _mm512_castps_si512(a);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i even_up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __m512i up = _mm512_mask_add_epi32(even_up, odd, bits, _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000)));
}

/* a holds bf16 values */
static inline void vf_store_bf16(uint16_t *p, vf a, int64_t count) {
  vf_store_16(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16)), count);
}

/* a holds bf16 values */
static inline void vf_store_bf16_pair(uint16_t *p, vf_pair a, int64_t count) {
  const __m512i even = _mm512_srli_epi32(_mm512_castps_si512(a.even), 16);
  const __m512i both = _mm512_or_si512(even, _mm512_castps_si512(a.odd));
  if (count == 2 * kLanes) {
    _mm512_storeu_si512(p, both);
  } else {
    _mm512_mask_storeu_epi16(p, (__mmask32)((UINT64_C(1) << count) - 1), both);
  }
}

static inline vf vf_load_f16(const uint16_t *p, int64_t count) { return _mm512_cvtph_ps(vf_load_16(p, count)); }

static inline void vf_store_f16(uint16_t *p, vf a, int64_t count) {
  vf_store_16(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), count);
}

/* rows[i][j] <-> rows[j][i] */
static inline void vf_transpose(vf rows[kLanes]) {
  vf t[kLanes];
  for (int i = 0; i < 16; i += 2) { /* pairs of rows: 2 x 2 */
    t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) { /* 4 x 4, columns 4q + c of group q in each 128-bit lane */
    rows[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    rows[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    rows[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    rows[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
  }
  for (int c = 0; c < 4; ++c) { /* 128-bit lanes across groups */
    t[c] = _mm512_shuffle_f32x4(rows[c], rows[c + 4], 0x88);
    t[c + 4] = _mm512_shuffle_f32x4(rows[c + 8], rows[c + 12], 0x88);
    t[c + 8] = _mm512_shuffle_f32x4(rows[c], rows[c + 4], 0xdd);
    t[c + 12] = _mm512_shuffle_f32x4(rows[c + 8], rows[c + 12], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm512_shuffle_f32x4(t[c], t[c + 4], 0x88);
    rows[c + 8] = _mm512_shuffle_f32x4(t[c], t[c + 4], 0xdd);
    rows[c + 4] = _mm512_shuffle_f32x4(t[c + 8], t[c + 12], 0x88);
    rows[c + 12] = _mm512_shuffle_f32x4(t[c + 8], t[c + 12], 0xdd);
  }
}

#endif
