// Fibers, CTAs as threads of the operating system of which one runs at a time, and the scheduler.
#include "machine.h"

#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

extern thread_local unsigned char emulator_dynamic_shared[];

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

Fiber *current;
std::vector<Cta> ctas;
unsigned cluster_index;

constexpr size_t kStackBytes = 64 * 1024;

struct Worker {
  pthread_t thread;
  sem_t turn;
  unsigned char *memory; // thread-local variables, from a multiple of 1024 on
  unsigned char *dynamic_shared;
  size_t bytes;
  unsigned char *stacks;
  void *stack_pointer; // while a fiber runs
};

// Saves the stack pointer in *from and goes on at `to`.
extern "C" void emulator_switch(void **from, void *to);
asm(R"(.text
.globl emulator_switch
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

static Worker workers[kMaxCtas];
static sem_t finished;
static Launch launch;
static std::vector<Event> events;
static Fiber *handed; // to the worker whose turn it is
static unsigned live, running_cta;

// ---- The schedule ----

static uint64_t seed, state;
static const char *case_name = "";

void set_case(const char *text) { case_name = text; }

void set_schedule(uint64_t value) { seed = value; }
bool in_random_order() { return seed > 1; }

uint64_t draw() {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

static bool event_is_due() {
  if (!in_random_order()) return seed == 1;
  static const unsigned odds[] = {256, 32, 8, 2};
  return draw() % odds[seed % 4] == 0;
}

static void run_event() {
  const size_t i = in_random_order() ? draw() % events.size() : 0;
  const Event event = std::move(events[i]);
  events.erase(events.begin() + static_cast<ptrdiff_t>(i));
  event.happen();
}

static std::string waits_for(const Fiber &f) {
  if (f.done) return "ended";
  if (f.wait.barrier == nullptr) return std::string("in ") + f.wait.what;
  return "wait for parity " + std::to_string(f.wait.parity) + " of " + describe(f.wait.barrier) + " at " +
         place_name(*f.cta, f.wait.barrier);
}

[[noreturn]] static void report_deadlock() {
  fflush(stdout);
  fprintf(stderr, "emulator: %s, seed %d: deadlock in %s, cluster %u\n", case_name, static_cast<int>(seed), launch.name,
          cluster_index);
  for (const Cta &cta : ctas) {
    for (size_t i = 0; i < cta.fibers.size();) {
      size_t end = i;
      while (end < cta.fibers.size() && waits_for(cta.fibers[end]) == waits_for(cta.fibers[i])) ++end;
      fprintf(stderr, "  CTA %u, threads %zu..%zu: %s\n", cta.rank, i, end - 1, waits_for(cta.fibers[i]).c_str());
      i = end;
    }
  }
  _exit(1);
}

// A CTA with a fiber that can run.
static Cta *ready_cta() {
  if (in_random_order() && draw() % 16 == 0) running_cta = static_cast<unsigned>(draw() % ctas.size());
  for (size_t i = 0; i < ctas.size(); ++i) {
    Cta &cta = ctas[(running_cta + i) % ctas.size()];
    if (!cta.ready.empty()) {
      running_cta = cta.rank;
      return &cta;
    }
  }
  return nullptr;
}

// The next fiber; null: all have ended.
static Fiber *pick() {
  for (;;) {
    Cta *cta = ready_cta();
    if (!events.empty() && (cta == nullptr || event_is_due())) {
      run_event();
      continue;
    }
    if (cta == nullptr) {
      if (preceding_kernel_was_awaited()) continue; // after all that does not need it
      if (live > 0) report_deadlock();
      return nullptr;
    }
    if (in_random_order()) std::swap(cta->ready.front(), cta->ready[draw() % cta->ready.size()]);
    Fiber *fiber = cta->ready.front();
    cta->ready.pop_front();
    return fiber;
  }
}

void wait_in(Channel &channel, Wait wait) {
  Fiber *self = current;
  self->wait = wait;
  channel.push_back(self);
  emulator_switch(&self->stack_pointer, self->cta->worker->stack_pointer);
}

void wake(Channel &channel) {
  for (Fiber *fiber : channel) fiber->cta->ready.push_back(fiber);
  channel.clear();
}

void yield() {
  if (in_random_order() && draw() % 4 == 0) {
    current->cta->ready.push_back(current);
    emulator_switch(&current->stack_pointer, current->cta->worker->stack_pointer);
  }
}

void post(Event event) {
  for (const Cta *cta : {event.a, event.b}) {
    EMULATOR_CHECK(cta == nullptr || cta->live > 0, "%s meets the shared memory of CTA %u, which has ended", event.what,
                   cta->rank);
  }
  events.push_back(std::move(event));
}

// ---- Fibers ----

static void end_cta(const Cta &cta) {
  for (const Event &event : events) {
    EMULATOR_CHECK(event.a != &cta && event.b != &cta, "the CTA ends before %s, which meets its shared memory",
                   event.what);
  }
  for (const unsigned char *p = cta.worker->dynamic_shared + launch.shared_bytes,
                           *end = cta.worker->dynamic_shared + kMaxShared;
       p < end; ++p) {
    EMULATOR_CHECK(*p == 0xff, "written %td bytes past the end of dynamic shared memory",
                   p - cta.worker->dynamic_shared - static_cast<ptrdiff_t>(launch.shared_bytes));
  }
}

static void fiber_main() {
  launch.call(launch.kernel, launch.arguments);
  Fiber *self = current;
  check_nothing_left();
  self->done = true;
  --live;
  if (--self->cta->live == 0) end_cta(*self->cta);
  thread_ends();
  emulator_switch(&self->stack_pointer, self->cta->worker->stack_pointer);
}

static void *new_stack(unsigned char *top) {
  void **sp = reinterpret_cast<void **>(top);
  *--sp = nullptr; // as if called from nowhere
  *--sp = reinterpret_cast<void *>(fiber_main);
  return sp - 6;
}

static int find_memory(dl_phdr_info *info, size_t, void *worker) {
  Worker *w = static_cast<Worker *>(worker);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type == PT_TLS) {
      const uintptr_t begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
      w->memory = reinterpret_cast<unsigned char *>(begin & ~uintptr_t{1023});
      w->bytes = begin + info->dlpi_phdr[i].p_memsz - reinterpret_cast<uintptr_t>(w->memory);
    }
  }
  return 1; // the program comes first, and only it matters
}

// A read or write beyond a buffer that ends at an unmapped page, or beyond a fiber's stack.
static void report_fault(int, siginfo_t *info, void *) {
  fail("access to %p, which is not mapped or read-only", info->si_addr);
}

static void catch_faults() {
  const stack_t alternative = {malloc(kStackBytes), 0, kStackBytes};
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = report_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}

static void *work(void *argument) {
  Worker *w = static_cast<Worker *>(argument);
  catch_faults();
  dl_iterate_phdr(find_memory, w);
  w->dynamic_shared = emulator_dynamic_shared;
  sem_post(&finished);
  for (;;) {
    sem_wait(&w->turn);
    for (;;) {
      Fiber *fiber = handed != nullptr ? handed : pick();
      handed = nullptr;
      if (fiber == nullptr) {
        sem_post(&finished);
        break;
      }
      if (fiber->cta->worker != w) {
        handed = fiber;
        sem_post(&fiber->cta->worker->turn);
        break;
      }
      current = fiber;
      threadIdx = dim3(fiber->index, 0, 0);
      blockIdx = fiber->cta->block;
      emulator_switch(&w->stack_pointer, fiber->stack_pointer);
    }
  }
  return nullptr;
}

static void start_workers() {
  sem_init(&finished, 0, 0);
  for (Worker &w : workers) {
    sem_init(&w.turn, 0, 0);
    w.stacks = static_cast<unsigned char *>(mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (w.stacks == MAP_FAILED) abort();
    for (size_t i = 0; i < kMaxThreads; ++i) mprotect(w.stacks + i * kStackBytes, 4096, PROT_NONE);
    if (pthread_create(&w.thread, nullptr, work, &w) != 0) abort();
    sem_wait(&finished);
    if (w.dynamic_shared - w.memory != workers[0].dynamic_shared - workers[0].memory) abort();
  }
}

// ---- Launches ----

static void start_cta(unsigned rank, dim3 block) {
  Cta &cta = ctas[rank];
  const unsigned threads = launch.block.x;
  cta.worker = &workers[rank];
  cta.rank = rank;
  cta.block = block;
  cta.live = threads;
  cta.memory = cta.worker->memory;
  memset(cta.memory, 0xff, cta.worker->bytes);
  cta.warps.resize(threads / kLanes);
  cta.warpgroups.resize((threads + kGroupThreads - 1) / kGroupThreads);
  cta.fibers.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber &f = cta.fibers[i];
    f.cta = &cta;
    f.index = i, f.lane = i % kLanes, f.warp = i / kLanes;
    f.stack_pointer = new_stack(cta.worker->stacks + (i + 1) * kStackBytes);
    cta.ready.push_back(&f);
  }
}

void run(const Launch &of) {
  if (workers[0].stacks == nullptr) start_workers();
  launch = of;
  blockDim = of.block;
  gridDim = of.grid;
  state = seed;
  const unsigned clusters_x = of.grid.x / of.cluster, clusters = clusters_x * of.grid.y;
  std::vector<unsigned> order(clusters);
  for (unsigned i = 0; i < clusters; ++i) order[i] = i;
  for (unsigned i = clusters; in_random_order() && i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
  for (const unsigned index : order) {
    cluster_index = index % clusters_x;
    ctas.clear();
    ctas.resize(of.cluster);
    forget_barriers();
    live = of.cluster * of.block.x;
    running_cta = 0;
    for (unsigned rank = 0; rank < of.cluster; ++rank) {
      start_cta(rank, dim3(cluster_index * of.cluster + rank, index / clusters_x, 0));
    }
    sem_post(&workers[0].turn);
    sem_wait(&finished);
  }
  current = nullptr;
}

void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fflush(stdout);
  fprintf(stderr, "emulator: %s, seed %d: %s, cluster %u", case_name, static_cast<int>(seed), launch.name,
          cluster_index);
  if (current != nullptr) fprintf(stderr, ", CTA %u, thread %u", current->cta->rank, current->index);
  fprintf(stderr, ": ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  _exit(1);
}

// ---- Shared memory ----

bool is_shared(const void *p, size_t bytes) {
  const Worker &w = *current->cta->worker;
  const uintptr_t at = reinterpret_cast<uintptr_t>(p), base = reinterpret_cast<uintptr_t>(w.memory);
  return at >= base && at + bytes <= base + w.bytes;
}

void check_shared(const char *what, const void *p, size_t bytes, size_t alignment) {
  EMULATOR_CHECK(is_shared(p, bytes), "%s: %p is not in the CTA's shared memory", what, p);
  EMULATOR_CHECK(shared_offset(p) % alignment == 0, "%s: shared + 0x%x is not at a multiple of %zu", what,
                 shared_offset(p), alignment);
}

unsigned shared_offset(const void *p) {
  return static_cast<unsigned>(static_cast<const unsigned char *>(p) - current->cta->memory);
}

Cta &cta_of_rank(unsigned rank) {
  EMULATOR_CHECK(rank < ctas.size(), "CTA %u of a cluster of %zu", rank, ctas.size());
  return ctas[rank];
}

std::string place_name(const Cta &cta, const void *p) {
  const ptrdiff_t at = static_cast<const unsigned char *>(p) - cta.worker->dynamic_shared;
  char text[64];
  snprintf(text, sizeof text, "%s 0x%tx", at >= 0 && at < kMaxShared ? "dynamic shared +" : "static shared at", at);
  return text;
}

} // namespace emulator

size_t __cvta_generic_to_shared(const void *p) {
  EMULATOR_CHECK(emulator::is_shared(p, 1), "__cvta_generic_to_shared: %p is not in the CTA's shared memory", p);
  return emulator::shared_offset(p);
}

size_t emulator::shared_window_bytes(const Cta &cta) { return cta.worker->bytes; }
