//! Times on a GPU: graphs of many calls, replayed between CUDA events.
#[path = "../../tests/common/cuda.rs"]
#[allow(dead_code)]
mod runtime;

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId};
use gatemix::{Backend, Cuda, Element, Exec, Tensor, TensorMut, backend_status};

pub use self::runtime::{Block, Stream};
use self::runtime::{cudaEventCreate, cudaEventDestroy, cudaEventElapsedTime, cudaEventRecord, ok};

/// Several times the L2 of the GPUs we know.
const COLD_BYTES: usize = 192 << 20;
const MAX_SETS: usize = 256;
const MIN_CALLS: usize = 64;

/// Device 0 and a stream of it.
pub struct Gpu {
    stream: Rc<Stream>,
    pub exec: Exec<Cuda>,
}

impl Gpu {
    pub fn open() -> Option<Gpu> {
        if let Err(error) = backend_status(Backend::Cuda, 0) {
            eprintln!("CUDA benches skipped: {error}");
            return None;
        }
        let stream = Stream::new();
        // SAFETY: a stream of device 0 that lives as long.
        let exec = unsafe { Exec::cuda(0, stream.handle()) }.unwrap();
        Some(Gpu { stream, exec })
    }

    pub fn stream(&self) -> &Rc<Stream> {
        &self.stream
    }

    /// The same data `sets` times.
    pub fn repeat<E: Element>(&self, data: &[E], sets: usize) -> Sets<E> {
        let stride = size_of_val(data).next_multiple_of(256);
        let block = self.stream.alloc(sets * stride);
        for set in 0..sets {
            block.write(set * stride, data);
        }
        Sets { block, stride, len: data.len(), element: PhantomData }
    }

    /// Times `queue(set)`, which puts one call on the stream, over all sets in turn.
    pub fn bench(
        &self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        id: BenchmarkId,
        sets: usize,
        mut queue: impl FnMut(usize),
    ) {
        queue(0);
        self.stream.synchronize();
        let calls = sets.max(MIN_CALLS);
        let graph = self.stream.capture(|| (0..calls).for_each(|i| queue(i % sets)));
        group.bench_function(id, |b| {
            b.iter_custom(|iterations| {
                let replays = iterations.div_ceil(calls as u64);
                let time = self.time(|| (0..replays).for_each(|_| graph.launch(&self.stream)));
                time.mul_f64(iterations as f64 / (replays * calls as u64) as f64)
            });
        });
    }

    /// Times a copy that moves `bytes`, half of them read and half written.
    pub fn bench_copy(&self, group: &mut BenchmarkGroup<'_, WallTime>, tokens: usize, bytes: usize) {
        let sets = sets(bytes);
        let (from, to) = (self.stream.alloc(sets * bytes / 2), self.stream.alloc(sets * bytes / 2));
        self.bench(group, BenchmarkId::new("copy", tokens), sets, |set| {
            to.copy(set * (bytes / 2), &from, set * (bytes / 2), bytes / 2);
        });
    }

    fn time(&self, queue: impl FnOnce()) -> Duration {
        let [start, end] = [(); 2].map(|()| {
            let mut event: *mut c_void = ptr::null_mut();
            // SAFETY: writes a handle.
            ok(unsafe { cudaEventCreate(&mut event) });
            event
        });
        let mut milliseconds = 0.0;
        // SAFETY: live handles, which both events are recorded with before they are read.
        unsafe {
            ok(cudaEventRecord(start, self.stream.handle()));
            queue();
            ok(cudaEventRecord(end, self.stream.handle()));
            self.stream.synchronize();
            ok(cudaEventElapsedTime(&mut milliseconds, start, end));
            ok(cudaEventDestroy(start));
            ok(cudaEventDestroy(end));
        }
        Duration::from_secs_f64(f64::from(milliseconds) / 1e3)
    }
}

/// How many sets of `bytes` a cache can't hold.
pub fn sets(bytes: usize) -> usize {
    COLD_BYTES.div_ceil(bytes).clamp(2, MAX_SETS)
}

/// Tensors of one shape, each in other memory.
pub struct Sets<E> {
    block: Block,
    stride: usize,
    len: usize,
    element: PhantomData<E>,
}

impl<E: Element> Sets<E> {
    fn address<const R: usize>(&self, set: usize, shape: [usize; R]) -> *mut E {
        assert!(shape.iter().product::<usize>() == self.len && (set + 1) * self.stride <= self.block.bytes());
        self.block.address().wrapping_byte_add(set * self.stride).cast()
    }

    pub fn pointer(&self, set: usize) -> *mut E {
        self.address(set, [self.len])
    }

    pub fn tensor<const R: usize>(&self, set: usize, shape: [usize; R]) -> Tensor<'_, E, R, Cuda> {
        // SAFETY: as many elements, which live as long as self; one stream orders all that happens to them.
        unsafe { Tensor::from_raw(self.address(set, shape), shape) }
    }

    pub fn output<const R: usize>(&self, set: usize, shape: [usize; R]) -> TensorMut<'_, E, R, Cuda> {
        // SAFETY: as above.
        unsafe { TensorMut::from_raw(self.address(set, shape), shape) }
    }
}
