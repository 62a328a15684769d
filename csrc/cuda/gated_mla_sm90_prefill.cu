// Many rows of x: persistent clusters of two CTAs, one below the other, that share the columns of W. In a CTA one warp
// fills the ring of stages, with the chunks of k of a tile and then its part of attn; two warpgroups multiply 64 rows each
// and turn attn into out where it lies; and for each of them a warp stores that.
#include "cuda/common/gate.cuh"
#include "cuda/common/gated_mla.cuh"
#include "cuda/common/tensor_map.cuh"
#include "cuda/common/wgmma.cuh"

namespace {

using namespace gm;

enum {
  kWarp = 32,
  kGroup = 128,    // threads of a warpgroup
  kGroupRows = 64, // rows of x that a warpgroup multiplies
  kGroups = 2,     // that multiply
  kRows = kGroups * kGroupRows,
  kDepth = 64, // columns of k in a stage
  kCtas = 2,   // of a cluster
  kThreads = (1 + kGroups) * kGroup,
  kSwizzleBytes = 1024,
  kBoxBytes = kGroupRows * kBoxColumns * 2, // of attn and out
  kBand = 8, // pairs of row tiles that are multiplied by the same part of W while it is in the L2
};

struct Shape {
  int row_pairs, column_tiles; // of tiles
  int chunks;                  // of kDepth columns of k
  int segments;                // of k, whose sums are added: as the CTAs of a cluster in gated_mla_sm90_decode.cu do
};

template <int kStages>
struct Barriers {
  uint64_t full[kStages], empty[kStages];
  uint64_t out_ready[kGroups];
};

template <int kColumns>
struct Tile {
  static constexpr int kXBytes = kRows * kDepth * 2;
  static constexpr int kStageBytes = kXBytes + kColumns * kDepth * 2;
  static constexpr int kStages = (227 * 1024 - 256) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + static_cast<int>(sizeof(Barriers<kStages>));
  // attn, and then out: boxes of one warpgroup's rows, those of the first warpgroup first. As many as there are in a tile of
  // 128 columns are in a stage.
  static constexpr int kBoxes = kColumns / kBoxColumns; // of a warpgroup
  static constexpr int kStageBoxes = 4;
  static constexpr int kAttnStages = kGroups * kBoxes / kStageBoxes;
  static_assert(kStageBoxes * kBoxBytes <= kStageBytes && kStageBoxes % kBoxes == 0);
  static_assert(kAttnStages * kStageBoxes == kGroups * kBoxes);
  __host__ __device__ static constexpr int attn_stage(int group) { return group * kBoxes / kStageBoxes; }
  __host__ __device__ static constexpr int attn_offset(int group) { return group * kBoxes % kStageBoxes * kBoxBytes; }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kStages>
struct Place {
  int stage = 0;
  unsigned parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // The stage of the ring that is `further` on.
  __device__ int ahead(int further) const { return (stage + further) % kStages; }
};

// The tiles of this CTA, in turn: bands of row tiles, and in each the columns from left to right.
struct Tiles {
  const Shape &s;
  unsigned index = ptx::clusterid_x();
  int row, column; // of the first element

  __device__ bool get(int columns) {
    if (index >= static_cast<unsigned>(s.row_pairs) * s.column_tiles) return false;
    const unsigned band = index / (kBand * s.column_tiles), in_band = index % (kBand * s.column_tiles);
    const unsigned left = s.row_pairs - band * kBand, pairs = left < kBand ? left : kBand;
    row = static_cast<int>((band * kBand + in_band % pairs) * kCtas + ptx::cluster_ctarank()) * kRows;
    column = static_cast<int>(in_band / pairs) * columns;
    return true;
  }
  __device__ void next() { index += gridDim.x / kCtas; }
};

// To both CTAs, each of which fills the stages of both.
template <int kStages>
__device__ void release(Barriers<kStages> *barriers, int stage, unsigned cta) {
  ptx::mbarrier_arrive_remote(&barriers->empty[stage], cta);
}

// One thread.
template <int kColumns>
class Producer {
  using T = Tile<kColumns>;

public:
  __device__ Producer(const Shape &s, const CUtensorMap *weight, const CUtensorMap *x, const CUtensorMap *attn,
                      unsigned char *ring, Barriers<T::kStages> *barriers)
      : s_(s), weight_(weight), x_(x), attn_(attn), ring_(ring), barriers_(barriers), rank_(ptx::cluster_ctarank()) {}

  __device__ void run(bool pdl) {
    bool first = true;
    for (Tiles tiles{s_}; tiles.get(kColumns); tiles.next()) {
      for (int i = 0; i < s_.chunks; ++i) {
        unsigned char *stage = acquire(T::kStageBytes);
        load_weight(stage, i, tiles.column);
        if (first) wait_for_inputs(pdl); // of which W is none
        first = false;
        ptx::cp_async_bulk_tensor(stage, x_, i * kDepth, tiles.row, full(), again_);
        place_.next();
      }
      for (int i = 0; i < T::kAttnStages; ++i) {
        load_attn(acquire(T::kStageBoxes * kBoxBytes), i, tiles);
        place_.next();
      }
    }
  }

private:
  __device__ uint64_t *full() const { return &barriers_->full[place_.stage]; }

  // Both CTAs' producers arrive when the stage is empty in both, so that no one is a round of the ring ahead.
  __device__ unsigned char *acquire(int bytes) {
    ptx::mbarrier_wait(&barriers_->empty[place_.stage], place_.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full(), bytes);
    ptx::mbarrier_arrive_remote(full(), rank_ ^ 1);
    return ring_ + place_.stage * T::kStageBytes;
  }

  // A half for both.
  __device__ void load_weight(unsigned char *stage, int chunk, int column) {
    constexpr int kShare = kColumns / kCtas;
    const int first = static_cast<int>(rank_) * kShare;
    ptx::cp_async_bulk_tensor_multicast(stage + T::kXBytes + first * (kDepth * 2), weight_, chunk * kDepth,
                                        column + first, full(), (1 << kCtas) - 1, again_);
  }

  __device__ void load_attn(unsigned char *stage, int attn_stage, const Tiles &tiles) {
    for (int i = 0; i < T::kStageBoxes; ++i) {
      const int box = attn_stage * T::kStageBoxes + i, group = box / T::kBoxes;
      ptx::cp_async_bulk_tensor(stage + i * kBoxBytes, attn_, tiles.column + box % T::kBoxes * kBoxColumns,
                                tiles.row + group * kGroupRows, full(), once_);
    }
  }

  const Shape &s_;
  const CUtensorMap *const weight_, *const x_, *const attn_;
  unsigned char *const ring_;
  Barriers<T::kStages> *const barriers_;
  const unsigned rank_;
  const uint64_t again_ = ptx::policy_evict_last(), once_ = ptx::policy_evict_first();
  Place<T::kStages> place_;
};

// One thread: stores what a warpgroup has made.
template <int kColumns>
__device__ void store(const Shape &s, const CUtensorMap *out, const unsigned char *ring, int group,
                      Barriers<Tile<kColumns>::kStages> *barriers) {
  using T = Tile<kColumns>;
  unsigned parity = 0;
  Place<T::kStages> place;
  for (Tiles tiles{s}; tiles.get(kColumns); tiles.next()) {
    const int stage = place.ahead(s.chunks + T::attn_stage(group));
    const unsigned char *boxes = ring + stage * T::kStageBytes + T::attn_offset(group);
    ptx::mbarrier_wait(&barriers->out_ready[group], parity);
    for (int box = 0; box < T::kBoxes; ++box) {
      ptx::cp_async_bulk_tensor_store(out, tiles.column + box * kBoxColumns, tiles.row + group * kGroupRows,
                                      boxes + box * kBoxBytes);
    }
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read();
    for (int cta = 0; cta < kCtas; ++cta) release(barriers, stage, cta);
    place.stage = place.ahead(s.chunks + T::kAttnStages);
    parity ^= 1;
  }
}

// attn becomes out, in place.
template <int kColumns, typename Gate>
__device__ void gate_tile(const float (&z)[kColumns / 2], unsigned char *buffer, const Gate &gate) {
  // This lane's row of 16 for ldmatrix and stmatrix, and which of two neighbouring 8 x 8 matrices it addresses.
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp % 4;
  const int row = warp * 16 + lane % 16, half = lane / 16;
#pragma unroll
  for (int column = 0; column < kColumns; column += 16) {
    const int piece = column % kBoxColumns / 8 + half; // of 16 bytes; the swizzle: xor the row
    unsigned char *p = buffer + column / kBoxColumns * kBoxBytes + row * 128 + (piece ^ row % 8) * 16;
    const uint4 a = ptx::ldmatrix_x4(p);
    const float *c = &z[column / 2];
    ptx::stmatrix_x4(
        p, make_uint4(gate(a.x, c[0], c[1]), gate(a.y, c[2], c[3]), gate(a.z, c[4], c[5]), gate(a.w, c[6], c[7])));
  }
}

template <int kCount>
__device__ bool all_moderate(const float (&z)[kCount]) {
  float largest[4] = {0.0f, 0.0f, 0.0f, 0.0f}; // independent of each other
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest[i % 4] = ptx::max_nan(largest[i % 4], fabsf(z[i]));
  return ptx::max_nan(ptx::max_nan(largest[0], largest[1]), ptx::max_nan(largest[2], largest[3])) <= kModerateLogit;
}

// A warpgroup's part of a tile after the other.
template <int kColumns>
class Consumer {
  using T = Tile<kColumns>;

public:
  __device__ Consumer(unsigned char *ring, int group, Barriers<T::kStages> *barriers)
      : ring_(ring), group_(group), barriers_(barriers),
        a_(ptx::wgmma_descriptor(ring + group * (kGroupRows * kDepth * 2))),
        b_(ptx::wgmma_descriptor(ring + T::kXBytes)) {}

  // z = the product over the next chunks.
  __device__ void multiply(float (&z)[kColumns / 2], int chunks) {
    int before = 0;
    for (int i = 0; i < chunks; ++i) {
      wait();
      const unsigned offset = place_.stage * ptx::wgmma_descriptor_step(T::kStageBytes);
      ptx::wgmma_m64k64<kColumns>(z, a_ + offset, b_ + offset, i > 0);
      ptx::wgmma_wait_group<1>(); // the stage before is read
      if (i > 0) release_both(before);
      before = place_.stage;
      place_.next();
    }
    ptx::wgmma_wait_group<0>();
    release_both(before);
  }

  // attn becomes out, in the stages behind the chunks. kAlike: by one formula, whatever the neighbours are.
  template <bool kAlike>
  __device__ void gate(const float (&z)[kColumns / 2]) {
    const bool moderate = !kAlike && all_moderate(z);
    pass(T::attn_stage(group_));
    wait();
    unsigned char *boxes = ring_ + place_.stage * T::kStageBytes + T::attn_offset(group_);
    if (__all_sync(0xffffffff, moderate)) {
      gate_tile<kColumns>(z, boxes, [](uint32_t attn, float z0, float z1) { return gated_moderate(attn, z0, z1); });
    } else {
      gate_tile<kColumns>(z, boxes, [](uint32_t attn, float z0, float z1) { return gated(attn, z0, z1); });
    }
    ptx::fence_proxy_async(); // for the store, after which the stage is released
    ptx::mbarrier_arrive(&barriers_->out_ready[group_]);
    place_.next();
    pass(T::kAttnStages - 1 - T::attn_stage(group_));
  }

private:
  __device__ void wait() { ptx::mbarrier_wait(&barriers_->full[place_.stage], place_.parity); }

  // Stages of the other warpgroup. They are waited for all the same: the release after this one is of the next round.
  __device__ void pass(int stages) {
    for (int i = 0; i < stages; ++i) {
      wait();
      release_both(place_.stage);
      place_.next();
    }
  }

  __device__ void release_both(int stage) {
    const int thread = static_cast<int>(threadIdx.x) % kGroup;
    if (thread < kCtas) release(barriers_, stage, thread);
  }

  unsigned char *const ring_;
  const int group_;
  Barriers<T::kStages> *const barriers_;
  const uint64_t a_, b_; // of the first stage
  Place<T::kStages> place_;
};

template <int kColumns, bool kInvariant>
__device__ void consume(const Shape &s, unsigned char *ring, int group, Barriers<Tile<kColumns>::kStages> *barriers) {
  Consumer<kColumns> consumer(ring, group, barriers);
  float z[kColumns / 2];
  for (Tiles tiles{s}; tiles.get(kColumns); tiles.next()) {
    if constexpr (kInvariant && kColumns == 128) {
      const int chunks = s.chunks / s.segments, longer = s.chunks % s.segments;
      consumer.multiply(z, chunks + (longer > 0));
      for (int segment = 1; segment < s.segments; ++segment) {
        float next[kColumns / 2];
        consumer.multiply(next, chunks + (segment < longer));
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) z[i] += next[i];
      }
    } else {
      consumer.multiply(z, s.chunks);
    }
    consumer.template gate<kInvariant>(z);
  }
}

#endif

} // namespace

template <int kColumns, bool kInvariant>
static __global__ void __launch_bounds__(kThreads, 1)
    gated_mla_sm90_prefill(const __grid_constant__ bool pdl, const __grid_constant__ CUtensorMap weight,
                           const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap attn,
                           const __grid_constant__ CUtensorMap out, const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = Tile<kColumns>;
  extern __shared__ __align__(kSwizzleBytes) unsigned char ring[];
  auto &barriers = *reinterpret_cast<Barriers<T::kStages> *>(ring + T::kStages * T::kStageBytes);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&weight);
    ptx::prefetch_tensormap(&x);
    ptx::prefetch_tensormap(&attn);
    ptx::prefetch_tensormap(&out);
    for (int i = 0; i < T::kStages; ++i) {
      ptx::mbarrier_init(&barriers.full[i], kCtas);
      ptx::mbarrier_init(&barriers.empty[i], kCtas * kGroups);
    }
    for (int i = 0; i < kGroups; ++i) ptx::mbarrier_init(&barriers.out_ready[i], kGroup);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::barrier_cluster_arrive_relaxed();
  ptx::barrier_cluster_wait(); // both CTAs have started, with their barriers
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kGroup, 0); // uniform
  if (group == kGroups) {
    ptx::setmaxnreg_dec<40>();
    const int warp = static_cast<int>(threadIdx.x) % kGroup / kWarp;
    if (threadIdx.x % kWarp == 0) {
      if (warp == 0) {
        Producer<kColumns>(s, &weight, &x, &attn, ring, &barriers).run(pdl);
      } else if (warp <= kGroups) {
        store<kColumns>(s, &out, ring, warp - 1, &barriers);
      }
    }
    __syncwarp();
  } else {
    ptx::setmaxnreg_inc<232>();
    consume<kColumns, kInvariant>(s, ring, group, &barriers);
  }
  ptx::barrier_cluster_arrive_relaxed();
  ptx::barrier_cluster_wait(); // the other CTA's arrivals and loads go to this one's shared memory
#endif
}

template <int kColumns, bool kInvariant>
static gm_status run(const gm_exec *exec, const gm_gated_mla_problem *p, int segments) {
  using T = Tile<kColumns>;
  CUtensorMap weight, x, attn, out;
  if (!gm_cuda_tensor_map(&weight, p->weight, p->n, p->k, kColumns / kCtas) ||
      !gm_cuda_tensor_map(&x, p->x, p->m, p->k, kRows) || !gm_cuda_tensor_map(&attn, p->attn, p->m, p->n, kGroupRows) ||
      !gm_cuda_tensor_map(&out, p->out, p->m, p->n, kGroupRows)) {
    return gm_gated_mla_sm80(exec, p);
  }
  const Shape shape = {static_cast<int>(divide_up(p->m, kCtas * kRows)), static_cast<int>(p->n / kColumns),
                       static_cast<int>(divide_up(p->k, kDepth)), segments};
  const int64_t tiles = static_cast<int64_t>(shape.row_pairs) * shape.column_tiles;
  const int64_t clusters = device_facts(exec).sm_count / kCtas;
  const Grid grid = {.x = kCtas * (tiles < clusters ? tiles : clusters),
                     .threads = kThreads,
                     .cluster = kCtas,
                     .shared_bytes = T::kSharedBytes};
  return launch(exec, "gated_mla/cuda/sm90/prefill", gated_mla_sm90_prefill<kColumns, kInvariant>, grid, weight, x,
                attn, out, shape);
}

extern "C" gm_status gm_gated_mla_sm90_prefill(const gm_exec *exec, const gm_gated_mla_problem *p, int columns,
                                               int segments) {
  const bool invariant = (exec->flags & GM_BATCH_INVARIANT) != 0 || segments > 1;
  if (columns == 256 && segments == 1) {
    return invariant ? run<256, true>(exec, p, 1) : run<256, false>(exec, p, 1);
  }
  return invariant ? run<128, true>(exec, p, segments) : run<128, false>(exec, p, 1);
}
