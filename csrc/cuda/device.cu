// The devices, and the one place that launches kernels.
#include <cuda_runtime_api.h>

#include "cuda/common/launch.cuh"

// Asked which code a device runs: every .cu file is compiled for the same architectures.
// Static, as all kernels: those of an anonymous namespace would be global symbols.
static __global__ void probe() {}

// arch | sm_count << 12 | clusters_of_8 << 24 | shared_bytes << 36, 0 = not asked yet. Threads that race store the same value.
enum { kCachedDevices = 64 };
static uint64_t cached_facts[kCachedDevices];

namespace {

// Our own failed calls leave no error behind. Someone else's stays, if none of ours has taken its place.
class ErrorGuard {
public:
  ErrorGuard() : foreign_(cudaPeekAtLastError() != cudaSuccess) {}
  ~ErrorGuard() {
    if (!foreign_) {
      (void)cudaGetLastError();
    }
  }

private:
  const bool foreign_;
};

// Makes a device current, and the caller's again at the end.
class DeviceGuard {
public:
  explicit DeviceGuard(int device) {
    error = cudaGetDevice(&previous_);
    if (error == cudaSuccess && previous_ != device) {
      error = cudaSetDevice(device);
      changed_ = error == cudaSuccess;
    }
  }
  ~DeviceGuard() {
    if (changed_) {
      (void)cudaSetDevice(previous_);
    }
  }
  cudaError_t error;

private:
  int previous_ = 0;
  bool changed_ = false;
};

} // namespace

static cudaError_t count_clusters(int shared_bytes, int *count) {
  const cudaError_t error = cudaFuncSetAttribute(probe, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 8;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(8);
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  return error != cudaSuccess ? error : cudaOccupancyMaxActiveClusters(count, probe, &config);
}

static cudaError_t ask_current(int device, uint64_t *facts) {
  cudaFuncAttributes attributes;
  int sm_count = 0, clusters = 0, shared_bytes = 0;
  cudaError_t error = cudaFuncGetAttributes(&attributes, probe);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error == cudaSuccess && attributes.ptxVersion >= 90 && count_clusters(shared_bytes, &clusters) != cudaSuccess) {
    clusters = 0; // a slice of a GPU may have none
  }
  if (error == cudaSuccess) {
    *facts = static_cast<uint64_t>(attributes.ptxVersion) | static_cast<uint64_t>(sm_count) << 12 |
             static_cast<uint64_t>(clusters) << 24 | static_cast<uint64_t>(shared_bytes) << 36;
  }
  return error;
}

static cudaError_t ask(int device, uint64_t *facts) {
  DeviceGuard guard(device);
  if (guard.error != cudaSuccess) {
    return guard.error;
  }
  // Code may be loaded while this thread captures a graph.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
  if (error == cudaSuccess) {
    error = ask_current(device, facts);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
  }
  return error;
}

static gm_status refuse(int32_t device, cudaError_t error) {
  return gm_fail(GM_ERROR_BACKEND, "backend = 2 (CUDA), device = %d: %s (%s)", device, cudaGetErrorString(error),
                 cudaGetErrorName(error));
}

extern "C" gm_status gm_cuda_status(int32_t device) {
  if (device >= 0 && device < kCachedDevices && __atomic_load_n(&cached_facts[device], __ATOMIC_RELAXED) != 0) {
    return GM_OK;
  }
  ErrorGuard errors;
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    return refuse(device, counted);
  }
  if (device < 0 || device >= count || device >= kCachedDevices) {
    const int last = (count < kCachedDevices ? count : kCachedDevices) - 1;
    return gm_fail(GM_ERROR_BACKEND, "backend = 2 (CUDA), device = %d must be in 0..%d", device, last);
  }
  uint64_t facts = 0;
  const cudaError_t asked = ask(device, &facts);
  if (asked != cudaSuccess) {
    return refuse(device, asked);
  }
  __atomic_store_n(&cached_facts[device], facts, __ATOMIC_RELAXED);
  return GM_OK;
}

#define GM_TEXT_OF(value) #value
#define GM_TEXT(value) GM_TEXT_OF(value)

#ifndef GM_CUDA_CODE
#error "define GM_CUDA_CODE as the code= of all -gencode options, such as sm_80:sm_90a:compute_80"
#endif

extern "C" const char *gm_cuda_code(void) { return GM_TEXT(GM_CUDA_CODE); }

extern "C" const char *gm_cuda_build_info(void) {
  static_assert(CUDART_VERSION >= 12090, "CUDA 12.9 or later is needed");
  return "runtime " GM_TEXT(CUDART_VERSION) ", code " GM_TEXT(GM_CUDA_CODE);
}

extern "C" void gm_cuda_device_facts(int32_t device, gm::DeviceFacts *facts) {
  const uint64_t cached = __atomic_load_n(&cached_facts[device], __ATOMIC_RELAXED);
  facts->arch = static_cast<int>(cached & 0xfff);
  facts->sm_count = static_cast<int>(cached >> 12 & 0xfff);
  facts->clusters_of_8 = static_cast<int>(cached >> 24 & 0xfff);
  facts->shared_bytes = static_cast<int>(cached >> 36);
}

extern "C" bool gm_cuda_pdl(const gm_exec *exec) {
  return (exec->flags & GM_PDL) != 0 && gm::device_facts(exec).arch >= 90;
}

static cudaError_t launch_on(const gm_exec *exec, const void *kernel, const gm::Grid &grid, const void **arguments) {
  if (grid.shared_bytes > 0) {
    // The most there is, whatever this launch needs: another thread may launch the same kernel between the two calls.
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, gm::device_facts(exec).shared_bytes);
    if (error != cudaSuccess) {
      return error;
    }
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = static_cast<cudaStream_t>(exec->stream);
  config.attrs = attributes;
  if (grid.cluster > 1) {
    cudaLaunchAttribute *attribute = &attributes[config.numAttrs++];
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = static_cast<unsigned>(grid.cluster);
    attribute->val.clusterDim.y = 1;
    attribute->val.clusterDim.z = 1;
  }
  if (gm_cuda_pdl(exec)) {
    cudaLaunchAttribute *attribute = &attributes[config.numAttrs++];
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelExC(&config, kernel, const_cast<void **>(arguments));
}

extern "C" gm_status gm_cuda_launch(const gm_exec *exec, const char *name, const void *kernel, const gm::Grid *grid,
                                    const void **arguments) {
  const cudaError_t pending = cudaPeekAtLastError();
  if (pending != cudaSuccess) {
    return gm_fail(GM_ERROR_CUDA_PENDING, "%s was not launched: an earlier CUDA call, not gatemix's, left %s (%s)",
                   name, cudaGetErrorName(pending), cudaGetErrorString(pending));
  }
  if (grid->x > gm::kMaxGridX || grid->y > gm::kMaxGridY) {
    return gm_fail(GM_ERROR_SHAPE, "%s was not launched: its grid would be %lld x %lld, CUDA has at most %lld x %lld",
                   name, static_cast<long long>(grid->x), static_cast<long long>(grid->y),
                   static_cast<long long>(gm::kMaxGridX), static_cast<long long>(gm::kMaxGridY));
  }
  ErrorGuard errors;
  DeviceGuard guard(exec->device);
  cudaError_t error = guard.error;
  if (error == cudaSuccess) {
    error = launch_on(exec, kernel, *grid, arguments);
  }
  if (error != cudaSuccess) {
    return gm_fail(GM_ERROR_CUDA, "%s was not launched: %s (%s)", name, cudaGetErrorName(error),
                   cudaGetErrorString(error));
  }
  return gm_succeed(name);
}
