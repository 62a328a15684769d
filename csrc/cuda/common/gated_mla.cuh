#ifndef GATEMIX_CUDA_COMMON_GATED_MLA_CUH
#define GATEMIX_CUDA_COMMON_GATED_MLA_CUH

#include "cuda/common/launch.cuh"

// The forms of gated_mla. gated_mla.cu chooses one.

// Any shape, any alignment, every GPU.
extern "C" gm_status gm_gated_mla_sm80(const gm_exec *exec, const gm_gated_mla_problem *problem);

// k divides by 8; x and weight lie at multiples of 16 bytes, attn and out at multiples of 4. Tiles of 64 or 128 `rows` of
// the weight and 8, 16, 32, 64 or 128 `tokens`; `split` CTAs along k, 1, 2, 4 or 8, each with at least 64 columns.
extern "C" gm_status gm_gated_mla_sm90_decode(const gm_exec *exec, const gm_gated_mla_problem *problem, int rows,
                                              int tokens, int split);

// The same with attn and out anywhere: tiles of 16 rows of W and 8 or 16 `tokens`; `warps`, 4 to 16, and `split` CTAs,
// 1, 2, 4 or 8, along k.
extern "C" gm_status gm_gated_mla_sm90_direct(const gm_exec *exec, const gm_gated_mla_problem *problem, int tokens,
                                              int warps, int split);

// The same and attn and out at multiples of 16 bytes: tiles of 128 rows of x and 128 or 256 `columns`. More than one of
// `segments` of k, at most one per 64: 128 columns, and the sums are added as those of so many CTAs are in the decode form.
// With segments or GM_BATCH_INVARIANT the gate is computed as in decode, too.
extern "C" gm_status gm_gated_mla_sm90_prefill(const gm_exec *exec, const gm_gated_mla_problem *problem, int columns,
                                               int segments);

#endif
