//! Operators on cudarc's slices: shapes, offsets, and an order between streams that nobody asked for.
use std::process::ExitCode;
use std::sync::Arc;

use gatemix::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gatemix::half::bf16;
use gatemix::*;
use libtest_mimic::{Arguments, Trial};

/// A row whose root mean square is 5, and its norm, once rounded.
const ROW: [f32; 2] = [7.0, 1.0];
const NORM: [f32; 2] = [1.4, 0.2];

fn main() -> ExitCode {
    let tests: [(&str, fn()); 9] = [
        ("slices_in_slices_out", slices_in_slices_out),
        ("a_gate_and_one_in_place", a_gate_and_one_in_place),
        ("a_view_keeps_its_offset", a_view_keeps_its_offset),
        ("a_strided_view", a_strided_view),
        ("a_shape_must_fit_its_slice", a_shape_must_fit_its_slice),
        ("a_consumer_on_another_stream_waits", a_consumer_on_another_stream_waits),
        ("a_writer_on_another_stream_waits", a_writer_on_another_stream_waits),
        ("another_context_is_refused", another_context_is_refused),
        ("a_thread_without_a_context", a_thread_without_a_context),
    ];
    let usable = backend_status(Backend::Cuda, 0).is_ok();
    let trials = tests.map(|(name, test)| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(format!("cuda::{name}"), run).with_ignored_flag(!usable)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

fn stream() -> Arc<CudaStream> {
    CudaContext::new(0).unwrap().new_stream().unwrap()
}

/// As many rows as fit into `len`, one after the other.
fn repeat(row: [f32; 2], len: usize) -> Vec<bf16> {
    row.into_iter().cycle().take(len).map(bf16::from_f32).collect()
}

fn slices_in_slices_out() {
    let stream = stream();
    let residual = stream.clone_htod(&[1.0, 2.0, 3.0, 4.0].map(bf16::from_f32)).unwrap(); // T = 1, n = 2, H = 2
    let (sublayer_out, norm_weight) = (stream.clone_htod(&[bf16::ONE; 2]), stream.clone_htod(&[bf16::ONE; 2]));
    let (sublayer_out, norm_weight) = (sublayer_out.unwrap(), norm_weight.unwrap());
    let post_mix = stream.clone_htod(&[10f32, 20.0]).unwrap();
    let comb_mix = stream.clone_htod(&[0f32, 1.0, 1.0, 0.0]).unwrap(); // swaps the streams
    let pre_mix = stream.clone_htod(&[0f32, 1.0]).unwrap(); // takes the second one
    let mut residual_out = stream.alloc_zeros(4).unwrap();
    let mut layer_input = stream.alloc_zeros(2).unwrap();
    let inputs = MhcPostCollapseRmsNorm {
        sublayer_out: Tensor::from_cudarc(&sublayer_out, [1, 2]).unwrap(),
        post_mix: Tensor::from_cudarc(&post_mix, [1, 2]).unwrap(),
        comb_mix: Tensor::from_cudarc(&comb_mix, [1, 2, 2]).unwrap(),
        pre_mix: Tensor::from_cudarc(&pre_mix, [1, 2]).unwrap(),
        norm_weight: Tensor::from_cudarc(&norm_weight, [2]).unwrap(),
        norm_eps: 0.0,
    };
    mhc_post_collapse_rms_norm(
        &Exec::cudarc(&stream).unwrap(),
        Tensor::from_cudarc(&residual, [1, 2, 2]).unwrap(),
        &inputs,
        &mut TensorMut::from_cudarc(&mut residual_out, [1, 2, 2]).unwrap(),
        &mut TensorMut::from_cudarc(&mut layer_input, [1, 2]).unwrap(),
    )
    .unwrap();
    assert!(last_kernel().contains("/cuda/"), "{}", last_kernel());
    assert_eq!(stream.clone_dtoh(&residual_out).unwrap(), [13.0, 14.0, 21.0, 22.0].map(bf16::from_f32));
    assert_eq!(stream.clone_dtoh(&layer_input).unwrap(), [0.9765625, 1.0234375].map(bf16::from_f32));
}

fn a_gate_and_one_in_place() {
    const M: usize = 3;
    const N: usize = 256;
    const K: usize = 72;
    let stream = stream();
    let exec = Exec::cudarc(&stream).unwrap();
    let x = stream.clone_htod(&[bf16::ONE; M * K]).unwrap();
    // Logits of 0, and of 144 in odd columns: gates of 1/2 and 1.
    let column = |i: usize| bf16::from_f32(if i / K % 2 == 0 { 0.0 } else { 2.0 });
    let weight = stream.clone_htod(&(0..N * K).map(column).collect::<Vec<_>>()).unwrap();
    let mut attn = stream.clone_htod(&repeat(ROW, M * N)).unwrap();
    let mut out = stream.alloc_zeros(M * N).unwrap();
    let x = Tensor::from_cudarc(&x, [M, K]).unwrap();
    let weight = GateWeight::from_tensor(Tensor::from_cudarc(&weight, [N, K]).unwrap()).unwrap();
    let of_attn = Tensor::from_cudarc(&attn, [M, N]).unwrap();
    gated_mla(&exec, x, weight, of_attn, &mut TensorMut::from_cudarc(&mut out, [M, N]).unwrap()).unwrap();
    assert!(last_kernel().starts_with("gated_mla/cuda/"), "{}", last_kernel());
    gated_mla_in_place(&exec, x, weight, &mut TensorMut::from_cudarc(&mut attn, [M, N]).unwrap()).unwrap();
    let want = repeat([3.5, 1.0], M * N);
    assert_eq!(stream.clone_dtoh(&out).unwrap(), want);
    assert_eq!(stream.clone_dtoh(&attn).unwrap(), want);
}

fn a_view_keeps_its_offset() {
    let stream = stream();
    let exec = Exec::cudarc(&stream).unwrap();
    let x = stream.clone_htod(&repeat(ROW, 7)).unwrap();
    let mut out = stream.alloc_zeros::<bf16>(9).unwrap();
    let (x, mut middle) = (x.slice(2..6), out.slice_mut(3..7));
    let mut middle = TensorMut::from_cudarc(&mut middle, [2, 2]).unwrap();
    rms_norm(&exec, Tensor::from_cudarc(&x, [2, 2]).unwrap(), None, 0.0, &mut middle).unwrap();
    let mut expected = vec![bf16::ZERO; 9];
    expected[3..7].copy_from_slice(&repeat(NORM, 4));
    assert_eq!(stream.clone_dtoh(&out).unwrap(), expected);
}

fn a_strided_view() {
    let stream = stream();
    let exec = Exec::cudarc(&stream).unwrap();
    let x = stream.clone_htod(&[7.0, 1.0, 0.0, 7.0, 1.0].map(bf16::from_f32)).unwrap();
    let mut out = stream.alloc_zeros::<bf16>(4).unwrap();
    let rows = TensorView::from_cudarc(&x, [2, 2], [3, 1]).unwrap();
    rms_norm(&exec, rows, None, 0.0, &mut TensorMut::from_cudarc(&mut out, [2, 2]).unwrap()).unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), repeat(NORM, 4));
}

fn a_shape_must_fit_its_slice() {
    let stream = stream();
    let mut x = stream.alloc_zeros::<f32>(6).unwrap();
    assert_eq!(Tensor::from_cudarc(&x.slice(1..5), [2, 2]).unwrap().shape(), [2, 2]);
    for shape in [[2, 2], [7, 1], [usize::MAX, 2]] {
        assert!(matches!(Tensor::from_cudarc(&x, shape), Err(Error::Shape(_))));
        assert!(matches!(TensorMut::from_cudarc(&mut x, shape), Err(Error::Shape(_))));
    }
    assert!(matches!(Tensor::from_cudarc(&x.slice(1..5), [2, 3]), Err(Error::Shape(_))));
    assert!(matches!(TensorView::from_cudarc(&x, [2, 3], [4, 1]), Err(Error::Shape(_))));

    let exec = Exec::cudarc(&stream).unwrap();
    let mut out = stream.alloc_zeros::<f32>(6).unwrap();
    let mut out = TensorMut::from_cudarc(&mut out, [3, 2]).unwrap();
    let result = rms_norm(&exec, Tensor::from_cudarc(&x, [2, 3]).unwrap(), None, 0.0, &mut out);
    assert!(matches!(result, Err(Error::Shape(_))), "{result:?}");
}

/// Large enough that a stream is still busy with it when the next call comes.
const ROWS: usize = 1 << 15;
const WIDTH: usize = 4096;

/// A producer writes on one stream, an operator reads on another, the result is fetched on a third.
fn a_consumer_on_another_stream_waits() {
    let producer = stream();
    let consumer = producer.context().new_stream().unwrap();
    let reader = producer.context().new_stream().unwrap();
    let exec = Exec::cudarc(&consumer).unwrap();
    let good = producer.clone_htod(&repeat(ROW, ROWS * WIDTH)).unwrap();
    let mut x = producer.alloc_zeros::<bf16>(ROWS * WIDTH).unwrap();
    let mut out = producer.alloc_zeros::<bf16>(ROWS * WIDTH).unwrap();
    producer.synchronize().unwrap();
    for _ in 0..8 {
        producer.memset_zeros(&mut x).unwrap();
        producer.memcpy_dtod(&good, &mut x).unwrap();
        let x = Tensor::from_cudarc(&x, [ROWS, WIDTH]).unwrap();
        rms_norm(&exec, x, None, 0.0, &mut TensorMut::from_cudarc(&mut out, [ROWS, WIDTH]).unwrap()).unwrap();
    }
    check_ends(&reader, &out);
}

fn check_ends(stream: &Arc<CudaStream>, out: &CudaSlice<bf16>) {
    let part = 64 * WIDTH;
    for end in [out.slice(..part), out.slice(out.len() - part..)] {
        assert!(stream.clone_dtoh(&end).unwrap() == repeat(NORM, part));
    }
}

/// An operator reads on one stream what another stream overwrites right afterwards.
fn a_writer_on_another_stream_waits() {
    let reading = stream();
    let writer = reading.context().new_stream().unwrap();
    let exec = Exec::cudarc(&reading).unwrap();
    let mut x = reading.clone_htod(&repeat(ROW, ROWS * WIDTH)).unwrap();
    let mut out = reading.alloc_zeros::<bf16>(ROWS * WIDTH).unwrap();
    reading.synchronize().unwrap();
    let tensor = Tensor::from_cudarc(&x, [ROWS, WIDTH]).unwrap();
    let mut written = TensorMut::from_cudarc(&mut out, [ROWS, WIDTH]).unwrap();
    for _ in 0..8 {
        rms_norm(&exec, tensor, None, 0.0, &mut written).unwrap();
    }
    writer.memset_zeros(&mut x).unwrap();
    check_ends(&writer, &out);
    drop(x); // while the streams may still use it
    writer.synchronize().unwrap();
}

fn another_context_is_refused() {
    let (ours, theirs) = (stream(), stream());
    let exec = Exec::cudarc(&ours).unwrap();
    let x = theirs.alloc_zeros::<f32>(4).unwrap();
    let mut foreign = theirs.alloc_zeros::<f32>(4).unwrap();
    let mut out = ours.alloc_zeros::<f32>(4).unwrap();

    let tensor = Tensor::from_cudarc(&x, [2, 2]).unwrap();
    let result = rms_norm(&exec, tensor, None, 0.0, &mut TensorMut::from_cudarc(&mut out, [2, 2]).unwrap());
    assert!(matches!(&result, Err(Error::InvalidValue(sentence)) if sentence.contains("CudaContext")), "{result:?}");
    let result = rms_norm_in_place(&exec, &mut TensorMut::from_cudarc(&mut foreign, [2, 2]).unwrap(), None, 0.0);
    assert!(matches!(&result, Err(Error::InvalidValue(_))), "{result:?}");
}

fn a_thread_without_a_context() {
    let stream = stream();
    let exec = Exec::cudarc(&stream).unwrap();
    let x = stream.clone_htod(&repeat(ROW, 4)).unwrap();
    let mut out = stream.alloc_zeros::<bf16>(4).unwrap();
    let tensor = Tensor::from_cudarc(&x, [2, 2]).unwrap();
    let mut written = TensorMut::from_cudarc(&mut out, [2, 2]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| rms_norm(&exec, tensor, None, 0.0, &mut written).unwrap());
    });
    assert_eq!(stream.clone_dtoh(&out).unwrap(), repeat(NORM, 4));
}
