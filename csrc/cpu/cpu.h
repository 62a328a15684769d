#ifndef GATEMIX_CPU_CPU_H
#define GATEMIX_CPU_CPU_H

#include "core/status.h"
#include "ops/problem.h"

/* The CPU backend as csrc/ops sees it. Problems are checked and not empty. */
gm_status gm_gated_mla_cpu(const gm_exec *exec, const gm_gated_mla_problem *problem);
gm_status gm_rms_norm_cpu(const gm_exec *exec, const gm_rms_norm_problem *problem);
gm_status gm_hc_collapse_cpu(const gm_exec *exec, const gm_hc_collapse_problem *problem);
gm_status gm_hc_head_cpu(const gm_exec *exec, const gm_hc_head_problem *problem);
gm_status gm_mhc_pre_mix_cpu(const gm_exec *exec, const gm_mhc_pre_mix_problem *problem);
gm_status gm_mhc_post_collapse_rms_norm_cpu(const gm_exec *exec, const gm_mhc_post_collapse_rms_norm_problem *problem);

/* Name of the instruction set that operators use under these gm_exec.flags. */
const char *gm_cpu_isa_name(uint32_t flags);

/* All of them in this build, for gm_build_info(). */
const char *gm_cpu_isas_built(void);

#endif
