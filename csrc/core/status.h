#ifndef GATEMIX_CORE_STATUS_H
#define GATEMIX_CORE_STATUS_H

#include "gatemix.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes this thread's gm_last_error() and returns status. */
gm_status gm_fail(gm_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets this thread's gm_last_kernel() and returns GM_OK. name lives for ever. */
gm_status gm_succeed(const char *name);

#define GM_TRY(call)                        \
  do {                                      \
    const gm_status gm_try_status = (call); \
    if (gm_try_status != GM_OK) {           \
      return gm_try_status;                 \
    }                                       \
  } while (0)

#ifdef __cplusplus
}
#endif

#endif
