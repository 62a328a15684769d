// The forms of gated_mla on an emulated device, against float64.
#include "cuda/common/gated_mla.cuh"

#include <math.h>
#include <stdio.h>

#include <memory>
#include <string>
#include <vector>

#include "buffer.h"

using emulator::Buffer;

namespace {

struct Shape {
  int64_t m, n, k;
};

// kind 'd': rows, tokens, split; 'r': tokens, warps, split; 'p': columns, segments; 's': sm80; 'c': the chosen one.
struct Form {
  char kind;
  int a, b, split;

  std::string name() const {
    const auto text = [](int v) { return std::to_string(v); };
    switch (kind) {
    case 'd': return "decode rows " + text(a) + " tokens " + text(b) + " split " + text(split);
    case 'r': return "direct tokens " + text(a) + " warps " + text(b) + " split " + text(split);
    case 'p': return "prefill columns " + text(a) + " segments " + text(split);
    case 's': return "sm80";
    default: return "chosen";
    }
  }
  bool fits(const Shape &s) const {
    const int64_t chunks = (s.k + 63) / 64;
    switch (kind) {
    case 'd': return s.k % 8 == 0 && split <= chunks;
    case 'r': return s.k % 8 == 0;
    case 'p': return s.k % 8 == 0 && split <= chunks;
    default: return true;
    }
  }
  gm_status run(const gm_exec *exec, const gm_gated_mla_problem *p) const {
    switch (kind) {
    case 'd': return gm_gated_mla_sm90_decode(exec, p, a, b, split);
    case 'r': return gm_gated_mla_sm90_direct(exec, p, a, b, split);
    case 'p': return gm_gated_mla_sm90_prefill(exec, p, a, split);
    case 's': return gm_gated_mla_sm80(exec, p);
    default: return gm_gated_mla_cuda(exec, p);
    }
  }
};

float from_bf16(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
uint16_t to_bf16(float v) { return static_cast<uint16_t>(emulator::pack_bf16x2(v, 0.0f)); }

// Between -1 and 1.
float random_number(uint64_t &state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
}

struct Inputs {
  Shape s;
  std::vector<uint16_t> x, weight, attn;
  std::vector<double> exact, slack;

  explicit Inputs(const Shape &shape)
      : s(shape), x(static_cast<size_t>(s.m * s.k)), weight(static_cast<size_t>(s.n * s.k)),
        attn(static_cast<size_t>(s.m * s.n)), exact(attn.size()), slack(attn.size()) {
    uint64_t state = static_cast<uint64_t>(s.m * 1000003 + s.n * 1009 + s.k);
    for (uint16_t &v : weight) v = to_bf16(random_number(state));
    for (uint16_t &v : attn) v = to_bf16(4 * random_number(state));
    for (size_t i = 0; i < x.size(); ++i) {
      // Logits of a few units in most rows; of hundreds in every fifth.
      const float row_scale = i / static_cast<size_t>(s.k) % 5 == 4 ? 300.0f : 6.0f;
      x[i] = to_bf16(row_scale / sqrtf(static_cast<float>(s.k)) * random_number(state));
    }
    const auto set = [&](int64_t row, int64_t column, uint16_t bits) {
      if (row >= 0 && row < s.m) x[static_cast<size_t>(row * s.k + column)] = bits;
    };
    set(s.m / 2 == 0 ? -1 : s.m / 2, s.k - 1, 0x7fc0); // a row of NaN
    set(s.m - 2, 0, 0x7f80);                           // logits of both infinities
    compute();
  }

  void compute() {
    std::vector<float> xf(x.size()), wf(weight.size());
    for (size_t i = 0; i < x.size(); ++i) xf[i] = from_bf16(x[i]);
    for (size_t i = 0; i < weight.size(); ++i) wf[i] = from_bf16(weight[i]);
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        double z = 0, sum = 0;
        for (int64_t c = 0; c < s.k; ++c) {
          const double product = static_cast<double>(xf[static_cast<size_t>(i * s.k + c)]) *
                                 static_cast<double>(wf[static_cast<size_t>(j * s.k + c)]);
          z += product;
          sum += fabs(product);
        }
        const size_t at = static_cast<size_t>(i * s.n + j);
        const double a = static_cast<double>(from_bf16(attn[at]));
        exact[at] = a / (1 + exp(-z));
        // What the sum in fp32 may lose, times the steepest slope of the sigmoid.
        slack[at] = fabs(a) * 0.25 * static_cast<double>(s.k) * 0x1p-24 * sum;
      }
    }
  }
};

double ulp(double v) {
  const int exponent = v == 0 ? -126 : ilogb(v);
  return ldexp(1.0, (exponent < -126 ? -126 : exponent) - 7);
}

int failures;

// The largest error in ulps, and counts what is wrong.
double compare(const Inputs &in, const uint16_t *out, const std::string &what) {
  double largest = 0;
  int bad = 0;
  for (size_t i = 0; i < in.exact.size(); ++i) {
    const double got = static_cast<double>(from_bf16(out[i])), want = in.exact[i];
    if (isnan(want) ? isnan(got) : got == want) continue;
    const double error = fabs(got - want), one = ulp(want);
    if (!(error <= one + in.slack[i]) && bad++ < 3) {
      printf("%s: out[%zu, %zu] is %.9g instead of %.9g\n", what.c_str(), i / static_cast<size_t>(in.s.n),
             i % static_cast<size_t>(in.s.n), got, want);
    }
    if (isfinite(want) && error / one > largest) largest = error / one;
  }
  if (bad > 0) printf("%s: %d of %zu elements are wrong\n", what.c_str(), bad, in.exact.size()), ++failures;
  return largest;
}

// One launch. Even seeds: in place, and as a programmatic dependent launch, whose inputs come late.
bool launch(const Inputs &in, const Form &form, int device, uint32_t flags, uint64_t seed,
            std::vector<uint16_t> &result, const std::string &what) {
  Buffer<uint16_t> x(in.x.size()), weight(in.weight.size()), attn(in.attn.size()), out(in.attn.size());
  const bool late = seed % 2 == 0;
  weight.write_only_by_us(in.weight.data());
  emulator::preceding_kernel_ends = [&] {
    x.write_only_by_us(in.x.data());
    late ? (void)memcpy(attn.data(), in.attn.data(), in.attn.size() * 2) : attn.write_only_by_us(in.attn.data());
  };
  gm_exec exec = {};
  exec.struct_size = sizeof exec;
  exec.backend = GM_BACKEND_CUDA;
  exec.device = device;
  exec.flags = flags | (late ? uint32_t{GM_PDL} : 0u);
  Buffer<uint16_t> &to = late ? attn : out;
  const gm_gated_mla_problem p = {x.data(), weight.data(), attn.data(), to.data(), in.s.m, in.s.n, in.s.k};
  emulator::set_schedule(seed);
  const gm_status status = form.run(&exec, &p);
  emulator::preceding_kernel_ends = nullptr;
  if (status != GM_OK) return printf("%s: %s\n", what.c_str(), gm_last_error()), false;
  if (!to.intact()) printf("%s: written before the first element of out\n", what.c_str()), ++failures;
  result.assign(to.data(), to.data() + to.size());
  return true;
}

int launches;
double largest_error;

void check(const Inputs &in, const Form &form, int device, uint64_t seeds) {
  const std::string what =
      form.name() + ", m " + std::to_string(in.s.m) + " n " + std::to_string(in.s.n) + " k " + std::to_string(in.s.k);
  std::vector<uint16_t> first, other;
  emulator::set_case(what.c_str());
  if (!launch(in, form, device, 0, 0, first, what)) {
    ++failures;
    return;
  }
  const double error = compare(in, first.data(), what);
  if (error > largest_error) largest_error = error;
  for (uint64_t seed = 1; seed < seeds; ++seed) {
    launch(in, form, device, 0, seed, other, what);
    if (other != first) printf("%s: seed %d gives other bits\n", what.c_str(), static_cast<int>(seed)), ++failures;
  }
  launches += static_cast<int>(seeds);
  printf("%s: largest error %.3f ulp\n", what.c_str(), error);
}

// With GM_BATCH_INVARIANT: `few` rows alone, and rows beside others than before, have the bits that they have among all.
void check_invariance(const Shape &s, int64_t few) {
  Inputs all(s);
  uint64_t state = 1;
  for (uint16_t &v : all.x) v = to_bf16(2 * random_number(state)); // logits that allow for any formula
  Inputs alone = all, beside = all;
  alone.s.m = few;
  alone.x.resize(static_cast<size_t>(few * s.k));
  alone.attn.resize(static_cast<size_t>(few * s.n));
  const auto changed = [](int64_t row) { return row % 16 == 4; };
  for (int64_t row = 0; row < s.m; ++row) {
    if (changed(row)) beside.x[static_cast<size_t>(row * s.k)] = to_bf16(1000);
  }
  std::vector<uint16_t> want, got;
  for (const Inputs *in : {&all, &alone, &beside}) {
    const std::string what = "batch-invariant, m " + std::to_string(in->s.m) + " of " + std::to_string(s.m) + " n " +
                             std::to_string(s.n) + " k " + std::to_string(s.k);
    emulator::set_case(what.c_str());
    ++launches;
    if (!launch(*in, {'c', 0, 0, 0}, 0, GM_BATCH_INVARIANT, 2, got, what)) {
      ++failures;
      continue;
    }
    if (in == &all) want = got;
    int bad = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      bad += got[i] != want[i] && !(in == &beside && changed(static_cast<int64_t>(i) / s.n));
    }
    printf("%s: %s, %d elements differ\n", what.c_str(), gm_last_kernel(), bad);
    failures += bad != 0;
  }
}

std::vector<Form> forms_of(const std::string &kind) {
  std::vector<Form> forms;
  for (int split = 1; split <= 8; split *= 2) {
    for (int tokens = 8; tokens <= 128 && (kind == "all" || kind == "decode"); tokens *= 2) {
      for (const int rows : {64, 128}) forms.push_back({'d', rows, tokens, split});
    }
    for (int warps = 4; warps <= 16 && (kind == "all" || kind == "direct"); warps += 3) {
      for (const int tokens : {8, 16}) forms.push_back({'r', tokens, warps, split});
    }
    if (kind == "all" || kind == "prefill") forms.push_back({'p', 128, 0, split});
  }
  if (kind == "all" || kind == "prefill") forms.push_back({'p', 256, 0, 1});
  if (kind == "all" || kind == "sm80") forms.push_back({'s', 0, 0, 0});
  if (kind == "all" || kind == "chosen") forms.push_back({'c', 0, 0, 0});
  return forms;
}

std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (const int64_t m : {1, 3, 8, 17, 64, 100, 129, 300}) {
    for (const int64_t k : {8, 64, 72, 136, 320, 1024}) {
      for (const int64_t n : {256, 512}) shapes.push_back({m, n, k});
    }
  }
  for (const int64_t k : {1, 7, 33, 100}) shapes.push_back({17, 256, k}); // not for all forms
  return shapes;
}

} // namespace

// emulated_gated_mla [all|decode|direct|prefill|sm80|chosen [SEEDS [STRIDE [M N K]]]]: each form with every STRIDE-th shape, or with the
// given one, each under seeds 0 .. SEEDS - 1.
int main(int argc, char **argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto number = [&](int i, int otherwise) { return argc > i ? atoi(argv[i]) : otherwise; };
  const std::vector<Form> forms = forms_of(argc > 1 ? argv[1] : "all");
  const uint64_t seeds = static_cast<uint64_t>(number(2, 4));
  const size_t stride = static_cast<size_t>(number(3, 16));
  const std::vector<Shape> shapes =
      argc > 6 ? std::vector<Shape>{{atoi(argv[4]), atoi(argv[5]), atoi(argv[6])}} : all_shapes();
  for (int device = 0; device < 2; ++device) {
    if (gm_cuda_status(device) != GM_OK) return printf("%s\n", gm_last_error()), 1;
  }
  if (argc <= 6 && (argc < 2 || std::string(argv[1]) == "all" || std::string(argv[1]) == "chosen")) {
    // Decode and prefill; the same with k in two parts; prefill with tiles of 256 columns.
    check_invariance({256, 2560, 8}, 128);
    check_invariance({256, 2560, 320}, 17);
    check_invariance({1536, 2560, 8}, 300);
  }
  // Shape by shape, as the exact result takes long.
  for (size_t i = 0; i < shapes.size(); ++i) {
    std::unique_ptr<Inputs> in;
    for (size_t f = 0; f < forms.size(); ++f) {
      if (!forms[f].fits(shapes[i]) || (argc <= 6 && (i + 7 * f) % stride != 0)) continue;
      if (!in) in = std::make_unique<Inputs>(shapes[i]);
      check(*in, forms[f], static_cast<int>((i + f) % 2), seeds);
    }
  }
  printf("%d launches, %d failures, largest error %.3f ulp\n", launches, failures, largest_error);
  return failures != 0 || launches == 0;
}
