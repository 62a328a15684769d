#include "cpu/simd_avx512.h"

#include "cpu/mhc_post_collapse_rms_norm_simd.h"
