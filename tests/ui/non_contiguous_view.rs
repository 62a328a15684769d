use gatemix::{Exec, GateWeight, Tensor, TensorMut, TensorView, gated_mla, half::bf16};

fn strided(
    x: TensorView<bf16, 2>,
    weight: GateWeight,
    attn: Tensor<bf16, 2>,
    out: &mut TensorMut<bf16, 2>,
) -> gatemix::Result<()> {
    gated_mla(&Exec::cpu(), x, weight, attn, out)
}

fn main() {}
