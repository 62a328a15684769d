use std::ptr;

use crate::memory::Operand;
use crate::{Element, Exec, Memory, Result, Tensor, TensorMut, TensorView, sys};

/// RMS normalisation of the last dimension: `out = E(x * rsqrt(mean(x^2) + eps) [* weight])`.
///
/// | argument | shape | |
/// |---|---|---|
/// | `x` | `[..., D]`, 1 to 4 dimensions, `D >= 1` | rows may lie apart, see below |
/// | `weight` | `[D]` | `None`: no weight |
/// | `out` | as `x` | |
///
/// All have the element type `E`: bf16, f16 or f32. The arithmetic is in fp32, with one rounding to `E` at the end.
/// `eps` is used as given, any finite value `>= 0`.
///
/// The last dimension of `x` is contiguous, and its leading dimensions collapse to rows at one distance `>= D`.
///
/// The formula is that of vLLM's `vllm.model_executor.kernels.mhc.triton.rmsnorm_nw`, with an optional weight.
///
/// ```
/// use gatemix::{Exec, Tensor, TensorMut, rms_norm};
///
/// let x = [3.0_f32, 3.0, -3.0, -3.0];
/// let weight = [1.0_f32, 2.0, 1.0, 2.0];
/// let mut out = [0.0_f32; 4];
///
/// let weight = Tensor::new(&weight, [4])?;
/// rms_norm(&Exec::cpu(), Tensor::new(&x, [1, 4])?, Some(weight), 0.0, &mut TensorMut::new(&mut out, [1, 4])?)?;
/// for (value, expected) in out.iter().zip([1.0, 2.0, -1.0, -2.0]) {
///     assert!((value - expected).abs() < 1e-6);
/// }
/// # Ok::<(), gatemix::Error>(())
/// ```
///
/// # Errors
/// [`Error::Rank`](crate::Error::Rank), [`Error::Shape`](crate::Error::Shape) or
/// [`Error::Stride`](crate::Error::Stride) if the tensors are not as above,
/// [`Error::InvalidValue`](crate::Error::InvalidValue) if `eps` is not.
pub fn rms_norm<'a, E: Element, const R: usize, M: Memory>(
    exec: &Exec<M>,
    x: impl Into<TensorView<'a, E, R, M>>,
    weight: Option<Tensor<'_, E, 1, M>>,
    eps: f32,
    out: &mut TensorMut<'_, E, R, M>,
) -> Result<()> {
    run(exec, &x.into().lend(exec)?, weight, eps, &out.lend(exec)?)
}

/// [`rms_norm`] with `x` as its output.
///
/// ```
/// use gatemix::half::f16;
/// use gatemix::{Exec, TensorMut, rms_norm_in_place};
///
/// let mut x = [2.0, -2.0].map(f16::from_f32);
/// rms_norm_in_place(&Exec::cpu(), &mut TensorMut::new(&mut x, [2])?, None, 0.0)?;
/// assert_eq!(x, [f16::ONE, f16::NEG_ONE]);
/// # Ok::<(), gatemix::Error>(())
/// ```
///
/// # Errors
/// As [`rms_norm`].
pub fn rms_norm_in_place<E: Element, const R: usize, M: Memory>(
    exec: &Exec<M>,
    x: &mut TensorMut<'_, E, R, M>,
    weight: Option<Tensor<'_, E, 1, M>>,
    eps: f32,
) -> Result<()> {
    let x = x.lend(exec)?;
    run(exec, &x, weight, eps, &x)
}

fn run<E: Element, M: Memory>(
    exec: &Exec<M>,
    x: &Operand<'_, M>,
    weight: Option<Tensor<'_, E, 1, M>>,
    eps: f32,
    out: &Operand<'_, M>,
) -> Result<()> {
    let weight = weight.as_ref().map(|weight| weight.lend(exec)).transpose()?;
    let weight = weight.as_ref().map_or(ptr::null(), Operand::as_ptr);
    exec.run(|exec| {
        // SAFETY: descriptors of live tensors, `out` of an exclusive one; C checks that the shapes match.
        unsafe { sys::gm_rms_norm(exec, x.as_ptr(), weight, eps, out.as_ptr()) }
    })
}
