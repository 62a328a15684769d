//! `mhc_pre_mix`.
use gatemix::{Memory, MhcPreMix};

use super::{Case, split};
use crate::common::compare::Near;
use crate::common::data::{Buf, Rng, Strided, dense};
use crate::common::oracle::{U, gate};
use crate::common::{AnyExec, Place, with_place};

pub struct PreMix {
    pub gemm_out: Strided<f32, 3>,
    pub sqrsum: Strided<f32, 2>,
    pub n: usize,
    pub scale: Buf<f32>,
    pub base: Buf<f32>,
    pub hc_hidden: usize,
    pub rms_eps: f32,
    pub hc_pre_eps: f32,
    pub shift: usize,
}

impl PreMix {
    /// A projection with all n(n+2) columns.
    pub fn random(s: usize, t: usize, n: usize) -> PreMix {
        let (mut rng, width) = (Rng::new(&[s, t, n, 4]), n * (n + 2));
        let gemm_out = Strided::new(&rng.normals(s * t * width, 20.0), [s, t, width], dense([s, t, width]), 0);
        let sqrsum = Strided::new(&rng.uniforms(s * t, 100.0, 300.0), [s, t], [t, 1], 0);
        let (scale, base) = (Buf::input(&[0.7, 9.0, 9.0], 0), Buf::input(&rng.normals(width, 1.0), 0));
        PreMix { gemm_out, sqrsum, n, scale, base, hc_hidden: n * 250, rms_eps: 1e-6, hc_pre_eps: 1e-1, shift: 0 }
    }

    pub fn relaid(&self, gemm_out: [usize; 3], sqrsum: [usize; 2], shift: usize) -> PreMix {
        PreMix {
            gemm_out: self.gemm_out.relaid(gemm_out, shift),
            sqrsum: self.sqrsum.relaid(sqrsum, shift),
            scale: Buf::input(&self.scale, shift),
            base: Buf::input(&self.base, shift),
            shift,
            ..*self
        }
    }

    pub fn run(&self, exec: &AnyExec) -> Vec<f32> {
        with_place!(exec, place => self.run_at(place))
    }

    fn run_at<M: Memory>(&self, place: &Place<M>) -> Vec<f32> {
        let shape = [self.gemm_out.shape[1], self.n];
        let operands = [&self.gemm_out.buf, &self.sqrsum.buf, &self.scale, &self.base];
        let [gemm_out, sqrsum, scale, base] = operands.map(|buf| place.input(buf));
        let mut out = place.output(shape[0] * shape[1], self.shift);
        let args = MhcPreMix {
            gemm_out: gemm_out.view(self.gemm_out.shape, self.gemm_out.strides),
            sqrsum: sqrsum.view(self.sqrsum.shape, self.sqrsum.strides),
            scale: scale.tensor([self.scale.len()]),
            base: base.tensor([self.base.len()]),
            hc_hidden: self.hc_hidden,
            rms_eps: self.rms_eps,
            hc_pre_eps: self.hc_pre_eps,
        };
        gatemix::mhc_pre_mix(&place.exec, &args, &mut out.tensor(shape)).unwrap();
        out.finish()
    }
}

impl Case for PreMix {
    fn op(&self) -> &'static str {
        "mhc_pre_mix"
    }
    fn tokens(&self) -> usize {
        self.gemm_out.shape[1]
    }
    fn run_bits(&self, exec: &AnyExec) -> Vec<Vec<u32>> {
        split(&self.run(exec), self.tokens())
    }
    fn pick(&self, tokens: &[usize]) -> PreMix {
        PreMix {
            gemm_out: self.gemm_out.pick(1, tokens),
            sqrsum: self.sqrsum.pick(1, tokens),
            scale: Buf::input(&self.scale, 0),
            base: Buf::input(&self.base, 0),
            shift: 0,
            ..*self
        }
    }
    fn spoil(&mut self, token: usize, value: f32) {
        let [s, _, width] = self.gemm_out.shape;
        for slice in 0..s {
            self.sqrsum.set([slice, token], value);
            (0..width).for_each(|c| self.gemm_out.set([slice, token, c], value));
        }
    }
}

impl PreMix {
    pub fn exact(&self) -> Vec<Near> {
        let [s, t, width] = self.gemm_out.shape;
        let (gemm_out, sqrsum) = (self.gemm_out.values(), self.sqrsum.values());
        let element = |at: usize| {
            let (token, j) = (at / self.n, at % self.n);
            let parts = (0..s).map(|slice| f64::from(gemm_out[(slice * t + token) * width + j]));
            let squares: f64 = (0..s).map(|slice| f64::from(sqrsum[slice * t + token])).sum();
            let rstd = 1.0 / (squares / self.hc_hidden as f64 + f64::from(self.rms_eps)).sqrt();
            let (sum, magnitude) = parts.fold((0.0, 0.0), |(sum, abs), v| (sum + v, abs + v.abs()));
            // s - 1 roundings in either sum; 6 in 1/hc_hidden, its product, + eps and rsqrt, and the product with rstd
            let slices = (s - 1) as f64;
            let tol = rstd * (slices * U * magnitude + (slices / 2.0 + 6.0) * U * sum.abs());
            gate(Near { value: sum * rstd, tol }, self.scale[0], self.base[j], self.hc_pre_eps)
        };
        (0..t * self.n).map(element).collect()
    }
}
