/* Vector twin of hc_head_portable.c; include simd_<isa>.h before.
 * A few tokens go through the projection together, so that each fn vector is loaded once for all of them; a token's
 * own sums run in the same order however many go along. */
#include "cpu/kernels.h"
#include "cpu/simd_math.h"

enum {
  kTokens = kRegisters / 8,
  kStreams = 4,    /* kTokens * kStreams sums stay in registers */
  kBlockTokens = 4 /* they, the next ones and fn fit a second-level cache */
};

GM_INLINE void project_vector(const uint16_t *x, const float *fn, int64_t row, const vf *r, int64_t count, int tokens,
                              int streams, int32_t mode, vf sum[kTokens][kStreams]) {
  vf v[kTokens];
  GM_UNROLL
  for (int t = 0; t < tokens; ++t) {
    v[t] = vf_load_bf16(x + t * row, count);
    if (tokens == kTokens) { /* the next block comes from memory while this one computes */
      __builtin_prefetch((const void *)((uintptr_t)(x + t * row) + (uintptr_t)(kBlockTokens * row) * sizeof *x), 0, 2);
    }
    if (mode == GM_HEAD_ROUNDED) {
      v[t] = vf_round_bf16_clean_nan(vf_mul(v[t], r[t]));
    }
  }
  GM_UNROLL
  for (int i = 0; i < streams; ++i) {
    const vf f = vf_load(fn + i * row, count);
    GM_UNROLL
    for (int t = 0; t < tokens; ++t) {
      sum[t][i] = vf_fma(v[t], f, sum[t][i]);
    }
  }
}

/* mix[t][i] += the part of the projection that lies in [begin, end), for `streams` rows of fn. */
GM_INLINE void project_part(const uint16_t *x, const float *fn, int64_t row, const float *r, int64_t begin, int64_t end,
                            int tokens, int streams, int32_t mode, float mix[][kStreams]) {
  vf sum[kTokens][kStreams], scale[kTokens];
  GM_UNROLL
  for (int t = 0; t < tokens; ++t) {
    scale[t] = vf_set1(r[t]);
    GM_UNROLL
    for (int i = 0; i < streams; ++i) {
      sum[t][i] = vf_zero();
    }
  }
  int64_t j = begin;
  for (; j + kLanes <= end; j += kLanes) {
    project_vector(x + j, fn + j, row, scale, kLanes, tokens, streams, mode, sum);
  }
  if (j < end) {
    project_vector(x + j, fn + j, row, scale, end - j, tokens, streams, mode, sum);
  }
  GM_UNROLL
  for (int t = 0; t < tokens; ++t) {
    GM_UNROLL
    for (int i = 0; i < streams; ++i) {
      mix[t][i] += vf_sum(sum[t][i]);
    }
  }
}

/* Part by part, so that a part of fn stays in the nearest cache for all tokens. The sums of the parts are added up:
 * shorter fp32 sums, and a gate that is off by a few ulps shows where the collapse cancels. */
GM_INLINE void project(const uint16_t *x, const float *fn, int64_t row, const float *r, int64_t tokens, int streams,
                       int32_t mode, float mix[][kStreams]) {
  enum { kPart = 512 };
  memset(mix, 0, (size_t)tokens * sizeof *mix);
  for (int64_t begin = 0; begin < row; begin += kPart) {
    const int64_t end = row - begin < kPart ? row : begin + kPart;
    int64_t t = 0;
    for (; t + kTokens <= tokens; t += kTokens) {
      project_part(x + t * row, fn, row, r + t, begin, end, kTokens, streams, mode, mix + t);
    }
    for (; t < tokens; ++t) {
      project_part(x + t * row, fn, row, r + t, begin, end, 1, streams, mode, mix + t);
    }
  }
  for (int64_t t = 0; t < tokens && mode == GM_HEAD_FP32; ++t) {
    for (int i = 0; i < streams; ++i) {
      mix[t][i] *= r[t];
    }
  }
}

/* Even and odd elements apart, as they load, and together again as they are stored. */
GM_INLINE void collapse_pair(const uint16_t *x, int64_t hidden, const float *pre, uint16_t *out, int64_t count,
                             int streams) {
  vf_pair sum = {vf_zero(), vf_zero()};
  GM_UNROLL
  for (int i = 0; i < streams; ++i) {
    const vf_pair r = vf_load_bf16_pair(x + i * hidden, count);
    sum.even = vf_fma(vf_set1(pre[i]), r.even, sum.even);
    sum.odd = vf_fma(vf_set1(pre[i]), r.odd, sum.odd);
  }
  sum.even = vf_round_bf16_clean_nan(sum.even);
  sum.odd = vf_round_bf16_clean_nan(sum.odd);
  vf_store_bf16_pair(out, sum, count);
}

GM_INLINE void collapse(const uint16_t *x, int64_t hidden, const float *pre, uint16_t *out, int streams) {
  enum { kPair = 2 * kLanes };
  int64_t h = 0;
  for (; h + kPair <= hidden; h += kPair) {
    collapse_pair(x + h, hidden, pre, out + h, kPair, streams);
  }
  if (h < hidden) {
    collapse_pair(x + h, hidden, pre, out + h, hidden - h, streams);
  }
}

/* The payload of a caller's NaN must not reach vf_round_bf16_clean_nan. */
GM_INLINE float clean_nan(float value) { return value != value ? NAN : value; }

GM_INLINE void block(const gm_hc_head_problem *p, int64_t first, int64_t tokens, int streams, int32_t mode) {
  const int64_t row = streams * p->hidden;
  const int group = streams < kStreams ? streams : kStreams;
  const uint16_t *x = p->residual + first * row;
  float r[kBlockTokens], mix[kBlockTokens][kStreams], pre[kBlockTokens][GM_MAX_STREAMS];
  for (int64_t t = 0; t < tokens; ++t) {
    r[t] = gm_rsqrt(vf_sum_of_squares(x + t * row, row, GM_BF16) / (float)row + p->rms_eps);
  }
  for (int i0 = 0; i0 < streams; i0 += group) {
    project(x, p->fn + i0 * row, row, r, tokens, group, mode, mix);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int i = 0; i < group; ++i) {
        pre[t][i0 + i] = clean_nan(gm_sigmoid(mix[t][i] * p->scale[0] + p->base[i0 + i]) + p->hc_eps);
      }
    }
  }
  for (int64_t t = 0; t < tokens; ++t) {
    collapse(x + t * row, p->hidden, pre[t], p->out + (first + t) * p->hidden, streams);
  }
}

GM_INLINE void blocks(const gm_hc_head_problem *p, int64_t begin, int64_t end, int streams, int32_t mode) {
  for (int64_t t = begin; t < end; t += kBlockTokens) {
    block(p, t, end - t < kBlockTokens ? end - t : kBlockTokens, streams, mode);
  }
}

GM_INLINE void any_mode(const gm_hc_head_problem *p, int64_t begin, int64_t end, int streams) {
  if (p->mode == GM_HEAD_ROUNDED) {
    blocks(p, begin, end, streams, GM_HEAD_ROUNDED);
  } else {
    blocks(p, begin, end, streams, GM_HEAD_FP32);
  }
}

void GM_TWIN(gm_hc_head)(const void *problem, int64_t begin, int64_t end) {
  const gm_hc_head_problem *p = problem;
  switch (p->streams) {
  case 1: any_mode(p, begin, end, 1); break;
  case 2: any_mode(p, begin, end, 2); break;
  case 4: any_mode(p, begin, end, 4); break;
  default: any_mode(p, begin, end, 8); break;
  }
}
