// A few macros, exact buffers and float formats: all that the C tests share.
#ifndef GATEMIX_HARNESS_H
#define GATEMIX_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gatemix.h"

// ---- Cases ----

void run_case(const char *theme, const char *name, void (*body)(void));
bool check_at(bool ok, const char *file, int line, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 4, 5)))
#endif
    ;

#define CHECK(condition) check_at((condition), __FILE__, __LINE__, "%s", #condition)
#define CHECK_OK(call) check_status((call), GM_OK, __FILE__, __LINE__, #call)
#define CHECK_STATUS(call, status) check_status((call), (status), __FILE__, __LINE__, #call)
bool check_status(gm_status got, gm_status want, const char *file, int line, const char *call);

void test_library(void);
void test_support(void);
void test_refusals(void);
void test_parallel(void);
void test_gated_mla(void);
void test_rms_norm(void);
void test_hc_collapse(void);
void test_hc_head(void);
void test_mhc_pre_mix(void);
void test_mhc_post_collapse_rms_norm(void);

// ---- Memory ----

// bytes of memory that end where the next byte is poisoned (AddressSanitizer) or unmapped (otherwise), filled with
// 0xA5 and freed at the end of the case. misalign: the first byte is 2 or 4 past a 64-byte boundary under
// AddressSanitizer; elsewhere the end is what is aligned.
void *exact(size_t bytes, size_t misalign);
uint16_t *halves(int64_t count, bool odd);
float *floats(int64_t count, bool odd);
bool untouched(const void *memory, size_t bytes);

// ---- Arguments ----

#define DIMS(...) (const int64_t[]){__VA_ARGS__}, (int32_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define BF16(data, ...) tensor(GM_BF16, data, DIMS(__VA_ARGS__))
#define F32(data, ...) tensor(GM_F32, data, DIMS(__VA_ARGS__))
gm_tensor tensor(int32_t dtype, const void *data, const int64_t *shape, int32_t rank);
void make_contiguous(gm_tensor *t);
size_t element_size(int32_t dtype);
int64_t element_count(const gm_tensor *t);

gm_exec cpu(uint32_t flags);

// Every dispatch level that one machine has.
#define LEVELS 3
extern const uint32_t levels[LEVELS];

// ---- Numbers ----

float bf16_value(uint16_t bits);
uint16_t bf16(float value);
float f16_value(uint16_t bits);
uint32_t f32_bits(float value);
double read_element(int32_t dtype, const void *data, int64_t i);
void write_element(int32_t dtype, void *data, int64_t i, float value);

// |got - exact| <= slack + ulps * (spacing of the type at exact). 0.5 is a correct rounding.
bool within(int32_t dtype, double got, double exact, double ulps, double slack);
double sigmoid(double z);

// Reproducible values: a multiple of 1/16 in [-1/2, 1/2], so that sums of products are exact in fp32 in any order;
// any bf16 or fp32 value in about [-2, 2].
float draw_grid(void);
float draw_bf16(void);
float draw_f32(void);
void draw_seed(uint64_t seed);

#endif
