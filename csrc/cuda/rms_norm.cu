#include "cuda/common/launch.cuh"
#include "cuda/common/team.cuh"

using namespace gm;
using Problem = gm_rms_norm_problem;

#define GM_NAME(form) "rms_norm/cuda/" form

enum : int { kLoopWarps = 16, kMaxChunks = 128 };

// Of a CTA that holds a row in registers. Two of them fit into a multiprocessor.
constexpr int max_threads(int vectors) { return vectors == 8 ? 512 : 640; }

template <typename E>
static __device__ __forceinline__ Octet<E> normalise(const Octet<E> &x, float r, bool weighted, const Octet<E> &w) {
  Octet<E> y;
#pragma unroll
  for (int k = 0; k < kOctet; k += 2) {
    float low = __fmul_rn(x[k], r), high = __fmul_rn(x[k + 1], r);
    if (weighted) {
      low = __fmul_rn(low, w[k]), high = __fmul_rn(high, w[k + 1]);
    }
    y.set_pair(k / 2, low, high);
  }
  return y;
}

// A row a team, in registers: width = kVectors * warps * 256, everything 16-byte aligned.
template <typename E, int kVectors, bool kCluster>
static __global__ void __launch_bounds__(max_threads(kVectors), sizeof(E) == 2 && !kCluster ? 2 : 1)
    rms_norm_registers(const __grid_constant__ bool pdl, const __grid_constant__ Problem p) {
  using Stored = typename Octet<E>::Stored;
  using Sum = ChunkSum<kCluster, kMaxChunks>;
  __shared__ typename Sum::Shared shared;
  const Team<kCluster> team;
  const Stored *x = static_cast<const Stored *>(p.x) + team.item() * p.row_stride;
  const Stored *weight = static_cast<const Stored *>(p.weight);
  Octet<E> values[kVectors];
  wait_for_inputs(pdl);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    values[i].load(x + team.octet(i));
  }
  Sum sum(&shared, kVectors * team.warps());
  float squares[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    squares[i] = square_sum(values[i]);
  }
  warp_sums(squares);
  sum.begin();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    sum.add(team.chunk(i), squares[i]);
  }
  const float r = inverse_rms(sum.total(), p.width, p.eps);
  Stored *out = static_cast<Stored *>(p.out) + team.item() * p.width;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Octet<E> w = {};
    if (weight != nullptr) {
      w.load(weight + team.octet(i));
    }
    normalise(values[i], r, weight != nullptr, w).store(out + team.octet(i));
  }
}

// A row a CTA, any width: reads it twice.
template <typename E, bool kAligned>
static __global__ void __launch_bounds__(kLoopWarps *kWarp)
    rms_norm_loop(const __grid_constant__ bool pdl, const __grid_constant__ Problem p) {
  using Stored = typename Octet<E>::Stored;
  __shared__ float slots[kWarp];
  SlotSum sum(slots);
  const int64_t row = blockIdx.x;
  const Stored *x = static_cast<const Stored *>(p.x) + row * p.row_stride;
  const Stored *weight = static_cast<const Stored *>(p.weight);
  Stored *out = static_cast<Stored *>(p.out) + row * p.width;
  const int64_t chunks = (p.width + kChunk - 1) / kChunk;
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
  wait_for_inputs(pdl);
  for (int64_t chunk = warp; chunk < chunks; chunk += kLoopWarps) {
    const int64_t at = chunk * kChunk + lane * kOctet;
    Octet<E> values;
    load<kAligned>(values, x + at, p.width - at);
    sum.add(chunk, warp_sum(square_sum(values)));
  }
  const float r = inverse_rms(sum.total(), p.width, p.eps);
  for (int64_t chunk = warp; chunk < chunks; chunk += kLoopWarps) {
    const int64_t at = chunk * kChunk + lane * kOctet;
    Octet<E> values, w = {};
    load<kAligned>(values, x + at, p.width - at);
    if (weight != nullptr) {
      load<kAligned>(w, weight + at, p.width - at);
    }
    store<kAligned>(normalise(values, r, weight != nullptr, w), out + at, p.width - at);
  }
}

template <typename E, int kVectors, bool kCluster>
static gm_status run_registers(const gm_exec *exec, const Problem *p, const char *name, int64_t ctas) {
  const int64_t warps = p->width / kChunk / (ctas * kVectors);
  const Grid grid = {.x = p->rows * ctas, .threads = warps * kWarp, .cluster = ctas};
  return launch(exec, name, rms_norm_registers<E, kVectors, kCluster>, grid, *p);
}

template <typename E>
static gm_status run_aligned(const gm_exec *exec, const Problem *p) {
  const int64_t chunks = p->width / kChunk;
  if (p->width % kChunk == 0 && chunks <= kMaxChunks) {
    // Latency: a row is spread over as many multiprocessors as a portable cluster has (docs/tuning.md).
    const int64_t ctas = cluster_of(chunks, max_threads(1));
    if (ctas > 1 && has_clusters(exec) && 2 * p->rows <= device_facts(exec).sm_count) {
      return run_registers<E, 1, true>(exec, p, GM_NAME("sm90/cluster"), ctas);
    }
    const auto fits = [&](int vectors) { return team_fits(chunks, 1, vectors, max_threads(vectors)); };
    if (fits(4)) {
      return run_registers<E, 4, false>(exec, p, GM_NAME("sm80/registers"), 1);
    }
    if (fits(8)) {
      return run_registers<E, 8, false>(exec, p, GM_NAME("sm80/registers"), 1);
    }
    if (fits(2)) {
      return run_registers<E, 2, false>(exec, p, GM_NAME("sm80/registers"), 1);
    }
    if (fits(1)) {
      return run_registers<E, 1, false>(exec, p, GM_NAME("sm80/registers"), 1);
    }
  }
  const Grid grid = {.x = p->rows, .threads = kLoopWarps * kWarp};
  return launch(exec, GM_NAME("sm80/loop"), rms_norm_loop<E, true>, grid, *p);
}

template <typename E>
static gm_status run(const gm_exec *exec, const Problem *p) {
  constexpr int64_t kVector = 16 / sizeof(typename Octet<E>::Stored);
  if (p->width % kOctet == 0 && p->row_stride % kVector == 0 && aligned16(p->x) && aligned16(p->out) &&
      (p->weight == nullptr || aligned16(p->weight))) {
    return run_aligned<E>(exec, p);
  }
  const Grid grid = {.x = p->rows, .threads = kLoopWarps * kWarp};
  return launch(exec, GM_NAME("sm80/scalar"), rms_norm_loop<E, false>, grid, *p);
}

extern "C" gm_status gm_rms_norm_cuda(const gm_exec *exec, const Problem *p) {
  switch (p->dtype) {
  case GM_F16: return run<__half>(exec, p);
  case GM_F32: return run<float>(exec, p);
  default: return run<bf16>(exec, p);
  }
}
