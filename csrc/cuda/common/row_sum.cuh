#ifndef GATEMIX_CUDA_COMMON_ROW_SUM_CUH
#define GATEMIX_CUDA_COMMON_ROW_SUM_CUH

#include "cuda/common/octet.cuh"

// The sum of squares of a row has one order in every form of a kernel, so that all give the same bits:
//   an octet, the 32 octets of a chunk, and 32 slots are added as binary trees, neighbours first;
//   chunk c goes into slot c mod 32, in turn.
namespace gm {

enum : int { kWarp = 32, kChunk = kWarp * kOctet };

// Several sums at a time: a shuffle takes long, but many are in flight. The same bits in every lane: each step adds the
// same two numbers.
template <int kCount>
__device__ __forceinline__ void warp_sums(float (&v)[kCount]) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      v[i] = __fadd_rn(v[i], __shfl_xor_sync(0xffffffffu, v[i], distance));
    }
  }
}

__device__ __forceinline__ float warp_sum(float v) {
  float sums[1] = {v};
  warp_sums(sums);
  return sums[0];
}

template <typename E>
__device__ __forceinline__ float square_sum(const Octet<E> &x) {
  const auto pair = [&](int i) { return fmaf(x[i + 1], x[i + 1], __fmul_rn(x[i], x[i])); };
  return __fadd_rn(__fadd_rn(pair(0), pair(2)), __fadd_rn(pair(4), pair(6)));
}

__device__ __forceinline__ float inverse_rms(float square_sum, int64_t width, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(square_sum, static_cast<float>(width)), eps));
}

// For a CTA whose warps take chunks warp, warp + warps, ...: warps must divide 32, so that a slot has one writer.
class SlotSum {
public:
  __device__ __forceinline__ explicit SlotSum(float *slots) : slots_(slots) {
    if (threadIdx.x < kWarp) {
      slots_[threadIdx.x] = 0.0f;
    }
    __syncthreads(); // the slots are zero before the first add
  }

  // By all lanes of a warp, with its warp_sum.
  __device__ __forceinline__ void add(int64_t chunk, float sum) {
    if (threadIdx.x % kWarp == 0) {
      slots_[chunk % kWarp] = __fadd_rn(slots_[chunk % kWarp], sum);
    }
  }

  // By all threads of the CTA, once.
  __device__ __forceinline__ float total() {
    __syncthreads(); // all adds before the reads
    return warp_sum(slots_[threadIdx.x % kWarp]);
  }

private:
  float *slots_;
};

// For a row that the warps of a team hold in registers: every CTA of the team gets the sum of every chunk.
template <bool kCluster, int kMaxChunks>
class ChunkSum {
public:
  struct Shared {
    uint64_t barrier;
    float chunks[kMaxChunks];
  };

  // Early in the kernel, by all threads.
  __device__ __forceinline__ ChunkSum(Shared *shared, int chunks) : shared_(shared), chunks_(chunks) {
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      if (threadIdx.x == 0) {
        ptx::mbarrier_init(&shared_->barrier, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect_tx(&shared_->barrier, static_cast<unsigned>(chunks * sizeof(float)));
      }
      __syncwarp();
      ptx::barrier_cluster_arrive_relaxed();
    }
#endif
  }

  // By all threads, before the first add.
  __device__ __forceinline__ void begin() {
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      ptx::barrier_cluster_wait(); // all CTAs have started, with their barriers
    }
#endif
  }

  // By all lanes of a warp, with its warp_sum.
  __device__ __forceinline__ void add(int chunk, float sum) {
    const unsigned lane = threadIdx.x % kWarp;
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      if (lane < ptx::cluster_nctarank()) {
        ptx::st_async(&shared_->chunks[chunk], &shared_->barrier, lane, sum);
      }
      return;
    }
#endif
    if (lane == 0) {
      shared_->chunks[chunk] = sum;
    }
  }

  // By all threads, after the adds.
  __device__ __forceinline__ float total() {
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      // All chunks are here. So no CTA exits while another still sends to it.
      ptx::mbarrier_wait_cluster(&shared_->barrier, 0);
    } else
#endif
    {
      __syncthreads(); // all adds before the reads
    }
    float sum = 0.0f;
#pragma unroll
    for (int first = 0; first < kMaxChunks; first += kWarp) {
      const int chunk = first + static_cast<int>(threadIdx.x % kWarp);
      if (chunk < chunks_) {
        sum = __fadd_rn(sum, shared_->chunks[chunk]);
      }
    }
    return warp_sum(sum);
  }

private:
  Shared *shared_;
  int chunks_;
};

} // namespace gm

#endif
