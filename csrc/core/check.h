#ifndef GATEMIX_CORE_CHECK_H
#define GATEMIX_CORE_CHECK_H

#include <stdbool.h>

#include "core/status.h"

/* Argument checks. Each gives GM_OK, or a status with a sentence: argument, value, rule.
 * gm_check_tensor comes first for a tensor; the others take it as passed. */

enum {
  GM_TAKES_BF16 = 1 << GM_BF16,
  GM_TAKES_F32 = 1 << GM_F32,
  GM_TAKES_FLOATS = 1 << GM_BF16 | 1 << GM_F16 | 1 << GM_F32
};

/* A versioned struct: struct_size, its first field, covers the `required` bytes, and what lies beyond the `known` ones
 * is zero. */
gm_status gm_check_struct_size(const void *structure, const char *name, size_t required, size_t known);

/* exec is complete and its backend can run. */
gm_status gm_check_exec(const gm_exec *exec);

/* Descriptor present, element type one of `dtypes` (GM_TAKES_*), rank in [min_rank, max_rank], shape legal, data
 * present and aligned. */
gm_status gm_check_tensor(const gm_tensor *tensor, const char *name, int dtypes, int32_t min_rank, int32_t max_rank);

/* Same element type as another tensor. */
gm_status gm_check_same_dtype(const gm_tensor *tensor, const char *name, const gm_tensor *other,
                              const char *other_name);

/* shape[axis] == expected; `why` names where the expectation comes from. */
gm_status gm_check_dim(const gm_tensor *tensor, const char *name, int axis, int64_t expected, const char *why);

/* shape[axis] >= minimum. */
gm_status gm_check_dim_at_least(const gm_tensor *tensor, const char *name, int axis, int64_t minimum, const char *why);

/* shape[axis] is a number of residual streams that the kernels know: 1, 2, 4 or 8. */
gm_status gm_check_streams(const gm_tensor *tensor, const char *name, int axis);

gm_status gm_check_contiguous(const gm_tensor *tensor, const char *name);

/* The memory ranges of an output and another argument do not meet. */
gm_status gm_check_disjoint(const gm_tensor *out, const char *out_name, const gm_tensor *other, const char *other_name);

/* out is exactly `other` (same base and layout), or disjoint from it. */
gm_status gm_check_in_place(const gm_tensor *out, const char *out_name, const gm_tensor *other, const char *other_name);

/* A finite float >= 0. */
gm_status gm_check_epsilon(float value, const char *name);

/* "bf16", "f16", "f32" or "unknown" */
const char *gm_dtype_name(int32_t dtype);

/* No element at all. */
bool gm_tensor_empty(const gm_tensor *tensor);

#endif
