//! A token's bits are the same in every batch, at every place of a large one, and every time.
use gatemix::sys::{GM_BATCH_INVARIANT, GM_PORTABLE};

use crate::common::abi::{self, OPERATORS};
use crate::common::cuda::{self, Stream};
use crate::common::skip;
use crate::device::OnDevice;

/// These tokens of every output.
fn part(outputs: &[Vec<u8>], of: usize, first: usize, tokens: usize) -> Vec<Vec<u8>> {
    let cut = |output: &Vec<u8>| {
        let token = output.len() / of;
        output[first * token..][..tokens * token].to_vec()
    };
    outputs.iter().map(cut).collect()
}

/// What makes a token's bits independent of the batch; but in the gate they are so anyway.
fn invariant(op: &str) -> u32 {
    if op == "gated_mla" { GM_BATCH_INVARIANT as u32 } else { 0 }
}

const BATCH: usize = 300;

/// The first tokens, all numbers of them at the given step; then others alone and in small groups.
fn check_batches(op: &'static str, hidden: usize, step: usize, flags: u32) {
    let mut device = OnDevice::new(op, BATCH, hidden, &Stream::new());
    device.call.exec.flags = flags;
    let batch = device.run(BATCH);
    let prefixes = (1..BATCH).step_by(step).map(|tokens| (0, tokens));
    let groups = (0..BATCH - 40).step_by(7).flat_map(|first| [1, 2, 5, 33].map(|tokens| (first, tokens)));
    for (first, tokens) in prefixes.chain(groups) {
        device.window(first, tokens);
        let same = device.run(tokens) == part(&batch, BATCH, first, tokens);
        assert!(same, "{op} H {hidden} flags {flags}: {tokens} tokens from {first} on have other bits");
    }
}

pub fn a_token_has_the_same_bits_in_any_batch() {
    for op in OPERATORS {
        for (hidden, step) in [(250, 1), (5120, 1), (7168, 13)] {
            [0, GM_PORTABLE].iter().for_each(|flags| check_batches(op, hidden, step, *flags as u32 | invariant(op)));
        }
    }
}

pub fn a_spoilt_token_stays_alone() {
    const SPOILT: usize = 150;
    const AFTER: usize = BATCH - SPOILT - 1;
    const NAN: u32 = 0x7FC0_7FC0;
    const HUGE: u32 = 0x7F7F_7F7F;
    for (op, value) in OPERATORS.into_iter().flat_map(|op| [NAN, HUGE].map(|value| (op, value))) {
        let device = OnDevice::new(op, BATCH, 5120, &Stream::new());
        let before = device.run(BATCH);
        device.spoil_token(SPOILT, value);
        let after = device.run(BATCH);
        let same = |first, tokens| part(&after, BATCH, first, tokens) == part(&before, BATCH, first, tokens);
        assert!(same(0, SPOILT) && same(SPOILT + 1, AFTER), "{op}: {value:x} in token {SPOILT} spoils others");
        assert!(!same(SPOILT, 1), "{op}: {value:x} changes nothing");
    }
}

/// Several calls in flight, each with operands of its own, and all of their results compared.
pub fn ten_thousand_repeats() {
    for op in OPERATORS {
        for (tokens, hidden, in_flight, repeats) in [(1, 250, 64, 10_000), (8, 5120, 64, 10_000), (300, 5120, 4, 400)] {
            let stream = Stream::new();
            let devices: Vec<OnDevice> = (0..in_flight).map(|_| OnDevice::new(op, tokens, hidden, &stream)).collect();
            let want = devices[0].run(tokens);
            for round in 0..repeats / in_flight + 1 {
                devices.iter().for_each(OnDevice::spoil_outputs);
                devices.iter().for_each(OnDevice::launch);
                let same = devices.iter().all(|device| device.read(0, tokens) == want);
                assert!(same, "{op} T {tokens} H {hidden}: other bits in round {round}");
            }
        }
    }
}

/// The tokens of a large batch repeat these.
const TILE: usize = 64;

fn check_large(op: &'static str, tokens: usize, hidden: usize, flags: i32) {
    let stream = Stream::new();
    let call = || abi::sized(op, TILE as i64, hidden as i64);
    let mut small = OnDevice::of(call(), TILE, &stream);
    let bytes = small.token_bytes() * tokens;
    if cuda::free_memory() < bytes + (1 << 30) {
        skip(&format!("this takes {} MiB of device memory", bytes >> 20));
    }
    let mut large = OnDevice::of(call(), tokens, &stream);
    [&mut small, &mut large].into_iter().for_each(|device| device.call.exec.flags = flags as u32 | invariant(op));
    if op == "mhc_post_collapse_rms_norm" {
        large.call.arg("residual_out").tensor.data = large.call.arg("residual").tensor.data; // in place
    }
    let want = small.run(TILE);
    large.launch();
    for first in (0..tokens).step_by(TILE) {
        assert!(
            large.read(first, TILE) == want,
            "{op} T {tokens} H {hidden} flags {flags}: other bits from token {first} on"
        );
    }
}

pub fn a_million_tokens() {
    OPERATORS.into_iter().for_each(|op| check_large(op, 1 << 20, 8, 0));
}

pub fn beyond_32_bits_in_place() {
    check_large("mhc_post_collapse_rms_norm", 200_000, 5120, 0);
}

pub fn beyond_32_bits_hc_collapse() {
    check_large("hc_collapse", 200_000, 5120, 0);
}

pub fn beyond_32_bits_hc_head() {
    check_large("hc_head", 200_000, 5120, 0);
}

pub fn beyond_32_bits_rms_norm() {
    check_large("rms_norm", 448_000, 5120, 0);
}

pub fn beyond_32_bits_gated_mla() {
    for flags in [0, GM_PORTABLE] {
        check_large("gated_mla", 448_000, 5120, flags); // elements of x
        check_large("gated_mla", 8_500_000, 8, flags); // of attn and out
    }
}
