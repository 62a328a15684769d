//! The CPU and CUDA give the same bits where the order of the steps is fixed, and nearly the same elsewhere.
use gatemix::{Exec, HeadMode};
use half::bf16;

use crate::common::cases::{Collapse, Gate, Head, Norm, PreMix, Seam};
use crate::common::compare::{assert_bits, assert_near, assert_ulps};
use crate::common::{AnyExec, levels};

fn cpu() -> AnyExec {
    Exec::cpu().into()
}

pub fn mhc_post_collapse_rms_norm() {
    let mut case = Seam::random(512, 4, 5120);
    let (residual, y) = case.run(&cpu());
    for (level, exec) in levels() {
        let got = case.run(&exec);
        assert_bits(format!("{level} residual_out"), &got.0, &residual);
        assert_ulps(format!("{level} layer_input"), &got.1, &y, 1);
    }
    // y is v * 2^-63 without another rounding.
    case.eps = 2f32.powi(126);
    case.weight.fill(bf16::ONE);
    let (_, scaled) = case.run(&cpu());
    for (level, exec) in levels() {
        assert_bits(format!("{level} v"), &case.run(&exec).1, &scaled);
    }
}

pub fn hc_collapse() {
    let case = Collapse::random(512, 4, 5120);
    let want = case.run(&cpu());
    levels().iter().for_each(|(level, exec)| assert_bits(level, &case.run(exec), &want));
}

pub fn rms_norm() {
    let case = Norm::<bf16>::random(2048, 5120);
    let want = case.run(&cpu());
    levels().iter().for_each(|(level, exec)| assert_ulps(level, &case.run(exec), &want, 1));
}

pub fn gated_mla() {
    for (m, n) in [(5, 2048), (100, 4096), (1000, 8192)] {
        let case = Gate::random(m, n, 6144);
        let want = case.run(&cpu());
        let name = |level| format!("{level} m {m} n {n}");
        levels().iter().for_each(|(level, exec)| assert_ulps(name(level), &case.run(exec), &want, 1));
    }
}

pub fn hc_head() {
    for mode in [HeadMode::Rounded, HeadMode::Fp32] {
        let case = Head::random(100, 4, 5120, mode);
        let want = case.exact();
        assert_near("cpu", &case.run(&cpu()), &want);
        levels().iter().for_each(|(level, exec)| assert_near(level, &case.run(exec), &want));
    }
}

pub fn mhc_pre_mix() {
    let case = PreMix::random(5, 1 << 17, 4);
    let want = case.run(&cpu());
    // Either sigmoid is within 2^-22 of the exact one, which is 4 ulps at most.
    levels().iter().for_each(|(level, exec)| assert_ulps(level, &case.run(exec), &want, 8));
}

/// Kernels cut rows into chunks of 256 elements, and have other forms once there is a token for each multiprocessor.
pub fn rows_of_any_number_of_chunks() {
    for (chunks, t) in (1..=33).flat_map(|chunks| [1, 3, 100, 140].map(|t| (chunks, t))) {
        let case = Seam::random(t, 4, 256 * chunks);
        let (residual, y) = case.run(&cpu());
        for (level, exec) in levels() {
            let (what, got) = (format!("{level} T {t}, {chunks} chunks"), case.run(&exec));
            assert_bits(format!("{what}, residual_out"), &got.0, &residual);
            assert_ulps(format!("{what}, layer_input"), &got.1, &y, 1);
        }
    }
    for (chunks, rows) in (1..=130).flat_map(|chunks| [3, 140].map(|rows| (chunks, rows))) {
        let case = Norm::<bf16>::random(rows, 256 * chunks);
        let want = case.run(&cpu());
        for (level, exec) in levels() {
            assert_ulps(format!("{level} {rows} rows of {chunks} chunks"), &case.run(&exec), &want, 1);
        }
    }
    for (chunks, t) in (1..=33).flat_map(|chunks| [3, 20].map(|t| (chunks, t))) {
        let case = Head::random(t, 4, 256 * chunks, HeadMode::Rounded);
        let want = case.exact();
        levels().iter().for_each(|(level, exec)| {
            assert_near(format!("{level} T {t}, {chunks} chunks"), &case.run(exec), &want);
        });
    }
}
