/* The only place that looks at the CPU: which twin of a kernel runs, and how its items are split into tasks. */
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdatomic.h>
#define GM_X86 1
#else
#define GM_X86 0
#endif

typedef enum isa { kPortable, kAvx2, kAvx512, kIsaCount } isa;

static const char *const isa_names[kIsaCount] = {"portable", "avx2", "avx512"};

#if GM_X86

static uint64_t xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static isa detect(void) {
  enum { kXmmYmm = 0x6, kZmm = 0xe0 }; /* XCR0: state that the operating system saves */
  const uint32_t leaf1_ecx = 1u << 12 /* FMA */ | 1u << 27 /* OSXSAVE */ | 1u << 28 /* AVX */ | 1u << 29 /* F16C */;
  const uint32_t avx2 = 1u << 5;
  const uint32_t avx512 = 1u << 16 /* F */ | 1u << 17 /* DQ */ | 1u << 30 /* BW */ | 1u << 31 /* VL */;
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & leaf1_ecx) != leaf1_ecx || (xcr0() & kXmmYmm) != kXmmYmm) {
    return kPortable;
  }
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ebx & avx2)) {
    return kPortable;
  }
  return (ebx & avx512) == avx512 && (xcr0() & kZmm) == kZmm ? kAvx512 : kAvx2;
}

/* GATEMIX_CPU_ISA lowers what is detected, so that one machine can run every twin. */
static isa detect_capped(void) {
  const isa found = detect();
  const char *cap = getenv("GATEMIX_CPU_ISA");
  for (isa i = kPortable; cap != NULL && i < found; ++i) {
    if (strcmp(cap, isa_names[i]) == 0) {
      return i;
    }
  }
  return found;
}

static isa best_isa(void) {
  static atomic_int cached = -1; /* racing threads store the same value */
  int value = atomic_load_explicit(&cached, memory_order_relaxed);
  if (value < 0) {
    value = (int)detect_capped();
    atomic_store_explicit(&cached, value, memory_order_relaxed);
  }
  return (isa)value;
}

#define TWINS(kernel) \
  { kernel##_portable, kernel##_avx2, kernel##_avx512 }

#else

static isa best_isa(void) { return kPortable; }

#define TWINS(kernel) \
  { kernel##_portable, NULL, NULL }

#endif

static isa choose_isa(uint32_t flags) {
  const isa best = best_isa();
  if (flags & GM_PORTABLE) {
    return kPortable;
  }
  return (flags & GM_NO_AVX512) && best == kAvx512 ? kAvx2 : best;
}

const char *gm_cpu_isa_name(uint32_t flags) { return isa_names[choose_isa(flags)]; }

const char *gm_cpu_isas_built(void) { return GM_X86 ? "portable avx2 avx512" : "portable"; }

typedef struct kernel {
  gm_cpu_kernel *twins[kIsaCount];
  const char *names[kIsaCount];
} kernel;

#define KERNEL(function, op, variant)                                                                 \
  {                                                                                                   \
    TWINS(function), { op "/cpu/portable" variant, op "/cpu/avx2" variant, op "/cpu/avx512" variant } \
  }

static const kernel gated_mla_gemv = KERNEL(gm_gated_mla_gemv, "gated_mla", "/gemv");
static const kernel gated_mla_gemm = KERNEL(gm_gated_mla_gemm, "gated_mla", "/gemm");
static const kernel rms_norm = KERNEL(gm_rms_norm, "rms_norm", "");
static const kernel hc_collapse = KERNEL(gm_hc_collapse, "hc_collapse", "");
static const kernel hc_head = KERNEL(gm_hc_head, "hc_head", "");
static const kernel mhc_pre_mix = KERNEL(gm_mhc_pre_mix, "mhc_pre_mix", "");
static const kernel mhc_post_collapse_rms_norm =
    KERNEL(gm_mhc_post_collapse_rms_norm, "mhc_post_collapse_rms_norm", "");

static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

typedef struct split {
  gm_cpu_kernel *run;
  const void *problem;
  int64_t items, chunk;
} split;

static void run_task(void *arg, size_t i) {
  const split *s = arg;
  const int64_t begin = (int64_t)i * s->chunk;
  s->run(s->problem, begin, s->items - begin < s->chunk ? s->items : begin + s->chunk);
}

/* Runs a kernel over `items`, in equal tasks of a multiple of `unit` and about `enough` items or more: a few tasks a
 * thread, so that a thread that is late finds others at its work. */
static gm_status run(const gm_exec *exec, const kernel *k, isa i, const void *problem, int64_t items, int64_t unit,
                     int64_t enough) {
  enum { kTasksPerThread = 4 };
  const gm_parallel *parallel = exec->parallel;
  const int64_t most = parallel == NULL || parallel->width == 1 ? 1 : (int64_t)parallel->width * kTasksPerThread;
  const int64_t worthwhile = divide_up(items, enough);
  const int64_t tasks = worthwhile < most ? worthwhile : most;
  if (tasks == 1) {
    k->twins[i](problem, 0, items);
  } else {
    split s = {k->twins[i], problem, items, unit * divide_up(divide_up(items, tasks), unit)};
    parallel->run(parallel->ctx, (size_t)divide_up(items, s.chunk), run_task, &s);
  }
  return gm_succeed(k->names[i]);
}

/* Runs a kernel over tokens: on this thread alone where waking another, about 10 us, would take longer than its share,
 * else in tasks of some memory traffic. A token's own cost, such as its coefficients, counts as 512 bytes. */
static gm_status run_tokens(const gm_exec *exec, const kernel *k, isa i, const void *problem, int64_t tokens,
                            int64_t bytes_per_token) {
  enum { kAloneBytes = 524288, kTaskBytes = 65536, kTokenBytes = 512 };
  const int64_t bytes = bytes_per_token + kTokenBytes;
  const int64_t enough = tokens <= kAloneBytes / bytes ? tokens : divide_up(kTaskBytes, bytes);
  return run(exec, k, i, problem, tokens, 1, enough);
}

gm_status gm_gated_mla_cpu(const gm_exec *exec, const gm_gated_mla_problem *p) {
  enum { kGemvRows = 32 }; /* 64 bytes of an output row: no two tasks write one cache line of an aligned tensor */
  /* Rows of x up to which reading the weight as it lies beats packing it: docs/tuning.md, 2026-12-01. */
  static const int64_t gemv_max_rows[kIsaCount] = {8, 12, 48};
  const isa i = choose_isa(exec->flags);
  /* Where the weight is packed, vectors sum k in another order; portable C has one order. */
  const int fixed_order = (exec->flags & GM_BATCH_INVARIANT) && i != kPortable;
  if (p->m <= gemv_max_rows[i] || fixed_order) {
    return run(exec, &gated_mla_gemv, i, p, p->n, kGemvRows, kGemvRows);
  }
  return run(exec, &gated_mla_gemm, i, p, divide_up(p->m, GM_GEMM_TILE_M) * (p->n / GM_GEMM_TILE_N), 1, 1);
}

gm_status gm_rms_norm_cpu(const gm_exec *exec, const gm_rms_norm_problem *p) {
  return run_tokens(exec, &rms_norm, choose_isa(exec->flags), p, p->rows, 4 * p->width);
}

gm_status gm_hc_collapse_cpu(const gm_exec *exec, const gm_hc_collapse_problem *p) {
  /* The vector twins read whole vectors along the hidden dimension. */
  const int unit_stride = p->residual_stride[2] == 1 || p->hidden == 1;
  const isa i = unit_stride ? choose_isa(exec->flags) : kPortable;
  return run_tokens(exec, &hc_collapse, i, p, p->tokens, 2 * (p->streams + 1) * p->hidden);
}

gm_status gm_hc_head_cpu(const gm_exec *exec, const gm_hc_head_problem *p) {
  return run_tokens(exec, &hc_head, choose_isa(exec->flags), p, p->tokens, 2 * (p->streams + 1) * p->hidden);
}

gm_status gm_mhc_pre_mix_cpu(const gm_exec *exec, const gm_mhc_pre_mix_problem *p) {
  enum { kCacheLine = 64, kManySlices = 1024 };
  /* With a zero stride there may be more slices than memory has bytes. */
  const int64_t slices = p->slices < kManySlices ? p->slices : kManySlices;
  return run_tokens(exec, &mhc_pre_mix, choose_isa(exec->flags), p, p->tokens, slices * kCacheLine);
}

gm_status gm_mhc_post_collapse_rms_norm_cpu(const gm_exec *exec, const gm_mhc_post_collapse_rms_norm_problem *p) {
  return run_tokens(exec, &mhc_post_collapse_rms_norm, choose_isa(exec->flags), p, p->tokens,
                    4 * (p->streams + 1) * p->hidden);
}
