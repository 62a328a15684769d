#ifndef GATEMIX_OPS_BACKEND_H
#define GATEMIX_OPS_BACKEND_H

#include "cpu/cpu.h"
#include "cuda/cuda.h"

/* Hands a checked, non-empty problem to the backend of an exec that gm_check_exec has passed. */
#define GM_RUN(op, exec, problem) \
  ((exec)->backend == GM_BACKEND_CUDA ? gm_##op##_cuda(exec, problem) : gm_##op##_cpu(exec, problem))

#endif
