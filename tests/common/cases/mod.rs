//! One struct per operator: its inputs, how to run it with guarded outputs, and its exact results.
mod collapse;
mod gate;
mod head;
mod norm;
mod pre_mix;
mod seam;

use gatemix::HeadMode;
use half::bf16;

pub use self::{
    collapse::Collapse,
    gate::{Exact, Gate, sample},
    head::Head,
    norm::Norm,
    pre_mix::PreMix,
    seam::Seam,
};
use super::AnyExec;
use super::compare::Float;
use super::data::Buf;

/// What all operators have in common.
pub trait Case: Sync {
    fn op(&self) -> &'static str;
    fn tokens(&self) -> usize;
    /// The bits of every token's results.
    fn run_bits(&self, exec: &AnyExec) -> Vec<Vec<u32>>;
    /// The same problem with only these tokens.
    fn pick(&self, tokens: &[usize]) -> Self
    where
        Self: Sized;
    /// Fills a token's inputs with a value.
    fn spoil(&mut self, token: usize, value: f32);
}

/// One small case of every operator.
pub fn all() -> Vec<Box<dyn Case>> {
    vec![
        Box::new(Gate::random(19, 512, 67)),
        Box::new(Norm::<bf16>::random(7, 261)),
        Box::new(Collapse::random(9, 4, 261)),
        Box::new(Head::random(5, 4, 261, HeadMode::Rounded)),
        Box::new(PreMix::random(5, 65, 4)),
        Box::new(Seam::random(9, 4, 261)),
    ]
}

fn split<E: Float>(values: &[E], tokens: usize) -> Vec<Vec<u32>> {
    let width = values.len() / tokens.max(1);
    (0..tokens).map(|t| values[t * width..][..width].iter().map(|v| v.bits()).collect()).collect()
}

fn pick<E: Float>(from: &[E], width: usize, tokens: &[usize]) -> Buf<E> {
    let rows: Vec<E> = tokens.iter().flat_map(|t| from[t * width..][..width].to_vec()).collect();
    Buf::input(&rows, 0)
}
