#include "cpu/simd_avx2.h"

#include "cpu/hc_head_simd.h"
