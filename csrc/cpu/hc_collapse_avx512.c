#include "cpu/simd_avx512.h"

#include "cpu/hc_collapse_simd.h"
