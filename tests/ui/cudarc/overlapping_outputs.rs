use gatemix::cudarc::driver::CudaSlice;
use gatemix::{Cudarc, Exec, MhcPostCollapseRmsNorm, TensorMut, half::bf16, mhc_post_collapse_rms_norm_in_place};

fn overlap(
    exec: &Exec<Cudarc>,
    inputs: &MhcPostCollapseRmsNorm<Cudarc>,
    buffer: &mut CudaSlice<bf16>,
) -> gatemix::Result<()> {
    let mut residual = TensorMut::from_cudarc(buffer, [1, 1, 8])?;
    let mut layer_input = TensorMut::from_cudarc(buffer, [1, 8])?;
    mhc_post_collapse_rms_norm_in_place(exec, &mut residual, inputs, &mut layer_input)
}

fn main() {}
