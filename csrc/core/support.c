#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* Compute capabilities (10 * major + minor) that gm_gated_mla serves. */
static const int32_t capabilities[] = {80, 86, 87, 89, 90, 100, 103, 120, 121};
enum { kWidthMultiple = 256 };

static int known_capability(int32_t capability) {
  for (size_t i = 0; i < sizeof capabilities / sizeof capabilities[0]; ++i) {
    if (capabilities[i] == capability) {
      return 1;
    }
  }
  return 0;
}

static void list_capabilities(char *text, size_t size) {
  size_t used = 0;
  for (size_t i = 0; i < sizeof capabilities / sizeof capabilities[0] && used < size; ++i) {
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId32, i == 0 ? "" : ", ", capabilities[i]);
  }
}

static const char *first_strided(const gm_gate_facts *facts) {
  return !facts->x_contiguous ? "x" : !facts->weight_contiguous ? "weight" : !facts->attn_contiguous ? "attn" : NULL;
}

static const char *gating_name(int32_t gating_type) {
  switch (gating_type) {
  case GM_GATING_NONE: return "none";
  case GM_GATING_HEADWISE: return "headwise";
  default: return "unknown";
  }
}

static const char *dtype_name(int32_t dtype) {
  switch (dtype) {
  case GM_F16: return "f16";
  case GM_F32: return "f32";
  default: return "another type";
  }
}

/* Does `reason` speak against these facts? */
static int applies(int32_t reason, const gm_gate_facts *facts) {
  switch (reason) {
  case GM_GATE_NOT_ENABLED: return !facts->enabled;
  case GM_GATE_NO_GATE: return !facts->has_gate;
  case GM_GATE_NOT_BUILT: return !facts->backend_usable;
  case GM_GATE_BACKEND: return facts->backend != GM_BACKEND_CPU && facts->backend != GM_BACKEND_CUDA;
  case GM_GATE_CAPABILITY: return facts->backend == GM_BACKEND_CUDA && !known_capability(facts->capability);
  case GM_GATE_GATING_TYPE: return facts->gating_type != GM_GATING_ELEMENTWISE;
  case GM_GATE_WEIGHT_DTYPE: return facts->weight_dtype != GM_BF16;
  case GM_GATE_WIDTH: return facts->gate_width < 0 || facts->gate_width % kWidthMultiple != 0;
  case GM_GATE_NOT_CONTIGUOUS: return first_strided(facts) != NULL;
  default: return 0;
  }
}

static void explain(int32_t reason, const gm_gate_facts *facts, char *text, size_t size) {
  char list[64];
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
    list_capabilities(list, sizeof list);
    snprintf(text, size, "gated MLA is off: compute capability %" PRId32 " is not one of %s", facts->capability, list);
    break;
  case GM_GATE_GATING_TYPE:
    snprintf(text, size, "gated MLA is off: gating_type = %" PRId32 " (%s) has no fused form, only elementwise has",
             facts->gating_type, gating_name(facts->gating_type));
    break;
  case GM_GATE_WEIGHT_DTYPE:
    snprintf(text, size, "gated MLA is off: the gate's weight is %s (dtype %" PRId32 "), it must be bf16",
             dtype_name(facts->weight_dtype), facts->weight_dtype);
    break;
  case GM_GATE_WIDTH:
    snprintf(text, size, "gated MLA is off: gate_width = %" PRId64 " is not a multiple of %d", facts->gate_width,
             kWidthMultiple);
    break;
  case GM_GATE_NOT_CONTIGUOUS:
    snprintf(text, size, "gated MLA is off: %s is not contiguous", first_strided(facts));
    break;
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
  if (facts->struct_size != sizeof *facts) {
    return gm_fail(GM_ERROR_INVALID_VALUE, "facts.struct_size = %zu must be sizeof(gm_gate_facts) = %zu",
                   facts->struct_size, sizeof *facts);
  }
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
