//! Generated data for the example and the benches.
use half::bf16;

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
