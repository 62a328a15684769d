use std::ffi::c_void;
use std::ptr;

use crate::error::check;
use crate::memory::RawStream;
use crate::{Cuda, Host, Memory, Result, sys};

/// What computes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Backend {
    /// The CPU.
    Cpu = sys::GM_BACKEND_CPU,
    /// An NVIDIA GPU.
    Cuda = sys::GM_BACKEND_CUDA,
}

/// Can operators run on this backend and device? The CPU has no device numbers.
///
/// # Errors
/// [`Error::Backend`](crate::Error::Backend) if not, with the reason.
pub fn backend_status(backend: Backend, device: i32) -> Result<()> {
    // SAFETY: no preconditions.
    check(unsafe { sys::gm_backend_status(backend as i32, device) })
}

/// Where and how an operator runs.
///
/// ```
/// use gatemix::Exec;
///
/// let exec = Exec::cpu(); // on all threads of the current rayon pool, with the fastest kernels
/// let reference = Exec::cpu().serial().portable(); // on the calling thread, in plain C
/// ```
///
/// The number of threads changes no bit of a result, provided that the pool's threads have the caller's floating-point
/// mode (flush-to-zero).
#[derive(Copy, Clone, Debug)]
pub struct Exec<M: Memory = Host> {
    stream: M::Stream,
    parallel: bool,
    flags: u32,
}

impl Exec<Host> {
    /// On the CPU, on the rayon pool of the calling thread. Without feature `rayon` this is [`serial`](Self::serial).
    ///
    /// An operator that is called from a job of that pool may run other jobs of the pool while it waits for its own. So
    /// hold no lock and no `RefCell` borrow that those need, or avoid it with [`serial`](Self::serial).
    pub fn cpu() -> Self {
        Self { parallel: true, ..Self::on(()) }
    }

    /// On the calling thread only.
    pub fn serial(self) -> Self {
        Self { parallel: false, ..self }
    }

    /// Without AVX-512, even if the CPU has it.
    pub fn without_avx512(self) -> Self {
        Self { flags: self.flags | sys::GM_NO_AVX512 as u32, ..self }
    }
}

impl Exec<Cuda> {
    /// On a CUDA device and stream. A null `stream` is the legacy default stream.
    ///
    /// Operators return when their work is queued on the stream.
    ///
    /// ```no_run
    /// use std::ffi::c_void;
    ///
    /// use gatemix::half::bf16;
    /// use gatemix::{Exec, Result, Tensor, TensorMut, rms_norm};
    ///
    /// /// # Safety
    /// /// `x` and `out` are `shape` large and on device 0, `stream` is one of its streams, which orders their uses.
    /// unsafe fn norm(stream: *mut c_void, x: *const bf16, out: *mut bf16, shape: [usize; 2]) -> Result<()> {
    ///     // SAFETY: as above.
    ///     let (exec, x, mut out) =
    ///         unsafe { (Exec::cuda(0, stream)?, Tensor::from_raw(x, shape), TensorMut::from_raw(out, shape)) };
    ///     rms_norm(&exec, x, None, 1e-6, &mut out)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Backend`](crate::Error::Backend) if the crate was built without feature `cuda`, or the device cannot
    /// be used.
    ///
    /// # Safety
    /// `stream` is a `cudaStream_t` of `device`, valid as long as the `Exec` or a copy of it is used.
    pub unsafe fn cuda(device: i32, stream: *mut c_void) -> Result<Self> {
        backend_status(Backend::Cuda, device)?;
        Ok(Self::on(RawStream { device, stream }))
    }

    /// With programmatic dependent launch: a kernel starts while the one before it in the stream still runs, and may
    /// read its parameters at once. From compute capability 9.0.
    ///
    /// Parameters are the weights of every operator, and the residual and all coefficients of
    /// [`mhc_post_collapse_rms_norm`](crate::mhc_post_collapse_rms_norm); other inputs are read when what precedes
    /// the kernel is complete.
    ///
    /// # Safety
    /// The order of the stream no longer covers the parameters. They are not written by the kernel that precedes an
    /// operator, nor by an earlier one that may still run beside it.
    pub unsafe fn pdl(self) -> Self {
        Self { flags: self.flags | sys::GM_PDL as u32, ..self }
    }
}

impl<M: Memory> Exec<M> {
    pub(crate) fn on(stream: M::Stream) -> Self {
        Self { stream, parallel: false, flags: 0 }
    }

    pub(crate) fn stream(&self) -> &M::Stream {
        &self.stream
    }

    /// With the portable kernels, whatever the hardware offers.
    pub fn portable(self) -> Self {
        Self { flags: self.flags | sys::GM_PORTABLE as u32, ..self }
    }

    /// With one order of summation in [`gated_mla`](crate::gated_mla()) whatever the number of rows.
    ///
    /// On one device, with the same other settings and operands that are aligned alike, a row's bits then depend neither
    /// on how many rows go along nor on what is in them. `docs/performance.md` says what that costs. To the other
    /// operators, whose tokens are independent anyway, it makes no difference.
    pub fn batch_invariant(self) -> Self {
        Self { flags: self.flags | sys::GM_BATCH_INVARIANT as u32, ..self }
    }

    /// Calls a C operator.
    pub(crate) fn run(&self, operator: impl FnOnce(*const sys::gm_exec) -> sys::gm_status) -> Result<()> {
        let parallel = if self.parallel { runner() } else { None };
        let RawStream { device, stream } = M::ready(&self.stream)?;
        check(operator(&sys::gm_exec {
            struct_size: size_of::<sys::gm_exec>(),
            backend: M::BACKEND as i32,
            device,
            stream,
            parallel: parallel.as_ref().map_or(ptr::null(), ptr::from_ref),
            workspace: ptr::null_mut(),
            workspace_size: 0,
            flags: self.flags,
        }))
    }
}

#[cfg(not(feature = "rayon"))]
fn runner() -> Option<sys::gm_parallel> {
    None
}

#[cfg(feature = "rayon")]
fn runner() -> Option<sys::gm_parallel> {
    let width = i32::try_from(rayon::current_num_threads()).unwrap_or(i32::MAX);
    Some(sys::gm_parallel { ctx: ptr::null_mut(), width, run: Some(run_on_rayon) })
}

/// # Safety
/// `task(arg, i)` may be called on any thread for every `i < tasks`, until this function returns.
#[cfg(feature = "rayon")]
unsafe extern "C" fn run_on_rayon(
    _ctx: *mut c_void,
    tasks: usize,
    task: Option<unsafe extern "C" fn(*mut c_void, usize)>,
    arg: *mut c_void,
) {
    use rayon::prelude::*;

    struct Job(unsafe extern "C" fn(*mut c_void, usize), *mut c_void);
    // SAFETY: the caller allows any thread to use arg in calls of task.
    unsafe impl Send for Job {}
    // SAFETY: as for Send.
    unsafe impl Sync for Job {}
    impl Job {
        /// # Safety
        /// As for the caller: `i < tasks`, before `run_on_rayon` returns.
        unsafe fn run(&self, i: usize) {
            // SAFETY: as above.
            unsafe { (self.0)(self.1, i) }
        }
    }

    let Some(task) = task else { return };
    let job = Job(task, arg);
    // C cuts the work into a few tasks per thread; one by one, the threads share them evenly.
    // SAFETY: i < tasks, and for_each returns when all calls have.
    (0..tasks).into_par_iter().with_max_len(1).for_each(|i| unsafe { job.run(i) });
}
