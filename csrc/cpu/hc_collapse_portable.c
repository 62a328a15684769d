#include "cpu/kernels.h"
#include "cpu/scalar.h"

void gm_hc_collapse_portable(const void *problem, int64_t begin, int64_t end) {
  const gm_hc_collapse_problem *p = problem;
  for (int64_t t = begin; t < end; ++t) {
    const uint16_t *r = p->residual + t * p->residual_stride[0];
    const float *pre = p->pre_mix + t * p->pre_mix_stride[0];
    for (int64_t h = 0; h < p->hidden; ++h) {
      float sum = 0.0f;
      for (int64_t i = 0; i < p->streams; ++i) {
        sum += pre[i * p->pre_mix_stride[1]] * gm_from_bf16(r[i * p->residual_stride[1] + h * p->residual_stride[2]]);
      }
      p->out[t * p->hidden + h] = gm_to_bf16(sum);
    }
  }
}
