// Few rows of x: W lies on the wide side of wgmma, so that a tile of it meets as few as eight rows of x. The CTAs of a
// cluster share the rows of x, and a tile of W along k: their partial sums meet in the shared memory of the CTA that
// finishes a block of eight rows of x, and are added in the order of k.
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
  int chunks; // of k
  int split;  // CTAs along k
  int share;  // CTAs that load x for each other
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
  static constexpr int kBlocks = kTokens / kBlock;
  static constexpr int kWeightBytes = kRows * kDepth * 2;
  static constexpr int kXBytes = kTokens * kDepth * 2;
  static constexpr int kStageBytes = kWeightBytes + kXBytes;
  // Sums that take turns: a narrow wgmma waits longer for its predecessor's sums than it computes.
  static constexpr int kChains = kTokens <= 16 ? 4 : kTokens == 32 ? 2 : 1;

  // What the other CTAs of a cluster send: a float4 from each thread for each block that this one finishes.
  __host__ __device__ static constexpr int mail_bytes(int split) {
    return split == 1 ? 0 : (kBlocks + split - 1) / split * split * kConsumers * static_cast<int>(sizeof(float4));
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What a CTA works on: `rank` along k, `peer` of those that share x.
template <int kRows, int kTokens>
struct Work {
  using T = Tile<kRows, kTokens>;
  const Shape &s;
  int rank, peer;
  int row, token;         // the first
  int first_chunk, count; // of chunks
  unsigned char *ring, *mail;
  Barriers *barriers;

  __device__ Work(const Shape &shape, unsigned char *shared) : s(shape) {
    const int in_cluster = static_cast<int>(ptx::cluster_ctarank());
    rank = in_cluster / s.share;
    peer = in_cluster % s.share;
    row = static_cast<int>(ptx::clusterid_x() * s.share + peer) * kRows;
    token = static_cast<int>(blockIdx.y) * kTokens;
    first_chunk = s.chunks * rank / s.split;
    count = s.chunks * (rank + 1) / s.split - first_chunk;
    ring = shared;
    mail = ring + s.stages * T::kStageBytes;
    barriers = reinterpret_cast<Barriers *>(mail + T::mail_bytes(s.split));
  }
  __device__ bool in_cluster() const { return s.split * s.share > 1; }
  // In how many blocks there are rows of x, and whether this CTA finishes one.
  __device__ int blocks() const { return min((s.m - token + kBlock - 1) / kBlock, static_cast<int>(T::kBlocks)); }
  __device__ bool finishes(int block) const { return block % s.split == rank; }
  __device__ unsigned cluster_rank(int of_rank, int of_peer) const { return of_rank * s.share + of_peer; }
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

template <int kRows, int kTokens>
__device__ void init_barriers(const Work<kRows, kTokens> &w, int lane) {
  using T = Tile<kRows, kTokens>;
  if (lane < w.s.stages) {
    ptx::mbarrier_init(&w.barriers->full[lane], 2);
    ptx::mbarrier_init(&w.barriers->empty[lane], T::kGroups * w.s.share);
  } else if (lane == kMaxStages) {
    // The bytes of the blocks that this CTA finishes, from all ranks but its own.
    const int own = (w.blocks() - w.rank + w.s.split - 1) / w.s.split;
    ptx::mbarrier_init(&w.barriers->mail, 1);
    ptx::mbarrier_arrive_expect_tx(&w.barriers->mail, own * (w.s.split - 1) * T::kConsumers * sizeof(float4));
  }
  ptx::fence_mbarrier_init();
}

template <int kRows, int kTokens>
__device__ void load_weight(const Work<kRows, kTokens> &w, const CUtensorMap *weight) {
  using T = Tile<kRows, kTokens>;
  const uint64_t once = ptx::policy_evict_first();
  Place place;
  for (int i = 0; i < w.count; ++i) {
    uint64_t *full = &w.barriers->full[place.stage];
    ptx::mbarrier_wait(&w.barriers->empty[place.stage], place.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, T::kWeightBytes);
    ptx::cp_async_bulk_tensor(w.ring + place.stage * T::kStageBytes, weight, (w.first_chunk + i) * kDepth, w.row, full,
                              once);
    place.next(w.s.stages);
  }
}

template <int kRows, int kTokens>
__device__ void load_x(const Work<kRows, kTokens> &w, const CUtensorMap *x) {
  using T = Tile<kRows, kTokens>;
  const uint64_t again = ptx::policy_evict_last();
  const int tokens = kTokens / w.s.share; // that this CTA loads, for all that share them
  const uint16_t ctas = static_cast<uint16_t>(((1 << w.s.share) - 1) << w.cluster_rank(w.rank, 0));
  Place place;
  for (int i = 0; i < w.count; ++i) {
    uint64_t *full = &w.barriers->full[place.stage];
    unsigned char *to = w.ring + place.stage * T::kStageBytes + T::kWeightBytes + w.peer * tokens * (kDepth * 2);
    const int column = (w.first_chunk + i) * kDepth, token = w.token + w.peer * tokens;
    ptx::mbarrier_wait(&w.barriers->empty[place.stage], place.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, T::kXBytes);
    if (w.s.share == 1) {
      ptx::cp_async_bulk_tensor(to, x, column, token, full, again);
    } else {
      ptx::cp_async_bulk_tensor_multicast(to, x, column, token, full, ctas, again);
    }
    place.next(w.s.stages);
  }
}

template <int kRows, int kTokens>
class Consumer {
  using T = Tile<kRows, kTokens>;

public:
  __device__ Consumer(const Work<kRows, kTokens> &w, const uint16_t *attn, uint16_t *out)
      : w_(w), thread_(static_cast<int>(threadIdx.x)), token_(w.token + thread_ % kWarp / 4) {
    const int column = w.row + thread_ / kWarp * 16 + thread_ % 4 * 2;
    offset_ = static_cast<int64_t>(token_) * w.s.n + column;
    attn_ = attn;
    out_ = out;
  }

  __device__ void load_attn() {
    const uint16_t *p = attn_ + offset_;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block, p += kBlock * static_cast<int64_t>(w_.s.n)) {
      if (w_.finishes(block) && in_bounds(block)) {
        low_[block] = *reinterpret_cast<const uint32_t *>(p);
        high_[block] = *reinterpret_cast<const uint32_t *>(p + 8);
      }
    }
  }

  __device__ void multiply() {
    const int group = __shfl_sync(0xffffffff, thread_ / kGroup, 0); // the same in all lanes, for all to see
    float sums[T::kChains][kTokens / 2];
    Place place;
    int before = 0;
    for (int i = 0; i < w_.count; ++i) {
      const unsigned char *weight = w_.ring + place.stage * T::kStageBytes;
      ptx::mbarrier_wait(&w_.barriers->full[place.stage], place.parity);
      const uint64_t a = ptx::wgmma_descriptor(weight + group * (kGroupRows * kDepth * 2));
      const uint64_t b = ptx::wgmma_descriptor(weight + T::kWeightBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) {
        ptx::wgmma_m64k16<kTokens>(sums[step % T::kChains], a + 2 * step, b + 2 * step, i > 0 || step >= T::kChains);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<1>(); // the stage before is read
      if (i > 0) release(i - 1, before);
      before = place.stage;
      place.next(w_.s.stages);
    }
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      sums_[i] = sums[0][i];
#pragma unroll
      for (int chain = 1; chain < T::kChains; ++chain) sums_[i] += sums[chain][i];
    }
  }

  // Sends the blocks that other CTAs finish, and adds what they have sent to the own ones.
  __device__ void exchange() {
    float4 *const mail = reinterpret_cast<float4 *>(w_.mail) + thread_;
    const int blocks = w_.blocks();
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      if (block < blocks && !w_.finishes(block)) {
        const float *sum = &sums_[4 * block];
        ptx::st_async_v4(mail + (block / w_.s.split * w_.s.split + w_.rank) * T::kConsumers, &w_.barriers->mail,
                         w_.cluster_rank(block % w_.s.split, w_.peer), sum[0], sum[1], sum[2], sum[3]);
      }
    }
    if (w_.rank >= blocks) return; // finishes none
    ptx::mbarrier_wait_cluster(&w_.barriers->mail, 0);
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      if (block < blocks && w_.finishes(block)) {
        add_ranks(mail + block / w_.s.split * w_.s.split * T::kConsumers, &sums_[4 * block]);
      }
    }
  }

  __device__ void finish() {
    const int blocks = w_.blocks();
    uint16_t *p = out_ + offset_;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block, p += kBlock * static_cast<int64_t>(w_.s.n)) {
      if (block < blocks && w_.finishes(block)) {
        const uint32_t low = gate(low_[block], sums_[4 * block], sums_[4 * block + 1]);
        const uint32_t high = gate(high_[block], sums_[4 * block + 2], sums_[4 * block + 3]);
        if (in_bounds(block)) {
          *reinterpret_cast<uint32_t *>(p) = low;
          *reinterpret_cast<uint32_t *>(p + 8) = high;
        }
      }
    }
  }

private:
  __device__ bool in_bounds(int block) const { return token_ + kBlock * block < w_.s.m; }

  // To the CTAs that fill the stage, if they will: else they may be gone.
  __device__ void release(int i, int stage) {
    if (i + w_.s.stages < w_.count && thread_ % kGroup < w_.s.share) {
      ptx::mbarrier_arrive_remote(&w_.barriers->empty[stage], w_.cluster_rank(w_.rank, thread_ % kGroup));
    }
  }

  // sum = sum of rank 0 + sum of rank 1 + ...
  __device__ void add_ranks(const float4 *mail, float *sum) {
    const float4 own = make_float4(sum[0], sum[1], sum[2], sum[3]);
    float4 total = w_.rank == 0 ? own : mail[0];
    for (int rank = 1; rank < w_.s.split; ++rank) {
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
  const int thread_, token_; // its first row of x
  int64_t offset_;           // of its first two columns there; the other two are eight further
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
  if (w.in_cluster()) ptx::barrier_cluster_wait(); // the other CTAs have started, with their barriers
  if (w.s.split > 1) consumer.exchange();
  consumer.finish();
}

#endif

} // namespace

template <int kRows, int kTokens>
static __global__ void __launch_bounds__(Tile<kRows, kTokens>::kThreads, 128 / kRows)
    gated_mla_sm90_decode(const __grid_constant__ bool pdl, const __grid_constant__ CUtensorMap weight,
                          const __grid_constant__ CUtensorMap x, const uint16_t *attn, uint16_t *out,
                          const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = Tile<kRows, kTokens>;
  extern __shared__ __align__(kSwizzleBytes) unsigned char shared[];
  const Work<kRows, kTokens> w(s, shared);
  const int thread = static_cast<int>(threadIdx.x) - T::kConsumers; // behind those that consume
  if (thread == 0) ptx::prefetch_tensormap(&weight);
  if (thread == kWarp) ptx::prefetch_tensormap(&x);
  if (thread >= 0 && thread < kWarp) init_barriers(w, thread);
  __syncthreads();
  if (w.in_cluster()) ptx::barrier_cluster_arrive_relaxed();
  if (thread < 0) {
    consume(w, pdl, attn, out);
  } else if (thread < kWarp) {
    if (thread == 0) load_weight(w, &weight); // not made by the preceding kernel
    __syncwarp();
    if (w.in_cluster()) ptx::barrier_cluster_wait();
  } else {
    if (s.share > 1) ptx::barrier_cluster_wait(); // the others' barriers, too, are initialised
    if (thread == kWarp) {
      wait_for_inputs(pdl);
      load_x(w, &x);
    }
    __syncwarp();
    if (s.share == 1 && s.split > 1) ptx::barrier_cluster_wait();
  }
#endif
}

template <int kRows, int kTokens>
static gm_status run(const gm_exec *exec, const gm_gated_mla_problem *p, int split, int share) {
  using T = Tile<kRows, kTokens>;
  CUtensorMap weight, x;
  if (!gm_cuda_tensor_map(&weight, p->weight, p->n, p->k, kRows) ||
      !gm_cuda_tensor_map(&x, p->x, p->m, p->k, kTokens / share)) {
    return gm_gated_mla_sm80(exec, p);
  }
  // Of a multiprocessor's shared memory, 1 KiB a CTA is the system's.
  constexpr int kSystemBytes = 1024;
  const int shared_bytes = (device_facts(exec).shared_bytes + kSystemBytes) / (128 / kRows) - kSystemBytes;
  const int fixed_bytes = T::mail_bytes(split) + static_cast<int>(sizeof(Barriers));
  const int chunks = static_cast<int>(divide_up(p->k, kDepth));
  int stages = (shared_bytes - fixed_bytes) / T::kStageBytes;
  stages = stages < kMaxStages ? stages : static_cast<int>(kMaxStages);
  stages = stages < divide_up(chunks, split) ? stages : static_cast<int>(divide_up(chunks, split));
  const Shape shape = {static_cast<int>(p->m), static_cast<int>(p->n), chunks, split, share, stages};
  const Grid grid = {.x = p->n / kRows * split,
                     .y = divide_up(p->m, kTokens),
                     .threads = T::kThreads,
                     .cluster = split * share,
                     .shared_bytes = static_cast<size_t>(stages * T::kStageBytes + fixed_bytes)};
  return launch(exec, "gated_mla/cuda/sm90/decode", gated_mla_sm90_decode<kRows, kTokens>, grid, weight, x, p->attn,
                p->out, shape);
}

template <int kRows>
static gm_status run_tokens(const gm_exec *exec, const gm_gated_mla_problem *p, int tokens, int split, int share) {
  switch (tokens) {
  case 8: return run<kRows, 8>(exec, p, split, share);
  case 16: return run<kRows, 16>(exec, p, split, share);
  case 32: return run<kRows, 32>(exec, p, split, share);
  case 64: return run<kRows, 64>(exec, p, split, share);
  default: return run<kRows, 128>(exec, p, split, share);
  }
}

extern "C" gm_status gm_gated_mla_sm90_decode(const gm_exec *exec, const gm_gated_mla_problem *p, int rows, int tokens,
                                              int split, int share) {
  return rows == 64 ? run_tokens<64>(exec, p, tokens, split, share) : run_tokens<128>(exec, p, tokens, split, share);
}
