#include "cuda/common/gate.cuh"
#include "cuda/common/launch.cuh"

using namespace gm;
using Problem = gm_mhc_pre_mix_problem;

enum : int { kThreads = 128, kSlicesAtOnce = 8 };

// A gate a thread. The sums over the slices are chains, whose loads are not: kSlicesAtOnce of them are in flight.
template <int kStreams>
static __global__ void __launch_bounds__(kThreads)
    mhc_pre_mix(const __grid_constant__ bool pdl, const __grid_constant__ Problem p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t token = i / kStreams, j = i % kStreams;
  if (token >= p.tokens) {
    return;
  }
  const float scale = p.scale[0], base = p.base[j];
  wait_for_inputs(pdl);
  const float *gemm_out = p.gemm_out + token * p.gemm_out_stride[1] + j * p.gemm_out_stride[2];
  const float *sqrsum = p.sqrsum + token * p.sqrsum_stride[1];
  float mix = 0.0f, squares = 0.0f;
  int64_t left = p.slices;
  for (; left >= kSlicesAtOnce; left -= kSlicesAtOnce) {
    float m[kSlicesAtOnce], q[kSlicesAtOnce];
#pragma unroll
    for (int s = 0; s < kSlicesAtOnce; ++s) {
      m[s] = *gemm_out, q[s] = *sqrsum;
      gemm_out += p.gemm_out_stride[0], sqrsum += p.sqrsum_stride[0];
    }
#pragma unroll
    for (int s = 0; s < kSlicesAtOnce; ++s) {
      mix = __fadd_rn(mix, m[s]), squares = __fadd_rn(squares, q[s]);
    }
  }
  for (; left > 0; --left) {
    mix = __fadd_rn(mix, *gemm_out), squares = __fadd_rn(squares, *sqrsum);
    gemm_out += p.gemm_out_stride[0], sqrsum += p.sqrsum_stride[0];
  }
  const float r = __frsqrt_rn(__fadd_rn(__fmul_rn(squares, p.inv_hidden), p.rms_eps));
  p.out[i] = gate(__fmul_rn(mix, r), scale, base, p.hc_pre_eps);
}

extern "C" gm_status gm_mhc_pre_mix_cuda(const gm_exec *exec, const Problem *p) {
  const Grid grid = {.x = divide_up(p->tokens * p->streams, kThreads), .threads = kThreads};
  const auto kernel = p->streams == 1   ? mhc_pre_mix<1>
                      : p->streams == 2 ? mhc_pre_mix<2>
                      : p->streams == 4 ? mhc_pre_mix<4>
                                        : mhc_pre_mix<8>;
  return launch(exec, "mhc_pre_mix/cuda/sm80", kernel, grid, *p);
}
