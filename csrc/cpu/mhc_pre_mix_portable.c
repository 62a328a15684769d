#include "cpu/kernels.h"
#include "cpu/scalar.h"

void gm_mhc_pre_mix_portable(const void *problem, int64_t begin, int64_t end) {
  const gm_mhc_pre_mix_problem *p = problem;
  for (int64_t t = begin; t < end; ++t) {
    float square_sum = 0.0f;
    for (int64_t s = 0; s < p->slices; ++s) {
      square_sum += p->sqrsum[s * p->sqrsum_stride[0] + t * p->sqrsum_stride[1]];
    }
    const float r = gm_rsqrt(square_sum * p->inv_hidden + p->rms_eps);
    for (int64_t j = 0; j < p->streams; ++j) {
      float mix = 0.0f;
      for (int64_t s = 0; s < p->slices; ++s) {
        mix += p->gemm_out[s * p->gemm_out_stride[0] + t * p->gemm_out_stride[1] + j * p->gemm_out_stride[2]];
      }
      p->out[t * p->streams + j] = gm_sigmoid(mix * r * p->scale[0] + p->base[j]) + p->hc_pre_eps;
    }
  }
}
