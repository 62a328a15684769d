// The choice between the forms of gated_mla: docs/tuning.md says what is measured of the numbers here.
#include "cuda/common/gated_mla.cuh"

using namespace gm;
using Problem = gm_gated_mla_problem;

// Bytes that divide all addresses of a tensor's beginning.
static bool aligned(const void *a, const void *b, uintptr_t bytes) {
  return (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % bytes == 0;
}

// CTAs along k for each of `tiles` of W, so that there is one for every multiprocessor. It does not depend on m.
static int split_along_k(int64_t tiles, int64_t parts_of_k, int sm_count) {
  int split = 8;
  while (split > 1 && (tiles * split > sm_count || parts_of_k < split)) split /= 2;
  return split;
}

// Up to kDirectRows rows of x and so little of W that the multiprocessors hold it in registers, twice over.
constexpr int64_t kDirectRows = 16, kDirectColumns = 2048;
constexpr int kDirectBlocks = 6; // of 32 columns that a warp has in flight

static gm_status direct(const gm_exec *exec, const Problem *p, int sm_count) {
  const int64_t blocks = divide_up(p->k, 32);
  const int split = split_along_k(p->n / 16, blocks, sm_count);
  int64_t warps = divide_up(blocks, kDirectBlocks * split);
  warps = warps < 4 ? 4 : warps > 16 ? 16 : warps;
  return gm_gated_mla_sm90_direct(exec, p, p->m <= 8 ? 8 : 16, static_cast<int>(warps), split);
}

static gm_status decode(const gm_exec *exec, const Problem *p, int split) {
  int tokens = 8;
  while (tokens < 128 && tokens < p->m) tokens *= 2;
  return gm_gated_mla_sm90_decode(exec, p, 64, tokens, split);
}

// Tiles of 128 rows from which on prefill is taken, and its wide tiles.
constexpr int64_t kPrefillTiles = 40, kWideTiles = 120;

extern "C" gm_status gm_gated_mla_cuda(const gm_exec *exec, const Problem *p) {
  const DeviceFacts facts = device_facts(exec);
  const bool hopper = facts.arch == 90 && (exec->flags & GM_PORTABLE) == 0;
  const bool invariant = (exec->flags & GM_BATCH_INVARIANT) != 0;
  // Batch-invariant, m must not decide between Hopper's forms and the portable one: attn and out as prefill needs them.
  const bool operands = aligned(p->x, p->weight, 16) && aligned(p->attn, p->out, invariant ? 16 : 2);
  if (!hopper || p->k % 8 != 0 || !operands || p->n > INT32_MAX || p->k > INT32_MAX - 1024) {
    return gm_gated_mla_sm80(exec, p);
  }
  if (p->m <= kDirectRows && p->n <= kDirectColumns && !invariant) return direct(exec, p, facts.sm_count);

  // Both add along k as `split` says, and so give a row the same bits.
  const int split = split_along_k(p->n / 64, divide_up(p->k, 64), facts.sm_count);
  const int64_t row_tiles = divide_up(p->m, 128);
  const bool many = p->m > 128 && row_tiles * (p->n / 128) >= kPrefillTiles;
  if (many && aligned(p->attn, p->out, 16)) {
    const bool wide = row_tiles * (p->n / 256) >= kWideTiles;
    return gm_gated_mla_sm90_prefill(exec, p, wide ? 256 : 128, invariant ? split : 1);
  }
  if (aligned(p->attn, p->out, 4) && row_tiles <= kMaxGridY) return decode(exec, p, split);
  return gm_gated_mla_sm80(exec, p);
}
