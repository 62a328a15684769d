#include "cuda/common/gate.cuh"
#include "cuda/common/hc_head.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_sum.cuh"

using namespace gm;
using Problem = gm_hc_head_problem;

enum : int { kWarps = 8, kManyTokens = 4 };

// kTokens tokens a CTA, which share the reads of fn. Reads the streams three times, the later ones from a cache. Tokens
// beyond the last count as zeros.
template <int kStreams, int kTokens, bool kAligned>
struct Loop {
  const Problem &p;
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
  const int64_t width = kStreams * p.hidden, chunks = (width + kChunk - 1) / kChunk;
  const int64_t first = blockIdx.x * static_cast<int64_t>(kTokens);
  const bf16 *const residual = p.residual + first * width;

  __device__ __forceinline__ Octet<bf16> octet(int t, int64_t at, int64_t count) const {
    Octet<bf16> x;
    load<kAligned>(x, residual + t * width + at, first + t < p.tokens ? count : 0);
    return x;
  }

  __device__ __forceinline__ void norms(float (&r)[kTokens]) const {
    __shared__ float slots[kTokens][kWarp];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      SlotSum sum(slots[t]);
      for (int64_t chunk = warp; chunk < chunks; chunk += kWarps) {
        const int64_t at = chunk * kChunk + lane * kOctet;
        sum.add(chunk, warp_sum(square_sum(octet(t, at, width - at))));
      }
      r[t] = inverse_rms(sum.total(), width, p.rms_eps);
    }
  }

  // What the projection sees of an octet.
  __device__ __forceinline__ void normed(const Octet<bf16> &x, float r, float (&to)[kOctet]) const {
#pragma unroll
    for (int k = 0; k < kOctet; k += 2) {
      to[k] = x[k], to[k + 1] = x[k + 1];
      if (p.mode == GM_HEAD_ROUNDED) {
        const uint32_t pair = to_bf16_pair(__fmul_rn(x[k], r), __fmul_rn(x[k + 1], r));
        to[k] = bf16_low(pair), to[k + 1] = bf16_high(pair);
      }
    }
  }

  // This lane's part of the projection.
  __device__ __forceinline__ void project(const float (&r)[kTokens], float (&mix)[kTokens * kStreams]) const {
    for (int64_t chunk = warp; chunk < chunks; chunk += kWarps) {
      const int64_t at = chunk * kChunk + lane * kOctet;
      float x[kTokens][kOctet];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        normed(octet(t, at, width - at), r[t], x[t]);
      }
#pragma unroll
      for (int g = 0; g < kStreams; ++g) {
        Octet<float> fn;
        load<kAligned>(fn, p.fn + g * width + at, width - at);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
#pragma unroll
          for (int k = 0; k < kOctet; ++k) {
            mix[t * kStreams + g] = fmaf(x[t][k], fn[k], mix[t * kStreams + g]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void gates(const float (&r)[kTokens], float (&mix)[kTokens * kStreams]) const {
    __shared__ float parts[kTokens * kStreams][kWarps];
    warp_sums(mix);
#pragma unroll
    for (int i = 0; i < kTokens * kStreams; ++i) {
      if (lane == 0) {
        parts[i][warp] = mix[i];
      }
    }
    __syncthreads(); // all parts before their reads
#pragma unroll
    for (int i = 0; i < kTokens * kStreams; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (int part = 0; part < kWarps; ++part) {
        sum = __fadd_rn(sum, parts[i][part]);
      }
      const float scaled = p.mode == GM_HEAD_ROUNDED ? sum : __fmul_rn(sum, r[i / kStreams]);
      mix[i] = gate(scaled, p.scale[0], p.base[i % kStreams], p.hc_eps);
    }
  }

  __device__ __forceinline__ void collapse(const float (&pre)[kTokens * kStreams]) const {
    for (int64_t h = static_cast<int64_t>(threadIdx.x) * kOctet; h < p.hidden; h += kWarps * kChunk) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        float sum[kOctet] = {};
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
          const Octet<bf16> x = octet(t, i * p.hidden + h, p.hidden - h);
#pragma unroll
          for (int k = 0; k < kOctet; ++k) {
            sum[k] = fmaf(pre[t * kStreams + i], x[k], sum[k]);
          }
        }
        const Octet<bf16> out = to_bf16(sum);
        store<kAligned>(out, p.out + (first + t) * p.hidden + h, first + t < p.tokens ? p.hidden - h : 0);
      }
    }
  }
};

template <int kStreams, int kTokens, bool kAligned>
static __global__ void __launch_bounds__(kWarps *kWarp)
    hc_head_loop(const __grid_constant__ bool pdl, const __grid_constant__ Problem p) {
  const Loop<kStreams, kTokens, kAligned> loop{p};
  float r[kTokens], gates[kTokens * kStreams] = {};
  wait_for_inputs(pdl);
  loop.norms(r);
  loop.project(r, gates);
  loop.gates(r, gates);
  loop.collapse(gates);
}

template <int kStreams, int kTokens>
static gm_status run(const gm_exec *exec, const Problem *p) {
  const Grid grid = {.x = divide_up(p->tokens, kTokens), .threads = kWarps * kWarp};
  if (p->hidden % kOctet == 0 && aligned16(p->residual) && aligned16(p->fn) && aligned16(p->out)) {
    return launch(exec, "hc_head/cuda/sm80/loop", hc_head_loop<kStreams, kTokens, true>, grid, *p);
  }
  return launch(exec, "hc_head/cuda/sm80/scalar", hc_head_loop<kStreams, kTokens, false>, grid, *p);
}

extern "C" gm_status gm_hc_head_cuda(const gm_exec *exec, const Problem *p) {
  if (gm_hc_head_sm90_fits(exec, p)) {
    return gm_hc_head_sm90(exec, p);
  }
  switch (p->streams) {
  case 1: return run<1, 1>(exec, p);
  case 2: return run<2, 1>(exec, p);
  case 8: return run<8, 1>(exec, p);
  default: break;
  }
  // Sharing fn pays once there are enough tokens for all multiprocessors.
  return p->tokens < kManyTokens * device_facts(exec).sm_count ? run<4, 1>(exec, p) : run<4, kManyTokens>(exec, p);
}
