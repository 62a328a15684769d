/* Two calls on the CPU:
 *   cc examples/c/gate.c $(pkg-config --cflags --libs gatemix) -o gate && ./gate */
#include <gatemix.h>
#include <stdio.h>
#include <stdlib.h>

static void must(gm_status status) {
  if (status == GM_OK) {
    printf("%s\n", gm_last_kernel());
    return;
  }
  fprintf(stderr, "%s: %s\n", gm_status_string(status), gm_last_error());
  exit(1);
}

int main(void) {
  const gm_exec exec = {.struct_size = sizeof exec, .backend = GM_BACKEND_CPU};

  /* The gate of an attention layer, written over attn: 2 tokens, hidden size 3, width 256. */
  static uint16_t x[2 * 3], weight[256 * 3], attn[2 * 256]; /* bf16 */
  for (int i = 0; i < 2 * 256; ++i) attn[i] = 0x4080;       /* 4.0 */
  const gm_tensor tx = {x, GM_BF16, 2, {2, 3}, {3, 1}}, tw = {weight, GM_BF16, 2, {256, 3}, {3, 1}},
                  ta = {attn, GM_BF16, 2, {2, 256}, {256, 1}};
  must(gm_gated_mla(&exec, &tx, &tw, &ta, &ta));
  printf("4 * sigmoid(0) = %s\n", attn[0] == 0x4000 ? "2" : "wrong");

  /* A delayed mHC seam, streams updated in place: 2 tokens, 4 streams, hidden size 3. */
  static uint16_t streams[2 * 4 * 3], norm_weight[3], layer_input[2 * 3];
  static float post[2 * 4], comb[2 * 4 * 4], pre[2 * 4];
  const gm_tensor tr = {streams, GM_BF16, 3, {2, 4, 3}, {12, 3, 1}}, tpost = {post, GM_F32, 2, {2, 4}, {4, 1}},
                  tcomb = {comb, GM_F32, 3, {2, 4, 4}, {16, 4, 1}}, tpre = {pre, GM_F32, 2, {2, 4}, {4, 1}},
                  tn = {norm_weight, GM_BF16, 1, {3}, {1}}, ty = {layer_input, GM_BF16, 2, {2, 3}, {3, 1}};
  must(gm_mhc_post_collapse_rms_norm(&exec, &tr, &tx, &tpost, &tcomb, &tpre, &tn, 1e-6f, &tr, &ty));

  /* A refusal says what was wrong and touches nothing. */
  if (gm_gated_mla(&exec, &tx, &tx, &ta, &ta) != GM_OK) printf("refused: %s\n", gm_last_error());
  return 0;
}
