#include "cpu/simd_avx512.h"

#include "cpu/mhc_pre_mix_simd.h"
