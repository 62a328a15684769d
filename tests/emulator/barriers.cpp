// Meetings of warps, CTAs and clusters, and mbarriers.
#include "machine.h"

namespace emulator {

// ---- Warps ----

void meet(const char *name, void *argument, void (*compute)(void *const (&)[kLanes])) {
  Fiber &f = *current;
  Meeting &warp = f.cta->warps[f.warp];
  if (warp.arrived == 0) warp.name = name;
  EMULATOR_CHECK(strcmp(warp.name, name) == 0, "%s, while other lanes of the warp are in %s", name, warp.name);
  warp.arguments[f.lane] = argument;
  if (++warp.arrived < kLanes) {
    const uint64_t phase = warp.phase;
    while (warp.phase == phase) wait_in(warp.waiting, {name, nullptr, 0});
    return;
  }
  compute(warp.arguments);
  warp.arrived = 0;
  ++warp.phase;
  wake(warp.waiting);
}

unsigned lane() { return current->lane; }

struct Shuffle {
  uint64_t bits;
  unsigned from;
  uint64_t result;
};

uint64_t shuffle(const char *name, unsigned mask, uint64_t bits, unsigned from) {
  EMULATOR_CHECK(mask == 0xffffffff, "%s of some lanes, 0x%x, is not modelled", name, mask);
  Shuffle mine = {bits, from, 0};
  meet(name, &mine, [](void *const(&all)[kLanes]) {
    for (void *p : all) {
      Shuffle *s = static_cast<Shuffle *>(p);
      s->result = static_cast<Shuffle *>(all[s->from])->bits;
    }
  });
  return mine.result;
}

static unsigned ballot(const char *name, unsigned mask, bool predicate) {
  EMULATOR_CHECK(mask == 0xffffffff, "%s of some lanes, 0x%x, is not modelled", name, mask);
  unsigned mine = predicate;
  meet(name, &mine, [](void *const(&all)[kLanes]) {
    unsigned bits = 0;
    for (unsigned i = 0; i < kLanes; ++i) bits |= *static_cast<unsigned *>(all[i]) << i;
    for (void *p : all) *static_cast<unsigned *>(p) = bits;
  });
  return mine;
}

// ---- CTAs and clusters ----

// How many live threads meet.
static void arrive(Meeting &meeting, unsigned arrivals, unsigned live) {
  meeting.arrived += arrivals;
  if (meeting.arrived > 0 && meeting.arrived == live) {
    meeting.arrived = 0;
    ++meeting.phase;
    wake(meeting.waiting);
  }
}

void barrier_arrive(int threads) {
  __syncwarp(); // .aligned
  EMULATOR_CHECK(threads > 0 && threads % kLanes == 0, "barrier.cta.arrive of %d threads", threads);
  arrive(current->cta->barrier_1, 1, static_cast<unsigned>(threads));
  yield();
}

void barrier_sync(int threads) {
  __syncwarp();
  EMULATOR_CHECK(threads > 0 && threads % kLanes == 0, "barrier.cta.sync of %d threads", threads);
  Meeting &barrier = current->cta->barrier_1;
  const uint64_t phase = barrier.phase;
  arrive(barrier, 1, static_cast<unsigned>(threads));
  while (barrier.phase == phase) wait_in(barrier.waiting, {"barrier.cta.sync", nullptr, 0});
}

static Meeting cluster_barrier;

static unsigned live_in_cluster() {
  unsigned live = 0;
  for (const Cta &cta : ctas) live += cta.live;
  return live;
}

void barrier_cluster_arrive_relaxed() {
  __syncwarp(); // .aligned
  EMULATOR_CHECK(!current->cluster_arrived, "barrier.cluster.arrive a second time before the wait");
  current->cluster_arrived = true;
  current->cluster_phase = cluster_barrier.phase;
  arrive(cluster_barrier, 1, live_in_cluster());
  yield();
}

void barrier_cluster_wait() {
  __syncwarp();
  EMULATOR_CHECK(current->cluster_arrived, "barrier.cluster.wait without arrive");
  while (cluster_barrier.phase == current->cluster_phase)
    wait_in(cluster_barrier.waiting, {"barrier.cluster.wait", nullptr, 0});
  current->cluster_arrived = false;
}

void thread_ends() {
  EMULATOR_CHECK(!current->cluster_arrived, "the thread ends between barrier.cluster.arrive and wait");
  arrive(current->cta->barrier, 0, current->cta->live);
  arrive(cluster_barrier, 0, live_in_cluster());
}

// ---- mbarriers ----

// What the eight bytes in shared memory stand for. They hold its index, to be found, and to be destroyed by what overwrites
// them.
struct Mbarrier {
  const uint64_t *address;
  Cta *cta;
  unsigned expected, pending, phase;
  int64_t bytes; // announced less come
  Channel waiting;
};

enum : uint64_t { kMark = 0xb0a71e55u };
enum : int64_t { kMaxBytes = (1 << 20) - 1 };
static std::deque<Mbarrier> mbarriers;

void forget_barriers() {
  mbarriers.clear();
  cluster_barrier = Meeting();
}

static Mbarrier *find(const uint64_t *at) {
  const uint64_t index = *at & 0xffffffff;
  const bool is = *at >> 32 == kMark && index < mbarriers.size() && mbarriers[index].address == at;
  return is ? &mbarriers[index] : nullptr;
}

static Mbarrier &get(const char *what, const uint64_t *at) {
  Mbarrier *b = find(at);
  EMULATOR_CHECK(b != nullptr, "%s: no mbarrier at %p (not yet initialised, or overwritten): 0x%llx", what,
                 static_cast<const void *>(at), static_cast<unsigned long long>(*at));
  EMULATOR_CHECK(b->cta->live > 0, "%s: the mbarrier's CTA %u has ended", what, b->cta->rank);
  return *b;
}

std::string describe(const uint64_t *at) {
  const Mbarrier &b = get("describe", at);
  return "mbarrier (phase " + std::to_string(b.phase) + ", " + std::to_string(b.pending) + " of " +
         std::to_string(b.expected) + " arrivals and " + std::to_string(b.bytes) + " bytes to come)";
}

static void end_phase_if_complete(Mbarrier &b) {
  if (b.pending == 0 && b.bytes == 0) {
    ++b.phase;
    b.pending = b.expected;
    wake(b.waiting);
  }
}

static void arrive(const char *what, const uint64_t *at) {
  Mbarrier &b = get(what, at);
  EMULATOR_CHECK(b.pending > 0, "%s: one arrival too many at %s, %s", what, describe(at).c_str(),
                 place_name(*b.cta, at).c_str());
  --b.pending;
  end_phase_if_complete(b);
}

static void count_bytes(const char *what, uint64_t *at, int64_t bytes) {
  Mbarrier &b = get(what, at);
  b.bytes += bytes;
  EMULATOR_CHECK(b.bytes >= -kMaxBytes && b.bytes <= kMaxBytes, "%s: %s", what, describe(at).c_str());
}

void complete_tx(uint64_t *barrier, unsigned bytes) {
  count_bytes("complete_tx", barrier, -static_cast<int64_t>(bytes));
  end_phase_if_complete(get("complete_tx", barrier));
}

void mbarrier_init(uint64_t *at, unsigned arrivals) {
  check_shared("mbarrier.init", at, 8, 8);
  EMULATOR_CHECK(arrivals >= 1 && arrivals < 1 << 20, "mbarrier.init for %u arrivals", arrivals);
  EMULATOR_CHECK(find(at) == nullptr, "mbarrier.init: there is %s already", describe(at).c_str());
  *at = kMark << 32 | mbarriers.size();
  mbarriers.push_back({at, current->cta, arrivals, arrivals, 0, 0, {}});
}

void mbarrier_arrive(uint64_t *at) {
  check_shared("mbarrier.arrive", at, 8, 8);
  arrive("mbarrier.arrive", at);
  yield();
}

void mbarrier_arrive_expect_tx(uint64_t *at, unsigned bytes) {
  check_shared("mbarrier.arrive.expect_tx", at, 8, 8);
  count_bytes("mbarrier.arrive.expect_tx", at, bytes);
  arrive("mbarrier.arrive.expect_tx", at);
  yield();
}

void mbarrier_arrive_remote(const uint64_t *at, unsigned rank) {
  check_shared("mapa", at, 8, 8);
  arrive("mbarrier.arrive.shared::cluster", in_cta(cta_of_rank(rank), at));
  yield();
}

void mbarrier_wait(uint64_t *at, unsigned parity) {
  check_shared("mbarrier.try_wait", at, 8, 8);
  EMULATOR_CHECK(parity <= 1, "mbarrier.try_wait.parity %u", parity);
  for (;;) {
    Mbarrier &b = get("mbarrier.try_wait", at);
    if (b.phase % 2 != parity) return;
    wait_in(b.waiting, {"mbarrier.try_wait", at, parity});
  }
}

} // namespace emulator

void __syncwarp(unsigned mask) {
  EMULATOR_CHECK(mask == 0xffffffff, "__syncwarp of some lanes, 0x%x, is not modelled", mask);
  emulator::meet("__syncwarp", nullptr, [](void *const(&)[emulator::kLanes]) {});
}

int __all_sync(unsigned mask, int predicate) {
  return emulator::ballot("__all_sync", mask, predicate != 0) == 0xffffffff;
}
int __any_sync(unsigned mask, int predicate) { return emulator::ballot("__any_sync", mask, predicate != 0) != 0; }
unsigned __ballot_sync(unsigned mask, int predicate) { return emulator::ballot("__ballot_sync", mask, predicate != 0); }

void __syncthreads() {
  emulator::Cta &cta = *emulator::current->cta;
  const uint64_t phase = cta.barrier.phase;
  emulator::arrive(cta.barrier, 1, cta.live);
  while (cta.barrier.phase == phase) emulator::wait_in(cta.barrier.waiting, {"__syncthreads", nullptr, 0});
}
