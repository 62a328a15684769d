//! The gated GEMM on a GPU, beside cuBLAS' product without the gate. scripts/gpu/run.sh forms compares the forms of it.
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use gatemix::{Cuda, Exec, GateWeight, gated_mla};
use half::bf16;

use crate::common::Noise;
use crate::common::cuda::{Gpu, Sets, sets};
use crate::cublas::Cublas;

/// (n, k, numbers of rows)
const SHAPES: [(usize, usize, &[usize]); 4] = [
    (16384, 6144, &[1, 16, 64, 128, 256, 1024, 4096]),
    (4096, 7168, &[1, 16, 128, 1024]),
    (2048, 6144, &[1, 16, 64, 128, 256, 1024, 4096]),
    (256, 6144, &[1, 16, 64]),
];

pub fn bench(c: &mut Criterion) {
    let Some(gpu) = Gpu::open() else { return };
    let cublas = Cublas::open(&gpu);
    for (n, k, rows) in SHAPES {
        let sets = sets(2 * n * k);
        let weight = gpu.repeat(&Noise(1).bf16s(n * k, 1.0 / (k as f32).sqrt()), sets);
        for &m in rows {
            Shape::new(&gpu, &weight, [m, n, k], sets).bench(c, cublas.as_ref());
        }
    }
}

struct Shape<'a> {
    gpu: &'a Gpu,
    weight: &'a Sets<bf16>,
    size: [usize; 3],
    sets: usize,
    x: Sets<bf16>,
    attn: Sets<bf16>,
    out: Sets<bf16>,
}

impl<'a> Shape<'a> {
    fn new(gpu: &'a Gpu, weight: &'a Sets<bf16>, size: [usize; 3], sets: usize) -> Shape<'a> {
        let ([m, n, k], mut noise) = (size, Noise(2));
        let x = gpu.repeat(&noise.bf16s(m * k, 1.0), sets);
        let attn = gpu.repeat(&noise.bf16s(m * n, 1.0), sets);
        let out = gpu.repeat(&vec![bf16::ZERO; m * n], sets);
        Shape { gpu, weight, size, sets, x, attn, out }
    }

    fn call(&self, exec: &Exec<Cuda>, set: usize) {
        let [m, n, k] = self.size;
        let weight = GateWeight::from_tensor(self.weight.tensor(set, [n, k])).unwrap();
        let out = &mut self.out.output(set, [m, n]);
        gated_mla(exec, self.x.tensor(set, [m, k]), weight, self.attn.tensor(set, [m, n]), out).unwrap();
    }

    fn bench(&self, c: &mut Criterion, cublas: Option<&Cublas>) {
        let ([m, n, k], exec) = (self.size, self.gpu.exec);
        let mut group = c.benchmark_group(format!("cuda/gated_mla/n{n}_k{k}"));
        group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
        group.throughput(match m {
            0..=128 => Throughput::Bytes((2 * n * k) as u64),
            _ => Throughput::Elements((2 * m * n * k) as u64),
        });
        if let Some(cublas) = cublas {
            self.gpu.bench(&mut group, BenchmarkId::new("cublas_without_gate", m), self.sets, |i| {
                // SAFETY: they have this size, on this GPU.
                unsafe { cublas.multiply(self.size, self.x.pointer(i), self.weight.pointer(i), self.out.pointer(i)) };
            });
        }
        let levels = [("best", exec), ("batch_invariant", exec.batch_invariant()), ("portable", exec.portable())];
        for (name, exec) in levels {
            self.gpu.bench(&mut group, BenchmarkId::new(name, m), self.sets, |i| self.call(&exec, i));
        }
        group.finish();
    }
}
