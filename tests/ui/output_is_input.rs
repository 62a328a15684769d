use gatemix::{Exec, Tensor, TensorMut, rms_norm};

fn overlap(buffer: &mut [f32]) -> gatemix::Result<()> {
    let x = Tensor::new(buffer, [2, 8])?;
    let mut out = TensorMut::new(buffer, [2, 8])?;
    rms_norm(&Exec::cpu(), x, None, 1e-6, &mut out)
}

fn main() {}
