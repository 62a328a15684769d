//! `rms_norm`.
use gatemix::{Element, Memory};

use super::{Case, split};
use crate::common::compare::{Float, Near};
use crate::common::data::{Buf, Rng, Strided, dense};
use crate::common::oracle::normalised;
use crate::common::{AnyExec, Place, with_place};

pub struct Norm<E> {
    pub x: Strided<E, 2>,
    pub weight: Option<Buf<E>>,
    pub eps: f32,
    pub shift: usize,
}

impl<E: Float + Element> Norm<E> {
    pub fn random(rows: usize, dim: usize) -> Norm<E> {
        let mut rng = Rng::new(&[rows, dim, 1]);
        let x = Strided::new(&rng.normals(rows * dim, 1.5), [rows, dim], dense([rows, dim]), 0);
        Norm { x, weight: Some(Buf::input(&rng.normals(dim, 1.0), 0)), eps: 1e-6, shift: 0 }
    }

    /// Rows `stride` elements apart, every base `shift` elements past its natural place.
    pub fn relaid(&self, stride: usize, shift: usize) -> Norm<E> {
        let weight = self.weight.as_ref().map(|w| Buf::input(w, shift));
        Norm { x: self.x.relaid([stride, 1], shift), weight, eps: self.eps, shift }
    }

    pub fn run(&self, exec: &AnyExec) -> Vec<E> {
        with_place!(exec, place => self.run_at(place))
    }

    pub fn run_in_place(&self, exec: &AnyExec) -> Vec<E> {
        with_place!(exec, place => self.run_in_place_at(place))
    }

    fn run_at<M: Memory>(&self, place: &Place<M>) -> Vec<E> {
        let (x, weight) = (place.input(&self.x.buf), self.weight.as_ref().map(|buf| place.input(buf)));
        let weight = weight.as_ref().map(|weight| weight.tensor([self.x.shape[1]]));
        let mut out = place.output(self.x.shape.iter().product(), self.shift);
        let x = x.view(self.x.shape, self.x.strides);
        gatemix::rms_norm(&place.exec, x, weight, self.eps, &mut out.tensor(self.x.shape)).unwrap();
        out.finish()
    }

    fn run_in_place_at<M: Memory>(&self, place: &Place<M>) -> Vec<E> {
        let weight = self.weight.as_ref().map(|buf| place.input(buf));
        let weight = weight.as_ref().map(|weight| weight.tensor([self.x.shape[1]]));
        let mut x = place.in_place(Buf::in_place(&self.x.values(), self.shift));
        gatemix::rms_norm_in_place(&place.exec, &mut x.tensor(self.x.shape), weight, self.eps).unwrap();
        x.finish()
    }
}

impl<E: Float + Element> Case for Norm<E> {
    fn op(&self) -> &'static str {
        "rms_norm"
    }
    fn tokens(&self) -> usize {
        self.x.shape[0]
    }
    fn run_bits(&self, exec: &AnyExec) -> Vec<Vec<u32>> {
        split(&self.run(exec), self.tokens())
    }
    fn pick(&self, tokens: &[usize]) -> Norm<E> {
        let weight = self.weight.as_ref().map(|w| Buf::input(w, 0));
        Norm { x: self.x.pick(0, tokens), weight, eps: self.eps, shift: 0 }
    }
    fn spoil(&mut self, token: usize, value: f32) {
        for d in 0..self.x.shape[1] {
            self.x.set([token, d], E::of(value));
        }
    }
}

impl<E: Float + Element> Norm<E> {
    pub fn exact(&self) -> Vec<Near> {
        let weight: Option<Vec<f64>> = self.weight.as_ref().map(|w| w.iter().map(|v| v.f64()).collect());
        let row = |x: &[E]| {
            let x: Vec<f64> = x.iter().map(|v| v.f64()).collect();
            normalised(&x, weight.as_deref(), self.eps)
        };
        self.x.values().chunks(self.x.shape[1]).flat_map(row).collect()
    }
}
