#ifndef GATEMIX_CUDA_COMMON_OCTET_CUH
#define GATEMIX_CUDA_COMMON_OCTET_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/common/ptx.cuh"

// Element conversions, and eight consecutive elements of a row: what a thread holds of it, as the bits that memory has.
namespace gm {

using bf16 = uint16_t; // bit patterns, as in ops/problem.h

enum : int { kOctet = 8 };

// Two bf16 in a word, the lower address in the lower half.
__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float from_bf16(bf16 v) { return __uint_as_float(static_cast<uint32_t>(v) << 16); }

__device__ __forceinline__ uint32_t to_bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t *>(&pair);
}

template <typename E>
struct Octet;

struct Octet16 {
  using Stored = uint16_t;
  uint32_t pair[4];

  // Loads elements 0 .. count - 1, count <= 8; the others are zero.
  __device__ __forceinline__ void load_some(const uint16_t *p, int64_t count) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = 2 * i < count ? p[2 * i] : 0u, high = 2 * i + 1 < count ? p[2 * i + 1] : 0u;
      pair[i] = low | high << 16;
    }
  }

  __device__ __forceinline__ void store_some(uint16_t *p, int64_t count) const {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (i < count) {
        p[i] = static_cast<uint16_t>(i % 2 == 0 ? pair[i / 2] & 0xffffu : pair[i / 2] >> 16);
      }
    }
  }

  // 16-byte aligned.
  __device__ __forceinline__ void load(const uint16_t *p) {
    const uint4 v = ptx::ld_global_v4(p);
    pair[0] = v.x, pair[1] = v.y, pair[2] = v.z, pair[3] = v.w;
  }

  __device__ __forceinline__ void store(uint16_t *p) const {
    ptx::st_global_v4(p, make_uint4(pair[0], pair[1], pair[2], pair[3]));
  }
};

// bf16
template <>
struct Octet<bf16> : Octet16 {
  __device__ __forceinline__ float operator[](int i) const {
    return i % 2 == 0 ? bf16_low(pair[i / 2]) : bf16_high(pair[i / 2]);
  }

  __device__ __forceinline__ void set_pair(int i, float low, float high) { pair[i] = to_bf16_pair(low, high); }
};

__device__ __forceinline__ Octet<bf16> to_bf16(const float (&v)[kOctet]) {
  Octet<bf16> octet;
#pragma unroll
  for (int k = 0; k < kOctet; k += 2) {
    octet.set_pair(k / 2, v[k], v[k + 1]);
  }
  return octet;
}

template <>
struct Octet<__half> : Octet16 {
  __device__ __forceinline__ float operator[](int i) const {
    const __half2 halves = *reinterpret_cast<const __half2 *>(&pair[i / 2]);
    return i % 2 == 0 ? __low2float(halves) : __high2float(halves);
  }

  __device__ __forceinline__ void set_pair(int i, float low, float high) {
    const __half2 halves = __floats2half2_rn(low, high);
    pair[i] = *reinterpret_cast<const uint32_t *>(&halves);
  }
};

template <>
struct Octet<float> {
  using Stored = float;
  float value[kOctet];

  __device__ __forceinline__ float operator[](int i) const { return value[i]; }

  __device__ __forceinline__ void set_pair(int i, float low, float high) {
    value[2 * i] = low, value[2 * i + 1] = high;
  }

  __device__ __forceinline__ void load_some(const float *p, int64_t count) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      value[i] = i < count ? p[i] : 0.0f;
    }
  }

  __device__ __forceinline__ void store_some(float *p, int64_t count) const {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (i < count) {
        p[i] = value[i];
      }
    }
  }

  __device__ __forceinline__ void load(const float *p) {
#pragma unroll
    for (int i = 0; i < kOctet; i += 4) {
      const float4 v = ptx::ld_global_f32x4(p + i);
      value[i] = v.x, value[i + 1] = v.y, value[i + 2] = v.z, value[i + 3] = v.w;
    }
  }

  __device__ __forceinline__ void store(float *p) const {
#pragma unroll
    for (int i = 0; i < kOctet; i += 4) {
      ptx::st_global_v4(p + i, make_uint4(__float_as_uint(value[i]), __float_as_uint(value[i + 1]),
                                          __float_as_uint(value[i + 2]), __float_as_uint(value[i + 3])));
    }
  }
};

// Of an octet that starts `count` elements before the end of its row; what lies beyond the end is zero, and not stored.
// kAligned: 16-byte aligned, and rows end with an octet.
template <bool kAligned, typename E>
__device__ __forceinline__ void load(Octet<E> &octet, const typename Octet<E>::Stored *p, int64_t count) {
  if (!kAligned) {
    octet.load_some(p, count);
  } else if (count > 0) {
    octet.load(p);
  } else {
    octet = {};
  }
}

template <bool kAligned, typename E>
__device__ __forceinline__ void store(const Octet<E> &octet, typename Octet<E>::Stored *p, int64_t count) {
  if (!kAligned) {
    octet.store_some(p, count);
  } else if (count > 0) {
    octet.store(p);
  }
}

} // namespace gm

#endif
