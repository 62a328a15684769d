//! Operators run on the stream that they are given, in its order, from any thread.
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::abi::OPERATORS;
use crate::common::cuda::{self, Block, Stream};
use crate::common::skip;
use crate::device::OnDevice;

const T: usize = 16;
const H: usize = 5120;

pub fn two_streams_at_once() {
    for op in OPERATORS {
        let devices = [1, 2].map(|seed| {
            let mut device = OnDevice::new(op, T, H, &Stream::new());
            device.fill(seed);
            device
        });
        let want = devices.each_ref().map(|device| device.run(T));
        assert!(want[0] != want[1], "{op}");
        for round in 0..50 {
            devices.iter().for_each(OnDevice::spoil_outputs);
            (0..4).for_each(|_| devices.iter().for_each(OnDevice::launch));
            let got = devices.each_ref().map(|device| device.read(0, T));
            assert!(got == want, "{op}, round {round}");
        }
    }
}

/// A kernel's attributes are set for all threads of the process.
pub fn shapes_of_many_threads() {
    for op in OPERATORS {
        thread::scope(|scope| {
            for h in [4096, 5120, 7168] {
                scope.spawn(move || {
                    let mut device = OnDevice::new(op, T, h, &Stream::new());
                    device.fill(1);
                    let want = device.run(T);
                    for round in 0..200 {
                        device.spoil_outputs();
                        device.launch();
                        assert!(device.read(0, T) == want, "{op}, H {h}, round {round}");
                    }
                });
            }
        });
    }
}

/// Holds up its stream until the flag is set, or for ten seconds.
unsafe extern "C" fn produce(finish: *mut c_void) {
    // SAFETY: the leaked flag of the test.
    let finish = unsafe { &*finish.cast::<AtomicBool>() };
    let end = Instant::now() + Duration::from_secs(10);
    while !finish.load(Ordering::Relaxed) && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn a_slow_producer_holds_up_the_stream_but_not_the_caller() {
    for op in OPERATORS {
        let stream = Stream::new();
        let mut device = OnDevice::new(op, T, H, &stream);
        device.fill(1);
        let want = device.run(T);
        let inputs: Vec<&str> = device.call.args.iter().filter(|arg| !arg.output).map(|arg| arg.name).collect();
        let staged = inputs.iter().map(|name| copy(device.block(name))).collect::<Vec<_>>();
        device.fill(2);
        assert!(device.run(T) != want, "{op}");

        device.spoil_outputs();
        let finish: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let arg = (&raw const *finish).cast_mut().cast();
        // SAFETY: the flag lives on.
        cuda::ok(unsafe { cuda::cudaLaunchHostFunc(stream.handle(), produce, arg) });
        inputs.iter().zip(&staged).for_each(|(name, from)| device.block(name).copy(0, from, 0, from.bytes()));
        device.launch();
        assert!(!stream.is_done(), "{op} has waited for the stream");
        finish.store(true, Ordering::Relaxed);
        assert!(device.read(0, T) == want, "{op} has not waited for its inputs");
    }
}

fn copy(block: &Block) -> Block {
    let copy = block.stream().alloc(block.bytes());
    copy.copy(0, block, 0, block.bytes());
    copy
}

struct Shared<T>(T);
// SAFETY: the thread below uses it while the test waits.
unsafe impl<T> Sync for Shared<T> {}

pub fn a_fresh_thread() {
    for op in OPERATORS {
        let device = Shared(OnDevice::new(op, T, H, &Stream::new()));
        let want = device.0.run(T);
        device.0.spoil_outputs();
        let shared = &device;
        thread::scope(|scope| _ = scope.spawn(|| shared.0.launch()));
        assert!(device.0.read(0, T) == want, "{op}");
    }
}

pub fn the_current_device_stays() {
    let devices = cuda::device_count();
    if devices < 2 {
        skip("this takes two devices");
    }
    for op in OPERATORS {
        let device = OnDevice::new(op, T, H, &Stream::new());
        let want = device.run(T);
        device.spoil_outputs();
        cuda::ok(cuda::cudaSetDevice(1));
        device.launch();
        let current = cuda::current_device();
        cuda::ok(cuda::cudaSetDevice(0));
        assert_eq!(current, 1, "{op}");
        assert!(device.read(0, T) == want, "{op}");
    }
}
