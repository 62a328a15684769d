#include "cpu/simd_avx512.h"

#include "cpu/hc_head_simd.h"
