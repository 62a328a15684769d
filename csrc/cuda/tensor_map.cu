#include <cuda_runtime_api.h>

#include "cuda/common/tensor_map.cuh"

typedef CUresult (*Encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                           const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                           CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Of the driver, so that the library need not be linked with it. The threads that race store the same value.
static Encode cached_encode;

static Encode encode_function(void) {
  Encode encode = __atomic_load_n(&cached_encode, __ATOMIC_RELAXED);
  if (encode == nullptr) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) {
      encode = reinterpret_cast<Encode>(found);
      __atomic_store_n(&cached_encode, encode, __ATOMIC_RELAXED);
    }
  }
  return encode;
}

extern "C" bool gm_cuda_tensor_map(CUtensorMap *map, const void *data, int64_t rows, int64_t columns, int box_rows) {
  const Encode encode = encode_function();
  const cuuint64_t size[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[] = {gm::kBoxColumns, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t step[] = {1, 1};
  return encode != nullptr &&
         encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void *>(data), size, row_bytes, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
