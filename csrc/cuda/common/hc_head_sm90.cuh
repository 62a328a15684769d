#ifndef GATEMIX_CUDA_COMMON_HC_HEAD_SM90_CUH
#define GATEMIX_CUDA_COMMON_HC_HEAD_SM90_CUH

#include "cuda/common/gate.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_sum.cuh"

// hc_head for compute capability 9.0: the plan, and the warps beside the compute warps, which are in hc_head_sm90.cu.
//
// A cluster of 8 CTAs holds fn in registers, an eighth of the hidden dimension each, split into three bf16 terms, which
// lose nothing: so the projection runs on tensor cores with the precision of fp32. Batches of 8 tokens pass through
//   squares -> r = rsqrt(mean) -> mix = projection -> gates -> collapse
// in compute warps. Others fetch the batches; and one adds up what the warps and the CTAs have of each sum, and makes r and
// the gates of them. While a sum is on its way, other batches are computed:
//   iteration i: mix of batch i, collapse of i - 1, squares of i + kAhead
namespace gm::head {

using Problem = gm_hc_head_problem;

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

__device__ __forceinline__ unsigned side(int batch) { return static_cast<unsigned>(batch) % 2; }
__device__ __forceinline__ unsigned parity(int batch) { return static_cast<unsigned>(batch) / 2 % 2; }

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
__device__ __forceinline__ void init_barriers(const Frame &f) {
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

// All of this warp have written, or read, what they had to.
__device__ __forceinline__ void tell(uint64_t *barrier) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) {
    ptx::mbarrier_arrive(barrier);
  }
}

// ---- The fetching warps ----

// Each has every third token, a lane one stream of one. Beyond the last token nothing is fetched, and what is there
// computed and thrown away: no token looks at another.
__device__ __forceinline__ void fetch(const Frame &f, int fetcher, int batch, int stage) {
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

__device__ __forceinline__ void run_fetching(const Frame &f, int fetcher) {
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
__device__ __forceinline__ float add_warps(const float (&parts)[kMaxWarps][kValues], int warps) {
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
__device__ __forceinline__ float add_ctas(const float (&parts)[kCtas][kValues], int value) {
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
    send_squares(0);
    make_r(0); // before squares 1 are sent, which let other CTAs send those of batch 2 into the side of batch 0
    for (int i = 1; i < kAhead && i < f_.count; ++i) {
      send_squares(i);
    }
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
    ptx::mbarrier_wait_cluster(&s.squares_received[b], parity(batch)); // all CTAs have sent theirs
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
    ptx::mbarrier_wait_cluster(&s.mix_received[b], parity(batch)); // all CTAs have sent theirs
    float mix = add_ctas(s.all_mix[b], lane_);
    if (!kRounded) {
      mix = __fmul_rn(mix, s.r[b][lane_ / kStreams]);
    }
    s.pre[b][lane_] = gate(mix, scale_, base_, f_.p.hc_eps);
    tell(&s.pre_ready[b]);
  }

  const Frame &f_;
  const int lane_;
  const float scale_, base_, inverse_width_;
};

#endif

} // namespace gm::head

#endif
