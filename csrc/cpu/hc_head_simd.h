/* Vector twin of hc_head_portable.c; include simd_<isa>.h before.
 * A few tokens go through the projection together, so that each fn vector is loaded once for all of them; a token's
 * own sums run in the same order however many go along. */
#include "cpu/kernels.h"
#include "cpu/scalar.h"
#include "cpu/simd_math.h"

enum { kTokens = kRegisters / 8, kStreams = 4 }; /* kTokens * kStreams sums stay in registers */

GM_INLINE float rsqrt_mean_square(const uint16_t *x, int64_t count, float eps) {
  vf even = vf_zero(), odd = vf_zero();
  for (int64_t j = 0; j < count; j += 2 * kLanes) {
    const vf_pair v =
        count - j < 2 * kLanes ? vf_load_bf16_pair(x + j, count - j) : vf_load_bf16_pair(x + j, 2 * kLanes);
    even = vf_fma(v.even, v.even, even);
    odd = vf_fma(v.odd, v.odd, odd);
  }
  return gm_rsqrt(vf_sum(vf_add(even, odd)) / (float)count + eps);
}

GM_INLINE void project_vector(const uint16_t *x, const float *fn, int64_t row, const vf *r, int64_t count, int tokens,
                              int streams, int32_t mode, vf sum[kTokens][kStreams]) {
  vf v[kTokens];
  GM_UNROLL
  for (int t = 0; t < tokens; ++t) {
    v[t] = vf_load_bf16(x + t * row, count);
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
GM_INLINE void project_block(const uint16_t *x, const float *fn, int64_t row, const vf *r, int64_t begin, int64_t end,
                             int tokens, int streams, int32_t mode, float mix[kTokens][kStreams]) {
  vf sum[kTokens][kStreams];
  GM_UNROLL
  for (int t = 0; t < tokens; ++t) {
    GM_UNROLL
    for (int i = 0; i < streams; ++i) {
      sum[t][i] = vf_zero();
    }
  }
  int64_t j = begin;
  for (; j + kLanes <= end; j += kLanes) {
    project_vector(x + j, fn + j, row, r, kLanes, tokens, streams, mode, sum);
  }
  if (j < end) {
    project_vector(x + j, fn + j, row, r, end - j, tokens, streams, mode, sum);
  }
  GM_UNROLL
  for (int t = 0; t < tokens; ++t) {
    GM_UNROLL
    for (int i = 0; i < streams; ++i) {
      mix[t][i] += vf_sum(sum[t][i]);
    }
  }
}

/* Long fp32 sums are taken in blocks: a gate that is off by a few ulps shows where the collapse cancels. */
GM_INLINE void project(const uint16_t *x, const float *fn, int64_t row, const float *r, int tokens, int streams,
                       int32_t mode, float mix[kTokens][kStreams]) {
  enum { kBlock = 64 * kLanes };
  vf scale[kTokens];
  for (int t = 0; t < tokens; ++t) {
    scale[t] = vf_set1(r[t]);
    for (int i = 0; i < streams; ++i) {
      mix[t][i] = 0.0f;
    }
  }
  for (int64_t begin = 0; begin < row; begin += kBlock) {
    const int64_t end = row - begin < kBlock ? row : begin + kBlock;
    project_block(x, fn, row, scale, begin, end, tokens, streams, mode, mix);
  }
  for (int t = 0; t < tokens && mode == GM_HEAD_FP32; ++t) {
    for (int i = 0; i < streams; ++i) {
      mix[t][i] *= r[t];
    }
  }
}

GM_INLINE void collapse(const gm_hc_head_problem *p, const uint16_t *x, const float *pre, uint16_t *out) {
  for (int64_t h = 0; h < p->hidden; h += kLanes) {
    const int64_t count = p->hidden - h < kLanes ? p->hidden - h : kLanes;
    vf sum = vf_zero();
    for (int64_t i = 0; i < p->streams; ++i) {
      sum = vf_fma(vf_set1(pre[i]), vf_load_bf16(x + i * p->hidden + h, count), sum);
    }
    vf_store_bf16(out + h, vf_round_bf16(sum), count);
  }
}

GM_INLINE void block(const gm_hc_head_problem *p, int64_t first, int tokens, int streams, int32_t mode) {
  const int64_t row = p->streams * p->hidden;
  const uint16_t *x = p->residual + first * row;
  float r[kTokens], mix[kTokens][kStreams], pre[kTokens][GM_MAX_STREAMS];
  for (int t = 0; t < tokens; ++t) {
    r[t] = rsqrt_mean_square(x + t * row, row, p->rms_eps);
  }
  for (int64_t i0 = 0; i0 < p->streams; i0 += streams) {
    project(x, p->fn + i0 * row, row, r, tokens, streams, mode, mix);
    for (int t = 0; t < tokens; ++t) {
      for (int i = 0; i < streams; ++i) {
        pre[t][i0 + i] = gm_sigmoid(mix[t][i] * p->scale[0] + p->base[i0 + i]) + p->hc_eps;
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    collapse(p, x + t * row, pre[t], p->out + (first + t) * p->hidden);
  }
}

GM_INLINE void all_tokens(const gm_hc_head_problem *p, int64_t begin, int64_t end, int streams, int32_t mode) {
  int64_t t = begin;
  for (; t + kTokens <= end; t += kTokens) {
    block(p, t, kTokens, streams, mode);
  }
  for (; t < end; ++t) {
    block(p, t, 1, streams, mode);
  }
}

GM_INLINE void any_mode(const gm_hc_head_problem *p, int64_t begin, int64_t end, int streams) {
  if (p->mode == GM_HEAD_ROUNDED) {
    all_tokens(p, begin, end, streams, GM_HEAD_ROUNDED);
  } else {
    all_tokens(p, begin, end, streams, GM_HEAD_FP32);
  }
}

void GM_TWIN(gm_hc_head)(const void *problem, int64_t begin, int64_t end) {
  const gm_hc_head_problem *p = problem;
  switch (p->streams) {
  case 1: any_mode(p, begin, end, 1); break;
  case 2: any_mode(p, begin, end, 2); break;
  default: any_mode(p, begin, end, kStreams); break;
  }
}
