#ifndef GATEMIX_CUDA_COMMON_TENSOR_MAP_CUH
#define GATEMIX_CUDA_COMMON_TENSOR_MAP_CUH

#include <cuda.h> // only types: the driver's entry point is asked for at run time

#include "cuda/common/launch.cuh"

// Two-dimensional bf16 tensors for the copy engine of compute capability 9.0.
namespace gm {

enum { kBoxColumns = 64 }; // 128 bytes, which is what the swizzle repeats after

// Boxes of kBoxColumns columns and box_rows rows; what lies outside of the tensor reads as zero and is not written.
// False if the driver refuses.
extern "C" bool gm_cuda_tensor_map(CUtensorMap *map, const void *data, int64_t rows, int64_t columns, int box_rows);

namespace ptx {

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the box whose first element is (row, column) and counts its bytes at the barrier, clipped or not.
__device__ __forceinline__ void cp_async_bulk_tensor(void *shared, const CUtensorMap *map, int column, int row,
                                                     uint64_t *barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
               "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
               : "memory");
}

// The same into all CTAs of the cluster whose bits are set in `ctas`: to the same place, counted at the same barrier.
__device__ __forceinline__ void cp_async_bulk_tensor_multicast(void *shared, const CUtensorMap *map, int column,
                                                               int row, uint64_t *barrier, uint16_t ctas,
                                                               uint64_t policy) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(shared)),
               "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(ctas), "l"(policy)
               : "memory");
}

// Stores the part of the box that lies in the tensor. Joins this thread's next bulk group.
__device__ __forceinline__ void cp_async_bulk_tensor_store(const CUtensorMap *map, int column, int row,
                                                           const void *shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared_address(shared))
               : "memory");
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's bulk groups have read their shared memory.
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

#endif

} // namespace ptx

} // namespace gm

#endif
