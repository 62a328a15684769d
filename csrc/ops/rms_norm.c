#include <inttypes.h>

#include "core/check.h"
#include "ops/backend.h"

/* The distance between rows once the leading dimensions are collapsed into one. */
static gm_status row_stride(const gm_tensor *x, int64_t *result) {
  const int32_t last = x->rank - 1;
  const int64_t width = x->shape[last];
  if (width > 1 && x->stride[last] != 1) {
    return gm_fail(GM_ERROR_STRIDE, "x.stride[%" PRId32 "] = %" PRId64 " must be 1: a row must be contiguous", last,
                   x->stride[last]);
  }
  *result = width;
  int64_t expected = 0; /* 0: no dimension has fixed the row stride yet */
  for (int32_t i = last - 1; i >= 0; --i) {
    if (x->shape[i] <= 1) {
      continue;
    }
    if (expected == 0) {
      *result = x->stride[i];
      expected = *result;
      if (*result < width) {
        return gm_fail(GM_ERROR_STRIDE,
                       "x.stride[%" PRId32 "] = %" PRId64 " must be at least %" PRId64 ", the length of a row", i,
                       *result, width);
      }
    } else if (x->stride[i] != expected) {
      return gm_fail(GM_ERROR_STRIDE,
                     "x.stride[%" PRId32 "] = %" PRId64 " must be %" PRId64
                     ": the leading dimensions must collapse to equally spaced rows",
                     i, x->stride[i], expected);
    }
    expected *= x->shape[i];
  }
  return GM_OK;
}

static gm_status check(const gm_tensor *x, const gm_tensor *weight, float eps, const gm_tensor *out) {
  GM_TRY(gm_check_tensor(x, "x", GM_TAKES_FLOATS, 1, 4));
  GM_TRY(gm_check_tensor(out, "out", GM_TAKES_FLOATS, x->rank, x->rank));
  GM_TRY(gm_check_same_dtype(out, "out", x, "x"));
  GM_TRY(gm_check_dim_at_least(x, "x", x->rank - 1, 1, "the length of a row"));
  for (int i = 0; i < x->rank; ++i) {
    GM_TRY(gm_check_dim(out, "out", i, x->shape[i], "as in x.shape"));
  }
  GM_TRY(gm_check_contiguous(out, "out"));
  GM_TRY(gm_check_in_place(out, "out", x, "x"));
  if (weight != NULL) {
    GM_TRY(gm_check_tensor(weight, "weight", GM_TAKES_FLOATS, 1, 1));
    GM_TRY(gm_check_same_dtype(weight, "weight", x, "x"));
    GM_TRY(gm_check_dim(weight, "weight", 0, x->shape[x->rank - 1], "as the last dimension of x"));
    GM_TRY(gm_check_contiguous(weight, "weight"));
    GM_TRY(gm_check_disjoint(out, "out", weight, "weight"));
  }
  return gm_check_epsilon(eps, "eps");
}

gm_status gm_rms_norm(const gm_exec *exec, const gm_tensor *x, const gm_tensor *weight, float eps,
                      const gm_tensor *out) {
  GM_TRY(gm_check_exec(exec));
  GM_TRY(check(x, weight, eps, out));
  if (gm_tensor_empty(x)) {
    return gm_succeed("none");
  }
  gm_rms_norm_problem problem = {
      .x = x->data,
      .weight = weight == NULL ? NULL : weight->data,
      .out = out->data,
      .rows = 1,
      .width = x->shape[x->rank - 1],
      .eps = eps,
      .dtype = x->dtype,
  };
  GM_TRY(row_stride(x, &problem.row_stride));
  for (int32_t i = 0; i < x->rank - 1; ++i) {
    problem.rows *= x->shape[i];
  }
  return GM_RUN(rms_norm, exec, &problem);
}
