// New residual streams and their collapse to the bit, the RMSNorm of that to a rounding.
#include <math.h>
#include <string.h>

#include "harness.h"

typedef struct {
  int64_t tokens, n, width;
  uint16_t *residual, *x;
  float *post, *comb, *pre;
  uint16_t *norm, *residual_out, *layer_input;
} problem;

static problem make(int64_t tokens, int64_t n, int64_t width, bool odd) {
  problem p = {tokens,
               n,
               width,
               halves(tokens * n * width, odd),
               halves(tokens * width, odd),
               floats(tokens * n, odd),
               floats(tokens * n * n, odd),
               floats(tokens * n, odd),
               halves(width, odd),
               halves(tokens * n * width, odd),
               halves(tokens * width, odd)};
  for (int64_t i = 0; i < tokens * n * width; ++i) p.residual[i] = bf16(draw_bf16());
  for (int64_t i = 0; i < tokens * width; ++i) p.x[i] = bf16(draw_bf16());
  for (int64_t i = 0; i < tokens * n; ++i) p.post[i] = draw_f32(), p.pre[i] = draw_f32();
  for (int64_t i = 0; i < tokens * n * n; ++i) p.comb[i] = draw_f32();
  for (int64_t i = 0; i < width; ++i) p.norm[i] = bf16(draw_bf16());
  return p;
}

static gm_status call(const problem *p, uint32_t flags, float eps) {
  const gm_exec exec = cpu(flags);
  const gm_tensor residual = BF16(p->residual, p->tokens, p->n, p->width), x = BF16(p->x, p->tokens, p->width),
                  post = F32(p->post, p->tokens, p->n), comb = F32(p->comb, p->tokens, p->n, p->n),
                  pre = F32(p->pre, p->tokens, p->n), norm = BF16(p->norm, p->width),
                  residual_out = BF16(p->residual_out, p->tokens, p->n, p->width),
                  layer_input = BF16(p->layer_input, p->tokens, p->width);
  return gm_mhc_post_collapse_rms_norm(&exec, &residual, &x, &post, &comb, &pre, &norm, eps, &residual_out,
                                       &layer_input);
}

// residual: the streams before the call, which may have been in place.
static void check_all(const problem *p, const uint16_t *residual, double eps, int line) {
  const int64_t n = p->n, H = p->width;
  uint16_t *v = halves(H, false);
  for (int64_t t = 0; t < p->tokens; ++t) {
    const float *comb = p->comb + t * n * n, *post = p->post + t * n, *pre = p->pre + t * n;
    double sum = 0;
    for (int64_t h = 0; h < H; ++h) {
      float collapsed = 0;
      for (int64_t i = 0; i < n; ++i) {
        float acc = comb[i] * bf16_value(residual[t * n * H + h]);
        acc = fmaf(post[i], bf16_value(p->x[t * H + h]), acc);
        for (int64_t s = 1; s < n; ++s) acc = fmaf(comb[s * n + i], bf16_value(residual[(t * n + s) * H + h]), acc);
        const uint16_t want = bf16(acc), got = p->residual_out[(t * n + i) * H + h];
        if (!check_at(got == want, __FILE__, line, "n %d, width %d: R'[%d,%d,%d] is %04x instead of %04x (%s)", (int)n,
                      (int)H, (int)t, (int)i, (int)h, got, want, gm_last_kernel()))
          return;
        collapsed = i ? fmaf(pre[i], bf16_value(want), collapsed) : pre[i] * bf16_value(want);
      }
      v[h] = bf16(collapsed);
      sum += (double)bf16_value(v[h]) * (double)bf16_value(v[h]);
    }
    const double rstd = 1 / sqrt(sum / (double)H + eps);
    for (int64_t h = 0; h < H; ++h) {
      const double want = (double)bf16_value(v[h]) * rstd * (double)bf16_value(p->norm[h]);
      const double got = (double)bf16_value(p->layer_input[t * H + h]);
      if (!check_at(within(GM_BF16, got, want, 0.5 + 0x1p-10, 0), __FILE__, line,
                    "n %d, width %d: y[%d,%d] is %.9g instead of %.9g (%s)", (int)n, (int)H, (int)t, (int)h, got, want,
                    gm_last_kernel()))
        return;
    }
  }
}

// comb is [source][target]: a cyclic shift moves stream i - 1 to i.
static void cyclic_shift(void) {
  for (int level = 0; level < LEVELS; ++level) {
    problem p = make(2, 4, 33, false);
    for (int i = 0; i < 2 * 16; ++i) p.comb[i] = (i % 4 == (i / 4 + 1) % 4) ? 1 : 0;
    for (int i = 0; i < 8; ++i) p.post[i] = 0, p.pre[i] = i % 4 == 2;
    for (int i = 0; i < 33; ++i) p.norm[i] = bf16(1);
    for (int i = 0; i < 2 * 4 * 33; ++i) p.residual[i] = bf16((float)(1 + i / 33 % 4)); // stream s is s + 1
    CHECK_OK(call(&p, levels[level], 0));
    CHECK(strncmp(gm_last_kernel(), "mhc_post_collapse_rms_norm/cpu/", 31) == 0);
    for (int i = 0; i < 2 * 4 * 33; ++i) CHECK(p.residual_out[i] == bf16((float)(1 + (i / 33 + 3) % 4)));
    for (int i = 0; i < 2 * 33; ++i) CHECK(p.layer_input[i] == bf16(1)); // 2 * rsqrt(mean(2^2))

    for (int i = 0; i < 8; ++i) p.post[i] = (float)(i % 4);
    for (int i = 0; i < 2 * 33; ++i) p.x[i] = bf16(10);
    CHECK_OK(call(&p, levels[level], 0));
    for (int i = 0; i < 2 * 4 * 33; ++i)
      CHECK(p.residual_out[i] == bf16((float)(1 + (i / 33 + 3) % 4 + 10 * (i / 33 % 4))));
    CHECK_OK(call(&p, levels[level], 3 * 22 * 22)); // v = 22: rsqrt(4 * 22^2), so that y = 1/2
    for (int i = 0; i < 2 * 33; ++i) CHECK(p.layer_input[i] == bf16(0.5f));
  }
}

static void shapes(void) {
  const int64_t streams[] = {1, 2, 4, 8}, widths[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65, 250, 256, 1030};
  for (int level = 0; level < LEVELS; ++level)
    for (int odd = 0; odd < 2; ++odd)
      for (size_t s = 0; s < 4; ++s)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; ++w) {
          const int64_t n = streams[s], H = widths[w];
          problem p = make(3, n, H, odd);
          CHECK_OK(call(&p, levels[level], 1e-5f));
          check_all(&p, p.residual, 1e-5, __LINE__);

          // A token does not depend on the others.
          const problem one = {1,
                               n,
                               H,
                               p.residual + n * H,
                               p.x + H,
                               p.post + n,
                               p.comb + n * n,
                               p.pre + n,
                               p.norm,
                               halves(n * H, false),
                               halves(H, false)};
          CHECK_OK(call(&one, levels[level], 1e-5f));
          CHECK(memcmp(one.residual_out, p.residual_out + n * H, (size_t)(n * H) * 2) == 0);
          CHECK(memcmp(one.layer_input, p.layer_input + H, (size_t)H * 2) == 0);

          // In place.
          uint16_t *before = halves(3 * n * H, false), *streams_out = p.residual_out, *y = p.layer_input;
          memcpy(before, p.residual, (size_t)(3 * n * H) * 2);
          p.residual_out = p.residual;
          p.layer_input = halves(3 * H, odd);
          CHECK_OK(call(&p, levels[level], 1e-5f));
          check_all(&p, before, 1e-5, __LINE__);
          CHECK(memcmp(p.residual_out, streams_out, (size_t)(3 * n * H) * 2) == 0);
          CHECK(memcmp(p.layer_input, y, (size_t)(3 * H) * 2) == 0);
        }
}

static void post_mix_of_rank_3(void) {
  const gm_exec exec = cpu(0);
  const problem p = make(2, 4, 7, false);
  const gm_tensor residual = BF16(p.residual, 2, 4, 7), x = BF16(p.x, 2, 7), comb = F32(p.comb, 2, 4, 4),
                  pre = F32(p.pre, 2, 4), norm = BF16(p.norm, 7), residual_out = BF16(p.residual_out, 2, 4, 7),
                  layer_input = BF16(p.layer_input, 2, 7);
  gm_tensor post = F32(p.post, 2, 4, 1);
  post.stride[2] = -9;
  CHECK_OK(
      gm_mhc_post_collapse_rms_norm(&exec, &residual, &x, &post, &comb, &pre, &norm, 0, &residual_out, &layer_input));
  check_all(&p, p.residual, 0, __LINE__);
  post.shape[2] = 2;
  CHECK_STATUS(
      gm_mhc_post_collapse_rms_norm(&exec, &residual, &x, &post, &comb, &pre, &norm, 0, &residual_out, &layer_input),
      GM_ERROR_SHAPE);
}

static void nan_stays_in_its_token(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const problem p = make(3, 4, 33, false);
    p.x[33 + 5] = 0x7FC0;
    CHECK_OK(call(&p, levels[level], 1));
    for (int i = 0; i < 3 * 4 * 33; ++i) CHECK(isnan(bf16_value(p.residual_out[i])) == (i / 132 == 1 && i % 33 == 5));
    for (int i = 0; i < 3 * 33; ++i) CHECK(isnan(bf16_value(p.layer_input[i])) == (i / 33 == 1));
  }
}

static void empty(void) {
  const problem p = {0, 4, 5, NULL, NULL, NULL, NULL, NULL, halves(5, false), halves(4, false), halves(4, false)};
  CHECK_OK(call(&p, 0, 1));
  CHECK(strcmp(gm_last_kernel(), "none") == 0);
  CHECK(untouched(p.residual_out, 8) && untouched(p.layer_input, 8));
}

void test_mhc_post_collapse_rms_norm(void) {
  run_case("mhc_post_collapse_rms_norm", "cyclic_shift", cyclic_shift);
  run_case("mhc_post_collapse_rms_norm", "shapes", shapes);
  run_case("mhc_post_collapse_rms_norm", "post_mix_of_rank_3", post_mix_of_rank_3);
  run_case("mhc_post_collapse_rms_norm", "nan_stays_in_its_token", nan_stays_in_its_token);
  run_case("mhc_post_collapse_rms_norm", "empty", empty);
}
