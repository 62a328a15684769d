#include "cpu/kernels.h"
#include "cpu/scalar.h"

static void store(void *base, int64_t i, int32_t dtype, float value) {
  switch (dtype) {
  case GM_BF16: ((uint16_t *)base)[i] = gm_to_bf16(value); break;
  case GM_F16: ((uint16_t *)base)[i] = gm_to_f16(value); break;
  default: ((float *)base)[i] = value; break;
  }
}

void gm_rms_norm_portable(const void *problem, int64_t begin, int64_t end) {
  const gm_rms_norm_problem *p = problem;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t in = row * p->row_stride, out = row * p->width;
    const char *x = (const char *)p->x + in * (p->dtype == GM_F32 ? 4 : 2);
    const float r = gm_rsqrt(gm_sum_of_squares(x, p->width, p->dtype) / (float)p->width + p->eps);
    for (int64_t i = 0; i < p->width; ++i) {
      const float y = gm_load(p->x, in + i, p->dtype) * r;
      store(p->out, out + i, p->dtype, p->weight == NULL ? y : y * gm_load(p->weight, i, p->dtype));
    }
  }
}
