use gatemix::{Exec, GateWeight, Tensor, TensorMut, gated_mla, half::bf16};

fn wrong_type(
    x: Tensor<f32, 2>,
    weight: GateWeight,
    attn: Tensor<bf16, 2>,
    out: &mut TensorMut<bf16, 2>,
) -> gatemix::Result<()> {
    gated_mla(&Exec::cpu(), x, weight, attn, out)
}

fn main() {}
