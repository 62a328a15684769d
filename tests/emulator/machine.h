// Inside the emulator: the threads of a cluster, and who runs next.
#ifndef EMULATOR_MACHINE_H
#define EMULATOR_MACHINE_H

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "emulator.h"

namespace emulator {

constexpr unsigned kLanes = 32, kGroupThreads = 128, kMaxThreads = 1024, kMaxCtas = 8;

struct Cta;
struct Fiber;

// Who waits for the same thing.
using Channel = std::vector<Fiber *>;

struct Wait {
  const char *what;
  const uint64_t *barrier; // an mbarrier, or null
  unsigned parity;
};

// A set of asynchronous copies of a thread.
struct CopyGroups {
  std::shared_ptr<int> open = std::make_shared<int>(0); // copies under way
  std::deque<std::shared_ptr<int>> committed;
};

// An accumulator of wgmma that the thread may not touch.
struct Accumulator {
  float *registers;
  std::vector<float> value;
  unsigned pending; // wgmmas
};

struct Fiber {
  Cta *cta;
  unsigned index, lane, warp; // in the CTA
  void *stack_pointer;
  bool done = false;
  Wait wait;
  bool cluster_arrived = false;
  uint64_t cluster_phase = 0;
  CopyGroups copies, bulk_stores;
  Channel copied;
  std::list<Accumulator> accumulators;
  unsigned wgmmas = 0, wgmma_groups = 0; // issued
  bool wgmma_fenced = false;
};

// The lanes of a warp, or all threads of a CTA, or of a cluster, meet.
struct Meeting {
  const char *name = nullptr;
  unsigned arrived = 0;
  uint64_t phase = 0;
  void *arguments[kLanes];
  Channel waiting;
};

struct Wgmma {
  int columns;
  uint64_t a, b;
  bool accumulate;
  Accumulator *of[kGroupThreads];
  unsigned issued; // by how many threads
};

struct Warpgroup {
  std::deque<Wgmma> queue;
  unsigned first = 0;                               // number of the first in the queue
  std::deque<std::pair<unsigned, unsigned>> groups; // wgmma number behind the last, threads that have committed
  unsigned first_group = 0;
  unsigned done_groups = 0;
  Channel waiting;
};

struct Worker;

struct Cta {
  Worker *worker;
  unsigned rank, live;
  dim3 block;
  unsigned char *memory; // its thread-local variables: what __shared__ declares
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  std::vector<Warpgroup> warpgroups;
  Meeting barrier, barrier_1;
  std::deque<Fiber *> ready;
};

// Something asynchronous that touches the shared memory of these CTAs.
struct Event {
  const char *what;
  Cta *a, *b;
  std::function<void()> happen;
};

struct Launch {
  const char *name;
  const void *kernel;
  void (*call)(const void *, void **);
  void **arguments;
  dim3 grid, block;
  unsigned cluster;
  size_t shared_bytes;
};

extern Fiber *current;
extern std::vector<Cta> ctas; // of the cluster that runs
extern unsigned cluster_index;

void run(const Launch &launch);

// Ends the preceding kernel if griddepcontrol.wait waits for it.
bool preceding_kernel_was_awaited();

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define EMULATOR_CHECK(condition, ...)               \
  do {                                               \
    if (!(condition)) ::emulator::fail(__VA_ARGS__); \
  } while (0)

uint64_t draw(); // a random number
bool in_random_order();

void wait_in(Channel &channel, Wait wait); // until someone wakes
void wake(Channel &channel);
void yield(); // sometimes lets others run
void post(Event event);

// All lanes of the warp come here; the last one calls compute with what each has brought.
void meet(const char *name, void *argument, void (*compute)(void *const (&arguments)[kLanes]));

size_t shared_window_bytes(const Cta &cta);
// Shared memory of the running thread's CTA.
bool is_shared(const void *p, size_t bytes);
void check_shared(const char *what, const void *p, size_t bytes, size_t alignment);
unsigned shared_offset(const void *p);
// The same place in another CTA.
template <typename T>
T *in_cta(const Cta &cta, T *p) {
  return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(cta.memory) + shared_offset(p));
}
Cta &cta_of_rank(unsigned rank);

// mbarrier: bytes have come. `of` is the CTA that it lies in.
void complete_tx(uint64_t *barrier, unsigned bytes);
std::string describe(const uint64_t *barrier); // an mbarrier
std::string place_name(const Cta &cta, const void *p);

void forget_barriers();    // at the start of a cluster
void thread_ends();        // of the current one
void check_nothing_left(); // of asynchronous work of the current thread

} // namespace emulator

#endif
