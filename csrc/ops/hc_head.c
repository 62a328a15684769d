#include <inttypes.h>

#include "core/check.h"
#include "ops/backend.h"

static gm_status check(const gm_tensor *residual, const gm_tensor *fn, const gm_tensor *scale, const gm_tensor *base,
                       const gm_tensor *out) {
  GM_TRY(gm_check_tensor(residual, "residual", GM_TAKES_BF16, 3, 3));
  GM_TRY(gm_check_tensor(fn, "fn", GM_TAKES_F32, 2, 2));
  GM_TRY(gm_check_tensor(scale, "scale", GM_TAKES_F32, 1, 1));
  GM_TRY(gm_check_tensor(base, "base", GM_TAKES_F32, 1, 1));
  GM_TRY(gm_check_tensor(out, "out", GM_TAKES_BF16, 2, 2));
  const int64_t streams = residual->shape[1], hidden = residual->shape[2];
  GM_TRY(gm_check_streams(residual, "residual", 1));
  GM_TRY(gm_check_dim_at_least(residual, "residual", 2, 1, "the hidden size"));
  if (hidden > INT64_MAX / GM_MAX_STREAMS) { /* only reachable with T == 0, where no other rule bounds it */
    return gm_fail(GM_ERROR_SHAPE, "residual.shape[2] = %" PRId64 " is too large", hidden);
  }
  GM_TRY(gm_check_dim(fn, "fn", 0, streams, "as residual.shape[1]"));
  GM_TRY(gm_check_dim(fn, "fn", 1, streams * hidden, "residual.shape[1] * residual.shape[2]"));
  GM_TRY(gm_check_dim(scale, "scale", 0, 1, "one scale for all streams"));
  GM_TRY(gm_check_dim(base, "base", 0, streams, "as residual.shape[1]"));
  GM_TRY(gm_check_dim(out, "out", 0, residual->shape[0], "as residual.shape[0]"));
  GM_TRY(gm_check_dim(out, "out", 1, hidden, "as residual.shape[2]"));
  GM_TRY(gm_check_contiguous(residual, "residual"));
  GM_TRY(gm_check_contiguous(fn, "fn"));
  GM_TRY(gm_check_contiguous(base, "base"));
  GM_TRY(gm_check_contiguous(out, "out"));
  GM_TRY(gm_check_disjoint(out, "out", residual, "residual"));
  GM_TRY(gm_check_disjoint(out, "out", fn, "fn"));
  GM_TRY(gm_check_disjoint(out, "out", scale, "scale"));
  return gm_check_disjoint(out, "out", base, "base");
}

gm_status gm_hc_head(const gm_exec *exec, const gm_tensor *residual, const gm_tensor *fn, const gm_tensor *scale,
                     const gm_tensor *base, float rms_eps, float hc_eps, int32_t mode, const gm_tensor *out) {
  GM_TRY(gm_check_exec(exec));
  GM_TRY(check(residual, fn, scale, base, out));
  GM_TRY(gm_check_epsilon(rms_eps, "rms_eps"));
  GM_TRY(gm_check_epsilon(hc_eps, "hc_eps"));
  if (mode != GM_HEAD_ROUNDED && mode != GM_HEAD_FP32) {
    return gm_fail(GM_ERROR_INVALID_VALUE, "mode = %" PRId32 " must be GM_HEAD_ROUNDED (0) or GM_HEAD_FP32 (1)", mode);
  }
  if (gm_tensor_empty(out)) {
    return gm_succeed("none");
  }
  const gm_hc_head_problem problem = {
      .residual = residual->data,
      .fn = fn->data,
      .scale = scale->data,
      .base = base->data,
      .out = out->data,
      .tokens = residual->shape[0],
      .streams = residual->shape[1],
      .hidden = residual->shape[2],
      .rms_eps = rms_eps,
      .hc_eps = hc_eps,
      .mode = mode,
  };
  return GM_RUN(hc_head, exec, &problem);
}
