#define _DEFAULT_SOURCE
#include "harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif
#ifndef ADDRESS_SANITIZER
#define ADDRESS_SANITIZER 0
#endif

const uint32_t levels[LEVELS] = {0, GM_NO_AVX512, GM_PORTABLE};

// ---- Cases ----

static int passed, failed;
static atomic_int failures;

typedef struct block {
  struct block *next;
  void *start;
  size_t bytes;
} block;
static block *blocks;

static void release_blocks(void) {
  while (blocks) {
    block *b = blocks;
    blocks = b->next;
    if (ADDRESS_SANITIZER)
      free(b->start);
    else
      munmap(b->start, b->bytes);
    free(b);
  }
}

void run_case(const char *theme, const char *name, void (*body)(void)) {
  atomic_store(&failures, 0);
  draw_seed(1);
  body();
  release_blocks();
  const int bad = atomic_load(&failures);
  if (bad) {
    printf("%s: %s: FAILED (%d checks)\n", theme, name, bad);
    ++failed;
  } else {
    ++passed;
  }
  fflush(stdout);
}

bool check_at(bool ok, const char *file, int line, const char *format, ...) {
  if (ok) return true;
  if (atomic_fetch_add(&failures, 1) < 10) {
    va_list args;
    va_start(args, format);
    flockfile(stdout);
    printf("%s:%d: ", file, line);
    vprintf(format, args);
    putchar('\n');
    funlockfile(stdout);
    va_end(args);
  }
  return false;
}

bool check_status(gm_status got, gm_status want, const char *file, int line, const char *call) {
  return check_at(got == want, file, line, "%s: %s instead of %s: %s", call, gm_status_string(got),
                  gm_status_string(want), gm_last_error());
}

int main(void) {
  printf("%s\n", gm_build_info());
  test_library();
  test_support();
  test_refusals();
  test_gated_mla();
  test_rms_norm();
  test_hc_collapse();
  test_hc_head();
  test_mhc_pre_mix();
  test_mhc_post_collapse_rms_norm();
  test_parallel();
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}

// ---- Memory ----

static void *must(void *p) {
  if (!p || p == MAP_FAILED) {
    perror("memory");
    abort();
  }
  return p;
}

void *exact(size_t bytes, size_t misalign) {
  block *b = must(malloc(sizeof *b));
  unsigned char *data;
  if (ADDRESS_SANITIZER) {
    b->bytes = misalign + bytes;
    b->start = must(malloc(b->bytes ? b->bytes : 1));
    data = (unsigned char *)b->start + misalign;
  } else {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (bytes + page - 1) / page * page;
    b->bytes = body + 2 * page;
    b->start = must(mmap(NULL, b->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (body && mprotect((unsigned char *)b->start + page, body, PROT_READ | PROT_WRITE)) must(NULL);
    data = (unsigned char *)b->start + page + body - bytes;
  }
  b->next = blocks;
  blocks = b;
  if (bytes) memset(data, 0xA5, bytes);
  return data;
}

uint16_t *halves(int64_t count, bool odd) {
  return exact((size_t)count * sizeof(uint16_t), odd ? sizeof(uint16_t) : 0);
}

float *floats(int64_t count, bool odd) { return exact((size_t)count * sizeof(float), odd ? sizeof(float) : 0); }

bool untouched(const void *memory, size_t bytes) {
  const unsigned char *p = memory;
  for (size_t i = 0; i < bytes; ++i)
    if (p[i] != 0xA5) return false;
  return true;
}

// ---- Arguments ----

gm_tensor tensor(int32_t dtype, const void *data, const int64_t *shape, int32_t rank) {
  gm_tensor t;
  memset(&t, 0, sizeof t);
  union {
    const void *in;
    void *out;
  } cast = {data};
  t.data = cast.out;
  t.dtype = dtype;
  t.rank = rank;
  for (int32_t d = 0; d < rank; ++d) t.shape[d] = shape[d];
  make_contiguous(&t);
  return t;
}

void make_contiguous(gm_tensor *t) {
  uint64_t stride = 1; // wraps for absurd shapes
  for (int32_t d = t->rank - 1; d >= 0; --d) {
    t->stride[d] = (int64_t)stride;
    stride *= (uint64_t)t->shape[d];
  }
}

size_t element_size(int32_t dtype) { return dtype == GM_F32 ? 4 : 2; }

int64_t element_count(const gm_tensor *t) {
  int64_t count = 1;
  for (int32_t d = 0; d < t->rank; ++d) count *= t->shape[d];
  return count;
}

gm_exec cpu(uint32_t flags) {
  gm_exec exec;
  memset(&exec, 0, sizeof exec);
  exec.struct_size = sizeof exec;
  exec.backend = GM_BACKEND_CPU;
  exec.flags = flags;
  return exec;
}

// ---- Numbers ----

uint32_t f32_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float bf16_value(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t bf16(float value) {
  const uint32_t bits = f32_bits(value);
  if (isnan(value)) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float f16_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  float value;
  if (exponent == 31)
    value = mantissa ? NAN : INFINITY;
  else if (exponent == 0)
    value = ldexpf((float)mantissa, -24);
  else
    value = ldexpf((float)(mantissa + 1024), exponent - 25);
  return bits & 0x8000 ? -value : value;
}

// The value must be zero or a normal half.
static uint16_t f16(float value) {
  const unsigned sign = signbit(value) ? 0x8000 : 0;
  if (value == 0) return (uint16_t)sign;
  const int exponent = ilogbf(value);
  const unsigned mantissa = (unsigned)ldexpf(fabsf(value), 10 - exponent) - 1024;
  return (uint16_t)(sign | (unsigned)(exponent + 15) << 10 | mantissa);
}

double read_element(int32_t dtype, const void *data, int64_t i) {
  if (dtype == GM_F32) return (double)((const float *)data)[i];
  const uint16_t bits = ((const uint16_t *)data)[i];
  return (double)(dtype == GM_BF16 ? bf16_value(bits) : f16_value(bits));
}

void write_element(int32_t dtype, void *data, int64_t i, float value) {
  if (dtype == GM_F32)
    ((float *)data)[i] = value;
  else
    ((uint16_t *)data)[i] = dtype == GM_BF16 ? bf16(value) : f16(value);
}

bool within(int32_t dtype, double got, double exact, double ulps, double slack) {
  if (isnan(exact)) return isnan(got);
  if (isinf(exact)) return got == exact;
  const int bits = dtype == GM_F32 ? 23 : dtype == GM_F16 ? 10 : 7;
  const int lowest = dtype == GM_F16 ? -14 : -126;
  int exponent = exact == 0 ? lowest : ilogb(exact);
  if (exponent < lowest) exponent = lowest;
  return fabs(got - exact) <= slack + ulps * ldexp(1.0, exponent - bits);
}

double sigmoid(double z) { return 1.0 / (1.0 + exp(-z)); }

static uint64_t draw_state;

void draw_seed(uint64_t seed) { draw_state = seed; }

static uint32_t draw(void) {
  draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(draw_state >> 32);
}

float draw_grid(void) { return (float)((int)(draw() % 17) - 8) / 16.0f; }

float draw_f32(void) { return ((float)(draw() >> 8) / (float)(1 << 24) - 0.5f) * 4.0f; }

float draw_bf16(void) { return bf16_value(bf16(draw_f32())); }
