#ifndef GATEMIX_CUDA_COMMON_PTX_CUH
#define GATEMIX_CUDA_COMMON_PTX_CUH

#include <cstdint>

// PTX instructions, each wrapped once. Those of compute capability 9.0 are missing, not emulated, below it.
namespace gm::ptx {

// Sixteen bytes in one instruction: a struct assignment may become four.
// volatile: a load stays before the stores that follow it, which may be to the same address.
__device__ __forceinline__ uint4 ld_global_v4(const void *p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// Which lines the L2 replaces first, and last.
__device__ __forceinline__ uint64_t policy_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t policy_evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Sixteen bytes or, not `valid`, zeros. One instruction: a branch around it would wait for the value where it ends.
__device__ __forceinline__ uint4 ld_global_v4_if(bool valid, const void *p) {
  uint4 v = make_uint4(0, 0, 0, 0);
  asm volatile("{\n\t"
               ".reg .pred valid;\n\t"
               "setp.ne.b32 valid, %5, 0;\n\t"
               "@valid ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
               "}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(p), "r"(static_cast<unsigned>(valid)));
  return v;
}

// The same for what nobody writes while the kernel runs; it takes no place in the L1.
__device__ __forceinline__ uint4 ld_global_constant_v4_if(bool valid, const void *p, uint64_t policy) {
  uint4 v = make_uint4(0, 0, 0, 0);
  asm volatile("{\n\t"
               ".reg .pred valid;\n\t"
               "setp.ne.b32 valid, %6, 0;\n\t"
               "@valid ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;\n\t"
               "}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(p), "l"(policy), "r"(static_cast<unsigned>(valid)));
  return v;
}

__device__ __forceinline__ float4 ld_global_f32x4(const float *p) {
  const uint4 v = ld_global_v4(p);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

__device__ __forceinline__ void st_global_v4(void *p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 1 / x with an error of at most 1 ulp, for x whose reciprocal is a normal number.
__device__ __forceinline__ float rcp_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 2^x with a relative error of at most 2^-22, for x whose power is a normal number.
__device__ __forceinline__ float ex2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// NaN if one is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// Rounds to nearest, `low` into the lower half.
__device__ __forceinline__ uint32_t pack_bf16x2(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// c += a * b: 16 x 16 times 16 x 8 of bf16, sums in fp32. Lane l has, two to a register,
//   a: rows l / 4 and l / 4 + 8, columns 2 (l % 4) + {0, 1}; the same rows 8 columns on
//   b: column l / 4, rows 2 (l % 4) + {0, 1}; 8 rows on
//   c: rows l / 4 and l / 4 + 8, columns 2 (l % 4) + {0, 1}
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of bf16: the lane l gives the address of row l % 8 of matrix l / 8, and gets of each matrix
// row l / 4, columns 2 (l % 4) + {0, 1}.
__device__ __forceinline__ uint4 ldmatrix_x4(const void *row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared_address(row))
               : "memory");
  return v;
}

// Copies 16 bytes into shared memory, later; both ends 16-byte aligned. Zeros, and `global` is not read, unless `valid`.
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, bool valid) {
  asm volatile("{\n\t"
               ".reg .pred absent;\n\t"
               "setp.eq.u32 absent, %2, 0;\n\t"
               "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, absent;\n\t"
               "}" ::"r"(shared_address(shared)),
               "l"(global), "r"(static_cast<unsigned>(valid))
               : "memory");
}

// The copies of this thread since the last commit are a group.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all groups of this thread but the last kGroups are complete.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Transposes an 8 x 8 matrix of bf16 of which the lane l has row l / 4, columns 2 (l % 4) + {0, 1}.
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// Barrier 1 of the CTA, for all warps of `threads` threads: those that arrive do not wait for those that sync, which see
// what the others have written.
__device__ __forceinline__ void barrier_arrive(int threads) {
  asm volatile("barrier.cta.arrive.aligned 1, %0;" ::"r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_sync(int threads) {
  asm volatile("barrier.cta.sync.aligned 1, %0;" ::"r"(threads) : "memory");
}

#if __CUDA_ARCH__ >= 900

// Programmatic dependent launch: waits until the preceding kernels of the stream are complete and visible.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ unsigned cluster_ctarank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ unsigned cluster_nctarank() {
  unsigned size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

__device__ __forceinline__ unsigned clusterid_x() {
  unsigned id;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}

// Relaxed: arriving with .release would wait for all stores to global memory, which takes as long as they do.
__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// mbarrier: a phase ends when `arrivals` threads have arrived and all announced bytes have come.
__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Other CTAs see the initialised barrier after the next cluster barrier.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t *barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// At the barrier of the CTA `rank` that is where `barrier` is in this one. Relaxed: it says that something has been read,
// and publishes nothing; .release would wait for all stores to global memory.
__device__ __forceinline__ void mbarrier_arrive_remote(const uint64_t *barrier, unsigned rank) {
  asm volatile("{\n\t"
               ".reg .u32 at;\n\t"
               "mapa.shared::cluster.u32 at, %0, %1;\n\t"
               "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [at];\n\t"
               "}" ::"r"(shared_address(barrier)),
               "r"(rank)
               : "memory");
}

// Waits for the end of a phase; parity 0 is the first. For what threads of this CTA, and the copy engine, have written.
__device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, unsigned parity) {
  asm volatile("{\n\t"
               ".reg .pred done;\n"
               "again_%=:\n\t"
               "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n\t"
               "@!done bra again_%=;\n\t"
               "}" ::"r"(shared_address(barrier)),
               "r"(parity)
               : "memory");
}

// For what other CTAs of the cluster have written.
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t *barrier, unsigned parity) {
  asm volatile("{\n\t"
               ".reg .pred done;\n"
               "again_%=:\n\t"
               "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
               "@!done bra again_%=;\n\t"
               "}" ::"r"(shared_address(barrier)),
               "r"(parity)
               : "memory");
}

// The copy engine sees what this thread has written to shared memory.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies into this CTA's shared memory and counts the bytes at its barrier; both ends 16-byte aligned, as is the size.
__device__ __forceinline__ void cp_async_bulk(void *shared, const void *global, unsigned bytes, uint64_t *barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Stores to the CTA `rank` where `local` is in this one, and counts 4 bytes at its barrier: ordered with each other, and
// with nothing else.
__device__ __forceinline__ void st_async(const float *local, uint64_t *barrier, unsigned rank, float value) {
  asm volatile("{\n\t"
               ".reg .u32 to, at;\n\t"
               "mapa.shared::cluster.u32 to, %0, %2;\n\t"
               "mapa.shared::cluster.u32 at, %1, %2;\n\t"
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [to], %3, [at];\n\t"
               "}" ::"r"(shared_address(local)),
               "r"(shared_address(barrier)), "r"(rank), "f"(value)
               : "memory");
}

// Sixteen bytes of st_async.
__device__ __forceinline__ void st_async_v4(const float4 *local, uint64_t *barrier, unsigned rank, float a, float b,
                                            float c, float d) {
  asm volatile("{\n\t"
               ".reg .u32 to, at;\n\t"
               "mapa.shared::cluster.u32 to, %0, %2;\n\t"
               "mapa.shared::cluster.u32 at, %1, %2;\n\t"
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [at];\n\t"
               "}" ::"r"(shared_address(local)),
               "r"(shared_address(barrier)), "r"(rank), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// Stores four 8 x 8 matrices of bf16: the lane l gives the address of row l % 8 of matrix l / 8, and of each matrix has
// row l / 4, columns 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void stmatrix_x4(void *row, uint4 v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

#endif

} // namespace gm::ptx

#endif
