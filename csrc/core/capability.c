#include "core/capability.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Those that there are, from 8.0 on, in the lists of CUDA 13.0. */
static const int32_t capabilities[] = {80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

/* sm_90a runs on 9.0 alone; sm_80 and sm_100f within their major version, from their minor one on; compute_80 is PTX, which
 * the driver of any later device translates. */
static bool serves(const char *code, int32_t capability) {
  char *suffix;
  const long own = strtol(strchr(code, '_') + 1, &suffix, 10);
  if (code[0] == 'c') {
    return capability >= own;
  }
  return *suffix == 'a' ? capability == own : capability >= own && capability / 10 == own / 10;
}

bool gm_capability_served(const char *code, int32_t capability) {
  while (*code != '\0') {
    if (serves(code, capability)) {
      return true;
    }
    code += strcspn(code, ":");
    code += strspn(code, ":");
  }
  return false;
}

void gm_capability_list(const char *code, char *text, size_t size) {
  size_t used = 0;
  for (size_t i = 0; i < sizeof capabilities / sizeof capabilities[0] && used < size; ++i) {
    if (gm_capability_served(code, capabilities[i])) {
      used += (size_t)snprintf(text + used, size - used, "%s%" PRId32, used == 0 ? "" : ", ", capabilities[i]);
    }
  }
  if (used < size) {
    snprintf(text + used, size - used, "%s",
             gm_capability_served(code, INT32_MAX) ? " and later"
             : used == 0                           ? "none"
                                                   : "");
  }
}
