//! The mHC operators at H 5120, n 4, each beside a plain copy that moves as many bytes, its floor.
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "cuda")]
mod cuda;

use common::{COLD_BYTES, Noise};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gatemix::{
    Exec, HcHead, HeadMode, MhcPostCollapseRmsNorm, MhcPreMix, Tensor, TensorMut, hc_collapse, hc_head,
    mhc_post_collapse_rms_norm, mhc_post_collapse_rms_norm_in_place, mhc_pre_mix, rms_norm,
};
use half::bf16;
use rayon::prelude::*;

const H: usize = 5120;
const N: usize = 4;
const SLICES: usize = 8;
/// Columns of the projection's output: pre, post and comb.
const COLUMNS: usize = N * (N + 2);
const EPS: f32 = 1e-6;
/// Cache line, the unit in which memory moves.
const LINE: usize = 64;

/// Copies on all threads.
fn copy_bytes(from: &[u8], to: &mut [u8]) {
    let piece = from.len().div_ceil(4 * rayon::current_num_threads());
    to.par_chunks_mut(piece).zip(from.par_chunks(piece)).for_each(|(to, from)| to.copy_from_slice(from));
}

/// A copy that moves `bytes`, half of them read and half written; what follows in the group counts as many.
fn copy(group: &mut BenchmarkGroup<'_, WallTime>, id: BenchmarkId, bytes: usize) {
    let (from, mut to) = (vec![1u8; bytes / 2], vec![0u8; bytes / 2]);
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function(id, |b| b.iter(|| copy_bytes(&from, &mut to)));
}

fn cold_copy(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    copy(&mut group, BenchmarkId::from_parameter("cold"), 2 * COLD_BYTES);
    group.finish();
}

fn post_collapse_rms_norm(c: &mut Criterion) {
    let mut group = c.benchmark_group("mhc_post_collapse_rms_norm");
    let exec = Exec::cpu();
    for t in [1, 8, 256, 2048] {
        let mut noise = Noise(1);
        let (residual, x, weight) = (noise.bf16s(t * N * H, 1.0), noise.bf16s(t * H, 1.0), noise.bf16s(H, 1.0));
        let (post, pre) = (noise.f32s(t * N), noise.f32s(t * N));
        let comb: Vec<f32> = noise.f32s(t * N * N).iter().map(|v| v / 2.0).collect(); // in place, nothing may grow
        let (mut residual_out, mut out) = (residual.clone(), vec![bf16::ZERO; t * H]);
        let inputs = MhcPostCollapseRmsNorm {
            sublayer_out: Tensor::new(&x, [t, H]).unwrap(),
            post_mix: Tensor::new(&post, [t, N]).unwrap(),
            comb_mix: Tensor::new(&comb, [t, N, N]).unwrap(),
            pre_mix: Tensor::new(&pre, [t, N]).unwrap(),
            norm_weight: Tensor::new(&weight, [H]).unwrap(),
            norm_eps: EPS,
        };
        let residual = Tensor::new(&residual, [t, N, H]).unwrap();
        let mut residual_out = TensorMut::new(&mut residual_out, [t, N, H]).unwrap();
        let mut out = TensorMut::new(&mut out, [t, H]).unwrap();
        copy(&mut group, BenchmarkId::new("copy", t), 2 * (2 * N + 2) * H * t);
        group.bench_function(BenchmarkId::new("new", t), |b| {
            b.iter(|| mhc_post_collapse_rms_norm(&exec, residual, &inputs, &mut residual_out, &mut out).unwrap());
        });
        group.bench_function(BenchmarkId::new("in_place", t), |b| {
            b.iter(|| mhc_post_collapse_rms_norm_in_place(&exec, &mut residual_out, &inputs, &mut out).unwrap());
        });
    }
    group.finish();
}

fn collapse_and_head(c: &mut Criterion) {
    let exec = Exec::cpu();
    for t in [1, 8, 256, 2048] {
        let mut noise = Noise(2);
        let (residual, pre_mix) = (noise.bf16s(t * N * H, 1.0), noise.f32s(t * N));
        let (fn_weight, scale, base) = (noise.f32s(N * N * H), noise.f32s(1), noise.f32s(N));
        let mut out = vec![bf16::ZERO; t * H];
        let mut out = TensorMut::new(&mut out, [t, H]).unwrap();
        let residual = Tensor::new(&residual, [t, N, H]).unwrap();
        let pre_mix = Tensor::new(&pre_mix, [t, N]).unwrap();
        let bytes = 2 * (N + 1) * H * t;

        let mut group = c.benchmark_group("hc_collapse");
        copy(&mut group, BenchmarkId::new("copy", t), bytes);
        group.bench_function(BenchmarkId::from_parameter(t), |b| {
            b.iter(|| hc_collapse(&exec, residual, pre_mix, &mut out).unwrap());
        });
        group.finish();

        let mut group = c.benchmark_group("hc_head");
        copy(&mut group, BenchmarkId::new("copy", t), bytes);
        for (name, mode) in [("rounded", HeadMode::Rounded), ("fp32", HeadMode::Fp32)] {
            let inputs = HcHead {
                residual,
                fn_weight: Tensor::new(&fn_weight, [N, N * H]).unwrap(),
                scale: Tensor::new(&scale, [1]).unwrap(),
                base: Tensor::new(&base, [N]).unwrap(),
                rms_eps: EPS,
                hc_eps: EPS,
                mode,
            };
            group.bench_function(BenchmarkId::new(name, t), |b| {
                b.iter(|| hc_head(&exec, &inputs, &mut out).unwrap());
            });
        }
        group.finish();
    }
}

fn pre_mix(c: &mut Criterion) {
    let mut group = c.benchmark_group("mhc_pre_mix");
    let exec = Exec::cpu();
    for t in [1, 8, 256, 2048, 8192] {
        let mut noise = Noise(3);
        let gemm_out = noise.f32s(SLICES * t * COLUMNS);
        let sqrsum: Vec<f32> = noise.f32s(SLICES * t).iter().map(|v| v.abs() * H as f32).collect();
        let (scale, base) = (noise.f32s(3), noise.f32s(COLUMNS));
        let inputs = MhcPreMix {
            gemm_out: Tensor::new(&gemm_out, [SLICES, t, COLUMNS]).unwrap().into(),
            sqrsum: Tensor::new(&sqrsum, [SLICES, t]).unwrap().into(),
            scale: Tensor::new(&scale, [3]).unwrap(),
            base: Tensor::new(&base, [COLUMNS]).unwrap(),
            hc_hidden: N * H,
            rms_eps: EPS,
            hc_pre_eps: EPS,
        };
        let mut out = vec![0.0f32; t * N];
        let mut out = TensorMut::new(&mut out, [t, N]).unwrap();
        // The 16 bytes that are used of a row of 96 come with their cache line.
        copy(&mut group, BenchmarkId::new("copy", t), t * (SLICES * (LINE + 4) + 4 * N));
        group.bench_function(BenchmarkId::from_parameter(t), |b| {
            b.iter(|| mhc_pre_mix(&exec, &inputs, &mut out).unwrap());
        });
    }
    group.finish();
}

fn norm(c: &mut Criterion) {
    let mut group = c.benchmark_group("rms_norm");
    let exec = Exec::cpu();
    for t in [1, 8, 256, 2048] {
        let x = Noise(4).bf16s(t * N * H, 1.0);
        let mut out = vec![bf16::ZERO; x.len()];
        let x = Tensor::new(&x, [t, N * H]).unwrap();
        let mut out = TensorMut::new(&mut out, [t, N * H]).unwrap();
        copy(&mut group, BenchmarkId::new("copy", t), 4 * N * H * t);
        group.bench_function(BenchmarkId::from_parameter(t), |b| {
            b.iter(|| rms_norm(&exec, x, None, EPS, &mut out).unwrap());
        });
    }
    group.finish();
}

#[cfg(feature = "cuda")]
use cuda::bench as on_gpu;

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: &mut Criterion) {
    eprintln!("CUDA benches skipped: built without feature cuda");
}

criterion_group! {
    name = benches;
    config = common::criterion();
    targets = on_gpu, cold_copy, post_collapse_rms_norm, collapse_and_head, pre_mix, norm
}
criterion_main!(benches);
