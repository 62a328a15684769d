//! Against the outputs of the public Triton kernels; tests/data/README.md says what the files hold.
mod common;

use std::env;
use std::process::ExitCode;

use common::cases::{Collapse, Head, Norm, PreMix, Seam};
use common::compare::{Float, assert_bits, assert_each, assert_near, assert_ulps, ulps};
use common::data::{Buf, Strided, dense};
use common::{levels, on_every_backend, tests};
use gatemix::HeadMode;
use half::bf16;
use safetensors::SafeTensors;

const FILES: [(&str, [usize; 2]); 6] = [
    ("tiny", [1, 768]),
    ("small_a", [3, 256]),
    ("odd", [3, 1280]),
    ("v4flash", [2, 4096]),
    ("v41flash", [2, 5120]),
    ("v4pro", [2, 7168]),
];
const N: usize = 4;
const EPS: f32 = 1e-6;

struct Golden {
    name: &'static str,
    t: usize,
    h: usize,
    bytes: Vec<u8>,
}

impl Golden {
    fn bf16(&self, tensor: &str) -> Vec<bf16> {
        self.raw(tensor).chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect()
    }

    fn f32(&self, tensor: &str) -> Vec<f32> {
        self.raw(tensor).chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn raw(&self, tensor: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(tensor).unwrap().data().to_vec()
    }
}

/// From the folder GATEMIX_TEST_DATA, for machines without the sources.
fn golden() -> impl Iterator<Item = Golden> {
    let dir = env::var("GATEMIX_TEST_DATA").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data").into());
    FILES.into_iter().map(move |(name, [t, h])| {
        let path = format!("{dir}/{name}.safetensors");
        Golden { name, t, h, bytes: std::fs::read(path).unwrap() }
    })
}

fn mhc_post_collapse_rms_norm() {
    for file in golden() {
        let case = Seam {
            dims: [file.t, N, file.h],
            residual: Buf::input(&file.bf16("residual"), 0),
            sublayer_out: Buf::input(&file.bf16("sublayer_out"), 0),
            post: Buf::input(&file.f32("post_mix"), 0),
            comb: Buf::input(&file.f32("comb_mix"), 0),
            pre: Buf::input(&file.f32("pre_mix"), 0),
            weight: Buf::input(&file.bf16("norm_weight"), 0),
            eps: EPS,
            shifts: [0; 2],
        };
        let residual_out = file.bf16("post_collapse_rms_norm.residual_out");
        let layer_input = file.bf16("post_collapse_rms_norm.layer_input");
        assert_bits(format!("exact {} residual_out", file.name), &case.exact().residual, &residual_out);
        for (level, exec) in levels() {
            let (residual, y) = case.run(&exec);
            assert_bits(format!("{level} {} residual_out", file.name), &residual, &residual_out);
            assert_ulps(format!("{level} {} layer_input", file.name), &y, &layer_input, 1); // another order of the sum
        }
    }
}

fn hc_collapse() {
    for file in golden() {
        let shape = [file.t, N, file.h];
        let case = Collapse {
            residual: Strided::new(&file.bf16("residual"), shape, dense(shape), 0),
            pre: Strided::new(&file.f32("pre_mix"), [file.t, N], [N, 1], 0),
            shift: 0,
        };
        let out = file.bf16("collapse.out");
        assert_bits(format!("exact {}", file.name), &case.exact(), &out);
        for (level, exec) in levels() {
            assert_bits(format!("{level} {}", file.name), &case.run(&exec), &out);
        }
    }
}

fn rms_norm() {
    for file in golden() {
        let shape = [file.t, file.h];
        let x = Strided::new(&file.bf16("sublayer_out"), shape, dense(shape), 0);
        let case = Norm { x, weight: None, eps: EPS, shift: 0 };
        for (level, exec) in levels() {
            // another order of the sum
            assert_ulps(format!("{level} {}", file.name), &case.run(&exec), &file.bf16("rmsnorm.out"), 1);
        }
    }
}

fn mhc_pre_mix() {
    for file in golden() {
        let (t, gemm_out) = (file.t, file.f32("pre_mix.gemm_out"));
        let case = PreMix {
            gemm_out: Strided::new(&gemm_out, [5, t, 24], dense([5, t, 24]), 0),
            sqrsum: Strided::new(&file.f32("pre_mix.sqrsum"), [5, t], [t, 1], 0),
            n: N,
            scale: Buf::input(&file.f32("hc_scale"), 0),
            base: Buf::input(&file.f32("hc_base"), 0),
            hc_hidden: N * file.h,
            rms_eps: EPS,
            hc_pre_eps: EPS,
            shift: 0,
        };
        let want = file.f32("pre_mix.out");
        for (level, exec) in levels() {
            let got = case.run(&exec);
            let items = (0..got.len()).map(|i| (i, got[i].f64(), want[i].f64()));
            // the GPU's exponential and reciprocal are approximate
            let near = |got: &f64, want: &f64| (got - want).abs() <= 1.1e-6 * want;
            assert_each(format!("{level} {}", file.name), items, near);
        }
    }
}

fn hc_head() {
    for file in golden() {
        let case = Head {
            dims: [file.t, N, file.h],
            residual: Buf::input(&file.bf16("residual"), 0),
            fn_weight: Buf::input(&file.f32("head.fn"), 0),
            scale: Buf::input(&file.f32("head.scale"), 0),
            base: Buf::input(&file.f32("head.base"), 0),
            rms_eps: EPS,
            hc_eps: EPS,
            mode: HeadMode::Rounded,
            shift: 0,
        };
        let (want, exact) = (file.bf16("head.out"), case.exact());
        assert_near(format!("exact {}", file.name), &want, &exact);
        for (level, exec) in levels() {
            let got = case.run(&exec);
            assert_near(format!("{level} {}", file.name), &got, &exact);
            let differ: Vec<usize> = (0..got.len()).filter(|i| ulps(got[*i], want[*i]) > 0).collect();
            assert!(differ.len() <= 2, "{level} {}: {differ:?} differ", file.name); // the order of the sums
        }
    }
}

fn main() -> ExitCode {
    on_every_backend(tests![mhc_post_collapse_rms_norm, hc_collapse, rms_norm, mhc_pre_mix, hc_head,])
}
