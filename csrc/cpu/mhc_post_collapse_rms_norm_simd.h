/* Vector twin of mhc_post_collapse_rms_norm_portable.c; include simd_<isa>.h before. */
#include "cpu/kernels.h"
#include "cpu/simd_math.h"

typedef struct coefficients {
  vf post[GM_MAX_STREAMS], pre[GM_MAX_STREAMS], comb[GM_MAX_STREAMS * GM_MAX_STREAMS];
} coefficients;

GM_INLINE void load_coefficients(const gm_mhc_post_collapse_rms_norm_problem *p, int64_t t, int n, coefficients *c) {
  for (int i = 0; i < n; ++i) {
    c->post[i] = vf_set1(p->post_mix[t * n + i]);
    c->pre[i] = vf_set1(p->pre_mix[t * n + i]);
  }
  for (int i = 0; i < n * n; ++i) {
    c->comb[i] = vf_set1(p->comb_mix[t * n * n + i]);
  }
}

/* New streams and v of `count` elements; v goes to y. Returns sum_v2 + v^2. */
GM_INLINE vf post_collapse(const uint16_t *residual, const uint16_t *sublayer_out, uint16_t *residual_out, uint16_t *y,
                           int64_t hidden, const coefficients *c, vf sum_v2, int64_t count, int n) {
  const vf x = vf_load_bf16(sublayer_out, count);
  vf r[GM_MAX_STREAMS];
  GM_UNROLL
  for (int j = 0; j < n; ++j) { /* all reads before the first write: residual_out may be residual */
    r[j] = vf_load_bf16(residual + j * hidden, count);
  }
  vf v = vf_zero();
  GM_UNROLL
  for (int i = 0; i < n; ++i) {
    vf sum = vf_fma(c->post[i], x, vf_mul(c->comb[i], r[0]));
    GM_UNROLL
    for (int j = 1; j < n; ++j) {
      sum = vf_fma(c->comb[j * n + i], r[j], sum);
    }
    sum = vf_round_bf16(sum);
    vf_store_bf16(residual_out + i * hidden, sum, count);
    v = i == 0 ? vf_mul(c->pre[0], sum) : vf_fma(c->pre[i], sum, v);
  }
  v = vf_round_bf16(v);
  vf_store_bf16(y, v, count);
  return vf_fma(v, v, sum_v2);
}

GM_INLINE void normalise(uint16_t *y, const uint16_t *weight, vf r, int64_t count) {
  const vf scaled = vf_mul(vf_mul(vf_load_bf16(y, count), r), vf_load_bf16(weight, count));
  vf_store_bf16(y, vf_round_bf16(scaled), count);
}

GM_INLINE void tokens(const gm_mhc_post_collapse_rms_norm_problem *p, int64_t begin, int64_t end, int n) {
  const int64_t H = p->hidden;
  for (int64_t t = begin; t < end; ++t) {
    const uint16_t *residual = p->residual + t * n * H, *x = p->sublayer_out + t * H;
    uint16_t *residual_out = p->residual_out + t * n * H, *y = p->layer_input + t * H;
    coefficients c;
    load_coefficients(p, t, n, &c);
    vf sum = vf_zero();
    int64_t h = 0;
    for (; h + kLanes <= H; h += kLanes) {
      sum = post_collapse(residual + h, x + h, residual_out + h, y + h, H, &c, sum, kLanes, n);
    }
    if (h < H) {
      sum = post_collapse(residual + h, x + h, residual_out + h, y + h, H, &c, sum, H - h, n);
    }
    const vf r = vf_set1(gm_rsqrt(vf_sum(sum) * p->inv_hidden + p->norm_eps));
    for (h = 0; h + kLanes <= H; h += kLanes) {
      normalise(y + h, p->norm_weight + h, r, kLanes);
    }
    if (h < H) {
      normalise(y + h, p->norm_weight + h, r, H - h);
    }
  }
}

void GM_TWIN(gm_mhc_post_collapse_rms_norm)(const void *problem, int64_t begin, int64_t end) {
  const gm_mhc_post_collapse_rms_norm_problem *p = problem;
  switch (p->streams) {
  case 1: tokens(p, begin, end, 1); break;
  case 2: tokens(p, begin, end, 2); break;
  case 4: tokens(p, begin, end, 4); break;
  default: tokens(p, begin, end, 8); break;
  }
}
