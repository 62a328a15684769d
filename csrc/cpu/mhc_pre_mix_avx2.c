#include "cpu/simd_avx2.h"

#include "cpu/mhc_pre_mix_simd.h"
