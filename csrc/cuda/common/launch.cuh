#ifndef GATEMIX_CUDA_COMMON_LAUNCH_CUH
#define GATEMIX_CUDA_COMMON_LAUNCH_CUH

#include "cuda/common/ptx.cuh"
#include "cuda/cuda.h"

// Host side: what the choice of a kernel looks at, and the one place that launches.
namespace gm {

struct DeviceFacts {
  int arch;          // virtual architecture that this device's code was compiled for, such as 90: what kernels may use
  int sm_count;      // streaming multiprocessors
  int clusters_of_4; // that run at a time with one CTA a multiprocessor
};

// Of a device that has passed gm_cuda_status. Cached, no CUDA call.
DeviceFacts device_facts(int32_t device);

// May kernels for compute capability 9.0 run?
inline bool has_sm90(const gm_exec *exec) {
  return (exec->flags & GM_PORTABLE) == 0 && device_facts(exec->device).arch >= 90;
}

struct Grid {
  int64_t x, y = 1;
  int64_t threads;
  int64_t cluster = 1; // CTAs, along x
  size_t shared_bytes = 0;
};

// Queues kernel(arguments...) and reports `name` as gm_last_kernel().
gm_status launch_kernel(const gm_exec *exec, const char *name, const void *kernel, const Grid &grid,
                        const void **arguments);

template <typename... Arguments>
gm_status launch(const gm_exec *exec, const char *name, void (*kernel)(Arguments...), const Grid &grid,
                 const Arguments &...arguments) {
  const void *addresses[] = {&arguments...};
  return launch_kernel(exec, name, reinterpret_cast<const void *>(kernel), grid, addresses);
}

inline int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

inline bool aligned16(const void *p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// In kernels: what may be read before, and written after, the preceding kernels of the stream are complete.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  ptx::griddepcontrol_wait();
#endif
}

} // namespace gm

#endif
