// The support check: order, sentences, all reasons, struct_size; GATEMIX_ENABLE.
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static gm_gate_facts good(int32_t backend) {
  gm_gate_facts facts;
  memset(&facts, 0, sizeof facts);
  facts.struct_size = sizeof facts;
  facts.enabled = facts.has_gate = facts.backend_usable = 1;
  facts.backend = backend;
  facts.capability = backend == GM_BACKEND_CUDA ? 90 : 0;
  facts.gating_type = GM_GATING_ELEMENTWISE;
  facts.weight_dtype = GM_BF16;
  facts.x_contiguous = facts.weight_contiguous = facts.attn_contiguous = 1;
  facts.gate_width = 16384;
  return facts;
}

static void expect(const gm_gate_facts *facts, int32_t reason, const char *word, int line) {
  gm_gate_verdict verdict;
  memset(&verdict, 0xA5, sizeof verdict);
  CHECK_OK(gm_gated_mla_support(facts, &verdict));
  check_at(verdict.reason == reason && verdict.supported == (reason == GM_GATE_SUPPORTED), __FILE__, line,
           "supported %d, reason %d instead of %d: %s", verdict.supported, verdict.reason, reason, verdict.message);
  check_at(memchr(verdict.message, 0, sizeof verdict.message) != NULL, __FILE__, line, "unterminated message");
  if (reason == GM_GATE_SUPPORTED)
    check_at(verdict.message[0] == 0, __FILE__, line, "message \"%s\"", verdict.message);
  else
    check_at(strlen(verdict.message) > 10 && strstr(verdict.message, word), __FILE__, line, "no \"%s\" in \"%s\"", word,
             verdict.message);

  gm_gate_verdict all[GM_GATE_REASON_COUNT];
  size_t count = 99;
  CHECK_OK(gm_gated_mla_support_all(facts, all, GM_GATE_REASON_COUNT, &count));
  check_at(count == (reason != GM_GATE_SUPPORTED), __FILE__, line, "%zu reasons", count);
  if (count == 1)
    check_at(all[0].supported == 0 && all[0].reason == reason && !strcmp(all[0].message, verdict.message), __FILE__,
             line, "the list says %d: %s", all[0].reason, all[0].message);
}
#define EXPECT(facts, reason, word) expect((facts), (reason), (word), __LINE__)

static void supported(void) {
  gm_gate_facts facts = good(GM_BACKEND_CPU);
  EXPECT(&facts, GM_GATE_SUPPORTED, "");
  facts.capability = 50; // ignored on the CPU
  EXPECT(&facts, GM_GATE_SUPPORTED, "");
  facts.gate_width = 256;
  EXPECT(&facts, GM_GATE_SUPPORTED, "");
  facts.gate_width = 0;
  EXPECT(&facts, GM_GATE_SUPPORTED, "");
}

// On the capabilities that this build has machine code for, as gm_build_info() names it.
static void capabilities(void) {
  const int32_t all[] = {80, 86, 87, 89, 90, 100, 103, 120, 121};
  if (strstr(gm_build_info(), "cuda: absent")) {
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
      gm_gate_facts facts = good(GM_BACKEND_CUDA);
      facts.capability = all[i];
      EXPECT(&facts, GM_GATE_CAPABILITY, "has kernels for: none");
    }
    return;
  }
  int count = 0;
  const char *info = gm_build_info();
  while ((info = strstr(info, "sm_"))) {
    gm_gate_facts facts = good(GM_BACKEND_CUDA);
    info += 3;
    facts.capability = (int32_t)strtol(info, NULL, 10);
    EXPECT(&facts, GM_GATE_SUPPORTED, "");
    ++count;
  }
  CHECK(count > 0);
}

static void one_reason(void) {
  gm_gate_facts facts;
#define WITH(backend, change, reason, word) \
  do {                                      \
    facts = good(backend);                  \
    change;                                 \
    EXPECT(&facts, reason, word);           \
  } while (0)
  WITH(GM_BACKEND_CPU, facts.enabled = 0, GM_GATE_NOT_ENABLED, "enabled");
  WITH(GM_BACKEND_CPU, facts.has_gate = 0, GM_GATE_NO_GATE, "gate");
  WITH(GM_BACKEND_CPU, facts.backend_usable = 0, GM_GATE_NOT_BUILT, "");
  WITH(77, facts.capability = 90, GM_GATE_BACKEND, "77");
  WITH(GM_BACKEND_CUDA, facts.capability = 75, GM_GATE_CAPABILITY, "7");
  WITH(GM_BACKEND_CUDA, facts.capability = 70, GM_GATE_CAPABILITY, "7");
  WITH(GM_BACKEND_CUDA, facts.capability = 0, GM_GATE_CAPABILITY, "");
  WITH(GM_BACKEND_CUDA, facts.capability = -90, GM_GATE_CAPABILITY, "");
  WITH(GM_BACKEND_CPU, facts.gating_type = GM_GATING_HEADWISE, GM_GATE_GATING_TYPE, "headwise");
  WITH(GM_BACKEND_CPU, facts.gating_type = GM_GATING_NONE, GM_GATE_GATING_TYPE, "none");
  WITH(GM_BACKEND_CPU, facts.gating_type = 42, GM_GATE_GATING_TYPE, "42");
  WITH(GM_BACKEND_CPU, facts.weight_dtype = GM_F16, GM_GATE_WEIGHT_DTYPE, "f16");
  WITH(GM_BACKEND_CPU, facts.weight_dtype = GM_F32, GM_GATE_WEIGHT_DTYPE, "f32");
  WITH(GM_BACKEND_CPU, facts.weight_dtype = 0, GM_GATE_WEIGHT_DTYPE, "");
  WITH(GM_BACKEND_CPU, facts.gate_width = 300, GM_GATE_WIDTH, "300");
  WITH(GM_BACKEND_CPU, facts.gate_width = INT64_C(5000000001), GM_GATE_WIDTH, "5000000001");
  WITH(GM_BACKEND_CPU, facts.gate_width = -1, GM_GATE_WIDTH, "-1");
  WITH(GM_BACKEND_CPU, facts.gate_width = -256, GM_GATE_WIDTH, "gate_width = -256 must not be negative");
  WITH(GM_BACKEND_CPU, facts.x_contiguous = 0, GM_GATE_NOT_CONTIGUOUS, "x");
  WITH(GM_BACKEND_CPU, facts.weight_contiguous = 0, GM_GATE_NOT_CONTIGUOUS, "weight");
  WITH(GM_BACKEND_CPU, facts.attn_contiguous = 0, GM_GATE_NOT_CONTIGUOUS, "attn is not contiguous");
  WITH(GM_BACKEND_CPU, facts.weight_contiguous = facts.attn_contiguous = 0, GM_GATE_NOT_CONTIGUOUS,
       "weight and attn are not contiguous");
#undef WITH
}

// Everything is wrong; the first reason is reported, then repaired.
static void order(void) {
  gm_gate_facts facts;
  memset(&facts, 0, sizeof facts);
  facts.struct_size = sizeof facts;
  facts.backend = GM_BACKEND_CUDA;
  facts.capability = 75;
  facts.gating_type = GM_GATING_HEADWISE;
  facts.weight_dtype = GM_F16;
  facts.gate_width = 300;
  const int32_t reasons[] = {GM_GATE_NOT_ENABLED, GM_GATE_NO_GATE,      GM_GATE_NOT_BUILT, GM_GATE_CAPABILITY,
                             GM_GATE_GATING_TYPE, GM_GATE_WEIGHT_DTYPE, GM_GATE_WIDTH,     GM_GATE_NOT_CONTIGUOUS};
  const size_t total = sizeof reasons / sizeof *reasons;
  for (size_t fixed = 0; fixed <= total; ++fixed) {
    gm_gate_verdict first, all[GM_GATE_REASON_COUNT];
    size_t count = 99;
    CHECK_OK(gm_gated_mla_support(&facts, &first));
    CHECK(first.reason == (fixed < total ? reasons[fixed] : GM_GATE_SUPPORTED));
    CHECK_OK(gm_gated_mla_support_all(&facts, all, GM_GATE_REASON_COUNT, &count));
    CHECK(count == total - fixed);
    for (size_t i = 0; i < count && fixed + i < total; ++i) CHECK(all[i].reason == reasons[fixed + i]);
    switch (fixed) {
    case 0: facts.enabled = 1; break;
    case 1: facts.has_gate = 1; break;
    case 2: facts.backend_usable = 1; break;
    case 3: facts.backend = GM_BACKEND_CPU; break;
    case 4: facts.gating_type = GM_GATING_ELEMENTWISE; break;
    case 5: facts.weight_dtype = GM_BF16; break;
    case 6: facts.gate_width = 512; break;
    default: facts.x_contiguous = facts.weight_contiguous = facts.attn_contiguous = 1;
    }
  }
}

static void capacity(void) {
  gm_gate_facts facts = good(GM_BACKEND_CPU);
  facts.enabled = facts.has_gate = 0;
  facts.gate_width = 1;
  size_t count = 0;
  CHECK_OK(gm_gated_mla_support_all(&facts, NULL, 0, &count));
  CHECK(count == 3);
  gm_gate_verdict *two = exact(2 * sizeof *two, 0);
  CHECK_OK(gm_gated_mla_support_all(&facts, two, 1, &count));
  CHECK(count == 3);
  CHECK(two[0].reason == GM_GATE_NOT_ENABLED);
  CHECK(untouched(&two[1], sizeof two[1]));
  CHECK_OK(gm_gated_mla_support_all(&facts, two, 2, &count));
  CHECK(count == 3 && two[1].reason == GM_GATE_NO_GATE);
}

static void refused(void) {
  gm_gate_facts facts = good(GM_BACKEND_CPU);
  gm_gate_verdict *verdict = exact(sizeof *verdict, 0);
  size_t count = 99;
  CHECK_STATUS(gm_gated_mla_support(NULL, verdict), GM_ERROR_NULL_POINTER);
  CHECK_STATUS(gm_gated_mla_support(&facts, NULL), GM_ERROR_NULL_POINTER);
  CHECK_STATUS(gm_gated_mla_support_all(NULL, verdict, 1, &count), GM_ERROR_NULL_POINTER);
  CHECK_STATUS(gm_gated_mla_support_all(&facts, NULL, 1, &count), GM_ERROR_NULL_POINTER);
  CHECK_STATUS(gm_gated_mla_support_all(&facts, verdict, 1, NULL), GM_ERROR_NULL_POINTER);
  const size_t sizes[] = {0, 8, sizeof facts - 1, 1025, SIZE_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    facts.struct_size = sizes[i];
    CHECK_STATUS(gm_gated_mla_support(&facts, verdict), GM_ERROR_INVALID_VALUE);
    CHECK(strstr(gm_last_error(), "struct_size") != NULL);
    CHECK_STATUS(gm_gated_mla_support_all(&facts, verdict, 1, &count), GM_ERROR_INVALID_VALUE);
  }
  CHECK(untouched(verdict, sizeof *verdict));
  CHECK(count == 99);
}

// A longer struct is accepted if its tail is zero, as gm_exec is.
static void longer_facts(void) {
  union {
    gm_gate_facts facts;
    unsigned char bytes[1024];
  } longer;
  const size_t sizes[] = {sizeof(gm_gate_facts) + 1, sizeof(gm_gate_facts) + 8, sizeof longer};
  gm_gate_verdict verdict;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    memset(&longer, 0, sizeof longer);
    longer.facts = good(GM_BACKEND_CPU);
    longer.facts.struct_size = sizes[i];
    EXPECT(&longer.facts, GM_GATE_SUPPORTED, "");
    longer.bytes[sizes[i] - 1] = 1;
    CHECK_STATUS(gm_gated_mla_support(&longer.facts, &verdict), GM_ERROR_INVALID_VALUE);
    CHECK(strstr(gm_last_error(), "struct_size") != NULL);
  }
}

static void enabled(void) {
  const char *name = "GATEMIX_ENABLE";
  const char *old = getenv(name);
  char *saved = old ? strdup(old) : NULL;
  unsetenv(name);
  CHECK(gm_gate_enabled(0) == 0 && gm_gate_enabled(1) == 1);
  setenv(name, "1", 1);
  CHECK(gm_gate_enabled(0) == 1 && gm_gate_enabled(1) == 1);
  setenv(name, "0", 1);
  CHECK(gm_gate_enabled(0) == 0 && gm_gate_enabled(1) == 0);
  const char *others[] = {"", "yes", "10", "01", " 1"};
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    setenv(name, others[i], 1);
    CHECK(gm_gate_enabled(0) == 0 && gm_gate_enabled(1) == 1);
  }
  if (saved)
    setenv(name, saved, 1);
  else
    unsetenv(name);
  free(saved);
}

void test_support(void) {
  run_case("support", "supported", supported);
  run_case("support", "capabilities", capabilities);
  run_case("support", "one_reason", one_reason);
  run_case("support", "order", order);
  run_case("support", "capacity", capacity);
  run_case("support", "refused", refused);
  run_case("support", "longer_facts", longer_facts);
  run_case("support", "enabled", enabled);
}
