//! What the benches share: generated data, and the memory traffic that ours is compared with.
use std::time::Duration;

use criterion::Criterion;
use half::bf16;

/// Larger than the caches of the machines we know, so that what is read comes from memory.
pub const COLD_BYTES: usize = 256 << 20;

pub fn criterion() -> Criterion {
    Criterion::default().sample_size(20).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3))
}

/// Uniform numbers of mean 0; a linear congruential generator is random enough for timing.
pub struct Noise(pub u32);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    #[allow(dead_code)] // not every bench has coefficients
    pub fn f32s(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    /// With standard deviation `scale`.
    pub fn bf16s(&mut self, count: usize, scale: f32) -> Vec<bf16> {
        let range = scale * 3f32.sqrt();
        (0..count).map(|_| bf16::from_f32(range * self.next())).collect()
    }
}
