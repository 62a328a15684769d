// Copies that complete later: the tensor copy engine, st.async, cp.async.
#include "copies.h"

#include <stdlib.h>

#include "machine.h"

namespace emulator {

static const TensorMap &tensor_map(const CUtensorMap *map) {
  const TensorMap &m = *reinterpret_cast<const TensorMap *>(map);
  EMULATOR_CHECK(m.mark == kTensorMapMark, "not a tensor map");
  return m;
}

// Until it has come, what is there is wrong.
static void spoil(void *p, size_t bytes) { memset(p, 0xff, bytes); }

// Row `row` of the box, eight elements from `piece` on, as the 128-byte swizzle lays them down.
static uint16_t *swizzled(unsigned char *box, int row, int piece) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(box) + static_cast<uintptr_t>(row * 128 + piece * 16);
  return reinterpret_cast<uint16_t *>(at ^ (at >> 7 & 7) << 4);
}

template <typename Move>
static void each_element(const TensorMap &m, int column, int row, unsigned char *box, Move move) {
  for (int r = 0; r < m.box_rows; ++r) {
    for (int c = 0; c < m.box_columns; ++c) {
      const int64_t at_row = static_cast<int64_t>(row) + r, at_column = static_cast<int64_t>(column) + c;
      const bool inside = at_row >= 0 && at_row < m.rows && at_column >= 0 && at_column < m.columns;
      uint16_t *global =
          reinterpret_cast<uint16_t *>(m.data + (inside ? at_row * m.row_bytes : 0)) + (inside ? at_column : 0);
      move(swizzled(box, r, c / 8)[c % 8], global, inside);
    }
  }
}

static size_t box_bytes(const TensorMap &m) {
  return static_cast<size_t>(m.box_rows) * static_cast<size_t>(m.box_columns) * 2;
}

void prefetch_tensormap(const CUtensorMap *map) { tensor_map(map); }

static void load_box(const char *what, Cta &cta, void *shared, const TensorMap &m, int column, int row,
                     uint64_t *barrier) {
  unsigned char *to = static_cast<unsigned char *>(in_cta(cta, shared));
  uint64_t *at = in_cta(cta, barrier);
  spoil(to, box_bytes(m));
  post({what, &cta, nullptr, [=, &cta] {
          each_element(m, column, row, to, [](uint16_t &s, const uint16_t *g, bool inside) { s = inside ? *g : 0; });
          complete_tx(at, static_cast<unsigned>(box_bytes(m)));
        }});
}

void cp_async_bulk_tensor(void *shared, const CUtensorMap *map, int column, int row, uint64_t *barrier, uint64_t) {
  const char *what = "cp.async.bulk.tensor";
  const TensorMap &m = tensor_map(map);
  check_shared(what, shared, box_bytes(m), 128);
  check_shared(what, barrier, 8, 8);
  load_box(what, *current->cta, shared, m, column, row, barrier);
  yield();
}

void cp_async_bulk_tensor_multicast(void *shared, const CUtensorMap *map, int column, int row, uint64_t *barrier,
                                    uint16_t to, uint64_t) {
  const char *what = "cp.async.bulk.tensor.multicast";
  const TensorMap &m = tensor_map(map);
  check_shared(what, shared, box_bytes(m), 128);
  check_shared(what, barrier, 8, 8);
  EMULATOR_CHECK(to != 0, "%s to no CTA", what);
  for (unsigned rank = 0; rank < 16; ++rank) {
    if (to >> rank & 1) load_box(what, cta_of_rank(rank), shared, m, column, row, barrier);
  }
  yield();
}

// ---- Groups of a thread's copies ----

static void commit(CopyGroups &groups) {
  groups.committed.push_back(groups.open);
  groups.open = std::make_shared<int>(0);
}

// Until all but the last `left` are done.
static void wait(const char *what, CopyGroups &groups, size_t left) {
  while (groups.committed.size() > left) {
    if (*groups.committed.front() == 0) {
      groups.committed.pop_front();
    } else {
      wait_in(current->copied, {what, nullptr, 0});
    }
  }
}

// An event of a copy of the current thread's, which then is one fewer in its group.
static void post_in(CopyGroups &groups, const char *what, const std::function<void()> &happen) {
  std::shared_ptr<int> left = groups.open;
  Fiber *self = current;
  ++*left;
  post({what, self->cta, nullptr, [=] {
          happen();
          if (--*left == 0) wake(self->copied);
        }});
}

void cp_async_bulk_tensor_store(const CUtensorMap *map, int column, int row, const void *shared) {
  const char *what = "cp.async.bulk.tensor store";
  const TensorMap m = tensor_map(map);
  check_shared(what, shared, box_bytes(m), 128);
  // First the shared memory is read, then, later, the global memory written.
  unsigned char *from = static_cast<unsigned char *>(const_cast<void *>(shared));
  post_in(current->bulk_stores, what, [=] {
    std::vector<std::pair<uint16_t *, uint16_t>> writes;
    each_element(m, column, row, from, [&](uint16_t s, uint16_t *g, bool inside) {
      if (inside) writes.push_back({g, s});
    });
    post({"", nullptr, nullptr, [writes] {
            for (const auto &[to, value] : writes) *to = value;
          }});
  });
  yield();
}

void cp_async_bulk_commit_group() { commit(current->bulk_stores); }
void cp_async_bulk_wait_group_read() { wait("cp.async.bulk.wait_group.read", current->bulk_stores, 0); }

void cp_async(void *shared, const void *global, unsigned bytes, unsigned source_bytes) {
  EMULATOR_CHECK(bytes == 4 || bytes == 8 || bytes == 16, "cp.async of %u bytes", bytes);
  EMULATOR_CHECK(source_bytes <= bytes, "cp.async of %u bytes, %u of them read", bytes, source_bytes);
  EMULATOR_CHECK(reinterpret_cast<uintptr_t>(global) % bytes == 0, "cp.async from %p, not a multiple of %u", global,
                 bytes);
  check_shared("cp.async", shared, bytes, bytes);
  spoil(shared, bytes);
  post_in(current->copies, "cp.async", [=] {
    memset(shared, 0, bytes);
    memcpy(shared, global, source_bytes);
  });
  yield();
}

void cp_async_commit_group() { commit(current->copies); }
void cp_async_wait(unsigned groups) { wait("cp.async.wait_group", current->copies, groups); }

// ---- Counted at mbarriers ----

void cp_async_bulk(void *shared, const void *global, unsigned bytes, uint64_t *barrier) {
  const char *what = "cp.async.bulk";
  EMULATOR_CHECK(bytes % 16 == 0 && reinterpret_cast<uintptr_t>(global) % 16 == 0, "%s of %u bytes from %p", what,
                 bytes, global);
  check_shared(what, shared, bytes, 16);
  check_shared(what, barrier, 8, 8);
  spoil(shared, bytes);
  post({what, current->cta, nullptr, [=] {
          memcpy(shared, global, bytes);
          complete_tx(barrier, bytes);
        }});
  yield();
}

template <int kCount>
static void store_async(const char *what, const void *local, uint64_t *barrier, unsigned rank,
                        const float (&values)[kCount]) {
  check_shared(what, local, sizeof values, sizeof values);
  check_shared(what, barrier, 8, 8);
  Cta &cta = cta_of_rank(rank);
  void *to = const_cast<void *>(in_cta(cta, local));
  uint64_t *at = in_cta(cta, barrier);
  std::vector<float> copy(values, values + kCount);
  spoil(to, sizeof values);
  post({what, &cta, nullptr, [=] {
          memcpy(to, copy.data(), sizeof values);
          complete_tx(at, sizeof values);
        }});
  yield();
}

void st_async(const float *local, uint64_t *barrier, unsigned rank, float value) {
  store_async("st.async", local, barrier, rank, {value});
}

void st_async_v4(const float4 *local, uint64_t *barrier, unsigned rank, float a, float b, float c, float d) {
  store_async("st.async.v4", local, barrier, rank, {a, b, c, d});
}

void check_nothing_left() {
  const Fiber &f = *current;
  for (const CopyGroups *groups : {&f.copies, &f.bulk_stores}) {
    bool left = *groups->open > 0;
    for (const auto &group : groups->committed) left |= *group > 0;
    EMULATOR_CHECK(!left, "the thread ends without having waited for its copies");
  }
  EMULATOR_CHECK(f.accumulators.empty(), "the thread ends without having waited for its wgmmas");
}

} // namespace emulator
