#include "cuda/common/gate.cuh"
#include "cuda/common/hc_head.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_sum.cuh"

using namespace gm;
using Problem = gm_hc_head_problem;

// A cluster holds fn in its registers, a thread 4 elements of every stream. Batches of tokens pass through three steps,
// an iteration apart: their squares, their projection (mix), their collapse. So the sums, which every CTA gets from all,
// are on their way while another batch is computed; and a thread's part of later batches is on its way to its slots.
enum : int {
  kStreams = 4,
  kQuad = 4,   // elements of a stream a thread
  kTokens = 2, // a batch
  kStages = 6, // batches in shared memory
  kGates = kTokens * kStreams,
  kMaxThreads = 512,
  kMaxParts = 64, // parts of a sum: one a warp of the cluster
  kSums = 4       // batches whose sums have a place: CTAs are at most 2 iterations apart
};

struct Shared {
  uint64_t squares_barrier[kSums], mix_barrier[kSums];
  float squares[kSums][kTokens][kMaxParts];
  float mix[kSums][kGates][kMaxParts];
  uint2 ring[]; // [kStages][kTokens][kStreams][threads]; a thread reads only what it has copied itself
};

#if __CUDA_ARCH__ >= 900

// One step of transpose_sum: half of the values stay in the lanes with the bit kDistance, half in those without.
template <int kHalf, int kDistance, int kValues> static __device__ __forceinline__ void fold(float (&v)[kValues]) {
  const bool upper = (threadIdx.x & kDistance) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float kept = upper ? v[i + kHalf] : v[i], sent = upper ? v[i] : v[i + kHalf];
    v[i] = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, sent, kDistance));
  }
  if constexpr (kHalf > 1) {
    fold<kHalf / 2, kDistance / 2>(v);
  }
}

// Adds up each value over the warp, and gives the sum to all CTAs as part `part` of it.
template <int kCtas, int kValues>
static __device__ __forceinline__ void publish(float (*parts)[kMaxParts], uint64_t *barrier, float (&v)[kValues],
                                               unsigned part) {
  constexpr unsigned kLanes = kWarp / kValues; // that hold the same value
  fold<kValues / 2, kWarp / 2>(v);
#pragma unroll
  for (unsigned distance = kLanes / 2; distance > 0; distance /= 2) {
    v[0] = __fadd_rn(v[0], __shfl_xor_sync(0xffffffffu, v[0], distance));
  }
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (unsigned first = 0; first < kCtas; first += kLanes) {
    const unsigned cta = first + lane % kLanes;
    if (cta < kCtas) {
      ptx::st_async(&parts[lane / kLanes][part], barrier, cta, v[0]);
    }
  }
}

// Lane l gets the sum of the parts of value l / (32 / kValues), the same in every warp and CTA.
template <int kValues>
static __device__ __forceinline__ float add_parts(const float (*parts)[kMaxParts], unsigned count) {
  constexpr unsigned kLanes = kWarp / kValues;
  const unsigned value = threadIdx.x % kWarp / kLanes, lane = threadIdx.x % kLanes;
  float part[kMaxParts / kLanes];
#pragma unroll
  for (unsigned i = 0; i < kMaxParts / kLanes; ++i) {
    part[i] = lane + i * kLanes < count ? parts[value][lane + i * kLanes] : 0.0f;
  }
  float sum = part[0];
#pragma unroll
  for (unsigned i = 1; i < kMaxParts / kLanes; ++i) {
    sum = __fadd_rn(sum, part[i]);
  }
#pragma unroll
  for (unsigned distance = kLanes / 2; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
  }
  return sum;
}

static __device__ __forceinline__ void unpack(uint2 bits, float (&x)[kQuad]) {
  x[0] = bf16_low(bits.x), x[1] = bf16_high(bits.x), x[2] = bf16_low(bits.y), x[3] = bf16_high(bits.y);
}

template <bool kRounded, int kCtas> class Head {
public:
  __device__ __forceinline__ Head(const Problem &p, Shared &shared)
      : p_(p), shared_(shared), rank_(ptx::cluster_ctarank()), warps_(blockDim.x / kWarp) {
    const int64_t share = p.hidden / kCtas;
    h_ = rank_ * share + threadIdx.x * kQuad;
    active_ = threadIdx.x * kQuad < share;
    batches_ = (p.tokens + kTokens - 1) / kTokens;
    first_ = ptx::clusterid_x();
    stride_ = gridDim.x / kCtas;
  }

  __device__ __forceinline__ void run() {
    init_barriers();
    load_weights();
    wait_for_inputs();
    const int count = static_cast<int>((batches_ - first_ + stride_ - 1) / stride_);
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      fetch(i);
    }
    ptx::barrier_cluster_wait(); // all CTAs have started, with their barriers
    for (int i = -1; i < count + 2; ++i) {
      if (i >= 2) {
        collapse(i - 2);
        fetch(i - 2 + kStages); // into the slots that are free now
      }
      if (i + 1 < count) {
        ptx::cp_async_wait_group<kStages - 3>(); // batch i + 1 is here
        squares(i + 1);
      }
      if (i >= 0 && i < count) {
        mix(i);
      }
    }
  }

private:
  __device__ __forceinline__ void init_barriers() {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        ptx::mbarrier_init(&shared_.squares_barrier[i], 1);
        ptx::mbarrier_init(&shared_.mix_barrier[i], 1);
      }
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::barrier_cluster_arrive_relaxed();
  }

  __device__ __forceinline__ void load_weights() {
#pragma unroll
    for (int g = 0; g < kStreams; ++g) {
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (active_) {
          v = ptx::ld_global_f32x4(p_.fn + (g * kStreams + i) * p_.hidden + h_);
        }
        fn_[g][i][0] = v.x, fn_[g][i][1] = v.y, fn_[g][i][2] = v.z, fn_[g][i][3] = v.w;
      }
    }
    scale_ = p_.scale[0];
    base_ = p_.base[threadIdx.x % kWarp / (kWarp / kGates) % kStreams]; // of this lane's gate
  }

  __device__ __forceinline__ uint2 &slot(int i, int token, int stream) {
    const unsigned row = (static_cast<unsigned>(i) % kStages * kTokens + token) * kStreams + stream;
    return shared_.ring[row * blockDim.x + threadIdx.x];
  }

  // The i-th batch of this cluster.
  __device__ __forceinline__ void fetch(int i) {
    const int64_t batch = first_ + i * stride_;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int64_t token = batch * kTokens + t;
      const bool valid = active_ && token < p_.tokens;
      const bf16 *from = valid ? p_.residual + token * kStreams * p_.hidden + h_ : p_.residual;
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        ptx::cp_async_8(&slot(i, t, s), from, valid);
        from += valid ? p_.hidden : 0;
      }
    }
    ptx::cp_async_commit_group();
  }

  __device__ __forceinline__ void squares(int i) {
    uint64_t *barrier = &shared_.squares_barrier[static_cast<unsigned>(i) % kSums];
    float sum[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      sum[t] = 0.0f;
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        float x[kQuad];
        unpack(slot(i, t, s), x);
#pragma unroll
        for (int e = 0; e < kQuad; ++e) {
          sum[t] = fmaf(x[e], x[e], sum[t]);
        }
      }
    }
    expect<kTokens>(barrier);
    publish<kCtas>(shared_.squares[static_cast<unsigned>(i) % kSums], barrier, sum, part());
  }

  __device__ __forceinline__ void mix(int i) {
    const float r = rms(i);
    r_[1] = r_[0], r_[0] = r;
    float sum[kGates];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float r_token = __shfl_sync(0xffffffffu, r, t * (kWarp / kTokens));
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        float x[kQuad];
        uint2 bits = slot(i, t, s);
        unpack(bits, x);
        if (kRounded) {
          bits.x = to_bf16_pair(__fmul_rn(x[0], r_token), __fmul_rn(x[1], r_token));
          bits.y = to_bf16_pair(__fmul_rn(x[2], r_token), __fmul_rn(x[3], r_token));
          unpack(bits, x);
        }
#pragma unroll
        for (int g = 0; g < kStreams; ++g) {
#pragma unroll
          for (int e = 0; e < kQuad; ++e) {
            float &to = sum[t * kStreams + g];
            to = s == 0 && e == 0 ? __fmul_rn(x[0], fn_[g][0][0]) : fmaf(x[e], fn_[g][s][e], to);
          }
        }
      }
    }
    uint64_t *barrier = &shared_.mix_barrier[static_cast<unsigned>(i) % kSums];
    expect<kGates>(barrier);
    publish<kCtas>(shared_.mix[static_cast<unsigned>(i) % kSums], barrier, sum, part());
  }

  __device__ __forceinline__ void collapse(int i) {
    ptx::mbarrier_wait(&shared_.mix_barrier[static_cast<unsigned>(i) % kSums],
                       parity(i)); // all parts of the mix are here
    float mix = add_parts<kGates>(shared_.mix[static_cast<unsigned>(i) % kSums], kCtas * warps_);
    if (!kRounded) {
      mix = __fmul_rn(mix, r_[1]); // of the same token: lane l has gate l / 4, which is token l / 16's
    }
    const float pre_lane = gate(mix, scale_, base_, p_.hc_eps);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float sum[kQuad] = {};
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        const float pre = __shfl_sync(0xffffffffu, pre_lane, (t * kStreams + s) * (kWarp / kGates));
        float x[kQuad];
        unpack(slot(i, t, s), x);
#pragma unroll
        for (int e = 0; e < kQuad; ++e) {
          sum[e] = fmaf(pre, x[e], sum[e]);
        }
      }
      const int64_t token = (first_ + i * stride_) * kTokens + t;
      if (active_ && token < p_.tokens) {
        ptx::st_global_v2(p_.out + token * p_.hidden + h_,
                          make_uint2(to_bf16_pair(sum[0], sum[1]), to_bf16_pair(sum[2], sum[3])));
      }
    }
  }

  // Lane l gets that of token l / (32 / kTokens).
  __device__ __forceinline__ float rms(int i) {
    ptx::mbarrier_wait(&shared_.squares_barrier[static_cast<unsigned>(i) % kSums],
                       parity(i)); // all parts of the squares are here
    return inverse_rms(add_parts<kTokens>(shared_.squares[static_cast<unsigned>(i) % kSums], kCtas * warps_),
                       kStreams * p_.hidden, p_.rms_eps);
  }

  template <int kValues> __device__ __forceinline__ void expect(uint64_t *barrier) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect_tx(barrier, kValues * kCtas * warps_ * static_cast<unsigned>(sizeof(float)));
    }
  }

  __device__ __forceinline__ unsigned part() const { return rank_ * warps_ + threadIdx.x / kWarp; }
  static __device__ __forceinline__ unsigned parity(int i) { return static_cast<unsigned>(i) / kSums % 2; }

  const Problem &p_;
  Shared &shared_;
  const unsigned rank_, warps_;
  bool active_;
  int64_t h_, batches_, first_, stride_;
  float fn_[kStreams][kStreams][kQuad]; // [gate][stream]
  float scale_, base_;
  float r_[2] = {}; // this lane's rms() of the last two batches of mix()
};

#endif

template <bool kRounded, int kCtas>
static __global__ void __launch_bounds__(kMaxThreads, 1) hc_head_cluster(const __grid_constant__ Problem p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Head<kRounded, kCtas>(p, *reinterpret_cast<Shared *>(shared_bytes)).run();
#endif
}

bool gm::hc_head_cluster_fits(const Problem *p) {
  enum : int { kCtas = 4 };
  return p->streams == kStreams && p->hidden % (kCtas * kQuad) == 0 && p->hidden <= kCtas * kQuad * kMaxThreads &&
         aligned16(p->fn) && reinterpret_cast<uintptr_t>(p->residual) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(p->out) % 8 == 0;
}

template <int kCtas> static gm_status run(const gm_exec *exec, const Problem *p, int64_t clusters) {
  const int64_t batches = divide_up(p->tokens, kTokens);
  const int64_t threads = kWarp * divide_up(p->hidden / (kCtas * kQuad), kWarp);
  const Grid grid = {.x = kCtas * (batches < clusters ? batches : clusters),
                     .threads = threads,
                     .cluster = kCtas,
                     .shared_bytes = sizeof(Shared) + sizeof(uint2) * kStages * kTokens * kStreams * threads};
  const auto kernel = p->mode == GM_HEAD_ROUNDED ? hc_head_cluster<true, kCtas> : hc_head_cluster<false, kCtas>;
  return launch(exec, "hc_head/cuda/sm90/cluster", kernel, grid, *p);
}

gm_status gm::hc_head_cluster_launch(const gm_exec *exec, const Problem *p) {
  // Few tokens: fn, which all need, comes in sooner through more CTAs. The parts of a sum stay the same.
  enum : int { kWideCtas = 8 };
  if (p->hidden % (kWideCtas * kQuad * kWarp) == 0 && p->tokens <= kTokens * device_facts(exec->device).sm_count / 16) {
    return run<kWideCtas>(exec, p, divide_up(p->tokens, kTokens));
  }
  return run<4>(exec, p, device_facts(exec->device).clusters_of_4);
}
