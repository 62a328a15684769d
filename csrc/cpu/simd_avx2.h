#ifndef GATEMIX_CPU_SIMD_AVX2_H
#define GATEMIX_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Vectors of kLanes floats: AVX2, FMA, F16C. Twin of simd_avx512.h, which says what `count` means. */

#define GM_TWIN(kernel) kernel##_avx2

typedef __m256 vf;
enum { kLanes = 8, kRegisters = 16 };

static inline vf vf_set1(float value) { return _mm256_set1_ps(value); }
static inline vf vf_zero(void) { return _mm256_setzero_ps(); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }

static inline vf vf_where_negative(vf z, vf a, vf b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(z, _mm256_setzero_ps(), _CMP_LT_OQ));
}

static inline vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }

/* a * 2^n for integers -252 <= n <= 127: in two steps, since 2^n may be subnormal. */
static inline vf vf_scale(vf a, vf n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

static inline float vf_sum(vf a) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

static inline __m256i vf_mask(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_load(const float *p, int64_t count) {
  return count == kLanes ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, vf_mask(count));
}

static inline void vf_store(float *p, vf a, int64_t count) {
  if (count == kLanes) {
    _mm256_storeu_ps(p, a);
  } else {
    _mm256_maskstore_ps(p, vf_mask(count), a);
  }
}

/* AVX2 has no masks for 16-bit elements. */
static inline __m128i vf_load_16(const uint16_t *p, int64_t count) {
  uint16_t buffer[kLanes] = {0};
  if (count == kLanes) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
  }
  memcpy(buffer, p, (size_t)count * sizeof *p);
  return _mm_loadu_si128((const __m128i *)(const void *)buffer);
}

static inline void vf_store_16(uint16_t *p, __m128i a, int64_t count) {
  uint16_t buffer[kLanes];
  if (count == kLanes) {
    _mm_storeu_si128((__m128i *)(void *)p, a);
  } else {
    _mm_storeu_si128((__m128i *)(void *)buffer, a);
    memcpy(p, buffer, (size_t)count * sizeof *p);
  }
}

static inline vf vf_load_bf16(const uint16_t *p, int64_t count) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(vf_load_16(p, count)), 16));
}

typedef struct vf_pair {
  vf even, odd;
} vf_pair;

static inline vf_pair vf_load_bf16_pair(const uint16_t *p, int64_t count) {
  uint16_t buffer[2 * kLanes] = {0};
  const void *source = p;
  if (count != 2 * kLanes) {
    memcpy(buffer, p, (size_t)count * sizeof *p);
    source = buffer;
  }
  const __m256i a = _mm256_loadu_si256((const __m256i *)source);
  const vf_pair pair = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                        _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000)))};
  return pair;
}

static inline vf vf_round_bf16(vf a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  const vf rounded = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
  return _mm256_and_ps(rounded, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}

static inline vf vf_round_bf16_clean_nan(vf a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000)));
}

static inline void vf_store_bf16(uint16_t *p, vf a, int64_t count) {
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(a), 16);
  const __m128i low_half = _mm256_castsi256_si128(high), high_half = _mm256_extracti128_si256(high, 1);
  vf_store_16(p, _mm_packus_epi32(low_half, high_half), count);
}

static inline void vf_store_bf16_pair(uint16_t *p, vf_pair a, int64_t count) {
  const __m256i even = _mm256_srli_epi32(_mm256_castps_si256(a.even), 16);
  const __m256i both = _mm256_or_si256(even, _mm256_castps_si256(a.odd));
  uint16_t buffer[2 * kLanes];
  void *target = count == 2 * kLanes ? p : buffer;
  _mm256_storeu_si256((__m256i *)target, both);
  if (count != 2 * kLanes) {
    memcpy(p, buffer, (size_t)count * sizeof *p);
  }
}

static inline vf vf_load_f16(const uint16_t *p, int64_t count) { return _mm256_cvtph_ps(vf_load_16(p, count)); }

static inline void vf_store_f16(uint16_t *p, vf a, int64_t count) {
  vf_store_16(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), count);
}

static inline void vf_transpose(vf rows[kLanes]) {
  vf t[kLanes];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    rows[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    rows[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    rows[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    rows[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm256_permute2f128_ps(rows[c], rows[c + 4], 0x20);
    t[c + 4] = _mm256_permute2f128_ps(rows[c], rows[c + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = t[i];
  }
}

#endif
