//! `mhc_post_collapse_rms_norm`: the streams and their collapse to the bit, the norm against float64, at every level.
mod common;

use std::process::ExitCode;

use common::cases::Seam;
use common::compare::{Float, assert_bits, assert_near, assert_ulps};
use common::data::{Buf, Rng};
use common::{for_random, levels, on_every_backend, props, tests};
use half::bf16;
use proptest::prelude::any;

const TOKENS: [usize; 16] = [0, 1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 1000];
const HIDDEN: [usize; 14] = [1, 2, 7, 8, 15, 33, 250, 256, 768, 1280, 2560, 4096, 5120, 7168];
const STREAMS: [usize; 4] = [1, 2, 4, 8];

fn check(case: &Seam) {
    let want = case.exact();
    for (level, exec) in levels() {
        let what = format!("{level} {:?} eps {}", case.dims, case.eps);
        let (residual, y) = case.run(&exec);
        assert_bits(format!("{what} residual_out"), &residual, &want.residual);
        assert_near(format!("{what} layer_input"), &y, &want.layer_input);
    }
}

fn every_number_of_tokens() {
    TOKENS.iter().for_each(|t| check(&Seam::random(*t, 4, 65)));
}

fn every_hidden_size() {
    HIDDEN.iter().for_each(|h| check(&Seam::random(3, 4, *h)));
}

fn every_number_of_streams() {
    for n in STREAMS {
        check(&Seam::random(5, n, 250));
        check(&Seam::random(2, n, 1));
    }
}

fn misaligned_operands() {
    for (n, h) in [(4, 7), (4, 64), (8, 250), (1, 33), (4, 1280)] {
        check(&Seam::random(3, n, h).misaligned());
    }
}

/// Moves the base of one operand by some elements.
const MOVES: [fn(&mut Seam, usize); 8] = [
    |case, by| case.residual = Buf::input(&case.residual, by),
    |case, by| case.sublayer_out = Buf::input(&case.sublayer_out, by),
    |case, by| case.post = Buf::input(&case.post, by),
    |case, by| case.comb = Buf::input(&case.comb, by),
    |case, by| case.pre = Buf::input(&case.pre, by),
    |case, by| case.weight = Buf::input(&case.weight, by),
    |case, by| case.shifts[0] = by,
    |case, by| case.shifts[1] = by,
];

fn one_misaligned_operand() {
    for (one, by) in MOVES.into_iter().flat_map(|one| [1, 2, 4].map(|by| (one, by))) {
        for h in [64, 256, 5120] {
            let mut case = Seam::random(3, 4, h);
            one(&mut case, by);
            check(&case);
        }
    }
}

fn any_shape() {
    for_random(60, (0usize..10, 0usize..4, 1usize..400, 0f32..1.0, any::<bool>()), |(t, n, h, eps, misaligned)| {
        let mut case = Seam::random(t, STREAMS[n], h);
        case.eps = eps;
        check(&if misaligned { case.misaligned() } else { case });
    });
}

/// With norm_eps = 2^126 and a unit weight, y is v * 2^-63 without another rounding.
fn check_collapse(mut case: Seam) {
    case.eps = 2f32.powi(126);
    case.weight.fill(bf16::ONE);
    let want = case.exact();
    let scaled: Vec<bf16> = want.collapsed.iter().map(|v| bf16::from_f32(v.f32() * 2f32.powi(-63))).collect();
    for (level, exec) in levels() {
        let (residual, y) = case.run(&exec);
        assert_bits(format!("{level} {:?} residual_out", case.dims), &residual, &want.residual);
        assert_bits(format!("{level} {:?} v", case.dims), &y, &scaled);
    }
}

fn the_collapse_is_exact() {
    for n in STREAMS {
        [1, 7, 64, 250, 1280].iter().for_each(|h| check_collapse(Seam::random(5, n, *h)));
    }
    check_collapse(Seam::random(200, 4, 256).misaligned());
}

fn streams_of_disjoint_magnitudes() {
    for n in STREAMS {
        let mut case = Seam::random(3, n, 250);
        for (row, values) in case.residual.chunks_mut(250).enumerate() {
            values.iter_mut().for_each(|v| *v = bf16::from_f32(v.f32() * 2f32.powi(8 * (row % n) as i32 - 16)));
        }
        check(&case);
        check_collapse(case);
    }
}

fn subnormal_streams() {
    let (mut case, mut rng) = (Seam::random(5, 4, 65), Rng::new(&[18]));
    case.residual = Buf::input(&rng.normals(case.residual.len(), 1.5e-39), 0);
    case.sublayer_out = Buf::input(&rng.normals(case.sublayer_out.len(), 1.5e-39), 0);
    check(&case);
    assert!(case.exact().residual.iter().any(|v| v.f32() != 0.0));
}

/// Terms that nearly cancel, in which every other order or a missing fused step shows.
fn cancelling(t: usize, n: usize, h: usize) -> Seam {
    let mut case = Seam::random(t, n, h);
    let mut rng = Rng::new(&[t, n, h]);
    for (row, comb) in case.comb.chunks_mut(n * n).enumerate() {
        case.post[row * n..][..n].iter_mut().zip(&*comb).for_each(|(p, c)| *p = -c);
        comb[n..].iter_mut().for_each(|c| *c *= 1e-4);
        for d in 0..h {
            let x = bf16::from_f32(rng.normal());
            case.sublayer_out[row * h + d] = x;
            case.residual[row * n * h + d] = x;
        }
    }
    case
}

fn one_product_is_rounded_and_the_others_are_fused() {
    for n in STREAMS {
        let case = cancelling(4, n, 256);
        check(&case);
        // fma(-c, x, rn(c * x)) is the rounding error of the product, which is rarely zero.
        let zeros = case.exact().residual.iter().filter(|v| v.f32() == 0.0).count();
        assert!(zeros < case.residual.len() / 10, "{zeros} zeros");
    }
}

fn comb_is_source_then_target() {
    for n in STREAMS {
        let mut case = Seam::random(3, n, 33);
        case.post.fill(0.0);
        case.comb.fill(0.0);
        for t in 0..3 {
            (0..n).for_each(|source| case.comb[(t * n + source) * n + (source + 1) % n] = 1.0);
        }
        let shifted = |at: usize| {
            let (row, d) = (at / 33, at % 33);
            case.residual[(row / n * n + (row % n + n - 1) % n) * 33 + d]
        };
        let want: Vec<bf16> = (0..3 * n * 33).map(shifted).collect();
        for (level, exec) in levels() {
            assert_ulps(format!("{level} n {n}"), &case.run(&exec).0, &want, 0);
        }
    }
}

fn constant_streams() {
    // Doubly stochastic comb, pre = 1/n: R' and v are the constant, y = w * c / sqrt(c^2 + eps).
    for n in STREAMS {
        let (mut case, c) = (Seam::random(2, n, 256), 1.5f32);
        case.residual.fill(bf16::from_f32(c));
        case.post.fill(0.0);
        case.comb.fill(1.0 / n as f32);
        case.pre.fill(1.0 / n as f32);
        case.eps = 1.0;
        let y = |w: &bf16| bf16::from_f64(w.f64() * 1.5 / (2.25f64 + 1.0).sqrt());
        let want: Vec<bf16> = case.weight.iter().map(y).collect::<Vec<_>>().repeat(2);
        for (level, exec) in levels() {
            let (residual, y) = case.run(&exec);
            assert_bits(format!("{level} n {n} residual_out"), &residual, &case.residual);
            assert_ulps(format!("{level} n {n} layer_input"), &y, &want, 1); // fp32 rounds before bf16
        }
    }
}

fn the_norm_has_unit_rms() {
    for h in [8, 250, 4096, 7168] {
        let mut case = Seam::random(3, 4, h);
        case.weight.fill(bf16::ONE);
        for (level, exec) in levels() {
            for (token, y) in case.run(&exec).1.chunks(h).enumerate() {
                let rms = (y.iter().map(|y| y.f64() * y.f64()).sum::<f64>() / h as f64).sqrt();
                assert!((rms - 1.0).abs() < 1.0 / 256.0, "{level} H {h} token {token}: rms {rms}");
            }
        }
    }
}

fn the_weight_is_used() {
    for (level, exec) in levels() {
        let mut case = Seam::random(3, 4, 77);
        case.weight.fill(bf16::ONE);
        let doubled: Vec<bf16> = case.run(&exec).1.iter().map(|y| bf16::from_f32(2.0 * y.f32())).collect();
        case.weight.fill(bf16::from_f32(2.0));
        assert_bits(level, &case.run(&exec).1, &doubled);
    }
}

fn any_eps_is_used_as_given() {
    for scale in [0.0, 1e-12, 1.0] {
        for eps in [0.0, 1e-20, 1e-6, 1e-1, 3.0] {
            let mut case = Seam::random(2, 4, 65);
            case.eps = eps;
            let mut rng = Rng::new(&[15]);
            case.residual = Buf::input(&rng.normals(case.residual.len(), scale), 0);
            case.sublayer_out = Buf::input(&rng.normals(case.sublayer_out.len(), scale), 0);
            check(&case);
        }
    }
}

fn signed_zeros_and_special_values() {
    // The payload of the last two NaNs lies in the half that a rounding to bf16 drops or carries away.
    let nans = [0x7FC0_0000, 0xFF80_0001, 0x7FFF_FFFF].map(f32::from_bits);
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, nans[0], nans[1], nans[2], 1e-40, 3e38];
    for n in STREAMS {
        let mut case = Seam::random(60, n, 35);
        let mut rng = Rng::new(&[16, n]);
        let mut any = || if rng.below(3) == 0 { special[rng.below(9)] } else { rng.normal() };
        case.residual.iter_mut().for_each(|v| *v = bf16::from_f32(any()));
        case.sublayer_out.iter_mut().for_each(|v| *v = bf16::from_f32(any()));
        case.comb.iter_mut().for_each(|v| *v = any());
        case.post.iter_mut().for_each(|v| *v = any());
        let want = case.exact().residual;
        for (level, exec) in levels() {
            assert_bits(format!("{level} n {n}"), &case.run(&exec).0, &want);
        }
    }
}

fn in_place_gives_the_same_bits() {
    for (t, n, h) in [(1, 4, 1), (9, 4, 250), (3, 8, 33), (2, 1, 64), (65, 2, 768)] {
        for case in [Seam::random(t, n, h), Seam::random(t, n, h).misaligned()] {
            for (level, exec) in levels() {
                let (out, inside) = (case.run(&exec), case.run_in_place(&exec));
                assert_bits(format!("{level} {t} {n} {h} residual"), &inside.0, &out.0);
                assert_bits(format!("{level} {t} {n} {h} layer_input"), &inside.1, &out.1);
            }
        }
    }
}

fn another_hidden_size_afterwards() {
    for h in [4096, 7168, 250, 4096] {
        check(&Seam::random(1, 4, h));
    }
}

fn tokens_are_independent() {
    props::tokens_are_independent(&Seam::random(9, 4, 250));
    props::tokens_are_independent(&Seam::random(3, 8, 33));
}

fn spoilt_tokens_stay_alone() {
    props::spoilt_tokens_stay_alone(&Seam::random(9, 4, 250), 4);
    props::spoilt_tokens_stay_alone(&Seam::random(2, 2, 7), 0);
}

fn repeat_runs_give_the_same_bits() {
    props::repeats(&Seam::random(65, 4, 768), &Seam::random(3, 2, 7));
}

fn no_tokens_are_nothing_to_do() {
    props::empty_is_nothing(&Seam::random(2, 4, 64));
}

fn main() -> ExitCode {
    on_every_backend(tests![
        every_number_of_tokens,
        every_hidden_size,
        every_number_of_streams,
        misaligned_operands,
        one_misaligned_operand,
        any_shape,
        the_collapse_is_exact,
        streams_of_disjoint_magnitudes,
        subnormal_streams,
        one_product_is_rounded_and_the_others_are_fused,
        comb_is_source_then_target,
        constant_streams,
        the_norm_has_unit_rms,
        the_weight_is_used,
        any_eps_is_used_as_given,
        signed_zeros_and_special_values,
        in_place_gives_the_same_bits,
        another_hidden_size_afterwards,
        tokens_are_independent,
        spoilt_tokens_stay_alone,
        repeat_runs_give_the_same_bits,
        no_tokens_are_nothing_to_do,
    ])
}
