//! Random numbers and buffers that notice stray reads and writes.
use std::ops::{Deref, DerefMut};

use gatemix::Element;

use super::compare::Float;
use super::memory::Block;

/// SplitMix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: &[usize]) -> Rng {
        let mut rng = Rng(0);
        for &part in seed {
            rng.0 = rng.next() ^ part as u64;
        }
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.next() >> 40) as f32 / (1 << 24) as f32)
    }

    /// About normal, mean 0, variance 1: the sum of four uniform numbers.
    pub fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: i64 = (0..4).map(|i| i64::from((bits >> (16 * i)) as i16)).sum();
        sum as f32 * (0.866_025_4 / 32768.0)
    }

    pub fn uniforms(&mut self, len: usize, low: f32, high: f32) -> Vec<f32> {
        (0..len).map(|_| self.uniform(low, high)).collect()
    }

    /// `scale` times normal numbers.
    pub fn normals<E: Float>(&mut self, len: usize, scale: f32) -> Vec<E> {
        self.many(len, |rng| scale * rng.normal())
    }

    /// Long vectors repeat pieces of a pool in random order.
    pub fn many<E: Float>(&mut self, len: usize, mut one: impl FnMut(&mut Rng) -> f32) -> Vec<E> {
        const POOL: usize = 1 << 16;
        const PIECE: usize = 1021;
        let mut values: Vec<E> = (0..len.min(POOL)).map(|_| E::of(one(self))).collect();
        values.reserve(len - values.len());
        while values.len() < len {
            let from = self.below(POOL - PIECE);
            let piece = PIECE.min(len - values.len());
            values.extend_from_within(from..from + piece);
        }
        values
    }
}

const PAD: usize = 64;

/// A slice inside a larger allocation. What lies around it is NaN for inputs, so that a stray read spoils the
/// result, and a guard value for outputs, so that a stray write is seen. `shift` elements misalign its base.
pub struct Buf<E> {
    all: Block<E>,
    at: usize,
    len: usize,
}

impl<E: Float> Buf<E> {
    pub fn input(values: &[E], shift: usize) -> Buf<E> {
        Buf::surround(values, E::NAN, shift)
    }

    pub fn output(len: usize, shift: usize) -> Buf<E> {
        Buf::surround(&vec![E::GUARD; len], E::GUARD, shift)
    }

    /// An output that starts as `values`, for operators in place.
    pub fn in_place(values: &[E], shift: usize) -> Buf<E> {
        Buf::surround(values, E::GUARD, shift)
    }

    fn surround(values: &[E], fill: E, shift: usize) -> Buf<E> {
        let (at, len) = (PAD + shift, values.len());
        let mut all = Block::new(at + len, PAD, fill);
        all[at..at + len].copy_from_slice(values);
        Buf { all, at, len }
    }

    /// Where the slice begins in its surroundings.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The whole allocation.
    pub fn surroundings(&self) -> &[E] {
        &self.all
    }

    pub fn surroundings_mut(&mut self) -> &mut [E] {
        &mut self.all
    }

    /// The contents of an output, if nothing was written around them.
    pub fn finish(self) -> Vec<E> {
        let around = self.all[..self.at].iter().chain(&self.all[self.at + self.len..]);
        let strays = around.filter(|v| v.bits() != E::GUARD.bits()).count();
        assert_eq!(strays, 0, "elements written around an output");
        self[..].to_vec()
    }
}

impl<E> Deref for Buf<E> {
    type Target = [E];
    fn deref(&self) -> &[E] {
        &self.all[self.at..self.at + self.len]
    }
}

impl<E> DerefMut for Buf<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        &mut self.all[self.at..self.at + self.len]
    }
}

/// The strides of a contiguous tensor.
pub fn dense<const R: usize>(shape: [usize; R]) -> [usize; R] {
    let mut strides = [1; R];
    for d in (1..R).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

/// A strided tensor; the elements between its own are NaN.
pub struct Strided<E, const R: usize> {
    pub buf: Buf<E>,
    pub shape: [usize; R],
    pub strides: [usize; R],
}

impl<E: Float + Element, const R: usize> Strided<E, R> {
    /// From row-major `values`.
    pub fn new(values: &[E], shape: [usize; R], strides: [usize; R], shift: usize) -> Self {
        let empty = shape.contains(&0);
        let span: usize = (0..R).map(|d| shape[d].saturating_sub(1) * strides[d]).sum();
        let mut tensor =
            Strided { buf: Buf::input(&vec![E::NAN; if empty { 0 } else { span + 1 }], shift), shape, strides };
        for (i, value) in values.iter().enumerate() {
            let at = tensor.offset(i);
            tensor.buf[at] = *value;
        }
        tensor
    }

    fn offset(&self, mut row_major: usize) -> usize {
        let mut at = 0;
        for d in (0..R).rev() {
            at += row_major % self.shape[d] * self.strides[d];
            row_major /= self.shape[d];
        }
        at
    }

    /// All elements in row-major order.
    pub fn values(&self) -> Vec<E> {
        (0..self.shape.iter().product()).map(|i| self.buf[self.offset(i)]).collect()
    }

    /// The same tensor with other strides or another base.
    pub fn relaid(&self, strides: [usize; R], shift: usize) -> Self {
        Strided::new(&self.values(), self.shape, strides, shift)
    }

    /// Only the given indices of dimension `dim`, contiguous.
    pub fn pick(&self, dim: usize, which: &[usize]) -> Self {
        let mut shape = self.shape;
        shape[dim] = which.len();
        let inner: usize = self.shape[dim + 1..].iter().product();
        let (values, size) = (self.values(), self.shape[dim]);
        let outer = 0..self.shape[..dim].iter().product();
        let picked: Vec<E> = outer
            .flat_map(|o| which.iter().map(move |i| (o * size + i) * inner))
            .flat_map(|at| values[at..at + inner].to_vec())
            .collect();
        Strided::new(&picked, shape, dense(shape), 0)
    }

    pub fn set(&mut self, index: [usize; R], value: E) {
        let at: usize = (0..R).map(|d| index[d] * self.strides[d]).sum();
        self.buf[at] = value;
    }
}
