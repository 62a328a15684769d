#include <inttypes.h>

#include "core/check.h"
#include "cuda/cuda.h"

gm_status gm_backend_status(int32_t backend, int32_t device) {
  switch (backend) {
  case GM_BACKEND_CPU: return GM_OK;
  case GM_BACKEND_CUDA: return gm_cuda_status(device);
  default:
    return gm_fail(GM_ERROR_INVALID_VALUE, "backend = %" PRId32 " must be GM_BACKEND_CPU (1) or GM_BACKEND_CUDA (2)",
                   backend);
  }
}

/* Callers built against a later header may pass a longer struct, if what we don't know of it is unused. */
static gm_status check_size(const gm_exec *exec) {
  const size_t known = offsetof(gm_exec, flags) + sizeof exec->flags;
  if (exec->struct_size < known) {
    return gm_fail(GM_ERROR_INVALID_VALUE, "exec.struct_size = %zu must be sizeof(gm_exec) = %zu", exec->struct_size,
                   sizeof(gm_exec));
  }
  for (size_t i = sizeof(gm_exec); i < exec->struct_size; ++i) {
    if (((const unsigned char *)exec)[i] != 0) {
      return gm_fail(GM_ERROR_INVALID_VALUE,
                     "exec.struct_size = %zu: byte %zu is set, but this version knows only %zu bytes",
                     exec->struct_size, i, sizeof(gm_exec));
    }
  }
  return GM_OK;
}

gm_status gm_check_exec(const gm_exec *exec) {
  if (exec == NULL) {
    return gm_fail(GM_ERROR_NULL_POINTER, "exec is NULL, but a gm_exec is required");
  }
  GM_TRY(check_size(exec));
  const uint32_t known = GM_PORTABLE | GM_NO_AVX512;
  if ((exec->flags & ~known) != 0) {
    return gm_fail(GM_ERROR_INVALID_VALUE, "exec.flags = 0x%" PRIx32 " has unknown bits 0x%" PRIx32, exec->flags,
                   exec->flags & ~known);
  }
  if (exec->parallel != NULL && exec->parallel->run == NULL) {
    return gm_fail(GM_ERROR_NULL_POINTER, "exec.parallel.run is NULL, but a function is required");
  }
  if (exec->parallel != NULL && exec->parallel->width < 1) {
    return gm_fail(GM_ERROR_INVALID_VALUE, "exec.parallel.width = %" PRId32 " must be at least 1",
                   exec->parallel->width);
  }
  return gm_backend_status(exec->backend, exec->device);
}
