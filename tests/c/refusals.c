// Every rule of the header, broken one at a time: the status, a sentence with the name of the argument, outputs
// untouched, and the last kernel left alone.
#include <math.h>
#include <string.h>

#include "harness.h"

enum { GATED_MLA, RMS_NORM, HC_COLLAPSE, HC_HEAD, MHC_PRE_MIX, MHC_POST, OPERATORS };
enum { MAX_ARGUMENTS = 8 };

// What an argument may do.
enum {
  OUTPUT = 1,
  OPTIONAL = 2,
  STRIDED = 4,   // any strides
  ROWS = 8,      // rows may be apart
  ANY_RANK = 16, // 1 to 4
  LONGER = 32,   // the last dimension may be longer
  ANY_DTYPE = 64 // as long as all agree
};

typedef struct {
  const char *name;
  int flags;
  int may_be; // an output may be exactly this input
} argument;

static const argument arguments[OPERATORS][MAX_ARGUMENTS] = {
    {{"x", 0, -1}, {"weight", 0, -1}, {"attn", 0, -1}, {"out", OUTPUT, 2}},
    {{"x", ROWS | ANY_RANK | ANY_DTYPE, -1},
     {"weight", OPTIONAL | ANY_DTYPE, -1},
     {"out", OUTPUT | ANY_RANK | ANY_DTYPE, 0}},
    {{"residual", STRIDED, -1}, {"pre_mix", STRIDED, -1}, {"out", OUTPUT, -1}},
    {{"residual", 0, -1}, {"fn", 0, -1}, {"scale", 0, -1}, {"base", 0, -1}, {"out", OUTPUT, -1}},
    {{"gemm_out", STRIDED | LONGER, -1},
     {"sqrsum", STRIDED, -1},
     {"scale", LONGER, -1},
     {"base", LONGER, -1},
     {"out", OUTPUT, -1}},
    {{"residual", 0, -1},
     {"sublayer_out", 0, -1},
     {"post_mix", 0, -1},
     {"comb_mix", 0, -1},
     {"pre_mix", 0, -1},
     {"norm_weight", 0, -1},
     {"residual_out", OUTPUT, 0},
     {"layer_input", OUTPUT, -1}},
};

typedef struct {
  int op, count;
  gm_exec exec;
  const gm_exec *exec_pointer;
  gm_tensor tensors[MAX_ARGUMENTS];
  const gm_tensor *pointers[MAX_ARGUMENTS];
  float eps[2];
  int64_t hc_hidden;
  int32_t mode;
} call;

static gm_status invoke(const call *c) {
  const gm_tensor *const *p = c->pointers;
  switch (c->op) {
  case GATED_MLA: return gm_gated_mla(c->exec_pointer, p[0], p[1], p[2], p[3]);
  case RMS_NORM: return gm_rms_norm(c->exec_pointer, p[0], p[1], c->eps[0], p[2]);
  case HC_COLLAPSE: return gm_hc_collapse(c->exec_pointer, p[0], p[1], p[2]);
  case HC_HEAD: return gm_hc_head(c->exec_pointer, p[0], p[1], p[2], p[3], c->eps[0], c->eps[1], c->mode, p[4]);
  case MHC_PRE_MIX:
    return gm_mhc_pre_mix(c->exec_pointer, p[0], p[1], p[2], p[3], c->hc_hidden, c->eps[0], c->eps[1], p[4]);
  default:
    return gm_mhc_post_collapse_rms_norm(c->exec_pointer, p[0], p[1], p[2], p[3], p[4], p[5], c->eps[0], p[6], p[7]);
  }
}

static size_t bytes_of(const gm_tensor *t) { return (size_t)element_count(t) * element_size(t->dtype); }

// A call that works, then one thing of it is broken.
static void setup(call *c, int op) {
  memset(c, 0, sizeof *c);
  c->op = op;
  c->exec = cpu(0);
  c->exec_pointer = &c->exec;
  c->eps[0] = c->eps[1] = 1e-6f;
  c->hc_hidden = 28;
  gm_tensor *t = c->tensors;
  switch (op) {
  case GATED_MLA: t[0] = BF16(NULL, 3, 5), t[1] = BF16(NULL, 256, 5), t[2] = t[3] = BF16(NULL, 3, 256); break;
  case RMS_NORM: t[0] = t[2] = BF16(NULL, 3, 7), t[1] = BF16(NULL, 7); break;
  case HC_COLLAPSE: t[0] = BF16(NULL, 3, 4, 7), t[1] = F32(NULL, 3, 4), t[2] = BF16(NULL, 3, 7); break;
  case HC_HEAD:
    t[0] = BF16(NULL, 3, 4, 7), t[1] = F32(NULL, 4, 28), t[2] = F32(NULL, 1), t[3] = F32(NULL, 4);
    t[4] = BF16(NULL, 3, 7);
    break;
  case MHC_PRE_MIX:
    t[0] = F32(NULL, 2, 3, 4), t[1] = F32(NULL, 2, 3), t[2] = F32(NULL, 1), t[3] = F32(NULL, 4);
    t[4] = F32(NULL, 3, 4);
    break;
  default:
    t[0] = t[6] = BF16(NULL, 3, 4, 7), t[1] = t[7] = BF16(NULL, 3, 7), t[2] = t[4] = F32(NULL, 3, 4);
    t[3] = F32(NULL, 3, 4, 4), t[5] = BF16(NULL, 7);
  }
  while (c->count < MAX_ARGUMENTS && t[c->count].rank) ++c->count;
  for (int i = 0; i < c->count; ++i) {
    t[i].data = exact(bytes_of(&t[i]), 0);
    c->pointers[i] = &t[i];
    if (!(arguments[op][i].flags & OUTPUT))
      for (int64_t e = 0; e < element_count(&t[i]); ++e) write_element(t[i].dtype, t[i].data, e, 1);
  }
}

// status 0: any error will do. word: what the sentence must say.
static void refuse(const call *c, gm_status status, const char *word, int line, const char *what, int detail) {
  const char *kernel = gm_last_kernel();
  const gm_status got = invoke(c);
  const char *sentence = gm_last_error();
  check_at(status ? got == status : got > 0, __FILE__, line, "op %d, %s (%d): %s instead of %s: %s", c->op, what,
           detail, gm_status_string(got), gm_status_string(status), sentence);
  check_at(strlen(sentence) > 15 && strchr(sentence, ' ') && strstr(sentence, word), __FILE__, line,
           "op %d, %s (%d): no \"%s\" in \"%s\"", c->op, what, detail, word, sentence);
  check_at(strcmp(gm_last_kernel(), kernel) == 0, __FILE__, line, "op %d, %s: kernel %s", c->op, what,
           gm_last_kernel());
}

// Where the outputs were before anything was broken.
typedef struct {
  const void *data[2];
  size_t bytes[2];
} outputs;

static outputs outputs_of(const call *c) {
  outputs o = {{NULL, NULL}, {0, 0}};
  int n = 0;
  for (int i = 0; i < c->count; ++i)
    if (arguments[c->op][i].flags & OUTPUT) {
      o.data[n] = c->tensors[i].data;
      o.bytes[n++] = bytes_of(&c->tensors[i]);
    }
  return o;
}

static void check_untouched(const outputs *o, int line) {
  for (int i = 0; i < 2; ++i) check_at(untouched(o->data[i], o->bytes[i]), __FILE__, line, "output %d was written", i);
}

#define EACH_ARGUMENT(i)                 \
  for (int op = 0; op < OPERATORS; ++op) \
    for (int i = 0; i < MAX_ARGUMENTS && arguments[op][i].name; ++i)

// Runs `change` on a fresh call `c` with tensor `t` = argument i, then expects a refusal.
#define BREAK(change, status, detail)                                              \
  do {                                                                             \
    call c;                                                                        \
    setup(&c, op);                                                                 \
    const outputs o = outputs_of(&c);                                              \
    gm_tensor *t = &c.tensors[i];                                                  \
    (void)t;                                                                       \
    change;                                                                        \
    refuse(&c, (status), arguments[op][i].name, __LINE__, #change, (int)(detail)); \
    check_untouched(&o, __LINE__);                                                 \
  } while (0)

static void good_calls(void) {
  for (int op = 0; op < OPERATORS; ++op) {
    call c;
    setup(&c, op);
    CHECK_OK(invoke(&c));
    const outputs o = outputs_of(&c);
    CHECK(!untouched(o.data[0], o.bytes[0]));
  }
}

static void null_pointers(void) {
  EACH_ARGUMENT(i) {
    if (!(arguments[op][i].flags & OPTIONAL)) BREAK(c.pointers[i] = NULL, GM_ERROR_NULL_POINTER, i);
    BREAK(t->data = NULL, GM_ERROR_NULL_POINTER, i);
  }
}

static void dtypes(void) {
  const int32_t wrong[] = {0, -1, 4, INT32_MAX, GM_BF16, GM_F16, GM_F32};
  EACH_ARGUMENT(i)
  for (size_t w = 0; w < sizeof wrong / sizeof *wrong; ++w) {
    call probe;
    setup(&probe, op);
    if (probe.tensors[i].dtype == wrong[w]) continue;
    // Still aligned when the type is wider: only one rule is broken.
    BREAK(t->dtype = wrong[w]; t->data = (char *)t->data - (uintptr_t)t->data % 4, GM_ERROR_DTYPE, wrong[w]);
  }
}

static void ranks(void) {
  const int32_t wrong[] = {-1, 0, 5, INT32_MAX, INT32_MIN};
  EACH_ARGUMENT(i) {
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; ++w) BREAK(t->rank = wrong[w], GM_ERROR_RANK, wrong[w]);
    if (arguments[op][i].flags & ANY_RANK) continue;
    BREAK(t->rank = 4; t->shape[3] = 1; make_contiguous(t), GM_ERROR_RANK, 4);
    call probe;
    setup(&probe, op);
    if (probe.tensors[i].rank > 1) BREAK(t->rank -= 1; make_contiguous(t), GM_ERROR_RANK, -1);
  }
}

static void shapes(void) {
  EACH_ARGUMENT(i) {
    call probe;
    setup(&probe, op);
    for (int32_t d = 0; d < probe.tensors[i].rank; ++d) {
      const bool longer = (arguments[op][i].flags & LONGER) && d == probe.tensors[i].rank - 1;
      const int64_t size = probe.tensors[i].shape[d];
      const int64_t wrong[] = {-1, INT64_MIN, size - 1, size + 1, INT64_MAX, INT64_C(1) << 62};
      for (size_t w = 0; w < sizeof wrong / sizeof *wrong; ++w) {
        if (longer && w >= 3) continue;
        BREAK(t->shape[d] = wrong[w]; make_contiguous(t), GM_ERROR_SHAPE, wrong[w]);
      }
    }
  }
}

// All arguments agree on a size that is not allowed.
static void sizes(void) {
#define BREAK_ALL(name, change)                               \
  do {                                                        \
    call c;                                                   \
    setup(&c, op);                                            \
    const outputs o = outputs_of(&c);                         \
    gm_tensor *t = c.tensors;                                 \
    change;                                                   \
    for (int a = 0; a < c.count; ++a) make_contiguous(&t[a]); \
    refuse(&c, GM_ERROR_SHAPE, name, __LINE__, #change, 0);   \
    check_untouched(&o, __LINE__);                            \
  } while (0)
  int op = GATED_MLA;
  const int64_t widths[] = {1, 100, 128, 255, 257};
  for (size_t w = 0; w < sizeof widths / sizeof *widths; ++w)
    BREAK_ALL("weight", t[1].shape[0] = t[2].shape[1] = t[3].shape[1] = widths[w]);
  BREAK_ALL("x", t[0].shape[1] = t[1].shape[1] = 0); // k >= 1
  op = RMS_NORM;
  BREAK_ALL("x", t[0].shape[1] = t[1].shape[0] = t[2].shape[1] = 0);
  const int64_t streams[] = {0, 3, 5, 6, 7, 9, 16};
  for (size_t w = 0; w < sizeof streams / sizeof *streams; ++w) {
    const int64_t n = streams[w];
    op = HC_COLLAPSE;
    BREAK_ALL("residual", t[0].shape[1] = t[1].shape[1] = n);
    op = HC_HEAD;
    BREAK_ALL("residual", t[0].shape[1] = t[1].shape[0] = t[3].shape[0] = n; t[1].shape[1] = 7 * n);
    op = MHC_PRE_MIX;
    BREAK_ALL("out", t[0].shape[2] = t[3].shape[0] = t[4].shape[1] = n);
    op = MHC_POST;
    BREAK_ALL("residual", t[0].shape[1] = t[6].shape[1] = t[2].shape[1] = t[4].shape[1] = n;
              t[3].shape[1] = t[3].shape[2] = n);
  }
  op = HC_COLLAPSE;
  BREAK_ALL("residual", t[0].shape[2] = t[2].shape[1] = 0);
  op = HC_HEAD;
  BREAK_ALL("residual", t[0].shape[2] = t[1].shape[1] = t[4].shape[1] = 0);
  op = MHC_PRE_MIX;
  BREAK_ALL("gemm_out", t[0].shape[0] = t[1].shape[0] = 0); // S >= 1
  op = MHC_POST;
  BREAK_ALL("residual", t[0].shape[2] = t[6].shape[2] = t[1].shape[1] = t[7].shape[1] = t[5].shape[0] = 0);
#undef BREAK_ALL
}

static void strides(void) {
  EACH_ARGUMENT(i) {
    call probe;
    setup(&probe, op);
    const gm_tensor *like = &probe.tensors[i];
    const int flags = arguments[op][i].flags;
    for (int32_t d = 0; d < like->rank; ++d) {
      if (like->shape[d] == 1) continue;
      const bool last = d == like->rank - 1;
      const int64_t stride = like->stride[d];
      const int64_t wrong[] = {0, -stride, stride - 1, stride + 1, 2 * stride, INT64_MAX, INT64_MIN};
      for (size_t w = 0; w < sizeof wrong / sizeof *wrong; ++w) {
        if (w >= 5) {
          BREAK(t->stride[d] = wrong[w], 0, w); // no memory is that large: GM_ERROR_STRIDE or GM_ERROR_SHAPE
        } else if (flags & STRIDED) {
          continue;
        } else if (!((flags & ROWS) && !last && wrong[w] >= stride)) {
          BREAK(t->stride[d] = wrong[w], GM_ERROR_STRIDE, wrong[w]);
        }
      }
    }
  }
}

static void alignment(void) {
  EACH_ARGUMENT(i) {
    BREAK(t->data = (char *)t->data + 1, GM_ERROR_ALIGNMENT, 1);
    call probe;
    setup(&probe, op);
    if (probe.tensors[i].dtype == GM_F32) BREAK(t->data = (char *)t->data + 2, GM_ERROR_ALIGNMENT, 2);
  }
}

// An output on an argument: at its start, one element in, and with only the last or first element shared.
static void overlap(void) {
  EACH_ARGUMENT(i) {
    if (!(arguments[op][i].flags & OUTPUT)) continue;
    call probe;
    setup(&probe, op);
    for (int a = 0; a < probe.count; ++a) {
      if (a == i) continue;
      const gm_tensor *other = &probe.tensors[a];
      const size_t unit = element_size(other->dtype);
      char *start = other->data;
      char *const places[] = {start, start + unit, start + bytes_of(other) - unit,
                              start + unit - bytes_of(&probe.tensors[i])};
      for (int place = 0; place < 4; ++place) {
        if (place == 0 && arguments[op][i].may_be == a) continue;
        if (place == 1 && other->shape[0] == 1 && other->rank == 1) continue; // just past its end
        call c = probe;
        for (int q = 0; q < c.count; ++q) c.pointers[q] = &c.tensors[q];
        c.exec_pointer = &c.exec;
        c.tensors[i].data = places[place];
        refuse(&c, GM_ERROR_OVERLAP, arguments[op][i].name, __LINE__, arguments[op][a].name, place);
      }
    }
    const outputs o = outputs_of(&probe);
    check_untouched(&o, __LINE__);
  }
}

static void scalars(void) {
  const float wrong[] = {-1, -0x1p-149f, NAN, -NAN, INFINITY, -INFINITY};
  const struct {
    int op, index;
    const char *name;
  } epsilons[] = {{RMS_NORM, 0, "eps"},        {HC_HEAD, 0, "rms_eps"},        {HC_HEAD, 1, "hc_eps"},
                  {MHC_PRE_MIX, 0, "rms_eps"}, {MHC_PRE_MIX, 1, "hc_pre_eps"}, {MHC_POST, 0, "norm_eps"}};
  call c;
  for (size_t e = 0; e < sizeof epsilons / sizeof *epsilons; ++e) {
    setup(&c, epsilons[e].op);
    const outputs o = outputs_of(&c);
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; ++w) {
      c.eps[epsilons[e].index] = wrong[w];
      refuse(&c, GM_ERROR_INVALID_VALUE, epsilons[e].name, __LINE__, epsilons[e].name, (int)w);
    }
    check_untouched(&o, __LINE__);
    c.eps[epsilons[e].index] = -0.0f;
    CHECK_OK(invoke(&c));
  }
  const int32_t modes[] = {-1, 2, INT32_MAX};
  setup(&c, HC_HEAD);
  for (size_t w = 0; w < 3; ++w) {
    c.mode = modes[w];
    refuse(&c, GM_ERROR_INVALID_VALUE, "mode", __LINE__, "mode", c.mode);
  }
  const int64_t hidden[] = {0, -1, INT64_MIN};
  setup(&c, MHC_PRE_MIX);
  for (size_t w = 0; w < 3; ++w) {
    c.hc_hidden = hidden[w];
    refuse(&c, GM_ERROR_INVALID_VALUE, "hc_hidden", __LINE__, "hc_hidden", (int)c.hc_hidden);
  }
}

static void never_run(void *ctx, size_t tasks, void (*task)(void *arg, size_t i), void *arg) {
  (void)ctx, (void)tasks, (void)task, (void)arg;
  check_at(false, __FILE__, __LINE__, "run() of a call that should be refused");
}

static void exec_fields(void) {
  for (int op = 0; op < OPERATORS; ++op) {
    call c;
#define BREAK_EXEC(change, status, word)                \
  do {                                                  \
    setup(&c, op);                                      \
    const outputs o = outputs_of(&c);                   \
    change;                                             \
    refuse(&c, (status), (word), __LINE__, #change, 0); \
    check_untouched(&o, __LINE__);                      \
  } while (0)
    BREAK_EXEC(c.exec_pointer = NULL, GM_ERROR_NULL_POINTER, "exec");
    BREAK_EXEC(c.exec.struct_size = 0, GM_ERROR_INVALID_VALUE, "struct_size");
    BREAK_EXEC(c.exec.struct_size = 8, GM_ERROR_INVALID_VALUE, "struct_size");
    BREAK_EXEC(c.exec.struct_size = 1025, GM_ERROR_INVALID_VALUE, "exec.struct_size = 1025 ");
    BREAK_EXEC(c.exec.struct_size = 0x1000, GM_ERROR_INVALID_VALUE, "exec.struct_size = 4096 ");
    BREAK_EXEC(c.exec.struct_size = SIZE_MAX, GM_ERROR_INVALID_VALUE, "exec.struct_size = 18446744073709551615 ");
    BREAK_EXEC(c.exec.backend = 0, GM_ERROR_INVALID_VALUE, "backend");
    BREAK_EXEC(c.exec.backend = 3, GM_ERROR_INVALID_VALUE, "3");
    BREAK_EXEC(c.exec.backend = -1, GM_ERROR_INVALID_VALUE, "-1");
    BREAK_EXEC(c.exec.backend = GM_BACKEND_CUDA, GM_ERROR_BACKEND, "CUDA");
    BREAK_EXEC(c.exec.flags = 16, GM_ERROR_INVALID_VALUE, "flags");
    BREAK_EXEC(c.exec.flags = 0x80000001u, GM_ERROR_INVALID_VALUE, "flags");
    gm_parallel parallel = {NULL, 0, never_run};
    BREAK_EXEC(c.exec.parallel = &parallel, GM_ERROR_INVALID_VALUE, "width");
    parallel.width = -1;
    BREAK_EXEC(c.exec.parallel = &parallel, GM_ERROR_INVALID_VALUE, "width");
    parallel.width = 2;
    parallel.run = NULL;
    BREAK_EXEC(c.exec.parallel = &parallel, GM_ERROR_NULL_POINTER, "run");
#undef BREAK_EXEC
  }
}

void test_refusals(void) {
  run_case("refusals", "good_calls", good_calls);
  run_case("refusals", "null_pointers", null_pointers);
  run_case("refusals", "dtypes", dtypes);
  run_case("refusals", "ranks", ranks);
  run_case("refusals", "shapes", shapes);
  run_case("refusals", "sizes", sizes);
  run_case("refusals", "strides", strides);
  run_case("refusals", "alignment", alignment);
  run_case("refusals", "overlap", overlap);
  run_case("refusals", "scalars", scalars);
  run_case("refusals", "exec_fields", exec_fields);
}
