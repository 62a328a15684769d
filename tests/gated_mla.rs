//! `gated_mla` against float64, at every level.
mod common;

use std::process::ExitCode;

use common::cases::{Case, Gate};
use common::compare::{Errors, Float, Near, assert_bits, assert_each};
use common::data::{Buf, Rng};
use common::oracle::{SIGMOID, U, sigmoid};
use common::{AnyExec, fastest, for_random, levels, on_every_backend, props, say, skip, tests};
use gatemix::last_kernel;
use half::bf16;
use proptest::prelude::any;

const ROWS: [usize; 16] = [0, 1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 1000];
const DEPTHS: [usize; 15] = [1, 2, 7, 8, 33, 63, 64, 65, 72, 100, 127, 128, 129, 320, 6144];
const WIDTHS: [usize; 3] = [256, 512, 1024];

/// Every level, and each with one order of summation for every number of rows.
fn all_levels() -> Vec<(String, AnyExec)> {
    let invariant =
        levels().into_iter().map(|(name, exec)| (format!("{name}, batch-invariant"), exec.batch_invariant()));
    levels().into_iter().map(|(name, exec)| (name.into(), exec)).chain(invariant).collect()
}

/// Every element is near the exact one, and the whole no farther from it than the steps in bf16 are.
fn check(case: &Gate) {
    let exact = case.exact();
    let mut eager = Errors::default();
    exact.iter().for_each(|e| eager.add(e.eager, e.near.value));
    for (level, exec) in all_levels() {
        let out = case.run(&exec);
        let what = format!("{level} ({}) m {} n {} k {}", last_kernel(), case.m, case.n, case.k);
        let at = |(row, col): (usize, usize)| out[row * case.n + col];
        assert_each(&what, exact.iter().map(|e| (e.at, at(e.at), e.near)), |got, near| near.admits(*got));
        let mut ours = Errors::default();
        exact.iter().for_each(|e| ours.add(at(e.at), e.near.value));
        let line = format!("{what}: error {ours}, eager bf16 {eager}");
        assert!(ours.at_most(eager), "{line}");
        if case.k == 6144 {
            say(&line);
        }
    }
}

fn every_number_of_rows() {
    (4..=49).for_each(|m| check(&Gate::random(m, 256, 33))); // every way to group a few rows
    ROWS.iter().for_each(|m| check(&Gate::random(*m, 256, 72)));
}

fn every_depth() {
    for k in DEPTHS {
        check(&Gate::random(3, 256, k)); // few rows and many rows have kernels of their own
        check(&Gate::random(13, 256, k));
        check(&Gate::random(50, 256, k));
    }
}

fn every_width() {
    for n in WIDTHS {
        check(&Gate::random(2, n, 65));
        check(&Gate::random(33, n, 65));
        check(&Gate::random(66, n, 65));
    }
}

fn all_heads_of_a_large_model() {
    let many = Gate::random(9, 16384, 6144);
    check(&many);
    check(&many.pick(&[4]));
}

fn misaligned_operands() {
    for (m, k) in [(1, 64), (3, 65), (40, 64), (70, 64), (70, 33)] {
        check(&Gate::random(m, 512, k).misaligned());
    }
}

/// Moves the base of one operand by some elements.
const MOVES: [fn(&mut Gate, usize); 4] = [
    |case, by| case.x = Buf::input(&case.x, by),
    |case, by| case.weight = Buf::input(&case.weight, by),
    |case, by| case.attn = Buf::input(&case.attn, by),
    |case, by| case.shift = by,
];

fn one_misaligned_operand() {
    for (one, by) in MOVES.into_iter().flat_map(|one| [1, 2, 4].map(|by| (one, by))) {
        for m in [2, 40, 130] {
            let mut case = Gate::random(m, 256, 72);
            one(&mut case, by);
            check(&case);
        }
    }
}

fn any_shape() {
    for_random(40, (0usize..80, 1usize..4, 1usize..200, any::<bool>()), |(m, tiles, k, misaligned)| {
        let case = Gate::random(m, 256 * tiles, k);
        let case = if misaligned { case.misaligned() } else { case };
        for (level, exec) in all_levels() {
            let out = case.run(&exec);
            let items = case.exact().into_iter().map(|e| (e.at, out[e.at.0 * case.n + e.at.1], e.near));
            assert_each(format!("{level} m {m} n {} k {k}", case.n), items, |got, near| near.admits(*got));
            assert_bits("in place", &case.run_in_place(&exec), &out);
        }
    });
}

fn in_place_gives_the_same_bits() {
    for (m, k) in [(1, 72), (8, 6144), (13, 72), (130, 65)] {
        let case = Gate::random(m, 512, k);
        for (level, exec) in all_levels() {
            assert_bits(format!("{level} m {m} k {k}"), &case.run_in_place(&exec), &case.run(&exec));
        }
    }
}

/// A case whose logits are exactly `z`, one a row: three parts of 8 bits each, whose sums are exact in any order.
fn with_logits(z: &[f32], k: usize, attn: &[bf16]) -> Gate {
    let (m, n) = (z.len(), attn.len() / z.len());
    let mut x = vec![bf16::ZERO; m * k];
    for (row, z) in x.chunks_mut(k).zip(z) {
        let mut rest = *z;
        for part in row.iter_mut().take(3) {
            *part = bf16::from_bits((rest.to_bits() >> 16) as u16);
            rest -= part.f32();
        }
        assert_eq!(rest, 0.0, "{z} needs more than {k} parts");
    }
    let mut weight = Rng::new(&[m, n, k]).normals(n * k, 1.0);
    weight.chunks_mut(k).for_each(|row| row[..k.min(3)].fill(bf16::ONE));
    Gate::new([m, n, k], &x, &weight, attn, 0)
}

/// The sigmoid is seen through one rounding to bf16, so that its error shows where a product is near a tie: all
/// significands of attn are tried. Large ones lift small gates, small ones make subnormal results of them.
fn check_logits(z: &[f32], k: usize) {
    let attn = |z: f32, col: usize| {
        let significand = 1.0 + (col % 128) as f32 / 128.0;
        bf16::from_f32(if col < 128 {
            significand
        } else {
            -significand * if z < -20.0 { 2f32.powi(100) } else { 1.0 }
        })
    };
    let attn: Vec<bf16> = z.iter().flat_map(|z| (0..256).map(move |col| attn(*z, col))).collect();
    let case = with_logits(z, k, &attn);
    for (level, exec) in all_levels() {
        let out = case.run(&exec);
        let items = (0..out.len()).map(|i| {
            let z = f64::from(z[i / 256]);
            let mut near = Near { value: attn[i].f64() * sigmoid(z), tol: 0.0 };
            // Below -87 the sigmoid is subnormal in fp32; there one bf16 ulp is asked for.
            let relative = if z >= -87.0 { SIGMOID + U } else { 1.0 / 256.0 };
            near.tol = near.value.abs() * relative;
            ((z, attn[i]), out[i], near)
        });
        assert_each(format!("{level} k {k}"), items, |got, near| near.admits(*got));
    }
}

fn sigmoid_far_from_zero() {
    let z = [-90.0, -88.0, -87.0, -86.5, -20.0, 0.0, 20.0, 87.0, 88.0, 89.0, 200.0];
    for k in [1, 2, 3, 33, 64] {
        check_logits(&z[..4], k);
        check_logits(&z, k);
    }
}

fn sigmoid_keeps_its_relative_accuracy() {
    let mut rng = Rng::new(&[6]);
    check_logits(&rng.uniforms(3000, -87.0, 3.0), 3);
    check_logits(&rng.uniforms(1000, -2.0, 2.0), 3);
    // Many rows at once, with and without large logits.
    check_logits(&rng.uniforms(400, -87.0, 3.0), 64);
    check_logits(&rng.uniforms(3000, -87.0, 87.0), 64);
    check_logits(&rng.uniforms(3000, -40.0, 40.0), 64);
    check_logits(&rng.uniforms(15400, -87.0, 89.0), 64);
}

/// One row and many; k odd and even. The last has rows for the widest tiles of a GPU.
const SHAPES: [[usize; 2]; 9] =
    [[1, 1], [2, 7], [8, 64], [11, 33], [20, 72], [53, 65], [2600, 65], [2600, 72], [15400, 64]];

fn for_each_level(mut run: impl FnMut(&str, &AnyExec, [usize; 2])) {
    for (level, exec) in all_levels() {
        SHAPES.iter().for_each(|shape| run(&level, &exec, *shape));
    }
}

fn nan_stays_in_its_row_and_column() {
    for_each_level(|level, exec, [m, k]| {
        let mut case = Gate::random(m, 256, k);
        let clean = case.run(exec);
        case.x[(m - 1) * k + k / 2] = bf16::NAN;
        case.weight[77 * k + k - 1] = bf16::NAN;
        case.attn[31] = bf16::NAN;
        let mut want = clean.clone();
        (0..m).for_each(|row| want[row * 256 + 77] = bf16::NAN);
        want[(m - 1) * 256..].fill(bf16::NAN);
        want[31] = bf16::NAN;
        assert_bits(format!("{level} m {m} k {k}"), &case.run(exec), &want);
    });
}

fn infinite_logits_give_attn_or_attn_times_zero() {
    let attn = [3.0, -3.0, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for_each_level(|level, exec, [m, k]| {
        for z in [f32::INFINITY, f32::NEG_INFINITY] {
            let mut case = Gate::random(m, 256, k);
            case.weight.fill(bf16::ONE);
            let row = m - 1;
            case.x[row * k + k - 1] = bf16::from_f32(z);
            (0..256).for_each(|c| case.attn[row * 256 + c] = bf16::from_f32(attn[c % attn.len()]));
            let gate = if z > 0.0 { 1.0 } else { 0.0 };
            let want: Vec<bf16> = (0..256).map(|c| bf16::from_f32(attn[c % attn.len()] * gate)).collect();
            assert_bits(format!("{level} m {m} k {k} z {z}"), &case.run(exec)[row * 256..], &want);
        }
    });
}

fn infinity_times_zero_and_opposite_infinities_are_nan() {
    for_each_level(|level, exec, [m, k]| {
        let mut case = Gate::random(m, 256, k);
        let before = case.run(exec);
        let row = m - 1;
        case.x[row * k] = bf16::INFINITY;
        case.weight.chunks_mut(k).for_each(|w| w[0] = bf16::ZERO);
        let out = case.run(exec);
        assert_bits(format!("{level} inf * 0"), &out[row * 256..], &[bf16::NAN; 256]);
        if k > 1 {
            case.x[row * k + k - 1] = bf16::NEG_INFINITY;
            case.weight.fill(bf16::ONE);
            assert_bits(format!("{level} inf - inf"), &case.run(exec)[row * 256..], &[bf16::NAN; 256]);
        }
        assert!(before.iter().all(|v| !v.is_nan()) && out[..row * 256].iter().all(|v| !v.is_nan()));
    });
}

fn special_attn_with_an_ordinary_gate() {
    let attn = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for_each_level(|level, exec, [m, k]| {
        let mut case = Gate::random(m, 256, k);
        (0..m * 256).for_each(|i| case.attn[i] = bf16::from_f32(attn[i % attn.len()]));
        let want = case.attn.to_vec();
        assert_bits(format!("{level} m {m} k {k}"), &case.run(exec), &want);
        assert_bits(format!("{level} m {m} k {k} in place"), &case.run_in_place(exec), &want);
    });
}

fn repeat_runs_give_the_same_bits() {
    props::repeats(&Gate::random(8, 512, 6144), &Gate::random(8, 256, 100));
    props::repeats(&Gate::random(65, 512, 320), &Gate::random(9, 256, 65));
}

/// On CPUs there are few rows and many: within each, a row's bits do not depend on how many go along.
fn a_row_has_the_same_bits_in_batches_of_a_kind() {
    if let AnyExec::Cuda(_) = fastest() {
        skip("on a GPU there are more kinds, which differ from one to the other");
    }
    for (n, k) in [(256, 65), (512, 320)] {
        let case = Gate::random(1003, n, k);
        let all: Vec<usize> = (0..case.m).collect();
        for (level, exec) in levels() {
            let run = |rows: &[usize]| case.pick(rows).run_bits(&exec);
            let alone: Vec<Vec<u32>> = all[..8].iter().map(|row| run(&[*row]).remove(0)).collect();
            for m in [2, 3, 5, 8] {
                assert!(run(&all[..m]) == alone[..m], "{level} k {k}: rows of {m}");
            }
            for m in [129, 1003] {
                let rows = run(&all[..m]);
                let batches = (0..m - 64).step_by(64).chain([m - 64]);
                for first in batches {
                    let batch = first..first + 64;
                    assert!(run(&all[batch.clone()]) == rows[batch], "{level} k {k}: row {first} of {m}");
                }
            }
        }
    }
}

fn a_batch_invariant_row_has_the_same_bits_in_any_batch() {
    for (n, k) in [(256, 65), (512, 320), (512, 1024)] {
        let case = Gate::random(1003, n, k);
        let all: Vec<usize> = (0..case.m).collect();
        for (level, exec) in levels() {
            let run = |rows: &[usize]| case.pick(rows).run_bits(&exec.batch_invariant());
            let want = run(&all);
            for m in [1, 2, 5, 8, 9, 12, 13, 16, 17, 48, 49, 64, 65, 128, 129, 500] {
                for first in [0, 77, case.m - m] {
                    let rows = first..first + m;
                    assert!(run(&all[rows.clone()]) == want[rows], "{level} n {n} k {k}: {m} rows from {first} on");
                }
            }
        }
    }
}

/// Spoilt rows among them, whatever they are spoilt with.
fn a_batch_invariant_row_does_not_see_its_neighbours() {
    for (m, n, k) in [(300, 512, 65), (2600, 256, 72), (2600, 512, 320)] {
        let case = Gate::random(m, n, k);
        let all: Vec<usize> = (0..m).collect();
        for (level, exec) in levels() {
            let before = case.run_bits(&exec.batch_invariant());
            for value in [f32::NAN, f32::INFINITY, 100.0] {
                let mut spoilt = case.pick(&all);
                all.iter().skip(5).step_by(16).for_each(|row| spoilt.spoil(*row, value));
                let after = spoilt.run_bits(&exec.batch_invariant());
                let same = |row: &usize| row % 16 == 5 || after[*row] == before[*row];
                let other = all.iter().find(|row| !same(row));
                assert!(other.is_none(), "{level} ({}) m {m} n {n} k {k}: {value} near row {other:?}", last_kernel());
            }
        }
    }
}

fn every_level_gives_the_one_result() {
    for (m, n, k) in [(3, 256, 1), (16, 512, 320), (50, 256, 6144), (129, 512, 65), (700, 1024, 72)] {
        let case = Gate::with_one_result(m, n, k);
        let exact = case.exact();
        for (level, exec) in all_levels() {
            let out = case.run(&exec);
            let what = format!("{level} ({}) m {m} n {n} k {k}", last_kernel());
            let at = |(row, col): (usize, usize)| out[row * n + col];
            let items = exact.iter().map(|e| (e.at, at(e.at), bf16::from_f64(e.near.value)));
            assert_each(&what, items, |got, want| got == want);
        }
    }
}

fn spoilt_rows_stay_alone() {
    props::spoilt_tokens_stay_alone(&Gate::random(8, 256, 72), 3);
    props::spoilt_tokens_stay_alone(&Gate::random(21, 256, 65), 20);
    props::spoilt_tokens_stay_alone(&Gate::random(55, 256, 65), 50);
}

fn no_rows_are_nothing_to_do() {
    props::empty_is_nothing(&Gate::random(3, 256, 72));
}

fn main() -> ExitCode {
    on_every_backend(tests![
        every_number_of_rows,
        every_depth,
        every_width,
        all_heads_of_a_large_model,
        misaligned_operands,
        one_misaligned_operand,
        any_shape,
        in_place_gives_the_same_bits,
        sigmoid_far_from_zero,
        sigmoid_keeps_its_relative_accuracy,
        nan_stays_in_its_row_and_column,
        infinite_logits_give_attn_or_attn_times_zero,
        infinity_times_zero_and_opposite_infinities_are_nan,
        special_attn_with_an_ordinary_gate,
        repeat_runs_give_the_same_bits,
        a_row_has_the_same_bits_in_batches_of_a_kind,
        a_batch_invariant_row_has_the_same_bits_in_any_batch,
        a_batch_invariant_row_does_not_see_its_neighbours,
        every_level_gives_the_one_result,
        spoilt_rows_stay_alone,
        no_rows_are_nothing_to_do,
    ])
}
