#include "cuda/common/launch.cuh"
#include "cuda/common/octet.cuh"

using namespace gm;
using Problem = gm_hc_collapse_problem;

enum : int { kThreads = 128 };

// One step of the sum: product and sum rounded separately.
static __device__ __forceinline__ float add_stream(float sum, float pre, float r) {
  return __fadd_rn(sum, __fmul_rn(pre, r));
}

// An octet a thread: token blockIdx.x, 16-byte vectors.
template <int kStreams>
static __global__ void __launch_bounds__(kThreads)
    hc_collapse_vector(const __grid_constant__ bool pdl, const __grid_constant__ Problem p) {
  const int64_t token = blockIdx.x, h = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kOctet;
  wait_for_inputs(pdl);
  Octet<bf16> r[kStreams];
  float pre[kStreams], sum[kOctet] = {};
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    pre[i] = p.pre_mix[token * p.pre_mix_stride[0] + i * p.pre_mix_stride[1]];
    load<true>(r[i], p.residual + token * p.residual_stride[0] + i * p.residual_stride[1] + h, p.hidden - h);
  }
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      sum[k] = add_stream(sum[k], pre[i], r[i][k]);
    }
  }
  store<true>(to_bf16(sum), p.out + token * p.hidden + h, p.hidden - h);
}

// An element a thread at a time, any strides.
static __global__ void __launch_bounds__(kThreads)
    hc_collapse_scalar(const __grid_constant__ bool pdl, const __grid_constant__ Problem p) {
  const int64_t token = blockIdx.x;
  const float *pre = p.pre_mix + token * p.pre_mix_stride[0];
  wait_for_inputs(pdl);
  for (int64_t h = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; h < p.hidden; h += gridDim.y * kThreads) {
    const bf16 *r = p.residual + token * p.residual_stride[0] + h * p.residual_stride[2];
    float sum = 0.0f;
    for (int64_t i = 0; i < p.streams; ++i) {
      sum = add_stream(sum, pre[i * p.pre_mix_stride[1]], from_bf16(r[i * p.residual_stride[1]]));
    }
    p.out[token * p.hidden + h] = static_cast<bf16>(to_bf16_pair(sum, 0.0f));
  }
}

template <int kStreams>
static gm_status run_vector(const gm_exec *exec, const Problem *p) {
  const Grid grid = {.x = p->tokens, .y = divide_up(p->hidden, kThreads * kOctet), .threads = kThreads};
  return launch(exec, "hc_collapse/cuda/sm80/vector", hc_collapse_vector<kStreams>, grid, *p);
}

extern "C" gm_status gm_hc_collapse_cuda(const gm_exec *exec, const Problem *p) {
  const bool vectors = p->hidden % kOctet == 0 && p->residual_stride[2] == 1 && p->residual_stride[0] % kOctet == 0 &&
                       p->residual_stride[1] % kOctet == 0 && aligned16(p->residual) && aligned16(p->out) &&
                       p->hidden <= kMaxGridY * kThreads * kOctet;
  if (!vectors) {
    const Grid grid = {.x = p->tokens,
                       .y = divide_up(p->hidden, kThreads) < kMaxGridY ? divide_up(p->hidden, kThreads) : kMaxGridY,
                       .threads = kThreads};
    return launch(exec, "hc_collapse/cuda/sm80/scalar", hc_collapse_scalar, grid, *p);
  }
  switch (p->streams) {
  case 1: return run_vector<1>(exec, p);
  case 2: return run_vector<2>(exec, p);
  case 8: return run_vector<8>(exec, p);
  default: return run_vector<4>(exec, p);
  }
}
