//! No kernel touches memory beyond its operands: each of them ends at a page that faults.
#![cfg(target_os = "linux")]
mod common;

use common::cases::{Case, Collapse, Gate, Head, Norm, PreMix, Seam};
use common::levels;
use common::memory::fenced;
use gatemix::{Element, HeadMode};
use half::{bf16, f16};

const SIZES: [usize; 16] = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100, 129, 257];
const STREAMS: [usize; 4] = [1, 2, 4, 8];

/// The operands lie elsewhere and have another alignment, but the bits are the same.
fn check<C: Case>(make: impl Fn() -> C) {
    let case = make();
    for (level, exec) in levels() {
        let want = case.run_bits(&exec);
        let same = fenced(|| make().run_bits(&exec) == want);
        assert!(same, "{} at level {level} has other bits at the end of a page", case.op());
    }
}

#[test]
fn gated_mla() {
    for k in SIZES {
        [1, 3, 8, 9, 20, 49, 70].iter().for_each(|m| check(|| Gate::random(*m, 256, k)));
    }
}

fn norm<E: common::compare::Float + Element>() {
    for dim in SIZES {
        check(|| Norm::<E>::random(3, dim));
        check(|| Norm::<E>::random(3, dim).relaid(dim + 5, 0));
    }
}

#[test]
fn rms_norm() {
    norm::<bf16>();
    norm::<f16>();
    norm::<f32>();
}

#[test]
fn hc_collapse() {
    for h in SIZES {
        for n in STREAMS {
            check(|| Collapse::random(3, n, h));
            check(|| Collapse::random(3, n, h).relaid([n * (h + 3), h + 3, 1], [n + 1, 1], 0));
            check(|| Collapse::random(3, n, h).relaid([1, 3, 3 * n], [1, 3], 0));
        }
    }
}

#[test]
fn hc_head() {
    for h in SIZES {
        for n in STREAMS {
            check(|| Head::random(5, n, h, HeadMode::Rounded));
            check(|| Head::random(1, n, h, HeadMode::Fp32));
        }
    }
}

#[test]
fn mhc_pre_mix() {
    for t in SIZES {
        for n in STREAMS {
            check(|| PreMix::random(3, t, n));
            check(|| {
                let mut case = PreMix::random(2, t, n);
                case.gemm_out = case.gemm_out.pick(2, &(0..n).collect::<Vec<_>>());
                case.relaid([t * n, n, 1], [t, 1], 0)
            });
        }
    }
}

#[test]
fn mhc_post_collapse_rms_norm() {
    for h in SIZES {
        STREAMS.iter().for_each(|n| check(|| Seam::random(2, *n, h)));
    }
}
