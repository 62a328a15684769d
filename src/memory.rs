use std::ffi::c_void;
use std::fmt::Debug;
use std::ptr;

use crate::{Backend, Element, Result, sys};

/// Where a tensor lies: [`Host`], [`Cuda`] or, with feature `cudarc`, `Cudarc`.
pub trait Memory: sealed::Access + Copy + Debug + Send + Sync + 'static {
    /// The backend that computes there.
    const BACKEND: Backend;
}

/// Ordinary memory.
#[derive(Copy, Clone, Debug)]
pub enum Host {}

impl Memory for Host {
    const BACKEND: Backend = Backend::Cpu;
}

/// Memory of a CUDA device.
///
/// Operators return before they have run. So whoever makes a tensor of this memory promises, as part of `from_raw`,
/// that every device it is used on can access it, that it stays allocated until the work on it has run, and that
/// other work on the same memory is ordered before or after, by streams or events.
#[derive(Copy, Clone, Debug)]
pub enum Cuda {}

impl Memory for Cuda {
    const BACKEND: Backend = Backend::Cuda;
}

/// A device and a stream of it, as C takes them.
#[derive(Copy, Clone, Debug)]
pub struct RawStream {
    pub(crate) device: i32,
    pub(crate) stream: *mut c_void,
}

pub(crate) mod sealed {
    use super::*;

    /// How operators get at a memory.
    pub trait Access {
        /// What an `Exec` runs on.
        type Stream: Debug;
        /// How a tensor to read refers to its elements.
        type Source<E: Element>: Copy + Debug;
        /// How a tensor to write refers to its elements.
        type Target<E: Element>: Copy + Debug;
        /// Orders an operator with the other uses of a tensor, if it lives from before the launch until after.
        type Guard<'g>;

        fn source<E: Element>(address: *const E) -> Self::Source<E>;
        fn target<E: Element>(address: *mut E) -> Self::Target<E>;

        /// The stream as C takes it, right before the launch.
        fn ready(stream: &Self::Stream) -> Result<RawStream>;

        /// # Safety
        /// `source` is valid during `'g`.
        unsafe fn read<'g, E: Element>(
            source: Self::Source<E>,
            stream: &'g Self::Stream,
        ) -> Result<(*const E, Self::Guard<'g>)>;

        /// # Safety
        /// `target` is valid during `'g`, and used by nobody else.
        unsafe fn write<'g, E: Element>(
            target: Self::Target<E>,
            stream: &'g Self::Stream,
        ) -> Result<(*mut E, Self::Guard<'g>)>;
    }
}

/// Tensors that hold the address of their elements, whose order is not this crate's business.
macro_rules! by_address {
    () => {
        type Source<E: Element> = *const E;
        type Target<E: Element> = *mut E;
        type Guard<'g> = ();

        fn source<E: Element>(address: *const E) -> *const E {
            address
        }

        fn target<E: Element>(address: *mut E) -> *mut E {
            address
        }

        unsafe fn read<E: Element>(source: *const E, _: &Self::Stream) -> Result<(*const E, ())> {
            Ok((source, ()))
        }

        unsafe fn write<E: Element>(target: *mut E, _: &Self::Stream) -> Result<(*mut E, ())> {
            Ok((target, ()))
        }
    };
}

impl sealed::Access for Host {
    type Stream = ();
    by_address!();

    fn ready(_: &()) -> Result<RawStream> {
        Ok(RawStream { device: 0, stream: ptr::null_mut() })
    }
}

impl sealed::Access for Cuda {
    type Stream = RawStream;
    by_address!();

    fn ready(stream: &RawStream) -> Result<RawStream> {
        Ok(*stream)
    }
}

/// A tensor as C sees it, and in order while this lives.
pub(crate) struct Operand<'g, M: Memory> {
    pub(crate) tensor: sys::gm_tensor,
    pub(crate) _guard: M::Guard<'g>,
}

impl<M: Memory> Operand<'_, M> {
    pub(crate) fn as_ptr(&self) -> *const sys::gm_tensor {
        &self.tensor
    }
}
