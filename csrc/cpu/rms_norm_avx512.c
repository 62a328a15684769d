#include "cpu/simd_avx512.h"

#include "cpu/rms_norm_simd.h"
