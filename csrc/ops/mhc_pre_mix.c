#include <inttypes.h>

#include "core/check.h"
#include "ops/backend.h"

static gm_status check(const gm_tensor *gemm_out, const gm_tensor *sqrsum, const gm_tensor *scale,
                       const gm_tensor *base, const gm_tensor *out) {
  GM_TRY(gm_check_tensor(gemm_out, "gemm_out", GM_TAKES_F32, 3, 3));
  GM_TRY(gm_check_tensor(sqrsum, "sqrsum", GM_TAKES_F32, 2, 2));
  GM_TRY(gm_check_tensor(scale, "scale", GM_TAKES_F32, 1, 1));
  GM_TRY(gm_check_tensor(base, "base", GM_TAKES_F32, 1, 1));
  GM_TRY(gm_check_tensor(out, "out", GM_TAKES_F32, 2, 2));
  GM_TRY(gm_check_streams(out, "out", 1));
  GM_TRY(gm_check_dim_at_least(gemm_out, "gemm_out", 0, 1, "the number of slices"));
  GM_TRY(gm_check_dim(gemm_out, "gemm_out", 1, out->shape[0], "as out.shape[0]"));
  GM_TRY(gm_check_dim_at_least(gemm_out, "gemm_out", 2, out->shape[1], "as out.shape[1]"));
  GM_TRY(gm_check_dim(sqrsum, "sqrsum", 0, gemm_out->shape[0], "as gemm_out.shape[0]"));
  GM_TRY(gm_check_dim(sqrsum, "sqrsum", 1, out->shape[0], "as out.shape[0]"));
  GM_TRY(gm_check_dim_at_least(scale, "scale", 0, 1, "the first is used"));
  GM_TRY(gm_check_dim_at_least(base, "base", 0, out->shape[1], "as out.shape[1]"));
  GM_TRY(gm_check_contiguous(scale, "scale"));
  GM_TRY(gm_check_contiguous(base, "base"));
  GM_TRY(gm_check_contiguous(out, "out"));
  GM_TRY(gm_check_disjoint(out, "out", gemm_out, "gemm_out"));
  GM_TRY(gm_check_disjoint(out, "out", sqrsum, "sqrsum"));
  GM_TRY(gm_check_disjoint(out, "out", scale, "scale"));
  return gm_check_disjoint(out, "out", base, "base");
}

gm_status gm_mhc_pre_mix(const gm_exec *exec, const gm_tensor *gemm_out, const gm_tensor *sqrsum,
                         const gm_tensor *scale, const gm_tensor *base, int64_t hc_hidden, float rms_eps,
                         float hc_pre_eps, const gm_tensor *out) {
  GM_TRY(gm_check_exec(exec));
  GM_TRY(check(gemm_out, sqrsum, scale, base, out));
  if (hc_hidden < 1) {
    return gm_fail(GM_ERROR_INVALID_VALUE, "hc_hidden = %" PRId64 " must be at least 1", hc_hidden);
  }
  GM_TRY(gm_check_epsilon(rms_eps, "rms_eps"));
  GM_TRY(gm_check_epsilon(hc_pre_eps, "hc_pre_eps"));
  if (gm_tensor_empty(out)) {
    return gm_succeed("none");
  }
  const gm_mhc_pre_mix_problem problem = {
      .gemm_out = gemm_out->data,
      .sqrsum = sqrsum->data,
      .scale = scale->data,
      .base = base->data,
      .out = out->data,
      .slices = gemm_out->shape[0],
      .tokens = out->shape[0],
      .streams = out->shape[1],
      .gemm_out_stride = {gemm_out->stride[0], gemm_out->stride[1], gemm_out->stride[2]},
      .sqrsum_stride = {sqrsum->stride[0], sqrsum->stride[1]},
      .inv_hidden = (float)(1.0 / (double)hc_hidden),
      .rms_eps = rms_eps,
      .hc_pre_eps = hc_pre_eps,
  };
  return GM_RUN(mhc_pre_mix, exec, &problem);
}
