use gatemix::Tensor;

fn dangling() -> Tensor<'static, f32, 1> {
    let data = vec![1.0; 8];
    Tensor::new(&data, [8]).unwrap()
}

fn main() {}
