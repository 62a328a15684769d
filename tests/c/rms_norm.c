// out = E(x * rsqrt(mean(x^2) + eps) [* weight])
#include <math.h>
#include <string.h>

#include "harness.h"

// A few fp32 roundings: 4 ulps of an f32 result, a 2^-10th of one more bf16 or f16 ulp than a correct rounding.
static double ulps(int32_t dtype) { return dtype == GM_F32 ? 4 : 0.5 + 0x1p-10; }

static const int32_t dtypes[] = {GM_BF16, GM_F16, GM_F32};

static void check_row(int32_t dtype, const void *x, const void *weight, const void *out, int64_t at, int64_t out_at,
                      int64_t width, double eps, int line) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double v = read_element(dtype, x, at + i);
    sum += v * v;
  }
  const double r = 1 / sqrt(sum / (double)width + eps);
  for (int64_t i = 0; i < width; ++i) {
    const double v = read_element(dtype, x, at + i) * r;
    const double want = weight ? v * read_element(dtype, weight, i) : v, got = read_element(dtype, out, out_at + i);
    if (!check_at(within(dtype, got, want, ulps(dtype), 0), __FILE__, line,
                  "dtype %d, width %d, [%d]: %.9g instead of %.9g (%s)", dtype, (int)width, (int)i, got, want,
                  gm_last_kernel()))
      return;
  }
}

static void *filled(int32_t dtype, int64_t count, bool odd) {
  void *data = exact((size_t)count * element_size(dtype), odd ? element_size(dtype) : 0);
  for (int64_t i = 0; i < count; ++i) write_element(dtype, data, i, draw_grid());
  return data;
}

static void by_hand(void) {
  for (int level = 0; level < LEVELS; ++level)
    for (size_t e = 0; e < 3; ++e) {
      const gm_exec exec = cpu(levels[level]);
      const int32_t dtype = dtypes[e];
      void *x = filled(dtype, 2 * 7, false), *weight = filled(dtype, 7, false), *out = filled(dtype, 2 * 7, false);
      for (int i = 0; i < 7; ++i) {
        write_element(dtype, x, i, i % 2 ? 2 : -2);
        write_element(dtype, x, 7 + i, 0);
        write_element(dtype, weight, i, (float)i);
      }
      const gm_tensor tx = tensor(dtype, x, DIMS(2, 7)), tw = tensor(dtype, weight, DIMS(7)),
                      to = tensor(dtype, out, DIMS(2, 7));
      CHECK_OK(gm_rms_norm(&exec, &tx, NULL, 12, &to)); // rsqrt(4 + 12) = 1/4
      CHECK(strncmp(gm_last_kernel(), "rms_norm/cpu/", 13) == 0);
      for (int i = 0; i < 7; ++i) {
        CHECK(within(dtype, read_element(dtype, out, i), i % 2 ? 0.5 : -0.5, dtype == GM_F32 ? 4 : 0, 0));
        CHECK(read_element(dtype, out, 7 + i) == 0);
      }
      CHECK_OK(gm_rms_norm(&exec, &tx, &tw, 0, &to)); // rsqrt(4) = 1/2; 0 * rsqrt(0) is NaN: eps is not clamped
      for (int i = 0; i < 7; ++i) {
        CHECK(within(dtype, read_element(dtype, out, i), i % 2 ? i : -i, dtype == GM_F32 ? 4 : 0, 0));
        CHECK(isnan(read_element(dtype, out, 7 + i)));
      }
    }
}

static void shapes(void) {
  const int64_t widths[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 100, 250, 256, 1023};
  for (int level = 0; level < LEVELS; ++level)
    for (size_t e = 0; e < 3; ++e)
      for (int odd = 0; odd < 2; ++odd)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; ++w) {
          const gm_exec exec = cpu(levels[level]);
          const int32_t dtype = dtypes[e];
          const int64_t width = widths[w], rows = 3;
          void *x = filled(dtype, rows * width, odd), *weight = filled(dtype, width, odd);
          void *out = filled(dtype, rows * width, odd);
          const gm_tensor tx = tensor(dtype, x, DIMS(rows, width)), tw = tensor(dtype, weight, DIMS(width)),
                          to = tensor(dtype, out, DIMS(rows, width));
          const gm_tensor *weights[] = {NULL, &tw};
          for (int with = 0; with < 2; ++with) {
            CHECK_OK(gm_rms_norm(&exec, &tx, weights[with], 0.25f, &to));
            for (int64_t r = 0; r < rows; ++r)
              check_row(dtype, x, with ? weight : NULL, out, r * width, r * width, width, 0.25, __LINE__);
            // A row alone has the same bits as among others.
            void *one = filled(dtype, width, odd);
            const size_t bytes = (size_t)width * element_size(dtype);
            const gm_tensor row = tensor(dtype, (char *)x + bytes, DIMS(width)),
                            to_one = tensor(dtype, one, DIMS(width));
            CHECK_OK(gm_rms_norm(&exec, &row, weights[with], 0.25f, &to_one));
            CHECK(memcmp(one, (char *)out + bytes, bytes) == 0);
          }
          CHECK_OK(gm_rms_norm(&exec, &tx, &tw, 0.25f, &tx)); // in place, with the bits of out
          CHECK(memcmp(x, out, (size_t)(rows * width) * element_size(dtype)) == 0);
        }
}

static void ranks_and_strides(void) {
  for (int level = 0; level < LEVELS; ++level)
    for (size_t e = 0; e < 3; ++e) {
      const gm_exec exec = cpu(levels[level]);
      const int32_t dtype = dtypes[e];
      const int64_t width = 33, pitch = 40, rows = 6;
      void *x = filled(dtype, (rows - 1) * pitch + width, true), *out = filled(dtype, rows * width, false);
      gm_tensor views[] = {tensor(dtype, x, DIMS(rows, width)), tensor(dtype, x, DIMS(2, 3, width)),
                           tensor(dtype, x, DIMS(2, 1, 3, width)), tensor(dtype, x, DIMS(1, 6, 1, width))};
      views[0].stride[0] = pitch;
      views[1].stride[0] = 3 * pitch, views[1].stride[1] = pitch;
      views[2].stride[0] = 3 * pitch, views[2].stride[1] = -1, views[2].stride[2] = pitch;
      views[3].stride[0] = 7, views[3].stride[1] = pitch, views[3].stride[2] = 0;
      for (size_t v = 0; v < sizeof views / sizeof *views; ++v) {
        gm_tensor to = tensor(dtype, out, views[v].shape, views[v].rank);
        CHECK_OK(gm_rms_norm(&exec, &views[v], NULL, 1, &to));
        for (int64_t r = 0; r < rows; ++r) check_row(dtype, x, NULL, out, r * pitch, r * width, width, 1, __LINE__);
      }
      gm_tensor to = tensor(dtype, out, DIMS(2, 3, width));
      views[1].stride[0] = 3 * pitch + 1; // the rows are not evenly spaced
      CHECK_STATUS(gm_rms_norm(&exec, &views[1], NULL, 1, &to), GM_ERROR_STRIDE);
      to = tensor(dtype, out, DIMS(rows, width));
      const int64_t small[] = {width - 1, 0, -width};
      for (size_t i = 0; i < 3; ++i) {
        views[0].stride[0] = small[i];
        CHECK_STATUS(gm_rms_norm(&exec, &views[0], NULL, 1, &to), GM_ERROR_STRIDE);
      }
    }
}

static void tiny_epsilon(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const gm_exec exec = cpu(levels[level]);
    uint16_t *x = halves(250, false), *out = halves(250, false);
    for (int i = 0; i < 250; ++i) x[i] = bf16(0x1p-40f);
    const gm_tensor tx = BF16(x, 250), to = BF16(out, 250);
    CHECK_OK(gm_rms_norm(&exec, &tx, NULL, 1e-20f, &to));
    check_row(GM_BF16, x, NULL, out, 0, 0, 250, (double)1e-20f, __LINE__);
    CHECK_OK(gm_rms_norm(&exec, &tx, NULL, -0.0f, &to));
    CHECK(out[0] == bf16(1));
  }
}

static void nan_stays_in_its_row(void) {
  for (int level = 0; level < LEVELS; ++level) {
    const gm_exec exec = cpu(levels[level]);
    float *x = filled(GM_F32, 3 * 65, false), *out = filled(GM_F32, 3 * 65, false);
    x[65 + 64] = NAN;
    const gm_tensor tx = F32(x, 3, 65), to = F32(out, 3, 65);
    CHECK_OK(gm_rms_norm(&exec, &tx, NULL, 1, &to));
    for (int i = 0; i < 3 * 65; ++i) CHECK(isnan(out[i]) == (i / 65 == 1));
  }
}

static void empty(void) {
  const gm_exec exec = cpu(0);
  const gm_tensor x = F32(NULL, 0, 3, 5);
  float *memory = floats(4, false);
  gm_tensor out = F32(memory, 0, 3, 5);
  out.stride[0] = -1;
  CHECK_OK(gm_rms_norm(&exec, &x, NULL, 1, &out));
  CHECK(strcmp(gm_last_kernel(), "none") == 0);
  CHECK(untouched(memory, 16));
}

void test_rms_norm(void) {
  run_case("rms_norm", "by_hand", by_hand);
  run_case("rms_norm", "shapes", shapes);
  run_case("rms_norm", "ranks_and_strides", ranks_and_strides);
  run_case("rms_norm", "tiny_epsilon", tiny_epsilon);
  run_case("rms_norm", "nan_stays_in_its_row", nan_stays_in_its_row);
  run_case("rms_norm", "empty", empty);
}
