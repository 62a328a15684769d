// The CUDA runtime, and what is there of the driver.
#include <cuda_runtime_api.h>

#include <map>

#include "copies.h"
#include "machine.h"

namespace {

struct Device {
  int sm_count, clusters_of_8;
};

// 0 has many multiprocessors; 1 so few that persistent kernels go around; 2 has no clusters, as a slice of a GPU may.
const Device devices[] = {{132, 16}, {4, 1}, {8, 0}};
enum { kDevices = sizeof devices / sizeof *devices };

constexpr int kArch = __CUDA_ARCH__ / 10;
constexpr int kSharedBytes = kArch >= 90 ? 227 * 1024 : 163 * 1024;

struct Kernel {
  const char *name;
  void (*call)(const void *, void **);
};

std::map<const void *, Kernel> kernels;
std::map<const void *, int> dynamic_shared_bytes;
int current_device;

} // namespace

namespace emulator {

std::function<void()> preceding_kernel_ends;
static bool preceding_has_ended;

void remember(const void *kernel, const char *name, void (*call)(const void *, void **)) {
  kernels[kernel] = {name, call};
}

static Channel waiting_for_preceding;

static void end_preceding_kernel() {
  if (preceding_kernel_ends) preceding_kernel_ends();
  preceding_has_ended = true;
}

void griddepcontrol_wait() {
  if (!preceding_has_ended) wait_in(waiting_for_preceding, {"griddepcontrol.wait", nullptr, 0});
}

bool preceding_kernel_was_awaited() {
  if (waiting_for_preceding.empty()) return false;
  end_preceding_kernel();
  wake(waiting_for_preceding);
  return true;
}

unsigned cluster_ctarank() { return current->cta->rank; }
unsigned cluster_nctarank() { return static_cast<unsigned>(ctas.size()); }
unsigned clusterid_x() { return cluster_index; }

} // namespace emulator

cudaError_t cudaGetDeviceCount(int *count) { return *count = kDevices, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = current_device, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  return current_device = device, cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? devices[device].sm_count : kSharedBytes;
  return cudaSuccess;
}
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaError"; }
const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaErrorInvalidValue: return "invalid argument";
  case cudaErrorInvalidConfiguration: return "invalid configuration argument";
  case cudaErrorInvalidDevice: return "invalid device ordinal";
  default: return "no error";
  }
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*)()) {
  return attributes->ptxVersion = kArch, cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int value) {
  if (value > kSharedBytes) return cudaErrorInvalidValue;
  return dynamic_shared_bytes[kernel] = value, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, void (*)(), const cudaLaunchConfig_t *) {
  return *clusters = devices[current_device].clusters_of_8, cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
  const Kernel &k = kernels.at(kernel);
  emulator::Launch launch = {k.name,          kernel,           k.call, arguments,
                             config->gridDim, config->blockDim, 1,      config->dynamicSmemBytes};
  bool pdl = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute &attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) launch.cluster = attribute.val.clusterDim.x;
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) pdl = true;
  }
  const bool too_much = config->dynamicSmemBytes > 48 * 1024 &&
                        config->dynamicSmemBytes > static_cast<size_t>(dynamic_shared_bytes[kernel]);
  if (too_much || config->gridDim.x == 0 || config->gridDim.y == 0 || config->gridDim.y > 65535 ||
      config->blockDim.x == 0 || config->blockDim.x > emulator::kMaxThreads) {
    return cudaErrorInvalidValue;
  }
  if (launch.cluster == 0 || launch.cluster > emulator::kMaxCtas || config->gridDim.x % launch.cluster != 0 ||
      (launch.cluster > 1 && (kArch < 90 || devices[current_device].clusters_of_8 == 0))) {
    return cudaErrorInvalidConfiguration;
  }
  if (config->blockDim.x % emulator::kLanes != 0) return cudaErrorInvalidConfiguration; // not modelled
  emulator::preceding_has_ended = false;
  if (!pdl) emulator::end_preceding_kernel();
  emulator::run(launch);
  return cudaSuccess;
}

// ---- Tensor maps ----

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data, const cuuint64_t *size,
                       const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *step, CUtensorMapInterleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const auto in = [](uint64_t value, uint64_t most) { return value >= 1 && value <= most; };
  const bool legal = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && rank == 2 && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
                     reinterpret_cast<uintptr_t>(map) % 64 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
                     data != nullptr && in(size[0], uint64_t{1} << 32) && in(size[1], uint64_t{1} << 32) &&
                     stride[0] % 16 == 0 && stride[0] < uint64_t{1} << 40 && stride[0] >= size[0] * 2 &&
                     in(box[0], 256) && in(box[1], 256) && box[0] * 2 <= 128 && box[0] * 2 % 16 == 0 && step[0] == 1 &&
                     step[1] == 1;
  if (!legal) return CUDA_ERROR_INVALID_VALUE;
  EMULATOR_CHECK(box[0] == 64, "boxes of %u columns are not modelled", box[0]);
  const emulator::TensorMap m = {emulator::kTensorMapMark,        static_cast<unsigned char *>(data),
                                 static_cast<int64_t>(size[1]),   static_cast<int64_t>(size[0]),
                                 static_cast<int64_t>(stride[0]), static_cast<int>(box[1]),
                                 static_cast<int>(box[0])};
  static_assert(sizeof m <= sizeof *map);
  memcpy(map, &m, sizeof m);
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned, uint64_t,
                                             cudaDriverEntryPointQueryResult *result) {
  const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void *>(encode) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
