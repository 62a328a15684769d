//! `hc_head`.
use gatemix::{HcHead, HeadMode, Memory};
use half::bf16;

use super::{Case, pick, split};
use crate::common::compare::{Float, Near};
use crate::common::data::{Buf, Rng};
use crate::common::oracle::{U, dot, gate, rsqrt_error};
use crate::common::{AnyExec, Place, with_place};

pub struct Head {
    pub dims: [usize; 3],
    pub residual: Buf<bf16>,
    pub fn_weight: Buf<f32>,
    pub scale: Buf<f32>,
    pub base: Buf<f32>,
    pub rms_eps: f32,
    pub hc_eps: f32,
    pub mode: HeadMode,
    pub shift: usize,
}

impl Head {
    pub fn random(t: usize, n: usize, h: usize, mode: HeadMode) -> Head {
        let mut rng = Rng::new(&[t, n, h, 3]);
        Head {
            dims: [t, n, h],
            residual: Buf::input(&rng.normals(t * n * h, 1.5), 0),
            fn_weight: Buf::input(&rng.normals(n * n * h, 1.0 / ((n * h) as f32).sqrt()), 0),
            scale: Buf::input(&[1.5], 0),
            base: Buf::input(&rng.normals(n, 0.5), 0),
            rms_eps: 1e-6,
            hc_eps: 1e-1,
            mode,
            shift: 0,
        }
    }

    pub fn misaligned(&self) -> Head {
        Head {
            residual: Buf::input(&self.residual, 1),
            fn_weight: Buf::input(&self.fn_weight, 1),
            scale: Buf::input(&self.scale, 1),
            base: Buf::input(&self.base, 1),
            shift: 1,
            ..*self
        }
    }

    pub fn run(&self, exec: &AnyExec) -> Vec<bf16> {
        with_place!(exec, place => self.run_at(place))
    }

    fn run_at<M: Memory>(&self, place: &Place<M>) -> Vec<bf16> {
        let [t, n, h] = self.dims;
        let residual = place.input(&self.residual);
        let [fn_weight, scale, base] = [&self.fn_weight, &self.scale, &self.base].map(|buf| place.input(buf));
        let mut out = place.output(t * h, self.shift);
        let args = HcHead {
            residual: residual.tensor(self.dims),
            fn_weight: fn_weight.tensor([n, n * h]),
            scale: scale.tensor([1]),
            base: base.tensor([n]),
            rms_eps: self.rms_eps,
            hc_eps: self.hc_eps,
            mode: self.mode,
        };
        gatemix::hc_head(&place.exec, &args, &mut out.tensor([t, h])).unwrap();
        out.finish()
    }
}

impl Case for Head {
    fn op(&self) -> &'static str {
        "hc_head"
    }
    fn tokens(&self) -> usize {
        self.dims[0]
    }
    fn run_bits(&self, exec: &AnyExec) -> Vec<Vec<u32>> {
        split(&self.run(exec), self.dims[0])
    }
    fn pick(&self, tokens: &[usize]) -> Head {
        let [_, n, h] = self.dims;
        let mut head = self.misaligned();
        head.dims[0] = tokens.len();
        head.residual = pick(&self.residual, n * h, tokens);
        head.shift = 0;
        head
    }
    fn spoil(&mut self, token: usize, value: f32) {
        let width = self.dims[1] * self.dims[2];
        self.residual[token * width..][..width].fill(bf16::from_f32(value));
    }
}

impl Head {
    pub fn exact(&self) -> Vec<Near> {
        let width = self.dims[1] * self.dims[2];
        self.residual.chunks(width).flat_map(|x| self.token(x)).collect()
    }

    fn token(&self, x: &[bf16]) -> Vec<Near> {
        let [_, n, h] = self.dims;
        let x: Vec<f64> = x.iter().map(|v| v.f64()).collect();
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let r = 1.0 / (mean + f64::from(self.rms_eps)).sqrt();
        let pre: Vec<Near> = (0..n)
            .map(|i| {
                let fn_row = &self.fn_weight[i * x.len()..][..x.len()];
                let mix = match self.mode {
                    HeadMode::Rounded => rounded_mix(&x, fn_row, r),
                    HeadMode::Fp32 => scaled_mix(&x, fn_row, r),
                };
                gate(mix, self.scale[0], self.base[i], self.hc_eps)
            })
            .collect();
        let weigh = |d: usize| {
            let terms = pre.iter().zip(x[d..].iter().step_by(h));
            terms.fold(Near { value: 0.0, tol: 0.0 }, |acc, (p, x)| Near {
                value: acc.value + p.value * x,
                // n fused steps, each rounding a partial sum
                tol: acc.tol + (p.tol + n as f64 * U * p.value.abs()) * x.abs(),
            })
        };
        (0..h).map(weigh).collect()
    }
}

fn scaled_mix(x: &[f64], fn_row: &[f32], r: f64) -> Near {
    let sum = dot(x.iter().zip(fn_row).map(|(x, f)| x * f64::from(*f)));
    let value = sum.value * r;
    Near { value, tol: sum.tol * r + (rsqrt_error(x.len()) + U) * value.abs() }
}

/// Elements so close to a tie that the error of r decides their rounding may go either way.
fn rounded_mix(x: &[f64], fn_row: &[f32], r: f64) -> Near {
    let error = rsqrt_error(x.len());
    let round = |xn: f64| bf16::from_f32(xn as f32).f64();
    let mut mix = dot(x.iter().zip(fn_row).map(|(x, f)| round(x * r) * f64::from(*f)));
    for (x, f) in x.iter().zip(fn_row) {
        let [low, high] = [1.0 - error, 1.0 + error].map(|near| round(x * r * near));
        mix.tol += ((high - low) * f64::from(*f)).abs();
    }
    mix
}
