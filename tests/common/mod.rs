//! What the integration tests share: cases with exact results, comparisons and properties.
#![allow(dead_code, unused_imports, unused_macros)] // every test binary uses its own part

pub mod abi;
pub mod cases;
pub mod compare;
#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
pub mod cuda;
pub mod data;
pub mod memory;
pub mod oracle;
pub mod place;
pub mod props;
pub mod trials;

use std::io::Write;
use std::process::{Command, Output};
use std::sync::Once;

use gatemix::{Backend, Exec, Tensor, TensorMut, last_kernel};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestRunner};

pub use self::place::{AnyExec, Place};
pub use self::trials::{on_cuda, on_every_backend, skip};
pub(crate) use self::{place::with_place, trials::tests};

/// Every way to run on this test's backend.
pub fn levels() -> Vec<(&'static str, AnyExec)> {
    match trials::backend() {
        Backend::Cpu => cpu_levels().into_iter().map(|(name, exec)| (name, exec.into())).collect(),
        Backend::Cuda => cuda_levels(),
    }
}

/// The first of them.
pub fn fastest() -> AnyExec {
    levels().swap_remove(0).1
}

/// A level whose instruction set is missing runs as the next one down.
pub fn cpu_levels() -> Vec<(&'static str, Exec)> {
    static ANNOUNCE: Once = Once::new();
    ANNOUNCE.call_once(announce);
    make_cpu_levels()
}

fn make_cpu_levels() -> Vec<(&'static str, Exec)> {
    vec![
        ("cpu", Exec::cpu()),
        ("serial", Exec::cpu().serial()),
        ("without_avx512", Exec::cpu().without_avx512()),
        ("portable", Exec::cpu().portable()),
    ]
}

fn cuda_levels() -> Vec<(&'static str, AnyExec)> {
    let stream = cuda::Stream::new();
    // SAFETY: a stream of device 0, which the levels keep.
    let exec = unsafe { Exec::cuda(0, stream.handle()) }.unwrap();
    // SAFETY: what precedes an operator on this stream is copies, which write all of its inputs.
    let pdl = unsafe { exec.pdl() };
    [("cuda", exec), ("cuda_portable", exec.portable()), ("cuda_pdl", pdl)]
        .map(|(name, exec)| (name, AnyExec::cuda(exec, &stream)))
        .into()
}

fn announce() {
    let named: Vec<(&str, &str)> = make_cpu_levels().iter().map(|(name, exec)| (*name, isa(exec))).collect();
    for pair in named[1..].windows(2) {
        if pair[0].1 == pair[1].1 {
            say(&format!("level {} is the same as {} here: both run {}", pair[0].0, pair[1].0, pair[0].1));
        }
    }
}

/// The instruction set that this level runs on.
pub fn isa(exec: &Exec) -> &'static str {
    let (x, mut y) = ([1.0f32; 8], [0.0f32; 8]);
    let x = Tensor::new(&x, [1, 8]).unwrap();
    gatemix::rms_norm(exec, x, None, 0.0, &mut TensorMut::new(&mut y, [1, 8]).unwrap()).unwrap();
    last_kernel().split('/').nth(2).unwrap()
}

/// Prints past the test harness's capture.
pub fn say(line: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{line}").unwrap();
}

/// Runs one test of this binary in a process of its own.
pub fn rerun(test: &str, env: &[(&str, Option<&str>)]) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    for (name, value) in env {
        match value {
            Some(value) => child.env(name, value),
            None => child.env_remove(name),
        };
    }
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{test} with {env:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs a test on as many random inputs, and fails with a small one of those that fail.
pub fn for_random<S: Strategy>(cases: u32, inputs: S, test: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = |input| {
        test(input);
        Ok(())
    };
    TestRunner::new(config).run(&inputs, run).unwrap_or_else(|error| panic!("{error}"));
}
