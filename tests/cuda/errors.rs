//! Every failure has its status and sentence, launches nothing, and leaves CUDA's error state as it was.
use std::ptr;

use gatemix::sys::*;

use crate::common::abi::{Call, OPERATORS, call, last_error};
use crate::common::cuda::{self, Stream};
use crate::device::{GUARD, OnDevice};

#[track_caller]
fn refused(call: &Call, status: gm_status, part: &str) {
    let got = call.invoke();
    assert_eq!(got, status, "{}: {}", call.op, last_error());
    assert!(last_error().contains(part), "{}: {:?} lacks {part:?}", call.op, last_error());
}

#[track_caller]
fn assert_untouched(device: &OnDevice, tokens: usize) {
    let outputs = device.read(0, tokens);
    assert!(outputs.iter().flatten().all(|byte| *byte == GUARD), "{} has written", device.call.op);
}

pub fn a_pending_error_of_someone_else() {
    for op in OPERATORS {
        let device = OnDevice::new(op, 3, 250, &Stream::new());
        let want = device.run(3);
        device.spoil_outputs();
        // SAFETY: refused for its direction.
        let foreign = unsafe { cuda::cudaMemcpy(ptr::null_mut(), ptr::null(), 1, 99) };
        assert_ne!(foreign, cuda::SUCCESS);
        refused(&device.call, GM_ERROR_CUDA_PENDING, cuda::name(foreign));
        assert_eq!(cuda::cudaGetLastError(), foreign, "{op} has taken the error away");
        assert_untouched(&device, 3);
        assert!(device.run(3) == want, "{op} after the error");
    }
}

pub fn a_launch_that_cuda_refuses() {
    for op in OPERATORS {
        let stream = Stream::new();
        let device = OnDevice::new(op, 3, 250, &stream);
        let want = device.run(3);
        device.spoil_outputs();
        stream.synchronize();
        // SAFETY: a live stream, whose capture is spoilt and ended; there is no graph.
        unsafe {
            cuda::ok(cuda::cudaStreamBeginCapture(stream.handle(), 0));
            assert_ne!(cuda::cudaStreamSynchronize(stream.handle()), cuda::SUCCESS);
            cuda::cudaGetLastError();
            refused(&device.call, GM_ERROR_CUDA, "cudaErrorStreamCaptureInvalidated");
            cuda::ok(cuda::cudaPeekAtLastError());
            assert_ne!(cuda::cudaStreamEndCapture(stream.handle(), &mut ptr::null_mut()), cuda::SUCCESS);
            cuda::cudaGetLastError();
        }
        assert_untouched(&device, 3);
        assert!(device.run(3) == want, "{op} after the error");
    }
}

pub fn devices_that_do_not_exist() {
    for (op, device) in OPERATORS.into_iter().flat_map(|op| [-1, cuda::device_count(), 4096].map(|device| (op, device)))
    {
        let mut bad = call(op, 3);
        (bad.exec.backend, bad.exec.device) = (GM_BACKEND_CUDA, device);
        bad.refused(GM_ERROR_BACKEND, &["CUDA", &format!("device = {device}")]);
        cuda::ok(cuda::cudaPeekAtLastError());
    }
}

/// Spoils one argument.
type Spoil = fn(&mut Call, usize);

const SPOILS: [Spoil; 8] = [
    |call, i| call.args[i].null = true,
    |call, i| call.args[i].tensor.data = ptr::null_mut(),
    |call, i| call.args[i].tensor.dtype = 77,
    |call, i| call.args[i].tensor.rank = 5,
    |call, i| call.args[i].tensor.shape[0] = -7,
    |call, i| call.args[i].tensor.shape[0] += 1,
    |call, i| call.args[i].tensor.data = call.args[i].tensor.data.wrapping_byte_add(1),
    |call, i| call.args[i].tensor.data = call.args.last().unwrap().tensor.data.wrapping_byte_add(4),
];

pub fn bad_arguments_are_refused_as_on_the_cpu() {
    let mut refusals = 0;
    for op in OPERATORS {
        for (spoil, i) in SPOILS.into_iter().flat_map(|spoil| (0..call(op, 3).args.len()).map(move |i| (spoil, i))) {
            let mut bad = call(op, 3);
            spoil(&mut bad, i);
            let status = bad.invoke();
            if status == GM_OK {
                continue; // an optional or larger tensor
            }
            let sentence = last_error();
            bad.exec.backend = GM_BACKEND_CUDA;
            bad.refused(status, &[&sentence]);
            cuda::ok(cuda::cudaPeekAtLastError());
            refusals += 1;
        }
    }
    assert!(refusals > 150, "{refusals} refusals");
}
