// The pre-mix gate from the partial results of a split-K projection.
#include <math.h>
#include <string.h>

#include "harness.h"

// All but the sigmoid is rounded as the oracle rounds it; rsqrt and sigmoid may be 2^-20 off.
static void check_all(const gm_tensor *gemm_out, const gm_tensor *sqrsum, const float *scale, const float *base,
                      int64_t hc_hidden, float rms_eps, float eps, const float *out, int64_t n, int line) {
  const float *g = gemm_out->data, *q = sqrsum->data;
  for (int64_t t = 0; t < sqrsum->shape[1]; ++t) {
    float sum = 0;
    for (int64_t s = 0; s < sqrsum->shape[0]; ++s) sum = sum + q[s * sqrsum->stride[0] + t * sqrsum->stride[1]];
    const float mean = sum * (1.0f / (float)hc_hidden);
    const double rstd = 1 / sqrt((double)(mean + rms_eps));
    for (int64_t j = 0; j < n; ++j) {
      float mix = 0;
      for (int64_t s = 0; s < gemm_out->shape[0]; ++s)
        mix = mix + g[s * gemm_out->stride[0] + t * gemm_out->stride[1] + j * gemm_out->stride[2]];
      const double scaled = (double)mix * rstd * (double)*scale;
      const double want = sigmoid(scaled + (double)base[j]) + (double)eps, got = (double)out[t * n + j];
      const double slack = 0x1p-20 * (1 + fabs(scaled) + fabs((double)base[j])) * want;
      if (!check_at(within(GM_F32, got, want, 1, slack), __FILE__, line, "n %d: [%d,%d] is %.9g instead of %.9g (%s)",
                    (int)n, (int)t, (int)j, got, want, gm_last_kernel()))
        return;
    }
  }
}

static void by_hand(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const gm_exec exec = cpu(levels[level]);
    float *g = floats(6, false), *q = floats(3, false), *scale = floats(1, false), *base = floats(2, false),
          *out = floats(2, false);
    for (int s = 0; s < 3; ++s) g[2 * s] = (float)(s + 1), g[2 * s + 1] = -1, q[s] = (float)(16 * s);
    *scale = 8; // the q sum to 48, their mean is 12, + 4: rstd = 1/4; mix = 6, -3; times scale 12, -6
    const gm_tensor gemm_out = F32(g, 3, 1, 2), sqrsum = F32(q, 3, 1), tscale = F32(scale, 1), tbase = F32(base, 2),
                    result = F32(out, 1, 2);
    base[0] = -12, base[1] = 6;
    CHECK_OK(gm_mhc_pre_mix(&exec, &gemm_out, &sqrsum, &tscale, &tbase, 4, 4, 0.25f, &result));
    CHECK(strncmp(gm_last_kernel(), "mhc_pre_mix/cpu/", 16) == 0);
    CHECK(out[0] == 0.75f && out[1] == 0.75f); // sigmoid(0) + 1/4
    base[0] = 100 - 12, base[1] = -1000;
    CHECK_OK(gm_mhc_pre_mix(&exec, &gemm_out, &sqrsum, &tscale, &tbase, 4, 4, 0.5f, &result));
    CHECK(out[0] == 1.5f && out[1] == 0.5f);

    // 1e8 + 1 - 1e8 is 0 in fp32, s ascending
    g[0] = 1e8f, g[2] = 1, g[4] = -1e8f, base[0] = 0;
    CHECK_OK(gm_mhc_pre_mix(&exec, &gemm_out, &sqrsum, &tscale, &tbase, 4, 4, 0, &result));
    CHECK(out[0] == 0.5f);
  }
}

static void shapes(void) {
  const int64_t streams[] = {1, 2, 4, 8}, splits[] = {1, 3, 8, 17}, tokens[] = {1, 2, 7, 16, 33};
  for (int level = 0; level < LEVELS; ++level)
    for (int odd = 0; odd < 2; ++odd)
      for (size_t a = 0; a < 4; ++a)
        for (size_t b = 0; b < 4; ++b)
          for (size_t c = 0; c < 5; ++c) {
            const gm_exec exec = cpu(levels[level]);
            const int64_t n = streams[a], S = splits[b], T = tokens[c];
            float *g = floats(S * T * n, odd), *q = floats(S * T, odd), *scale = floats(1, odd), *base = floats(n, odd);
            float *out = floats(T * n, odd);
            for (int64_t i = 0; i < S * T * n; ++i) g[i] = draw_f32();
            for (int64_t i = 0; i < S * T; ++i) q[i] = draw_f32() * draw_f32() + 5;
            for (int64_t i = 0; i < n; ++i) base[i] = draw_f32();
            *scale = 0.7f;
            const gm_tensor gemm_out = F32(g, S, T, n), sqrsum = F32(q, S, T), tscale = F32(scale, 1),
                            tbase = F32(base, n), result = F32(out, T, n);
            CHECK_OK(gm_mhc_pre_mix(&exec, &gemm_out, &sqrsum, &tscale, &tbase, 28, 1e-6f, 1e-3f, &result));
            check_all(&gemm_out, &sqrsum, scale, base, 28, 1e-6f, 1e-3f, out, n, __LINE__);
          }
}

// Padded columns, longer scale and base, and views of any strides; the last token alone has the same bits.
static void views(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const gm_exec exec = cpu(levels[level]);
    const int64_t S = 3, T = 5, n = 4, columns = 24, all = S * T * 32;
    float *g = floats(all, true), *q = floats(S * T, true), *scale = floats(3, false), *base = floats(24, false);
    float *out = floats(T * n, false), *one = floats(n, false);
    for (int64_t i = 0; i < all; ++i) g[i] = draw_f32();
    for (int64_t i = 0; i < S * T; ++i) q[i] = 2 + draw_f32() / 2;
    for (int i = 0; i < 24; ++i) base[i] = draw_f32();
    for (int i = 0; i < 3; ++i) scale[i] = (float)(i + 1);
    const int64_t strides[][4] = {{0, T * 32, 32, 1}, {0, 32, S * 32, 1}, {all - 1, -T * 32, -32, -1},
                                  {0, 1, S, S * T},   {7, 0, 0, 0},       {0, T * 32, 32, 0}};
    const int64_t q_strides[][3] = {{0, T, 1}, {0, 1, S}, {S * T - 1, -T, -1}, {3, 0, 0}};
    for (size_t v = 0; v < sizeof strides / sizeof *strides; ++v)
      for (size_t w = 0; w < sizeof q_strides / sizeof *q_strides; ++w) {
        gm_tensor gemm_out = F32(g + strides[v][0], S, T, columns), sqrsum = F32(q + q_strides[w][0], S, T);
        memcpy(gemm_out.stride, strides[v] + 1, 3 * sizeof(int64_t));
        memcpy(sqrsum.stride, q_strides[w] + 1, 2 * sizeof(int64_t));
        const gm_tensor tscale = F32(scale, 3), tbase = F32(base, 24), result = F32(out, T, n), to_one = F32(one, 1, n);
        CHECK_OK(gm_mhc_pre_mix(&exec, &gemm_out, &sqrsum, &tscale, &tbase, 16, 0, 0, &result));
        check_all(&gemm_out, &sqrsum, scale, base, 16, 0, 0, out, n, __LINE__);
        gemm_out.data = (float *)gemm_out.data + 4 * gemm_out.stride[1];
        sqrsum.data = (float *)sqrsum.data + 4 * sqrsum.stride[1];
        gemm_out.shape[1] = sqrsum.shape[1] = 1;
        CHECK_OK(gm_mhc_pre_mix(&exec, &gemm_out, &sqrsum, &tscale, &tbase, 16, 0, 0, &to_one));
        CHECK(memcmp(one, out + 4 * n, (size_t)n * 4) == 0);
      }
  }
}

static void nan_stays_in_its_token(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const gm_exec exec = cpu(levels[level]);
    float g[2 * 9 * 4] = {0}, q[2 * 9] = {0}, scale[] = {1}, base[4] = {0}, out[9 * 4];
    g[3 * 4 + 1] = NAN;
    q[9 + 6] = NAN;
    const gm_tensor gemm_out = F32(g, 2, 9, 4), sqrsum = F32(q, 2, 9), tscale = F32(scale, 1), tbase = F32(base, 4),
                    result = F32(out, 9, 4);
    CHECK_OK(gm_mhc_pre_mix(&exec, &gemm_out, &sqrsum, &tscale, &tbase, 1, 1, 0, &result));
    for (int i = 0; i < 36; ++i) {
      if (i == 13 || i / 4 == 6)
        CHECK(isnan(out[i]));
      else
        CHECK(out[i] == 0.5f);
    }
  }
}

static void empty(void) {
  const gm_exec exec = cpu(0);
  float *memory = floats(4, false), one[4] = {0};
  gm_tensor gemm_out = F32(NULL, 2, 0, 4), sqrsum = F32(NULL, 2, 0), out = F32(memory, 0, 4);
  const gm_tensor scale = F32(one, 1), base = F32(one, 4);
  gemm_out.stride[0] = sqrsum.stride[0] = out.stride[0] = INT64_MIN;
  CHECK_OK(gm_mhc_pre_mix(&exec, &gemm_out, &sqrsum, &scale, &base, 4, 1, 0, &out));
  CHECK(strcmp(gm_last_kernel(), "none") == 0);
  CHECK(untouched(memory, 16));
}

void test_mhc_pre_mix(void) {
  run_case("mhc_pre_mix", "by_hand", by_hand);
  run_case("mhc_pre_mix", "shapes", shapes);
  run_case("mhc_pre_mix", "views", views);
  run_case("mhc_pre_mix", "nan_stays_in_its_token", nan_stays_in_its_token);
  run_case("mhc_pre_mix", "empty", empty);
}
