//! `hc_collapse`: to the bit, at every level.
mod common;

use std::process::ExitCode;

use common::cases::Collapse;
use common::compare::assert_bits;
use common::data::{Buf, Rng, Strided, dense};
use common::{Place, for_random, levels, on_every_backend, props, tests, with_place};
use gatemix::Memory;
use half::bf16;

const TOKENS: [usize; 16] = [0, 1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 1000];
const HIDDEN: [usize; 14] = [1, 2, 7, 8, 15, 33, 250, 256, 768, 1280, 2560, 4096, 5120, 7168];
const STREAMS: [usize; 4] = [1, 2, 4, 8];

fn check(case: &Collapse) {
    let want = case.exact();
    for (level, exec) in levels() {
        let what =
            format!("{level} {:?} strides {:?} {:?}", case.residual.shape, case.residual.strides, case.pre.strides);
        assert_bits(what, &case.run(&exec), &want);
    }
}

fn every_number_of_tokens() {
    TOKENS.iter().for_each(|t| check(&Collapse::random(*t, 4, 65)));
}

fn every_hidden_size() {
    HIDDEN.iter().for_each(|h| check(&Collapse::random(3, 4, *h)));
}

fn every_number_of_streams() {
    for n in STREAMS {
        check(&Collapse::random(5, n, 250));
        check(&Collapse::random(2, n, 1));
    }
}

/// Two streams that nearly cancel: what is left of the sum are the roundings of the products.
fn cancelling(t: usize, h: usize) -> Collapse {
    let (mut case, mut rng) = (Collapse::random(t, 2, h), Rng::new(&[t, h]));
    let pre = case.pre.values();
    for token in 0..t {
        for d in 0..h {
            let r = bf16::from_f32(rng.normal());
            case.residual.set([token, 0, d], r);
            case.residual.set([token, 1, d], bf16::from_f32(-pre[2 * token] * r.to_f32() / pre[2 * token + 1]));
        }
    }
    case
}

fn products_and_sums_are_rounded_separately() {
    let mut case = cancelling(8, 512);
    // Equal products of opposite sign: separate roundings cancel to zero, fused ones don't.
    for token in 0..8 {
        let pre = case.pre.values()[2 * token];
        case.pre.set([token, 1], -pre);
        let stream = case.residual.values()[2 * token * 512..][..512].to_vec();
        (0..512).for_each(|d| case.residual.set([token, 1, d], stream[d]));
    }
    check(&case);
    assert!(case.exact().iter().all(|v| v.to_bits() == 0));
    check(&cancelling(8, 512));
}

fn strided_inputs() {
    let (t, n, h) = (7, 4, 250);
    let case = Collapse::random(t, n, h);
    check(&case.relaid([n * h, h, 1], [n, 1], 1)); // misaligned
    check(&case.relaid([n * (h + 6), h + 6, 1], [24, 1], 0)); // padded rows
    check(&case.relaid([h, t * h, 1], [1, t], 0)); // [n, T, H] and [n, T]
    check(&case.relaid([1, t, t * n], [n, 1], 0)); // [H, n, T]
    check(&case.relaid([n * h, 1, n], [2 * n, 2], 1)); // [T, H, n], interleaved streams
    check(&case.relaid([2 * n * h, 2 * h, 2], [3 * n, 3], 0)); // every second element
}

/// Moves the base of one operand by some elements.
const MOVES: [fn(&mut Collapse, usize); 3] = [
    |case, by| case.residual = case.residual.relaid(case.residual.strides, by),
    |case, by| case.pre = case.pre.relaid(case.pre.strides, by),
    |case, by| case.shift = by,
];

fn one_misaligned_operand() {
    for (one, by) in MOVES.into_iter().flat_map(|one| [1, 2, 4].map(|by| (one, by))) {
        for h in [64, 256, 5120] {
            let mut case = Collapse::random(3, 4, h);
            one(&mut case, by);
            check(&case);
        }
    }
}

fn one_row_for_all() {
    let (t, n, h) = (5, 4, 100);
    let mut case = Collapse::random(t, n, h);
    let row = case.pre.values()[(t - 1) * n..].to_vec();
    case.pre = Strided::new(&row.repeat(t), [t, n], [0, 1], 0);
    check(&case);
    let stream: Vec<bf16> = Rng::new(&[11]).normals(h, 1.0);
    case.residual = Strided::new(&stream.repeat(t * n), [t, n, h], [0, 0, 1], 0);
    check(&case);
}

fn any_strides() {
    let inputs = (0usize..12, 0usize..4, 1usize..300, 0usize..6, [0usize..5, 0..5, 1..4], 0usize..2);
    for_random(80, inputs, |(t, n, h, order, gaps, shift)| {
        let shape = [t, STREAMS[n], h];
        let order = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]][order];
        let mut strides = [0; 3];
        let mut step = gaps[2];
        for d in order.into_iter().rev() {
            strides[d] = step;
            step = step * shape[d].max(1) + gaps[d % 2];
        }
        check(&Collapse::random(t, STREAMS[n], h).relaid(strides, [STREAMS[n] + gaps[0], 1], shift));
    });
}

fn negative_strides() {
    for (level, exec) in levels() {
        with_place!(&exec, place => check_reversed(level, place));
    }
}

fn check_reversed<M: Memory>(level: &str, place: &Place<M>) {
    let (t, n, h) = (3, 4, 50);
    let case = Collapse::random(t, n, h);
    let (mut residual, mut pre) = (case.residual.values(), case.pre.values());
    residual.reverse();
    pre.reverse();
    let (residual, pre) = (Buf::input(&residual, 0), Buf::input(&pre, 0));
    let (residual, pre) = (place.input(&residual), place.input(&pre));
    let mut out = place.output(t * h, 0);
    let (residual, pre) = (residual.reversed([t, n, h], [n * h, h, 1]), pre.reversed([t, n], [n, 1]));
    gatemix::hc_collapse(&place.exec, residual, pre, &mut out.tensor([t, h])).unwrap();
    assert_bits(level, &out.finish(), &case.exact());
}

fn signed_zeros_and_special_values() {
    // The payload of the last two NaNs lies in the half that a rounding to bf16 drops or carries away.
    let nans = [0x7FC0_0000, 0xFF80_0001, 0x7FFF_FFFF].map(f32::from_bits);
    let special = [0.0, -0.0, f32::INFINITY, nans[0], nans[1], nans[2], 1e-40, -3e38];
    let mut case = Collapse::random(64, 4, 33);
    for t in 0..64 {
        for i in 0..4 {
            case.pre.set([t, i], [special[t / 8], special[t % 8], 1.0, -1.0][(i + t) % 4]);
            (0..33).for_each(|h| case.residual.set([t, i, h], bf16::from_f32(special[(h + i) % 8])));
        }
    }
    check(&case);
}

fn subnormal_streams() {
    let mut case = Collapse::random(5, 4, 65);
    case.residual = Strided::new(&Rng::new(&[17]).normals(5 * 4 * 65, 1.5e-39), [5, 4, 65], dense([5, 4, 65]), 0);
    check(&case);
    assert!(case.exact().iter().any(|v| v.to_f32() != 0.0));
}

fn tokens_beyond_32_bit_offsets() {
    for (level, exec) in levels() {
        with_place!(&exec, place => check_far_tokens(level, place));
    }
}

fn check_far_tokens<M: Memory>(level: &str, place: &Place<M>) {
    let (n, h, stride) = (4, 16, (1usize << 31) + 64);
    let case = Collapse::random(2, n, h);
    let (first, second) = (&case.residual.values()[..n * h], &case.residual.values()[n * h..]);
    let residual = place.sparse(stride + n * h, &[(0, first), (stride, second)]);
    let pre = place.input(&case.pre.buf);
    let mut out = place.output(2 * h, 0);
    let residual = residual.view([2, n, h], [stride, h, 1]);
    gatemix::hc_collapse(&place.exec, residual, pre.view([2, n], [n, 1]), &mut out.tensor([2, h])).unwrap();
    assert_bits(level, &out.finish(), &case.exact());
}

fn another_hidden_size_afterwards() {
    for (level, exec) in levels() {
        for h in [4096, 7168, 250, 4096] {
            let case = Collapse::random(2, 4, h);
            assert_bits(format!("{level} H {h}"), &case.run(&exec), &case.exact());
        }
    }
}

fn tokens_are_independent() {
    props::tokens_are_independent(&Collapse::random(9, 4, 250));
    props::tokens_are_independent(&Collapse::random(3, 8, 5));
}

fn spoilt_tokens_stay_alone() {
    props::spoilt_tokens_stay_alone(&Collapse::random(9, 4, 250), 4);
    props::spoilt_tokens_stay_alone(&Collapse::random(2, 2, 7), 0);
}

fn repeat_runs_give_the_same_bits() {
    props::repeats(&Collapse::random(65, 4, 768), &Collapse::random(3, 2, 7));
}

fn no_tokens_are_nothing_to_do() {
    props::empty_is_nothing(&Collapse::random(2, 4, 64));
}

fn main() -> ExitCode {
    on_every_backend(tests![
        every_number_of_tokens,
        every_hidden_size,
        every_number_of_streams,
        products_and_sums_are_rounded_separately,
        strided_inputs,
        one_misaligned_operand,
        one_row_for_all,
        any_strides,
        negative_strides,
        signed_zeros_and_special_values,
        subnormal_streams,
        tokens_beyond_32_bit_offsets,
        another_hidden_size_afterwards,
        tokens_are_independent,
        spoilt_tokens_stay_alone,
        repeat_runs_give_the_same_bits,
        no_tokens_are_nothing_to_do,
    ])
}
