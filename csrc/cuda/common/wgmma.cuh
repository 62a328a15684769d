#ifndef GATEMIX_CUDA_COMMON_WGMMA_CUH
#define GATEMIX_CUDA_COMMON_WGMMA_CUH

#include "cuda/common/ptx.cuh"

// Matrix products by a warpgroup, four warps the first of which has a number divisible by four. Only in sm_90a.
namespace gm::ptx {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The registers of an accumulator may be touched by wgmma, after ordinary instructions.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kGroups of the committed groups are under way.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Rows of 64 bf16 as a tensor copy with 128-byte swizzle lays them down; the first row's address divides by 1024.
// 16 columns on: + 2.
__device__ __forceinline__ uint64_t wgmma_descriptor(const void *rows) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32; // bytes from one group of eight rows to the next
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (shared_address(rows) & 0x3ffff) >> 4;
}

// What to add to a descriptor for rows that lie so many bytes further.
__device__ __forceinline__ constexpr unsigned wgmma_descriptor_step(unsigned bytes) { return bytes >> 4; }

#define GM_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GM_D8(i) GM_D4(i), GM_D4(i + 4)
#define GM_D16(i) GM_D8(i), GM_D8(i + 8)
#define GM_D32(i) GM_D16(i), GM_D16(i + 16)
#define GM_D64(i) GM_D32(i), GM_D32(i + 32)

#define GM_N4 "%0, %1, %2, %3"
#define GM_N8 GM_N4 ", %4, %5, %6, %7"
#define GM_N16 GM_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GM_N32 GM_N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GM_N64                                                                              \
  GM_N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
         ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GM_N128                                                                                         \
  GM_N64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
         ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
         ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
         ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// kN columns: kN / 2 accumulators, then the operands a, b and accumulate.
#define GM_WGMMA(kN, numbers, a_number, b_number, accumulate_number, ...)                                         \
  asm volatile("{\n\t"                                                                                            \
               ".reg .pred accumulate;\n\t"                                                                       \
               "setp.ne.b32 accumulate, " accumulate_number ", 0;\n\t"                                            \
               "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32.bf16.bf16 {" numbers "}, " a_number ", " b_number \
               ", accumulate, 1, 1, 0, 0;\n\t"                                                                    \
               "}"                                                                                                \
               : __VA_ARGS__                                                                                      \
               : "l"(a), "l"(b), "r"(static_cast<unsigned>(accumulate)))

// d = a b + (accumulate ? d : 0): 64 x 16 times 16 x kN of bf16, both with k contiguous in shared memory, sums in fp32.
// Lane l of warp w (of the four) has in d[4 j + {0, 1, 2, 3}]
//   rows 16 w + l / 4 + {0, 0, 8, 8}, columns 8 j + 2 (l % 4) + {0, 1, 0, 1}
template <int kN>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 8) {
    GM_WGMMA(8, GM_N4, "%4", "%5", "%6", GM_D4(0));
  } else if constexpr (kN == 16) {
    GM_WGMMA(16, GM_N8, "%8", "%9", "%10", GM_D8(0));
  } else if constexpr (kN == 32) {
    GM_WGMMA(32, GM_N16, "%16", "%17", "%18", GM_D16(0));
  } else if constexpr (kN == 64) {
    GM_WGMMA(64, GM_N32, "%32", "%33", "%34", GM_D32(0));
  } else if constexpr (kN == 128) {
    GM_WGMMA(128, GM_N64, "%64", "%65", "%66", GM_D64(0));
  } else {
    GM_WGMMA(256, GM_N128, "%128", "%129", "%130", GM_D64(0), GM_D64(64));
  }
}

// The same over 64 columns, one group.
template <int kN>
__device__ __forceinline__ void wgmma_m64k64(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_m64k16<kN>(d, a + 2 * step, b + 2 * step, step > 0 || accumulate);
  }
  wgmma_commit_group();
}

// How many registers a thread of this warpgroup may have from here on; a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

} // namespace gm::ptx

#endif
