#include "cpu/kernels.h"
#include "cpu/scalar.h"

/* The new streams of one element, rounded; returns v, their collapse, rounded. */
static float post_collapse(const gm_mhc_post_collapse_rms_norm_problem *p, int64_t t, int64_t h) {
  const int64_t n = p->streams, H = p->hidden;
  const float *post = p->post_mix + t * n, *comb = p->comb_mix + t * n * n, *pre = p->pre_mix + t * n;
  const float x = gm_from_bf16(p->sublayer_out[t * H + h]);
  float r[GM_MAX_STREAMS];
  for (int64_t j = 0; j < n; ++j) { /* all reads before the first write: residual_out may be residual */
    r[j] = gm_from_bf16(p->residual[(t * n + j) * H + h]);
  }
  float v = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    float sum = fmaf(post[i], x, comb[i] * r[0]);
    for (int64_t j = 1; j < n; ++j) {
      sum = fmaf(comb[j * n + i], r[j], sum);
    }
    const uint16_t rounded = gm_to_bf16(sum);
    p->residual_out[(t * n + i) * H + h] = rounded;
    v = i == 0 ? pre[0] * gm_from_bf16(rounded) : fmaf(pre[i], gm_from_bf16(rounded), v);
  }
  return gm_from_bf16(gm_to_bf16(v));
}

void gm_mhc_post_collapse_rms_norm_portable(const void *problem, int64_t begin, int64_t end) {
  const gm_mhc_post_collapse_rms_norm_problem *p = problem;
  for (int64_t t = begin; t < end; ++t) {
    uint16_t *y = p->layer_input + t * p->hidden;
    float lane[kSumLanes] = {0};
    for (int64_t h = 0; h < p->hidden; ++h) {
      const float v = post_collapse(p, t, h);
      y[h] = gm_to_bf16(v); /* exact: v is a bf16 value */
      lane[h % kSumLanes] += v * v;
    }
    const float r = gm_rsqrt(gm_sum_lanes(lane) * p->inv_hidden + p->norm_eps);
    for (int64_t h = 0; h < p->hidden; ++h) {
      y[h] = gm_to_bf16(gm_from_bf16(y[h]) * r * gm_from_bf16(p->norm_weight[h]));
    }
  }
}
