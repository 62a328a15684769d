#include "cpu/simd_avx2.h"

#include "cpu/mhc_post_collapse_rms_norm_simd.h"
