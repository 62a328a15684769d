#include "cuda/common/gate.cuh"
#include "cuda/common/hc_head.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_sum.cuh"

using namespace gm;
using Problem = gm_hc_head_problem;

// A cluster of 8 CTAs holds fn in registers, an eighth of the hidden dimension each, split into three bf16 terms, which
// are exact: so the projection runs on tensor cores with the precision of fp32. Batches of 8 tokens pass through
//   squares -> r = rsqrt(mean) -> mix = projection -> gates -> collapse
// in compute warps. Others fetch the batches; and one adds up what the warps and the CTAs have of each sum, and makes r and
// the gates of them. While a sum is on its way, other batches are computed:
//   iteration i: mix of batch i, collapse of i - 1, squares of i + kAhead
enum : int {
  kStreams = 4,
  kCtas = 8,
  kTokens = 8, // of a batch: the columns of an mma
  kGates = kTokens * kStreams,
  kBlock = 32,        // columns of the CTA's share of a token: an octet of each of the 4 lanes of a token, two mmas
  kBlocksPerWarp = 4, // whose fn a warp holds
  kFetchWarps = 3,    // a copy a lane, one after the other, takes a warp longer than a batch takes the others
  kMaxWarps = 28,     // compute warps
  kMaxStages = 6,     // batches in shared memory
  kPad = 32,          // elements after a token, so that two tokens' octets are in different banks
  kHiddenUnit = kCtas * kBlock * kBlocksPerWarp / kStreams // hidden size a compute warp
};

// [2]: of even and of odd batches. No CTA and no warp gets so far that it needs a half which another still reads: what it
// needs for that, an r or gates, comes after those reads.
struct Shared {
  uint64_t fetched[kMaxStages], collapsed[kMaxStages]; // by stage
  uint64_t squares_written[2], mix_written[2];         // by the compute warps
  uint64_t squares_received[2], mix_received[2];       // from all CTAs
  uint64_t r_ready[2], pre_ready[2];
  alignas(16) float squares[2][kMaxWarps][kTokens];
  float mix[2][kMaxWarps][kGates]; // of this CTA, by warp
  float all_squares[2][kCtas][kTokens], all_mix[2][kCtas][kGates];
  float r[2][kTokens], pre[2][kGates]; // [token], [token][stream]
};
static_assert(sizeof(Shared) % 16 == 0, "the batches behind it are aligned");

#if __CUDA_ARCH__ >= 900

static __device__ __forceinline__ unsigned side(int batch) { return static_cast<unsigned>(batch) % 2; }
static __device__ __forceinline__ unsigned parity(int batch) { return static_cast<unsigned>(batch) / 2 % 2; }

// What all warps know.
struct Frame {
  const Problem &p;
  Shared &shared;
  bf16 *batches; // [stages][kTokens][4 streams of share, kPad]
  int stages, share, warps, count;
  unsigned rank, first, stride;

  __device__ __forceinline__ Frame(const Problem &problem, unsigned char *shared_bytes, int stage_count,
                                   unsigned batch_count)
      : p(problem), shared(*reinterpret_cast<Shared *>(shared_bytes)),
        batches(reinterpret_cast<bf16 *>(shared_bytes + sizeof(Shared))), stages(stage_count),
        share(static_cast<int>(problem.hidden) / kCtas), warps(static_cast<int>(blockDim.x) / kWarp - 1 - kFetchWarps),
        rank(ptx::cluster_ctarank()), first(ptx::clusterid_x()), stride(gridDim.x / kCtas) {
    count = static_cast<int>((batch_count - first + stride - 1) / stride);
  }

  __device__ __forceinline__ int64_t token(int batch) const {
    return (first + static_cast<int64_t>(batch) * stride) * kTokens;
  }
  __device__ __forceinline__ bf16 *row(int stage, int token) const {
    return batches + (stage * kTokens + token) * (kStreams * share + kPad);
  }
};

// Where a batch is, and the parity of its stage's barriers: batches go around the stages.
struct Place {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0, parity ^= 1;
    }
  }
};

// By one thread: the hardware takes barriers one after the other anyway.
static __device__ __forceinline__ void init_barriers(const Frame &f) {
  Shared &s = f.shared;
  const unsigned warps = static_cast<unsigned>(f.warps);
#pragma unroll
  for (int i = 0; i < kMaxStages; ++i) {
    ptx::mbarrier_init(&s.fetched[i], kFetchWarps);
    ptx::mbarrier_init(&s.collapsed[i], warps);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    ptx::mbarrier_init(&s.squares_written[i], warps);
    ptx::mbarrier_init(&s.mix_written[i], warps);
    ptx::mbarrier_init(&s.squares_received[i], 1);
    ptx::mbarrier_init(&s.mix_received[i], 1);
    ptx::mbarrier_init(&s.r_ready[i], 1);
    ptx::mbarrier_init(&s.pre_ready[i], 1);
  }
  ptx::fence_mbarrier_init();
  ptx::fence_proxy_async();
}

// ---- The fetching warps ----

// Each has every third token, a lane one stream of one. Beyond the last token nothing is fetched, and what is there
// computed and thrown away: no token looks at another.
static __device__ __forceinline__ void fetch(const Frame &f, int fetcher, int batch, int stage) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int token = lane / kStreams * kFetchWarps + fetcher, stream = lane % kStreams;
  const int64_t left = f.p.tokens - f.token(batch);
  const int tokens = left < kTokens ? static_cast<int>(left) : kTokens;
  const unsigned bytes = static_cast<unsigned>(f.share * sizeof(bf16));
  uint64_t *barrier = &f.shared.fetched[stage];
  if (lane == 0) {
    const int own = (tokens - fetcher + kFetchWarps - 1) / kFetchWarps;
    ptx::mbarrier_arrive_expect_tx(barrier, static_cast<unsigned>(own) * kStreams * bytes);
  }
  __syncwarp();
  if (token < tokens) {
    const bf16 *from = f.p.residual + ((f.token(batch) + token) * kStreams + stream) * f.p.hidden;
    ptx::cp_async_bulk(f.row(stage, token) + stream * f.share, from + f.rank * f.share, bytes, barrier);
  }
}

static __device__ __forceinline__ void run_fetching(const Frame &f, int fetcher) {
  Place place;
  for (int batch = 0; batch < f.count; ++batch) {
    if (batch >= f.stages) {
      // The batch that was in the stage before: its parity is the other one.
      ptx::mbarrier_wait(&f.shared.collapsed[place.stage], place.parity ^ 1);
    }
    fetch(f, fetcher, batch, place.stage);
    place.advance(f.stages);
  }
}

// ---- The summing warp ----

// The sum over the compute warps, of one value a lane.
template <int kValues>
static __device__ __forceinline__ float add_warps(const float (&parts)[kMaxWarps][kValues], int warps) {
  const int value = static_cast<int>(threadIdx.x) % kValues;
  float chains[4] = {};
#pragma unroll
  for (int warp = 0; warp < kMaxWarps; ++warp) {
    chains[warp % 4] = __fadd_rn(chains[warp % 4], warp < warps ? parts[warp][value] : 0.0f);
  }
  return __fadd_rn(__fadd_rn(chains[0], chains[1]), __fadd_rn(chains[2], chains[3]));
}

// The sum over the CTAs.
template <int kValues>
static __device__ __forceinline__ float add_ctas(const float (&parts)[kCtas][kValues], int value) {
  float sum = parts[0][value];
#pragma unroll
  for (int cta = 1; cta < kCtas; ++cta) {
    sum = __fadd_rn(sum, parts[cta][value]);
  }
  return sum;
}

// Lane 4 t + i has the gate of token t and stream i.
class SumWarp {
public:
  __device__ __forceinline__ explicit SumWarp(const Frame &frame)
      : f_(frame), lane_(static_cast<int>(threadIdx.x % kWarp)), scale_(frame.p.scale[0]),
        base_(frame.p.base[lane_ % kStreams]),
        inverse_width_(1.0f / static_cast<float>(kStreams * static_cast<int>(frame.p.hidden))) {}

  template <bool kRounded, int kAhead>
  __device__ __forceinline__ void run() {
    for (int i = 0; i < kAhead && i < f_.count; ++i) {
      send_squares(i);
    }
    make_r(0);
    for (int i = 0; i <= f_.count; ++i) {
      if (i >= 1) {
        make_gates<kRounded>(i - 1);
      }
      // Before the mix is sent, which lets other CTAs send the next squares of this half.
      if (kAhead > 1 && i + 1 < f_.count) {
        make_r(i + 1);
      }
      if (i < f_.count) {
        send_mix(i);
      }
      if (i + kAhead < f_.count) {
        send_squares(i + kAhead);
      }
      if (kAhead == 1 && i + 1 < f_.count) {
        make_r(i + 1);
      }
    }
  }

private:
  __device__ __forceinline__ void send_squares(int batch) {
    Shared &s = f_.shared;
    const unsigned b = side(batch);
    if (lane_ == 0) {
      ptx::mbarrier_arrive_expect_tx(&s.squares_received[b], kCtas * kTokens * sizeof(float));
    }
    ptx::mbarrier_wait(&s.squares_written[b], parity(batch)); // all warps have written theirs
    const float sum = add_warps(s.squares[b], f_.warps);
#pragma unroll
    for (int first = 0; first < kCtas; first += kWarp / kTokens) {
      const unsigned cta = static_cast<unsigned>(first + lane_ / kTokens);
      ptx::st_async(&s.all_squares[b][f_.rank][lane_ % kTokens], &s.squares_received[b], cta, sum);
    }
  }

  __device__ __forceinline__ void make_r(int batch) {
    Shared &s = f_.shared;
    const unsigned b = side(batch);
    ptx::mbarrier_wait(&s.squares_received[b], parity(batch)); // all CTAs have sent theirs
    const int token = lane_ / kStreams;
    const float mean = __fmul_rn(add_ctas(s.all_squares[b], token), inverse_width_);
    const float r = __frsqrt_rn(__fadd_rn(mean, f_.p.rms_eps));
    if (lane_ % kStreams == 0) {
      s.r[b][token] = r;
    }
    tell(&s.r_ready[b]);
  }

  __device__ __forceinline__ void send_mix(int batch) {
    Shared &s = f_.shared;
    const unsigned b = side(batch);
    if (lane_ == 0) {
      ptx::mbarrier_arrive_expect_tx(&s.mix_received[b], kCtas * kGates * sizeof(float));
    }
    ptx::mbarrier_wait(&s.mix_written[b], parity(batch)); // all warps have written theirs
    const float sum = add_warps(s.mix[b], f_.warps);
#pragma unroll
    for (unsigned cta = 0; cta < kCtas; ++cta) {
      ptx::st_async(&s.all_mix[b][f_.rank][lane_], &s.mix_received[b], cta, sum);
    }
  }

  template <bool kRounded>
  __device__ __forceinline__ void make_gates(int batch) {
    Shared &s = f_.shared;
    const unsigned b = side(batch);
    ptx::mbarrier_wait(&s.mix_received[b], parity(batch)); // all CTAs have sent theirs
    float mix = add_ctas(s.all_mix[b], lane_);
    if (!kRounded) {
      mix = __fmul_rn(mix, s.r[b][lane_ / kStreams]);
    }
    s.pre[b][lane_] = gate(mix, scale_, base_, f_.p.hc_eps);
    tell(&s.pre_ready[b]);
  }

  // The compute warps may read what this one has written.
  __device__ __forceinline__ void tell(uint64_t *barrier) {
    __syncwarp();
    if (lane_ == 0) {
      ptx::mbarrier_arrive(barrier);
    }
  }

  const Frame &f_;
  const int lane_;
  const float scale_, base_, inverse_width_;
};

// ---- The compute warps ----

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

  // This warp has written, or read, what it had to.
  __device__ __forceinline__ void tell(uint64_t *barrier) {
    __syncwarp();
    if (lane_ == 0) {
      ptx::mbarrier_arrive(barrier);
    }
  }

  const Frame &f_;
  const int lane_, warp_;
  uint32_t fn_[kBlocksPerWarp][2][4]; // left factors
};

#endif

template <bool kRounded, int kAhead>
static __global__ void __launch_bounds__((kMaxWarps + 1 + kFetchWarps) * kWarp, 1)
    hc_head_cluster(const __grid_constant__ Problem p, const __grid_constant__ int stages,
                    const __grid_constant__ unsigned batches) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const Frame frame(p, shared_bytes, stages, batches);
  const int other = static_cast<int>(threadIdx.x) / kWarp - frame.warps; // warp behind the compute warps
  if (other < 0) {
    ptx::barrier_cluster_arrive_relaxed();
    ComputeWarp compute(frame);
    ComputeWarp::Weights raw;
    compute.load(raw);
    wait_for_inputs(); // the preceding kernel may still read what this one writes
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
    wait_for_inputs();
    ptx::barrier_cluster_wait();
    run_fetching(frame, other - 1);
  }
#endif
}

static int64_t batch_bytes(const Problem *p) {
  return static_cast<int64_t>(sizeof(bf16)) * kTokens * (kStreams * p->hidden / kCtas + kPad);
}

extern "C" bool gm_hc_head_sm90_fits(const Problem *p) {
  return p->streams == kStreams && p->hidden % kHiddenUnit == 0 && p->hidden <= kMaxWarps * kHiddenUnit &&
         aligned16(p->residual) && aligned16(p->fn) && aligned16(p->out);
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
  const DeviceFacts facts = device_facts(exec);
  const int64_t fitting = (facts.shared_bytes - static_cast<int64_t>(sizeof(Shared))) / batch_bytes(p);
  const int stages = static_cast<int>(fitting < kMaxStages ? fitting : kMaxStages);
  // Far ahead, more stages are taken by batches that wait for their sums.
  return stages >= 4 ? run<2>(exec, p, facts.clusters_of_8, stages) : run<1>(exec, p, facts.clusters_of_8, stages);
}
