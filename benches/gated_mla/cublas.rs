//! The plain product by cuBLAS, loaded at run time: $CUBLAS, or what the loader finds.
use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

use half::bf16;

use crate::common::cuda::{Block, Gpu};

const NOW: c_int = 2; // RTLD_NOW
const NAMES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];
const WORKSPACE: usize = 32 << 20; // what cuBLAS recommends for Hopper

const NO_TRANSPOSE: c_int = 0;
const TRANSPOSE: c_int = 1;
const BF16: c_int = 14;
const COMPUTE_FP32: c_int = 68;
const DEFAULT_ALGORITHM: c_int = -1;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetStream = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type SetWorkspace = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;
#[rustfmt::skip]
type GemmEx = unsafe extern "C" fn(
    *mut c_void, c_int, c_int, c_int, c_int, c_int, *const f32, *const c_void, c_int, c_int, *const c_void, c_int,
    c_int, *const f32, *mut c_void, c_int, c_int, c_int, c_int,
) -> c_int;

/// A handle on the stream of a GPU. It lives as long as the process.
pub struct Cublas {
    handle: *mut c_void,
    gemm: GemmEx,
    _workspace: Block, // of its own, so that graphs may hold calls
}

impl Cublas {
    pub fn open(gpu: &Gpu) -> Option<Cublas> {
        let chosen = env::var("CUBLAS").ok().filter(|name| !name.is_empty());
        let names = chosen.iter().map(String::as_str).chain(NAMES);
        // SAFETY: a string that ends with 0.
        let load = |name: &str| unsafe { dlopen(CString::new(name).unwrap().as_ptr(), NOW) };
        let Some(library) = names.map(load).find(|library| !library.is_null()) else {
            eprintln!("cuBLAS skipped: $CUBLAS is none, nor does the loader find {}", NAMES.join(" or "));
            return None;
        };
        let symbol = |name: &CStr| {
            // SAFETY: a live handle and a string that ends with 0.
            let address = unsafe { dlsym(library, name.as_ptr()) };
            assert!(!address.is_null(), "{} is not in cuBLAS", name.to_string_lossy());
            address
        };
        let workspace = gpu.stream().alloc(WORKSPACE);
        let mut handle = ptr::null_mut();
        // SAFETY: these functions have had these types since cuBLAS 11.
        unsafe {
            let create: Create = transmute(symbol(c"cublasCreate_v2"));
            let set_stream: SetStream = transmute(symbol(c"cublasSetStream_v2"));
            let set_workspace: SetWorkspace = transmute(symbol(c"cublasSetWorkspace_v2"));
            assert_eq!(create(&mut handle), 0);
            assert_eq!(set_stream(handle, gpu.stream().handle()), 0);
            assert_eq!(set_workspace(handle, workspace.address(), WORKSPACE), 0);
            Some(Cublas {
                handle,
                gemm: transmute::<*mut c_void, GemmEx>(symbol(c"cublasGemmEx")),
                _workspace: workspace,
            })
        }
    }

    /// out\[m, n\] = x\[m, k\] weight\[n, k\]ᵀ
    ///
    /// # Safety
    /// They have these shapes and lie on the device of the stream.
    pub unsafe fn multiply(&self, [m, n, k]: [usize; 3], x: *const bf16, weight: *const bf16, out: *mut bf16) {
        let [m, n, k] = [m, n, k].map(|length| c_int::try_from(length).unwrap());
        // SAFETY: as above.
        let status = unsafe {
            (self.gemm)(
                self.handle,
                TRANSPOSE,
                NO_TRANSPOSE,
                n,
                m,
                k,
                &1.0,
                weight.cast(),
                BF16,
                k,
                x.cast(),
                BF16,
                k,
                &0.0,
                out.cast(),
                BF16,
                n,
                COMPUTE_FP32,
                DEFAULT_ALGORITHM,
            )
        };
        assert_eq!(status, 0, "cublasGemmEx");
    }
}
