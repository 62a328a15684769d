//! `gated_mla`.
use gatemix::{GateWeight, Memory};
use half::bf16;
use rayon::prelude::*;

use super::{Case, pick, split};
use crate::common::compare::{Float, Near, ulp_at};
use crate::common::data::{Buf, Rng};
use crate::common::oracle::{SIGMOID, U, dot, sigmoid};
use crate::common::{AnyExec, Place, with_place};

pub struct Gate {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub x: Buf<bf16>,
    pub weight: Buf<bf16>,
    pub attn: Buf<bf16>,
    pub shift: usize,
}

impl Gate {
    pub fn new(dims: [usize; 3], x: &[bf16], weight: &[bf16], attn: &[bf16], shift: usize) -> Gate {
        let [m, n, k] = dims;
        let (x, weight, attn) = (Buf::input(x, shift), Buf::input(weight, shift), Buf::input(attn, shift));
        Gate { m, n, k, x, weight, attn, shift }
    }

    /// Logits of variance 1.
    pub fn random(m: usize, n: usize, k: usize) -> Gate {
        let mut rng = Rng::new(&[m, n, k]);
        let weight = rng.normals(n * k, 1.0 / (k as f32).sqrt());
        Gate::new([m, n, k], &rng.normals(m * k, 1.0), &weight, &rng.normals(m * n, 1.0), 0)
    }

    /// All kernels give the same bits: partial sums are exact in any order, and no result is near a tie of its rounding.
    pub fn with_one_result(m: usize, n: usize, k: usize) -> Gate {
        let mut rng = Rng::new(&[m, n, k, 1]);
        // Small integers, so sparse that the logits, their products in sixteenths, are a few units.
        let integer = |rng: &mut Rng| match k {
            0..=320 => rng.below(7) as f32 - 3.0,
            _ => [-1.0, 1.0][rng.below(2)] * f32::from(rng.below(8) < 3),
        };
        let (x, weight) = (rng.many(m * k, integer), rng.many(n * k, |rng| integer(rng) / LATTICE));
        let significands = decided_significands();
        let attn = rng.many(m * n, |rng| {
            let power = 2f32.powi(rng.below(17) as i32 - 8);
            [-power, power][rng.below(2)] * significands[rng.below(significands.len())]
        });
        Gate::new([m, n, k], &x, &weight, &attn, 0)
    }

    /// The same numbers from the last to the first.
    pub fn reversed(&self) -> Gate {
        let [x, weight, attn] =
            [&self.x, &self.weight, &self.attn].map(|data| data.iter().rev().copied().collect::<Vec<bf16>>());
        Gate::new([self.m, self.n, self.k], &x, &weight, &attn, self.shift)
    }

    /// Every base one element past its natural place.
    pub fn misaligned(&self) -> Gate {
        Gate::new([self.m, self.n, self.k], &self.x, &self.weight, &self.attn, 1)
    }

    pub fn run(&self, exec: &AnyExec) -> Vec<bf16> {
        with_place!(exec, place => self.run_at(place))
    }

    pub fn run_in_place(&self, exec: &AnyExec) -> Vec<bf16> {
        with_place!(exec, place => self.run_in_place_at(place))
    }

    fn run_at<M: Memory>(&self, place: &Place<M>) -> Vec<bf16> {
        let [x, weight, attn] = [&self.x, &self.weight, &self.attn].map(|buf| place.input(buf));
        let mut out = place.output(self.m * self.n, self.shift);
        gatemix::gated_mla(
            &place.exec,
            x.tensor([self.m, self.k]),
            GateWeight::from_tensor(weight.tensor([self.n, self.k])).unwrap(),
            attn.tensor([self.m, self.n]),
            &mut out.tensor([self.m, self.n]),
        )
        .unwrap();
        out.finish()
    }

    fn run_in_place_at<M: Memory>(&self, place: &Place<M>) -> Vec<bf16> {
        let [x, weight] = [&self.x, &self.weight].map(|buf| place.input(buf));
        let mut attn = place.in_place(Buf::in_place(&self.attn, self.shift));
        gatemix::gated_mla_in_place(
            &place.exec,
            x.tensor([self.m, self.k]),
            GateWeight::from_tensor(weight.tensor([self.n, self.k])).unwrap(),
            &mut attn.tensor([self.m, self.n]),
        )
        .unwrap();
        attn.finish()
    }
}

/// Logits are multiples of 1 / LATTICE.
const LATTICE: f32 = 16.0;

/// Those for which no product with the gate of such a logit, up to 40, is so near a tie that a sigmoid could decide it.
fn decided_significands() -> Vec<f32> {
    let gates: Vec<f64> = (-40 * 16..=40 * 16).map(|i| sigmoid(f64::from(i) / f64::from(LATTICE))).collect();
    let decided = |attn: &f32| {
        gates.iter().all(|gate| {
            let product = f64::from(*attn) * gate;
            let in_ulps = product / ulp_at::<bf16>(product);
            (in_ulps.fract() - 0.5).abs() > 2.0 * (SIGMOID + U) * in_ulps
        })
    };
    (128..256).map(|i| i as f32 / 128.0).filter(decided).collect()
}

impl Case for Gate {
    fn op(&self) -> &'static str {
        "gated_mla"
    }
    fn tokens(&self) -> usize {
        self.m
    }
    fn run_bits(&self, exec: &AnyExec) -> Vec<Vec<u32>> {
        split(&self.run(exec), self.m)
    }
    fn pick(&self, tokens: &[usize]) -> Gate {
        let (x, attn) = (pick(&self.x, self.k, tokens), pick(&self.attn, self.n, tokens));
        Gate::new([tokens.len(), self.n, self.k], &x, &self.weight, &attn, 0)
    }
    fn spoil(&mut self, token: usize, value: f32) {
        self.x[token * self.k..][..self.k].fill(bf16::from_f32(value));
        self.attn[token * self.n..][..self.n].fill(bf16::from_f32(value));
    }
}

/// The exact result of one element, and what the same steps give with every step rounded to bf16.
pub struct Exact {
    pub at: (usize, usize),
    pub near: Near,
    pub eager: bf16,
}

impl Gate {
    /// All elements, or the borders and random samples where that would take too long.
    pub fn exact(&self) -> Vec<Exact> {
        const BUDGET: usize = 1 << 22; // multiplications
        let rows = sample(self.m, 17.max(BUDGET / (self.n * self.k)));
        let cols = sample(self.n, BUDGET / (rows.len().max(1) * self.k));
        self.exact_at(&rows, &cols)
    }

    /// The elements where these rows and columns meet.
    pub fn exact_at(&self, rows: &[usize], cols: &[usize]) -> Vec<Exact> {
        let wide = |row: &[bf16]| -> Vec<f64> { row.iter().map(|v| v.f64()).collect() };
        let xs: Vec<Vec<f64>> = rows.iter().map(|r| wide(&self.x[r * self.k..][..self.k])).collect();
        let column = |col: &usize| -> Vec<Exact> {
            let w = wide(&self.weight[col * self.k..][..self.k]);
            let attn = |row: &usize| self.attn[row * self.n + col].f64();
            xs.iter().zip(rows).map(|(x, row)| gate_exact((*row, *col), x, &w, attn(row))).collect()
        };
        cols.par_iter().flat_map_iter(column).collect()
    }
}

fn gate_exact(at: (usize, usize), x: &[f64], w: &[f64], attn: f64) -> Exact {
    let z = dot(x.iter().zip(w).map(|(x, w)| x * w));
    let gate = sigmoid(z.value);
    let value = attn * gate;
    let tol = value.abs() * (1.01 * (1.0 - gate) * z.tol + SIGMOID + U);
    let eager = bf16::from_f64(attn * bf16::from_f64(sigmoid(bf16::from_f64(z.value).f64())).f64());
    Exact { at, near: Near { value, tol: if z.value.is_finite() { tol } else { 0.0 } }, eager }
}

/// The first and last indices below `len`, and random ones, up to `most` in all.
pub fn sample(len: usize, most: usize) -> Vec<usize> {
    if len <= most {
        return (0..len).collect();
    }
    let mut rng = Rng::new(&[len, most]);
    let mut picked: Vec<usize> = (0..most).map(|_| rng.below(len)).collect();
    for i in 0..most / 4 {
        picked[2 * i] = i;
        picked[2 * i + 1] = len - 1 - i;
    }
    picked.sort_unstable();
    picked.dedup();
    picked
}
