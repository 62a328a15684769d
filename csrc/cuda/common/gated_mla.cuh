#ifndef GATEMIX_CUDA_COMMON_GATED_MLA_CUH
#define GATEMIX_CUDA_COMMON_GATED_MLA_CUH

#include "cuda/common/launch.cuh"

// The forms of gated_mla. gated_mla.cu chooses one.

// Any shape, any alignment, every GPU.
extern "C" gm_status gm_gated_mla_sm80(const gm_exec *exec, const gm_gated_mla_problem *problem);

// k divides by 8; x and weight lie at multiples of 16 bytes, attn and out at multiples of 4. Tiles of 64 or 128 `rows` of
// the weight and 8, 16, 32, 64 or 128 `tokens`; `split` CTAs along k, at most 8 and at least one per 64 of k.
extern "C" gm_status gm_gated_mla_sm90_decode(const gm_exec *exec, const gm_gated_mla_problem *problem, int rows,
                                              int tokens, int split, int share);

// The same and attn and out at multiples of 16 bytes: tiles of 128 rows of x and 128 or 256 `columns`.
extern "C" gm_status gm_gated_mla_sm90_prefill(const gm_exec *exec, const gm_gated_mla_problem *problem, int columns);

#endif
