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

gm_status gm_check_exec(const gm_exec *exec) {
  if (exec == NULL) {
    return gm_fail(GM_ERROR_NULL_POINTER, "exec is NULL, but a gm_exec is required");
  }
  GM_TRY(gm_check_struct_size(exec, "exec", offsetof(gm_exec, flags) + sizeof exec->flags, sizeof *exec));
  const uint32_t known = GM_PORTABLE | GM_NO_AVX512 | GM_PDL | GM_BATCH_INVARIANT;
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
