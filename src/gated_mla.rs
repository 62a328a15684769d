use half::bf16;

use crate::memory::Operand;
use crate::{Exec, GateWidth, Host, Memory, Result, Tensor, TensorMut, sys};

/// The weight of an output gate: bf16 `[n, k]`, `n` a [`GateWidth`].
#[derive(Copy, Clone, Debug)]
pub struct GateWeight<'a, M: Memory = Host>(Tensor<'a, bf16, 2, M>);

impl<'a> GateWeight<'a, Host> {
    /// Takes `width` rows of `k` elements.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `data` has another length than `width * k`.
    pub fn new(data: &'a [bf16], width: GateWidth, k: usize) -> Result<Self> {
        Ok(Self(Tensor::new(data, [width.get(), k])?))
    }
}

impl<'a, M: Memory> GateWeight<'a, M> {
    /// Takes a tensor whose width is known at run time.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if its first dimension is not a [`GateWidth`].
    pub fn from_tensor(tensor: Tensor<'a, bf16, 2, M>) -> Result<Self> {
        GateWidth::new(tensor.shape()[0])?;
        Ok(Self(tensor))
    }
}

/// The elementwise output gate of an MLA layer: `out = bf16(attn * sigmoid(x @ weight^T))`, in one pass.
///
/// | argument | shape | |
/// |---|---|---|
/// | `x` | `[m, k]` | the layer's input, `k >= 1` |
/// | `weight` | `[n, k]` | `n` a multiple of 256 |
/// | `attn` | `[m, n]` | the attention's output |
/// | `out` | `[m, n]` | |
///
/// The dot product is accumulated in fp32 and not rounded before the sigmoid. IEEE rules hold: NaN in a row of `x`
/// makes that row NaN and no other; a logit of -inf gives `attn * 0`.
///
/// The formula is that of vLLM's `vllm.model_executor.layers.hpc.gated_mla.hpc_gated_mla_gemm`.
///
/// ```
/// use gatemix::half::bf16;
/// use gatemix::{Exec, GateWeight, GateWidth, StaticGateWidth, Tensor, TensorMut, gated_mla};
///
/// const WIDTH: GateWidth = StaticGateWidth::<256>::WIDTH;
/// let x = [bf16::ONE, bf16::from_f32(2.0)]; // m = 1, k = 2
/// let weight = [bf16::ZERO; 512]; // all logits are 0, all gates 1/2
/// let attn = [bf16::from_f32(3.0); 256];
/// let mut out = [bf16::ZERO; 256];
///
/// gated_mla(
///     &Exec::cpu(),
///     Tensor::new(&x, [1, 2])?,
///     GateWeight::new(&weight, WIDTH, 2)?,
///     Tensor::new(&attn, [1, 256])?,
///     &mut TensorMut::new(&mut out, [1, 256])?,
/// )?;
/// assert_eq!(out, [bf16::from_f32(1.5); 256]);
/// # Ok::<(), gatemix::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes do not match or `k` is 0,
/// [`Error::Cuda`](crate::Error::Cuda) if CUDA refuses the launch.
pub fn gated_mla<M: Memory>(
    exec: &Exec<M>,
    x: Tensor<'_, bf16, 2, M>,
    weight: GateWeight<'_, M>,
    attn: Tensor<'_, bf16, 2, M>,
    out: &mut TensorMut<'_, bf16, 2, M>,
) -> Result<()> {
    run(exec, x, weight, &attn.lend(exec)?, &out.lend(exec)?)
}

/// [`gated_mla`] with `attn` as its output: `attn = bf16(attn * sigmoid(x @ weight^T))`.
///
/// ```
/// use gatemix::half::bf16;
/// use gatemix::{Exec, GateWeight, GateWidth, Tensor, TensorMut, gated_mla_in_place};
///
/// let x = [bf16::ONE];
/// let weight = [bf16::INFINITY; 256]; // open gates
/// let mut attn = [bf16::from_f32(3.0); 256];
///
/// gated_mla_in_place(
///     &Exec::cpu(),
///     Tensor::new(&x, [1, 1])?,
///     GateWeight::new(&weight, GateWidth::new(256)?, 1)?,
///     &mut TensorMut::new(&mut attn, [1, 256])?,
/// )?;
/// assert_eq!(attn, [bf16::from_f32(3.0); 256]);
/// # Ok::<(), gatemix::Error>(())
/// ```
///
/// # Errors
/// As [`gated_mla`].
pub fn gated_mla_in_place<M: Memory>(
    exec: &Exec<M>,
    x: Tensor<'_, bf16, 2, M>,
    weight: GateWeight<'_, M>,
    attn: &mut TensorMut<'_, bf16, 2, M>,
) -> Result<()> {
    let attn = attn.lend(exec)?;
    run(exec, x, weight, &attn, &attn)
}

fn run<M: Memory>(
    exec: &Exec<M>,
    x: Tensor<'_, bf16, 2, M>,
    weight: GateWeight<'_, M>,
    attn: &Operand<'_, M>,
    out: &Operand<'_, M>,
) -> Result<()> {
    let (x, weight) = (x.lend(exec)?, weight.0.lend(exec)?);
    exec.run(|exec| {
        // SAFETY: descriptors of live tensors, `out` of an exclusive one; C checks that the shapes match.
        unsafe { sys::gm_gated_mla(exec, x.as_ptr(), weight.as_ptr(), attn.as_ptr(), out.as_ptr()) }
    })
}
