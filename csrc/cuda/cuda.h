#ifndef GATEMIX_CUDA_CUDA_H
#define GATEMIX_CUDA_CUDA_H

#include "core/status.h"
#include "ops/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The CUDA backend as csrc/core and csrc/ops see it. absent.c stands in for it in builds without CUDA. */

/* GM_OK if operators can run on this device, else GM_ERROR_BACKEND with the reason. */
gm_status gm_cuda_status(int32_t device);

/* For gm_build_info(). */
const char *gm_cuda_build_info(void);

/* What the kernels were compiled for, see core/capability.h. */
const char *gm_cuda_code(void);

/* Problems are checked and not empty, the device of exec has passed gm_cuda_status. */
gm_status gm_gated_mla_cuda(const gm_exec *exec, const gm_gated_mla_problem *problem);
gm_status gm_rms_norm_cuda(const gm_exec *exec, const gm_rms_norm_problem *problem);
gm_status gm_hc_collapse_cuda(const gm_exec *exec, const gm_hc_collapse_problem *problem);
gm_status gm_hc_head_cuda(const gm_exec *exec, const gm_hc_head_problem *problem);
gm_status gm_mhc_pre_mix_cuda(const gm_exec *exec, const gm_mhc_pre_mix_problem *problem);
gm_status gm_mhc_post_collapse_rms_norm_cuda(const gm_exec *exec, const gm_mhc_post_collapse_rms_norm_problem *problem);

#ifdef __cplusplus
}
#endif

#endif
