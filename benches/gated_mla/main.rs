//! The gated GEMM at n 4096, k 6144, beside a plain read of the weight, its floor for few rows.
//! For m <= 8 the throughput is in bytes of weight, above in floating-point operations ("elements").
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "cuda")]
mod cublas;
#[cfg(feature = "cuda")]
mod cuda;

use std::hint::black_box;

use common::{COLD_BYTES, Noise};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gatemix::{Exec, GateWeight, GateWidth, Tensor, TensorMut, gated_mla};
use half::bf16;
use rayon::prelude::*;

const N: usize = 4096;
const K: usize = 6144;
const WEIGHT_BYTES: usize = 2 * N * K;

/// Reads all of `words` on all threads.
fn read(words: &[u64]) -> u64 {
    let piece = words.len().div_ceil(4 * rayon::current_num_threads());
    words.par_chunks(piece).map(|words| words.iter().fold(0, |sum, word| sum ^ word)).reduce(|| 0, |a, b| a ^ b)
}

fn bench(c: &mut Criterion) {
    let mut noise = Noise(1);
    let weight = noise.bf16s(N * K, 1.0 / (K as f32).sqrt());
    // Each call takes the next weight, as the layers of a model do.
    let layers: Vec<Vec<bf16>> = vec![weight; COLD_BYTES.div_ceil(WEIGHT_BYTES)];
    let mut group = c.benchmark_group("gated_mla");

    let words: Vec<Vec<u64>> = vec![vec![1; WEIGHT_BYTES / 8]; layers.len()];
    group.throughput(Throughput::Bytes(WEIGHT_BYTES as u64));
    let mut turn = 0;
    group.bench_function("read_weight", |b| {
        b.iter(|| {
            turn = (turn + 1) % words.len();
            read(black_box(&words[turn]))
        });
    });
    drop(words);

    let levels = [("best", Exec::cpu()), ("avx2", Exec::cpu().without_avx512()), ("portable", Exec::cpu().portable())];
    for m in [1, 2, 4, 8, 16, 64, 128, 512] {
        let (x, attn) = (noise.bf16s(m * K, 1.0), noise.bf16s(m * N, 1.0));
        let mut out = vec![bf16::ZERO; m * N];
        group.throughput(match m {
            0..=8 => Throughput::Bytes(WEIGHT_BYTES as u64),
            _ => Throughput::Elements((2 * m * N * K) as u64),
        });
        for (name, exec) in levels {
            if name == "portable" && m > 64 {
                continue; // seconds a call, and no news over m = 64
            }
            group.bench_function(BenchmarkId::new(name, m), |b| {
                b.iter(|| {
                    turn = (turn + 1) % layers.len();
                    gated_mla(
                        &exec,
                        Tensor::new(&x, [m, K]).unwrap(),
                        GateWeight::new(&layers[turn], GateWidth::new(N).unwrap(), K).unwrap(),
                        Tensor::new(&attn, [m, N]).unwrap(),
                        &mut TensorMut::new(&mut out, [m, N]).unwrap(),
                    )
                    .unwrap();
                });
            });
        }
    }
    group.finish();
}

#[cfg(feature = "cuda")]
use cuda::bench as on_gpu;

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: &mut Criterion) {
    eprintln!("CUDA benches skipped: built without feature cuda");
}

criterion_group! { name = benches; config = common::criterion(); targets = on_gpu, bench }
criterion_main!(benches);
