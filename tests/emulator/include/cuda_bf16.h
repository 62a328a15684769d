#ifndef EMULATOR_CUDA_BF16_H
#define EMULATOR_CUDA_BF16_H

#include "device.h"

struct alignas(4) __nv_bfloat162 {
  uint16_t x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return emulator_bits<__nv_bfloat162>(emulator::pack_bf16x2(low, high));
}

#endif
