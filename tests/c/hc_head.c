// Gates from the normalised streams, then their weighted sum, in both modes.
#include <math.h>
#include <string.h>

#include "harness.h"

typedef struct {
  int64_t tokens, n, width;
  uint16_t *residual, *out;
  float *fn, *scale, *base;
} problem;

// unit: residuals of +-1, whose rsqrt(mean) is 1, so that bf16(x * r) hides no rounding of r.
static problem make(int64_t tokens, int64_t n, int64_t width, bool odd, bool unit) {
  const int64_t flat = n * width;
  problem p = {tokens,
               n,
               width,
               halves(tokens * flat, odd),
               halves(tokens * width, odd),
               floats(n * flat, odd),
               floats(1, odd),
               floats(n, odd)};
  for (int64_t i = 0; i < tokens * flat; ++i)
    p.residual[i] = bf16(unit ? (draw_f32() < 0 ? -1.0f : 1.0f) : draw_grid() + 0.0625f);
  for (int64_t i = 0; i < n * flat; ++i) p.fn[i] = draw_grid();
  *p.scale = 0.5f;
  for (int64_t i = 0; i < n; ++i) p.base[i] = draw_grid();
  return p;
}

static gm_status call(const problem *p, uint32_t flags, float rms_eps, float hc_eps, int32_t mode) {
  const gm_exec exec = cpu(flags);
  const gm_tensor residual = BF16(p->residual, p->tokens, p->n, p->width), fn = F32(p->fn, p->n, p->n * p->width),
                  scale = F32(p->scale, 1), base = F32(p->base, p->n), out = BF16(p->out, p->tokens, p->width);
  return gm_hc_head(&exec, &residual, &fn, &scale, &base, rms_eps, hc_eps, mode, &out);
}

static void check_all(const problem *p, double rms_eps, double hc_eps, int32_t mode, int line) {
  const int64_t flat = p->n * p->width;
  for (int64_t t = 0; t < p->tokens; ++t) {
    const uint16_t *x = p->residual + t * flat;
    double sum = 0, gates[8], error = 0;
    for (int64_t j = 0; j < flat; ++j) sum += (double)bf16_value(x[j]) * (double)bf16_value(x[j]);
    const double r = 1 / sqrt(sum / (double)flat + rms_eps);
    for (int64_t i = 0; i < p->n; ++i) {
      double mix = 0;
      for (int64_t j = 0; j < flat; ++j) {
        const double v = (double)bf16_value(x[j]) * r;
        mix += (mode == GM_HEAD_ROUNDED ? (double)bf16_value(bf16((float)v)) : v) * (double)p->fn[i * flat + j];
      }
      gates[i] = sigmoid(mix * (double)*p->scale + (double)p->base[i]) + hc_eps;
      error = fmax(error, 0x1p-21 * (1 + fabs(mix * (double)*p->scale) + fabs((double)p->base[i])));
    }
    for (int64_t h = 0; h < p->width; ++h) {
      double want = 0, size = 0;
      for (int64_t i = 0; i < p->n; ++i) {
        const double term = gates[i] * (double)bf16_value(x[i * p->width + h]);
        want += term;
        size += fabs(term);
      }
      const double got = (double)bf16_value(p->out[t * p->width + h]);
      // A correct rounding, but for a few fp32 roundings in the gates' arguments and the sum.
      if (!check_at(within(GM_BF16, got, want, 0.5, error * size), __FILE__, line,
                    "n %d, width %d, mode %d: [%d,%d] is %.9g instead of %.9g (%s)", (int)p->n, (int)p->width, mode,
                    (int)t, (int)h, got, want, gm_last_kernel()))
        return;
    }
  }
}

static void by_hand(void) {
  for (int level = 0; level < LEVELS; ++level) {
    problem p = make(1, 1, 2, false, false);
    p.residual[0] = bf16(1), p.residual[1] = bf16(3); // r = rsqrt(5), 3 r = 1.3416, bf16(3 r) = 172/128
    p.fn[0] = 0, p.fn[1] = 128, *p.scale = 1, *p.base = -172;
    CHECK_OK(call(&p, levels[level], 0, 0, GM_HEAD_ROUNDED));
    CHECK(strncmp(gm_last_kernel(), "hc_head/cpu/", 12) == 0);
    CHECK(p.out[0] == bf16(0.5f) && p.out[1] == bf16(1.5f)); // sigmoid(172 - 172)
    CHECK_OK(call(&p, levels[level], 0, 0, GM_HEAD_FP32));
    check_all(&p, 0, 0, GM_HEAD_FP32, __LINE__); // sigmoid(171.73 - 172) = 0.433
    CHECK(p.out[0] != bf16(0.5f));

    *p.base = -172;
    CHECK_OK(call(&p, levels[level], 0, 0.25f, GM_HEAD_ROUNDED));
    CHECK(p.out[0] == bf16(0.75f) && p.out[1] == bf16(2.25f)); // hc_eps is outside of the sigmoid
    p.fn[1] = 0, *p.base = 0;
    CHECK_OK(call(&p, levels[level], 11, 0, GM_HEAD_FP32));
    CHECK(p.out[0] == bf16(0.5f) && p.out[1] == bf16(1.5f));
    p.fn[1] = 4, *p.base = -3;
    CHECK_OK(call(&p, levels[level], 11, 0, GM_HEAD_FP32)); // rms_eps: rsqrt(5 + 11) = 1/4, mix = 3
    CHECK(p.out[0] == bf16(0.5f) && p.out[1] == bf16(1.5f));
  }
}

static void shapes(void) {
  const int64_t streams[] = {1, 2, 4, 8}, widths[] = {1, 2, 7, 16, 17, 33, 64, 250, 256};
  for (int level = 0; level < LEVELS; ++level)
    for (int odd = 0; odd < 2; ++odd)
      for (size_t s = 0; s < 4; ++s)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; ++w) {
          problem p = make(3, streams[s], widths[w], odd, true);
          CHECK_OK(call(&p, levels[level], 0, 0x1p-10f, GM_HEAD_ROUNDED));
          check_all(&p, 0, 0x1p-10, GM_HEAD_ROUNDED, __LINE__);
          p = make(3, streams[s], widths[w], odd, false);
          CHECK_OK(call(&p, levels[level], 1e-6f, 0, GM_HEAD_FP32));
          check_all(&p, 1e-6, 0, GM_HEAD_FP32, __LINE__);

          for (int32_t mode = 0; mode < 2; ++mode) { // a token does not depend on the others
            CHECK_OK(call(&p, levels[level], 1e-6f, 0, mode));
            problem one = p;
            one.tokens = 1;
            one.residual += one.n * one.width;
            one.out = halves(one.width, false);
            CHECK_OK(call(&one, levels[level], 1e-6f, 0, mode));
            CHECK(memcmp(one.out, p.out + one.width, (size_t)one.width * 2) == 0);
          }
        }
}

static void nan_stays_in_its_token(void) {
  for (int level = 0; level < LEVELS; ++level)
    for (int32_t mode = 0; mode < 2; ++mode) {
      const problem p = make(3, 4, 33, false, false);
      p.residual[4 * 33 + 70] = 0x7FC0;
      CHECK_OK(call(&p, levels[level], 1, 0, mode));
      for (int i = 0; i < 3 * 33; ++i) CHECK(isnan(bf16_value(p.out[i])) == (i / 33 == 1));
    }
}

static void empty(void) {
  const problem p = make(0, 4, 33, false, false);
  const problem memory = {0, 4, 33, NULL, halves(8, false), p.fn, p.scale, p.base};
  CHECK_OK(call(&memory, 0, 1, 0, GM_HEAD_ROUNDED));
  CHECK(strcmp(gm_last_kernel(), "none") == 0);
  CHECK(untouched(memory.out, 16));
}

void test_hc_head(void) {
  run_case("hc_head", "by_hand", by_hand);
  run_case("hc_head", "shapes", shapes);
  run_case("hc_head", "nan_stays_in_its_token", nan_stays_in_its_token);
  run_case("hc_head", "empty", empty);
}
