// Version, build info, status names, the thread-local error and kernel, backends.
#include <pthread.h>
#include <string.h>

#include "harness.h"

static void versions(void) {
  CHECK(gm_abi_version() == GM_ABI_VERSION);
  CHECK(strcmp(gm_version(), GM_VERSION) == 0);
}

static void build_info(void) {
  const char *info = gm_build_info();
  CHECK(info != NULL);
  CHECK(strstr(info, GM_VERSION) != NULL);
  CHECK(strchr(info, '\n') == NULL);
  char first[1024];
  CHECK(strlen(info) < sizeof first);
  strncpy(first, info, sizeof first - 1);
  first[sizeof first - 1] = 0;
  CHECK(strcmp(gm_build_info(), first) == 0);
}

static void status_names(void) {
  static const struct {
    gm_status status;
    const char *name;
  } names[] = {
      {GM_OK, "GM_OK"},
      {GM_ERROR_NULL_POINTER, "GM_ERROR_NULL_POINTER"},
      {GM_ERROR_INVALID_VALUE, "GM_ERROR_INVALID_VALUE"},
      {GM_ERROR_DTYPE, "GM_ERROR_DTYPE"},
      {GM_ERROR_RANK, "GM_ERROR_RANK"},
      {GM_ERROR_SHAPE, "GM_ERROR_SHAPE"},
      {GM_ERROR_STRIDE, "GM_ERROR_STRIDE"},
      {GM_ERROR_ALIGNMENT, "GM_ERROR_ALIGNMENT"},
      {GM_ERROR_OVERLAP, "GM_ERROR_OVERLAP"},
      {GM_ERROR_BACKEND, "GM_ERROR_BACKEND"},
      {GM_ERROR_CUDA, "GM_ERROR_CUDA"},
      {GM_ERROR_CUDA_PENDING, "GM_ERROR_CUDA_PENDING"},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    CHECK(strcmp(gm_status_string(names[i].status), names[i].name) == 0);
  const gm_status unknown[] = {-1, 1000, INT32_MIN, INT32_MAX};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; ++i) {
    const char *name = gm_status_string(unknown[i]);
    CHECK(name != NULL && *name != 0);
  }
}

static void backends(void) {
  CHECK_OK(gm_backend_status(GM_BACKEND_CPU, 0));
  CHECK_OK(gm_backend_status(GM_BACKEND_CPU, -7));
  const int32_t none[] = {0, 3, -1, INT32_MAX};
  for (size_t i = 0; i < sizeof none / sizeof *none; ++i)
    CHECK_STATUS(gm_backend_status(none[i], 0), GM_ERROR_INVALID_VALUE);
  const bool built = strstr(gm_build_info(), "cuda: absent") == NULL;
  const int32_t devices[] = {0, -1, 4096};
  for (size_t i = 0; i < sizeof devices / sizeof *devices; ++i) {
    const gm_status status = gm_backend_status(GM_BACKEND_CUDA, devices[i]);
    if (status == GM_OK) { // only where there is a device
      CHECK(built && devices[i] == 0);
      continue;
    }
    CHECK_STATUS(status, GM_ERROR_BACKEND);
    CHECK(strstr(gm_last_error(), built ? "CUDA" : "this build has no CUDA backend") != NULL);
  }
}

static gm_status collapse_one(const gm_exec *exec, int64_t tokens) {
  uint16_t r = bf16(3), out = 0;
  float pre = 0.5f;
  const gm_tensor residual = BF16(&r, tokens, 1, 1), pre_mix = F32(&pre, tokens, 1), result = BF16(&out, tokens, 1);
  const gm_status status = gm_hc_collapse(exec, &residual, &pre_mix, &result);
  CHECK(out == (status == GM_OK && tokens ? bf16(1.5f) : 0));
  return status;
}

static void *fresh_thread(void *arg) {
  (void)arg;
  CHECK(strcmp(gm_last_error(), "") == 0);
  CHECK(strcmp(gm_last_kernel(), "") == 0);

  gm_exec exec = cpu(0);
  CHECK_OK(collapse_one(&exec, 0));
  CHECK(strcmp(gm_last_kernel(), "none") == 0);
  CHECK_OK(collapse_one(&exec, 1));
  const char *kernel = gm_last_kernel();
  CHECK(strncmp(kernel, "hc_collapse/cpu/", 16) == 0);
  CHECK(strcmp(gm_last_error(), "") == 0);

  exec.backend = 77;
  CHECK_STATUS(collapse_one(&exec, 1), GM_ERROR_INVALID_VALUE);
  CHECK(strcmp(gm_last_kernel(), kernel) == 0);
  char sentence[512] = {0};
  strncpy(sentence, gm_last_error(), sizeof sentence - 1);
  CHECK(strstr(sentence, "77") != NULL);

  exec.backend = GM_BACKEND_CPU; // a success leaves the error alone
  CHECK_OK(collapse_one(&exec, 1));
  CHECK(strcmp(gm_last_error(), sentence) == 0);
  return NULL;
}

static void thread_state(void) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, fresh_thread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
}

static void levels_are_obeyed(void) {
  gm_exec exec = cpu(GM_PORTABLE);
  CHECK_OK(collapse_one(&exec, 1));
  CHECK(strncmp(gm_last_kernel(), "hc_collapse/cpu/portable", 24) == 0);
  exec.flags = GM_PORTABLE | GM_NO_AVX512;
  CHECK_OK(collapse_one(&exec, 1));
  CHECK(strncmp(gm_last_kernel(), "hc_collapse/cpu/portable", 24) == 0);
  exec.flags = GM_NO_AVX512;
  CHECK_OK(collapse_one(&exec, 1));
  CHECK(strstr(gm_last_kernel(), "avx512") == NULL);
}

// What the CPU ignores, and how struct_size grows.
static void exec_fields(void) {
  gm_exec exec = cpu(0);
  exec.device = -3;
  exec.stream = &exec;
  CHECK_OK(collapse_one(&exec, 1));
  unsigned char workspace[64];
  exec.workspace = workspace;
  exec.workspace_size = sizeof workspace;
  CHECK_OK(collapse_one(&exec, 1));

  const size_t known = offsetof(gm_exec, flags) + sizeof exec.flags;
  exec = cpu(0);
  memset((unsigned char *)&exec + known, 0xFF, sizeof exec - known); // padding is not a tail
  CHECK_OK(collapse_one(&exec, 1));

  struct {
    gm_exec exec;
    unsigned char tail[24];
  } longer;
  memset(&longer, 0, sizeof longer);
  longer.exec = cpu(0);
  longer.exec.struct_size = sizeof longer;
  memset((unsigned char *)&longer + known, 0, sizeof longer - known);
  CHECK_OK(collapse_one(&longer.exec, 1));
  longer.tail[23] = 1;
  CHECK_STATUS(collapse_one(&longer.exec, 1), GM_ERROR_INVALID_VALUE);

  union {
    gm_exec exec;
    unsigned char bytes[1024];
  } longest;
  memset(&longest, 0, sizeof longest);
  longest.exec = cpu(0);
  longest.exec.struct_size = sizeof longest;
  memset(longest.bytes + known, 0, sizeof longest - known);
  CHECK_OK(collapse_one(&longest.exec, 1));
}

void test_library(void) {
  run_case("library", "versions", versions);
  run_case("library", "build_info", build_info);
  run_case("library", "status_names", status_names);
  run_case("library", "backends", backends);
  run_case("library", "thread_state", thread_state);
  run_case("library", "levels_are_obeyed", levels_are_obeyed);
  run_case("library", "exec_fields", exec_fields);
}
