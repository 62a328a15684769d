#include <inttypes.h>
#include <string.h>

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

gm_status gm_check_struct_size(const void *structure, const char *name, size_t required, size_t known) {
  enum { kLargest = 1024 }; /* an uninitialised size must not lead the scan below far astray */
  size_t size;
  memcpy(&size, structure, sizeof size);
  if (size < required || size > kLargest) {
    return gm_fail(GM_ERROR_INVALID_VALUE,
                   "%s.struct_size = %zu must be sizeof(gm_%s) = %zu, or that of a later version, up to %d", name, size,
                   name, known, kLargest);
  }
  for (size_t i = known; i < size; ++i) {
    if (((const unsigned char *)structure)[i] != 0) {
      return gm_fail(GM_ERROR_INVALID_VALUE,
                     "%s.struct_size = %zu: byte %zu is set, but this version knows only %zu bytes", name, size, i,
                     known);
    }
  }
  return GM_OK;
}

gm_status gm_check_exec(const gm_exec *exec) {
  if (exec == NULL) {
    return gm_fail(GM_ERROR_NULL_POINTER, "exec is NULL, but a gm_exec is required");
  }
  GM_TRY(gm_check_struct_size(exec, "exec", offsetof(gm_exec, flags) + sizeof exec->flags, sizeof *exec));
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
