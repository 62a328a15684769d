#include "cpu/kernels.h"
#include "cpu/scalar.h"

/* bf16 products are exact in fp32, so separate multiply and add round as a fused one does. */
static float dot(const uint16_t *a, const uint16_t *b, int64_t k) {
  float lane[kSumLanes] = {0};
  int64_t i = 0;
  for (; i + kSumLanes <= k; i += kSumLanes) {
    for (int l = 0; l < kSumLanes; ++l) {
      lane[l] += gm_from_bf16(a[i + l]) * gm_from_bf16(b[i + l]);
    }
  }
  for (int l = 0; i < k; ++i, ++l) {
    lane[l] += gm_from_bf16(a[i]) * gm_from_bf16(b[i]);
  }
  return gm_sum_lanes(lane);
}

static void block(const gm_gated_mla_problem *p, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end) {
  for (int64_t n = n_begin; n < n_end; ++n) {
    for (int64_t m = m_begin; m < m_end; ++m) {
      const int64_t i = m * p->n + n;
      const float z = dot(p->x + m * p->k, p->weight + n * p->k, p->k);
      p->out[i] = gm_to_bf16(gm_from_bf16(p->attn[i]) * gm_sigmoid(z));
    }
  }
}

void gm_gated_mla_gemv_portable(const void *problem, int64_t begin, int64_t end) {
  const gm_gated_mla_problem *p = problem;
  block(p, 0, p->m, begin, end);
}

void gm_gated_mla_gemm_portable(const void *problem, int64_t begin, int64_t end) {
  const gm_gated_mla_problem *p = problem;
  const int64_t tiles_m = (p->m + GM_GEMM_TILE_M - 1) / GM_GEMM_TILE_M;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t m = tile % tiles_m * GM_GEMM_TILE_M, n = tile / tiles_m * GM_GEMM_TILE_N;
    block(p, m, m + GM_GEMM_TILE_M < p->m ? m + GM_GEMM_TILE_M : p->m, n, n + GM_GEMM_TILE_N);
  }
}
