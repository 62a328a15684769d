#ifndef GATEMIX_CPU_KERNELS_H
#define GATEMIX_CPU_KERNELS_H

#include <stdint.h>

#include "gatemix.h"
#include "ops/problem.h"

/* A kernel computes the items [begin, end) of a problem, which points to the operator's gm_*_problem. Items are
 * independent: any split gives the same bits. They are tokens (rows), but for the gate:
 *   gated_mla_gemv  rows of the weight
 *   gated_mla_gemm  tiles of GM_GEMM_TILE_M x GM_GEMM_TILE_N outputs, those of the same columns next to each other */
typedef void gm_cpu_kernel(const void *problem, int64_t begin, int64_t end);

enum { GM_GEMM_TILE_M = 64, GM_GEMM_TILE_N = 128 };
_Static_assert(GM_GATE_WIDTH_MULTIPLE % GM_GEMM_TILE_N == 0, "no tile is cut along n");

#define GM_DECLARE_TWINS(kernel) gm_cpu_kernel kernel##_portable, kernel##_avx2, kernel##_avx512

GM_DECLARE_TWINS(gm_gated_mla_gemv);
GM_DECLARE_TWINS(gm_gated_mla_gemm);
GM_DECLARE_TWINS(gm_rms_norm);
GM_DECLARE_TWINS(gm_hc_collapse);
GM_DECLARE_TWINS(gm_hc_head);
GM_DECLARE_TWINS(gm_mhc_pre_mix);
GM_DECLARE_TWINS(gm_mhc_post_collapse_rms_norm);

#endif
