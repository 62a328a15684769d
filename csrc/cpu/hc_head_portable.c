#include "cpu/kernels.h"
#include "cpu/scalar.h"

/* Long fp32 sums are taken in blocks: a gate that is off by a few ulps shows where the collapse cancels. */
static float project(const uint16_t *x, const float *fn, int64_t count, float r, int32_t mode) {
  enum { kBlock = 1024 };
  double sum = 0.0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = begin + kBlock < count ? begin + kBlock : count;
    float lane[kSumLanes] = {0};
    for (int64_t j = begin; j < end; ++j) {
      const float v = gm_from_bf16(x[j]);
      const float normed = mode == GM_HEAD_ROUNDED ? gm_from_bf16(gm_to_bf16(v * r)) : v;
      lane[j % kSumLanes] += normed * fn[j];
    }
    sum += (double)gm_sum_lanes(lane);
  }
  return mode == GM_HEAD_ROUNDED ? (float)sum : (float)sum * r;
}

void gm_hc_head_portable(const void *problem, int64_t begin, int64_t end) {
  const gm_hc_head_problem *p = problem;
  const int64_t row = p->streams * p->hidden;
  for (int64_t t = begin; t < end; ++t) {
    const uint16_t *x = p->residual + t * row;
    const float r = gm_rsqrt(gm_sum_of_squares(x, row, GM_BF16) / (float)row + p->rms_eps);
    float pre[GM_MAX_STREAMS];
    for (int64_t i = 0; i < p->streams; ++i) {
      const float mix = project(x, p->fn + i * row, row, r, p->mode);
      pre[i] = gm_sigmoid(mix * p->scale[0] + p->base[i]) + p->hc_eps;
    }
    for (int64_t h = 0; h < p->hidden; ++h) {
      float sum = 0.0f;
      for (int64_t i = 0; i < p->streams; ++i) {
        sum = fmaf(pre[i], gm_from_bf16(x[i * p->hidden + h]), sum);
      }
      p->out[t * p->hidden + h] = gm_to_bf16(sum);
    }
  }
}
