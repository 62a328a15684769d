/* gatemix: the output gate of MLA attention and the mHC residual streams, on CPU and NVIDIA GPUs.
 *
 * This is the whole C ABI. It is C11 and C++17 clean and needs no CUDA header.
 *
 * Conventions that hold for every operator
 *   - Tensors are row-major; T = tokens, H = hidden size, n = residual streams (hc_mult: 1, 2, 4 or 8).
 *   - bf16(v) is one round-to-nearest-even; fma(a,b,c) is one fused rounding; sigmoid(z) = 1/(1+exp(-z)).
 *   - The caller owns all memory. Nothing is allocated, nothing synchronises, no init is needed, and every
 *     function may be called from any thread.
 *   - A bad argument gives a status > 0, a sentence in gm_last_error(), and untouched outputs.
 *   - T == 0 (or m == 0) is a success that launches nothing.
 *   - An epsilon is used as given: any finite value >= 0, never clamped.
 *   - A pointer needs the alignment of its element (2 or 4 bytes), no more.
 *   - Same inputs, same bits, whatever the number of threads, as long as they agree on flushing subnormals. In the
 *     mHC operators, hc_collapse and rms_norm a token's result does not depend on the other tokens; in gm_gated_mla
 *     its last bits may, unless GM_BATCH_INVARIANT is set.
 *   - Outputs are contiguous. The address range from an output's first byte to its last may meet that of another
 *     argument only where an operator says so.
 *   - An operator uses at most 128 KiB of stack, on the calling thread and in each parallel task.
 *   - The environment (GATEMIX_ENABLE, GATEMIX_CPU_ISA) is read with getenv: don't change it at the same time.
 */
#ifndef GATEMIX_H
#define GATEMIX_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(GATEMIX_SHARED)
#if defined(GATEMIX_BUILD)
#define GM_API __declspec(dllexport)
#else
#define GM_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define GM_API __attribute__((visibility("default")))
#else
#define GM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define GM_VERSION "0.1.0"
#define GM_ABI_VERSION 1

/** Result of a call: GM_OK or one of the GM_ERROR_* codes. */
typedef int32_t gm_status;
enum {
  GM_OK = 0,
  GM_ERROR_NULL_POINTER = 1,  /**< a required pointer, or the data of a non-empty tensor, is NULL */
  GM_ERROR_INVALID_VALUE = 2, /**< a scalar, flag, enum or struct size is out of range */
  GM_ERROR_DTYPE = 3,         /**< a tensor has an element type that the operator does not take */
  GM_ERROR_RANK = 4,          /**< a tensor has the wrong number of dimensions */
  GM_ERROR_SHAPE = 5,         /**< a dimension is negative, too large or does not match the others */
  GM_ERROR_STRIDE = 6,        /**< a tensor is not laid out as the operator needs it */
  GM_ERROR_ALIGNMENT = 7,     /**< a pointer is not a multiple of its element size */
  GM_ERROR_OVERLAP = 8,       /**< the address ranges of an output and another argument meet */
  GM_ERROR_BACKEND = 9,       /**< the backend is not in this build, or has no usable device */
  GM_ERROR_CUDA = 10,         /**< CUDA refused the launch; the sentence names its error */
  GM_ERROR_CUDA_PENDING = 11  /**< an earlier call of someone else's left a CUDA error; nothing was launched */
};

/** Element types: bfloat16, IEEE half, IEEE single. */
enum { GM_BF16 = 1, GM_F16 = 2, GM_F32 = 3 };

/** Backends. */
enum { GM_BACKEND_CPU = 1, GM_BACKEND_CUDA = 2 };

/** Bits of gm_exec.flags. */
enum {
  GM_PORTABLE = 1,       /**< run the portable kernels, whatever the hardware offers */
  GM_NO_AVX512 = 2,      /**< CPU: do not use AVX-512 */
  GM_PDL = 4,            /**< CUDA: programmatic dependent launch, see below; no effect below compute capability 9.0 */
  GM_BATCH_INVARIANT = 8 /**< gm_gated_mla: a row's bits depend neither on m nor on other rows, see below */
};

/** Modes of gm_hc_head. */
enum {
  GM_HEAD_ROUNDED = 0, /**< the normalised row is rounded to bf16 before the projection (vLLM) */
  GM_HEAD_FP32 = 1     /**< the projection is scaled afterwards, all in fp32 (DeepSeek's reference) */
};

/** A view of memory. Strides are in elements; those of dimensions of size 1, and all strides of an empty
 * tensor, are ignored. Input strides may be zero or negative where an operator takes strided inputs. */
typedef struct gm_tensor {
  void *data;
  int32_t dtype;
  int32_t rank;
  int64_t shape[4];
  int64_t stride[4];
} gm_tensor;

/** How CPU kernels run in parallel: run() must call task(arg, i) exactly once for each i < tasks, in any
 * order and on any threads, and return when all calls have returned. width: threads that run() can keep busy. */
typedef struct gm_parallel {
  void *ctx;
  int32_t width;
  void (*run)(void *ctx, size_t tasks, void (*task)(void *arg, size_t i), void *arg);
} gm_parallel;

/** Where and how an operator runs. Zero it, set struct_size = sizeof(gm_exec) and backend, then what you need.
 *
 * On CUDA an operator returns when its one kernel is queued on the stream. It may be called during graph capture, also
 * as the first call of a process; scalars are baked into the graph, tensors are read again at each replay. The calling
 * thread's current device is left as it was.
 * GM_PDL lets the kernel start before the preceding kernel of the stream is complete (programmatic dependent launch).
 * Until that is complete it reads parameters only: the weights of any operator, and the residual and coefficients of
 * gm_mhc_post_collapse_rms_norm. So with GM_PDL these must not be written by the preceding kernel, nor by an earlier one
 * that may still run beside it.
 *
 * With GM_BATCH_INVARIANT gm_gated_mla sums over k in one order whatever m is: on one device, with the same other flags
 * and operands that are aligned alike, a row's bits depend neither on m nor on its neighbours. Without it m chooses
 * between kernels, and not all sum in the same order. To the other operators, whose tokens are independent anyway, it
 * makes no difference.
 *
 * A later version may append fields, after the padding at the end: a struct_size beyond what this version knows is
 * accepted, up to 1024, if the unknown tail is zero. */
typedef struct gm_exec {
  size_t struct_size;
  int32_t backend;             /**< GM_BACKEND_* */
  int32_t device;              /**< CUDA device ordinal; ignored on the CPU */
  void *stream;                /**< cudaStream_t, NULL = legacy default stream; ignored on the CPU */
  const gm_parallel *parallel; /**< CPU: NULL = the calling thread only */
  void *workspace;             /**< no operator of this version needs one */
  size_t workspace_size;       /**< in bytes */
  uint32_t flags;              /**< GM_PORTABLE, GM_NO_AVX512, GM_PDL, GM_BATCH_INVARIANT */
} gm_exec;

/* ---- The library ------------------------------------------------------------------------------------- */

/** GM_ABI_VERSION of the library that is linked or loaded. */
GM_API uint32_t gm_abi_version(void);

/** GM_VERSION of the library that is linked or loaded. */
GM_API const char *gm_version(void);

/** One line: version, compiler, instruction sets compiled in and the one in use, CUDA. Thread-local storage;
 * valid until the next call on this thread. */
GM_API const char *gm_build_info(void);

/** The name of a status, such as "GM_ERROR_SHAPE"; never NULL. */
GM_API const char *gm_status_string(gm_status status);

/** What was wrong in the last call that failed on this thread: the argument, its value and the rule. "" if
 * none failed. Valid until the next failing call on this thread; a success leaves it alone. */
GM_API const char *gm_last_error(void);

/** The kernel of the last operator that succeeded on this thread, such as "gated_mla/cpu/avx512/gemv";
 * "none" if there was nothing to compute, "" before the first. Static storage. */
GM_API const char *gm_last_kernel(void);

/** Can operators run on this backend and device?
 * @retval GM_OK                   yes
 * @retval GM_ERROR_BACKEND        no; gm_last_error() says why
 * @retval GM_ERROR_INVALID_VALUE  no such backend */
GM_API gm_status gm_backend_status(int32_t backend, int32_t device);

/* ---- May this layer use gm_gated_mla? ---------------------------------------------------------------- */

/** Gating types of an attention layer. */
enum { GM_GATING_NONE = 0, GM_GATING_ELEMENTWISE = 1, GM_GATING_HEADWISE = 2 };

/** Why a layer can't use gm_gated_mla, in the order in which it is checked. */
enum {
  GM_GATE_SUPPORTED = 0,
  GM_GATE_NOT_ENABLED = 1,    /**< the caller has not enabled it */
  GM_GATE_NO_GATE = 2,        /**< this layer has no output gate */
  GM_GATE_NOT_BUILT = 3,      /**< the library was built without a usable backend */
  GM_GATE_BACKEND = 4,        /**< no such backend here */
  GM_GATE_CAPABILITY = 5,     /**< no kernel for this compute capability */
  GM_GATE_GATING_TYPE = 6,    /**< the gate is not elementwise */
  GM_GATE_WEIGHT_DTYPE = 7,   /**< the gate's weight is not bf16 */
  GM_GATE_WIDTH = 8,          /**< the gate's width is not a multiple of 256 */
  GM_GATE_NOT_CONTIGUOUS = 9, /**< an operand is not contiguous */
  GM_GATE_REASON_COUNT = 10
};

/** What gm_gated_mla's weight rows must be a multiple of. */
enum { GM_GATE_WIDTH_MULTIPLE = 256 };

/** What the support check looks at. Truth values are 0 or 1. struct_size works as in gm_exec. */
typedef struct gm_gate_facts {
  size_t struct_size;        /**< sizeof(gm_gate_facts) */
  int32_t enabled;           /**< see gm_gate_enabled() */
  int32_t has_gate;          /**< the layer has an output gate */
  int32_t backend_usable;    /**< gm_backend_status() is GM_OK */
  int32_t backend;           /**< GM_BACKEND_*; anything else is refused */
  int32_t capability;        /**< CUDA compute capability, 10 * major + minor; 0 = unknown. CPU: ignored */
  int32_t gating_type;       /**< GM_GATING_* */
  int32_t weight_dtype;      /**< GM_BF16, ...; 0 = some other type */
  int32_t x_contiguous;      /**< x is contiguous */
  int32_t weight_contiguous; /**< weight is contiguous */
  int32_t attn_contiguous;   /**< attn is contiguous */
  int64_t gate_width;        /**< rows of the weight */
} gm_gate_facts;

/** One reason with its sentence. Written in arrays, so it never grows. */
typedef struct gm_gate_verdict {
  int32_t supported; /**< 1 = gm_gated_mla can serve this layer */
  int32_t reason;    /**< GM_GATE_* */
  char message[192]; /**< a sentence with the offending value; "" when supported */
} gm_gate_verdict;

/** The caller's default, unless the environment variable GATEMIX_ENABLE says 1 or 0. */
GM_API int32_t gm_gate_enabled(int32_t fallback);

/** The first reason that speaks against gm_gated_mla, or GM_GATE_SUPPORTED. A pure function of the facts.
 * Follows vLLM's hpc_gated_mla_supported.
 * @retval GM_ERROR_NULL_POINTER   facts or verdict is NULL
 * @retval GM_ERROR_INVALID_VALUE  facts->struct_size is wrong */
GM_API gm_status gm_gated_mla_support(const gm_gate_facts *facts, gm_gate_verdict *verdict);

/** All reasons that speak against it, in order: count is how many there are, of which the first `capacity`
 * are written to verdicts (NULL allowed when capacity is 0). */
GM_API gm_status gm_gated_mla_support_all(const gm_gate_facts *facts, gm_gate_verdict *verdicts, size_t capacity,
                                          size_t *count);

/* ---- Operators --------------------------------------------------------------------------------------- */

/** out = bf16(attn * sigmoid(x @ weight^T)): the elementwise output gate of an MLA layer, in one pass.
 *
 * The dot product is accumulated in fp32 and not rounded before the sigmoid. IEEE rules hold: NaN in a row of x
 * makes that row NaN and no other; a logit of -inf gives attn * 0.
 * Formula: vllm.model_executor.layers.hpc.gated_mla.hpc_gated_mla_gemm.
 *
 * @param x       bf16 [m, k], contiguous, m >= 0, k >= 1
 * @param weight  bf16 [n, k], contiguous, n a multiple of GM_GATE_WIDTH_MULTIPLE
 * @param attn    bf16 [m, n], contiguous
 * @param out     bf16 [m, n], contiguous; may be exactly attn */
GM_API gm_status gm_gated_mla(const gm_exec *exec, const gm_tensor *x, const gm_tensor *weight, const gm_tensor *attn,
                              const gm_tensor *out);

/** out = E(x * rsqrt(mean(x^2) + eps) [* weight]) over the last dimension, in fp32, rounded once.
 * Formula: vllm.model_executor.kernels.mhc.triton.rmsnorm_nw, with an optional weight.
 *
 * @param x       bf16, f16 or f32 [..., D], rank 1 to 4, D >= 1; the last dimension is contiguous and the leading
 *                ones collapse to rows that are row_stride >= D elements apart
 * @param weight  [D] of x's type, contiguous; NULL = no weight
 * @param out     x's type and shape, contiguous; may be exactly x */
GM_API gm_status gm_rms_norm(const gm_exec *exec, const gm_tensor *x, const gm_tensor *weight, float eps,
                             const gm_tensor *out);

/** out[t,h] = bf16(sum_i pre_mix[t,i] * residual[t,i,h]), i ascending from 0, product and sum rounded separately in
 * fp32. Bit-exact on every backend.
 * Formula: vllm.model_executor.kernels.mhc.triton.hc_collapse_triton.
 *
 * @param residual  bf16 [T, n, H], any strides, H >= 1
 * @param pre_mix   f32 [T, n], any strides
 * @param out       bf16 [T, H], contiguous */
GM_API gm_status gm_hc_collapse(const gm_exec *exec, const gm_tensor *residual, const gm_tensor *pre_mix,
                                const gm_tensor *out);

/** The collapse before the language-model head: gates from the normalised streams, then their weighted sum.
 *
 *   x = residual[t] flattened, r = rsqrt(mean(x^2) + rms_eps)
 *   GM_HEAD_ROUNDED:  mix_i = sum_j bf16(x_j * r) * fn[i,j]
 *   GM_HEAD_FP32:     mix_i = (sum_j x_j * fn[i,j]) * r
 *   pre_i = sigmoid(mix_i * scale + base_i) + hc_eps;  out = bf16(acc), acc = fma(pre_i, R_i, acc), i ascending
 * Formula: vllm.model_executor.kernels.mhc.triton._hc_head_triton; DeepSeek-V4's hc_head.
 *
 * @param residual  bf16 [T, n, H], contiguous, H >= 1
 * @param fn        f32 [n, n*H], contiguous; finite, as CUDA kernels for 9.0 and later take an infinity for NaN
 * @param scale     f32 [1]
 * @param base      f32 [n], contiguous
 * @param mode      GM_HEAD_*
 * @param out       bf16 [T, H], contiguous */
GM_API gm_status gm_hc_head(const gm_exec *exec, const gm_tensor *residual, const gm_tensor *fn, const gm_tensor *scale,
                            const gm_tensor *base, float rms_eps, float hc_eps, int32_t mode, const gm_tensor *out);

/** The pre-mix gate from the S partial results of a split-K projection.
 *
 *   mix_j = sum_s gemm_out[s,t,j];  rstd = rsqrt((sum_s sqrsum[s,t]) * (1/hc_hidden) + rms_eps)
 *   out[t,j] = sigmoid(mix_j * rstd * scale[0] + base[j]) + hc_pre_eps
 * every product and sum rounded separately in fp32, s ascending.
 * Formula: vllm.model_executor.kernels.mhc.triton.mhc_pre_mix_triton.
 *
 * @param gemm_out   f32 [S, T, >= n], any strides, S >= 1; only the first n columns are read
 * @param sqrsum     f32 [S, T], any strides
 * @param scale      f32 [>= 1], contiguous; the first is used
 * @param base       f32 [>= n], contiguous; the first n are used
 * @param hc_hidden  n * H, the number of elements that sqrsum sums, >= 1
 * @param out        f32 [T, n], contiguous */
GM_API gm_status gm_mhc_pre_mix(const gm_exec *exec, const gm_tensor *gemm_out, const gm_tensor *sqrsum,
                                const gm_tensor *scale, const gm_tensor *base, int64_t hc_hidden, float rms_eps,
                                float hc_pre_eps, const gm_tensor *out);

/** The layer-input half of a delayed mHC seam: new residual streams, their collapse, its RMSNorm.
 *
 *   R'[i] = bf16(fma(comb[n-1][i],R[n-1], ... fma(comb[1][i],R[1], fma(post[i],x, comb[0][i]*R[0]))))
 *   v     = bf16(fma(pre[n-1],R'[n-1], ... fma(pre[1],R'[1], pre[0]*R'[0])))
 *   y     = bf16((v * rsqrt(sum(v^2) * (1/H) + norm_eps)) * norm_weight)
 * R' and v are the same to the bit on every backend; y agrees to one bf16 ulp. comb_mix is [source][target].
 * Formula: vllm.model_executor.kernels.mhc.triton.mhc_post_collapse_rms_norm_triton.
 *
 * @param residual      bf16 [T, n, H], contiguous, H >= 1
 * @param sublayer_out  bf16 [T, H], contiguous
 * @param post_mix      f32 [T, n] or [T, n, 1], contiguous
 * @param comb_mix      f32 [T, n, n], contiguous
 * @param pre_mix       f32 [T, n], contiguous
 * @param norm_weight   bf16 [H], contiguous
 * @param residual_out  bf16 [T, n, H], contiguous; may be exactly residual
 * @param layer_input   bf16 [T, H], contiguous */
GM_API gm_status gm_mhc_post_collapse_rms_norm(const gm_exec *exec, const gm_tensor *residual,
                                               const gm_tensor *sublayer_out, const gm_tensor *post_mix,
                                               const gm_tensor *comb_mix, const gm_tensor *pre_mix,
                                               const gm_tensor *norm_weight, float norm_eps,
                                               const gm_tensor *residual_out, const gm_tensor *layer_input);

#ifdef __cplusplus
}
#endif

#endif
