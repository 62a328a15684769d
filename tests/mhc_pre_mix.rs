//! `mhc_pre_mix` against float64, at every level.
mod common;

use std::process::ExitCode;

use common::cases::PreMix;
use common::compare::{assert_bits, assert_each, assert_near};
use common::data::Buf;
use common::oracle::sigmoid;
use common::{fastest, for_random, levels, on_every_backend, props, tests};
use proptest::prelude::any;

const TOKENS: [usize; 16] = [0, 1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 1000];
const STREAMS: [usize; 4] = [1, 2, 4, 8];
const SLICES: [usize; 9] = [1, 2, 3, 4, 5, 7, 8, 16, 27];

fn check(case: &PreMix) {
    let want = case.exact();
    for (level, exec) in levels() {
        let what = format!("{level} n {} {:?} strides {:?}", case.n, case.gemm_out.shape, case.gemm_out.strides);
        assert_near(what, &case.run(&exec), &want);
    }
}

fn every_number_of_tokens() {
    TOKENS.iter().for_each(|t| check(&PreMix::random(5, *t, 4)));
}

fn every_number_of_streams() {
    for n in STREAMS {
        [1, 2, 9, 65].iter().for_each(|t| check(&PreMix::random(3, *t, n)));
    }
}

fn every_number_of_slices() {
    for s in SLICES {
        check(&PreMix::random(s, 7, 4));
        check(&PreMix::random(s, 1, 8));
    }
}

fn strided_inputs() {
    // The buffers are NaN wherever the strides don't lead.
    for s in [1, 3, 5, 8, 27] {
        let t = 7;
        let case = PreMix::random(s, t, 4);
        check(&case.relaid([t * 24, 24, 1], [t, 1], 1)); // misaligned
        check(&case.relaid([t * 32, 32, 1], [t + 3, 1], 0)); // 24 columns in rows of 32
        check(&case.relaid([24, s * 24, 1], [1, s], 0)); // [T, S, 24] and [T, S]
        check(&case.relaid([1, s, s * t], [2 * t, 2], 1)); // [24, T, S], every second sqrsum
    }
}

/// Moves the base of one operand by some elements.
const MOVES: [fn(&mut PreMix, usize); 5] = [
    |case, by| case.gemm_out = case.gemm_out.relaid(case.gemm_out.strides, by),
    |case, by| case.sqrsum = case.sqrsum.relaid(case.sqrsum.strides, by),
    |case, by| case.scale = Buf::input(&case.scale, by),
    |case, by| case.base = Buf::input(&case.base, by),
    |case, by| case.shift = by,
];

fn one_misaligned_operand() {
    for (one, by) in MOVES.into_iter().flat_map(|one| [1, 2, 4].map(|by| (one, by))) {
        for t in [1, 7, 64] {
            let mut case = PreMix::random(5, t, 4);
            one(&mut case, by);
            check(&case);
        }
    }
}

fn any_strides() {
    let inputs = (1usize..30, 0usize..40, 0usize..4, [0usize..9, 0..9, 1..4], any::<bool>(), 0usize..2);
    for_random(80, inputs, |(s, t, n, pad, token_major, shift)| {
        let case = PreMix::random(s, t, STREAMS[n]);
        let row = case.gemm_out.shape[2] * pad[2] + pad[0];
        let (slices, tokens) = if token_major { (row, row * s + pad[1]) } else { (row * t + pad[1], row) };
        check(&case.relaid([slices, tokens, pad[2]], [t + pad[0], 1], shift));
    });
}

fn only_n_columns_are_read() {
    let mut case = PreMix::random(5, 9, 4);
    for index in (0..5 * 9).flat_map(|row| (4..24).map(move |c| [row / 9, row % 9, c])) {
        case.gemm_out.set(index, f32::NAN);
    }
    case.base[4..].fill(f32::NAN);
    case.scale[1..].fill(f32::NAN);
    check(&case);
    assert!(case.run(&fastest()).iter().all(|v| v.is_finite()));
}

fn exactly_n_columns_are_enough() {
    let mut case = PreMix::random(3, 9, 4);
    case.gemm_out = case.gemm_out.pick(2, &[0, 1, 2, 3]);
    (case.base, case.scale) = (Buf::input(&case.base[..4], 0), Buf::input(&case.scale[..1], 0));
    check(&case);
}

fn each_eps_has_its_place() {
    for (rms_eps, hc_pre_eps) in [(1e-6, 1e-1), (1e-1, 1e-6), (1e-20, 1e-1), (7.0, 0.0)] {
        for hc_hidden in [1, 1000, 28672] {
            let mut case = PreMix::random(5, 9, 4);
            (case.rms_eps, case.hc_pre_eps, case.hc_hidden) = (rms_eps, hc_pre_eps, hc_hidden);
            check(&case);
            (case.rms_eps, case.hc_pre_eps) = (hc_pre_eps, rms_eps);
            let swapped = case.exact();
            (case.rms_eps, case.hc_pre_eps) = (rms_eps, hc_pre_eps);
            let out = case.run(&fastest());
            assert!(out.iter().zip(&swapped).all(|(got, near)| !near.admits(*got)), "{rms_eps} {hc_pre_eps}");
        }
    }
}

fn tiny_eps_with_zero_squares() {
    let mut case = PreMix::random(3, 4, 4);
    (case.rms_eps, case.base[1]) = (1e-20, 0.0);
    for slice in 0..3 {
        for token in 0..4 {
            case.sqrsum.set([slice, token], 0.0);
            (0..24).for_each(|c| case.gemm_out.set([slice, token, c], if c == 1 { 1e-10 } else { 0.0 }));
        }
    }
    check(&case); // rstd is 1e10, so that column 1 has logits near 3 * scale
    assert!(case.run(&fastest())[1] > 0.7);
}

fn the_product_with_scale_is_rounded_before_base_is_added() {
    // rstd = 1 and base = -(mix * scale): the logit is 0, or, contracted, the rounding error of a large product.
    let mut case = PreMix::random(1, 1, 8);
    (case.hc_hidden, case.rms_eps, case.hc_pre_eps, case.scale[0]) = (1, 0.0, 0.0, 1234.567);
    case.sqrsum.set([0, 0], 1.0);
    for j in 0..8 {
        let mix = 1000.1 + j as f32;
        case.gemm_out.set([0, 0, j], mix);
        case.base[j] = -(mix * case.scale[0]);
    }
    for (level, exec) in levels() {
        assert_bits(level, &case.run(&exec), &[0.5; 8]);
    }
}

fn gates_far_from_zero_keep_their_relative_accuracy() {
    let mut case = PreMix::random(1, 8, 8);
    case.hc_pre_eps = 0.0;
    case.scale[0] = 0.0;
    case.base[..8].copy_from_slice(&[-87.0, -86.3, -40.5, -20.0, 20.0, 60.0, 89.0, 200.0]);
    check(&case);
    case.base[..4].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0]);
    check(&case);
}

fn sigmoid_in_fp32() {
    // rstd = 1, so that a token's result is the sigmoid of its only element.
    const T: usize = 100_000;
    let mut case = PreMix::random(1, T, 1);
    (case.hc_hidden, case.rms_eps, case.hc_pre_eps) = (1024, 0.0, 0.0);
    (case.scale[0], case.base[0]) = (1.0, 0.0);
    let z: Vec<f32> = (0..T).map(|t| -87.0 + 107.0 * (t as f32 / (T - 1) as f32)).collect();
    for (t, z) in z.iter().enumerate() {
        case.sqrsum.set([0, t], 1024.0);
        case.gemm_out.set([0, t, 0], *z);
    }
    for (level, exec) in levels() {
        let items = case.run(&exec).into_iter().zip(&z).map(|(got, z)| (*z, got, sigmoid(f64::from(*z))));
        assert_each(level, items, |got, want| ((f64::from(*got) - want) / want).abs() <= 2f64.powi(-22));
    }
}

fn tokens_are_independent() {
    props::tokens_are_independent(&PreMix::random(5, 17, 4));
    props::tokens_are_independent(&PreMix::random(3, 5, 1));
}

fn spoilt_tokens_stay_alone() {
    props::spoilt_tokens_stay_alone(&PreMix::random(5, 17, 4), 8);
    props::spoilt_tokens_stay_alone(&PreMix::random(3, 3, 2), 0);
}

fn repeat_runs_give_the_same_bits() {
    props::repeats(&PreMix::random(27, 129, 4), &PreMix::random(3, 2, 8));
}

fn no_tokens_are_nothing_to_do() {
    props::empty_is_nothing(&PreMix::random(5, 3, 4));
}

fn main() -> ExitCode {
    on_every_backend(tests![
        every_number_of_tokens,
        every_number_of_streams,
        every_number_of_slices,
        strided_inputs,
        one_misaligned_operand,
        any_strides,
        only_n_columns_are_read,
        exactly_n_columns_are_enough,
        each_eps_has_its_place,
        tiny_eps_with_zero_squares,
        the_product_with_scale_is_rounded_before_base_is_added,
        gates_far_from_zero_keep_their_relative_accuracy,
        sigmoid_in_fp32,
        tokens_are_independent,
        spoilt_tokens_stay_alone,
        repeat_runs_give_the_same_bits,
        no_tokens_are_nothing_to_do,
    ])
}
