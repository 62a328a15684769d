// What the lanes of a warp compute together, and wgmma.
#include "machine.h"

namespace emulator {

static float from_bf16(uint16_t bits) { return emulator_bits<float>(static_cast<uint32_t>(bits) << 16); }

static uint32_t to_bf16(float v) {
  const uint32_t bits = emulator_bits<uint32_t>(v);
  return v != v ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

uint32_t pack_bf16x2(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }

static float flushed(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }
float rcp_approx(float x) { return flushed(1.0f / flushed(x)); }
float ex2_approx(float x) { return flushed(static_cast<float>(std::exp2(static_cast<double>(flushed(x))))); }
float max_nan(float a, float b) { return a != a || b != b ? emulator_bits<float>(0x7fffffffu) : std::fmax(a, b); }

static void check_global(const char *what, const void *p) {
  EMULATOR_CHECK(reinterpret_cast<uintptr_t>(p) % 16 == 0, "%s: %p is not at a multiple of 16", what, p);
}

uint4 ld_global_v4(const void *p) {
  check_global("ld.global.v4", p);
  return *static_cast<const uint4 *>(p);
}

void st_global_v4(void *p, uint4 v) {
  check_global("st.global.v4", p);
  *static_cast<uint4 *>(p) = v;
}

// ---- Warps ----

struct RowOfMatrix {
  void *row;
  uint32_t words[4];
};

// Two bf16 of lane `lane` in matrix `matrix`, whose rows' addresses the lanes have brought.
template <bool kTransposed>
static uint16_t *element(void *const (&all)[kLanes], unsigned matrix, unsigned lane, unsigned half) {
  const unsigned row = lane / 4, column = lane % 4 * 2 + half, at = 8 * matrix;
  return static_cast<uint16_t *>(static_cast<RowOfMatrix *>(all[at + (kTransposed ? column : row)])->row) +
         (kTransposed ? row : column);
}

template <unsigned kMatrices, bool kTransposed, bool kStore>
static void move_matrices(void *const (&all)[kLanes]) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    uint32_t *words = static_cast<RowOfMatrix *>(all[lane])->words;
    for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
      uint16_t *low = element<kTransposed>(all, matrix, lane, 0), *high = element<kTransposed>(all, matrix, lane, 1);
      if (kStore) {
        *low = static_cast<uint16_t>(words[matrix]), *high = static_cast<uint16_t>(words[matrix] >> 16);
      } else {
        words[matrix] = *low | static_cast<uint32_t>(*high) << 16;
      }
    }
  }
}

uint4 ldmatrix_x4(const void *row) {
  check_shared("ldmatrix", row, 16, 16);
  RowOfMatrix mine = {const_cast<void *>(row), {}};
  meet("ldmatrix.x4", &mine, move_matrices<4, false, false>);
  return {mine.words[0], mine.words[1], mine.words[2], mine.words[3]};
}

uint4 ldmatrix_x4_trans(const void *row) {
  check_shared("ldmatrix", row, 16, 16);
  RowOfMatrix mine = {const_cast<void *>(row), {}};
  meet("ldmatrix.x4.trans", &mine, move_matrices<4, true, false>);
  return {mine.words[0], mine.words[1], mine.words[2], mine.words[3]};
}

uint2 ldmatrix_x2(const void *row) {
  if (lane() < 16) check_shared("ldmatrix", row, 16, 16);
  RowOfMatrix mine = {const_cast<void *>(row), {}};
  meet("ldmatrix.x2", &mine, move_matrices<2, false, false>);
  return {mine.words[0], mine.words[1]};
}

void stmatrix_x4(void *row, uint4 v) {
  check_shared("stmatrix", row, 16, 16);
  RowOfMatrix mine = {row, {v.x, v.y, v.z, v.w}};
  meet("stmatrix.x4", &mine, move_matrices<4, false, true>);
}

uint32_t movmatrix_trans(uint32_t a) {
  uint32_t mine[2] = {a, 0};
  meet("movmatrix.trans", mine, [](void *const(&all)[kLanes]) {
    const auto get = [&](unsigned row, unsigned column) {
      return static_cast<uint32_t *>(all[row * 4 + column / 2])[0] >> 16 * (column % 2) & 0xffff;
    };
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned row = lane / 4, column = lane % 4 * 2;
      static_cast<uint32_t *>(all[lane])[1] = get(column, row) | get(column + 1, row) << 16;
    }
  });
  return mine[1];
}

struct Mma {
  float *c;
  const uint32_t *a;
  uint32_t b[2];
};

static float half_of(uint32_t word, unsigned column) {
  return from_bf16(static_cast<uint16_t>(word >> 16 * (column % 2)));
}

static void mma_all(void *const (&all)[kLanes]) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const Mma &m = *static_cast<Mma *>(all[lane]);
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned across = lane % 4 * 2 + e;
      a[lane / 4][across] = half_of(m.a[0], e), a[lane / 4 + 8][across] = half_of(m.a[1], e);
      a[lane / 4][across + 8] = half_of(m.a[2], e), a[lane / 4 + 8][across + 8] = half_of(m.a[3], e);
      b[across][lane / 4] = half_of(m.b[0], e), b[across + 8][lane / 4] = half_of(m.b[1], e);
    }
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    float *c = static_cast<Mma *>(all[lane])->c;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = c[i];
      for (unsigned k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      c[i] = static_cast<float>(sum);
    }
  }
}

void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Mma mine = {c, a, {b0, b1}};
  meet("mma.m16n8k16", &mine, mma_all);
}

// ---- Warpgroups ----

static Warpgroup &own_warpgroup() { return current->cta->warpgroups[current->index / kGroupThreads]; }

// Rows of 16 columns of k.
struct Operand {
  float values[256][16];

  void read(const Cta &cta, uint64_t descriptor, int rows) {
    const uint64_t start = (descriptor & 0x3fff) << 4, eight_rows = (descriptor >> 32 & 0x3fff) << 4;
    EMULATOR_CHECK(descriptor >> 62 == 1, "wgmma: only the 128-byte swizzle is modelled, descriptor 0x%llx",
                   static_cast<unsigned long long>(descriptor));
    EMULATOR_CHECK((descriptor >> 49 & 7) == 0, "wgmma: a base offset is not modelled");
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < 16; ++column) {
        uint64_t at =
            start + static_cast<uint64_t>(row / 8) * eight_rows + static_cast<uint64_t>(row % 8 * 128 + column * 2);
        at ^= (at >> 7 & 7) << 4;
        EMULATOR_CHECK(at + 2 <= shared_window_bytes(cta), "wgmma reads shared + 0x%llx",
                       static_cast<unsigned long long>(at));
        values[row][column] = from_bf16(*reinterpret_cast<const uint16_t *>(cta.memory + at));
      }
    }
  }
};

// d[row][column] += a[row] b[column], in one rounding a wgmma.
static void multiply(const Operand &a, const Operand &b, int columns, double (&d)[64][256]) {
  static double across[16][256];
  for (int c = 0; c < columns; ++c) {
    for (int k = 0; k < 16; ++k) across[k][c] = b.values[c][k];
  }
  for (int row = 0; row < 64; ++row) {
    for (int k = 0; k < 16; ++k) {
      const double factor = a.values[row][k];
      for (int c = 0; c < columns; ++c) d[row][c] += factor * across[k][c];
    }
  }
}

// Calls visit(thread, i, row, column) for each element of the accumulators.
template <typename Visit>
static void each_sum(int columns, Visit visit) {
  for (unsigned thread = 0; thread < kGroupThreads; ++thread) {
    for (int i = 0; i < columns / 2; ++i) {
      visit(thread, i, thread / kLanes * 16 + thread % kLanes / 4 + (i & 2 ? 8u : 0u),
            static_cast<unsigned>(i / 4 * 8) + thread % 4 * 2 + (i & 1));
    }
  }
}

static void compute(const Cta &cta, Wgmma &w) {
  static Operand a, b;
  static double d[64][256];
  a.read(cta, w.a, 64);
  b.read(cta, w.b, w.columns);
  each_sum(w.columns, [&](unsigned thread, int i, unsigned row, unsigned column) {
    d[row][column] = w.accumulate ? static_cast<double>(w.of[thread]->value[static_cast<size_t>(i)]) : 0.0;
  });
  multiply(a, b, w.columns, d);
  each_sum(w.columns, [&](unsigned thread, int i, unsigned row, unsigned column) {
    w.of[thread]->value[static_cast<size_t>(i)] = static_cast<float>(d[row][column]);
  });
  for (Accumulator *accumulator : w.of) --accumulator->pending;
}

// The first group that is not done.
static void run_group(Cta &cta, Warpgroup &g) {
  const unsigned end = g.groups.front().first;
  for (; g.first < end; ++g.first) {
    EMULATOR_CHECK(g.queue.front().issued == kGroupThreads, "wgmma by %u threads of a warpgroup",
                   g.queue.front().issued);
    compute(cta, g.queue.front());
    g.queue.pop_front();
  }
  g.groups.pop_front();
  ++g.done_groups;
  wake(g.waiting);
}

void wgmma_fence() { current->wgmma_fenced = true; }

// The accumulator in these registers, taken out of the thread's hands.
static Accumulator &take(float *d, int columns) {
  for (Accumulator &accumulator : current->accumulators) {
    if (accumulator.registers == d) {
      EMULATOR_CHECK(accumulator.value.size() == static_cast<size_t>(columns / 2),
                     "wgmma: one accumulator, two shapes");
      return accumulator;
    }
  }
  EMULATOR_CHECK(current->wgmma_fenced, "wgmma without wgmma.fence since the accumulator was in the thread's hands");
  current->accumulators.push_back({d, std::vector<float>(d, d + columns / 2), 0});
  memset(d, 0xff, static_cast<size_t>(columns / 2) * sizeof *d);
  return current->accumulators.back();
}

void wgmma(float *d, int columns, uint64_t a, uint64_t b, bool accumulate) {
  Warpgroup &g = own_warpgroup();
  const unsigned number = current->wgmmas++;
  if (number - g.first == g.queue.size()) g.queue.push_back({columns, a, b, accumulate, {}, 0});
  Wgmma &w = g.queue[number - g.first];
  EMULATOR_CHECK(w.columns == columns && w.a == a && w.b == b && w.accumulate == accumulate,
                 "wgmma: the threads of a warpgroup differ in its arguments");
  Accumulator &accumulator = take(d, columns);
  ++accumulator.pending;
  w.of[current->index % kGroupThreads] = &accumulator;
  ++w.issued;
}

void wgmma_commit_group() {
  Warpgroup &g = own_warpgroup();
  const unsigned number = current->wgmma_groups++ - g.done_groups;
  if (number == g.groups.size()) g.groups.push_back({current->wgmmas, 0});
  EMULATOR_CHECK(g.groups[number].first == current->wgmmas, "wgmma.commit_group: the threads of a warpgroup differ");
  if (++g.groups[number].second == kGroupThreads) {
    Cta *cta = current->cta;
    post({"wgmma", cta, nullptr, [cta, &g] { run_group(*cta, g); }});
  }
}

void wgmma_wait(unsigned groups) {
  Warpgroup &g = own_warpgroup();
  while (current->wgmma_groups - g.done_groups > groups) wait_in(g.waiting, {"wgmma.wait_group", nullptr, 0});
  std::list<Accumulator> &all = current->accumulators;
  for (auto it = all.begin(); it != all.end();) {
    if (it->pending == 0) {
      memcpy(it->registers, it->value.data(), it->value.size() * sizeof(float));
      it = all.erase(it);
      current->wgmma_fenced = false;
    } else {
      ++it;
    }
  }
}

} // namespace emulator
