/* Vector twin of mhc_pre_mix_portable.c; include simd_<isa>.h before. A block is kLanes tokens, whose gates are then
 * n vectors in the order of the output. */
#include "cpu/kernels.h"
#include "cpu/simd_math.h"

GM_INLINE void square_sums(const gm_mhc_pre_mix_problem *p, int64_t t, int64_t count, float *sums) {
  for (int64_t s = 0; s < p->slices; ++s) {
    const float *slice = p->sqrsum + s * p->sqrsum_stride[0] + t * p->sqrsum_stride[1];
    for (int64_t l = 0; l < count; ++l) {
      sums[l] += slice[l * p->sqrsum_stride[1]];
    }
  }
}

/* mix[l * n + j], j contiguous in memory when `unit` */
GM_INLINE void mixes(const gm_mhc_pre_mix_problem *p, int64_t t, int64_t count, int n, int unit, float *mix) {
  const int64_t stride = unit ? 1 : p->gemm_out_stride[2];
  for (int64_t s = 0; s < p->slices; ++s) {
    const float *slice = p->gemm_out + s * p->gemm_out_stride[0] + t * p->gemm_out_stride[1];
    for (int64_t l = 0; l < count; ++l) {
      GM_UNROLL
      for (int j = 0; j < n; ++j) {
        mix[l * n + j] += slice[l * p->gemm_out_stride[1] + j * stride];
      }
    }
  }
}

GM_INLINE void block(const gm_mhc_pre_mix_problem *p, int64_t t, int64_t count, int n) {
  float sums[kLanes] = {0}, base[kLanes], mix[kLanes * GM_MAX_STREAMS] = {0}, r[kLanes * GM_MAX_STREAMS];
  square_sums(p, t, count, sums);
  for (int l = 0; l < kLanes; ++l) {
    const float token_r = gm_rsqrt(sums[l] * p->inv_hidden + p->rms_eps);
    for (int j = 0; j < n; ++j) {
      r[l * n + j] = token_r;
    }
  }
  for (int i = 0; i < kLanes; ++i) {
    base[i] = p->base[i % n];
  }
  if (p->gemm_out_stride[2] == 1) {
    mixes(p, t, count, n, 1, mix);
  } else {
    mixes(p, t, count, n, 0, mix);
  }
  for (int64_t i = 0; i < count * n; i += kLanes) {
    const vf scaled = vf_mul(vf_mul(vf_load(mix + i, kLanes), vf_load(r + i, kLanes)), vf_set1(p->scale[0]));
    const vf gate = vf_sigmoid(vf_add(scaled, vf_load(base, kLanes)));
    const int64_t left = count * n - i;
    vf_store(p->out + t * n + i, vf_add(gate, vf_set1(p->hc_pre_eps)), left < kLanes ? left : kLanes);
  }
}

GM_INLINE void blocks(const gm_mhc_pre_mix_problem *p, int64_t begin, int64_t end, int n) {
  for (int64_t t = begin; t < end; t += kLanes) {
    block(p, t, end - t < kLanes ? end - t : kLanes, n);
  }
}

void GM_TWIN(gm_mhc_pre_mix)(const void *problem, int64_t begin, int64_t end) {
  const gm_mhc_pre_mix_problem *p = problem;
  switch (p->streams) {
  case 1: blocks(p, begin, end, 1); break;
  case 2: blocks(p, begin, end, 2); break;
  case 4: blocks(p, begin, end, 4); break;
  default: blocks(p, begin, end, 8); break;
  }
}
