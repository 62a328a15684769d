#include "cpu/simd_avx2.h"

#include "cpu/hc_collapse_simd.h"
