#include "core/check.h"
#include "ops/backend.h"

static gm_status check(const gm_tensor *residual, const gm_tensor *pre_mix, const gm_tensor *out) {
  GM_TRY(gm_check_tensor(residual, "residual", GM_TAKES_BF16, 3, 3));
  GM_TRY(gm_check_tensor(pre_mix, "pre_mix", GM_TAKES_F32, 2, 2));
  GM_TRY(gm_check_tensor(out, "out", GM_TAKES_BF16, 2, 2));
  GM_TRY(gm_check_streams(residual, "residual", 1));
  GM_TRY(gm_check_dim_at_least(residual, "residual", 2, 1, "the hidden size"));
  GM_TRY(gm_check_dim(pre_mix, "pre_mix", 0, residual->shape[0], "as residual.shape[0]"));
  GM_TRY(gm_check_dim(pre_mix, "pre_mix", 1, residual->shape[1], "as residual.shape[1]"));
  GM_TRY(gm_check_dim(out, "out", 0, residual->shape[0], "as residual.shape[0]"));
  GM_TRY(gm_check_dim(out, "out", 1, residual->shape[2], "as residual.shape[2]"));
  GM_TRY(gm_check_contiguous(out, "out"));
  GM_TRY(gm_check_disjoint(out, "out", residual, "residual"));
  return gm_check_disjoint(out, "out", pre_mix, "pre_mix");
}

gm_status gm_hc_collapse(const gm_exec *exec, const gm_tensor *residual, const gm_tensor *pre_mix,
                         const gm_tensor *out) {
  GM_TRY(gm_check_exec(exec));
  GM_TRY(check(residual, pre_mix, out));
  if (gm_tensor_empty(out)) {
    return gm_succeed("none");
  }
  const gm_hc_collapse_problem problem = {
      .residual = residual->data,
      .pre_mix = pre_mix->data,
      .out = out->data,
      .tokens = residual->shape[0],
      .streams = residual->shape[1],
      .hidden = residual->shape[2],
      .residual_stride = {residual->stride[0], residual->stride[1], residual->stride[2]},
      .pre_mix_stride = {pre_mix->stride[0], pre_mix->stride[1]},
  };
  return GM_RUN(hc_collapse, exec, &problem);
}
