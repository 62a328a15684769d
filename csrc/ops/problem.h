#ifndef GATEMIX_OPS_PROBLEM_H
#define GATEMIX_OPS_PROBLEM_H

#include <stdint.h>

/* What is left of an operator's arguments once they are checked: the only thing that kernels see.
 * bf16 and f16 are uint16_t bit patterns; strides are in elements. */

enum { GM_MAX_STREAMS = 8 };

typedef struct gm_gated_mla_problem {
  const uint16_t *x;      /* [m, k] */
  const uint16_t *weight; /* [n, k] */
  const uint16_t *attn;   /* [m, n] */
  uint16_t *out;          /* [m, n] */
  int64_t m, n, k;
} gm_gated_mla_problem;

typedef struct gm_rms_norm_problem {
  const void *x;      /* [rows, width], row_stride apart */
  const void *weight; /* [width] or NULL */
  void *out;          /* [rows, width] */
  int64_t rows, width, row_stride;
  float eps;
  int32_t dtype;
} gm_rms_norm_problem;

typedef struct gm_hc_collapse_problem {
  const uint16_t *residual; /* [tokens, streams, hidden] */
  const float *pre_mix;     /* [tokens, streams] */
  uint16_t *out;            /* [tokens, hidden] */
  int64_t tokens, streams, hidden;
  int64_t residual_stride[3];
  int64_t pre_mix_stride[2];
} gm_hc_collapse_problem;

typedef struct gm_hc_head_problem {
  const uint16_t *residual; /* [tokens, streams, hidden] */
  const float *fn;          /* [streams, streams * hidden] */
  const float *scale;       /* [1] */
  const float *base;        /* [streams] */
  uint16_t *out;            /* [tokens, hidden] */
  int64_t tokens, streams, hidden;
  float rms_eps, hc_eps;
  int32_t mode; /* GM_HEAD_* */
} gm_hc_head_problem;

typedef struct gm_mhc_pre_mix_problem {
  const float *gemm_out; /* [slices, tokens, >= streams] */
  const float *sqrsum;   /* [slices, tokens] */
  const float *scale;    /* [>= 1] */
  const float *base;     /* [>= streams] */
  float *out;            /* [tokens, streams] */
  int64_t slices, tokens, streams;
  int64_t gemm_out_stride[3];
  int64_t sqrsum_stride[2];
  float inv_hidden; /* 1 / hc_hidden, rounded once */
  float rms_eps, hc_pre_eps;
} gm_mhc_pre_mix_problem;

typedef struct gm_mhc_post_collapse_rms_norm_problem {
  const uint16_t *residual;     /* [tokens, streams, hidden] */
  const uint16_t *sublayer_out; /* [tokens, hidden] */
  const float *post_mix;        /* [tokens, streams] */
  const float *comb_mix;        /* [tokens, source, target] */
  const float *pre_mix;         /* [tokens, streams] */
  const uint16_t *norm_weight;  /* [hidden] */
  uint16_t *residual_out;       /* [tokens, streams, hidden], may be residual */
  uint16_t *layer_input;        /* [tokens, hidden] */
  int64_t tokens, streams, hidden;
  float inv_hidden; /* 1 / hidden, rounded once */
  float norm_eps;
} gm_mhc_post_collapse_rms_norm_problem;

#endif
