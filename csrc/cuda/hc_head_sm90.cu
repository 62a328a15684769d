#include "cuda/common/gate.cuh"
#include "cuda/common/hc_head.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_sum.cuh"

using namespace gm;
using Problem = gm_hc_head_problem;

// A cluster of 8 CTAs holds fn in registers, an eighth of the hidden dimension each, split into three bf16 terms, which
// are exact: so the projection runs on tensor cores with the precision of fp32. Batches of 8 tokens pass through
//   squares -> r = rsqrt(mean) -> mix = projection -> gates -> collapse
// in compute warps. One more warp fetches the batches; another adds up what the warps and the CTAs have of each sum, and
// makes r and the gates of them. While a sum is on its way, another batch is computed:
//   iteration i: squares of batch i + 1, collapse of i - 1, mix of i
enum : int {
  kStreams = 4,
  kCtas = 8,
  kTokens = 8, // of a batch: the columns of an mma
  kGates = kTokens * kStreams,
  kBlock = 32,        // columns of the CTA's share of a token: an octet of each of the 4 lanes of a token, two mmas
  kBlocksPerWarp = 8, // whose fn a warp holds
  kMaxWarps = 14,     // compute warps; with the two others they may have 128 registers a thread
  kMaxStages = 6,     // batches in shared memory
  kPad = 32,          // elements after a token, so that two tokens' octets are in different banks
  kHiddenUnit = kCtas * kBlock * kBlocksPerWarp / kStreams // hidden size a compute warp
};

// [2]: of even and of odd batches. CTAs are less than two iterations apart, and so are the warps of a CTA.
struct Shared {
  uint64_t fetched[kMaxStages];
  uint64_t squares_written[2], mix_written;      // by the compute warps
  uint64_t squares_received[2], mix_received[2]; // from all CTAs
  uint64_t r_ready[2], pre_ready;
  float squares[2][kMaxWarps][kTokens], mix[kMaxWarps][kGates]; // of this CTA, by warp
  float all_squares[2][kCtas][kTokens], all_mix[2][kCtas][kGates];
  float r[2][kTokens], pre[kGates]; // [token], [token][stream]
};

#if __CUDA_ARCH__ >= 900

// What all warps know.
struct Frame {
  const Problem &p;
  Shared &shared;
  bf16 *batches; // [stages][kTokens][4 streams of share, kPad]
  int stages, share, warps, count;
  unsigned rank;
  int64_t first, stride;

  __device__ __forceinline__ Frame(const Problem &problem, unsigned char *shared_bytes, int stage_count)
      : p(problem), shared(*reinterpret_cast<Shared *>(shared_bytes)),
        batches(reinterpret_cast<bf16 *>(shared_bytes + sizeof(Shared))), stages(stage_count),
        share(static_cast<int>(problem.hidden) / kCtas), warps(static_cast<int>(blockDim.x) / kWarp - 2),
        rank(ptx::cluster_ctarank()), first(ptx::clusterid_x()), stride(gridDim.x / kCtas) {
    count = static_cast<int>(((p.tokens + kTokens - 1) / kTokens - first + stride - 1) / stride);
  }

  __device__ __forceinline__ int64_t token(int batch) const { return (first + batch * stride) * kTokens; }
  __device__ __forceinline__ bf16 *row(int stage, int token) const {
    return batches + (stage * kTokens + token) * (kStreams * share + kPad);
  }
};

// Where a batch is, and the parity of its barrier: batches go around the stages.
struct Place {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0, parity ^= 1;
    }
  }
};

static __device__ __forceinline__ unsigned odd(int batch) { return static_cast<unsigned>(batch) % 2; }
static __device__ __forceinline__ unsigned parity(int batch) {
  return static_cast<unsigned>(batch) / 2 % 2;
} // of pairs

static __device__ __forceinline__ void init_barriers(const Frame &f) {
  Shared &s = f.shared;
  for (int i = 0; i < kMaxStages; ++i) {
    ptx::mbarrier_init(&s.fetched[i], 1);
  }
  for (int i = 0; i < 2; ++i) {
    ptx::mbarrier_init(&s.squares_written[i], static_cast<unsigned>(f.warps));
    ptx::mbarrier_init(&s.squares_received[i], 1);
    ptx::mbarrier_init(&s.mix_received[i], 1);
    ptx::mbarrier_init(&s.r_ready[i], 1);
  }
  ptx::mbarrier_init(&s.mix_written, static_cast<unsigned>(f.warps));
  ptx::mbarrier_init(&s.pre_ready, 1);
  ptx::fence_mbarrier_init();
  ptx::fence_proxy_async();
}

// A lane fetches one stream of one token. Beyond the last token nothing is fetched, and what is there computed and thrown
// away: no token looks at another.
static __device__ __forceinline__ void fetch(const Frame &f, int batch, int stage) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), token = lane / kStreams, stream = lane % kStreams;
  const int64_t left = f.p.tokens - f.token(batch);
  const unsigned bytes = static_cast<unsigned>(f.share * sizeof(bf16));
  uint64_t *barrier = &f.shared.fetched[stage];
  if (lane == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier, bytes * kStreams * static_cast<unsigned>(left < kTokens ? left : kTokens));
  }
  __syncwarp();
  if (token < left) {
    const bf16 *from = f.p.residual + ((f.token(batch) + token) * kStreams + stream) * f.p.hidden;
    ptx::cp_async_bulk(f.row(stage, token) + stream * f.share, from + f.rank * f.share, bytes, barrier);
  }
}

static __device__ __forceinline__ void fetch_first(const Frame &f) {
  for (int batch = 0; batch < f.stages && batch < f.count; ++batch) {
    fetch(f, batch, batch);
  }
}

static __device__ __forceinline__ void fetch_others(const Frame &f) {
  for (int batch = f.stages, stage = 0; batch < f.count; ++batch) {
    // A warp that has written the mix of a batch has collapsed the one before.
    const int freed = batch - f.stages;
    ptx::mbarrier_wait(&f.shared.mix_written, odd(freed + 1));
    fetch(f, batch, stage);
    stage = stage + 1 == f.stages ? 0 : stage + 1;
  }
}

// The sum over the compute warps of one value a lane.
template <int kValues>
static __device__ __forceinline__ float add_warps(const float (&parts)[kMaxWarps][kValues], int warps) {
  const int value = static_cast<int>(threadIdx.x) % kValues;
  float part[kMaxWarps], sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kMaxWarps; ++warp) {
    part[warp] = warp < warps ? parts[warp][value] : 0.0f;
  }
#pragma unroll
  for (int warp = 0; warp < kMaxWarps; ++warp) {
    sum = __fadd_rn(sum, part[warp]);
  }
  return sum;
}

class SumWarp {
public:
  __device__ __forceinline__ explicit SumWarp(const Frame &frame) : f_(frame), lane_(threadIdx.x % kWarp) {}

  template <bool kRounded> __device__ __forceinline__ void run() {
    scale_ = f_.p.scale[0], base_ = f_.p.base[lane_ % kStreams];
    for (int i = -1; i <= f_.count; ++i) {
      if (i + 1 < f_.count) {
        send_squares(i + 1);
      }
      if (i >= 1) {
        make_gates<kRounded>(i - 1);
      }
      if (i + 1 < f_.count) {
        make_r(i + 1);
      }
      if (i >= 0 && i < f_.count) {
        send_mix(i);
      }
    }
  }

private:
  __device__ __forceinline__ void send_squares(int batch) {
    Shared &s = f_.shared;
    const unsigned half = odd(batch);
    if (lane_ == 0) {
      ptx::mbarrier_arrive_expect_tx(&s.squares_received[half], kCtas * kTokens * sizeof(float));
    }
    ptx::mbarrier_wait(&s.squares_written[half], parity(batch)); // all warps have written theirs
    const int token = lane_ % kTokens;
    const float sum = add_warps(s.squares[half], f_.warps);
#pragma unroll
    for (int i = 0; i < kCtas; i += kWarp / kTokens) {
      const unsigned cta = static_cast<unsigned>(i + lane_ / kTokens);
      ptx::st_async(&s.all_squares[half][f_.rank][token], &s.squares_received[half], cta, sum);
    }
  }

  __device__ __forceinline__ void make_r(int batch) {
    Shared &s = f_.shared;
    const unsigned half = odd(batch);
    ptx::mbarrier_wait(&s.squares_received[half], parity(batch)); // of all CTAs
    const int token = lane_ / kStreams;                           // of this lane's gate
    float sum = s.all_squares[half][0][token];
#pragma unroll
    for (int cta = 1; cta < kCtas; ++cta) {
      sum = __fadd_rn(sum, s.all_squares[half][cta][token]);
    }
    const float r = inverse_rms(sum, kStreams * f_.p.hidden, f_.p.rms_eps);
    if (lane_ % kStreams == 0) {
      s.r[half][token] = r;
    }
    __syncwarp();
    if (lane_ == 0) {
      ptx::mbarrier_arrive(&s.r_ready[half]);
    }
  }

  __device__ __forceinline__ void send_mix(int batch) {
    Shared &s = f_.shared;
    const unsigned half = odd(batch);
    if (lane_ == 0) {
      ptx::mbarrier_arrive_expect_tx(&s.mix_received[half], kCtas * kGates * sizeof(float));
    }
    ptx::mbarrier_wait(&s.mix_written, odd(batch)); // all warps have written theirs
    const float sum = add_warps(s.mix, f_.warps);
#pragma unroll
    for (unsigned cta = 0; cta < kCtas; ++cta) {
      ptx::st_async(&s.all_mix[half][f_.rank][lane_], &s.mix_received[half], cta, sum);
    }
  }

  template <bool kRounded> __device__ __forceinline__ void make_gates(int batch) {
    Shared &s = f_.shared;
    const unsigned half = odd(batch);
    ptx::mbarrier_wait(&s.mix_received[half], parity(batch)); // of all CTAs
    float mix = s.all_mix[half][0][lane_];
#pragma unroll
    for (int cta = 1; cta < kCtas; ++cta) {
      mix = __fadd_rn(mix, s.all_mix[half][cta][lane_]);
    }
    if (!kRounded) {
      mix = __fmul_rn(mix, s.r[half][lane_ / kStreams]);
    }
    s.pre[lane_] = gate(mix, scale_, base_, f_.p.hc_eps);
    __syncwarp();
    if (lane_ == 0) {
      ptx::mbarrier_arrive(&s.pre_ready);
    }
  }

  const Frame &f_;
  const int lane_;
  float scale_, base_; // of this lane's gate: lane = token * 4 + stream
};

class ComputeWarp {
public:
  __device__ __forceinline__ explicit ComputeWarp(const Frame &frame)
      : f_(frame), lane_(static_cast<int>(threadIdx.x % kWarp)), warp_(static_cast<int>(threadIdx.x / kWarp)) {
    const int octets = f_.share / kOctet;
#pragma unroll
    for (int i = 0; i < kOctetsPerThread; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * f_.warps * kWarp;
      token_[i] = at / octets, h_[i] = at % octets * kOctet;
    }
  }

  // Only issues the loads.
  __device__ __forceinline__ void load_weights(Octet<float> (&raw)[kBlocksPerWarp]) const {
    const int gate = lane_ / 4 % kStreams;
    int stream = column(0) / f_.share, h = column(0) % f_.share;
#pragma unroll
    for (int block = 0; block < kBlocksPerWarp; ++block) {
      raw[block].load(f_.p.fn + (gate * kStreams + stream) * f_.p.hidden + f_.rank * f_.share + h);
      h += kBlock;
      if (h >= f_.share) {
        h -= f_.share, ++stream;
      }
    }
  }

  template <bool kRounded> __device__ __forceinline__ void run(const Octet<float> (&raw)[kBlocksPerWarp]) {
    Place next, now, last; // of batches i + 1, i, i - 1
    squares(0, next);
    split_weights(raw);
    for (int i = 0; i <= f_.count; ++i) {
      last = now, now = next;
      next.advance(f_.stages);
      if (i + 1 < f_.count) {
        squares(i + 1, next);
      }
      if (i >= 1) {
        collapse(i - 1, last);
      }
      if (i < f_.count) {
        mix<kRounded>(i, now);
      }
    }
  }

private:
  // 8 tokens of hidden / 8 elements over hidden / 16 threads
  enum : int { kOctetsPerThread = 2 };

  // Where this lane's octet of a block starts in a token's row: lanes 4 t .. 4 t + 3 have token t's.
  __device__ __forceinline__ int column(int block) const {
    return (warp_ * kBlocksPerWarp + block) * kBlock + lane_ % 4 * kOctet;
  }

  // Rows 0-3 of the left factor are the first terms of fn, 4-7 the second, 8-11 the third, of gates 0-3. Columns may
  // come in any order, as long as it is the same on both sides: a lane's octet is its columns of two mmas.
  __device__ __forceinline__ void split_weights(const Octet<float> (&raw)[kBlocksPerWarp]) {
    const bool second = lane_ >= kWarp / 2;
#pragma unroll
    for (int block = 0; block < kBlocksPerWarp; ++block) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        uint32_t above[2], below[2]; // rows of the upper and of the lower half
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          // A term is cut off rather than rounded, so that none overflows. An infinity or NaN is the first alone.
          const float v = raw[block][2 * pair + e], rest = fabsf(v) < INFINITY ? v - cut(v) : 0.0f;
          above[e] = __float_as_uint(second ? rest : v);
          below[e] = __float_as_uint(second ? 0.0f : rest - cut(rest));
        }
        uint32_t(&a)[4] = fn_[block][pair / 2];
        a[pair % 2 * 2] = __byte_perm(above[0], above[1], 0x7632);
        a[pair % 2 * 2 + 1] = __byte_perm(below[0], below[1], 0x7632);
      }
    }
  }

  static __device__ __forceinline__ float cut(float v) { return __uint_as_float(__float_as_uint(v) & 0xffff0000u); }

  __device__ __forceinline__ Octet<bf16> octet(const bf16 *p) const {
    const uint4 v = *reinterpret_cast<const uint4 *>(p);
    Octet<bf16> x;
    x.pair[0] = v.x, x.pair[1] = v.y, x.pair[2] = v.z, x.pair[3] = v.w;
    return x;
  }

  __device__ __forceinline__ void squares(int batch, Place place) {
    Shared &s = f_.shared;
    ptx::mbarrier_wait(&s.fetched[place.stage], place.parity);
    const bf16 *row = f_.row(place.stage, lane_ / 4);
    float sum = 0.0f;
#pragma unroll
    for (int block = 0; block < kBlocksPerWarp; ++block) {
      sum = __fadd_rn(sum, square_sum(octet(row + column(block))));
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
    if (lane_ % 4 == 0) {
      s.squares[odd(batch)][warp_][lane_ / 4] = sum;
    }
    __syncwarp();
    if (lane_ == 0) {
      ptx::mbarrier_arrive(&s.squares_written[odd(batch)]);
    }
  }

  template <bool kRounded> __device__ __forceinline__ void mix(int batch, Place place) {
    Shared &s = f_.shared;
    ptx::mbarrier_wait(&s.r_ready[odd(batch)], parity(batch)); // needed or not: it holds the warps together
    const float r = s.r[odd(batch)][lane_ / 4];
    const bf16 *row = f_.row(place.stage, lane_ / 4);
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
      for (int half = 0; half < 2; ++half) {
        ptx::mma_m16n8k16(sums[half], fn_[block][half], x.pair[2 * half], x.pair[2 * half + 1]);
      }
    }
    // The terms of a gate, for two tokens.
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float sum = __fadd_rn(__fadd_rn(sums[0][t], sums[1][t]), __fadd_rn(sums[0][2 + t], sums[1][2 + t]));
      const float total = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, kWarp / 2));
      if (lane_ < kWarp / 2) {
        s.mix[warp_][(lane_ % 4 * 2 + t) * kStreams + lane_ / 4] = total;
      }
    }
    __syncwarp();
    if (lane_ == 0) {
      ptx::mbarrier_arrive(&s.mix_written);
    }
  }

  __device__ __forceinline__ void collapse(int batch, Place place) {
    ptx::mbarrier_wait(&f_.shared.pre_ready, odd(batch));
#pragma unroll
    for (int i = 0; i < kOctetsPerThread; ++i) {
      const int t = token_[i], h = h_[i];
      const bf16 *row = f_.row(place.stage, t) + h;
      float sum[kOctet] = {};
#pragma unroll
      for (int stream = 0; stream < kStreams; ++stream) {
        const float pre = f_.shared.pre[t * kStreams + stream];
        const Octet<bf16> x = octet(row + stream * f_.share);
#pragma unroll
        for (int k = 0; k < kOctet; ++k) {
          sum[k] = fmaf(pre, x[k], sum[k]);
        }
      }
      Octet<bf16> out;
#pragma unroll
      for (int k = 0; k < kOctet; k += 2) {
        out.set_pair(k / 2, sum[k], sum[k + 1]);
      }
      const int64_t token = f_.token(batch) + t;
      if (token < f_.p.tokens) {
        out.store(f_.p.out + token * f_.p.hidden + static_cast<int64_t>(f_.rank) * f_.share + h);
      }
    }
  }

  const Frame &f_;
  const int lane_, warp_;
  int token_[kOctetsPerThread], h_[kOctetsPerThread]; // that this thread collapses
  uint32_t fn_[kBlocksPerWarp][2][4];                 // left factors
};

#endif

template <bool kRounded>
static __global__ void __launch_bounds__((kMaxWarps + 2) * kWarp, 1)
    hc_head_cluster(const __grid_constant__ Problem p, const __grid_constant__ int stages) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const Frame frame(p, shared_bytes, stages);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp == frame.warps && threadIdx.x % kWarp == 0) {
    init_barriers(frame);
  }
  __syncwarp();
  ptx::barrier_cluster_arrive_relaxed();
  if (warp == frame.warps) {
    wait_for_inputs();
    fetch_first(frame); // needs no other warp
    ptx::barrier_cluster_wait();
    fetch_others(frame);
  } else if (warp == frame.warps + 1) {
    SumWarp sums(frame);
    wait_for_inputs();
    ptx::barrier_cluster_wait(); // all CTAs have started, with their barriers
    sums.run<kRounded>();
  } else {
    ComputeWarp compute(frame);
    Octet<float> raw[kBlocksPerWarp];
    compute.load_weights(raw);
    wait_for_inputs();
    ptx::barrier_cluster_wait(); // the barriers are there
    compute.run<kRounded>(raw);
  }
#endif
}

static_assert(sizeof(Shared) % 16 == 0, "the batches behind it are aligned");

static int64_t batch_bytes(const Problem *p) {
  return static_cast<int64_t>(sizeof(bf16)) * kTokens * (kStreams * p->hidden / kCtas + kPad);
}

extern "C" bool gm_hc_head_sm90_fits(const Problem *p) {
  return p->streams == kStreams && p->hidden % kHiddenUnit == 0 && p->hidden <= kMaxWarps * kHiddenUnit &&
         aligned16(p->residual) && aligned16(p->fn) && aligned16(p->out);
}

extern "C" gm_status gm_hc_head_sm90(const gm_exec *exec, const Problem *p) {
  const DeviceFacts facts = device_facts(exec);
  const int64_t batches = divide_up(p->tokens, kTokens);
  const int64_t fitting = (facts.shared_bytes - static_cast<int64_t>(sizeof(Shared))) / batch_bytes(p);
  const int stages = static_cast<int>(fitting < kMaxStages ? fitting : kMaxStages);
  const Grid grid = {.x = kCtas * (batches < facts.clusters_of_8 ? batches : facts.clusters_of_8),
                     .threads = (p->hidden / kHiddenUnit + 2) * kWarp,
                     .cluster = kCtas,
                     .shared_bytes = sizeof(Shared) + static_cast<size_t>(stages * batch_bytes(p))};
  const auto kernel = p->mode == GM_HEAD_ROUNDED ? hc_head_cluster<true> : hc_head_cluster<false>;
  return launch(exec, "hc_head/cuda/sm90/cluster", kernel, grid, *p, stages);
}
