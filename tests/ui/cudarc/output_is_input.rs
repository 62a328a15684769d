use gatemix::cudarc::driver::CudaSlice;
use gatemix::{Cudarc, Exec, Tensor, TensorMut, rms_norm};

fn overlap(exec: &Exec<Cudarc>, buffer: &mut CudaSlice<f32>) -> gatemix::Result<()> {
    let x = Tensor::from_cudarc(buffer, [2, 8])?;
    let mut out = TensorMut::from_cudarc(buffer, [2, 8])?;
    rms_norm(exec, x, None, 1e-6, &mut out)
}

fn main() {}
