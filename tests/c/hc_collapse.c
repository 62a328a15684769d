// out[t,h] = bf16(sum_i pre_mix[t,i] * residual[t,i,h]), to the bit
#include <math.h>
#include <string.h>

#include "harness.h"

// The file is compiled without contraction: each operation rounds.
static uint16_t oracle(const gm_tensor *residual, const gm_tensor *pre_mix, int64_t t, int64_t h) {
  const uint16_t *r = residual->data;
  const float *pre = pre_mix->data;
  float acc = 0;
  for (int64_t i = 0; i < residual->shape[1]; ++i) {
    const float product = pre[t * pre_mix->stride[0] + i * pre_mix->stride[1]] *
                          bf16_value(r[t * residual->stride[0] + i * residual->stride[1] + h * residual->stride[2]]);
    acc = acc + product;
  }
  return bf16(acc);
}

static void check_all(const gm_tensor *residual, const gm_tensor *pre_mix, const uint16_t *out, int line) {
  const int64_t width = residual->shape[2];
  for (int64_t t = 0; t < residual->shape[0]; ++t)
    for (int64_t h = 0; h < width; ++h) {
      const uint16_t want = oracle(residual, pre_mix, t, h), got = out[t * width + h];
      if (!check_at(got == want, __FILE__, line, "n %d, width %d: [%d,%d] is %04x instead of %04x (%s)",
                    (int)residual->shape[1], (int)width, (int)t, (int)h, got, want, gm_last_kernel()))
        return;
    }
}

static void by_hand(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const gm_exec exec = cpu(levels[level]);
    uint16_t *r = halves(6, false), *out = halves(3, false);
    float *pre = floats(2, false);
    for (int i = 0; i < 6; ++i) r[i] = bf16((float)(i + 1));
    pre[0] = 0.5f, pre[1] = 2;
    const gm_tensor residual = BF16(r, 1, 2, 3), pre_mix = F32(pre, 1, 2), result = BF16(out, 1, 3);
    CHECK_OK(gm_hc_collapse(&exec, &residual, &pre_mix, &result));
    CHECK(strncmp(gm_last_kernel(), "hc_collapse/cpu/", 16) == 0);
    CHECK(out[0] == bf16(8.5f) && out[1] == bf16(11) && out[2] == bf16(13.5f));

    pre[0] = pre[1] = 1;
    r[0] = r[3] = 0x8000; // the sum starts at +0, and +0 + -0 = +0
    CHECK_OK(gm_hc_collapse(&exec, &residual, &pre_mix, &result));
    CHECK(out[0] == 0);

    pre[1] = 1 + 0x1p-20f;
    pre[0] = -pre[1];
    r[0] = r[3] = 0x3F81; // equal products cancel; a fused multiply-add would leave the rounding error of one
    CHECK_OK(gm_hc_collapse(&exec, &residual, &pre_mix, &result));
    CHECK(out[0] == 0);
  }
}

static void shapes(void) {
  const int64_t streams[] = {1, 2, 4, 8}, widths[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 250, 256, 1023};
  for (int level = 0; level < LEVELS; ++level)
    for (int odd = 0; odd < 2; ++odd)
      for (size_t s = 0; s < 4; ++s)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; ++w) {
          const gm_exec exec = cpu(levels[level]);
          const int64_t tokens = 3, n = streams[s], width = widths[w];
          uint16_t *r = halves(tokens * n * width, odd), *out = halves(tokens * width, odd);
          float *pre = floats(tokens * n, odd);
          for (int64_t i = 0; i < tokens * n * width; ++i) r[i] = bf16(draw_f32());
          for (int64_t i = 0; i < tokens * n; ++i) pre[i] = draw_f32();
          const gm_tensor residual = BF16(r, tokens, n, width), pre_mix = F32(pre, tokens, n),
                          result = BF16(out, tokens, width);
          CHECK_OK(gm_hc_collapse(&exec, &residual, &pre_mix, &result));
          check_all(&residual, &pre_mix, out, __LINE__);
        }
}

// Transposed, reversed, broadcast and padded views.
static void strides(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const gm_exec exec = cpu(levels[level]);
    const int64_t T = 3, n = 4, H = 33, all = T * n * H;
    uint16_t *r = halves(all, true), *out = halves(T * H, false);
    float *pre = floats(T * n, true);
    for (int64_t i = 0; i < all; ++i) r[i] = bf16(draw_f32());
    for (int64_t i = 0; i < T * n; ++i) pre[i] = draw_f32();
    const gm_tensor result = BF16(out, T, H);
    const struct {
      int64_t start, stride[3];
    } views[] = {
        {0, {1, T, T * n}},                // [H, n, T] memory
        {0, {H, T * H, 1}},                // [n, T, H] memory
        {all - 1, {-n * H, -H, -1}},       // reversed
        {(T - 1) * n * H, {-n * H, H, 1}}, // tokens reversed
        {0, {0, H, 1}},                    // one token for all
        {0, {n * H, 0, 1}},                // one stream for all
        {0, {n * H, H, 0}},                // one column for all
        {5, {0, 0, 0}},                    // one number for all
        {0, {n * H, 1, n}},                // [T, H, n] memory
        {0, {H, 1, 2}},                    // overlapping rows
    };
    const int64_t pre_views[][3] = {{0, n, 1}, {0, 1, T}, {T * n - 1, -n, -1}, {2, 0, 0}, {0, 0, 1}, {1, 2, 0}};
    for (size_t v = 0; v < sizeof views / sizeof *views; ++v)
      for (size_t q = 0; q < sizeof pre_views / sizeof *pre_views; ++q) {
        gm_tensor residual = BF16(r + views[v].start, T, n, H), pre_mix = F32(pre + pre_views[q][0], T, n);
        memcpy(residual.stride, views[v].stride, sizeof views[v].stride);
        memcpy(pre_mix.stride, pre_views[q] + 1, 2 * sizeof(int64_t));
        CHECK_OK(gm_hc_collapse(&exec, &residual, &pre_mix, &result));
        check_all(&residual, &pre_mix, out, __LINE__);
      }
    // Strides of dimensions of size 1 are ignored.
    gm_tensor residual = BF16(r, 1, 1, 1), pre_mix = F32(pre, 1, 1), one = BF16(out, 1, 1);
    for (int d = 0; d < 3; ++d) residual.stride[d] = INT64_MIN + d;
    pre_mix.stride[0] = pre_mix.stride[1] = INT64_MAX;
    one.stride[0] = one.stride[1] = -3;
    CHECK_OK(gm_hc_collapse(&exec, &residual, &pre_mix, &one));
    CHECK(out[0] == bf16(pre[0] * bf16_value(r[0])));
  }
}

static void special_values(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const gm_exec exec = cpu(levels[level]);
    uint16_t *r = halves(2 * 2 * 40, false), *out = halves(2 * 40, false);
    float *pre = floats(4, false);
    for (int i = 0; i < 160; ++i) r[i] = bf16(draw_f32());
    for (int i = 0; i < 4; ++i) pre[i] = 1;
    pre[2] = 0;
    r[3] = 0x7FC0;         // NaN in token 0
    r[80 + 5] = 0x7F80;    // 0 * inf in token 1
    r[4] = 1, r[44] = 0;   // the least subnormal
    r[7] = r[47] = 0x7F7F; // overflow
    const gm_tensor residual = BF16(r, 2, 2, 40), pre_mix = F32(pre, 2, 2), result = BF16(out, 2, 40);
    CHECK_OK(gm_hc_collapse(&exec, &residual, &pre_mix, &result));
    for (int i = 0; i < 80; ++i) CHECK(isnan(bf16_value(out[i])) == (i == 3 || i == 45));
    CHECK(out[4] == 1);
    CHECK(out[7] == 0x7F80);
  }
}

static void empty(void) {
  const gm_exec exec = cpu(0);
  uint16_t *memory = halves(16, false);
  gm_tensor residual = BF16(NULL, 0, 4, 5), pre_mix = F32(NULL, 0, 4), out = BF16(memory, 0, 5);
  for (int d = 0; d < 2; ++d) residual.stride[d] = pre_mix.stride[d] = out.stride[d] = INT64_MIN;
  CHECK_OK(gm_hc_collapse(&exec, &residual, &pre_mix, &out));
  CHECK(strcmp(gm_last_kernel(), "none") == 0);
  CHECK(untouched(memory, 32));
}

void test_hc_collapse(void) {
  run_case("hc_collapse", "by_hand", by_hand);
  run_case("hc_collapse", "shapes", shapes);
  run_case("hc_collapse", "strides", strides);
  run_case("hc_collapse", "special_values", special_values);
  run_case("hc_collapse", "empty", empty);
}
