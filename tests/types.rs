//! What the safe API refuses at run time: an error of the right kind, its sentence, outputs untouched.
mod common;

use common::compare::Float;
use gatemix::*;
use half::bf16;

const GUARD: bf16 = <bf16 as Float>::GUARD;

fn shape_error<T: std::fmt::Debug>(result: Result<T>, parts: &[&str]) {
    let error = result.unwrap_err();
    let Error::Shape(sentence) = &error else { panic!("{error:?} is no shape error") };
    parts.iter().for_each(|part| assert!(sentence.contains(part), "{sentence:?} lacks {part:?}"));
    assert_eq!(error.to_string(), *sentence);
    assert_eq!(error.status(), sys::GM_ERROR_SHAPE);
}

#[test]
fn a_shape_must_fit_its_slice() {
    let mut data = [0f32; 6];
    assert_eq!(Tensor::new(&data, [2, 3]).unwrap().shape(), [2, 3]);
    assert_eq!(TensorMut::new(&mut data, [1, 6, 1]).unwrap().shape(), [1, 6, 1]);
    for shape in [[2, 2], [2, 4], [0, 6], [usize::MAX, 2], [1 << 32, 1 << 32]] {
        shape_error(Tensor::new(&data, shape), &["6", &shape[0].to_string(), &shape[1].to_string()]);
        shape_error(TensorMut::new(&mut data, shape), &["6", &shape[0].to_string()]);
    }
}

/// Tensors of different lifetimes fit into the inputs of one operator.
#[allow(unused)]
fn a_tensor_may_live_shorter<'a, M: Memory>(
    read: Tensor<'static, f32, 1, M>,
    view: TensorView<'static, f32, 1, M>,
    written: TensorMut<'static, f32, 1, M>,
) -> (Tensor<'a, f32, 1, M>, TensorView<'a, f32, 1, M>, TensorMut<'a, f32, 1, M>) {
    (read, view, written)
}

#[test]
fn a_view_must_stay_in_its_slice() {
    let data = [0f32; 12];
    for (shape, strides) in [
        ([3, 4], [4, 1]),
        ([3, 3], [4, 1]),
        ([4, 3], [1, 4]),
        ([9, 9], [0, 1]),
        ([0, 99], [99, 99]),
        ([2, 1], [11, 99]),
    ] {
        assert_eq!(TensorView::new(&data, shape, strides).unwrap().shape(), shape);
    }
    for (shape, strides) in [
        ([3, 4], [5, 1]),
        ([4, 4], [4, 1]),
        ([1, 13], [0, 1]),
        ([2, 2], [usize::MAX, 1]),
        ([2, 2], [usize::MAX, usize::MAX]),
    ] {
        shape_error(TensorView::new(&data, shape, strides), &["12", &strides[0].to_string()]);
    }
    shape_error(TensorView::new(&data[..0], [1], [1]), &["0"]);
}

#[test]
fn a_gate_has_a_width_in_steps_of_256() {
    assert_eq!([256, 512, 16384].map(|n| GateWidth::new(n).unwrap().get()), [256, 512, 16384]);
    for width in [1, 255, 257, 8190] {
        shape_error(GateWidth::new(width), &[&width.to_string(), "multiple of 256"]);
    }
    assert_eq!(GateWidth::new(0).unwrap(), StaticGateWidth::<0>::WIDTH); // as in C
    const WIDTH: GateWidth = StaticGateWidth::<768>::WIDTH;
    let data = [bf16::ZERO; 768 * 2];
    assert!(GateWeight::new(&data, WIDTH, 2).is_ok());
    shape_error(GateWeight::new(&data, WIDTH, 3), &["1536"]);
    shape_error(GateWeight::from_tensor(Tensor::new(&data, [2, 768]).unwrap()), &["2", "multiple of 256"]);
}

#[test]
fn a_gate_without_columns_is_nothing_to_do() {
    let x = [bf16::ONE; 10];
    let weight = GateWeight::new(&[], GateWidth::new(0).unwrap(), 5).unwrap();
    let attn = Tensor::new(&[], [2, 0]).unwrap();
    let out = &mut TensorMut::new(&mut [], [2, 0]).unwrap();
    gated_mla(&Exec::cpu(), Tensor::new(&x, [2, 5]).unwrap(), weight, attn, out).unwrap();
    assert_eq!(last_kernel(), "none");
}

#[test]
fn gated_mla_refuses_shapes_that_do_not_match() {
    let (data, mut out) = (vec![bf16::ONE; 4096], vec![GUARD; 512]);
    let x = |shape: [usize; 2]| Tensor::new(&data[..shape[0] * shape[1]], shape).unwrap();
    let weight = |k: usize| GateWeight::new(&data[..256 * k], GateWidth::new(256).unwrap(), k).unwrap();
    let mut run = |x, weight, attn| {
        let result = gated_mla(&Exec::cpu(), x, weight, attn, &mut TensorMut::new(&mut out, [2, 256]).unwrap());
        assert!(out.iter().all(|v| v.to_bits() == GUARD.to_bits()));
        result
    };
    shape_error(run(x([2, 5]), weight(6), x([2, 256])), &["weight.shape[1] = 6", "5"]);
    shape_error(run(x([2, 5]), weight(5), x([3, 256])), &["attn.shape[0] = 3", "2"]);
    shape_error(run(x([2, 5]), weight(5), x([2, 255])), &["attn.shape[1] = 255", "256"]);
    shape_error(run(x([3, 5]), weight(5), x([3, 256])), &["out.shape[0] = 2", "3"]);
    shape_error(run(x([2, 0]), weight(0), x([2, 256])), &["x.shape[1] = 0", "at least 1"]);
}

#[test]
fn other_kinds_of_errors() {
    let (x, mut y) = ([1f32; 8], [0f32; 8]);
    let view = TensorView::new(&x, [2, 2], [4, 2]).unwrap();
    let error =
        rms_norm(&Exec::cpu(), view, None, 1e-6, &mut TensorMut::new(&mut y[..4], [2, 2]).unwrap()).unwrap_err();
    assert!(matches!(&error, Error::Stride(sentence) if sentence.contains("x.stride[1] = 2")), "{error:?}");
    let mut out = TensorMut::new(&mut y, [2, 4]).unwrap();
    let error = rms_norm(&Exec::cpu(), Tensor::new(&x, [2, 4]).unwrap(), None, f32::NAN, &mut out).unwrap_err();
    assert!(matches!(&error, Error::InvalidValue(sentence) if sentence.contains("eps = nan")), "{error:?}");
    // SAFETY: a 64-bit tensor of which nothing is read.
    let huge: Tensor<f32, 2> = unsafe { Tensor::from_raw(x.as_ptr(), [1 << 62, 4]) };
    let error = rms_norm(&Exec::cpu(), huge, None, 1e-6, &mut out).unwrap_err();
    assert!(matches!(&error, Error::Shape(_)), "{error:?}");
    // SAFETY: the address is refused.
    let odd: Tensor<f32, 2> = unsafe { Tensor::from_raw(x.as_ptr().wrapping_byte_add(2), [1, 4]) };
    let error =
        rms_norm(&Exec::cpu(), odd, None, 1e-6, &mut TensorMut::new(&mut [0f32; 4], [1, 4]).unwrap()).unwrap_err();
    assert!(matches!(&error, Error::Alignment(_)), "{error:?}");
    // SAFETY: null is refused.
    let null: Tensor<f32, 2> = unsafe { Tensor::from_raw(std::ptr::null(), [1, 4]) };
    let error =
        rms_norm(&Exec::cpu(), null, None, 1e-6, &mut TensorMut::new(&mut [0f32; 4], [1, 4]).unwrap()).unwrap_err();
    assert!(matches!(&error, Error::NullPointer(_)), "{error:?}");
    assert_eq!(y, [0.0; 8]);
}

#[test]
fn the_backends() {
    assert_eq!(backend_status(Backend::Cpu, 0), Ok(()));
    let error = backend_status(Backend::Cuda, 4096).unwrap_err();
    assert!(matches!(&error, Error::Backend(sentence) if sentence.contains("CUDA")), "{error:?}");
    assert_eq!(error.status(), sys::GM_ERROR_BACKEND);
    // SAFETY: refused before the stream is used.
    let exec = unsafe { Exec::cuda(4096, std::ptr::null_mut()) };
    assert!(matches!(exec, Err(Error::Backend(_))));
}
