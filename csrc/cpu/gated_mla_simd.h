/* Vector twin of gated_mla_portable.c; include simd_<isa>.h before. */
#include "cpu/kernels.h"
#include "cpu/simd_math.h"

/* out = bf16(attn * sigmoid(z)) for `count` neighbours of a row */
GM_INLINE void gate(const float *z, const uint16_t *attn, uint16_t *out, int64_t count) {
  const vf a = vf_load_bf16(attn, count);
  vf_store_bf16(out, vf_round_bf16(vf_mul(a, vf_sigmoid(vf_load(z, count)))), count);
}

/* ---- Few rows of x: the weight is read once, as it lies; a register block of R weight rows by M x rows. ---- */

enum { kMaxM = GM_GEMV_MAX_ROWS, kMaxR = 8 };

GM_INLINE void dot_step(const uint16_t *x, const uint16_t *w, int64_t k, int64_t count, vf sum[kMaxM][kMaxR], int M,
                        int R) {
  vf_pair a[kMaxM];
  GM_UNROLL
  for (int m = 0; m < M; ++m) {
    a[m] = vf_load_bf16_pair(x + m * k, count);
  }
  GM_UNROLL
  for (int r = 0; r < R; ++r) {
    const vf_pair b = vf_load_bf16_pair(w + r * k, count);
    GM_UNROLL
    for (int m = 0; m < M; ++m) {
      sum[m][r] = vf_fma(a[m].odd, b.odd, vf_fma(a[m].even, b.even, sum[m][r]));
    }
  }
}

GM_INLINE void gemv(const gm_gated_mla_problem *p, int64_t begin, int64_t end, int M, int R) {
  for (int64_t n = begin; n < end; n += R) {
    const uint16_t *w = p->weight + n * p->k;
    vf sum[kMaxM][kMaxR];
    GM_UNROLL
    for (int m = 0; m < M; ++m) {
      GM_UNROLL
      for (int r = 0; r < R; ++r) {
        sum[m][r] = vf_zero();
      }
    }
    int64_t i = 0;
    for (; i + 2 * kLanes <= p->k; i += 2 * kLanes) {
      dot_step(p->x + i, w + i, p->k, 2 * kLanes, sum, M, R);
    }
    if (i < p->k) {
      dot_step(p->x + i, w + i, p->k, p->k - i, sum, M, R);
    }
    GM_UNROLL
    for (int m = 0; m < M; ++m) {
      float z[kMaxR];
      GM_UNROLL
      for (int r = 0; r < R; ++r) {
        z[r] = vf_sum(sum[m][r]);
      }
      gate(z, p->attn + m * p->n + n, p->out + m * p->n + n, R);
    }
  }
}

void GM_TWIN(gm_gated_mla_gemv)(const void *problem, int64_t begin, int64_t end) {
  const gm_gated_mla_problem *p = problem;
  enum { kWide = kRegisters == 32 }; /* M * R sums, and the operands of one of them, fit the register file */
  switch (p->m) {
  case 1: gemv(p, begin, end, 1, 8); break;
  case 2: gemv(p, begin, end, 2, kWide ? 8 : 4); break;
  case 3: gemv(p, begin, end, 3, kWide ? 4 : 2); break;
  case 4: gemv(p, begin, end, 4, kWide ? 4 : 2); break;
  case 5: gemv(p, begin, end, 5, kWide ? 4 : 1); break;
  case 6: gemv(p, begin, end, 6, kWide ? 2 : 1); break;
  case 7: gemv(p, begin, end, 7, kWide ? 2 : 1); break;
  default: gemv(p, begin, end, 8, kWide ? 2 : 1); break;
  }
}

/* ---- Many rows: a tile packs its part of the weight, widened and transposed, and reuses it for all its rows. ---- */

enum {
  kMicroM = 6,
  kMicroVectors = kRegisters / 8,
  kMicroN = kMicroVectors * kLanes, /* 6 x 4 (AVX-512) or 6 x 2 (AVX2) vectors of sums stay in registers */
  kDepth = 128
};

/* panel[i][j] = w[j][i] for kMicroN rows of the weight, zeros beyond `depth` up to a multiple of kLanes */
GM_INLINE void pack_panel(const uint16_t *w, int64_t k, int64_t depth, float *panel) {
  for (int64_t i = 0; i < depth; i += kLanes) {
    const int64_t count = depth - i < kLanes ? depth - i : kLanes;
    for (int64_t j = 0; j < kMicroN; j += kLanes) {
      vf rows[kLanes];
      GM_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        rows[l] = vf_load_bf16(w + (j + l) * k + i, count);
      }
      vf_transpose(rows);
      GM_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        vf_store(panel + (i + l) * kMicroN + j, rows[l], kLanes);
      }
    }
  }
}

GM_INLINE void widen_rows(const uint16_t *x, int64_t k, int64_t depth, int64_t rows, float *wide) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < depth; i += kLanes) {
      vf_store(wide + m * kDepth + i, vf_load_bf16(x + m * k + i, depth - i < kLanes ? depth - i : kLanes), kLanes);
    }
  }
}

/* sums[m][0..kMicroN) (+)= wide[m] . panel for M rows */
GM_INLINE void micro(const float *wide, const float *panel, int64_t depth, float *sums, int accumulate, int M) {
  vf c[kMicroM][kMicroVectors];
  GM_UNROLL
  for (int m = 0; m < M; ++m) {
    GM_UNROLL
    for (int v = 0; v < kMicroVectors; ++v) {
      c[m][v] = accumulate ? vf_load(sums + m * GM_GEMM_TILE_N + v * kLanes, kLanes) : vf_zero();
    }
  }
  for (int64_t i = 0; i < depth; ++i) {
    vf b[kMicroVectors];
    GM_UNROLL
    for (int v = 0; v < kMicroVectors; ++v) {
      b[v] = vf_load(panel + i * kMicroN + v * kLanes, kLanes);
    }
    GM_UNROLL
    for (int m = 0; m < M; ++m) {
      const vf a = vf_set1(wide[m * kDepth + i]);
      GM_UNROLL
      for (int v = 0; v < kMicroVectors; ++v) {
        c[m][v] = vf_fma(a, b[v], c[m][v]);
      }
    }
  }
  GM_UNROLL
  for (int m = 0; m < M; ++m) {
    GM_UNROLL
    for (int v = 0; v < kMicroVectors; ++v) {
      vf_store(sums + m * GM_GEMM_TILE_N + v * kLanes, c[m][v], kLanes);
    }
  }
}

GM_INLINE void micro_rows(const float *wide, const float *panel, int64_t depth, float *sums, int accumulate,
                          int64_t rows) {
  switch (rows) {
  case 1: micro(wide, panel, depth, sums, accumulate, 1); break;
  case 2: micro(wide, panel, depth, sums, accumulate, 2); break;
  case 3: micro(wide, panel, depth, sums, accumulate, 3); break;
  case 4: micro(wide, panel, depth, sums, accumulate, 4); break;
  case 5: micro(wide, panel, depth, sums, accumulate, 5); break;
  default: micro(wide, panel, depth, sums, accumulate, kMicroM); break;
  }
}

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

static void tile(const gm_gated_mla_problem *p, int64_t m0, int64_t n0) {
  _Alignas(64) float sums[GM_GEMM_TILE_M * GM_GEMM_TILE_N];
  _Alignas(64) float panels[kDepth * GM_GEMM_TILE_N];
  _Alignas(64) float wide[kMicroM * kDepth];
  const int64_t m_end = min(m0 + GM_GEMM_TILE_M, p->m);
  for (int64_t k0 = 0; k0 < p->k; k0 += kDepth) {
    const int64_t depth = min(p->k - k0, kDepth);
    for (int64_t n = 0; n < GM_GEMM_TILE_N; n += kMicroN) {
      pack_panel(p->weight + (n0 + n) * p->k + k0, p->k, depth, panels + n * kDepth);
    }
    for (int64_t m = m0; m < m_end; m += kMicroM) {
      const int64_t rows = min(m_end - m, kMicroM);
      widen_rows(p->x + m * p->k + k0, p->k, depth, rows, wide);
      for (int64_t n = 0; n < GM_GEMM_TILE_N; n += kMicroN) {
        micro_rows(wide, panels + n * kDepth, depth, sums + (m - m0) * GM_GEMM_TILE_N + n, k0 > 0, rows);
      }
    }
  }
  for (int64_t m = m0; m < m_end; ++m) {
    for (int64_t n = 0; n < GM_GEMM_TILE_N; n += kLanes) {
      const int64_t i = m * p->n + n0 + n;
      gate(sums + (m - m0) * GM_GEMM_TILE_N + n, p->attn + i, p->out + i, kLanes);
    }
  }
}

void GM_TWIN(gm_gated_mla_gemm)(const void *problem, int64_t begin, int64_t end) {
  const gm_gated_mla_problem *p = problem;
  const int64_t tiles_m = (p->m + GM_GEMM_TILE_M - 1) / GM_GEMM_TILE_M;
  for (int64_t i = begin; i < end; ++i) {
    tile(p, i % tiles_m * GM_GEMM_TILE_M, i / tiles_m * GM_GEMM_TILE_N);
  }
}
