use gatemix::Tensor;
use gatemix::cudarc::driver::CudaSlice;

fn unknown_type(x: &CudaSlice<f64>) {
    let _ = Tensor::from_cudarc(x, [8]);
}

fn main() {}
