//! The residual streams. T tokens, n streams (1, 2, 4 or 8), H the hidden size.

use half::bf16;

use crate::memory::Operand;
use crate::{Exec, Host, Memory, Result, Tensor, TensorMut, TensorView, sys};

/// The weighted sum of the residual streams: `out[t,h] = bf16(sum_i pre_mix[t,i] * residual[t,i,h])`.
///
/// | argument | shape | |
/// |---|---|---|
/// | `residual` | bf16 `[T, n, H]` | any strides, `n` 1, 2, 4 or 8, `H >= 1` |
/// | `pre_mix` | f32 `[T, n]` | any strides |
/// | `out` | bf16 `[T, H]` | |
///
/// The sum goes up from stream 0, with product and sum rounded separately in fp32: the result is the same to the bit
/// on every backend.
///
/// The formula is that of vLLM's `vllm.model_executor.kernels.mhc.triton.hc_collapse_triton`.
///
/// ```
/// use gatemix::half::bf16;
/// use gatemix::{Exec, Tensor, TensorMut, hc_collapse};
///
/// let residual = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0].map(bf16::from_f32); // T = 1, n = 2, H = 3
/// let pre_mix = [2.0_f32, 0.5];
/// let mut out = [bf16::ZERO; 3];
///
/// hc_collapse(
///     &Exec::cpu(),
///     Tensor::new(&residual, [1, 2, 3])?,
///     Tensor::new(&pre_mix, [1, 2])?,
///     &mut TensorMut::new(&mut out, [1, 3])?,
/// )?;
/// assert_eq!(out, [7.0, 14.0, 21.0].map(bf16::from_f32));
/// # Ok::<(), gatemix::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes are not as above.
pub fn hc_collapse<'a, M: Memory>(
    exec: &Exec<M>,
    residual: impl Into<TensorView<'a, bf16, 3, M>>,
    pre_mix: impl Into<TensorView<'a, f32, 2, M>>,
    out: &mut TensorMut<'_, bf16, 2, M>,
) -> Result<()> {
    let (residual, pre_mix) = (residual.into(), pre_mix.into());
    let (residual, pre_mix, out) = (residual.lend(exec)?, pre_mix.lend(exec)?, out.lend(exec)?);
    exec.run(|exec| {
        // SAFETY: descriptors of live tensors, `out` of an exclusive one; C checks that the shapes match.
        unsafe { sys::gm_hc_collapse(exec, residual.as_ptr(), pre_mix.as_ptr(), out.as_ptr()) }
    })
}

/// The two published forms of [`hc_head`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum HeadMode {
    /// The normalised row is rounded to bf16 before the projection, as in vLLM.
    #[default]
    Rounded = sys::GM_HEAD_ROUNDED,
    /// The projection is scaled afterwards, all in fp32, as in DeepSeek's reference.
    Fp32 = sys::GM_HEAD_FP32,
}

/// The inputs of [`hc_head`].
#[derive(Copy, Clone, Debug)]
pub struct HcHead<'a, M: Memory = Host> {
    /// `[T, n, H]`, `n` 1, 2, 4 or 8, `H >= 1`
    pub residual: Tensor<'a, bf16, 3, M>,
    /// `[n, n*H]`, the projection
    pub fn_weight: Tensor<'a, f32, 2, M>,
    /// `[1]`
    pub scale: Tensor<'a, f32, 1, M>,
    /// `[n]`
    pub base: Tensor<'a, f32, 1, M>,
    /// Added to the mean square; finite and `>= 0`.
    pub rms_eps: f32,
    /// Added to the gates; finite and `>= 0`.
    pub hc_eps: f32,
    /// Where the normalised row is rounded.
    pub mode: HeadMode,
}

/// The collapse before the language-model head: gates from the normalised streams, then their weighted sum.
///
/// ```text
/// x = residual[t] flattened, r = rsqrt(mean(x^2) + rms_eps)
/// Rounded:  mix_i = sum_j bf16(x_j * r) * fn_weight[i,j]
/// Fp32:     mix_i = (sum_j x_j * fn_weight[i,j]) * r
/// pre_i = sigmoid(mix_i * scale + base_i) + hc_eps
/// out = bf16(acc), acc = fma(pre_i, residual[t,i], acc), i ascending
/// ```
///
/// The shapes are those of [`HcHead`]; `out` is `[T, H]`.
///
/// The formula is that of vLLM's `vllm.model_executor.kernels.mhc.triton._hc_head_triton` and of `hc_head` in
/// DeepSeek-V4's reference.
///
/// ```
/// use gatemix::half::bf16;
/// use gatemix::{Exec, HcHead, HeadMode, Tensor, TensorMut, hc_head};
///
/// let residual = [1.0, 2.0, 3.0, 4.0].map(bf16::from_f32); // T = 1, n = 2, H = 2
/// let head = HcHead {
///     residual: Tensor::new(&residual, [1, 2, 2])?,
///     fn_weight: Tensor::new(&[0.0; 8], [2, 4])?, // all gates are 1/2
///     scale: Tensor::new(&[1.0], [1])?,
///     base: Tensor::new(&[0.0; 2], [2])?,
///     rms_eps: 1e-6,
///     hc_eps: 0.0,
///     mode: HeadMode::Rounded,
/// };
/// let mut out = [bf16::ZERO; 2];
///
/// hc_head(&Exec::cpu(), &head, &mut TensorMut::new(&mut out, [1, 2])?)?;
/// assert_eq!(out, [2.0, 3.0].map(bf16::from_f32));
/// # Ok::<(), gatemix::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes are not as above,
/// [`Error::InvalidValue`](crate::Error::InvalidValue) if an epsilon is not.
pub fn hc_head<M: Memory>(exec: &Exec<M>, inputs: &HcHead<'_, M>, out: &mut TensorMut<'_, bf16, 2, M>) -> Result<()> {
    let (residual, fn_weight) = (inputs.residual.lend(exec)?, inputs.fn_weight.lend(exec)?);
    let (scale, base, out) = (inputs.scale.lend(exec)?, inputs.base.lend(exec)?, out.lend(exec)?);
    exec.run(|exec| {
        // SAFETY: descriptors of live tensors, `out` of an exclusive one; C checks that the shapes match.
        unsafe {
            sys::gm_hc_head(
                exec,
                residual.as_ptr(),
                fn_weight.as_ptr(),
                scale.as_ptr(),
                base.as_ptr(),
                inputs.rms_eps,
                inputs.hc_eps,
                inputs.mode as i32,
                out.as_ptr(),
            )
        }
    })
}

/// The inputs of [`mhc_pre_mix`].
#[derive(Copy, Clone, Debug)]
pub struct MhcPreMix<'a, M: Memory = Host> {
    /// `[S, T, >= n]`, any strides, `S >= 1`; only the first `n` columns are read
    pub gemm_out: TensorView<'a, f32, 3, M>,
    /// `[S, T]`, any strides
    pub sqrsum: TensorView<'a, f32, 2, M>,
    /// `[>= 1]`; the first is used
    pub scale: Tensor<'a, f32, 1, M>,
    /// `[>= n]`; the first `n` are used
    pub base: Tensor<'a, f32, 1, M>,
    /// `n * H`, the number of elements that `sqrsum` sums, `>= 1`
    pub hc_hidden: usize,
    /// Added to the mean square; finite and `>= 0`.
    pub rms_eps: f32,
    /// Added to the gates; finite and `>= 0`.
    pub hc_pre_eps: f32,
}

/// The pre-mix gate from the `S` partial results of a split-K projection.
///
/// ```text
/// mix_j = sum_s gemm_out[s,t,j]
/// rstd = rsqrt((sum_s sqrsum[s,t]) * (1/hc_hidden) + rms_eps)
/// out[t,j] = sigmoid(mix_j * rstd * scale[0] + base[j]) + hc_pre_eps
/// ```
///
/// Every product and sum is rounded separately in fp32, `s` ascending. The shapes are those of [`MhcPreMix`]; `out` is
/// `[T, n]`, `n` 1, 2, 4 or 8.
///
/// The formula is that of vLLM's `vllm.model_executor.kernels.mhc.triton.mhc_pre_mix_triton`.
///
/// ```
/// use gatemix::{Exec, MhcPreMix, Tensor, TensorMut, mhc_pre_mix};
///
/// let inputs = MhcPreMix {
///     gemm_out: Tensor::new(&[1.0, -1.0, -1.0, 1.0], [2, 1, 2])?.into(), // S = 2, T = 1, n = 2; the sums are 0
///     sqrsum: Tensor::new(&[2.0, 2.0], [2, 1])?.into(),
///     scale: Tensor::new(&[1.0], [1])?,
///     base: Tensor::new(&[0.0, 0.0], [2])?,
///     hc_hidden: 4,
///     rms_eps: 0.0,
///     hc_pre_eps: 0.25,
/// };
/// let mut out = [0.0; 2];
///
/// mhc_pre_mix(&Exec::cpu(), &inputs, &mut TensorMut::new(&mut out, [1, 2])?)?;
/// assert_eq!(out, [0.75, 0.75]);
/// # Ok::<(), gatemix::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes are not as above,
/// [`Error::InvalidValue`](crate::Error::InvalidValue) if `hc_hidden` or an epsilon is not.
pub fn mhc_pre_mix<M: Memory>(
    exec: &Exec<M>,
    inputs: &MhcPreMix<'_, M>,
    out: &mut TensorMut<'_, f32, 2, M>,
) -> Result<()> {
    let (gemm_out, sqrsum) = (inputs.gemm_out.lend(exec)?, inputs.sqrsum.lend(exec)?);
    let (scale, base, out) = (inputs.scale.lend(exec)?, inputs.base.lend(exec)?, out.lend(exec)?);
    exec.run(|exec| {
        // SAFETY: descriptors of live tensors, `out` of an exclusive one; C checks that the shapes match.
        unsafe {
            sys::gm_mhc_pre_mix(
                exec,
                gemm_out.as_ptr(),
                sqrsum.as_ptr(),
                scale.as_ptr(),
                base.as_ptr(),
                inputs.hc_hidden as i64, // C refuses the negative numbers that this may give
                inputs.rms_eps,
                inputs.hc_pre_eps,
                out.as_ptr(),
            )
        }
    })
}

/// The inputs of [`mhc_post_collapse_rms_norm`], but for the residual streams.
#[derive(Copy, Clone, Debug)]
pub struct MhcPostCollapseRmsNorm<'a, M: Memory = Host> {
    /// `[T, H]`, `H >= 1`
    pub sublayer_out: Tensor<'a, bf16, 2, M>,
    /// `[T, n]`
    pub post_mix: Tensor<'a, f32, 2, M>,
    /// `[T, n, n]`: token, source, target
    pub comb_mix: Tensor<'a, f32, 3, M>,
    /// `[T, n]`
    pub pre_mix: Tensor<'a, f32, 2, M>,
    /// `[H]`
    pub norm_weight: Tensor<'a, bf16, 1, M>,
    /// Added to the mean square; finite and `>= 0`.
    pub norm_eps: f32,
}

/// The layer-input half of a delayed mHC seam: new residual streams, their collapse, its RMS norm.
///
/// ```text
/// R'[i] = bf16(fma(comb[n-1][i],R[n-1], ... fma(comb[1][i],R[1], fma(post[i],x, comb[0][i]*R[0]))))
/// v     = bf16(fma(pre[n-1],R'[n-1], ... fma(pre[1],R'[1], pre[0]*R'[0])))
/// y     = bf16((v * rsqrt(sum(v^2) * (1/H) + norm_eps)) * norm_weight)
/// ```
///
/// `residual` holds `R`, bf16 `[T, n, H]`, `n` 1, 2, 4 or 8; the other inputs are those of
/// [`MhcPostCollapseRmsNorm`], `x` being `sublayer_out`. `residual_out` gets `R'`, `[T, n, H]`, and `layer_input` gets
/// `y`, `[T, H]`. `R'` and `v` are the same to the bit on every backend; `y` agrees to one bf16 ulp.
///
/// The formula is that of vLLM's `vllm.model_executor.kernels.mhc.triton.mhc_post_collapse_rms_norm_triton`.
///
/// ```
/// use gatemix::half::bf16;
/// use gatemix::{Exec, MhcPostCollapseRmsNorm, Tensor, TensorMut, mhc_post_collapse_rms_norm};
///
/// let residual = [1.0, 2.0, 3.0, 4.0].map(bf16::from_f32); // T = 1, n = 2, H = 2
/// let inputs = MhcPostCollapseRmsNorm {
///     sublayer_out: Tensor::new(&[bf16::ONE; 2], [1, 2])?,
///     post_mix: Tensor::new(&[10.0, 20.0], [1, 2])?,
///     comb_mix: Tensor::new(&[0.0, 1.0, 1.0, 0.0], [1, 2, 2])?, // swaps the streams
///     pre_mix: Tensor::new(&[0.0, 1.0], [1, 2])?,               // takes the second one
///     norm_weight: Tensor::new(&[bf16::ONE; 2], [2])?,
///     norm_eps: 0.0,
/// };
/// let mut residual_out = [bf16::ZERO; 4];
/// let mut layer_input = [bf16::ZERO; 2];
///
/// mhc_post_collapse_rms_norm(
///     &Exec::cpu(),
///     Tensor::new(&residual, [1, 2, 2])?,
///     &inputs,
///     &mut TensorMut::new(&mut residual_out, [1, 2, 2])?,
///     &mut TensorMut::new(&mut layer_input, [1, 2])?,
/// )?;
/// assert_eq!(residual_out, [13.0, 14.0, 21.0, 22.0].map(bf16::from_f32));
/// // [21, 22] / rms([21, 22]), to bf16
/// assert_eq!(layer_input, [0.9765625, 1.0234375].map(bf16::from_f32));
/// # Ok::<(), gatemix::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes are not as above,
/// [`Error::InvalidValue`](crate::Error::InvalidValue) if `norm_eps` is not.
pub fn mhc_post_collapse_rms_norm<M: Memory>(
    exec: &Exec<M>,
    residual: Tensor<'_, bf16, 3, M>,
    inputs: &MhcPostCollapseRmsNorm<'_, M>,
    residual_out: &mut TensorMut<'_, bf16, 3, M>,
    layer_input: &mut TensorMut<'_, bf16, 2, M>,
) -> Result<()> {
    run_post(exec, &residual.lend(exec)?, inputs, &residual_out.lend(exec)?, layer_input)
}

/// [`mhc_post_collapse_rms_norm`] with `residual` as its `residual_out`.
///
/// # Errors
/// As [`mhc_post_collapse_rms_norm`].
pub fn mhc_post_collapse_rms_norm_in_place<M: Memory>(
    exec: &Exec<M>,
    residual: &mut TensorMut<'_, bf16, 3, M>,
    inputs: &MhcPostCollapseRmsNorm<'_, M>,
    layer_input: &mut TensorMut<'_, bf16, 2, M>,
) -> Result<()> {
    let residual = residual.lend(exec)?;
    run_post(exec, &residual, inputs, &residual, layer_input)
}

fn run_post<M: Memory>(
    exec: &Exec<M>,
    residual: &Operand<'_, M>,
    inputs: &MhcPostCollapseRmsNorm<'_, M>,
    residual_out: &Operand<'_, M>,
    layer_input: &mut TensorMut<'_, bf16, 2, M>,
) -> Result<()> {
    let (sublayer_out, post_mix) = (inputs.sublayer_out.lend(exec)?, inputs.post_mix.lend(exec)?);
    let (comb_mix, pre_mix) = (inputs.comb_mix.lend(exec)?, inputs.pre_mix.lend(exec)?);
    let (norm_weight, layer_input) = (inputs.norm_weight.lend(exec)?, layer_input.lend(exec)?);
    exec.run(|exec| {
        // SAFETY: descriptors of live tensors, the outputs of exclusive ones; C checks that the shapes match.
        unsafe {
            sys::gm_mhc_post_collapse_rms_norm(
                exec,
                residual.as_ptr(),
                sublayer_out.as_ptr(),
                post_mix.as_ptr(),
                comb_mix.as_ptr(),
                pre_mix.as_ptr(),
                norm_weight.as_ptr(),
                inputs.norm_eps,
                residual_out.as_ptr(),
                layer_input.as_ptr(),
            )
        }
    })
}
