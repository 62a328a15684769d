// What nvcc knows without being told: keywords, built-in variables and functions. Included before every .cu file.
#ifndef EMULATOR_DEVICE_H
#define EMULATOR_DEVICE_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ thread_local // a CTA is a thread of the operating system

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern dim3 threadIdx, blockIdx, blockDim, gridDim; // of the thread that runs

void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffff);
int __all_sync(unsigned mask, int predicate);
int __any_sync(unsigned mask, int predicate);
unsigned __ballot_sync(unsigned mask, int predicate);
size_t __cvta_generic_to_shared(const void *p);

namespace emulator {
// from(lane): whose value the lane gets.
uint64_t shuffle(const char *name, unsigned mask, uint64_t bits, unsigned from);
unsigned lane();

template <typename T>
T shuffled(const char *name, unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = shuffle(name, mask, bits, from);
  memcpy(&value, &bits, sizeof value);
  return value;
}
} // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int from) {
  return emulator::shuffled("__shfl_sync", mask, value, static_cast<unsigned>(from) % 32);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int other) {
  return emulator::shuffled("__shfl_xor_sync", mask, value, (emulator::lane() ^ static_cast<unsigned>(other)) % 32);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  const unsigned lane = emulator::lane();
  return emulator::shuffled("__shfl_down_sync", mask, value, lane + by < 32 ? lane + by : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  const unsigned lane = emulator::lane();
  return emulator::shuffled("__shfl_up_sync", mask, value, lane >= by ? lane - by : lane);
}

template <typename To, typename From>
To emulator_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float v) { return emulator_bits<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return emulator_bits<float>(v); }
inline int __float_as_int(float v) { return emulator_bits<int>(v); }
inline float __int_as_float(int v) { return emulator_bits<float>(v); }

// Rounded to nearest; the compiler contracts nothing (-ffp-contract=off).
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
// 64 bits of precision are enough: no quotient lies so close to the middle between two floats.
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0L / sqrtl(static_cast<long double>(a))); }

inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

template <typename T>
T __ldg(const T *p) {
  return *p;
}

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> 4 * i & 15;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (nibble & 7)) & 0xff;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << 8 * i;
  }
  return out;
}

#endif
