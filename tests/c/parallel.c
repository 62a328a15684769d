// gm_parallel over the caller's own threads, and several callers at once.
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"

// A task may use 128 KiB of stack; the rest is for the C library. Sanitizers need more.
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(memory_sanitizer))
#else
#define SANITIZED 0
#endif
#define TASK_STACK ((size_t)160 * 1024)

enum { MAX_WIDTH = 7 };

typedef struct {
  atomic_size_t next;
  size_t tasks;
  void (*task)(void *arg, size_t i);
  void *arg;
} batch;

static void *work(void *arg) {
  batch *b = arg;
  for (size_t i; (i = atomic_fetch_add(&b->next, 1)) < b->tasks;) b->task(b->arg, b->tasks - 1 - i); // last task first
  return NULL;
}

typedef struct {
  int width;
  atomic_size_t runs, most_tasks;
} pool;

static void run(void *ctx, size_t tasks, void (*task)(void *arg, size_t i), void *arg) {
  pool *p = ctx;
  atomic_fetch_add(&p->runs, 1);
  if (tasks > atomic_load(&p->most_tasks)) atomic_store(&p->most_tasks, tasks);
  batch b;
  atomic_init(&b.next, 0);
  b.tasks = tasks, b.task = task, b.arg = arg;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (!SANITIZED) CHECK(pthread_attr_setstacksize(&attributes, TASK_STACK) == 0);
  pthread_t threads[MAX_WIDTH];
  int started = 0;
  for (; started < p->width; ++started)
    if (pthread_create(&threads[started], &attributes, work, &b)) break;
  CHECK(started > 0 || tasks == 0);
  for (int i = 0; i < started; ++i) pthread_join(threads[i], NULL);
  pthread_attr_destroy(&attributes);
}

enum { OPERATORS = 6, SIZES = 3 };

// Runs one op on inputs that depend only on (op, size); the outputs lie in one buffer.
typedef struct {
  uint16_t *a, *b, *c;
  float *f, *g, *h, *s;
  unsigned char *out;
  size_t bytes;
  gm_tensor in[6], to[2];
} setting;

static setting settings[OPERATORS][SIZES];

static void prepare(int op, int size) {
  static const int64_t tokens_of[SIZES] = {1, 13, 70}, widths[SIZES] = {7, 250, 1030};
  const int64_t T = tokens_of[size], H = widths[size], n = 4;
  setting *s = &settings[op][size];
  memset(s, 0, sizeof *s);
  const int64_t a = op == 0 ? T * 65 : T * n * H, b = op == 0 ? 256 * (1 + size) * 65 : T * H;
  const int64_t c = op == 0 ? T * 256 * (1 + size) : H;
  s->a = halves(a, true), s->b = halves(b, true), s->c = halves(c, true);
  s->f = floats(n * n * H + T * n * n, true), s->g = floats(2 * T * n, true), s->h = floats(2 * T * n, true);
  s->s = floats(n, true);
  for (int64_t i = 0; i < a; ++i) s->a[i] = bf16(draw_bf16());
  for (int64_t i = 0; i < b; ++i) s->b[i] = bf16(draw_bf16());
  for (int64_t i = 0; i < c; ++i) s->c[i] = bf16(draw_bf16());
  for (int64_t i = 0; i < n * n * H + T * n * n; ++i) s->f[i] = draw_f32();
  for (int64_t i = 0; i < 2 * T * n; ++i) s->g[i] = draw_f32(), s->h[i] = draw_f32() + 2;
  for (int64_t i = 0; i < n; ++i) s->s[i] = draw_f32();
  switch (op) {
  case 0: {
    const int64_t N = 256 * (1 + size);
    s->in[0] = BF16(s->a, T, 65), s->in[1] = BF16(s->b, N, 65), s->in[2] = BF16(s->c, T, N);
    s->to[0] = BF16(NULL, T, N);
    break;
  }
  case 1:
    s->in[0] = BF16(s->b, T, H), s->in[1] = BF16(s->c, H);
    s->to[0] = BF16(NULL, T, H);
    break;
  case 2:
    s->in[0] = BF16(s->a, T, n, H), s->in[1] = F32(s->g, T, n);
    s->to[0] = BF16(NULL, T, H);
    break;
  case 3:
    s->in[0] = BF16(s->a, T, n, H), s->in[1] = F32(s->f, n, n * H), s->in[2] = F32(s->s, 1), s->in[3] = F32(s->s, n);
    s->to[0] = BF16(NULL, T, H);
    break;
  case 4:
    s->in[0] = F32(s->g, 2, T, n), s->in[1] = F32(s->h, 2, T), s->in[2] = F32(s->s, 1), s->in[3] = F32(s->s, n);
    s->to[0] = F32(NULL, T, n);
    break;
  default:
    s->in[0] = BF16(s->a, T, n, H), s->in[1] = BF16(s->b, T, H), s->in[2] = F32(s->g, T, n);
    s->in[3] = F32(s->f, T, n, n), s->in[4] = F32(s->h, T, n), s->in[5] = BF16(s->c, H);
    s->to[0] = BF16(NULL, T, n, H), s->to[1] = BF16(NULL, T, H);
  }
  for (int o = 0; o < 2; ++o)
    if (s->to[o].rank) s->bytes += (size_t)element_count(&s->to[o]) * element_size(s->to[o].dtype);
}

static gm_status compute(int op, int size, const gm_exec *exec, void *out) {
  setting s = settings[op][size];
  s.to[0].data = out;
  s.to[1].data = (char *)out + (size_t)element_count(&s.to[0]) * element_size(s.to[0].dtype);
  switch (op) {
  case 0: return gm_gated_mla(exec, &s.in[0], &s.in[1], &s.in[2], &s.to[0]);
  case 1: return gm_rms_norm(exec, &s.in[0], &s.in[1], 1e-6f, &s.to[0]);
  case 2: return gm_hc_collapse(exec, &s.in[0], &s.in[1], &s.to[0]);
  case 3: return gm_hc_head(exec, &s.in[0], &s.in[1], &s.in[2], &s.in[3], 1e-6f, 1e-6f, size % 2, &s.to[0]);
  case 4: return gm_mhc_pre_mix(exec, &s.in[0], &s.in[1], &s.in[2], &s.in[3], 28, 1e-6f, 1e-6f, &s.to[0]);
  default:
    return gm_mhc_post_collapse_rms_norm(exec, &s.in[0], &s.in[1], &s.in[2], &s.in[3], &s.in[4], &s.in[5], 1e-6f,
                                         &s.to[0], &s.to[1]);
  }
}

static unsigned char *expected[LEVELS][OPERATORS][SIZES];

// Serial results at each dispatch level.
static void prepare_all(void) {
  for (int op = 0; op < OPERATORS; ++op)
    for (int size = 0; size < SIZES; ++size) {
      prepare(op, size);
      for (int level = 0; level < LEVELS; ++level) {
        const gm_exec exec = cpu(levels[level]);
        expected[level][op][size] = exact(settings[op][size].bytes, 0);
        CHECK_OK(compute(op, size, &exec, expected[level][op][size]));
      }
    }
}

static void same_bits(void) {
  prepare_all();
  for (int width = 1; width <= MAX_WIDTH; width += 2)
    for (int level = 0; level < LEVELS; ++level)
      for (int op = 0; op < OPERATORS; ++op)
        for (int size = 0; size < SIZES; ++size) {
          pool p;
          p.width = width;
          atomic_init(&p.runs, 0);
          atomic_init(&p.most_tasks, 0);
          const gm_parallel parallel = {&p, width, run};
          gm_exec exec = cpu(levels[level]);
          exec.parallel = &parallel;
          const size_t bytes = settings[op][size].bytes;
          unsigned char *out = exact(bytes, 0);
          CHECK_OK(compute(op, size, &exec, out));
          check_at(memcmp(out, expected[level][op][size], bytes) == 0, __FILE__, __LINE__,
                   "op %d, size %d, width %d: other bits (%s)", op, size, width, gm_last_kernel());
        }
}

// A large problem is split up: else the caller's threads would idle.
static void work_is_shared(void) {
  prepare_all();
  pool p;
  p.width = 4;
  atomic_init(&p.runs, 0);
  atomic_init(&p.most_tasks, 0);
  const gm_parallel parallel = {&p, 4, run};
  gm_exec exec = cpu(0);
  exec.parallel = &parallel;
  const int64_t m = 64, k = 1024, n = 1024;
  uint16_t *x = halves(m * k, false), *w = halves(n * k, false), *attn = halves(m * n, false);
  memset(x, 0, (size_t)(m * k) * 2), memset(w, 0, (size_t)(n * k) * 2), memset(attn, 0, (size_t)(m * n) * 2);
  const gm_tensor tx = BF16(x, m, k), tw = BF16(w, n, k), out = BF16(attn, m, n);
  CHECK_OK(gm_gated_mla(&exec, &tx, &tw, &out, &out));
  CHECK(atomic_load(&p.most_tasks) >= 4);
}

enum { CALLERS = 4 };

typedef struct {
  int index;
  pthread_barrier_t *barrier;
  unsigned char *out[OPERATORS][SIZES];
} caller;

static void *call_all(void *arg) {
  caller *me = arg;
  pool p;
  p.width = 2;
  atomic_init(&p.runs, 0);
  atomic_init(&p.most_tasks, 0);
  const gm_parallel parallel = {&p, 2, run};
  gm_exec exec = cpu(0);
  if (me->index % 2) exec.parallel = &parallel;
  pthread_barrier_wait(me->barrier);
  for (int round = 0; round < 3; ++round)
    for (int o = 0; o < OPERATORS; ++o)
      for (int size = 0; size < SIZES; ++size) {
        const int op = (o + me->index) % OPERATORS;
        const size_t bytes = settings[op][size].bytes;
        CHECK_OK(compute(op, size, &exec, me->out[op][size]));
        CHECK(memcmp(me->out[op][size], expected[0][op][size], bytes) == 0);
      }

  // Each thread has its own last error and build info.
  exec.backend = 100 + me->index;
  CHECK_STATUS(compute(0, 0, &exec, me->out[0][0]), GM_ERROR_INVALID_VALUE);
  const char *info = gm_build_info();
  pthread_barrier_wait(me->barrier);
  char number[16];
  snprintf(number, sizeof number, "%d", 100 + me->index);
  CHECK(strstr(gm_last_error(), number) != NULL);
  CHECK(strstr(info, GM_VERSION) != NULL);
  return NULL;
}

static void callers_at_once(void) {
  prepare_all();
  pthread_barrier_t barrier;
  CHECK(pthread_barrier_init(&barrier, NULL, CALLERS) == 0);
  pthread_t threads[CALLERS];
  caller callers[CALLERS];
  for (int i = 0; i < CALLERS; ++i) {
    callers[i].index = i;
    callers[i].barrier = &barrier;
    for (int op = 0; op < OPERATORS; ++op)
      for (int size = 0; size < SIZES; ++size) callers[i].out[op][size] = exact(settings[op][size].bytes, 0);
  }
  for (int i = 0; i < CALLERS; ++i) CHECK(pthread_create(&threads[i], NULL, call_all, &callers[i]) == 0);
  for (int i = 0; i < CALLERS; ++i) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&barrier);
}

void test_parallel(void) {
  run_case("parallel", "same_bits", same_bits);
  run_case("parallel", "work_is_shared", work_is_shared);
  run_case("parallel", "callers_at_once", callers_at_once);
}
