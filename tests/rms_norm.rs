//! `rms_norm` against float64, at every level and for every element type.
mod common;

use std::process::ExitCode;

use common::cases::Norm;
use common::compare::{Float, assert_bits, assert_near, assert_ulps};
use common::data::{Buf, Rng, Strided, dense};
use common::{AnyExec, Place, fastest, for_random, levels, on_every_backend, props, tests, with_place};
use gatemix::{Element, Exec, Memory, TensorView};
use half::{bf16, f16};

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

fn every_number_of_rows() {
    ROWS.iter().for_each(|rows| check_types(*rows, 250, |dim| (dim, 0)));
}

fn every_dimension() {
    DIMS.iter().for_each(|dim| check_types(3, *dim, |dim| (dim, 0)));
}

fn strided_and_misaligned_rows() {
    for dim in [1, 7, 64, 250, 1280] {
        check_types(5, dim, |dim| (dim, 1));
        check_types(5, dim, |dim| (dim + 1, 0));
        check_types(5, dim, |dim| (2 * dim + 3, 1));
    }
}

/// Moves the base of one operand by some elements.
const MOVES: [fn(&mut Norm<bf16>, usize); 3] = [
    |case, by| case.x = case.x.relaid(case.x.strides, by),
    |case, by| case.weight = case.weight.as_ref().map(|weight| Buf::input(weight, by)),
    |case, by| case.shift = by,
];

fn one_misaligned_operand() {
    for (one, by) in MOVES.into_iter().flat_map(|one| [1, 2, 4].map(|by| (one, by))) {
        for dim in [64, 256, 5120] {
            let mut case = Norm::random(3, dim);
            one(&mut case, by);
            check(&case);
        }
    }
}

fn any_shape() {
    for_random(60, (0usize..20, 1usize..600, 0usize..40, 0usize..2, 0f32..0.1), |(rows, dim, gap, shift, eps)| {
        let mut case = Norm::<bf16>::random(rows, dim).relaid(dim + gap, shift);
        case.eps = eps;
        check(&case);
    });
}

fn without_a_weight() {
    let mut case = Norm::<bf16>::random(4, 300);
    case.weight = None;
    check(&case);
    let ones = Norm { weight: Some(Buf::input(&[bf16::ONE; 300], 0)), ..case };
    check(&ones);
}

/// On CPUs the sum of squares has one order, whatever the width of the vectors. GPUs have another one.
fn check_levels_agree<E: Float + Element>(dim: usize) {
    let mut case = Norm::<E>::random(3, dim);
    case.weight = None;
    let want = case.run(&Exec::cpu().portable().into());
    for (level, exec) in levels() {
        let most = if let AnyExec::Cpu(_) = exec { 0 } else { 1 };
        assert_ulps(format!("{level} {:?} dim {dim}", E::DTYPE), &case.run(&exec), &want, most);
    }
}

fn levels_agree() {
    for dim in [1, 63, 64, 65, 250, 8191, 8193, 28672] {
        check_levels_agree::<bf16>(dim);
        check_levels_agree::<f16>(dim);
    }
}

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

fn other_ranks() {
    for (level, exec) in levels() {
        with_place!(&exec, place => check_ranks(level, place));
    }
}

fn check_ranks<M: Memory>(level: &str, place: &Place<M>) {
    let x: Vec<f32> = Rng::new(&[7]).normals(2 * 3 * 2 * 9, 1.0);
    let (all, row) = (Buf::input(&x, 0), Buf::input(&x[..9], 0));
    let (all, row) = (place.input(&all), place.input(&row));
    let want = run_ranks(place, all.view([12, 9], [9, 1]));
    let dense = all.tensor([2, 3, 2, 9]).into();
    assert_bits(format!("{level} rank 4"), &run_ranks(place, dense), &want);
    assert_bits(format!("{level} rank 1"), &run_ranks(place, row.tensor([9]).into()), &want[..9]);
    // Leading dimensions that collapse to rows 18 elements apart.
    let strided = all.view([3, 2, 9], [36, 18, 1]);
    let even: Vec<f32> = want.chunks(18).flat_map(|two| two[..9].to_vec()).collect();
    assert_bits(format!("{level} rank 3"), &run_ranks(place, strided), &even);
}

fn run_ranks<const R: usize, M: Memory>(place: &Place<M>, x: TensorView<'_, f32, R, M>) -> Vec<f32> {
    let mut y = place.output(x.shape().iter().product(), 0);
    gatemix::rms_norm(&place.exec, x, None, 1e-6, &mut y.tensor(x.shape())).unwrap();
    y.finish()
}

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

fn any_eps_is_used_as_given() {
    for scale in [0.0, 1e-12, 1e-3, 1.0] {
        for eps in [1e-20, 1e-12, 1e-6, 1e-1, 3.0] {
            let x = Rng::new(&[8]).normals(4 * 65, scale);
            let case =
                Norm { x: Strided::new(&x, [4, 65], dense([4, 65]), 0), weight: None::<Buf<bf16>>, eps, shift: 0 };
            check(&case);
            let zero = case.run(&fastest()).iter().all(|y| y.f32() == 0.0);
            assert_eq!(zero, scale == 0.0, "scale {scale} eps {eps}");
        }
    }
}

fn zero_eps_divides_by_zero_only_in_zero_rows() {
    let mut case = Norm::<f32>::random(3, 40);
    case.eps = 0.0;
    (0..40).for_each(|d| case.x.set([1, d], 0.0));
    check(&case); // the zero row is 0 * infinity
    assert!(case.exact()[40].value.is_nan());
}

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

fn subnormal_and_infinite_results() {
    check_range::<f16>(-24, 15);
    check_range::<bf16>(-133, 127);
    check_range::<f32>(-149, 127);
}

fn subnormal_and_large_inputs() {
    for (low, high) in [(-24, -14), (-14, 0), (0, 15)] {
        let mut case = Norm::<f16>::random(8, 64);
        case.eps = 1e-20;
        (0..64)
            .for_each(|d| case.x.set([d % 8, d], f16::from_f32(1.5 * 2f32.powi(low + d as i32 * (high - low) / 63))));
        check(&case);
    }
}

fn rows_beyond_32_bit_offsets() {
    for (level, exec) in levels() {
        with_place!(&exec, place => check_far_rows(level, place));
    }
}

fn check_far_rows<M: Memory>(level: &str, place: &Place<M>) {
    let (dim, stride) = (16, (1usize << 31) + 8);
    let values: Vec<bf16> = Rng::new(&[9]).normals(2 * dim, 1.0);
    let near = Buf::input(&values, 0);
    let near = place.input(&near);
    let far = place.sparse(stride + dim, &[(0, &values[..dim]), (stride, &values[dim..])]);
    let run = |x| {
        let mut y = place.output(2 * dim, 0);
        gatemix::rms_norm(&place.exec, x, None, 1e-6, &mut y.tensor([2, dim])).unwrap();
        y.finish()
    };
    let want = run(near.view([2, dim], [dim, 1]));
    assert_bits(level, &run(far.view([2, dim], [stride, 1])), &want);
}

fn tokens_are_independent() {
    props::tokens_are_independent(&Norm::<bf16>::random(9, 250));
    props::tokens_are_independent(&Norm::<f16>::random(3, 1280));
    props::tokens_are_independent(&Norm::<f32>::random(5, 33));
}

fn spoilt_rows_stay_alone() {
    props::spoilt_tokens_stay_alone(&Norm::<bf16>::random(9, 250), 4);
    props::spoilt_tokens_stay_alone(&Norm::<f32>::random(3, 7), 0);
}

fn repeat_runs_give_the_same_bits() {
    props::repeats(&Norm::<bf16>::random(65, 768), &Norm::<bf16>::random(3, 7));
}

fn no_rows_are_nothing_to_do() {
    props::empty_is_nothing(&Norm::<bf16>::random(2, 64));
}

fn main() -> ExitCode {
    on_every_backend(tests![
        every_number_of_rows,
        every_dimension,
        strided_and_misaligned_rows,
        one_misaligned_operand,
        any_shape,
        without_a_weight,
        levels_agree,
        the_weight_is_used,
        other_ranks,
        in_place_gives_the_same_bits,
        any_eps_is_used_as_given,
        zero_eps_divides_by_zero_only_in_zero_rows,
        rows_have_unit_rms,
        one_infinity_leaves_zeros_and_a_nan,
        subnormal_and_infinite_results,
        subnormal_and_large_inputs,
        rows_beyond_32_bit_offsets,
        tokens_are_independent,
        spoilt_rows_stay_alone,
        repeat_runs_give_the_same_bits,
        no_rows_are_nothing_to_do,
    ])
}
