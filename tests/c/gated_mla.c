// out = bf16(attn * sigmoid(x @ weight^T))
#include <math.h>
#include <string.h>

#include "harness.h"

// fp32 rounding before the last one, and sigmoid's own 2^-20, in bf16 ulps.
#define ULPS (0.5 + 0x1p-10)

typedef struct {
  int64_t m, k, n;
  uint16_t *x, *weight, *attn, *out;
} problem;

static problem make(int64_t m, int64_t k, int64_t n, bool odd) {
  problem p = {m, k, n, halves(m * k, odd), halves(n * k, odd), halves(m * n, odd), halves(m * n, odd)};
  for (int64_t i = 0; i < m * k; ++i) p.x[i] = bf16(draw_grid());
  for (int64_t i = 0; i < n * k; ++i) p.weight[i] = bf16(draw_grid());
  for (int64_t i = 0; i < m * n; ++i) p.attn[i] = bf16(draw_bf16());
  return p;
}

static gm_status call(const problem *p, uint32_t flags) {
  const gm_exec exec = cpu(flags);
  const gm_tensor x = BF16(p->x, p->m, p->k), weight = BF16(p->weight, p->n, p->k), attn = BF16(p->attn, p->m, p->n),
                  out = BF16(p->out, p->m, p->n);
  return gm_gated_mla(&exec, &x, &weight, &attn, &out);
}

static double logit(const problem *p, int64_t i, int64_t j) {
  double z = 0;
  for (int64_t c = 0; c < p->k; ++c)
    z += (double)bf16_value(p->x[i * p->k + c]) * (double)bf16_value(p->weight[j * p->k + c]);
  return z;
}

static void check_all(const problem *p, const uint16_t *attn, const char *what) {
  int bad = 0;
  for (int64_t i = 0; i < p->m; ++i)
    for (int64_t j = 0; j < p->n && bad < 3; ++j) {
      const double a = (double)bf16_value(attn[i * p->n + j]);
      const double want = a * sigmoid(logit(p, i, j)), got = (double)bf16_value(p->out[i * p->n + j]);
      if (!check_at(within(GM_BF16, got, want, ULPS, 0), __FILE__, __LINE__,
                    "%s m %d k %d n %d: out[%d,%d] is %.9g instead of %.9g (%s)", what, (int)p->m, (int)p->k, (int)p->n,
                    (int)i, (int)j, got, want, gm_last_kernel()))
        ++bad;
    }
}

static void by_hand(void) {
  for (int level = 0; level < LEVELS; ++level) {
    problem p = make(1, 2, 256, false);
    p.x[0] = bf16(4), p.x[1] = bf16(0x1p-6f);
    for (int j = 0; j < 256; ++j) {
      p.attn[j] = bf16((float)(j + 1));
      const float rows[4][2] = {{0, 0}, {16, 0}, {-21, 0}, {-1, -1}};
      p.weight[2 * j] = bf16(rows[j % 4][0]);
      p.weight[2 * j + 1] = bf16(rows[j % 4][1]);
    }
    CHECK_OK(call(&p, levels[level]));
    CHECK(strncmp(gm_last_kernel(), "gated_mla/cpu/", 14) == 0);
    for (int j = 0; j < 256; j += 4) {
      CHECK(p.out[j] == bf16((float)(j + 1) * 0.5f));             // sigmoid(0) = 1/2
      CHECK(p.out[j + 1] == bf16((float)(j + 2)));                // sigmoid(64) = 1
      CHECK(bf16_value(p.out[j + 2]) > 0);                        // sigmoid(-84) = 3e-37
      CHECK(bf16_value(p.out[j + 3]) < 0.0178f * (float)(j + 4)); // sigmoid(-4.015625); sigmoid(bf16(that)) is 0.01799
    }
    check_all(&p, p.attn, "by hand");
  }
}

static void sigmoid_accuracy(void) {
  for (int level = 0; level < LEVELS; ++level) {
    problem p = make(2, 1, 512, false);
    p.x[0] = bf16(1), p.x[1] = bf16(0.25f);
    for (int j = 0; j < 512; ++j) p.weight[j] = bf16((float)(j - 256) * 87.0f / 256.0f), p.attn[j] = bf16(1);
    CHECK_OK(call(&p, levels[level]));
    check_all(&p, p.attn, "sigmoid");
  }
}

static void shapes(void) {
  const int64_t ks[] = {1, 7, 33, 65, 100};
  for (int level = 0; level < LEVELS; ++level)
    for (int odd = 0; odd < 2; ++odd)
      for (size_t i = 0; i < sizeof ks / sizeof *ks; ++i)
        for (int64_t m = 1; m <= 20; ++m) {
          const problem p = make(m, ks[i], 256, odd);
          CHECK_OK(call(&p, levels[level]));
          check_all(&p, p.attn, "shapes");
        }
}

static void larger_shapes(void) {
  const int64_t sizes[][3] = {{33, 250, 512},  {3, 1030, 768}, {65, 64, 256}, {1, 6144, 256},
                              {17, 129, 1280}, {49, 7, 256},   {50, 33, 256}, {53, 100, 256}};
  for (int level = 0; level < LEVELS; ++level)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
      const problem p = make(sizes[i][0], sizes[i][1], sizes[i][2], i % 2);
      CHECK_OK(call(&p, levels[level]));
      check_all(&p, p.attn, "larger");
    }
}

static void in_place(void) {
  for (int level = 0; level < LEVELS; ++level)
    for (int64_t m = 1; m <= 20; m += 3) {
      problem p = make(m, 33, 256, m % 2);
      const size_t bytes = (size_t)(m * 256) * 2;
      CHECK_OK(call(&p, levels[level]));
      uint16_t *want = p.out, *attn = halves(m * 256, false);
      memcpy(attn, p.attn, bytes);
      p.out = p.attn;
      CHECK_OK(call(&p, levels[level]));
      CHECK(memcmp(p.out, want, bytes) == 0);
      check_all(&p, attn, "in place");
    }
}

static void special_values(void) {
  const uint16_t inf = 0x7F80, minus_inf = 0xFF80, nan = 0x7FC0;
  for (int level = 0; level < LEVELS; ++level)
    for (int64_t m = 5; m <= 50; m += 15) {
      problem p = make(m, 7, 256, false);
      CHECK_OK(call(&p, levels[level]));
      uint16_t *clean = p.out;
      for (int j = 0; j < 256; ++j) p.weight[j * 7] = bf16(j % 2 ? 1 : -1);
      p.out = halves(m * 256, false);
      CHECK_OK(call(&p, levels[level]));
      clean = p.out;
      p.out = halves(m * 256, false);

      p.x[1 * 7 + 3] = nan;
      p.x[3 * 7] = inf; // the logit is inf where the weight is 1, -inf where it is -1
      p.attn[3 * 256 + 2] = inf;
      CHECK_OK(call(&p, levels[level]));
      int bad = 0;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < 256; ++j) {
          const uint16_t got = p.out[i * 256 + j], attn = p.attn[i * 256 + j];
          if (i == 1)
            bad += !isnan(bf16_value(got));
          else if (i == 3 && j == 2)
            bad += !isnan(bf16_value(got)); // inf * 0
          else if (i == 3)
            bad += j % 2 ? got != attn : bf16_value(got) != 0;
          else
            bad += got != clean[i * 256 + j];
        }
      CHECK(bad == 0);

      p = make(m, 7, 256, false);
      p.weight[9 * 7 + 1] = nan;
      p.attn[2 * 256 + 30] = nan;
      p.attn[2 * 256 + 31] = minus_inf;
      CHECK_OK(call(&p, levels[level]));
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < 256; ++j) {
          const float got = bf16_value(p.out[i * 256 + j]);
          CHECK(isnan(got) == (j == 9 || (i == 2 && j == 30)));
        }
      CHECK(p.out[2 * 256 + 31] == minus_inf);
    }
}

static void subnormal_inputs(void) {
  for (int level = 0; level < LEVELS; ++level) {
    problem p = make(1, 3, 256, false);
    p.x[0] = 0x0010, p.x[1] = p.x[2] = 0; // 2^-129
    for (int j = 0; j < 256; ++j) p.weight[3 * j] = bf16(0x1p127f), p.attn[j] = bf16(1);
    CHECK_OK(call(&p, levels[level]));
    check_all(&p, p.attn, "subnormal x");
  }
}

// x and weight may be the same memory, and operands may be neighbours.
static void neighbours(void) {
  const gm_exec exec = cpu(0);
  uint16_t *all = halves(256 * 7 + 2 * 256 * 256, true);
  for (int i = 0; i < 256 * 7; ++i) all[i] = bf16(draw_grid());
  for (int i = 0; i < 256 * 256; ++i) all[256 * 7 + i] = bf16(draw_bf16());
  const problem p = {256, 7, 256, all, all, all + 256 * 7, all + 256 * 7 + 256 * 256};
  const gm_tensor x = BF16(p.x, 256, 7), attn = BF16(p.attn, 256, 256), out = BF16(p.out, 256, 256);
  CHECK_OK(gm_gated_mla(&exec, &x, &x, &attn, &out));
  check_all(&p, p.attn, "neighbours");
}

static void empty(void) {
  const gm_exec exec = cpu(0);
  uint16_t *memory = halves(16, false);
  gm_tensor x = BF16(NULL, 0, 5), attn = BF16(NULL, 0, 256), out = BF16(memory, 0, 256);
  const gm_tensor weight = BF16(halves(256 * 5, false), 256, 5);
  for (int d = 0; d < 2; ++d) x.stride[d] = attn.stride[d] = out.stride[d] = -77;
  CHECK_OK(gm_gated_mla(&exec, &x, &weight, &attn, &out));
  CHECK(strcmp(gm_last_kernel(), "none") == 0);
  CHECK(untouched(memory, 32));
  x.dtype = GM_F32;
  CHECK_STATUS(gm_gated_mla(&exec, &x, &weight, &attn, &out), GM_ERROR_DTYPE);
}

static void ignored_strides(void) {
  const gm_exec exec = cpu(0);
  const problem p = make(1, 1, 256, false);
  gm_tensor x = BF16(p.x, 1, 1), weight = BF16(p.weight, 256, 1), attn = BF16(p.attn, 1, 256),
            out = BF16(p.out, 1, 256);
  x.stride[0] = -5, x.stride[1] = 99, weight.stride[1] = 0, attn.stride[0] = 3, out.stride[0] = INT64_MAX;
  CHECK_OK(gm_gated_mla(&exec, &x, &weight, &attn, &out));
  check_all(&p, p.attn, "ignored strides");
}

void test_gated_mla(void) {
  run_case("gated_mla", "by_hand", by_hand);
  run_case("gated_mla", "sigmoid_accuracy", sigmoid_accuracy);
  run_case("gated_mla", "shapes", shapes);
  run_case("gated_mla", "larger_shapes", larger_shapes);
  run_case("gated_mla", "in_place", in_place);
  run_case("gated_mla", "special_values", special_values);
  run_case("gated_mla", "subnormal_inputs", subnormal_inputs);
  run_case("gated_mla", "neighbours", neighbours);
  run_case("gated_mla", "empty", empty);
  run_case("gated_mla", "ignored_strides", ignored_strides);
}
