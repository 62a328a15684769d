#ifndef GATEMIX_CORE_CAPABILITY_H
#define GATEMIX_CORE_CAPABILITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which CUDA devices a build has code for. Compute capabilities are 10 * major + minor; `code` is what the build holds, as
 * nvcc names it, separated by ':', such as "sm_80:sm_90a:compute_80", or "". gm_cuda_status asks CUDA the same about a
 * device that is there. */

/* Does some of the code run on devices of this capability? */
bool gm_capability_served(const char *code, int32_t capability);

/* Writes those that are, such as "80, 86 and later". */
void gm_capability_list(const char *code, char *text, size_t size);

#endif
