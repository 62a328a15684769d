//! `rms_norm` against float64, at every level and for every element type.
mod common;

use common::cases::Norm;
use common::compare::{Float, assert_bits, assert_near};
use common::data::{Buf, Rng, Strided, dense};
use common::memory::Sparse;
use common::{levels, props};
use gatemix::{Element, Tensor, TensorMut, TensorView};
use half::{bf16, f16};
use proptest::prelude::*;

const ROWS: [usize; 16] = [0, 1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 1000];
const DIMS: [usize; 18] = [1, 2, 3, 7, 8, 9, 15, 17, 33, 250, 256, 768, 1280, 2560, 4096, 5120, 7168, 20480];

fn check<E: Float + Element>(case: &Norm<E>) {
    let want = case.exact();
    for (level, exec) in levels() {
        let what = format!("{level} {:?} rows {:?} strides {:?}", E::DTYPE, case.x.shape, case.x.strides);
        assert_near(what, &case.run(&exec), &want);
    }
}

fn check_types(rows: usize, dim: usize, adjust: impl Fn(usize) -> (usize, usize)) {
    let (stride, shift) = adjust(dim);
    check(&Norm::<bf16>::random(rows, dim).relaid(stride, shift));
    check(&Norm::<f16>::random(rows, dim).relaid(stride, shift));
    check(&Norm::<f32>::random(rows, dim).relaid(stride, shift));
}

#[test]
fn every_number_of_rows() {
    ROWS.iter().for_each(|rows| check_types(*rows, 250, |dim| (dim, 0)));
}

#[test]
fn every_dimension() {
    DIMS.iter().for_each(|dim| check_types(3, *dim, |dim| (dim, 0)));
}

#[test]
fn strided_and_misaligned_rows() {
    for dim in [1, 7, 64, 250, 1280] {
        check_types(5, dim, |dim| (dim, 1));
        check_types(5, dim, |dim| (dim + 1, 0));
        check_types(5, dim, |dim| (2 * dim + 3, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_shape(rows in 0usize..20, dim in 1usize..600, gap in 0usize..40, shift in 0usize..2, eps in 0f32..0.1) {
        let mut case = Norm::<bf16>::random(rows, dim).relaid(dim + gap, shift);
        case.eps = eps;
        check(&case);
    }
}

#[test]
fn without_a_weight() {
    let mut case = Norm::<bf16>::random(4, 300);
    case.weight = None;
    check(&case);
    let ones = Norm { weight: Some(Buf::input(&[bf16::ONE; 300], 0)), ..case };
    check(&ones);
}

/// The sum of squares has one order, whatever the width of the vectors.
fn check_levels_agree<E: Float + Element>(dim: usize) {
    let mut case = Norm::<E>::random(3, dim);
    case.weight = None;
    let want = case.run(&gatemix::Exec::cpu().portable());
    for (level, exec) in levels() {
        assert_bits(format!("{level} {:?} dim {dim}", E::DTYPE), &case.run(&exec), &want);
    }
}

#[test]
fn every_level_gives_the_same_bits() {
    for dim in [1, 63, 64, 65, 250, 8191, 8193, 28672] {
        check_levels_agree::<bf16>(dim);
        check_levels_agree::<f16>(dim);
    }
}

#[test]
fn the_weight_is_used() {
    let mut case = Norm::<f32>::random(3, 77);
    case.weight = Some(Buf::input(&[1.0; 77], 0));
    for (level, exec) in levels() {
        case.weight.as_mut().unwrap().fill(1.0);
        let doubled: Vec<f32> = case.run(&exec).iter().map(|y| 2.0 * y).collect();
        case.weight.as_mut().unwrap().fill(2.0);
        assert_bits(level, &case.run(&exec), &doubled);
    }
}

#[test]
fn other_ranks() {
    let mut rng = Rng::new(&[7]);
    let x: Vec<f32> = rng.normals(2 * 3 * 2 * 9, 1.0);
    for (level, exec) in levels() {
        let case = Norm { x: Strided::new(&x, [12, 9], [9, 1], 0), weight: None, eps: 1e-6, shift: 0 };
        let want = case.run(&exec);
        let mut y = vec![0.0; x.len()];
        let x4 = Tensor::new(&x, [2, 3, 2, 9]).unwrap();
        gatemix::rms_norm(&exec, x4, None, 1e-6, &mut TensorMut::new(&mut y, [2, 3, 2, 9]).unwrap()).unwrap();
        assert_bits(format!("{level} rank 4"), &y, &want);
        y.fill(0.0);
        let x1 = Tensor::new(&x[..9], [9]).unwrap();
        gatemix::rms_norm(&exec, x1, None, 1e-6, &mut TensorMut::new(&mut y[..9], [9]).unwrap()).unwrap();
        assert_bits(format!("{level} rank 1"), &y[..9], &want[..9]);
        // Leading dimensions that collapse to rows 18 elements apart.
        let strided = TensorView::new(&x, [3, 2, 9], [36, 18, 1]).unwrap();
        let mut y = vec![0.0; 54];
        gatemix::rms_norm(&exec, strided, None, 1e-6, &mut TensorMut::new(&mut y, [3, 2, 9]).unwrap()).unwrap();
        let even: Vec<f32> = want.chunks(18).flat_map(|two| two[..9].to_vec()).collect();
        assert_bits(format!("{level} rank 3"), &y, &even);
    }
}

#[test]
fn in_place_gives_the_same_bits() {
    for (rows, dim) in [(1, 1), (3, 250), (17, 1280)] {
        for (level, exec) in levels() {
            let case = Norm::<bf16>::random(rows, dim);
            assert_bits(level, &case.run_in_place(&exec), &case.run(&exec));
            let case = Norm::<f16>::random(rows, dim);
            assert_bits(level, &case.run_in_place(&exec), &case.run(&exec));
            let case = Norm::<f32>::random(rows, dim).relaid(dim, 1);
            assert_bits(level, &case.run_in_place(&exec), &case.run(&exec));
        }
    }
}

#[test]
fn any_eps_is_used_as_given() {
    for scale in [0.0, 1e-12, 1e-3, 1.0] {
        for eps in [1e-20, 1e-12, 1e-6, 1e-1, 3.0] {
            let x = Rng::new(&[8]).normals(4 * 65, scale);
            let case =
                Norm { x: Strided::new(&x, [4, 65], dense([4, 65]), 0), weight: None::<Buf<bf16>>, eps, shift: 0 };
            check(&case);
            let zero = case.run(&gatemix::Exec::cpu()).iter().all(|y| y.f32() == 0.0);
            assert_eq!(zero, scale == 0.0, "scale {scale} eps {eps}");
        }
    }
}

#[test]
fn zero_eps_divides_by_zero_only_in_zero_rows() {
    let mut case = Norm::<f32>::random(3, 40);
    case.eps = 0.0;
    (0..40).for_each(|d| case.x.set([1, d], 0.0));
    check(&case); // the zero row is 0 * infinity
    assert!(case.exact()[40].value.is_nan());
}

#[test]
fn rows_have_unit_rms() {
    for dim in [8, 250, 4096, 7168] {
        for (level, exec) in levels() {
            let mut case = Norm::<bf16>::random(5, dim);
            case.weight = None;
            for (row, y) in case.run(&exec).chunks(dim).enumerate() {
                let rms = (y.iter().map(|y| y.f64() * y.f64()).sum::<f64>() / dim as f64).sqrt();
                assert!((rms - 1.0).abs() < 1.0 / 256.0, "{level} dim {dim} row {row}: rms {rms}");
            }
        }
    }
}

#[test]
fn one_infinity_leaves_zeros_and_a_nan() {
    let mut case = Norm::<bf16>::random(3, 100);
    case.x.set([1, 63], bf16::INFINITY);
    check(&case);
}

/// Results from the smallest subnormal to overflow.
fn check_range<E: Float + Element>(low: i32, high: i32) {
    let mut case = Norm::<E>::random(40, 64);
    let scale = |i: usize| 2f64.powi(low + i as i32 * (high - low) / 63) as f32; // powi(-149) of f32 is 0
    let weight: Vec<E> = (0..64).map(|i| E::of(scale(i) * (1.0 + i as f32 / 50.0))).collect();
    case.weight = Some(Buf::input(&weight, 0));
    check(&case);
}

#[test]
fn subnormal_and_infinite_results() {
    check_range::<f16>(-24, 15);
    check_range::<bf16>(-133, 127);
    check_range::<f32>(-149, 127);
}

#[test]
fn subnormal_and_large_inputs() {
    for (low, high) in [(-24, -14), (-14, 0), (0, 15)] {
        let mut case = Norm::<f16>::random(8, 64);
        case.eps = 1e-20;
        (0..64)
            .for_each(|d| case.x.set([d % 8, d], f16::from_f32(1.5 * 2f32.powi(low + d as i32 * (high - low) / 63))));
        check(&case);
    }
}

#[test]
fn rows_beyond_32_bit_offsets() {
    let (dim, stride) = (16, (1usize << 31) + 8);
    let mut x = Sparse::new(stride + dim);
    let values: Vec<bf16> = Rng::new(&[9]).normals(2 * dim, 1.0);
    x.slice()[..dim].copy_from_slice(&values[..dim]);
    x.slice()[stride..].copy_from_slice(&values[dim..]);
    for (level, exec) in levels() {
        let case = Norm { x: Strided::new(&values, [2, dim], [dim, 1], 0), weight: None, eps: 1e-6, shift: 0 };
        let mut y = vec![bf16::ZERO; 2 * dim];
        let view = TensorView::new(x.slice(), [2, dim], [stride, 1]).unwrap();
        gatemix::rms_norm(&exec, view, None, 1e-6, &mut TensorMut::new(&mut y, [2, dim]).unwrap()).unwrap();
        assert_bits(level, &y, &case.run(&exec));
    }
}

#[test]
fn tokens_are_independent() {
    props::tokens_are_independent(&Norm::<bf16>::random(9, 250));
    props::tokens_are_independent(&Norm::<f16>::random(3, 1280));
    props::tokens_are_independent(&Norm::<f32>::random(5, 33));
}

#[test]
fn spoilt_rows_stay_alone() {
    props::spoilt_tokens_stay_alone(&Norm::<bf16>::random(9, 250), 4);
    props::spoilt_tokens_stay_alone(&Norm::<f32>::random(3, 7), 0);
}

#[test]
fn repeat_runs_give_the_same_bits() {
    props::repeats(&Norm::<bf16>::random(65, 768), &Norm::<bf16>::random(3, 7));
}

#[test]
fn no_rows_are_nothing_to_do() {
    props::empty_is_nothing(&Norm::<bf16>::random(2, 64));
}
