//! Operators in captured graphs.
use std::env;

use gatemix::sys::{GM_PDL, GM_PORTABLE};

use crate::common::abi::{OPERATORS, last_kernel};
use crate::common::cuda::Stream;
use crate::common::rerun;
use crate::device::OnDevice;

const FLAGS: [i32; 3] = [0, GM_PORTABLE, GM_PDL];
const ONLY: &str = "GATEMIX_TEST_OPERATOR";

fn check(op: &'static str, hidden: usize, flags: i32) {
    const T: usize = 5;
    let stream = Stream::new();
    let mut device = OnDevice::new(op, T, hidden, &stream);
    device.call.exec.flags = flags as u32;
    let graph = stream.capture(|| device.launch()); // before any other call
    let mut last = vec![];
    for seed in 1..4 {
        device.fill(seed);
        device.spoil_outputs();
        graph.launch(&stream);
        let replayed = device.read(0, T);
        assert!(replayed == device.run(T), "{op} H {hidden} flags {flags}: the replay of seed {seed} differs");
        assert!(replayed != last, "{op} H {hidden} flags {flags}: other inputs, the same outputs");
        last = replayed;
    }
}

/// Of one operator, if the environment says so.
pub fn capture_and_replay() {
    let only = env::var(ONLY).ok();
    for op in OPERATORS.into_iter().filter(|op| only.as_deref().is_none_or(|only| only == *op)) {
        for (hidden, flags) in [5120, 250].into_iter().flat_map(|hidden| FLAGS.map(|flags| (hidden, flags))) {
            check(op, hidden, flags);
        }
    }
}

pub fn capture_is_the_first_call_of_a_process() {
    OPERATORS.into_iter().for_each(|op| _ = rerun("cuda::graphs::capture_and_replay", &[(ONLY, Some(op))]));
}

pub fn one_kernel_a_call_and_none_without_tokens() {
    let stream = Stream::new();
    for (op, flags) in OPERATORS.into_iter().flat_map(|op| FLAGS.map(|flags| (op, flags))) {
        let mut device = OnDevice::new(op, 3, 256, &stream);
        device.call.exec.flags = flags as u32;
        assert_eq!(stream.capture(|| device.launch()).node_count(), 1, "{op} flags {flags}");
        assert!(last_kernel().starts_with(&format!("{op}/cuda/")), "{op}: {}", last_kernel());
        assert!(flags != GM_PORTABLE || !last_kernel().contains("/sm90"), "{op}: {}", last_kernel());
        device.window(0, 0);
        assert_eq!(stream.capture(|| device.launch()).node_count(), 0, "{op} flags {flags}");
        assert_eq!(last_kernel(), "none", "{op}");
    }
}
