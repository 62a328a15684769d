//! What the benches share: generated data, and the memory traffic that ours is compared with.
#[cfg(feature = "cuda")]
#[allow(dead_code)] // each bench takes a part
pub mod cuda;
#[path = "../../examples/decode_step/noise.rs"]
mod noise;

use std::time::Duration;

use criterion::Criterion;

pub use noise::Noise;

/// Larger than the caches of the machines we know, so that what is read comes from memory.
pub const COLD_BYTES: usize = 256 << 20;

pub fn criterion() -> Criterion {
    Criterion::default().sample_size(20).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3))
}
