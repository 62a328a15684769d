#include "cpu/simd_avx2.h"

#include "cpu/rms_norm_simd.h"
