/* Vector twin of gated_mla_portable.c; include simd_<isa>.h before. */
#include "cpu/kernels.h"
#include "cpu/simd_math.h"

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

/* out = bf16(attn * sigmoid(z)) for `count` neighbours of a row */
GM_INLINE void gate(const float *z, const uint16_t *attn, uint16_t *out, int64_t count) {
  const vf a = vf_load_bf16(attn, count);
  vf_store_bf16(out, vf_round_bf16(vf_mul(a, vf_sigmoid(vf_load(z, count)))), count);
}

/* ---- Few rows of x: the weight is read as it lies, from memory once. ---- */

enum {
  kGroup = kRegisters == 32 ? 5 : 4,      /* rows of x that go through a few rows of the weight together */
  kWeightRows = kRegisters == 32 ? 4 : 2, /* kGroup * kWeightRows sums and their operands fit the registers */
  kMaxWeightRows = 8,
  kBlock = 64 /* rows of x that share a reading of the weight from memory */
};

GM_INLINE void dot_step(const uint16_t *x, const uint16_t *w, int64_t k, int64_t count, vf sum[kGroup][kMaxWeightRows],
                        int M, int R) {
  vf_pair a[kGroup];
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

/* Outputs [m0, m0 + M) x [n, n + R). */
GM_INLINE void dots(const gm_gated_mla_problem *p, int64_t m0, int64_t n, int M, int R) {
  const uint16_t *x = p->x + m0 * p->k, *w = p->weight + n * p->k;
  vf sum[kGroup][kMaxWeightRows];
  GM_UNROLL
  for (int m = 0; m < M; ++m) {
    GM_UNROLL
    for (int r = 0; r < R; ++r) {
      sum[m][r] = vf_zero();
    }
  }
  int64_t i = 0;
  for (; i + 2 * kLanes <= p->k; i += 2 * kLanes) {
    dot_step(x + i, w + i, p->k, 2 * kLanes, sum, M, R);
  }
  if (i < p->k) {
    dot_step(x + i, w + i, p->k, p->k - i, sum, M, R);
  }
  GM_UNROLL
  for (int m = 0; m < M; ++m) {
    float z[kMaxWeightRows];
    GM_UNROLL
    for (int r = 0; r < R; ++r) {
      z[r] = vf_sum(sum[m][r]);
    }
    const int64_t out = (m0 + m) * p->n + n;
    gate(z, p->attn + out, p->out + out, R);
  }
}

/* `total` in parts of about the same size: how many of them each has if none may have more than `most`. */
static int64_t even_part(int64_t total, int64_t most) {
  const int64_t parts = (total + most - 1) / most;
  return (total + parts - 1) / parts;
}

/* Rows [m_begin, m_end) of x, in groups: only the first finds its weight rows in memory, the others in the nearest
 * cache. */
static void grouped_dots(const gm_gated_mla_problem *p, int64_t m_begin, int64_t m_end, int64_t begin, int64_t end) {
  const int64_t size = even_part(m_end - m_begin, kGroup);
  for (int64_t n = begin; n < end; n += kWeightRows) {
    for (int64_t m = m_begin; m < m_end; m += size) {
      switch (min(size, m_end - m)) {
      case 1: dots(p, m, n, 1, kWeightRows); break;
      case 2: dots(p, m, n, 2, kWeightRows); break;
      case 3: dots(p, m, n, 3, kWeightRows); break;
      case 4: dots(p, m, n, 4, kWeightRows); break;
      default: dots(p, m, n, kGroup, kWeightRows); break;
      }
    }
  }
}

void GM_TWIN(gm_gated_mla_gemv)(const void *problem, int64_t begin, int64_t end) {
  const gm_gated_mla_problem *p = problem;
  if (p->m == 1) { /* more weight rows: as many sums are needed to hide the latency of one */
    for (int64_t n = begin; n < end; n += kMaxWeightRows) {
      dots(p, 0, n, 1, kMaxWeightRows);
    }
  } else if (p->m == 2) {
    for (int64_t n = begin; n < end; n += 2 * kWeightRows) {
      dots(p, 0, n, 2, 2 * kWeightRows);
    }
  } else { /* many rows, if one order of summation is asked for, in blocks that stay in a cache */
    const int64_t size = even_part(p->m, kBlock);
    for (int64_t m = 0; m < p->m; m += size) {
      grouped_dots(p, m, min(m + size, p->m), begin, end);
    }
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
        const uint16_t *row = w + (j + l) * k + i;
        /* The next block of the row: hardware prefetchers don't follow so many short runs. */
        __builtin_prefetch((const void *)((uintptr_t)row + kDepth * sizeof *row));
        rows[l] = vf_load_bf16(row, count);
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
