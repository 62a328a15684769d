use gatemix::{Exec, MhcPostCollapseRmsNorm, TensorMut, half::bf16, mhc_post_collapse_rms_norm_in_place};

fn overlap(inputs: &MhcPostCollapseRmsNorm, buffer: &mut [bf16]) -> gatemix::Result<()> {
    let mut residual = TensorMut::new(buffer, [1, 1, 8])?;
    let mut layer_input = TensorMut::new(buffer, [1, 8])?;
    mhc_post_collapse_rms_norm_in_place(&Exec::cpu(), &mut residual, inputs, &mut layer_input)
}

fn main() {}
