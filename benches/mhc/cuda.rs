//! The mHC operators on a GPU. scripts/peers.py compares them with others.
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use gatemix::{
    HcHead, HeadMode, MhcPostCollapseRmsNorm, MhcPreMix, hc_collapse, hc_head, mhc_post_collapse_rms_norm,
    mhc_post_collapse_rms_norm_in_place, mhc_pre_mix, rms_norm,
};
use half::bf16;

use crate::common::Noise;
use crate::common::cuda::{Gpu, sets};
use crate::{COLUMNS, EPS, H, N, SLICES};

pub fn bench(c: &mut Criterion) {
    let Some(gpu) = Gpu::open() else { return };
    for t in [1, 128, 2048] {
        post_collapse_rms_norm(c, &gpu, t);
        collapse_and_head(c, &gpu, t);
        pre_mix(c, &gpu, t);
        norm(c, &gpu, t);
    }
}

fn group<'a>(c: &'a mut Criterion, name: &str, bytes: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(format!("cuda/{name}"));
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
    group.throughput(Throughput::Bytes(bytes as u64));
    group
}

fn post_collapse_rms_norm(c: &mut Criterion, gpu: &Gpu, t: usize) {
    let bytes = 2 * (2 * N + 2) * H * t;
    let (mut noise, sets) = (Noise(1), sets(bytes));
    let residual = gpu.repeat(&noise.bf16s(t * N * H, 1.0), sets);
    let (x, weight) = (gpu.repeat(&noise.bf16s(t * H, 1.0), sets), gpu.repeat(&noise.bf16s(H, 1.0), sets));
    let (post, pre) = (gpu.repeat(&noise.f32s(t * N), sets), gpu.repeat(&noise.f32s(t * N), sets));
    let comb: Vec<f32> = noise.f32s(t * N * N).iter().map(|v| v / 2.0).collect(); // in place, nothing may grow
    let comb = gpu.repeat(&comb, sets);
    let residual_out = gpu.repeat(&vec![bf16::ZERO; t * N * H], sets);
    let out = gpu.repeat(&vec![bf16::ZERO; t * H], sets);
    let inputs = |i| MhcPostCollapseRmsNorm {
        sublayer_out: x.tensor(i, [t, H]),
        post_mix: post.tensor(i, [t, N]),
        comb_mix: comb.tensor(i, [t, N, N]),
        pre_mix: pre.tensor(i, [t, N]),
        norm_weight: weight.tensor(i, [H]),
        norm_eps: EPS,
    };
    let mut group = group(c, "mhc_post_collapse_rms_norm", bytes);
    gpu.bench_copy(&mut group, t, bytes);
    gpu.bench(&mut group, BenchmarkId::new("new", t), sets, |i| {
        let residual = residual.tensor(i, [t, N, H]);
        let (mut residual_out, mut out) = (residual_out.output(i, [t, N, H]), out.output(i, [t, H]));
        mhc_post_collapse_rms_norm(&gpu.exec, residual, &inputs(i), &mut residual_out, &mut out).unwrap();
    });
    gpu.bench(&mut group, BenchmarkId::new("in_place", t), sets, |i| {
        let (mut residual, mut out) = (residual.output(i, [t, N, H]), out.output(i, [t, H]));
        mhc_post_collapse_rms_norm_in_place(&gpu.exec, &mut residual, &inputs(i), &mut out).unwrap();
    });
    group.finish();
}

fn collapse_and_head(c: &mut Criterion, gpu: &Gpu, t: usize) {
    let bytes = 2 * (N + 1) * H * t;
    let (mut noise, sets) = (Noise(2), sets(bytes));
    let residual = gpu.repeat(&noise.bf16s(t * N * H, 1.0), sets);
    let pre_mix = gpu.repeat(&noise.f32s(t * N), sets);
    let fn_weight = gpu.repeat(&noise.f32s(N * N * H), sets);
    let (scale, base) = (gpu.repeat(&noise.f32s(1), sets), gpu.repeat(&noise.f32s(N), sets));
    let out = gpu.repeat(&vec![bf16::ZERO; t * H], sets);

    let mut collapse = group(c, "hc_collapse", bytes);
    gpu.bench_copy(&mut collapse, t, bytes);
    gpu.bench(&mut collapse, BenchmarkId::from_parameter(t), sets, |i| {
        let (residual, pre_mix) = (residual.tensor(i, [t, N, H]), pre_mix.tensor(i, [t, N]));
        hc_collapse(&gpu.exec, residual, pre_mix, &mut out.output(i, [t, H])).unwrap();
    });
    collapse.finish();

    let mut head = group(c, "hc_head", bytes);
    for (name, mode) in [("rounded", HeadMode::Rounded), ("fp32", HeadMode::Fp32)] {
        gpu.bench(&mut head, BenchmarkId::new(name, t), sets, |i| {
            let inputs = HcHead {
                residual: residual.tensor(i, [t, N, H]),
                fn_weight: fn_weight.tensor(i, [N, N * H]),
                scale: scale.tensor(i, [1]),
                base: base.tensor(i, [N]),
                rms_eps: EPS,
                hc_eps: EPS,
                mode,
            };
            hc_head(&gpu.exec, &inputs, &mut out.output(i, [t, H])).unwrap();
        });
    }
    head.finish();
}

fn pre_mix(c: &mut Criterion, gpu: &Gpu, t: usize) {
    let bytes = 4 * t * (SLICES * (N + 1) + N);
    let (mut noise, sets) = (Noise(3), sets(4 * t * SLICES * COLUMNS));
    let gemm_out = gpu.repeat(&noise.f32s(SLICES * t * COLUMNS), sets);
    let sqrsum: Vec<f32> = noise.f32s(SLICES * t).iter().map(|v| v.abs() * H as f32).collect();
    let sqrsum = gpu.repeat(&sqrsum, sets);
    let (scale, base) = (gpu.repeat(&noise.f32s(3), sets), gpu.repeat(&noise.f32s(COLUMNS), sets));
    let out = gpu.repeat(&vec![0.0f32; t * N], sets);
    let mut group = group(c, "mhc_pre_mix", bytes);
    gpu.bench(&mut group, BenchmarkId::from_parameter(t), sets, |i| {
        let inputs = MhcPreMix {
            gemm_out: gemm_out.tensor(i, [SLICES, t, COLUMNS]).into(),
            sqrsum: sqrsum.tensor(i, [SLICES, t]).into(),
            scale: scale.tensor(i, [3]),
            base: base.tensor(i, [COLUMNS]),
            hc_hidden: N * H,
            rms_eps: EPS,
            hc_pre_eps: EPS,
        };
        mhc_pre_mix(&gpu.exec, &inputs, &mut out.output(i, [t, N])).unwrap();
    });
    group.finish();
}

fn norm(c: &mut Criterion, gpu: &Gpu, t: usize) {
    let bytes = 4 * N * H * t;
    let sets = sets(bytes);
    let x = gpu.repeat(&Noise(4).bf16s(t * N * H, 1.0), sets);
    let out = gpu.repeat(&vec![bf16::ZERO; t * N * H], sets);
    let mut group = group(c, "rms_norm", bytes);
    gpu.bench_copy(&mut group, t, bytes);
    gpu.bench(&mut group, BenchmarkId::from_parameter(t), sets, |i| {
        let shape = [t, N * H];
        rms_norm(&gpu.exec, x.tensor(i, shape), None, EPS, &mut out.output(i, shape)).unwrap();
    });
    group.finish();
}
