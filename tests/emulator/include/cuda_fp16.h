#ifndef EMULATOR_CUDA_FP16_H
#define EMULATOR_CUDA_FP16_H

#include <immintrin.h>

#include "device.h"

struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
inline __half2 __floats2half2_rn(float low, float high) {
  return {{static_cast<uint16_t>(_cvtss_sh(low, 0))}, {static_cast<uint16_t>(_cvtss_sh(high, 0))}};
}
inline float __low2float(__half2 v) { return _cvtsh_ss(v.x.bits); }
inline float __high2float(__half2 v) { return _cvtsh_ss(v.y.bits); }

#endif
