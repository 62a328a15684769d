//! Runs the tests of a file once a backend, with the names and options of the standard harness.
use std::any::Any;
use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind};
use std::process::ExitCode;

use gatemix::Backend;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use super::{cuda, say};

thread_local! {
    static BACKEND: Cell<Backend> = const { Cell::new(Backend::Cpu) };
}

/// The backend that the test on this thread is for; the CPU if it isn't a trial.
pub fn backend() -> Backend {
    BACKEND.get()
}

pub type Test = (&'static str, fn());

/// Functions with their names.
macro_rules! tests {
    ($($test:path),+ $(,)?) => { &[$((stringify!($test), $test as fn())),+] };
}
pub(crate) use tests;

/// Runs every test on the CPU and on a GPU.
pub fn on_every_backend(tests: &[Test]) -> ExitCode {
    run(Arguments::from_args(), &[Backend::Cpu, Backend::Cuda], tests)
}

/// Runs every test on a GPU, one at a time.
pub fn on_cuda(tests: &[Test]) -> ExitCode {
    run(Arguments { test_threads: Some(1), ..Arguments::from_args() }, &[Backend::Cuda], tests)
}

fn run(args: Arguments, backends: &[Backend], tests: &[Test]) -> ExitCode {
    // Without a question about devices, no CUDA call comes before those of a test.
    let forced = args.ignored || args.include_ignored;
    let usable = forced || cuda_is_usable();
    let trial = |backend: Backend, (name, test): Test| {
        let (prefix, ignored) = match backend {
            Backend::Cpu => ("cpu", false),
            Backend::Cuda => ("cuda", !usable),
        };
        Trial::ignorable_test(format!("{prefix}::{name}"), move || attempt(backend, test)).with_ignored_flag(ignored)
    };
    let trials = tests.iter().flat_map(|test| backends.iter().map(|backend| trial(*backend, *test)));
    libtest_mimic::run(&args, trials.collect()).exit_code()
}

fn cuda_is_usable() -> bool {
    let status = gatemix::backend_status(Backend::Cuda, 0);
    match &status {
        Ok(()) => cuda::keep_freed_memory(),
        Err(error) => say(&format!("cuda:: tests are ignored: {error}")),
    }
    status.is_ok()
}

struct Skipped(String);

/// Ends a test that can't run here, as ignored.
pub fn skip(reason: &str) -> ! {
    resume_unwind(Box::new(Skipped(reason.into())))
}

fn attempt(backend: Backend, test: fn()) -> Result<Completion, Failed> {
    BACKEND.set(backend);
    catch_unwind(test).map(|()| Completion::Completed).or_else(|cause: Box<dyn Any + Send>| {
        let Skipped(reason) = *cause.downcast::<Skipped>().unwrap_or_else(|other| resume_unwind(other));
        Ok(Completion::ignored_with(reason))
    })
}
