// The real header, but launch() tells the emulator the types of the kernel's arguments first.
#ifndef EMULATOR_CUDA_COMMON_LAUNCH_CUH
#define EMULATOR_CUDA_COMMON_LAUNCH_CUH

#include <utility>

#include "device.h"
#define launch launch_untyped
#include_next "cuda/common/launch.cuh"
#undef launch

namespace emulator {

template <typename... Arguments, size_t... kIndices>
void call(const void *kernel, void **arguments, std::index_sequence<kIndices...>) {
  reinterpret_cast<void (*)(Arguments...)>(reinterpret_cast<uintptr_t>(kernel))(
      *static_cast<Arguments *>(arguments[kIndices])...);
}

} // namespace emulator

namespace gm {

template <typename... Arguments>
static inline gm_status launch(const gm_exec *exec, const char *name, void (*kernel)(bool, Arguments...),
                               const Grid &grid, const Arguments &...arguments) {
  emulator::remember(reinterpret_cast<const void *>(kernel), name, [](const void *erased, void **addresses) {
    emulator::call<bool, Arguments...>(erased, addresses, std::index_sequence_for<bool, Arguments...>());
  });
  return launch_untyped(exec, name, kernel, grid, arguments...);
}

} // namespace gm

#endif
