//! The part of the CUDA runtime that tests and benches use. It is linked into the crate.
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::rc::Rc;

pub type Error = c_int;
pub const SUCCESS: Error = 0;
pub const NOT_READY: Error = 600;

const NON_BLOCKING: c_uint = 1;
const ANY_DIRECTION: c_int = 4; // cudaMemcpyDefault
const GLOBAL_MODE: c_int = 0; // the strictest
const POOL_RELEASE_THRESHOLD: c_int = 4;

#[allow(non_snake_case)]
mod ffi {
    use super::*;
    unsafe extern "C" {
        pub safe fn cudaGetLastError() -> Error;
        pub safe fn cudaPeekAtLastError() -> Error;
        pub safe fn cudaGetErrorName(error: Error) -> *const c_char;
        pub safe fn cudaSetDevice(device: c_int) -> Error;
        pub fn cudaGetDevice(device: *mut c_int) -> Error;
        pub fn cudaGetDeviceCount(count: *mut c_int) -> Error;
        pub fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Error;
        pub fn cudaDeviceGetDefaultMemPool(pool: *mut *mut c_void, device: c_int) -> Error;
        pub fn cudaMemPoolSetAttribute(pool: *mut c_void, attribute: c_int, value: *mut c_void) -> Error;
        pub fn cudaMemPoolTrimTo(pool: *mut c_void, keep: usize) -> Error;
        pub fn cudaMallocAsync(address: *mut *mut c_void, bytes: usize, stream: *mut c_void) -> Error;
        pub fn cudaFreeAsync(address: *mut c_void, stream: *mut c_void) -> Error;
        pub fn cudaMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int) -> Error;
        pub fn cudaMemcpyAsync(
            to: *mut c_void,
            from: *const c_void,
            bytes: usize,
            kind: c_int,
            stream: *mut c_void,
        ) -> Error;
        pub fn cudaMemsetAsync(address: *mut c_void, byte: c_int, bytes: usize, stream: *mut c_void) -> Error;
        pub fn cudaStreamCreateWithFlags(stream: *mut *mut c_void, flags: c_uint) -> Error;
        pub fn cudaStreamDestroy(stream: *mut c_void) -> Error;
        pub fn cudaStreamSynchronize(stream: *mut c_void) -> Error;
        pub fn cudaStreamQuery(stream: *mut c_void) -> Error;
        pub fn cudaLaunchHostFunc(
            stream: *mut c_void,
            run: unsafe extern "C" fn(*mut c_void),
            arg: *mut c_void,
        ) -> Error;
        pub fn cudaStreamBeginCapture(stream: *mut c_void, mode: c_int) -> Error;
        pub fn cudaStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> Error;
        pub fn cudaGraphGetNodes(graph: *mut c_void, nodes: *mut *mut c_void, count: *mut usize) -> Error;
        pub fn cudaGraphInstantiateWithFlags(exec: *mut *mut c_void, graph: *mut c_void, flags: c_ulonglong) -> Error;
        pub fn cudaGraphLaunch(exec: *mut c_void, stream: *mut c_void) -> Error;
        pub fn cudaGraphExecDestroy(exec: *mut c_void) -> Error;
        pub fn cudaGraphDestroy(graph: *mut c_void) -> Error;
        pub fn cudaEventCreate(event: *mut *mut c_void) -> Error;
        pub fn cudaEventRecord(event: *mut c_void, stream: *mut c_void) -> Error;
        pub fn cudaEventSynchronize(event: *mut c_void) -> Error;
        pub fn cudaEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, end: *mut c_void) -> Error;
        pub fn cudaEventDestroy(event: *mut c_void) -> Error;
    }
}
pub use ffi::*;

#[track_caller]
pub fn ok(error: Error) {
    assert_eq!(error, SUCCESS, "{}", name(error));
}

pub fn name(error: Error) -> &'static str {
    // SAFETY: a static string.
    unsafe { CStr::from_ptr(cudaGetErrorName(error)) }.to_str().unwrap()
}

/// A value that CUDA writes through a pointer.
#[track_caller]
pub fn get<T: Default>(write: impl FnOnce(*mut T) -> Error) -> T {
    let mut value = T::default();
    ok(write(&mut value));
    value
}

#[track_caller]
fn get_pointer(write: impl FnOnce(*mut *mut c_void) -> Error) -> *mut c_void {
    let mut value = ptr::null_mut();
    ok(write(&mut value));
    value
}

pub fn device_count() -> c_int {
    // SAFETY: writes a number.
    get(|count| unsafe { cudaGetDeviceCount(count) })
}

pub fn current_device() -> c_int {
    // SAFETY: writes a number.
    get(|device| unsafe { cudaGetDevice(device) })
}

/// The memory pool of device 0.
fn pool() -> *mut c_void {
    // SAFETY: writes a handle.
    get_pointer(|pool| unsafe { cudaDeviceGetDefaultMemPool(pool, 0) })
}

/// Lets freed blocks stay with the process: mapping memory anew takes longer than most tests.
pub fn keep_freed_memory() {
    let mut threshold = u64::MAX;
    // SAFETY: reads a number.
    ok(unsafe { cudaMemPoolSetAttribute(pool(), POOL_RELEASE_THRESHOLD, (&raw mut threshold).cast()) });
}

/// How many bytes of device 0 are free.
pub fn free_memory() -> usize {
    // SAFETY: gives back what is not in use.
    ok(unsafe { cudaMemPoolTrimTo(pool(), 0) });
    // SAFETY: writes numbers.
    get(|free| unsafe { cudaMemGetInfo(free, &mut 0) })
}

/// A stream of the current device that does not wait for the legacy default stream.
pub struct Stream(*mut c_void);

impl Stream {
    pub fn new() -> Rc<Stream> {
        // SAFETY: writes a handle.
        Rc::new(Stream(get_pointer(|stream| unsafe { cudaStreamCreateWithFlags(stream, NON_BLOCKING) })))
    }

    pub fn handle(&self) -> *mut c_void {
        self.0
    }

    /// Waits until all work is done.
    #[track_caller]
    pub fn synchronize(&self) {
        // SAFETY: a live stream.
        ok(unsafe { cudaStreamSynchronize(self.0) });
    }

    pub fn is_done(&self) -> bool {
        // SAFETY: a live stream.
        match unsafe { cudaStreamQuery(self.0) } {
            NOT_READY => {
                cudaGetLastError(); // it may count as one
                false
            }
            other => {
                ok(other);
                true
            }
        }
    }

    pub fn alloc(self: &Rc<Stream>, bytes: usize) -> Block {
        // SAFETY: writes an address.
        let address = get_pointer(|address| unsafe { cudaMallocAsync(address, bytes.max(1), self.0) });
        Block { address, bytes, stream: self.clone() }
    }

    pub fn upload<T: Copy>(self: &Rc<Stream>, data: &[T]) -> Block {
        let block = self.alloc(size_of_val(data));
        block.write(0, data);
        block
    }

    /// Waits for the stream.
    ///
    /// # Safety
    /// Device memory of the size of `data` begins at `from`, and any bytes are a `T`.
    #[track_caller]
    pub unsafe fn read<T: Copy>(&self, from: *const c_void, data: &mut [T]) {
        let bytes = size_of_val(data);
        // SAFETY: as above.
        ok(unsafe { cudaMemcpyAsync(data.as_mut_ptr().cast(), from, bytes, ANY_DIRECTION, self.0) });
        self.synchronize();
    }

    /// What `queue` puts on this stream.
    pub fn capture(&self, queue: impl FnOnce()) -> Graph {
        // SAFETY: a live stream; queue ends before the capture does.
        ok(unsafe { cudaStreamBeginCapture(self.0, GLOBAL_MODE) });
        queue();
        // SAFETY: writes handles; the graph is a new one.
        unsafe {
            let graph = get_pointer(|graph| cudaStreamEndCapture(self.0, graph));
            let exec = get_pointer(|exec| cudaGraphInstantiateWithFlags(exec, graph, 0));
            Graph { graph, exec }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody else has it any more; its work goes on.
        unsafe { cudaStreamDestroy(self.0) };
    }
}

/// Device memory, used in the order of a stream.
pub struct Block {
    address: *mut c_void,
    bytes: usize,
    stream: Rc<Stream>,
}

impl Block {
    pub fn address(&self) -> *mut c_void {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn stream(&self) -> &Rc<Stream> {
        &self.stream
    }

    /// The address `at` bytes past the first of `bytes` that lie inside.
    fn part(&self, at: usize, bytes: usize) -> *mut c_void {
        assert!(at + bytes <= self.bytes, "{at} + {bytes} bytes of {}", self.bytes);
        self.address.wrapping_byte_add(at)
    }

    /// The host may reuse `data` at once.
    pub fn write<T: Copy>(&self, at: usize, data: &[T]) {
        let bytes = size_of_val(data);
        let to = self.part(at, bytes);
        // SAFETY: both sides have as many bytes; CUDA copies pageable memory before it returns.
        ok(unsafe { cudaMemcpyAsync(to, data.as_ptr().cast(), bytes, ANY_DIRECTION, self.stream.0) });
    }

    /// Waits for the stream.
    #[track_caller]
    pub fn read<T: Copy>(&self, at: usize, data: &mut [T]) {
        let from = self.part(at, size_of_val(data));
        // SAFETY: both sides have as many bytes.
        unsafe { self.stream.read(from, data) };
    }

    pub fn copy(&self, at: usize, from: &Block, from_at: usize, bytes: usize) {
        let (to, from) = (self.part(at, bytes), from.part(from_at, bytes));
        // SAFETY: both sides have as many bytes.
        ok(unsafe { cudaMemcpyAsync(to, from, bytes, ANY_DIRECTION, self.stream.0) });
    }

    pub fn fill(&self, byte: u8) {
        // SAFETY: all bytes of a live block.
        ok(unsafe { cudaMemsetAsync(self.address, byte.into(), self.bytes, self.stream.0) });
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: nobody else has it any more; it is freed after the work that uses it.
        unsafe { cudaFreeAsync(self.address, self.stream.0) };
    }
}

/// Captured work.
pub struct Graph {
    graph: *mut c_void,
    exec: *mut c_void,
}

impl Graph {
    pub fn launch(&self, stream: &Stream) {
        // SAFETY: both live.
        ok(unsafe { cudaGraphLaunch(self.exec, stream.0) });
    }

    pub fn node_count(&self) -> usize {
        // SAFETY: writes a number.
        get(|count| unsafe { cudaGraphGetNodes(self.graph, ptr::null_mut(), count) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nobody else has them any more.
        unsafe {
            cudaGraphExecDestroy(self.exec);
            cudaGraphDestroy(self.graph);
        }
    }
}
