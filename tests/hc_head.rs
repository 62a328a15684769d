//! `hc_head` against float64, at every level and in both modes.
mod common;

use std::process::ExitCode;

use common::cases::Head;
use common::compare::{Near, assert_bits, assert_near};
use common::data::{Buf, Rng};
use common::{fastest, for_random, levels, on_every_backend, props, tests};
use gatemix::HeadMode;
use half::bf16;
use proptest::prelude::any;

const TOKENS: [usize; 16] = [0, 1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 1000];
const HIDDEN: [usize; 13] = [1, 2, 7, 8, 33, 250, 256, 768, 1280, 2560, 4096, 5120, 7168];
const STREAMS: [usize; 4] = [1, 2, 4, 8];
const MODES: [HeadMode; 2] = [HeadMode::Rounded, HeadMode::Fp32];

fn check(case: &Head) {
    let want = case.exact();
    for (level, exec) in levels() {
        assert_near(format!("{level} {:?} {:?}", case.mode, case.dims), &case.run(&exec), &want);
    }
}

fn check_modes(t: usize, n: usize, h: usize) {
    MODES.iter().for_each(|mode| check(&Head::random(t, n, h, *mode)));
}

fn every_number_of_tokens() {
    TOKENS.iter().for_each(|t| check_modes(*t, 4, 33));
}

fn every_hidden_size() {
    HIDDEN.iter().for_each(|h| check_modes(2, 4, *h));
}

fn every_number_of_streams() {
    for n in STREAMS {
        check_modes(3, n, 250);
        check_modes(2, n, 1);
    }
    check_modes(1, 8, 7168);
}

fn misaligned_operands() {
    for mode in MODES {
        [7, 64, 250].iter().for_each(|h| check(&Head::random(3, 4, *h, mode).misaligned()));
    }
}

/// Moves the base of one operand by some elements.
const MOVES: [fn(&mut Head, usize); 5] = [
    |case, by| case.residual = Buf::input(&case.residual, by),
    |case, by| case.fn_weight = Buf::input(&case.fn_weight, by),
    |case, by| case.scale = Buf::input(&case.scale, by),
    |case, by| case.base = Buf::input(&case.base, by),
    |case, by| case.shift = by,
];

fn one_misaligned_operand() {
    for (one, by) in MOVES.into_iter().flat_map(|one| [1, 2, 4].map(|by| (one, by))) {
        for (h, mode) in [64, 256, 5120].into_iter().flat_map(|h| MODES.map(|mode| (h, mode))) {
            let mut case = Head::random(3, 4, h, mode);
            one(&mut case, by);
            check(&case);
        }
    }
}

fn any_shape() {
    for_random(60, (0usize..8, 0usize..4, 1usize..400, 0usize..2, any::<bool>()), |(t, n, h, mode, misaligned)| {
        let case = Head::random(t, STREAMS[n], h, MODES[mode]);
        check(&if misaligned { case.misaligned() } else { case });
    });
}

fn misses(out: &[bf16], want: &[Near]) -> usize {
    out.iter().zip(want).filter(|(got, near)| !near.admits(**got)).count()
}

fn the_modes_differ() {
    let [mut rounded, mut fp32] = MODES.map(|mode| Head::random(4, 4, 1280, mode));
    for case in [&mut rounded, &mut fp32] {
        case.scale = Buf::input(&[6.0], 0);
    }
    let exact = [rounded.exact(), fp32.exact()];
    for (level, exec) in levels() {
        let out = [rounded.run(&exec), fp32.run(&exec)];
        for (mode, other) in [(0, 1), (1, 0)] {
            assert_near(format!("{level} {:?}", MODES[mode]), &out[mode], &exact[mode]);
            let far = misses(&out[mode], &exact[other]);
            assert!(far > out[mode].len() / 50, "{level}: {:?} passes for {:?}: {far}", MODES[mode], MODES[other]);
        }
    }
}

fn each_eps_has_its_place() {
    for mode in MODES {
        for (rms_eps, hc_eps) in [(1e-6, 1e-1), (1e-1, 1e-6), (1e-20, 1e-1), (4.0, 0.0)] {
            for scale in [1.0, 1e-3] {
                let mut case = Head::random(2, 4, 250, mode);
                (case.rms_eps, case.hc_eps) = (rms_eps, hc_eps);
                case.residual = Buf::input(&Rng::new(&[13]).normals(2 * 4 * 250, scale), 0);
                check(&case);
                (case.rms_eps, case.hc_eps) = (hc_eps, rms_eps);
                let swapped = case.exact();
                (case.rms_eps, case.hc_eps) = (rms_eps, hc_eps);
                let far = misses(&case.run(&fastest()), &swapped);
                assert!(far > 400, "{mode:?} {rms_eps} {hc_eps} {scale}: swapped passes but for {far}");
            }
        }
    }
}

fn tiny_eps_with_tiny_and_zero_streams() {
    for mode in MODES {
        for scale in [0.0, 1e-12] {
            let mut case = Head::random(3, 4, 250, mode);
            case.rms_eps = 1e-20;
            case.residual = Buf::input(&Rng::new(&[14]).normals(3 * 4 * 250, scale), 0);
            check(&case);
        }
    }
}

fn the_mean_is_over_all_streams() {
    // Constant streams c: mix_i is the sum of fn[i] times c / sqrt(c^2 + eps), here 1 / sqrt(1 + 3) = 1/2.
    let (n, h) = (4, 256);
    for mode in MODES {
        let mut case = Head::random(1, n, h, mode);
        case.residual = Buf::input(&vec![bf16::ONE; n * h], 0);
        case.fn_weight = Buf::input(&vec![1.0 / 512.0; n * n * h], 0);
        (case.scale, case.base) = (Buf::input(&[1.0], 0), Buf::input(&[0.0; 4], 0));
        (case.rms_eps, case.hc_eps) = (3.0, 0.0);
        let want = bf16::from_f64(4.0 / (1.0 + (-1f64).exp()));
        for (level, exec) in levels() {
            assert!(case.run(&exec).iter().all(|v| *v == want), "{level} {mode:?}");
        }
    }
}

fn one_stream_at_a_time() {
    // base = -infinity closes a gate, +infinity opens it.
    for mode in MODES {
        for open in 0..4 {
            let mut case = Head::random(3, 4, 250, mode);
            case.hc_eps = 0.0;
            case.base = Buf::input(&[f32::NEG_INFINITY; 4], 0);
            case.base[open] = f32::INFINITY;
            let stream: Vec<bf16> = case.residual.chunks(250).skip(open).step_by(4).flatten().copied().collect();
            for (level, exec) in levels() {
                common::compare::assert_ulps(format!("{level} {mode:?} {open}"), &case.run(&exec), &stream, 0);
            }
        }
    }
}

fn the_collapse_is_fused() {
    // Closed gates leave pre = hc_eps, and opposite streams the rounding error of the first product.
    for (mode, n) in MODES.into_iter().flat_map(|mode| [2, 4, 8].map(|n| (mode, n))) {
        let mut case = Head::random(3, n, 250, mode);
        case.hc_eps = 0.3;
        case.base = Buf::input(&vec![f32::NEG_INFINITY; n], 0);
        for token in case.residual.chunks_mut(n * 250) {
            let (first, others) = token.split_at_mut(250);
            others.iter_mut().zip(first.iter().cycle()).for_each(|(r, first)| *r = -*first);
        }
        let element = |at: usize| {
            let (token, d) = (at / 250, at % 250);
            let stream = |i: usize| case.residual[(token * n + i) * 250 + d].to_f32();
            bf16::from_f32((0..n).fold(0.0, |acc, i| case.hc_eps.mul_add(stream(i), acc)))
        };
        let want: Vec<bf16> = (0..3 * 250).map(element).collect();
        for (level, exec) in levels() {
            assert_bits(format!("{level} {mode:?} n {n}"), &case.run(&exec), &want);
        }
        assert!(n > 2 || want.iter().filter(|v| v.to_f32() != 0.0).count() > 700);
    }
}

fn tokens_are_independent() {
    for mode in MODES {
        props::tokens_are_independent(&Head::random(7, 4, 250, mode));
        props::tokens_are_independent(&Head::random(3, 8, 33, mode));
    }
}

fn spoilt_tokens_stay_alone() {
    for mode in MODES {
        props::spoilt_tokens_stay_alone(&Head::random(5, 4, 250, mode), 2);
    }
}

fn repeat_runs_give_the_same_bits() {
    for mode in MODES {
        props::repeats(&Head::random(9, 4, 768, mode), &Head::random(3, 2, 7, mode));
    }
}

fn no_tokens_are_nothing_to_do() {
    MODES.iter().for_each(|mode| props::empty_is_nothing(&Head::random(2, 4, 64, *mode)));
}

fn main() -> ExitCode {
    on_every_backend(tests![
        every_number_of_tokens,
        every_hidden_size,
        every_number_of_streams,
        misaligned_operands,
        one_misaligned_operand,
        any_shape,
        the_modes_differ,
        each_eps_has_its_place,
        tiny_eps_with_tiny_and_zero_streams,
        the_mean_is_over_all_streams,
        one_stream_at_a_time,
        the_collapse_is_fused,
        tokens_are_independent,
        spoilt_tokens_stay_alone,
        repeat_runs_give_the_same_bits,
        no_tokens_are_nothing_to_do,
    ])
}
