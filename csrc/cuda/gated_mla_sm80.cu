// Every GPU, shape and alignment. A CTA multiplies some rows of x by some rows of W: it copies columns of both into a ring
// of stages, and mma.sync, with x on its wide side, reads them from there. From tiles for one row of x, through which W
// streams, to tiles that keep the tensor cores busy, all are one kernel.
//
// There are two orders of summation over k, whatever the tile and the alignment: the steps of 16 one after the other; or,
// in tiles for small n, eight warps each take every eighth step, and their sums are added in order. With
// GM_BATCH_INVARIANT it is always the first.
#include "cuda/common/gate.cuh"
#include "cuda/common/gated_mla.cuh"
#include "cuda/common/octet.cuh"

namespace {

using namespace gm;
using Problem = gm_gated_mla_problem;

enum {
  kWarp = 32,
  kStep = 16,               // columns of k in an mma
  kBlockTokens = 16,        // rows of x
  kBlockRows = 8,           // rows of W
  kPieceBytes = kOctet * 2, // what is copied in one go
  kSplit = 8,               // warps along k
  kBand = 8,                // tiles of rows of x that are multiplied by the same part of W while it is in the L2
};

template <int kTokens_, int kRows_, int kDepth_, int kStages_, int kTokenWarps, int kRowWarps, int kChains_>
struct Tile {
  static constexpr int kTokens = kTokens_, kRows = kRows_; // of x, of W
  static constexpr int kDepth = kDepth_;                   // columns of k in a stage
  static constexpr int kStages = kStages_;
  static constexpr int kChains = kChains_; // warps along k
  static constexpr int kThreads = kTokenWarps * kRowWarps * kChains * kWarp;
  static constexpr int kWarpTokens = kTokens / kTokenWarps, kWarpRows = kRows / kRowWarps;
  static constexpr int kTokenBlocks = kWarpTokens / kBlockTokens, kRowBlocks = kWarpRows / kBlockRows;
  static constexpr int kSteps = kDepth / kStep / kChains; // of a warp in a stage

  static constexpr int kPieces = kDepth / kOctet; // in a row
  static constexpr int kPitch = kPieces * kPieceBytes;
  static constexpr int kXBytes = kTokens * kPitch;
  static constexpr int kStageBytes = kXBytes + kRows * kPitch;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kPassRows = kThreads / kPieces; // that the threads copy in one go

  // Blocks of which a lane has neighbouring columns of the output, two in each.
  static constexpr int kRunBlocks = kRowBlocks < 4 ? kRowBlocks : 4, kRun = 2 * kRunBlocks;
  static constexpr int kRuns = kRowBlocks / kRunBlocks;
  static constexpr int kOctets = kChains > 1 ? 1 : 2 * kTokenBlocks *kRuns; // of the output that a thread finishes

  static_assert(kChains == 1 ? kRun == kOctet : kThreads == kSplit * kWarp && kTokens * kRows <= kThreads * kOctet);
  static_assert(kTokens % kPassRows == 0 && kRows % kPassRows == 0 && kPassRows % 8 == 0);
  static_assert(kChains == 1 || kChains * kTokens * kRows * sizeof(float) <= kSharedBytes);
};

// The pieces of a row change places, so that those which one ldmatrix reads, the same of 8 rows, lie in different banks.
// The rows are pairs of neighbours, kApart rows from pair to pair. Two rows of 4 pieces are as wide as the banks.
template <int kPieces, int kApart>
__device__ unsigned swizzle(unsigned row) {
  const unsigned pair = row / kApart % 4;
  return kPieces == 4 ? pair : 2 * pair + row % 2;
}

// Fills the stages: each thread one piece of every kPassRows-th row.
template <typename T, bool kAligned>
class Copier {
public:
  __device__ Copier(const Problem &p, int64_t token, int64_t column, unsigned char *ring)
      : row_(threadIdx.x / T::kPieces), piece_(threadIdx.x % T::kPieces), k_(static_cast<int>(p.k)), ring_(ring) {
    // k is an int: W has 256 rows of it.
    const int64_t tokens = p.m - token - row_;
    tokens_ = tokens < T::kTokens ? static_cast<int>(tokens) : T::kTokens;
    x_ = p.x + (token + row_) * p.k + piece_ * kOctet;
    weight_ = p.weight + (column + row_) * p.k + piece_ * kOctet;
  }

  __device__ void x(int chunk) const {
#pragma unroll kUnrolled
    for (int row = 0; row < T::kTokens; row += T::kPassRows) {
      copy(place<2>(chunk, row), x_ + row * static_cast<int64_t>(k_), chunk, row < tokens_);
    }
  }

  __device__ void weight(int chunk) const {
#pragma unroll kUnrolled
    for (int row = 0; row < T::kRows; row += T::kPassRows) {
      copy(place<T::kRun>(chunk, row) + T::kXBytes, weight_ + row * static_cast<int64_t>(k_), chunk, true);
    }
  }

private:
  static constexpr int kUnrolled = kAligned ? 16 : 2;

  template <int kApart>
  __device__ unsigned char *place(int chunk, int row) const {
    const unsigned at = row_ + row;
    return ring_ + chunk % T::kStages * T::kStageBytes + at * T::kPitch +
           (piece_ ^ swizzle<T::kPieces, kApart>(at)) * kPieceBytes;
  }

  // What lies beyond k or m is zero.
  __device__ void copy(unsigned char *to, const bf16 *row, int chunk, bool valid) const {
    const int column = chunk * T::kDepth, left = k_ - static_cast<int>(piece_) * kOctet - column;
    if (kAligned) {
      ptx::cp_async_16(to, row + column, valid && left > 0);
    } else {
      Octet<bf16> octet;
      octet.load_some(row + column, valid ? left : 0);
      *reinterpret_cast<uint4 *>(to) = make_uint4(octet.pair[0], octet.pair[1], octet.pair[2], octet.pair[3]);
    }
  }

  const unsigned row_, piece_;
  const int k_;
  int tokens_; // from row_ on
  unsigned char *const ring_;
  const bf16 *x_, *weight_;
};

// What a warp multiplies, and where it lies.
template <typename T>
struct Warp {
  unsigned lane = threadIdx.x % kWarp;
  unsigned chain, token, row; // the first, in the tile

  __device__ Warp() {
    constexpr unsigned kRowWarps = T::kRows / T::kWarpRows, kTokenWarps = T::kTokens / T::kWarpTokens;
    const unsigned warp = threadIdx.x / kWarp;
    row = warp % kRowWarps * T::kWarpRows;
    token = warp / kRowWarps % kTokenWarps * T::kWarpTokens;
    chain = warp / (kRowWarps * kTokenWarps);
  }
};

template <typename T>
struct Fragments {
  uint32_t x[T::kTokenBlocks][4], weight[T::kRowBlocks][2];

  __device__ void load(const Warp<T> &w, const unsigned char *stage, int step) {
    const unsigned piece = 2 * (w.chain + T::kChains * step);
    const unsigned token = w.token + w.lane % 16;
    const unsigned char *from =
        stage + token * T::kPitch + ((piece + w.lane / 16) ^ swizzle<T::kPieces, 2>(token)) * kPieceBytes;
#pragma unroll
    for (int i = 0; i < T::kTokenBlocks; ++i) {
      const uint4 v = ptx::ldmatrix_x4(from + i * kBlockTokens * T::kPitch);
      x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
    }
    // Two blocks at a time. Column c of block b of a run is row c / 2 * kRun + 2 b + c % 2 of W.
    const unsigned row = w.row + w.lane % 8 / 2 * T::kRun + w.lane / 16 * 2 + w.lane % 2;
    from = stage + T::kXBytes + row * T::kPitch +
           ((piece + w.lane / 8 % 2) ^ swizzle<T::kPieces, T::kRun>(row)) * kPieceBytes;
#pragma unroll
    for (int b = 0; b < T::kRowBlocks; b += 2) {
      const int row_of_block = b / T::kRunBlocks * (T::kRunBlocks * kBlockRows) + b % T::kRunBlocks * 2;
      const uint4 v = ptx::ldmatrix_x4(from + row_of_block * T::kPitch);
      weight[b][0] = v.x, weight[b][1] = v.y, weight[b + 1][0] = v.z, weight[b + 1][1] = v.w;
    }
  }
};

// A lane's: of token block i the rows lane / 4 + 8 h, of run r the columns lane % 4 * kRun + 2 b + e.
template <typename T>
struct Sums {
  float of[T::kTokenBlocks][T::kRowBlocks][4] = {};

  __device__ float &at(int half_block, int run, int column) {
    return of[half_block / 2][run * T::kRunBlocks + column / 2][half_block % 2 * 2 + column % 2];
  }

  __device__ void add(const Fragments<T> &f) {
#pragma unroll
    for (int i = 0; i < T::kTokenBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < T::kRowBlocks; ++j) {
        ptx::mma_m16n8k16(of[i][j], f.x[i], f.weight[j][0], f.weight[j][1]);
      }
    }
  }
};

template <typename T, bool kAligned>
__device__ void multiply(const Warp<T> &w, const Copier<T, kAligned> &copy, const unsigned char *ring, int chunks,
                         Sums<T> &sums) {
  Fragments<T> now, next;
  ptx::cp_async_wait_group<T::kStages - 1>();
  __syncthreads(); // the first chunk is there
  now.load(w, ring, 0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const unsigned char *stage = ring + chunk % T::kStages * T::kStageBytes;
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      const bool last = step == T::kSteps - 1;
      if (last) {
        ptx::cp_async_wait_group<T::kStages - 2>();
        __syncthreads(); // the next chunk is there, and this one has been read
        stage = ring + (chunk + 1) % T::kStages * T::kStageBytes;
      }
      next.load(w, stage, (step + 1) % T::kSteps);
      if (last) {
        copy.weight(chunk + T::kStages);
        copy.x(chunk + T::kStages);
        ptx::cp_async_commit_group();
      }
      sums.add(now);
      now = next;
    }
  }
  ptx::cp_async_wait_group<0>(); // beyond k, nothing but zeros
}

// Adds the sums of the warps along k, through shared memory, in order; a thread gets those of the octet that it finishes.
template <typename T>
__device__ void add_chains(const Warp<T> &w, unsigned char *ring, Sums<T> &sums, float (&z)[kOctet]) {
  float *const parts = reinterpret_cast<float *>(ring);
  __syncthreads(); // nobody reads a stage, or fills one
#pragma unroll
  for (int half = 0; half < 2 * T::kTokenBlocks; ++half) {
    const unsigned token = w.chain * T::kTokens + half * 8 + w.lane / 4;
#pragma unroll
    for (int run = 0; run < T::kRuns; ++run) {
      float *to = parts + token * T::kRows + run * (T::kRunBlocks * kBlockRows) + w.lane % 4 * T::kRun;
#pragma unroll
      for (int c = 0; c < T::kRun; c += 4) {
        *reinterpret_cast<float4 *>(to + c) = make_float4(sums.at(half, run, c), sums.at(half, run, c + 1),
                                                          sums.at(half, run, c + 2), sums.at(half, run, c + 3));
      }
    }
  }
  __syncthreads(); // all parts before their reads
  if (threadIdx.x * kOctet >= T::kTokens * T::kRows) return;
#pragma unroll
  for (int chain = 0; chain < T::kChains; ++chain) {
    const float4 *from =
        reinterpret_cast<const float4 *>(parts + chain * (T::kTokens * T::kRows) + threadIdx.x * kOctet);
    const float4 low = from[0], high = from[1];
    const float part[kOctet] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int c = 0; c < kOctet; ++c) z[c] = chain == 0 ? part[c] : z[c] + part[c];
  }
}

// The octets of the output that a thread finishes.
template <typename T>
class Output {
public:
  __device__ Output(const Warp<T> &w, const Problem &p, bool vectors, int64_t token, int64_t column)
      : p_(p), vectors_(vectors) {
    unsigned row = w.token + w.lane / 4, at = w.row + w.lane % 4 * kOctet;
    if (T::kChains > 1) row = threadIdx.x * kOctet / T::kRows, at = threadIdx.x * kOctet % T::kRows;
    tokens_ = row < T::kTokens ? p.m - token - row : 0;
    offset_ = (token + row) * p.n + column + at;
  }

  __device__ void load_attn() {
#pragma unroll
    for (int i = 0; i < T::kOctets; ++i) {
      if (token(i) >= tokens_) continue;
      if (vectors_) {
        attn_[i].load(p_.attn + offset(i));
      } else {
        attn_[i].load_some(p_.attn + offset(i), kOctet);
      }
    }
  }

  __device__ void finish(int i, const float (&z)[kOctet]) {
    if (token(i) >= tokens_) return;
    Octet<bf16> octet;
#pragma unroll
    for (int c = 0; c < kOctet; c += 2) octet.pair[c / 2] = gated(attn_[i].pair[c / 2], z[c], z[c + 1]);
    if (vectors_) {
      octet.store(p_.out + offset(i));
    } else {
      octet.store_some(p_.out + offset(i), kOctet);
    }
  }

private:
  __device__ static int token(int i) { return i / T::kRuns * 8; }
  __device__ int64_t offset(int i) const {
    return offset_ + token(i) * p_.n + i % T::kRuns * (T::kRunBlocks * kBlockRows);
  }

  const Problem &p_;
  const bool vectors_;
  int64_t tokens_, offset_; // of the first
  Octet<bf16> attn_[T::kOctets];
};

} // namespace

// band: tiles of rows of x, of which neighbouring CTAs have neighbours. vectors: attn and out are 16-byte aligned.
template <typename T, bool kAligned>
static __global__ void __launch_bounds__(T::kThreads)
    gated_mla_sm80(const __grid_constant__ bool pdl, const __grid_constant__ Problem p,
                   const __grid_constant__ unsigned band, const __grid_constant__ bool vectors) {
  extern __shared__ __align__(128) unsigned char ring[];
  const int64_t token = (static_cast<int64_t>(blockIdx.y) * band + blockIdx.x % band) * T::kTokens;
  const int64_t column = static_cast<int64_t>(blockIdx.x / band) * T::kRows;
  if (token >= p.m) return; // the last band may be narrower
  const Warp<T> warp;
  const Copier<T, kAligned> copy(p, token, column, ring);
  Output<T> output(warp, p, vectors, token, column);
  if (pdl) {
    for (int chunk = 0; chunk < T::kStages; ++chunk) copy.weight(chunk); // not made by the preceding kernel
  }
  wait_for_inputs(pdl);
  for (int chunk = 0; chunk < T::kStages; ++chunk) {
    if (!pdl) copy.weight(chunk);
    copy.x(chunk);
    ptx::cp_async_commit_group();
  }
  // Early where there are registers for it.
  constexpr bool kEarly = T::kOctets <= 8;
  if (kEarly) output.load_attn();
  Sums<T> sums;
  multiply(warp, copy, ring, static_cast<int>((p.k + T::kDepth - 1) / T::kDepth), sums);
  if (!kEarly) output.load_attn();
  if constexpr (T::kChains > 1) {
    float z[kOctet] = {};
    add_chains(warp, ring, sums, z);
    output.finish(0, z);
  } else {
#pragma unroll
    for (int i = 0; i < T::kOctets; ++i) {
      float z[kOctet];
#pragma unroll
      for (int c = 0; c < kOctet; ++c) z[c] = sums.at(i / T::kRuns, i % T::kRuns, c);
      output.finish(i, z);
    }
  }
}

template <typename T>
static gm_status run(const gm_exec *exec, const Problem *p) {
  const int64_t tiles = divide_up(p->m, T::kTokens), bands = divide_up(tiles, kBand), band = divide_up(tiles, bands);
  const Grid grid = {.x = p->n / T::kRows * band, .y = bands, .threads = T::kThreads, .shared_bytes = T::kSharedBytes};
  const bool vectors = aligned16(p->attn) && aligned16(p->out);
  const bool prefill = T::kTokens > 64;
  if (p->k % kOctet == 0 && aligned16(p->x) && aligned16(p->weight)) {
    return launch(exec, prefill ? "gated_mla/cuda/sm80/prefill" : "gated_mla/cuda/sm80/decode", gated_mla_sm80<T, true>,
                  grid, *p, static_cast<unsigned>(band), vectors);
  }
  return launch(exec, prefill ? "gated_mla/cuda/sm80/prefill/unaligned" : "gated_mla/cuda/sm80/decode/unaligned",
                gated_mla_sm80<T, false>, grid, *p, static_cast<unsigned>(band), vectors);
}

namespace {

struct Form {
  int tokens, rows;
  bool split;
  gm_status (*run)(const gm_exec *, const Problem *);
};

template <typename T>
constexpr Form form() {
  return {T::kTokens, T::kRows, T::kChains > 1, run<T>};
}

// Of equally fast ones the first is taken.
constexpr Form kForms[] = {
    form<Tile<16, 64, 64, 6, 1, 2, 1>>(),       form<Tile<64, 128, 64, 4, 2, 2, 1>>(),
    form<Tile<128, 256, 32, 4, 2, 4, 1>>(),     form<Tile<128, 128, 32, 5, 2, 2, 1>>(),
    form<Tile<64, 32, 128, 4, 1, 1, kSplit>>(), form<Tile<16, 32, 128, 6, 1, 1, kSplit>>(),
    form<Tile<16, 16, 256, 5, 1, 1, kSplit>>(),
};

} // namespace

// Clocks of a multiprocessor for a column of k, as an estimate: of tensor cores with 1024 products a clock, after 64 bytes
// a clock of x and W. W comes from memory with at most 18 bytes a clock.
static double clocks(const Form &form, const Problem *p, int64_t sm_count) {
  const int64_t tiles = divide_up(p->m, form.tokens) * (p->n / form.rows);
  const double tokens = static_cast<double>(p->m < form.tokens ? p->m : form.tokens);
  const double tile = form.tokens * form.rows / 1024.0 + (tokens + form.rows) / 32.0;
  const double all = static_cast<double>(divide_up(tiles, sm_count)) * tile;
  const double weight = static_cast<double>(p->n) / (9.0 * static_cast<double>(sm_count));
  return all > weight ? all : weight;
}

extern "C" gm_status gm_gated_mla_sm80(const gm_exec *exec, const Problem *p) {
  const int64_t sm_count = device_facts(exec).sm_count;
  const Form *best = &kForms[0];
  for (const Form &form : kForms) {
    if (form.split && (exec->flags & GM_BATCH_INVARIANT) != 0) continue;
    if (clocks(form, p, sm_count) < clocks(*best, p, sm_count)) best = &form;
  }
  return best->run(exec, p);
}
