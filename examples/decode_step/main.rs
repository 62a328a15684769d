//! One decode step's worth of gatemix on the CPU.
//!
//! `cargo run --release --example decode_step [FILE]` runs every mHC operator on FILE, the recorded inputs and outputs
//! of the public GPU kernels (default: DeepSeek-V4.1's shape in `tests/data`), and says how well they agree. Then it
//! times the gate at Hunyuan V4's shape and the seam at DeepSeek-V4.1's on generated data. Exit status 1: something
//! disagrees.
mod noise;
mod recorded;
mod timed;

use std::process::ExitCode;

fn main() -> ExitCode {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/v41flash.safetensors");
    let path = std::env::args().nth(1).unwrap_or_else(|| default.to_owned());
    match run(&path) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("some results disagree");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &str) -> Result<bool, Box<dyn std::error::Error>> {
    println!("{}\n", gatemix::build_info());
    let recorded = recorded::run(path)?;
    println!();
    let gate = timed::gate()?;
    let seam = timed::seam()?;
    Ok(recorded && gate && seam)
}
