//! Any number of callers and of worker threads gives the same bits; errors belong to their thread.
mod common;

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::abi::{self, OPERATORS};
use common::cases::{self, Case};
use common::cpu_levels;
use gatemix::Exec;
use gatemix::sys::{GM_ERROR_INVALID_VALUE, GM_NO_AVX512, GM_OK, GM_PORTABLE, gm_parallel};

#[test]
fn callers_at_once() {
    let cases = cases::all();
    let jobs: Vec<(&Box<dyn Case>, Exec)> =
        cases.iter().flat_map(|case| cpu_levels().into_iter().map(move |(_, exec)| (case, exec))).collect();
    let want: Vec<Vec<Vec<u32>>> = jobs.iter().map(|(case, exec)| case.run_bits(&(*exec).into())).collect();
    std::thread::scope(|scope| {
        for first in 0..8 {
            let (jobs, want) = (&jobs, &want);
            scope.spawn(move || {
                for round in 0..3 * jobs.len() {
                    let i = (round + first * 3) % jobs.len();
                    assert!(jobs[i].0.run_bits(&jobs[i].1.into()) == want[i], "{} in caller {first}", jobs[i].0.op());
                }
            });
        }
    });
}

#[cfg(feature = "rayon")]
mod rayon_pools {
    use gatemix::HeadMode;
    use half::bf16;

    use crate::common::cases::{self, Case, Collapse, Gate, Head, Norm, PreMix, Seam};
    use crate::common::cpu_levels;

    /// Problems that are worth more than one task.
    fn large() -> Vec<Box<dyn Case>> {
        vec![
            Box::new(Gate::random(1, 1024, 1000)),
            Box::new(Gate::random(130, 1024, 320)),
            Box::new(Norm::<bf16>::random(300, 1280)),
            Box::new(Norm::<f32>::random(300, 1280)),
            Box::new(Collapse::random(300, 4, 1280)),
            Box::new(Head::random(40, 4, 1280, HeadMode::Rounded)),
            Box::new(Head::random(40, 4, 1280, HeadMode::Fp32)),
            Box::new(PreMix::random(27, 1000, 4)),
            Box::new(Seam::random(300, 4, 1280)),
        ]
    }

    #[test]
    fn any_number_of_rayon_threads() {
        let pools = [1, 2, 3, 8].map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
        for case in large().iter().chain(&cases::all()) {
            for (level, exec) in cpu_levels() {
                let want = case.run_bits(&exec.serial().into());
                for pool in &pools {
                    let threads = pool.current_num_threads();
                    let same = pool.install(|| case.run_bits(&exec.into()) == want);
                    assert!(same, "{} at level {level} differs on {threads} threads", case.op());
                }
            }
        }
    }
}

/// What a caller's `run` saw.
#[derive(Default)]
struct Seen {
    runs: AtomicUsize,
    tasks: AtomicUsize,
}

type Task = Option<unsafe extern "C" fn(*mut c_void, usize)>;

/// Tasks in reverse order, each on a new thread while the one before is still running.
unsafe extern "C" fn backwards(ctx: *mut c_void, tasks: usize, task: Task, arg: *mut c_void) {
    // SAFETY: ctx is the Seen of the call below; arg may be used from any thread until run returns.
    let (seen, arg) = unsafe { (&*ctx.cast::<Seen>(), Mutex::new(arg as usize)) };
    seen.runs.fetch_add(1, Ordering::Relaxed);
    seen.tasks.fetch_add(tasks, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for i in (0..tasks).rev() {
            let arg = *arg.lock().unwrap();
            // SAFETY: each i once.
            scope.spawn(move || unsafe { task.unwrap()(arg as *mut c_void, i) });
        }
    });
}

#[test]
fn a_parallel_of_the_callers_own() {
    let cases = OPERATORS.iter().flat_map(|op| [(*op, 3), (*op, 3000)]);
    for (op, tokens) in cases {
        for flags in [0, GM_NO_AVX512, GM_PORTABLE] {
            let mut alone = abi::call(op, tokens);
            alone.exec.flags = flags as u32;
            alone.succeeds();
            for width in [1, 2, 5, i32::MAX] {
                let mut seen = Seen::default();
                let parallel = gm_parallel { ctx: (&raw mut seen).cast(), width, run: Some(backwards) };
                let mut together = abi::call(op, tokens);
                (together.exec.flags, together.exec.parallel) = (flags as u32, &parallel);
                together.succeeds();
                for (one, other) in alone.args.iter().zip(&together.args) {
                    assert!(one.memory == other.memory, "{op}, width {width}: {} differs", one.name);
                }
                let (runs, tasks) = (seen.runs.into_inner(), seen.tasks.into_inner());
                // A few tokens are worth one task, but a few rows of the gate have 256 columns to share.
                let want = usize::from(width > 1 && (tokens == 3000 || op == "gated_mla"));
                let what = format!("{op}, {tokens} tokens, width {width}: {tasks} tasks in {runs} runs");
                assert!(runs == want && tasks <= 10_000, "{what}");
                assert!(tasks >= 2 * runs, "{what}");
            }
        }
    }
}

#[test]
fn errors_and_kernels_belong_to_their_thread() {
    let fail = |eps: f32| {
        let mut call = abi::call("rms_norm", 2);
        call.floats[0].1 = eps;
        assert_eq!(call.invoke(), GM_ERROR_INVALID_VALUE);
    };
    fail(-1.0);
    assert_eq!(abi::call("hc_collapse", 2).invoke(), GM_OK);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!((abi::last_error(), abi::last_kernel()), (String::new(), String::new()));
            fail(-2.0);
            assert!(abi::last_error().contains("eps = -2 "));
            assert_eq!(abi::call("hc_head", 2).invoke(), GM_OK);
            assert!(abi::last_kernel().starts_with("hc_head/"));
        });
    });
    assert!(abi::last_error().contains("eps = -1 "));
    assert!(abi::last_kernel().starts_with("hc_collapse/"));
}
