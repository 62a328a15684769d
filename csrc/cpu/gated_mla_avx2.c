#include "cpu/simd_avx2.h"

#include "cpu/gated_mla_simd.h"
