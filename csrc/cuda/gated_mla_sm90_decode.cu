// Few rows of x: W lies on the wide side of wgmma, so that a tile of it meets as few as eight rows of x. The CTAs of a
// cluster share a tile along k: their sums meet in the shared memory of the CTA that finishes a block of eight rows of x,
// and are added in the order of k.
#include "cuda/common/gate.cuh"
#include "cuda/common/gated_mla.cuh"
#include "cuda/common/tensor_map.cuh"
#include "cuda/common/wgmma.cuh"

namespace {

using namespace gm;

enum {
  kWarp = 32,
  kGroup = 128,    // threads of a warpgroup
  kGroupRows = 64, // rows of W that a warpgroup multiplies
  kDepth = 64,     // columns of k in a chunk, which a stage holds
  kBlock = 8,      // rows of x that are finished together
  kMaxStages = 16,
  kSwizzleBytes = 1024,
};

struct Shape {
  int m, n;
  int chunks, longer; // of k in a CTA; in how many CTAs of a cluster, the first, there is one more
  int log2_split;     // CTAs along k
  int stages;
};

struct Barriers {
  uint64_t full[kMaxStages], empty[kMaxStages], mail;
};

template <int kRows, int kTokens>
struct Tile {
  static constexpr int kGroups = kRows / kGroupRows;
  static constexpr int kConsumers = kGroups * kGroup;
  static constexpr int kThreads = kConsumers + 2 * kWarp;
  static constexpr int kCtas = 128 / kRows; // of a multiprocessor
  static constexpr int kBlocks = kTokens / kBlock;
  static constexpr int kWeightBytes = kRows * kDepth * 2;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kDepth * 2;

  // What the other CTAs of a cluster send: a float4 from each thread for each block that this one finishes.
  static constexpr int mail_bytes(int split) {
    return split == 1 ? 0 : (kBlocks + split - 1) / split * split * kConsumers * static_cast<int>(sizeof(float4));
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What a CTA works on. In shared memory: the barriers, the ring of stages, the mail.
template <int kRows, int kTokens>
struct Work {
  using T = Tile<kRows, kTokens>;
  const Shape &s;
  Barriers *barriers;
  unsigned char *ring;
  int split, rank;
  int row, token;         // the first
  int first_chunk, count; // of chunks

  __device__ Work(const Shape &shape, unsigned char *shared) : s(shape) {
    barriers = reinterpret_cast<Barriers *>(shared);
    ring = shared + kSwizzleBytes;
    split = 1 << s.log2_split;
    rank = static_cast<int>(blockIdx.x) & (split - 1);
    row = static_cast<int>(blockIdx.x >> s.log2_split) * kRows;
    token = static_cast<int>(blockIdx.y) * kTokens;
    first_chunk = rank * s.chunks + min(rank, s.longer);
    count = s.chunks + (rank < s.longer ? 1 : 0);
  }
  // In how many blocks there are rows of x, and whether this CTA finishes one.
  __device__ int blocks() const { return min((s.m - token + kBlock - 1) / kBlock, static_cast<int>(T::kBlocks)); }
  __device__ bool finishes(int block) const { return block < blocks() && (block & (split - 1)) == rank; }
  __device__ bool sends(int block) const { return block < blocks() && (block & (split - 1)) != rank; }
};

// A position in the ring of stages.
struct Place {
  int stage = 0;
  unsigned parity = 0;
  __device__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread of each of the two warps that fill the ring. W is not made by the preceding kernel, and goes ahead.
template <int kRows, int kTokens>
__device__ void init_barriers(const Work<kRows, kTokens> &w) {
  using T = Tile<kRows, kTokens>;
#pragma unroll
  for (int i = 0; i < kMaxStages; ++i) {
    ptx::mbarrier_init(&w.barriers->full[i], 2);
    ptx::mbarrier_init(&w.barriers->empty[i], T::kGroups);
  }
  // The bytes of the blocks that this CTA finishes, from all ranks but its own.
  const int own = (w.blocks() - w.rank + w.split - 1) >> w.s.log2_split;
  ptx::mbarrier_init(&w.barriers->mail, 1);
  ptx::mbarrier_arrive_expect_tx(&w.barriers->mail, own * (w.split - 1) * T::kConsumers * sizeof(float4));
  ptx::fence_mbarrier_init(); // seen by the copy engine, and by the other CTAs
}

// Boxes of `rows` rows from `row` on, `offset` bytes into each stage.
template <int kRows, int kTokens>
__device__ void load(const Work<kRows, kTokens> &w, const CUtensorMap *map, int row, int offset, int bytes,
                     uint64_t policy) {
  using T = Tile<kRows, kTokens>;
  Place place;
#pragma unroll 1
  for (int i = 0; i < w.count; ++i) {
    uint64_t *full = &w.barriers->full[place.stage];
    if (i >= w.s.stages) ptx::mbarrier_wait(&w.barriers->empty[place.stage], place.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, bytes);
    ptx::cp_async_bulk_tensor(w.ring + place.stage * T::kStageBytes + offset, map, (w.first_chunk + i) * kDepth, row,
                              full, policy);
    place.next(w.s.stages);
  }
}

template <int kRows, int kTokens>
class Consumer {
  using T = Tile<kRows, kTokens>;
  static constexpr bool kHoldsAttn = kTokens <= 64; // else there are too few registers

public:
  __device__ Consumer(const Work<kRows, kTokens> &w, const uint16_t *attn, uint16_t *out)
      : w_(w), thread_(static_cast<int>(threadIdx.x)), token_(w.token + thread_ % kWarp / 4) {
    const int64_t at = static_cast<int64_t>(token_) * w.s.n + w.row + thread_ / kWarp * 16 + thread_ % 4 * 2;
    attn_ = attn + at;
    out_ = out + at;
  }

  __device__ void load_attn() {
    if constexpr (kHoldsAttn) {
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
        if (has_output(block)) load_attn(block);
      }
    }
  }

  __device__ void multiply() {
    const int group = __shfl_sync(0xffffffff, thread_ / kGroup, 0); // the same in all lanes, for all to see
    const uint64_t a = ptx::wgmma_descriptor(w_.ring + group * (kGroupRows * kDepth * 2));
    const uint64_t b = ptx::wgmma_descriptor(w_.ring + T::kWeightBytes);
    Place place;
    int before = 0;
#pragma unroll 1
    for (int i = 0; i < w_.count; ++i) {
      const unsigned offset = place.stage * ptx::wgmma_descriptor_step(T::kStageBytes);
      ptx::mbarrier_wait(&w_.barriers->full[place.stage], place.parity);
      ptx::wgmma_m64k64<kTokens>(sums_, a + offset, b + offset, i > 0);
      ptx::wgmma_wait_group<1>(); // the stage before is read
      // Another chunk will go there.
      if (i > 0 && i - 1 + w_.s.stages < w_.count && thread_ % kGroup == 0) {
        ptx::mbarrier_arrive(&w_.barriers->empty[before]);
      }
      before = place.stage;
      place.next(w_.s.stages);
    }
    ptx::wgmma_wait_group<0>();
  }

  // Sends the blocks that other CTAs finish, and adds what they have sent to the own ones.
  __device__ void exchange() {
    float4 *const mail = reinterpret_cast<float4 *>(w_.ring + w_.s.stages * T::kStageBytes) + thread_;
    const auto of_block = [&](int block) {
      return mail + (block >> w_.s.log2_split << w_.s.log2_split) * T::kConsumers;
    };
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      if (w_.sends(block)) {
        const float *sum = &sums_[4 * block];
        ptx::st_async_v4(of_block(block) + w_.rank * T::kConsumers, &w_.barriers->mail, block & (w_.split - 1), sum[0],
                         sum[1], sum[2], sum[3]);
      }
    }
    if (w_.rank >= w_.blocks()) return; // finishes none
    ptx::mbarrier_wait_cluster(&w_.barriers->mail, 0);
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      if (w_.finishes(block)) add_ranks(of_block(block), &sums_[4 * block]);
    }
  }

  __device__ void finish() {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      if (!w_.finishes(block)) continue; // the same in all lanes, which exchange halves
      const bool valid = has_output(block);
      if (!kHoldsAttn && valid) load_attn(block);
      const float *sum = &sums_[4 * block];
      const uint32_t low = gate(low_[block], sum[0], sum[1]), high = gate(high_[block], sum[2], sum[3]);
      if (valid) store_out(block, low, high);
    }
  }

private:
  __device__ bool has_output(int block) const { return w_.finishes(block) && token_ + kBlock * block < w_.s.m; }

  // Two columns, and two that are eight further.
  __device__ void load_attn(int block) {
    const uint16_t *p = attn_ + offset(block);
    low_[block] = *reinterpret_cast<const uint32_t *>(p);
    high_[block] = *reinterpret_cast<const uint32_t *>(p + 8);
  }

  __device__ void store_out(int block, uint32_t low, uint32_t high) {
    uint16_t *p = out_ + offset(block);
    *reinterpret_cast<uint32_t *>(p) = low;
    *reinterpret_cast<uint32_t *>(p + 8) = high;
  }

  __device__ int64_t offset(int block) const { return block * kBlock * static_cast<int64_t>(w_.s.n); }

  // sum = sum of rank 0 + sum of rank 1 + ...
  __device__ void add_ranks(const float4 *mail, float *sum) {
    const float4 own = make_float4(sum[0], sum[1], sum[2], sum[3]);
    float4 total = w_.rank == 0 ? own : mail[0];
    for (int rank = 1; rank < w_.split; ++rank) {
      const float4 v = rank == w_.rank ? own : mail[rank * T::kConsumers];
      total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
    }
    sum[0] = total.x, sum[1] = total.y, sum[2] = total.z, sum[3] = total.w;
  }

  // Two columns of attn in one row of x against the sums of one column in two rows, and back.
  __device__ static uint32_t gate(uint32_t attn, float z0, float z1) {
    return ptx::movmatrix_trans(gated(ptx::movmatrix_trans(attn), z0, z1));
  }

  const Work<kRows, kTokens> &w_;
  const int thread_, token_; // its row in the first block of x; the lower column of attn and out:
  const uint16_t *attn_;
  uint16_t *out_;
  float sums_[kTokens / 2];
  uint32_t low_[T::kBlocks], high_[T::kBlocks];
};

template <int kRows, int kTokens>
__device__ void consume(const Work<kRows, kTokens> &w, bool pdl, const uint16_t *attn, uint16_t *out) {
  Consumer<kRows, kTokens> consumer(w, attn, out);
  wait_for_inputs(pdl);
  consumer.load_attn();
  consumer.multiply();
  if (w.split > 1) {
    ptx::barrier_cluster_wait(); // the other CTAs have started, with their barriers
    consumer.exchange();
  }
  consumer.finish();
}

#endif

} // namespace

template <int kRows, int kTokens>
static __global__ void __launch_bounds__(Tile<kRows, kTokens>::kThreads, Tile<kRows, kTokens>::kCtas)
    gated_mla_sm90_decode(const __grid_constant__ bool pdl, const __grid_constant__ CUtensorMap weight,
                          const __grid_constant__ CUtensorMap x, const uint16_t *attn, uint16_t *out,
                          const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = Tile<kRows, kTokens>;
  extern __shared__ __align__(kSwizzleBytes) unsigned char shared[];
  const Work<kRows, kTokens> w(s, shared);
  const int thread = static_cast<int>(threadIdx.x) - T::kConsumers; // behind those that consume
  if (thread >= 0 && thread < kWarp) {
    if (thread == 0) init_barriers(w);
    __syncwarp();
    ptx::barrier_arrive(T::kThreads);
    if (w.split > 1) ptx::barrier_cluster_arrive_relaxed();
    if (thread == 0)
      load(w, &weight, w.row, 0, T::kWeightBytes, ptx::policy_evict_first()); // not made by the preceding kernel
    __syncwarp();
    if (w.split > 1) ptx::barrier_cluster_wait();
    return;
  }
  ptx::barrier_sync(T::kThreads); // the barriers are initialised
  if (w.split > 1) ptx::barrier_cluster_arrive_relaxed();
  if (thread < 0) {
    consume(w, pdl, attn, out);
  } else {
    wait_for_inputs(pdl);
    if (thread == kWarp)
      load(w, &x, w.token, T::kWeightBytes, T::kStageBytes - T::kWeightBytes, ptx::policy_evict_last());
    __syncwarp();
    if (w.split > 1) ptx::barrier_cluster_wait();
  }
#endif
}

template <int kRows, int kTokens>
static gm_status run(const gm_exec *exec, const gm_gated_mla_problem *p, int split) {
  using T = Tile<kRows, kTokens>;
  CUtensorMap weight, x;
  if (!gm_cuda_tensor_map(&weight, p->weight, p->n, p->k, kRows) ||
      !gm_cuda_tensor_map(&x, p->x, p->m, p->k, kTokens)) {
    return gm_gated_mla_sm80(exec, p);
  }
  const int chunks = static_cast<int>(divide_up(p->k, kDepth));
  Shape shape = {static_cast<int>(p->m), static_cast<int>(p->n), chunks / split, chunks % split, 0, kMaxStages};
  while (1 << shape.log2_split < split) ++shape.log2_split;
  // Of a multiprocessor's shared memory, 1 KiB a CTA is the system's.
  constexpr int kSystemBytes = 1024;
  const int shared_bytes = (device_facts(exec).shared_bytes + kSystemBytes) / T::kCtas - kSystemBytes;
  const int fixed_bytes = kSwizzleBytes + T::mail_bytes(split);
  const int most[] = {(shared_bytes - fixed_bytes) / T::kStageBytes, shape.chunks + (shape.longer > 0)};
  for (const int stages : most) shape.stages = stages < shape.stages ? stages : shape.stages;
  const Grid grid = {.x = p->n / kRows * split,
                     .y = divide_up(p->m, kTokens),
                     .threads = T::kThreads,
                     .cluster = split,
                     .shared_bytes = static_cast<size_t>(shape.stages * T::kStageBytes + fixed_bytes)};
  return launch(exec, "gated_mla/cuda/sm90/decode", gated_mla_sm90_decode<kRows, kTokens>, grid, weight, x, p->attn,
                p->out, shape);
}

template <int kRows>
static gm_status run_tokens(const gm_exec *exec, const gm_gated_mla_problem *p, int tokens, int split) {
  switch (tokens) {
  case 8: return run<kRows, 8>(exec, p, split);
  case 16: return run<kRows, 16>(exec, p, split);
  case 32: return run<kRows, 32>(exec, p, split);
  case 64: return run<kRows, 64>(exec, p, split);
  default: return run<kRows, 128>(exec, p, split);
  }
}

extern "C" gm_status gm_gated_mla_sm90_decode(const gm_exec *exec, const gm_gated_mla_problem *p, int rows, int tokens,
                                              int split) {
  return rows == 64 ? run_tokens<64>(exec, p, tokens, split) : run_tokens<128>(exec, p, tokens, split);
}
