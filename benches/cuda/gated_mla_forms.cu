// Times every form of gated_mla that a shape can take, beside cuBLAS' plain product: what csrc/cuda/gated_mla.cu chooses by.
//   gated_mla_forms [N,K,M]...    all shapes if none is given; $CUBLAS: the library, else the loader looks for it
// One line a form: microseconds, over the time of the product, and how many outputs are not those of the first form.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cuda/common/gated_mla.cuh"
#include "gatemix.h"

namespace {

void ok(cudaError_t error, const char *what) {
  if (error != cudaSuccess) {
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
  }
}
#define OK(call) ok(call, #call)

// bf16 of a few levels around zero, times 2^exponent: sums differ in their last bits when the order does.
__global__ void fill(uint16_t *data, int64_t count, uint32_t seed, int exponent) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(i >> 32) * 40503u + seed;
    h ^= h >> 15, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
    const float v = (static_cast<float>(h & 0xffff) + static_cast<float>(h >> 16) - 65535.0f) * 0x1p-15f;
    data[i] = static_cast<uint16_t>(__float_as_uint(scalbnf(v, exponent)) >> 16);
  }
}

__global__ void count_differences(const uint16_t *a, const uint16_t *b, int64_t count,
                                  unsigned long long *differences) {
  unsigned long long own = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    own += a[i] != b[i];
  }
  if (own > 0) atomicAdd(differences, own);
}

// Copies of an operand, enough of them that none is in the L2 when its turn comes again.
struct Operand {
  uint16_t *data = nullptr;
  int64_t elements;

  Operand(int64_t elements, int copies, uint32_t seed, int exponent) : elements(elements) {
    OK(cudaMalloc(&data, static_cast<size_t>(elements) * copies * sizeof(uint16_t)));
    fill<<<1024, 256>>>(data, elements * copies, seed, exponent);
    OK(cudaGetLastError());
  }
  Operand(const Operand &) = delete;
  ~Operand() { cudaFree(data); }
  uint16_t *copy(int i) const { return data + i * elements; }
};

using Launch = std::function<bool(int copy)>;

class Timer {
public:
  Timer() {
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreate(&start_));
    OK(cudaEventCreate(&end_));
  }

  // Microseconds of one launch in a graph of many, the median of some replays; negative: refused.
  double time(const Launch &launch, int copies, double expected_us) {
    const int launches = std::clamp(static_cast<int>(2000 / expected_us), copies, 400);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    bool launched = true;
    for (int i = 0; i < launches; ++i) launched = launched && launch(i % copies);
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t replay;
    OK(cudaGraphInstantiate(&replay, graph, 0));
    std::vector<float> times;
    for (int i = 0; launched && i < 6; ++i) {
      float milliseconds;
      OK(cudaEventRecord(start_, stream));
      OK(cudaGraphLaunch(replay, stream));
      OK(cudaEventRecord(end_, stream));
      OK(cudaEventSynchronize(end_));
      OK(cudaEventElapsedTime(&milliseconds, start_, end_));
      if (i > 0) times.push_back(milliseconds);
    }
    OK(cudaGraphExecDestroy(replay));
    OK(cudaGraphDestroy(graph));
    if (!launched) return -1;
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3 / launches;
  }

  cudaStream_t stream;

private:
  cudaEvent_t start_, end_;
};

// The plain product, by the C functions of cuBLAS that have been the same since version 11.
class Cublas {
public:
  explicit Cublas(cudaStream_t stream) {
    const char *names[] = {getenv("CUBLAS"), "libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *library = nullptr;
    for (const char *name : names) {
      if (library == nullptr && name != nullptr) library = dlopen(name, RTLD_NOW);
    }
    if (library == nullptr) {
      printf("# cuBLAS: skipped, %s\n", dlerror());
      return;
    }
    const auto create = reinterpret_cast<int (*)(void **)>(dlsym(library, "cublasCreate_v2"));
    const auto set_stream = reinterpret_cast<int (*)(void *, cudaStream_t)>(dlsym(library, "cublasSetStream_v2"));
    const auto set_workspace =
        reinterpret_cast<int (*)(void *, void *, size_t)>(dlsym(library, "cublasSetWorkspace_v2"));
    gemm_ = reinterpret_cast<decltype(gemm_)>(dlsym(library, "cublasGemmEx"));
    void *workspace;
    constexpr size_t kWorkspace = 32 << 20; // what cuBLAS recommends for Hopper
    OK(cudaMalloc(&workspace, kWorkspace));
    if (create(&handle_) != 0 || set_stream(handle_, stream) != 0 ||
        set_workspace(handle_, workspace, kWorkspace) != 0) {
      fprintf(stderr, "cuBLAS does not start\n");
      exit(1);
    }
  }

  bool available() const { return handle_ != nullptr; }

  // out[m, n] = x[m, k] weight[n, k]^T
  bool multiply(const gm_gated_mla_problem &p) const {
    enum { kNoTranspose = 0, kTranspose = 1, kBf16 = 14, kCompute32F = 68, kDefaultAlgorithm = -1 };
    const float one = 1, zero = 0;
    const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
    return gemm_(handle_, kTranspose, kNoTranspose, n, m, k, &one, p.weight, kBf16, k, p.x, kBf16, k, &zero, p.out,
                 kBf16, n, kCompute32F, kDefaultAlgorithm) == 0;
  }

private:
  void *handle_ = nullptr;
  int (*gemm_)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
               const void *, void *, int, int, int, int) = nullptr;
};

struct Shape {
  int64_t n, k, m;
};

struct Form {
  std::string name;
  std::function<gm_status(const gm_exec *, const gm_gated_mla_problem *)> run;
};

std::vector<Form> forms(const Shape &s) {
  std::vector<Form> all = {{"chosen", gm_gated_mla_cuda}, {"sm80", gm_gated_mla_sm80}};
  const auto add = [&](std::string name, auto run, auto... parameters) {
    ((name += " " + std::to_string(parameters)), ...);
    all.push_back(
        {name, [=](const gm_exec *exec, const gm_gated_mla_problem *p) { return run(exec, p, parameters...); }});
  };
  for (int split = 1; split <= 8; split *= 2) {
    for (int tokens = 8; tokens <= 128 && s.m <= 1024; tokens *= 2) {
      if (tokens / 2 >= s.m || s.m > 8 * tokens) continue;
      for (int rows : {64, 128}) add("decode", gm_gated_mla_sm90_decode, rows, tokens, split);
    }
    for (int warps = 4; warps <= 16 && s.m <= 32; warps *= 2) {
      for (int tokens : {8, 16}) add("direct", gm_gated_mla_sm90_direct, tokens, warps, split);
    }
    if (s.m > 64) add("prefill", gm_gated_mla_sm90_prefill, 128, split);
  }
  if (s.m > 64) add("prefill", gm_gated_mla_sm90_prefill, 256, 1);
  return all;
}

void measure(const Shape &s, Timer &timer, const Cublas &cublas) {
  const int copies = static_cast<int>(std::clamp<int64_t>((300 << 20) / (s.n * s.k * 2) + 1, 2, 100));
  const Operand weight(s.n * s.k, copies, 1, -3), x(s.m * s.k, copies, 2, 0), attn(s.m * s.n, copies, 3, 0),
      out(s.m * s.n, copies, 4, 0), first(s.m * s.n, 1, 5, 0);
  unsigned long long *differences;
  OK(cudaMallocManaged(&differences, sizeof(*differences)));
  const auto problem = [&](int i) {
    gm_gated_mla_problem p = {};
    p.x = x.copy(i), p.weight = weight.copy(i), p.attn = attn.copy(i), p.out = out.copy(i);
    p.m = s.m, p.n = s.n, p.k = s.k;
    return p;
  };
  gm_exec exec = {};
  exec.struct_size = sizeof(exec);
  exec.backend = GM_BACKEND_CUDA;
  exec.stream = timer.stream;

  const double expected_us = 2e-12 * s.m * s.n * s.k / 0.6e3 * 1e6 + s.n * s.k * 2 / 4.2e6 + 2;
  double product = 0;
  if (cublas.available()) {
    product = timer.time([&](int i) { return cublas.multiply(problem(i)); }, copies, expected_us);
  }
  printf("n %lld k %lld m %lld: product %.2f us\n", (long long)s.n, (long long)s.k, (long long)s.m, product);
  bool is_first = true;
  for (const Form &form : forms(s)) {
    const auto launch = [&](int i) {
      const gm_gated_mla_problem p = problem(i);
      return form.run(&exec, &p) == GM_OK;
    };
    const double us = timer.time(launch, copies, expected_us);
    if (us < 0) {
      printf("  %-18s refused: %s\n", form.name.c_str(), gm_last_error());
      continue;
    }
    *differences = 0;
    if (is_first) OK(cudaMemcpy(first.data, out.data, static_cast<size_t>(s.m * s.n) * 2, cudaMemcpyDefault));
    count_differences<<<1024, 256>>>(out.data, first.data, s.m * s.n, differences);
    OK(cudaDeviceSynchronize());
    is_first = false;
    printf("  %-18s %9.2f  %5.3f  %llu\n", form.name.c_str(), us, product > 0 ? us / product : 0, *differences);
  }
  OK(cudaFree(differences));
  fflush(stdout);
}

} // namespace

int main(int count, char **arguments) {
  if (gm_backend_status(GM_BACKEND_CUDA, 0) != GM_OK) {
    fprintf(stderr, "%s\n", gm_last_error());
    return 1;
  }
  std::vector<Shape> shapes;
  for (int i = 1; i < count; ++i) {
    long long n, k, m;
    if (sscanf(arguments[i], "%lld,%lld,%lld", &n, &k, &m) != 3) {
      fprintf(stderr, "usage: %s [N,K,M]...\n", arguments[0]);
      return 2;
    }
    shapes.push_back({n, k, m});
  }
  if (shapes.empty()) {
    for (const auto &[n, k] :
         {std::pair{16384, 6144}, {8192, 6144}, {4096, 7168}, {2048, 6144}, {1024, 6144}, {512, 6144}, {256, 6144}}) {
      for (int m : {1, 16, 64, 128, 256, 1024, 4096, 16384}) {
        if (int64_t{m} * n <= int64_t{16384} * 16384 && (m <= 4096 || n == 16384)) shapes.push_back({n, k, m});
      }
    }
  }
  Timer timer;
  const Cublas cublas(timer.stream);
  for (const Shape &shape : shapes) measure(shape, timer, cublas);
}
