#include "cuda/common/hc_head.cuh"
#include "cuda/common/hc_head_sm90.cuh"

using namespace gm;
using namespace gm::head;

#if __CUDA_ARCH__ >= 900

class ComputeWarp {
public:
  using Weights = Octet<float>[kBlocksPerWarp];

  __device__ __forceinline__ explicit ComputeWarp(const Frame &frame)
      : f_(frame), lane_(static_cast<int>(threadIdx.x % kWarp)), warp_(static_cast<int>(threadIdx.x / kWarp)) {}

  // Only issues the loads.
  __device__ __forceinline__ void load(Weights &raw) const {
    const int gate = lane_ / 4 % kStreams;
    int stream = quotient(column(0), f_.share), h = column(0) - stream * f_.share;
#pragma unroll
    for (int block = 0; block < kBlocksPerWarp; ++block) {
      raw[block].load(f_.p.fn + (gate * kStreams + stream) * f_.p.hidden + f_.rank * f_.share + h);
      h += kBlock;
      if (h >= f_.share) {
        h -= f_.share, ++stream;
      }
    }
  }

  template <bool kRounded, int kAhead>
  __device__ __forceinline__ void run(const Weights &raw) {
    Place ahead, now, last; // of batches i + kAhead, i, i - 1
    for (int i = 0; i < kAhead; ++i) {
      if (i < f_.count) {
        squares(i, ahead);
      }
      ahead.advance(f_.stages);
    }
    split(raw);
    for (int i = 0; i <= f_.count; ++i) {
      if (i < f_.count) {
        mix<kRounded>(i, now.stage);
      }
      if (i >= 1) {
        collapse(i - 1, last.stage);
      }
      if (i + kAhead < f_.count) {
        squares(i + kAhead, ahead);
      }
      last = now;
      now.advance(f_.stages);
      ahead.advance(f_.stages);
    }
  }

private:
  // a / b, less than 4
  static __device__ __forceinline__ int quotient(int a, int b) { return (a >= b) + (a >= 2 * b) + (a >= 3 * b); }

  // Where this lane's octet of a block starts in a token's row: lanes 4 t .. 4 t + 3 have token t's.
  __device__ __forceinline__ int column(int block) const {
    return (warp_ * kBlocksPerWarp + block) * kBlock + lane_ % 4 * kOctet;
  }

  // Rows 0-3 of the left factor are the first terms of fn, 8-11 the second, 4-7 the third, of gates 0-3; rows 12-15 are
  // zero. A term is cut off rather than rounded, so that none overflows; an infinite weight has a NaN among its terms.
  // Columns may come in any order, as long as it is the same on both sides: a lane's octet is its columns of two mmas.
  __device__ __forceinline__ void split(const Weights &raw) {
    const float third = lane_ < kWarp / 2 ? 0.0f : 1.0f; // whether this lane has rows 4-7, or 0-3
#pragma unroll
    for (int block = 0; block < kBlocksPerWarp; ++block) {
#pragma unroll
      for (int k = 0; k < kOctet; k += 2) {
        float upper[2], lower[2]; // of rows 0-7 and 8-15
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float v = raw[block][k + e], rest = fmaf(-third, cut(v), v);
          upper[e] = fmaf(-third, cut(rest), rest);
          lower[e] = upper[e] - cut(upper[e]); // of the third term nothing is left
        }
        set_pair(block, k / 2, upper, lower);
      }
    }
  }

  // The upper halves of these bits are the bf16 numbers.
  __device__ __forceinline__ void set_pair(int block, int pair, const float (&upper)[2], const float (&lower)[2]) {
    uint32_t(&a)[4] = fn_[block][pair / 2];
    a[pair % 2 * 2] = __byte_perm(__float_as_uint(upper[0]), __float_as_uint(upper[1]), 0x7632);
    a[pair % 2 * 2 + 1] = __byte_perm(__float_as_uint(lower[0]), __float_as_uint(lower[1]), 0x7632);
  }

  static __device__ __forceinline__ float cut(float v) { return __uint_as_float(__float_as_uint(v) & 0xffff0000u); }

  static __device__ __forceinline__ Octet<bf16> octet(const bf16 *shared) {
    const uint4 v = *reinterpret_cast<const uint4 *>(shared);
    return {v.x, v.y, v.z, v.w};
  }

  __device__ __forceinline__ void squares(int batch, Place place) {
    Shared &s = f_.shared;
    ptx::mbarrier_wait(&s.fetched[place.stage], place.parity);
    const bf16 *row = f_.row(place.stage, lane_ / 4);
    // The tokens times themselves, of which the diagonal counts: an octet is laid out alike on both sides.
    float sums[2][4] = {};
#pragma unroll
    for (int block = 0; block < kBlocksPerWarp; ++block) {
      const Octet<bf16> x = octet(row + column(block));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t a[4] = {x.pair[2 * i], 0, x.pair[2 * i + 1], 0};
        ptx::mma_m16n8k16(sums[i], a, a[0], a[2]);
      }
    }
    const int token = lane_ / 4;
    if (lane_ % 4 == token / 2) {
      s.squares[side(batch)][warp_][token] =
          token % 2 == 0 ? __fadd_rn(sums[0][0], sums[1][0]) : __fadd_rn(sums[0][1], sums[1][1]);
    }
    tell(&s.squares_written[side(batch)]);
  }

  template <bool kRounded>
  __device__ __forceinline__ void mix(int batch, int stage) {
    Shared &s = f_.shared;
    ptx::mbarrier_wait(&s.r_ready[side(batch)], parity(batch)); // also if not needed: it keeps the warps together
    const float r = kRounded ? s.r[side(batch)][lane_ / 4] : 1.0f;
    const bf16 *row = f_.row(stage, lane_ / 4);
    float sums[2][4] = {};
#pragma unroll
    for (int block = 0; block < kBlocksPerWarp; ++block) {
      Octet<bf16> x = octet(row + column(block));
      if (kRounded) {
#pragma unroll
        for (int k = 0; k < kOctet; k += 2) {
          x.set_pair(k / 2, __fmul_rn(x[k], r), __fmul_rn(x[k + 1], r));
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::mma_m16n8k16(sums[i], fn_[block][i], x.pair[2 * i], x.pair[2 * i + 1]);
      }
    }
    // A gate's three terms, for two tokens.
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float sum = __fadd_rn(__fadd_rn(sums[0][t], sums[1][t]), __fadd_rn(sums[0][2 + t], sums[1][2 + t]));
      const float total = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, kWarp / 2));
      if (lane_ < kWarp / 2) {
        s.mix[side(batch)][warp_][(lane_ % 4 * 2 + t) * kStreams + lane_ / 4] = total;
      }
    }
    tell(&s.mix_written[side(batch)]);
  }

  // An octet a thread: 8 tokens of hidden / 64, hidden / 8 threads.
  __device__ __forceinline__ void collapse(int batch, int stage) {
    const unsigned b = side(batch);
    const int octets = f_.share / kOctet, at = static_cast<int>(threadIdx.x);
    const int pair = quotient(at, 2 * octets), t = 2 * pair + (at - 2 * pair * octets >= octets);
    const int h = (at - t * octets) * kOctet;
    ptx::mbarrier_wait(&f_.shared.pre_ready[b], parity(batch));
    const bf16 *row = f_.row(stage, t) + h;
    float sum[kOctet] = {};
#pragma unroll 2
    for (int stream = 0; stream < kStreams; ++stream) {
      const float pre = f_.shared.pre[b][t * kStreams + stream];
      const Octet<bf16> x = octet(row + stream * f_.share);
#pragma unroll
      for (int k = 0; k < kOctet; ++k) {
        sum[k] = fmaf(pre, x[k], sum[k]);
      }
    }
    tell(&f_.shared.collapsed[stage]);
    const Octet<bf16> out = to_bf16(sum);
    const int64_t token = f_.token(batch) + t;
    if (token < f_.p.tokens) {
      out.store(f_.p.out + token * f_.p.hidden + static_cast<int64_t>(f_.rank) * f_.share + h);
    }
  }

  const Frame &f_;
  const int lane_, warp_;
  uint32_t fn_[kBlocksPerWarp][2][4]; // left factors
};

#endif

template <bool kRounded, int kAhead>
static __global__ void __launch_bounds__((kMaxWarps + 1 + kFetchWarps) * kWarp, 1)
    hc_head_cluster(const __grid_constant__ bool pdl, const __grid_constant__ Problem p,
                    const __grid_constant__ int stages, const __grid_constant__ unsigned batches) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const Frame frame(p, shared_bytes, stages, batches);
  const int other = static_cast<int>(threadIdx.x) / kWarp - frame.warps; // warp behind the compute warps
  if (other < 0) {
    ptx::barrier_cluster_arrive_relaxed();
    ComputeWarp compute(frame);
    ComputeWarp::Weights raw;
    compute.load(raw);
    wait_for_inputs(pdl); // the preceding kernel may still read what this one writes
    ptx::barrier_cluster_wait();
    compute.run<kRounded, kAhead>(raw);
  } else if (other == 0) {
    if (threadIdx.x % kWarp == 0) {
      init_barriers(frame);
    }
    __syncwarp();
    ptx::barrier_cluster_arrive_relaxed();
    SumWarp sums(frame);
    ptx::barrier_cluster_wait(); // all CTAs have started, with their barriers
    sums.run<kRounded, kAhead>();
  } else {
    ptx::barrier_cluster_arrive_relaxed();
    wait_for_inputs(pdl);
    ptx::barrier_cluster_wait();
    run_fetching(frame, other - 1);
  }
#endif
}

static int64_t batch_bytes(const Problem *p) {
  return static_cast<int64_t>(sizeof(bf16)) * kTokens * (kStreams * p->hidden / kCtas + kPad);
}

static int stages_of(const gm_exec *exec, const Problem *p) {
  const int64_t fitting = (device_facts(exec).shared_bytes - static_cast<int64_t>(sizeof(Shared))) / batch_bytes(p);
  return static_cast<int>(fitting < kMaxStages ? fitting : kMaxStages);
}

extern "C" bool gm_hc_head_sm90_fits(const gm_exec *exec, const Problem *p) {
  // With one stage the squares of a batch would wait for the collapse of the one before, and that for their warp.
  return has_clusters(exec) && p->streams == kStreams && p->hidden % kHiddenUnit == 0 &&
         p->hidden <= kMaxWarps * kHiddenUnit && stages_of(exec, p) >= 2 && aligned16(p->residual) &&
         aligned16(p->fn) && aligned16(p->out);
}

template <int kAhead>
static gm_status run(const gm_exec *exec, const Problem *p, int64_t clusters, int stages) {
  const int64_t batches = divide_up(p->tokens, kTokens);
  const Grid grid = {.x = kCtas * (batches < clusters ? batches : clusters),
                     .threads = (p->hidden / kHiddenUnit + 1 + kFetchWarps) * kWarp,
                     .cluster = kCtas,
                     .shared_bytes = sizeof(Shared) + static_cast<size_t>(stages * batch_bytes(p))};
  const auto kernel = p->mode == GM_HEAD_ROUNDED ? hc_head_cluster<true, kAhead> : hc_head_cluster<false, kAhead>;
  return launch(exec, "hc_head/cuda/sm90/cluster", kernel, grid, *p, stages, static_cast<unsigned>(batches));
}

extern "C" gm_status gm_hc_head_sm90(const gm_exec *exec, const Problem *p) {
  const int64_t clusters = device_facts(exec).clusters_of_8;
  const int stages = stages_of(exec, p);
  // Two ahead, four batches are under way: more of the sums' way is hidden.
  return stages >= 4 ? run<2>(exec, p, clusters, stages) : run<1>(exec, p, clusters, stages);
}
