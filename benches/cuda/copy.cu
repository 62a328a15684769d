// What the operators are measured against: kernels that read and write the same rows, 16 bytes a thread, and compute
// nothing. Built alone into libcopy.so; scripts/gpu/operators.py calls it.
#include <cuda_runtime.h>

#include <stdint.h>

namespace {

struct Rows {
  const uint4 *in, *in_last; // [tokens, 4, row] and [tokens, row], in units of 16 bytes
  uint4 *out, *out_last;
  int row;
};

__device__ uint4 mixed(uint4 a, uint4 b) { return {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w}; }

// kRead and kWrite of 4 or 5 rows a token, or 1 written: a mixture of all, so that none is dropped.
// kVectors columns a thread, all in flight at once. kStream: marked as not to be used again.
template <int kRead, int kWrite, int kVectors, bool kStream>
__global__ void copy_rows(Rows p) {
  const int64_t token = blockIdx.y, row = p.row;
  const int first = static_cast<int>(blockIdx.x * blockDim.x * kVectors + threadIdx.x);
  uint4 v[kVectors][kRead];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int column = first + k * static_cast<int>(blockDim.x);
    if (column < row) {
#pragma unroll
      for (int i = 0; i < kRead; ++i) {
        const uint4 *from = i < 4 ? p.in + (token * 4 + i) * row + column : p.in_last + token * row + column;
        v[k][i] = kStream ? __ldcs(from) : *from;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int column = first + k * static_cast<int>(blockDim.x);
    if (column < row) {
      if (kWrite == 1) {
#pragma unroll
        for (int i = 1; i < kRead; ++i) {
          v[k][0] = mixed(v[k][0], v[k][i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kWrite; ++i) {
        const bool last = kWrite == 1 || i == 4;
        uint4 *to = last ? p.out_last + token * row + column : p.out + (token * 4 + i) * row + column;
        if (kStream) {
          __stcs(to, v[k][i]);
        } else {
          *to = v[k][i];
        }
      }
    }
  }
}

// Reads 4 of `columns` floats and one more for each slice and token, writes 4 floats a token.
__global__ void copy_slices(const float *gemm_out, const float *sqrsum, float *out, int slices, int tokens,
                            int columns) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token >= tokens) {
    return;
  }
  uint4 sum = {};
#pragma unroll 8
  for (int s = 0; s < slices; ++s) {
    const int64_t row = static_cast<int64_t>(s) * tokens + token;
    const uint32_t one = *reinterpret_cast<const uint32_t *>(sqrsum + row);
    sum = mixed(sum, *reinterpret_cast<const uint4 *>(gemm_out + row * columns));
    sum = mixed(sum, {one, one, one, one});
  }
  *reinterpret_cast<uint4 *>(out + token * 4) = sum;
}

// kVectors of a thread in a round. What it would write depends on all of them, so that none is dropped.
template <int kVectors>
__global__ void read(const uint4 *from, int64_t count, uint4 *never) {
  const int64_t tile = int64_t{blockDim.x} * kVectors;
  uint4 all = {};
  for (int64_t first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
    const uint4 *column = from + first + threadIdx.x;
    if (first + tile <= count) {
      uint4 v[kVectors];
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        v[k] = __ldcs(column + k * blockDim.x);
      }
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        all = mixed(all, v[k]);
      }
    } else {
      for (; column < from + count; column += blockDim.x) {
        all = mixed(all, *column);
      }
    }
  }
  if ((all.x & all.y & all.z & all.w) == UINT32_MAX) {
    *never = all;
  }
}

__global__ void empty() {}

int divide_up(int a, int b) { return (a + b - 1) / b; }

template <int kRead, int kWrite, int kVectors, bool kStream>
void launch_rows(const Rows &p, int tokens, int parts, cudaStream_t stream) {
  const int threads = 32 * divide_up(divide_up(p.row, parts * kVectors), 32);
  const dim3 grid(static_cast<unsigned>(divide_up(p.row, threads * kVectors)), static_cast<unsigned>(tokens));
  copy_rows<kRead, kWrite, kVectors, kStream><<<grid, static_cast<unsigned>(threads), 0, stream>>>(p);
}

template <int kRead, int kWrite>
void launch_variant(const Rows &p, int tokens, int variant, cudaStream_t stream) {
  const int parts = 1 << variant % 4;
  switch (variant / 4) {
  case 0: return launch_rows<kRead, kWrite, 1, false>(p, tokens, parts, stream);
  case 1: return launch_rows<kRead, kWrite, 2, false>(p, tokens, parts, stream);
  case 2: return launch_rows<kRead, kWrite, 1, true>(p, tokens, parts, stream);
  default: return launch_rows<kRead, kWrite, 2, true>(p, tokens, parts, stream);
  }
}

template <int kVectors>
cudaError_t launch_read(const uint4 *from, int count, uint4 *never, int threads, int ctas, cudaStream_t stream) {
  int device, sm_count;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const int all = divide_up(count, threads * kVectors);
  const int grid = ctas > 0 && ctas * sm_count < all ? ctas * sm_count : all;
  read<kVectors><<<static_cast<unsigned>(grid), static_cast<unsigned>(threads), 0, stream>>>(from, count, never);
  return cudaGetLastError();
}

} // namespace

// All return a cudaError_t. The variants differ in CTAs a token, columns a thread and cache hints.
extern "C" {

int copy_variants(void) { return 16; }

// Rows of `hidden` bf16, hidden a multiple of 8, tensors 16-byte aligned: in [T, 4, H] and, if read == 5, in_last [T, H]
// to out [T, 4, H] and out_last [T, H] (write == 5), out alone (4) or out_last alone (1).
int copy_token_rows(int read, int write, const void *in, const void *in_last, void *out, void *out_last, int tokens,
                    int hidden, int variant, cudaStream_t stream) {
  if (hidden % 8 != 0 || tokens > 65535 || variant < 0 || variant >= copy_variants()) {
    return cudaErrorInvalidValue;
  }
  const Rows p = {static_cast<const uint4 *>(in), static_cast<const uint4 *>(in_last), static_cast<uint4 *>(out),
                  static_cast<uint4 *>(out_last), hidden / 8};
  switch (read * 10 + write) {
  case 55: launch_variant<5, 5>(p, tokens, variant, stream); break;
  case 44: launch_variant<4, 4>(p, tokens, variant, stream); break;
  case 41: launch_variant<4, 1>(p, tokens, variant, stream); break;
  default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

// gemm_out [S, T, columns], sqrsum [S, T], out [T, 4]: what a pre-mix of 4 streams moves. 4 variants only.
int copy_pre_mix(const float *gemm_out, const float *sqrsum, float *out, int slices, int tokens, int columns,
                 int variant, cudaStream_t stream) {
  const int threads = 32 << variant % 4;
  const int blocks = divide_up(tokens, threads);
  copy_slices<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(gemm_out, sqrsum, out,
                                                                                            slices, tokens, columns);
  return cudaGetLastError();
}

// Reads `count` vectors of 16 bytes. 12 variants: vectors a thread, times threads and CTAs a multiprocessor or one pass.
int read_once(const uint4 *from, int count, uint4 *never, int variant, cudaStream_t stream) {
  if (variant < 0 || variant >= 12) {
    return cudaErrorInvalidValue;
  }
  const int threads = variant % 4 == 0 ? 128 : variant % 4 == 3 ? 512 : 256;
  const int ctas = variant % 4 < 2 ? 0 : variant % 4 == 2 ? 8 : 4;
  switch (variant / 4) {
  case 0: return launch_read<4>(from, count, never, threads, ctas, stream);
  case 1: return launch_read<8>(from, count, never, threads, ctas, stream);
  default: return launch_read<16>(from, count, never, threads, ctas, stream);
  }
}

int copy_nothing(cudaStream_t stream) {
  empty<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}
}
