#include "core/check.h"
#include "ops/backend.h"

typedef struct args {
  const gm_tensor *residual, *sublayer_out, *post_mix, *comb_mix, *pre_mix, *norm_weight, *residual_out, *layer_input;
} args;

static gm_status check_tensors(const args *a) {
  GM_TRY(gm_check_tensor(a->residual, "residual", GM_TAKES_BF16, 3, 3));
  GM_TRY(gm_check_tensor(a->sublayer_out, "sublayer_out", GM_TAKES_BF16, 2, 2));
  GM_TRY(gm_check_tensor(a->post_mix, "post_mix", GM_TAKES_F32, 2, 3));
  GM_TRY(gm_check_tensor(a->comb_mix, "comb_mix", GM_TAKES_F32, 3, 3));
  GM_TRY(gm_check_tensor(a->pre_mix, "pre_mix", GM_TAKES_F32, 2, 2));
  GM_TRY(gm_check_tensor(a->norm_weight, "norm_weight", GM_TAKES_BF16, 1, 1));
  GM_TRY(gm_check_tensor(a->residual_out, "residual_out", GM_TAKES_BF16, 3, 3));
  return gm_check_tensor(a->layer_input, "layer_input", GM_TAKES_BF16, 2, 2);
}

static gm_status check_shapes(const args *a) {
  const int64_t tokens = a->residual->shape[0], streams = a->residual->shape[1], hidden = a->residual->shape[2];
  GM_TRY(gm_check_streams(a->residual, "residual", 1));
  GM_TRY(gm_check_dim_at_least(a->residual, "residual", 2, 1, "the hidden size"));
  GM_TRY(gm_check_dim(a->sublayer_out, "sublayer_out", 0, tokens, "as residual.shape[0]"));
  GM_TRY(gm_check_dim(a->sublayer_out, "sublayer_out", 1, hidden, "as residual.shape[2]"));
  GM_TRY(gm_check_dim(a->post_mix, "post_mix", 0, tokens, "as residual.shape[0]"));
  GM_TRY(gm_check_dim(a->post_mix, "post_mix", 1, streams, "as residual.shape[1]"));
  if (a->post_mix->rank == 3) {
    GM_TRY(gm_check_dim(a->post_mix, "post_mix", 2, 1, "one gate a stream"));
  }
  GM_TRY(gm_check_dim(a->comb_mix, "comb_mix", 0, tokens, "as residual.shape[0]"));
  GM_TRY(gm_check_dim(a->comb_mix, "comb_mix", 1, streams, "as residual.shape[1]"));
  GM_TRY(gm_check_dim(a->comb_mix, "comb_mix", 2, streams, "as residual.shape[1]"));
  GM_TRY(gm_check_dim(a->pre_mix, "pre_mix", 0, tokens, "as residual.shape[0]"));
  GM_TRY(gm_check_dim(a->pre_mix, "pre_mix", 1, streams, "as residual.shape[1]"));
  GM_TRY(gm_check_dim(a->norm_weight, "norm_weight", 0, hidden, "as residual.shape[2]"));
  GM_TRY(gm_check_dim(a->residual_out, "residual_out", 0, tokens, "as residual.shape[0]"));
  GM_TRY(gm_check_dim(a->residual_out, "residual_out", 1, streams, "as residual.shape[1]"));
  GM_TRY(gm_check_dim(a->residual_out, "residual_out", 2, hidden, "as residual.shape[2]"));
  GM_TRY(gm_check_dim(a->layer_input, "layer_input", 0, tokens, "as residual.shape[0]"));
  return gm_check_dim(a->layer_input, "layer_input", 1, hidden, "as residual.shape[2]");
}

static gm_status check_memory(const args *a) {
  const gm_tensor *const inputs[] = {a->sublayer_out, a->post_mix, a->comb_mix, a->pre_mix, a->norm_weight};
  const char *const names[] = {"sublayer_out", "post_mix", "comb_mix", "pre_mix", "norm_weight"};
  GM_TRY(gm_check_contiguous(a->residual, "residual"));
  GM_TRY(gm_check_contiguous(a->residual_out, "residual_out"));
  GM_TRY(gm_check_contiguous(a->layer_input, "layer_input"));
  for (int i = 0; i < 5; ++i) {
    GM_TRY(gm_check_contiguous(inputs[i], names[i]));
    GM_TRY(gm_check_disjoint(a->residual_out, "residual_out", inputs[i], names[i]));
    GM_TRY(gm_check_disjoint(a->layer_input, "layer_input", inputs[i], names[i]));
  }
  GM_TRY(gm_check_in_place(a->residual_out, "residual_out", a->residual, "residual"));
  GM_TRY(gm_check_disjoint(a->layer_input, "layer_input", a->residual, "residual"));
  return gm_check_disjoint(a->layer_input, "layer_input", a->residual_out, "residual_out");
}

gm_status gm_mhc_post_collapse_rms_norm(const gm_exec *exec, const gm_tensor *residual, const gm_tensor *sublayer_out,
                                        const gm_tensor *post_mix, const gm_tensor *comb_mix, const gm_tensor *pre_mix,
                                        const gm_tensor *norm_weight, float norm_eps, const gm_tensor *residual_out,
                                        const gm_tensor *layer_input) {
  const args a = {residual, sublayer_out, post_mix, comb_mix, pre_mix, norm_weight, residual_out, layer_input};
  GM_TRY(gm_check_exec(exec));
  GM_TRY(check_tensors(&a));
  GM_TRY(check_shapes(&a));
  GM_TRY(check_memory(&a));
  GM_TRY(gm_check_epsilon(norm_eps, "norm_eps"));
  if (gm_tensor_empty(residual)) {
    return gm_succeed("none");
  }
  const gm_mhc_post_collapse_rms_norm_problem problem = {
      .residual = residual->data,
      .sublayer_out = sublayer_out->data,
      .post_mix = post_mix->data,
      .comb_mix = comb_mix->data,
      .pre_mix = pre_mix->data,
      .norm_weight = norm_weight->data,
      .residual_out = residual_out->data,
      .layer_input = layer_input->data,
      .tokens = residual->shape[0],
      .streams = residual->shape[1],
      .hidden = residual->shape[2],
      .inv_hidden = (float)(1.0 / (double)residual->shape[2]),
      .norm_eps = norm_eps,
  };
  return GM_RUN(mhc_post_collapse_rms_norm, exec, &problem);
}
