#ifndef GATEMIX_CUDA_CUDA_H
#define GATEMIX_CUDA_CUDA_H

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* GM_OK if operators can run on this device, else GM_ERROR_BACKEND with the reason. */
gm_status gm_cuda_status(int32_t device);

/* For gm_build_info(). */
const char *gm_cuda_build_info(void);

#ifdef __cplusplus
}
#endif

#endif
