//! `hc_collapse`.
use gatemix::Memory;
use half::bf16;

use super::{Case, split};
use crate::common::compare::Float;
use crate::common::data::{Rng, Strided, dense};
use crate::common::{AnyExec, Place, with_place};

pub struct Collapse {
    pub residual: Strided<bf16, 3>,
    pub pre: Strided<f32, 2>,
    pub shift: usize,
}

impl Collapse {
    pub fn random(t: usize, n: usize, h: usize) -> Collapse {
        let mut rng = Rng::new(&[t, n, h, 2]);
        let residual = Strided::new(&rng.normals(t * n * h, 2.0), [t, n, h], dense([t, n, h]), 0);
        Collapse { residual, pre: Strided::new(&rng.normals(t * n, 1.0), [t, n], [n, 1], 0), shift: 0 }
    }

    pub fn relaid(&self, residual: [usize; 3], pre: [usize; 2], shift: usize) -> Collapse {
        Collapse { residual: self.residual.relaid(residual, shift), pre: self.pre.relaid(pre, shift), shift }
    }

    pub fn run(&self, exec: &AnyExec) -> Vec<bf16> {
        with_place!(exec, place => self.run_at(place))
    }

    fn run_at<M: Memory>(&self, place: &Place<M>) -> Vec<bf16> {
        let [t, _, h] = self.residual.shape;
        let (residual, pre) = (place.input(&self.residual.buf), place.input(&self.pre.buf));
        let (residual, pre) =
            (residual.view(self.residual.shape, self.residual.strides), pre.view(self.pre.shape, self.pre.strides));
        let mut out = place.output(t * h, self.shift);
        gatemix::hc_collapse(&place.exec, residual, pre, &mut out.tensor([t, h])).unwrap();
        out.finish()
    }
}

impl Case for Collapse {
    fn op(&self) -> &'static str {
        "hc_collapse"
    }
    fn tokens(&self) -> usize {
        self.residual.shape[0]
    }
    fn run_bits(&self, exec: &AnyExec) -> Vec<Vec<u32>> {
        split(&self.run(exec), self.tokens())
    }
    fn pick(&self, tokens: &[usize]) -> Collapse {
        Collapse { residual: self.residual.pick(0, tokens), pre: self.pre.pick(0, tokens), shift: 0 }
    }
    fn spoil(&mut self, token: usize, value: f32) {
        let [_, n, h] = self.residual.shape;
        for i in 0..n {
            self.pre.set([token, i], value);
            (0..h).for_each(|d| self.residual.set([token, i, d], bf16::from_f32(value)));
        }
    }
}

impl Collapse {
    /// To the bit: from zero, i ascending, every product and sum rounded.
    pub fn exact(&self) -> Vec<bf16> {
        let [t, n, h] = self.residual.shape;
        let (residual, pre) = (self.residual.values(), self.pre.values());
        let element = |at: usize| {
            let (token, d) = (at / h, at % h);
            let add = |acc: f32, i: usize| acc + pre[token * n + i] * residual[(token * n + i) * h + d].f32();
            bf16::from_f32((0..n).fold(0.0, add))
        };
        (0..t * h).map(element).collect()
    }
}
