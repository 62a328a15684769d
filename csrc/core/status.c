#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];
static _Thread_local const char *last_kernel = "";

gm_status gm_fail(gm_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof last_error, format, args);
  va_end(args);
  return status;
}

gm_status gm_succeed(const char *name) {
  last_kernel = name;
  return GM_OK;
}

const char *gm_last_error(void) { return last_error; }

const char *gm_last_kernel(void) { return last_kernel; }

const char *gm_status_string(gm_status status) {
  switch (status) {
  case GM_OK: return "GM_OK";
  case GM_ERROR_NULL_POINTER: return "GM_ERROR_NULL_POINTER";
  case GM_ERROR_INVALID_VALUE: return "GM_ERROR_INVALID_VALUE";
  case GM_ERROR_DTYPE: return "GM_ERROR_DTYPE";
  case GM_ERROR_RANK: return "GM_ERROR_RANK";
  case GM_ERROR_SHAPE: return "GM_ERROR_SHAPE";
  case GM_ERROR_STRIDE: return "GM_ERROR_STRIDE";
  case GM_ERROR_ALIGNMENT: return "GM_ERROR_ALIGNMENT";
  case GM_ERROR_OVERLAP: return "GM_ERROR_OVERLAP";
  case GM_ERROR_BACKEND: return "GM_ERROR_BACKEND";
  case GM_ERROR_CUDA: return "GM_ERROR_CUDA";
  case GM_ERROR_CUDA_PENDING: return "GM_ERROR_CUDA_PENDING";
  default: return "unknown gm_status";
  }
}
