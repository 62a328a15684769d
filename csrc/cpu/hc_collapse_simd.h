/* Vector twin of hc_collapse_portable.c; include simd_<isa>.h before. Needs residual_stride[2] == 1. */
#include "cpu/kernels.h"
#include "cpu/simd_math.h"

GM_INLINE void collapse(const uint16_t *r, int64_t stream_stride, const vf *pre, uint16_t *out, int64_t count, int n) {
  vf sum = vf_zero();
  GM_UNROLL
  for (int i = 0; i < n; ++i) {
    sum = vf_add(sum, vf_mul(pre[i], vf_load_bf16(r + i * stream_stride, count)));
  }
  vf_store_bf16(out, vf_round_bf16(sum), count);
}

GM_INLINE void tokens(const gm_hc_collapse_problem *p, int64_t begin, int64_t end, int n) {
  for (int64_t t = begin; t < end; ++t) {
    const uint16_t *r = p->residual + t * p->residual_stride[0];
    uint16_t *out = p->out + t * p->hidden;
    vf pre[GM_MAX_STREAMS];
    for (int i = 0; i < n; ++i) {
      pre[i] = vf_set1(p->pre_mix[t * p->pre_mix_stride[0] + i * p->pre_mix_stride[1]]);
    }
    int64_t h = 0;
    for (; h + kLanes <= p->hidden; h += kLanes) {
      collapse(r + h, p->residual_stride[1], pre, out + h, kLanes, n);
    }
    if (h < p->hidden) {
      collapse(r + h, p->residual_stride[1], pre, out + h, p->hidden - h, n);
    }
  }
}

void GM_TWIN(gm_hc_collapse)(const void *problem, int64_t begin, int64_t end) {
  const gm_hc_collapse_problem *p = problem;
  switch (p->streams) {
  case 1: tokens(p, begin, end, 1); break;
  case 2: tokens(p, begin, end, 2); break;
  case 4: tokens(p, begin, end, 4); break;
  default: tokens(p, begin, end, 8); break;
  }
}
