//! How operators refuse a bad gm_exec, and what the library says about its errors.
mod common;

use std::ffi::{CStr, c_void};
use std::ptr;

use common::abi::{OPERATORS, call, last_error, last_kernel};
use gatemix::sys::*;

unsafe extern "C" fn never(
    _: *mut c_void,
    _: usize,
    _: Option<unsafe extern "C" fn(*mut c_void, usize)>,
    _: *mut c_void,
) {
    unreachable!("a refused call runs nothing");
}

#[test]
fn every_field_of_exec() {
    for op in OPERATORS {
        let spoilt = |spoil: &dyn Fn(&mut gm_exec), status: gm_status, part: &str| {
            let mut call = call(op, 3);
            spoil(&mut call.exec);
            call.refused(status, &[part]);
        };
        call(op, 3).refused_on(ptr::null(), GM_ERROR_NULL_POINTER, &["exec is NULL"]);
        for size in [0, 8, size_of::<gm_exec>() - 8, 1025, 0x1000, usize::MAX] {
            let part = format!("exec.struct_size = {size} must be");
            spoilt(&|exec| exec.struct_size = size, GM_ERROR_INVALID_VALUE, &part);
        }
        for backend in [0, 3, -1] {
            let part = format!("backend = {backend} must be");
            spoilt(&|exec| exec.backend = backend, GM_ERROR_INVALID_VALUE, &part);
        }
        spoilt(&|exec| exec.flags = 0x84, GM_ERROR_INVALID_VALUE, "exec.flags = 0x84 has unknown bits");
        let absent = |exec: &mut gm_exec| (exec.backend, exec.device) = (GM_BACKEND_CUDA, 4096);
        spoilt(&absent, GM_ERROR_BACKEND, "CUDA");
        let no_run = gm_parallel { ctx: ptr::null_mut(), width: 2, run: None };
        spoilt(&|exec| exec.parallel = &no_run, GM_ERROR_NULL_POINTER, "exec.parallel.run is NULL");
        for width in [0, -3] {
            let narrow = gm_parallel { ctx: ptr::null_mut(), width, run: Some(never) };
            let part = format!("exec.parallel.width = {width} must be at least 1");
            spoilt(&|exec| exec.parallel = &narrow, GM_ERROR_INVALID_VALUE, &part);
        }
    }
}

#[test]
fn a_longer_exec_is_taken_if_its_tail_is_zero() {
    #[repr(C)]
    struct Longer(gm_exec, [u64; 2]);
    for op in OPERATORS {
        let call = call(op, 3);
        let mut longer = Longer(call.exec, [0, 0]);
        longer.0.struct_size = size_of::<Longer>();
        let exec = (&raw const longer).cast();
        assert_eq!(call.invoke_on(exec), GM_OK, "{op}: {}", last_error());
        longer.1[1] = 1 << 56;
        let (size, byte) = (size_of::<Longer>(), size_of::<Longer>() - 1);
        let parts = [format!("exec.struct_size = {size}"), format!("byte {byte} is set")];
        common::abi::call(op, 3).refused_on(
            (&raw const longer).cast(),
            GM_ERROR_INVALID_VALUE,
            &[&parts[0], &parts[1]],
        );
    }
}

#[test]
fn the_backends() {
    // SAFETY: no pointers are passed.
    unsafe {
        assert_eq!(gm_backend_status(GM_BACKEND_CPU, 0), GM_OK);
        let absent = gatemix::build_info().contains("cuda: absent");
        for device in [0, -1, 4096] {
            let status = gm_backend_status(GM_BACKEND_CUDA, device);
            if status == GM_OK {
                assert!(!absent && device == 0, "device {device} of {}", gatemix::build_info());
                continue;
            }
            assert_eq!(status, GM_ERROR_BACKEND);
            let part = if absent { "this build has no CUDA backend" } else { "CUDA" };
            assert!(last_error().contains(part), "{}", last_error());
        }
        assert_eq!(gm_backend_status(0, 0), GM_ERROR_INVALID_VALUE);
        assert!(last_error().contains("backend = 0 must be"), "{}", last_error());
    }
}

#[test]
fn the_names_of_the_codes() {
    let names = [
        "GM_OK",
        "GM_ERROR_NULL_POINTER",
        "GM_ERROR_INVALID_VALUE",
        "GM_ERROR_DTYPE",
        "GM_ERROR_RANK",
        "GM_ERROR_SHAPE",
        "GM_ERROR_STRIDE",
        "GM_ERROR_ALIGNMENT",
        "GM_ERROR_OVERLAP",
        "GM_ERROR_BACKEND",
        "GM_ERROR_CUDA",
        "GM_ERROR_CUDA_PENDING",
    ];
    // SAFETY: static strings.
    let name = |code| unsafe { CStr::from_ptr(gm_status_string(code)) }.to_str().unwrap();
    names.iter().enumerate().for_each(|(code, want)| assert_eq!(name(code as gm_status), *want));
    [-1, 12, 99].iter().for_each(|code| assert!(!name(*code).is_empty() && !names.contains(&name(*code))));
}

#[test]
fn the_last_error_outlives_a_success() {
    let mut bad = call("rms_norm", 3);
    bad.floats[0].1 = -2.0;
    bad.refused(GM_ERROR_INVALID_VALUE, &["eps = -2"]);
    let sentence = last_error();
    call("rms_norm", 3).succeeds();
    assert_eq!(last_error(), sentence);
    let kernel = last_kernel();
    bad.refused(GM_ERROR_INVALID_VALUE, &["eps = -2"]);
    assert_eq!(last_kernel(), kernel); // a failure leaves it alone
}
