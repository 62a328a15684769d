#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/capability.h"
#include "core/check.h"
#include "cuda/cuda.h"

static const char *gating_name(int32_t gating_type) {
  switch (gating_type) {
  case GM_GATING_NONE: return "none";
  case GM_GATING_HEADWISE: return "headwise";
  default: return "unknown";
  }
}

/* Does `reason` speak against these facts? */
static int applies(int32_t reason, const gm_gate_facts *facts) {
  switch (reason) {
  case GM_GATE_NOT_ENABLED: return !facts->enabled;
  case GM_GATE_NO_GATE: return !facts->has_gate;
  case GM_GATE_NOT_BUILT: return !facts->backend_usable;
  case GM_GATE_BACKEND: return facts->backend != GM_BACKEND_CPU && facts->backend != GM_BACKEND_CUDA;
  case GM_GATE_CAPABILITY:
    return facts->backend == GM_BACKEND_CUDA && !gm_capability_served(gm_cuda_code(), facts->capability);
  case GM_GATE_GATING_TYPE: return facts->gating_type != GM_GATING_ELEMENTWISE;
  case GM_GATE_WEIGHT_DTYPE: return facts->weight_dtype != GM_BF16;
  case GM_GATE_WIDTH: return facts->gate_width < 0 || facts->gate_width % GM_GATE_WIDTH_MULTIPLE != 0;
  case GM_GATE_NOT_CONTIGUOUS: return !facts->x_contiguous || !facts->weight_contiguous || !facts->attn_contiguous;
  default: return 0;
  }
}

static void explain_strided(const gm_gate_facts *facts, char *text, size_t size) {
  const char *const names[] = {"x", "weight", "attn"};
  const int strided[] = {!facts->x_contiguous, !facts->weight_contiguous, !facts->attn_contiguous};
  size_t used = (size_t)snprintf(text, size, "gated MLA is off:");
  int count = 0;
  for (int i = 0; i < 3; ++i) {
    if (strided[i]) {
      used += (size_t)snprintf(text + used, size - used, "%s %s", count++ == 0 ? "" : " and", names[i]);
    }
  }
  snprintf(text + used, size - used, "%s not contiguous", count == 1 ? " is" : " are");
}

static void explain(int32_t reason, const gm_gate_facts *facts, char *text, size_t size) {
  char list[80];
  switch (reason) {
  case GM_GATE_NOT_ENABLED:
    snprintf(text, size, "gated MLA is off: enabled = 0 (the caller's choice, or GATEMIX_ENABLE=0)");
    break;
  case GM_GATE_NO_GATE: snprintf(text, size, "gated MLA is off: has_gate = 0, the layer has no output gate"); break;
  case GM_GATE_NOT_BUILT:
    snprintf(text, size,
             "gated MLA is off: backend_usable = 0, backend %" PRId32 " is not in this build or has no device",
             facts->backend);
    break;
  case GM_GATE_BACKEND:
    snprintf(text, size, "gated MLA is off: backend = %" PRId32 " is neither the CPU (1) nor CUDA (2)", facts->backend);
    break;
  case GM_GATE_CAPABILITY:
    gm_capability_list(gm_cuda_code(), list, sizeof list);
    snprintf(text, size,
             "gated MLA is off: compute capability %" PRId32 " is not among those that this build has kernels for: %s",
             facts->capability, list);
    break;
  case GM_GATE_GATING_TYPE:
    snprintf(text, size, "gated MLA is off: gating_type = %" PRId32 " (%s) has no fused form, only elementwise has",
             facts->gating_type, gating_name(facts->gating_type));
    break;
  case GM_GATE_WEIGHT_DTYPE:
    snprintf(text, size, "gated MLA is off: weight_dtype = %" PRId32 " (%s) must be bf16", facts->weight_dtype,
             gm_dtype_name(facts->weight_dtype));
    break;
  case GM_GATE_WIDTH:
    snprintf(text, size,
             facts->gate_width < 0 ? "gated MLA is off: gate_width = %" PRId64 " must not be negative"
                                   : "gated MLA is off: gate_width = %" PRId64 " is not a multiple of %d",
             facts->gate_width, GM_GATE_WIDTH_MULTIPLE);
    break;
  case GM_GATE_NOT_CONTIGUOUS: explain_strided(facts, text, size); break;
  default: text[0] = '\0'; break;
  }
}

static gm_gate_verdict verdict_of(int32_t reason, const gm_gate_facts *facts) {
  gm_gate_verdict verdict = {.supported = reason == GM_GATE_SUPPORTED, .reason = reason};
  explain(reason, facts, verdict.message, sizeof verdict.message);
  return verdict;
}

gm_status gm_gated_mla_support_all(const gm_gate_facts *facts, gm_gate_verdict *verdicts, size_t capacity,
                                   size_t *count) {
  if (facts == NULL || count == NULL || (verdicts == NULL && capacity > 0)) {
    return gm_fail(GM_ERROR_NULL_POINTER, "%s is NULL, but required",
                   facts == NULL   ? "facts"
                   : count == NULL ? "count"
                                   : "verdicts");
  }
  GM_TRY(gm_check_struct_size(facts, "gate_facts", sizeof *facts, sizeof *facts));
  *count = 0;
  for (int32_t reason = GM_GATE_SUPPORTED + 1; reason < GM_GATE_REASON_COUNT; ++reason) {
    if (applies(reason, facts)) {
      if (*count < capacity) {
        verdicts[*count] = verdict_of(reason, facts);
      }
      ++*count;
    }
  }
  return GM_OK;
}

gm_status gm_gated_mla_support(const gm_gate_facts *facts, gm_gate_verdict *verdict) {
  size_t count;
  if (verdict == NULL) {
    return gm_fail(GM_ERROR_NULL_POINTER, "verdict is NULL, but required");
  }
  GM_TRY(gm_gated_mla_support_all(facts, verdict, 1, &count));
  if (count == 0) {
    *verdict = verdict_of(GM_GATE_SUPPORTED, facts);
  }
  return GM_OK;
}

int32_t gm_gate_enabled(int32_t fallback) {
  const char *value = getenv("GATEMIX_ENABLE");
  if (value != NULL && strcmp(value, "1") == 0) {
    return 1;
  }
  if (value != NULL && strcmp(value, "0") == 0) {
    return 0;
  }
  return fallback != 0;
}
