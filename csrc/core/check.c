#include "core/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *gm_dtype_name(int32_t dtype) {
  switch (dtype) {
  case GM_BF16: return "bf16";
  case GM_F16: return "f16";
  case GM_F32: return "f32";
  default: return "unknown";
  }
}

static const char *dtypes_name(int dtypes) {
  switch (dtypes) {
  case GM_TAKES_BF16: return "bf16";
  case GM_TAKES_F32: return "f32";
  default: return "bf16, f16 or f32";
  }
}

static int64_t element_size(int32_t dtype) { return dtype == GM_F32 ? 4 : 2; }

/* Writes "[1, 2, 3]". */
static void list(char *text, size_t size, const int64_t *values, int32_t count) {
  size_t used = 0;
  for (int32_t i = 0; i < count && used < size; ++i) {
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64 "%s", i == 0 ? "[" : ", ", values[i],
                             i == count - 1 ? "]" : "");
  }
}

bool gm_tensor_empty(const gm_tensor *tensor) {
  for (int32_t i = 0; i < tensor->rank; ++i) {
    if (tensor->shape[i] == 0) {
      return true;
    }
  }
  return false;
}

/* First and last element, in elements from data; false if they, in bytes, leave the 64-bit range. */
static bool extent(const gm_tensor *tensor, int64_t *first, int64_t *last) {
  *first = 0;
  *last = 0;
  for (int32_t i = 0; i < tensor->rank; ++i) {
    int64_t reach;
    if (tensor->shape[i] <= 1) {
      continue;
    }
    int64_t *end = tensor->stride[i] < 0 ? first : last;
    if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->stride[i], &reach) ||
        __builtin_add_overflow(*end, reach, end)) {
      return false;
    }
  }
  int64_t bytes;
  return !__builtin_sub_overflow(*last, *first, &bytes) && !__builtin_add_overflow(bytes, 1, &bytes) &&
         !__builtin_mul_overflow(bytes, element_size(tensor->dtype), &bytes);
}

/* The number of elements fits in 64 bits too: a zero stride makes it larger than the extent. */
static bool countable(const gm_tensor *tensor) {
  int64_t count = element_size(tensor->dtype);
  for (int32_t i = 0; i < tensor->rank; ++i) {
    if (__builtin_mul_overflow(count, tensor->shape[i], &count)) {
      return false;
    }
  }
  return true;
}

gm_status gm_check_struct_size(const void *structure, const char *name, size_t required, size_t known) {
  enum { kLargest = 1024 }; /* an uninitialised size must not lead the scan below far astray */
  size_t size;
  memcpy(&size, structure, sizeof size);
  if (size < required || size > kLargest) {
    return gm_fail(GM_ERROR_INVALID_VALUE,
                   "%s.struct_size = %zu must be sizeof(gm_%s) = %zu, or that of a later version, up to %d", name, size,
                   name, known, kLargest);
  }
  for (size_t i = known; i < size; ++i) {
    if (((const unsigned char *)structure)[i] != 0) {
      return gm_fail(GM_ERROR_INVALID_VALUE,
                     "%s.struct_size = %zu: byte %zu is set, but this version knows only %zu bytes", name, size, i,
                     known);
    }
  }
  return GM_OK;
}

gm_status gm_check_tensor(const gm_tensor *tensor, const char *name, int dtypes, int32_t min_rank, int32_t max_rank) {
  if (tensor == NULL) {
    return gm_fail(GM_ERROR_NULL_POINTER, "%s is NULL, but a tensor is required", name);
  }
  if (tensor->dtype < GM_BF16 || tensor->dtype > GM_F32 || !(dtypes >> tensor->dtype & 1)) {
    return gm_fail(GM_ERROR_DTYPE, "%s.dtype = %" PRId32 " (%s) must be %s", name, tensor->dtype,
                   gm_dtype_name(tensor->dtype), dtypes_name(dtypes));
  }
  if (tensor->rank < min_rank || tensor->rank > max_rank) {
    return min_rank == max_rank
               ? gm_fail(GM_ERROR_RANK, "%s.rank = %" PRId32 " must be %" PRId32, name, tensor->rank, min_rank)
               : gm_fail(GM_ERROR_RANK, "%s.rank = %" PRId32 " must be %" PRId32 " to %" PRId32, name, tensor->rank,
                         min_rank, max_rank);
  }
  for (int32_t i = 0; i < tensor->rank; ++i) {
    if (tensor->shape[i] < 0) {
      return gm_fail(GM_ERROR_SHAPE, "%s.shape[%" PRId32 "] = %" PRId64 " must not be negative", name, i,
                     tensor->shape[i]);
    }
  }
  if (gm_tensor_empty(tensor)) {
    return GM_OK;
  }
  int64_t first, last;
  if (!countable(tensor) || !extent(tensor, &first, &last)) {
    char shape[128], stride[128];
    list(shape, sizeof shape, tensor->shape, tensor->rank);
    list(stride, sizeof stride, tensor->stride, tensor->rank);
    return gm_fail(GM_ERROR_SHAPE, "%s.shape = %s, .stride = %s is too large: a tensor must span less than 2^63 bytes",
                   name, shape, stride);
  }
  if (tensor->data == NULL) {
    return gm_fail(GM_ERROR_NULL_POINTER, "%s.data is NULL, but the tensor is not empty", name);
  }
  if ((uintptr_t)tensor->data % (uintptr_t)element_size(tensor->dtype) != 0) {
    return gm_fail(GM_ERROR_ALIGNMENT, "%s.data = %p must be a multiple of %" PRId64 ", the size of %s", name,
                   tensor->data, element_size(tensor->dtype), gm_dtype_name(tensor->dtype));
  }
  return GM_OK;
}

gm_status gm_check_same_dtype(const gm_tensor *tensor, const char *name, const gm_tensor *other,
                              const char *other_name) {
  if (tensor->dtype != other->dtype) {
    return gm_fail(GM_ERROR_DTYPE, "%s.dtype = %" PRId32 " (%s) must be %s, as %s.dtype", name, tensor->dtype,
                   gm_dtype_name(tensor->dtype), gm_dtype_name(other->dtype), other_name);
  }
  return GM_OK;
}

gm_status gm_check_dim(const gm_tensor *tensor, const char *name, int axis, int64_t expected, const char *why) {
  if (tensor->shape[axis] != expected) {
    return gm_fail(GM_ERROR_SHAPE, "%s.shape[%d] = %" PRId64 " must be %" PRId64 ", %s", name, axis,
                   tensor->shape[axis], expected, why);
  }
  return GM_OK;
}

gm_status gm_check_dim_at_least(const gm_tensor *tensor, const char *name, int axis, int64_t minimum, const char *why) {
  if (tensor->shape[axis] < minimum) {
    return gm_fail(GM_ERROR_SHAPE, "%s.shape[%d] = %" PRId64 " must be at least %" PRId64 ", %s", name, axis,
                   tensor->shape[axis], minimum, why);
  }
  return GM_OK;
}

gm_status gm_check_streams(const gm_tensor *tensor, const char *name, int axis) {
  const int64_t n = tensor->shape[axis];
  if (n != 1 && n != 2 && n != 4 && n != 8) {
    return gm_fail(GM_ERROR_SHAPE, "%s.shape[%d] = %" PRId64 " must be 1, 2, 4 or 8, the number of residual streams",
                   name, axis, n);
  }
  return GM_OK;
}

gm_status gm_check_contiguous(const gm_tensor *tensor, const char *name) {
  if (gm_tensor_empty(tensor)) {
    return GM_OK;
  }
  int64_t expected = 1;
  for (int32_t i = tensor->rank - 1; i >= 0; --i) {
    if (tensor->shape[i] > 1 && tensor->stride[i] != expected) {
      return gm_fail(GM_ERROR_STRIDE, "%s.stride[%" PRId32 "] = %" PRId64 " must be %" PRId64 ": %s must be contiguous",
                     name, i, tensor->stride[i], expected, name);
    }
    expected *= tensor->shape[i];
  }
  return GM_OK;
}

static bool meet(const gm_tensor *a, const gm_tensor *b) {
  int64_t a_first, a_last, b_first, b_last;
  if (gm_tensor_empty(a) || gm_tensor_empty(b) || !extent(a, &a_first, &a_last) || !extent(b, &b_first, &b_last)) {
    return false;
  }
  const int64_t a_size = element_size(a->dtype), b_size = element_size(b->dtype);
  const uintptr_t a_low = (uintptr_t)a->data + (uintptr_t)(a_first * a_size);
  const uintptr_t b_low = (uintptr_t)b->data + (uintptr_t)(b_first * b_size);
  const uintptr_t a_bytes = (uintptr_t)((a_last - a_first + 1) * a_size);
  const uintptr_t b_bytes = (uintptr_t)((b_last - b_first + 1) * b_size);
  return a_low < b_low ? b_low - a_low < a_bytes : a_low - b_low < b_bytes;
}

gm_status gm_check_disjoint(const gm_tensor *out, const char *out_name, const gm_tensor *other,
                            const char *other_name) {
  if (meet(out, other)) {
    return gm_fail(GM_ERROR_OVERLAP, "%s.data = %p overlaps %s.data = %p: they must not share memory", out_name,
                   out->data, other_name, other->data);
  }
  return GM_OK;
}

gm_status gm_check_in_place(const gm_tensor *out, const char *out_name, const gm_tensor *other,
                            const char *other_name) {
  bool same = out->data == other->data;
  for (int32_t i = 0; i < out->rank; ++i) {
    same = same && (out->shape[i] <= 1 || out->stride[i] == other->stride[i]);
  }
  if (!same && meet(out, other)) {
    return gm_fail(GM_ERROR_OVERLAP,
                   "%s.data = %p overlaps %s.data = %p: they must be the same tensor or not share memory", out_name,
                   out->data, other_name, other->data);
  }
  return GM_OK;
}

gm_status gm_check_epsilon(float value, const char *name) {
  if (!isfinite(value) || value < 0.0f) {
    return gm_fail(GM_ERROR_INVALID_VALUE, "%s = %g must be finite and not negative", name, (double)value);
  }
  return GM_OK;
}
