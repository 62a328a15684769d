// The instructions that csrc/cuda/common wraps, under the names and with the arguments of their wrappers (headers.py), and
// what a test sets and asks.
#ifndef EMULATOR_EMULATOR_H
#define EMULATOR_EMULATOR_H

#include <cuda.h>

#include <cstdint>
#include <functional>

#include "device.h"

namespace emulator {

enum { kMaxShared = 227 * 1024 };

// ---- For tests ----

// Seed 0: threads in turn, and what is asynchronous happens when nothing else can. 1: the same, but at once. Others: all in
// random order.
void set_schedule(uint64_t seed);

// What is printed with an error.
void set_case(const char *text);

// Called when the preceding kernel is complete: when nothing but griddepcontrol.wait is left to do.
extern std::function<void()> preceding_kernel_ends;

// Called by launch.cuh, so that a kernel's arguments keep their types.
void remember(const void *kernel, const char *name, void (*call)(const void *kernel, void **arguments));

// ---- csrc/cuda/common/ptx.cuh ----

uint4 ld_global_v4(const void *p);
void st_global_v4(void *p, uint4 v);
inline uint4 ld_global_v4_if(bool valid, const void *p) { return valid ? ld_global_v4(p) : uint4{0, 0, 0, 0}; }
inline uint4 ld_global_constant_v4_if(bool valid, const void *p, uint64_t) { return ld_global_v4_if(valid, p); }
void barrier_arrive(int threads);
void barrier_sync(int threads);
float rcp_approx(float x);
float ex2_approx(float x);
float max_nan(float a, float b);
uint32_t pack_bf16x2(float low, float high);

void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
uint4 ldmatrix_x4(const void *row);
uint4 ldmatrix_x4_trans(const void *row);
uint2 ldmatrix_x2(const void *row);
void stmatrix_x4(void *row, uint4 v);
uint32_t movmatrix_trans(uint32_t a);

void griddepcontrol_wait();
unsigned cluster_ctarank();
unsigned cluster_nctarank();
unsigned clusterid_x();
void barrier_cluster_arrive_relaxed();
void barrier_cluster_wait();

void mbarrier_init(uint64_t *barrier, unsigned arrivals);
void mbarrier_arrive(uint64_t *barrier);
void mbarrier_arrive_expect_tx(uint64_t *barrier, unsigned bytes);
void mbarrier_arrive_remote(const uint64_t *barrier, unsigned rank);
void mbarrier_wait(uint64_t *barrier, unsigned parity);
inline void mbarrier_wait_cluster(uint64_t *barrier, unsigned parity) { mbarrier_wait(barrier, parity); }
inline void fence_mbarrier_init() {}
inline void fence_proxy_async() {}

void cp_async_bulk(void *shared, const void *global, unsigned bytes, uint64_t *barrier);
void st_async(const float *local, uint64_t *barrier, unsigned rank, float value);
void st_async_v4(const float4 *local, uint64_t *barrier, unsigned rank, float a, float b, float c, float d);

// Reads the first source_bytes of 16 (or `bytes`, 4 or 8), the rest becomes zero.
void cp_async(void *shared, const void *global, unsigned bytes, unsigned source_bytes);
void cp_async_commit_group();
void cp_async_wait(unsigned groups);
inline void cp_async_16(void *shared, const void *global, bool valid) { cp_async(shared, global, 16, valid ? 16 : 0); }
template <int kGroups>
void cp_async_wait_group() {
  cp_async_wait(kGroups);
}

// ---- csrc/cuda/common/tensor_map.cuh ----

inline uint64_t policy_evict_first() { return 0; }
inline uint64_t policy_evict_last() { return 0; }
void prefetch_tensormap(const CUtensorMap *map);
void cp_async_bulk_tensor(void *shared, const CUtensorMap *map, int column, int row, uint64_t *barrier,
                          uint64_t policy);
void cp_async_bulk_tensor_multicast(void *shared, const CUtensorMap *map, int column, int row, uint64_t *barrier,
                                    uint16_t ctas, uint64_t policy);
void cp_async_bulk_tensor_store(const CUtensorMap *map, int column, int row, const void *shared);
void cp_async_bulk_commit_group();
void cp_async_bulk_wait_group_read();

// ---- csrc/cuda/common/wgmma.cuh ----

void wgmma_fence();
void wgmma_commit_group();
void wgmma_wait(unsigned groups);
void wgmma(float *d, int columns, uint64_t a, uint64_t b, bool accumulate);

template <int kGroups>
void wgmma_wait_group() {
  wgmma_wait(kGroups);
}
template <int kN>
void wgmma_m64k16(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  wgmma(d, kN, a, b, accumulate);
}
template <int kRegisters>
void setmaxnreg_inc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
void setmaxnreg_dec() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

} // namespace emulator

#endif
