// A handful of rows of x: W goes from memory into registers, several blocks ahead. The warps of a cluster have a part of k
// each, all for the same 16 rows of W; their sums are added in the order of k, first within each CTA.
#include "cuda/common/gate.cuh"
#include "cuda/common/gated_mla.cuh"
#include "cuda/common/octet.cuh"

namespace {

using namespace gm;

enum {
  kWarp = 32,
  kRows = 16,  // of W: the wide side of an mma
  kBlock = 32, // columns of k: an octet from each of the four lanes that share a row, two mmas
  kDepth = 6,  // blocks of W that a warp has on the way
  kMinThreads = 128,
  kMaxThreads = 512,
  kTokenStride = 20, // floats; the rows of x whose sums a warp stores together lie in different banks
};

struct Shape {
  int m, n, k;
  int log2_split;      // CTAs along k
  int blocks_per_warp; // of k
};

// In shared memory: what each warp has of the sums, and what each CTA has of those that this one finishes.
template <int kTokens>
struct Sums {
  static constexpr int kOfWarp = kTokens * kTokenStride, kOfCta = kTokens * kRows; // floats
  __host__ __device__ static constexpr int bytes(int warps, int split) {
    return static_cast<int>((warps * kOfWarp + split * kOfCta) * sizeof(float) + sizeof(uint64_t));
  }
  float *of_warps, *of_ctas;
  uint64_t *arrived; // from other CTAs
};

#if __CUDA_ARCH__ >= 900

// A warp's part of the product. Lane l has octets of the rows l / 4 and l / 4 + 8 of W, and of every eighth row of x from
// l / 4 on: columns l % 4 * kOctet of each block. An mma means other columns by that lane's place, but the same of W and x.
template <int kTokens>
struct Product {
  static constexpr int kGroups = kTokens / 8;
  static constexpr int kXDepth = kTokens == 8 ? 6 : 2; // x is in the L2, and registers are few
  static constexpr int kChains = kTokens == 8 ? 2 : 1; // of sums: an mma waits for the one whose sums it takes
  static_assert(kDepth % kXDepth == 0, "slots are known at compile time");

  const uint16_t *low_row, *high_row, *x; // this lane's next octets of rows l / 4 and l / 4 + 8 of W, and of x
  int64_t eight_rows;
  int octets; // of this lane in a row, from there on; behind them there is zero
  int tokens; // rows of x from this lane's first one on
  uint4 low[kDepth], high[kDepth], token[kXDepth][kGroups];
  float sums[kChains][kGroups][4];

  __device__ void load_weight(int slot, int block) {
    const uint64_t once = ptx::policy_evict_first();
    low[slot] = ptx::ld_global_constant_v4_if(block < octets, low_row + block * kBlock, once);
    high[slot] = ptx::ld_global_constant_v4_if(block < octets, high_row + block * kBlock, once);
  }

  __device__ void load_x(int slot, int block) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const bool valid = block < octets && group * 8 < tokens;
      token[slot][group] = ptx::ld_global_v4_if(valid, x + group * eight_rows + block * kBlock);
    }
  }

  __device__ void start_weight() {
#pragma unroll
    for (int block = 0; block < kDepth; ++block) load_weight(block, block);
  }

  __device__ void start_x() {
#pragma unroll
    for (int block = 0; block < kXDepth; ++block) load_x(block, block);
  }

  __device__ void multiply(int blocks) {
#pragma unroll
    for (int i = 0; i < kChains * kGroups * 4; ++i) sums[i / (kGroups * 4)][i / 4 % kGroups][i % 4] = 0.0f;
#pragma unroll 1
    for (int first = 0; first < blocks; first += kDepth) {
#pragma unroll
      for (int slot = 0; slot < kDepth; ++slot) {
        const uint4 l = low[slot], h = high[slot];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const uint4 t = token[slot % kXDepth][group];
          ptx::mma_m16n8k16(sums[0][group], {l.x, h.x, l.y, h.y}, t.x, t.y);
          ptx::mma_m16n8k16(sums[kChains - 1][group], {l.z, h.z, l.w, h.w}, t.z, t.w);
        }
        load_weight(slot, slot + kDepth);
        load_x(slot % kXDepth, slot + kXDepth);
      }
      low_row += kDepth * kBlock;
      high_row += kDepth * kBlock;
      x += kDepth * kBlock;
      octets -= kDepth;
    }
  }

  // To partial[token][row].
  __device__ void store(float *partial, int lane) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        partial[(group * 8 + lane % 4 * 2 + i % 2) * kTokenStride + lane / 4 + i / 2 * 8] =
            kChains == 1 ? sums[0][group][i] : sums[0][group][i] + sums[kChains - 1][group][i];
      }
    }
  }
};

// What a thread adds up: neighbouring threads have neighbouring columns, and then rows of x. A CTA finishes every split-th
// row of x.
template <int kTokens>
struct Outputs {
  static constexpr int kCount = kTokens * kRows / kMinThreads;
  using S = Sums<kTokens>;

  int thread, threads, split, rank;
  int tokens; // rows of x that are there
  float attn[kCount], z[kCount];

  __device__ int index(int i) const { return thread + i * threads; }
  __device__ int token(int i) const { return index(i) / kRows; }
  __device__ int owner(int i) const { return token(i) & (split - 1); }
  __device__ bool finishes(int i) const { return token(i) < tokens && owner(i) == rank; }
  __device__ int64_t offset(int i, int64_t n) const { return token(i) * n + index(i) % kRows; }

  __device__ void load(const uint16_t *first_attn, int64_t n) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (finishes(i)) attn[i] = from_bf16(first_attn[offset(i, n)]);
    }
  }

  __device__ void add_warps(const S &sums) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float *const sum = sums.of_warps + token(i) * kTokenStride + index(i) % kRows;
      z[i] = 0.0f;
      if (token(i) >= tokens) continue;
      for (int warp = 0; warp < threads / kWarp; ++warp) z[i] += sum[warp * S::kOfWarp];
    }
  }

  __device__ void add_ctas(const S &sums) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float *const to = sums.of_ctas + rank * S::kOfCta + index(i);
      if (finishes(i)) {
        *to = z[i];
      } else if (token(i) < tokens) {
        ptx::st_async(to, sums.arrived, owner(i), z[i]);
      }
    }
    if (rank >= tokens) return; // finishes none
    ptx::mbarrier_wait_cluster(sums.arrived, 0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      z[i] = 0.0f;
      if (!finishes(i)) continue;
      for (int cta = 0; cta < split; ++cta) z[i] += sums.of_ctas[cta * S::kOfCta + index(i)];
    }
  }

  __device__ void store(uint16_t *first_out, int64_t n) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (finishes(i)) {
        first_out[offset(i, n)] = static_cast<uint16_t>(to_bf16_pair(gated(attn[i], z[i]), 0.0f));
      }
    }
  }
};

#endif

} // namespace

template <int kTokens>
static __global__ void __launch_bounds__(kMaxThreads, 1)
    gated_mla_sm90_direct(bool pdl, const uint16_t *weight, const uint16_t *x, const uint16_t *attn, uint16_t *out,
                          Shape s) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) float shared[];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), warps = threads / kWarp;
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int split = 1 << s.log2_split, rank = static_cast<int>(blockIdx.x) & (split - 1);
  const int row = static_cast<int>(blockIdx.x >> s.log2_split) * kRows, token = static_cast<int>(blockIdx.y) * kTokens;
  const int tokens = min(s.m - token, kTokens);

  const int column = (rank * warps + warp) * s.blocks_per_warp * kBlock + lane % 4 * kOctet;
  Product<kTokens> product;
  product.eight_rows = 8 * static_cast<int64_t>(s.k);
  product.low_row = weight + static_cast<int64_t>(row + lane / 4) * s.k + column;
  product.high_row = product.low_row + product.eight_rows;
  product.x = x + static_cast<int64_t>(token + lane / 4) * s.k + column;
  product.octets = min((s.k - column + kBlock - 1) / kBlock, s.blocks_per_warp);
  product.tokens = tokens - lane / 4;
  product.start_weight(); // not made by the preceding kernel

  Sums<kTokens> sums = {.of_warps = shared, .of_ctas = shared + warps * Sums<kTokens>::kOfWarp};
  sums.arrived = reinterpret_cast<uint64_t *>(sums.of_ctas + split * Sums<kTokens>::kOfCta);
  if (split > 1) {
    if (thread == 0) {
      const int own_tokens = (tokens - rank + split - 1) >> s.log2_split;
      ptx::mbarrier_init(sums.arrived, 1);
      ptx::mbarrier_arrive_expect_tx(sums.arrived, (split - 1) * own_tokens * kRows * sizeof(float));
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::barrier_cluster_arrive_relaxed();
  }

  wait_for_inputs(pdl);
  product.start_x();
  Outputs<kTokens> outputs = {.thread = thread, .threads = threads, .split = split, .rank = rank, .tokens = tokens};
  const int64_t first = static_cast<int64_t>(token) * s.n + row;
  outputs.load(attn + first, s.n);
  product.multiply(s.blocks_per_warp);
  product.store(sums.of_warps + warp * Sums<kTokens>::kOfWarp, lane);
  __syncthreads(); // all warps' sums are there
  outputs.add_warps(sums);
  if (split > 1) {
    ptx::barrier_cluster_wait(); // the other CTAs have started, with their barriers
    outputs.add_ctas(sums);
  }
  outputs.store(out + first, s.n);
#endif
}

template <int kTokens>
static gm_status run(const gm_exec *exec, const gm_gated_mla_problem *p, int warps, int split) {
  const int64_t blocks = divide_up(p->k, kBlock);
  Shape shape = {static_cast<int>(p->m), static_cast<int>(p->n), static_cast<int>(p->k), 0,
                 static_cast<int>(divide_up(blocks, warps * split))};
  while (1 << shape.log2_split < split) ++shape.log2_split;
  const Grid grid = {.x = p->n / kRows * split,
                     .y = divide_up(p->m, kTokens),
                     .threads = warps * kWarp,
                     .cluster = split,
                     .shared_bytes = static_cast<size_t>(Sums<kTokens>::bytes(warps, split))};
  return launch(exec, "gated_mla/cuda/sm90/direct", gated_mla_sm90_direct<kTokens>, grid, p->weight, p->x, p->attn,
                p->out, shape);
}

extern "C" gm_status gm_gated_mla_sm90_direct(const gm_exec *exec, const gm_gated_mla_problem *p, int tokens, int warps,
                                              int split) {
  return tokens == 8 ? run<8>(exec, p, warps, split) : run<16>(exec, p, warps, split);
}
