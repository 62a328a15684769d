#include "cpu/simd_avx512.h"

#include "cpu/gated_mla_simd.h"
