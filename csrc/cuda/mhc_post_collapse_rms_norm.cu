#include "cuda/common/launch.cuh"
#include "cuda/common/team.cuh"

using namespace gm;
using Problem = gm_mhc_post_collapse_rms_norm_problem;

enum : int { kLoopWarps = 8, kMaxChunks = 32, kMaxHidden = kMaxChunks * kChunk };

// One octet: the new streams over the old ones; returns v, their collapse. The rounding is docs/semantics.md's.
// c: the token's coefficients: comb, post, pre.
template <int kStreams>
static __device__ __forceinline__ Octet<bf16> post_collapse(Octet<bf16> (&r)[kStreams], const Octet<bf16> &x,
                                                            const float *c) {
  const float *post = c + kStreams * kStreams, *pre = post + kStreams;
  Octet<bf16> next[kStreams];
  float v[kOctet];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
#pragma unroll
    for (int k = 0; k < kOctet; k += 2) {
      float sum[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        sum[e] = fmaf(post[i], x[k + e], __fmul_rn(c[i], r[0][k + e]));
#pragma unroll
        for (int j = 1; j < kStreams; ++j) {
          sum[e] = fmaf(c[j * kStreams + i], r[j][k + e], sum[e]);
        }
      }
      next[i].set_pair(k / 2, sum[0], sum[1]);
#pragma unroll
      for (int e = k; e < k + 2; ++e) {
        v[e] = i == 0 ? __fmul_rn(pre[0], next[0][e]) : fmaf(pre[i], next[i][e], v[e]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    r[i] = next[i];
  }
  return to_bf16(v);
}

static __device__ __forceinline__ float inverse_rms(const Problem &p, float square_sum) {
  return __frsqrt_rn(__fadd_rn(__fmul_rn(square_sum, p.inv_hidden), p.norm_eps));
}

static __device__ __forceinline__ Octet<bf16> normalise(const Octet<bf16> &v, float r, const Octet<bf16> &w) {
  Octet<bf16> y;
#pragma unroll
  for (int k = 0; k < kOctet; k += 2) {
    y.set_pair(k / 2, __fmul_rn(__fmul_rn(v[k], r), w[k]), __fmul_rn(__fmul_rn(v[k + 1], r), w[k + 1]));
  }
  return y;
}

// A token a team, in registers: 4 streams, hidden = kVectors * warps * 256, everything 16-byte aligned. All streams are
// in flight at once. kLateWeight: reads the weight when it is needed, so that more CTAs fit; else with the streams.
template <int kVectors, bool kCluster, bool kLateWeight, int kMaxThreads, int kMinCtas>
static __global__ void __launch_bounds__(kMaxThreads, kMinCtas)
    post_registers(const __grid_constant__ bool pdl, const __grid_constant__ Problem p) {
  enum : int { kStreams = 4 };
  using Sum = ChunkSum<kCluster, kMaxChunks>;
  __shared__ typename Sum::Shared shared;
  const Team<kCluster> team;
  const int64_t token = team.item(), hidden = p.hidden;
  const bf16 *residual = p.residual + token * kStreams * hidden;
  // Where latency counts, the streams and coefficients do not wait; elsewhere even the branch is too much among them.
  if (!kCluster) {
    wait_for_inputs(pdl);
  }
  Octet<bf16> r[kVectors][kStreams], x[kVectors], w[kVectors], v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      r[i][j].load(residual + j * hidden + team.octet(i));
    }
  }
  // Every lane loads all: one request a vector, and nothing to wait for before the streams are here.
  float c[kStreams * (kStreams + 2)];
#pragma unroll
  for (int i = 0; i < kStreams + 2; ++i) {
    const float *from = i < kStreams    ? p.comb_mix + (token * kStreams + i) * kStreams
                        : i == kStreams ? p.post_mix + token * kStreams
                                        : p.pre_mix + token * kStreams;
    const float4 four = ptx::ld_global_f32x4(from);
    c[4 * i] = four.x, c[4 * i + 1] = four.y, c[4 * i + 2] = four.z, c[4 * i + 3] = four.w;
  }
  if (kCluster) {
    wait_for_inputs(pdl);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i].load(p.sublayer_out + token * hidden + team.octet(i));
    if (!kLateWeight) {
      w[i].load(p.norm_weight + team.octet(i));
    }
  }
  Sum sum(&shared, kVectors * team.warps());
  float squares[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    v[i] = post_collapse<kStreams>(r[i], x[i], c);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      r[i][j].store(p.residual_out + (token * kStreams + j) * hidden + team.octet(i));
    }
    squares[i] = square_sum(v[i]);
  }
  warp_sums(squares);
  sum.begin();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    sum.add(team.chunk(i), squares[i]);
  }
  const float rms = inverse_rms(p, sum.total());
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (kLateWeight) {
      w[i].load(p.norm_weight + team.octet(i));
    }
    normalise(v[i], rms, w[i]).store(p.layer_input + token * hidden + team.octet(i));
  }
}

// A token a CTA, any hidden size. v waits in layer_input, where the thread that wrote it finds it again.
template <int kStreams, bool kAligned>
static __global__ void __launch_bounds__(kLoopWarps *kWarp)
    post_loop(const __grid_constant__ bool pdl, const __grid_constant__ Problem p) {
  enum : int { kComb = kStreams * kStreams };
  __shared__ float coefficients[kComb + 2 * kStreams], slots[kWarp];
  const int64_t token = blockIdx.x, hidden = p.hidden;
  const int i = static_cast<int>(threadIdx.x);
  wait_for_inputs(pdl);
  if (i < kComb) {
    coefficients[i] = p.comb_mix[token * kComb + i];
  }
  if (i < kStreams) {
    coefficients[kComb + i] = p.post_mix[token * kStreams + i];
    coefficients[kComb + kStreams + i] = p.pre_mix[token * kStreams + i];
  }
  SlotSum sum(slots); // its barrier is the coefficients', too

  const bf16 *residual = p.residual + token * kStreams * hidden, *sublayer_out = p.sublayer_out + token * hidden;
  bf16 *residual_out = p.residual_out + token * kStreams * hidden, *y = p.layer_input + token * hidden;
  const int64_t chunks = (hidden + kChunk - 1) / kChunk;
  for (int64_t chunk = threadIdx.x / kWarp; chunk < chunks; chunk += kLoopWarps) {
    const int64_t h = chunk * kChunk + threadIdx.x % kWarp * kOctet, count = hidden - h;
    Octet<bf16> r[kStreams], x;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      load<kAligned>(r[j], residual + j * hidden + h, count);
    }
    load<kAligned>(x, sublayer_out + h, count);
    const Octet<bf16> v = post_collapse<kStreams>(r, x, coefficients);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      store<kAligned>(r[j], residual_out + j * hidden + h, count);
    }
    store<kAligned>(v, y + h, count);
    sum.add(chunk, warp_sum(square_sum(v)));
  }
  const float rms = inverse_rms(p, sum.total());
  for (int64_t chunk = threadIdx.x / kWarp; chunk < chunks; chunk += kLoopWarps) {
    const int64_t h = chunk * kChunk + threadIdx.x % kWarp * kOctet, count = hidden - h;
    Octet<bf16> v, w;
    load<kAligned>(v, y + h, count);
    load<kAligned>(w, p.norm_weight + h, count);
    store<kAligned>(normalise(v, rms, w), y + h, count);
  }
}

static bool aligned(const Problem *p) {
  return p->hidden % kOctet == 0 && aligned16(p->residual) && aligned16(p->sublayer_out) && aligned16(p->norm_weight) &&
         aligned16(p->residual_out) && aligned16(p->layer_input);
}

#define GM_NAME(form) "mhc_post_collapse_rms_norm/cuda/" form

template <int kStreams>
static gm_status run_loop(const gm_exec *exec, const Problem *p) {
  const Grid grid = {.x = p->tokens, .threads = kLoopWarps * kWarp};
  return aligned(p) ? launch(exec, GM_NAME("sm80/loop"), post_loop<kStreams, true>, grid, *p)
                    : launch(exec, GM_NAME("sm80/scalar"), post_loop<kStreams, false>, grid, *p);
}

template <int kVectors, bool kCluster, bool kLateWeight, int kMaxThreads, int kMinCtas>
struct Form {
  static bool fits(int64_t chunks, int64_t ctas = 1) { return team_fits(chunks, ctas, kVectors, kMaxThreads); }

  static gm_status run(const gm_exec *exec, const Problem *p, const char *name, int64_t ctas = 1) {
    const int64_t warps = p->hidden / kChunk / (ctas * kVectors);
    const Grid grid = {.x = p->tokens * ctas, .threads = warps * kWarp, .cluster = ctas};
    return launch(exec, name, post_registers<kVectors, kCluster, kLateWeight, kMaxThreads, kMinCtas>, grid, *p);
  }
};

// Latency: a token over as many multiprocessors as a portable cluster has.
enum : int { kClusterThreads = 256 };
using Cluster = Form<1, true, false, kClusterThreads, 1>;
// One CTA a multiprocessor, with as many warps as it can have.
using Wide1 = Form<1, false, false, 640, 1>;
using Wide2 = Form<2, false, false, 512, 1>;
// Two or more, which overlap.
using Deep2 = Form<2, false, true, 320, 2>;
using Deep4 = Form<4, false, true, 256, 2>;

// The measured choice between the forms: docs/tuning.md. For 20 chunks, H = 5120, two vectors beat four up to T = 2048.
static gm_status run_4_streams(const gm_exec *exec, const Problem *p) {
  const bool coefficients_aligned = aligned16(p->comb_mix) && aligned16(p->post_mix) && aligned16(p->pre_mix);
  if (!aligned(p) || !coefficients_aligned || p->hidden % kChunk != 0 || p->hidden > kMaxHidden) {
    return run_loop<4>(exec, p);
  }
  const int64_t chunks = p->hidden / kChunk, sm_count = device_facts(exec).sm_count;
  const int64_t ctas = cluster_of(chunks, kClusterThreads);
  if (ctas > 1 && has_clusters(exec) && 3 * p->tokens <= 2 * sm_count) {
    return Cluster::run(exec, p, GM_NAME("sm90/cluster"), ctas);
  }
  if (p->tokens > sm_count && Deep4::fits(chunks) && chunks != 20) {
    return Deep4::run(exec, p, GM_NAME("sm80/deep"));
  }
  if (p->tokens > sm_count && Deep2::fits(chunks)) {
    return Deep2::run(exec, p, GM_NAME("sm80/deep"));
  }
  if (Wide1::fits(chunks)) {
    return Wide1::run(exec, p, GM_NAME("sm80/wide"));
  }
  return Wide2::fits(chunks) ? Wide2::run(exec, p, GM_NAME("sm80/wide")) : run_loop<4>(exec, p);
}

extern "C" gm_status gm_mhc_post_collapse_rms_norm_cuda(const gm_exec *exec, const Problem *p) {
  switch (p->streams) {
  case 1: return run_loop<1>(exec, p);
  case 2: return run_loop<2>(exec, p);
  case 8: return run_loop<8>(exec, p);
  default: return run_4_streams(exec, p);
  }
}
