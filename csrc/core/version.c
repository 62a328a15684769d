#include <stdio.h>

#include "core/status.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"

#define TEXT_OF(value) #value
#define VERSION_OF(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)
#if defined(__clang__)
#define COMPILER "clang " VERSION_OF(__clang_major__, __clang_minor__, __clang_patchlevel__)
#else
#define COMPILER "gcc " VERSION_OF(__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__)
#endif

uint32_t gm_abi_version(void) { return GM_ABI_VERSION; }

const char *gm_version(void) { return GM_VERSION; }

const char *gm_build_info(void) {
  static _Thread_local char info[256];
  snprintf(info, sizeof info, "gatemix " GM_VERSION " (abi %d); " COMPILER "; cpu: %s, using %s; cuda: %s",
           GM_ABI_VERSION, gm_cpu_isas_built(), gm_cpu_isa_name(0), gm_cuda_build_info());
  return info;
}
