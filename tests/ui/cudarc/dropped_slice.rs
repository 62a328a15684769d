use gatemix::cudarc::driver::CudaSlice;
use gatemix::{Cudarc, Exec, Tensor, TensorMut, rms_norm};

fn freed(exec: &Exec<Cudarc>, x: CudaSlice<f32>, out: &mut TensorMut<f32, 2, Cudarc>) -> gatemix::Result<()> {
    let tensor = Tensor::from_cudarc(&x, [2, 8])?;
    drop(x);
    rms_norm(exec, tensor, None, 1e-6, out)
}

fn main() {}
