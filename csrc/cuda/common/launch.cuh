#ifndef GATEMIX_CUDA_COMMON_LAUNCH_CUH
#define GATEMIX_CUDA_COMMON_LAUNCH_CUH

#include "cuda/common/ptx.cuh"
#include "cuda/cuda.h"

// Host side: what the choice of a kernel looks at, and the one place that launches.
namespace gm {

struct DeviceFacts {
  int arch;          // virtual architecture that this device's code was compiled for, such as 90: what kernels may use
  int sm_count;      // streaming multiprocessors
  int shared_bytes;  // that a CTA may have
  int clusters_of_8; // that run at a time with one CTA a multiprocessor; 0: no clusters here
};

enum : int64_t { kMaxGridX = 0x7fffffff, kMaxGridY = 65535 };

struct Grid {
  int64_t x, y = 1;
  int64_t threads;
  int64_t cluster = 1; // CTAs, along x
  size_t shared_bytes = 0;
};

} // namespace gm

// Of a device that has passed gm_cuda_status. Cached, no CUDA call.
extern "C" void gm_cuda_device_facts(int32_t device, gm::DeviceFacts *facts);

// Was the launch asked to be a programmatic dependent one, and can it be?
extern "C" bool gm_cuda_pdl(const gm_exec *exec);

// Queues kernel(*arguments[0], *arguments[1], ...) and reports `name` as gm_last_kernel().
extern "C" gm_status gm_cuda_launch(const gm_exec *exec, const char *name, const void *kernel, const gm::Grid *grid,
                                    const void **arguments);

namespace gm {

static inline DeviceFacts device_facts(const gm_exec *exec) {
  DeviceFacts facts;
  gm_cuda_device_facts(exec->device, &facts);
  return facts;
}

// May kernels run that were written for clusters of compute capability 9.0?
static inline bool has_clusters(const gm_exec *exec) {
  return (exec->flags & GM_PORTABLE) == 0 && device_facts(exec).clusters_of_8 > 0;
}

// Every kernel's first argument is `pdl`, for wait_for_inputs.
template <typename... Arguments>
static inline gm_status launch(const gm_exec *exec, const char *name, void (*kernel)(bool, Arguments...),
                               const Grid &grid, const Arguments &...arguments) {
  const bool pdl = gm_cuda_pdl(exec);
  const void *addresses[] = {&pdl, &arguments...};
  return gm_cuda_launch(exec, name, reinterpret_cast<const void *>(kernel), &grid, addresses);
}

static inline int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static inline bool aligned16(const void *p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// In kernels: only parameters are read before, and nothing is written. Not a wait that does nothing without the attribute:
// it costs up to 7 % (docs/tuning.md).
__device__ __forceinline__ void wait_for_inputs([[maybe_unused]] bool pdl) {
#if __CUDA_ARCH__ >= 900
  if (pdl) {
    ptx::griddepcontrol_wait();
  }
#endif
}

} // namespace gm

#endif
