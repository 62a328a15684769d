#include <inttypes.h>

#include "core/check.h"
#include "ops/backend.h"

static gm_status check(const gm_tensor *x, const gm_tensor *weight, const gm_tensor *attn, const gm_tensor *out) {
  GM_TRY(gm_check_tensor(x, "x", GM_TAKES_BF16, 2, 2));
  GM_TRY(gm_check_tensor(weight, "weight", GM_TAKES_BF16, 2, 2));
  GM_TRY(gm_check_tensor(attn, "attn", GM_TAKES_BF16, 2, 2));
  GM_TRY(gm_check_tensor(out, "out", GM_TAKES_BF16, 2, 2));
  GM_TRY(gm_check_dim_at_least(x, "x", 1, 1, "the length of the dot products"));
  GM_TRY(gm_check_dim(weight, "weight", 1, x->shape[1], "as x.shape[1]"));
  if (weight->shape[0] % GM_GATE_WIDTH_MULTIPLE != 0) {
    return gm_fail(GM_ERROR_SHAPE,
                   "weight.shape[0] = %" PRId64 " must be a multiple of %d, the granule of the gate width",
                   weight->shape[0], GM_GATE_WIDTH_MULTIPLE);
  }
  GM_TRY(gm_check_dim(attn, "attn", 0, x->shape[0], "as x.shape[0]"));
  GM_TRY(gm_check_dim(attn, "attn", 1, weight->shape[0], "as weight.shape[0]"));
  GM_TRY(gm_check_dim(out, "out", 0, attn->shape[0], "as attn.shape[0]"));
  GM_TRY(gm_check_dim(out, "out", 1, attn->shape[1], "as attn.shape[1]"));
  GM_TRY(gm_check_contiguous(x, "x"));
  GM_TRY(gm_check_contiguous(weight, "weight"));
  GM_TRY(gm_check_contiguous(attn, "attn"));
  GM_TRY(gm_check_contiguous(out, "out"));
  GM_TRY(gm_check_disjoint(out, "out", x, "x"));
  GM_TRY(gm_check_disjoint(out, "out", weight, "weight"));
  return gm_check_in_place(out, "out", attn, "attn");
}

gm_status gm_gated_mla(const gm_exec *exec, const gm_tensor *x, const gm_tensor *weight, const gm_tensor *attn,
                       const gm_tensor *out) {
  GM_TRY(gm_check_exec(exec));
  GM_TRY(check(x, weight, attn, out));
  if (gm_tensor_empty(out)) {
    return gm_succeed("none");
  }
  const gm_gated_mla_problem problem = {
      .x = x->data,
      .weight = weight->data,
      .attn = attn->data,
      .out = out->data,
      .m = x->shape[0],
      .n = weight->shape[0],
      .k = x->shape[1],
  };
  return GM_RUN(gated_mla, exec, &problem);
}
