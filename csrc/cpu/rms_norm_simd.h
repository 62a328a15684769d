/* Vector twin of rms_norm_portable.c; include simd_<isa>.h before. */
#include "cpu/kernels.h"
#include "cpu/simd_math.h"

GM_INLINE void store(void *base, int64_t i, vf value, int64_t count, int32_t dtype) {
  switch (dtype) {
  case GM_BF16: vf_store_bf16((uint16_t *)base + i, vf_round_bf16(value), count); break;
  case GM_F16: vf_store_f16((uint16_t *)base + i, value, count); break;
  default: vf_store((float *)base + i, value, count); break;
  }
}

GM_INLINE void scale_vector(const gm_rms_norm_problem *p, const void *x, void *out, vf r, int64_t i, int64_t count,
                            int32_t dtype) {
  vf y = vf_mul(vf_load_as(x, i, count, dtype), r);
  if (p->weight != NULL) {
    y = vf_mul(y, vf_load_as(p->weight, i, count, dtype));
  }
  store(out, i, y, count, dtype);
}

GM_INLINE void rows(const gm_rms_norm_problem *p, int64_t begin, int64_t end, int32_t dtype) {
  const int64_t size = dtype == GM_F32 ? 4 : 2;
  for (int64_t row = begin; row < end; ++row) {
    const char *x = (const char *)p->x + row * p->row_stride * size;
    char *out = (char *)p->out + row * p->width * size;
    const vf r = vf_set1(gm_rsqrt(vf_sum_of_squares(x, p->width, dtype) / (float)p->width + p->eps));
    int64_t i = 0;
    for (; i + kLanes <= p->width; i += kLanes) {
      scale_vector(p, x, out, r, i, kLanes, dtype);
    }
    if (i < p->width) {
      scale_vector(p, x, out, r, i, p->width - i, dtype);
    }
  }
}

void GM_TWIN(gm_rms_norm)(const void *problem, int64_t begin, int64_t end) {
  const gm_rms_norm_problem *p = problem;
  switch (p->dtype) { /* a constant type for each copy of the loop */
  case GM_BF16: rows(p, begin, end, GM_BF16); break;
  case GM_F16: rows(p, begin, end, GM_F16); break;
  default: rows(p, begin, end, GM_F32); break;
  }
}
