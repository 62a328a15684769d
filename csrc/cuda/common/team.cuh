#ifndef GATEMIX_CUDA_COMMON_TEAM_CUH
#define GATEMIX_CUDA_COMMON_TEAM_CUH

#include "cuda/common/row_sum.cuh"

namespace gm {

// The warps that share a row: those of a CTA, or of all CTAs of a cluster. Warp g of G takes the chunks g, g + G, ...
template <bool kCluster>
class Team {
public:
  __device__ __forceinline__ Team() {
    unsigned rank = 0, ctas = 1;
    item_ = blockIdx.x;
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      rank = ptx::cluster_ctarank(), ctas = ptx::cluster_nctarank(), item_ = ptx::clusterid_x();
    }
#endif
    const unsigned warps = blockDim.x / kWarp;
    warps_ = static_cast<int>(ctas * warps);
    warp_ = static_cast<int>(rank * warps + threadIdx.x / kWarp);
  }

  // The row.
  __device__ __forceinline__ int64_t item() const { return item_; }
  __device__ __forceinline__ int warps() const { return warps_; }
  // This warp's i-th chunk, and where this lane's octet of it begins in the row.
  __device__ __forceinline__ int chunk(int i) const { return i * warps_ + warp_; }
  __device__ __forceinline__ int octet(int i) const {
    return chunk(i) * kChunk + static_cast<int>(threadIdx.x % kWarp) * kOctet;
  }

private:
  int64_t item_;
  int warps_, warp_;
};

// Host side: do `ctas` CTAs of at most max_threads hold a row of so many chunks, `vectors` a warp, without a rest?
static inline bool team_fits(int64_t chunks, int64_t ctas, int64_t vectors, int64_t max_threads) {
  return chunks % (ctas * vectors) == 0 && chunks / (ctas * vectors) * kWarp <= max_threads;
}

// The largest portable cluster that holds it, a chunk a warp; 1: there is none.
static inline int64_t cluster_of(int64_t chunks, int64_t max_threads) {
  int64_t ctas = 8;
  while (ctas > 1 && !team_fits(chunks, ctas, 1, max_threads)) {
    --ctas;
  }
  return ctas;
}

} // namespace gm

#endif
