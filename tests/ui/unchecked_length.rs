use gatemix::{Exec, GateWeight, Tensor, TensorMut, gated_mla_in_place, half::bf16};

fn unchecked(x: &[bf16], weight: GateWeight, attn: &mut TensorMut<bf16, 2>) -> gatemix::Result<()> {
    gated_mla_in_place(&Exec::cpu(), Tensor::new(x, [2, 8]), weight, attn)
}

fn main() {}
