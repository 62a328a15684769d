//! `mhc_post_collapse_rms_norm`.
use gatemix::{Memory, MhcPostCollapseRmsNorm};
use half::bf16;

use super::{Case, pick, split};
use crate::common::compare::{Float, Near};
use crate::common::data::{Buf, Rng};
use crate::common::oracle::normalised;
use crate::common::{AnyExec, Place, with_place};

/// `mhc_post_collapse_rms_norm`.
pub struct Seam {
    pub dims: [usize; 3],
    pub residual: Buf<bf16>,
    pub sublayer_out: Buf<bf16>,
    pub post: Buf<f32>,
    pub comb: Buf<f32>,
    pub pre: Buf<f32>,
    pub weight: Buf<bf16>,
    pub eps: f32,
    /// Of the bases of the new residual and the layer input.
    pub shifts: [usize; 2],
}

impl Seam {
    pub fn random(t: usize, n: usize, h: usize) -> Seam {
        let mut rng = Rng::new(&[t, n, h, 5]);
        Seam {
            dims: [t, n, h],
            residual: Buf::input(&rng.normals(t * n * h, 2.0), 0),
            sublayer_out: Buf::input(&rng.normals(t * h, 1.0), 0),
            post: Buf::input(&rng.uniforms(t * n, 0.0, 2.0), 0),
            comb: Buf::input(&rng.uniforms(t * n * n, -0.25, 0.75), 0),
            pre: Buf::input(&rng.uniforms(t * n, 0.0, 1.0), 0),
            weight: Buf::input(&rng.normals(h, 1.0), 0),
            eps: 1e-6,
            shifts: [0; 2],
        }
    }

    pub fn misaligned(&self) -> Seam {
        Seam {
            residual: Buf::input(&self.residual, 1),
            sublayer_out: Buf::input(&self.sublayer_out, 1),
            post: Buf::input(&self.post, 1),
            comb: Buf::input(&self.comb, 1),
            pre: Buf::input(&self.pre, 1),
            weight: Buf::input(&self.weight, 1),
            shifts: [1; 2],
            ..*self
        }
    }

    /// The new residual and the layer input.
    pub fn run(&self, exec: &AnyExec) -> (Vec<bf16>, Vec<bf16>) {
        with_place!(exec, place => self.run_at(place))
    }

    pub fn run_in_place(&self, exec: &AnyExec) -> (Vec<bf16>, Vec<bf16>) {
        with_place!(exec, place => self.run_in_place_at(place))
    }

    fn run_at<M: Memory>(&self, place: &Place<M>) -> (Vec<bf16>, Vec<bf16>) {
        let [t, n, h] = self.dims;
        let residual = place.input(&self.residual);
        let (mut next, mut y) = (place.output(t * n * h, self.shifts[0]), place.output(t * h, self.shifts[1]));
        let (next_tensor, y_tensor) = (&mut next.tensor(self.dims), &mut y.tensor([t, h]));
        self.with_args(place, |args| {
            let residual = residual.tensor(self.dims);
            gatemix::mhc_post_collapse_rms_norm(&place.exec, residual, args, next_tensor, y_tensor)
        });
        (next.finish(), y.finish())
    }

    fn run_in_place_at<M: Memory>(&self, place: &Place<M>) -> (Vec<bf16>, Vec<bf16>) {
        let [t, _, h] = self.dims;
        let mut residual = place.in_place(Buf::in_place(&self.residual, self.shifts[0]));
        let mut y = place.output(t * h, self.shifts[1]);
        let (residual_tensor, y_tensor) = (&mut residual.tensor(self.dims), &mut y.tensor([t, h]));
        self.with_args(place, |args| {
            gatemix::mhc_post_collapse_rms_norm_in_place(&place.exec, residual_tensor, args, y_tensor)
        });
        (residual.finish(), y.finish())
    }

    fn with_args<M: Memory>(
        &self,
        place: &Place<M>,
        run: impl FnOnce(&MhcPostCollapseRmsNorm<'_, M>) -> gatemix::Result<()>,
    ) {
        let [t, n, h] = self.dims;
        let [x, weight] = [&self.sublayer_out, &self.weight].map(|buf| place.input(buf));
        let [post, comb, pre] = [&self.post, &self.comb, &self.pre].map(|buf| place.input(buf));
        let args = MhcPostCollapseRmsNorm {
            sublayer_out: x.tensor([t, h]),
            post_mix: post.tensor([t, n]),
            comb_mix: comb.tensor([t, n, n]),
            pre_mix: pre.tensor([t, n]),
            norm_weight: weight.tensor([h]),
            norm_eps: self.eps,
        };
        run(&args).unwrap();
    }
}

impl Case for Seam {
    fn op(&self) -> &'static str {
        "mhc_post_collapse_rms_norm"
    }
    fn tokens(&self) -> usize {
        self.dims[0]
    }
    fn run_bits(&self, exec: &AnyExec) -> Vec<Vec<u32>> {
        let (next, y) = self.run(exec);
        let both = split(&next, self.dims[0]).into_iter().zip(split(&y, self.dims[0]));
        both.map(|(a, b)| [a, b].concat()).collect()
    }
    fn pick(&self, tokens: &[usize]) -> Seam {
        let [_, n, h] = self.dims;
        Seam {
            dims: [tokens.len(), n, h],
            residual: pick(&self.residual, n * h, tokens),
            sublayer_out: pick(&self.sublayer_out, h, tokens),
            post: pick(&self.post, n, tokens),
            comb: pick(&self.comb, n * n, tokens),
            pre: pick(&self.pre, n, tokens),
            weight: Buf::input(&self.weight, 0),
            eps: self.eps,
            shifts: [0; 2],
        }
    }
    fn spoil(&mut self, token: usize, value: f32) {
        let [_, n, h] = self.dims;
        self.residual[token * n * h..][..n * h].fill(bf16::from_f32(value));
        self.sublayer_out[token * h..][..h].fill(bf16::from_f32(value));
        self.comb[token * n * n..][..n * n].fill(value);
        self.post[token * n..][..n].fill(value);
        self.pre[token * n..][..n].fill(value);
    }
}

/// R' and v to the bit, and the exact norm of v.
pub struct SeamExact {
    pub residual: Vec<bf16>,
    pub collapsed: Vec<bf16>,
    pub layer_input: Vec<Near>,
}

impl Seam {
    pub fn exact(&self) -> SeamExact {
        let [t, n, h] = self.dims;
        let residual: Vec<bf16> =
            (0..t * n * h).map(|at| self.next_residual(at / (n * h), at / h % n, at % h)).collect();
        let collapse = |at: usize| {
            let (token, d) = (at / h, at % h);
            let term = |i: usize| (self.pre[token * n + i], residual[(token * n + i) * h + d].f32());
            let (pre, r) = term(0);
            bf16::from_f32((1..n).map(term).fold(pre * r, |acc, (pre, r)| pre.mul_add(r, acc)))
        };
        let collapsed: Vec<bf16> = (0..t * h).map(collapse).collect();
        let weight: Vec<f64> = self.weight.iter().map(|v| v.f64()).collect();
        let norm = |v: &[bf16]| {
            let v: Vec<f64> = v.iter().map(|v| v.f64()).collect();
            normalised(&v, Some(&weight), self.eps)
        };
        let layer_input = collapsed.chunks(h).flat_map(norm).collect();
        SeamExact { residual, collapsed, layer_input }
    }

    /// The comb[0] product is rounded, the post product fused onto it, then the other streams in order.
    fn next_residual(&self, token: usize, target: usize, d: usize) -> bf16 {
        let [_, n, h] = self.dims;
        let term = |source: usize| {
            (self.comb[(token * n + source) * n + target], self.residual[(token * n + source) * h + d].f32())
        };
        let (comb, r) = term(0);
        let x = self.sublayer_out[token * h + d].f32();
        let first = self.post[token * n + target].mul_add(x, comb * r);
        bf16::from_f32((1..n).map(term).fold(first, |acc, (comb, r)| comb.mul_add(r, acc)))
    }
}
