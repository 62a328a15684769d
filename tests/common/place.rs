//! Where operators run: an `Exec`, and the operands of a case in its memory.
use std::marker::PhantomData;
use std::rc::Rc;

use gatemix::{Cuda, Element, Exec, Host, Memory, Tensor, TensorMut, TensorView};

use super::compare::Float;
use super::cuda::{Block, Stream};
use super::data::Buf;
use super::memory::Sparse;

/// One way to run, on any backend.
pub enum AnyExec {
    Cpu(Place<Host>),
    Cuda(Place<Cuda>),
}

/// Evaluates an expression with the [`Place`] of an [`AnyExec`], whatever its memory.
macro_rules! with_place {
    ($exec:expr, $place:ident => $body:expr) => {
        match $exec {
            $crate::common::place::AnyExec::Cpu($place) => $body,
            $crate::common::place::AnyExec::Cuda($place) => $body,
        }
    };
}
pub(crate) use with_place;

impl From<Exec> for AnyExec {
    fn from(exec: Exec) -> AnyExec {
        AnyExec::Cpu(Place { exec, stream: None })
    }
}

impl AnyExec {
    pub fn cuda(exec: Exec<Cuda>, stream: &Rc<Stream>) -> AnyExec {
        AnyExec::Cuda(Place { exec, stream: Some(stream.clone()) })
    }

    pub fn batch_invariant(&self) -> AnyExec {
        match self {
            AnyExec::Cpu(place) => AnyExec::Cpu(Place { exec: place.exec.batch_invariant(), stream: None }),
            AnyExec::Cuda(Place { exec, stream }) => {
                AnyExec::Cuda(Place { exec: exec.batch_invariant(), stream: stream.clone() })
            }
        }
    }
}

pub struct Place<M: Memory> {
    pub exec: Exec<M>,
    /// Where memory is copied to and from a device; None on the CPU.
    stream: Option<Rc<Stream>>,
}

impl<M: Memory> Place<M> {
    /// The buffer itself, or a copy of it and of all that surrounds it.
    pub fn input<'a, E: Float + Element>(&self, buf: &'a Buf<E>) -> Input<'a, E, M> {
        let device = self.stream.as_ref().map(|stream| stream.upload(buf.surroundings()));
        let base = device.as_ref().map_or(buf.surroundings().as_ptr(), |block| block.address().cast());
        let held = device.map_or(Held::Borrowed(PhantomData), Held::Device);
        Input { data: base.wrapping_add(buf.at()), len: buf.len(), _held: held, memory: PhantomData }
    }

    /// `len` elements, of which only the given ones, at the given indices, take memory on the CPU.
    pub fn sparse<'a, E: Float + Element>(&self, len: usize, parts: &[(usize, &[E])]) -> Input<'a, E, M> {
        let (data, held) = match &self.stream {
            None => {
                let mut sparse = Sparse::new(len);
                parts.iter().for_each(|(at, part)| sparse.slice()[*at..][..part.len()].copy_from_slice(part));
                (sparse.slice().as_ptr(), Held::Sparse(sparse))
            }
            Some(stream) => {
                let block = stream.alloc(len * size_of::<E>());
                parts.iter().for_each(|(at, part)| block.write(at * size_of::<E>(), part));
                (block.address().cast_const().cast(), Held::Device(block))
            }
        };
        Input { data, len, _held: held, memory: PhantomData }
    }

    pub fn output<E: Float + Element>(&self, len: usize, shift: usize) -> Output<E, M> {
        self.in_place(Buf::output(len, shift))
    }

    /// An output that starts with contents.
    pub fn in_place<E: Float + Element>(&self, buf: Buf<E>) -> Output<E, M> {
        let device = self.stream.as_ref().map(|stream| stream.upload(buf.surroundings()));
        Output { buf, device, memory: PhantomData }
    }
}

/// What keeps the memory of an input.
enum Held<'a, E> {
    Borrowed(PhantomData<&'a [E]>),
    Sparse(#[allow(unused)] Sparse<E>),
    Device(#[allow(unused)] Block),
}

/// Elements to read, where an operator needs them.
pub struct Input<'a, E, M> {
    data: *const E,
    len: usize,
    _held: Held<'a, E>,
    memory: PhantomData<M>,
}

impl<E: Float + Element, M: Memory> Input<'_, E, M> {
    pub fn tensor<const R: usize>(&self, shape: [usize; R]) -> Tensor<'_, E, R, M> {
        assert_eq!(shape.iter().product::<usize>(), self.len);
        // SAFETY: as many elements, which live and don't change as long as self.
        unsafe { Tensor::from_raw(self.data, shape) }
    }

    pub fn view<const R: usize>(&self, shape: [usize; R], strides: [usize; R]) -> TensorView<'_, E, R, M> {
        let last: usize = (0..R).map(|d| shape[d].saturating_sub(1) * strides[d]).sum();
        assert!(shape.contains(&0) || last < self.len, "{shape:?} {strides:?} reaches beyond {}", self.len);
        // SAFETY: all elements are inside, and live and don't change as long as self.
        unsafe { TensorView::from_raw(self.data, shape, strides) }
    }

    /// A view that goes backwards from the last element.
    pub fn reversed<const R: usize>(&self, shape: [usize; R], strides: [usize; R]) -> TensorView<'_, E, R, M> {
        self.view(shape, strides);
        let last = self.data.wrapping_add(self.len - 1);
        // SAFETY: the same elements; C reads a stride that wraps as a negative one.
        unsafe { TensorView::from_raw(last, shape, strides.map(usize::wrapping_neg)) }
    }
}

/// Elements to write, where an operator needs them.
pub struct Output<E, M> {
    buf: Buf<E>,
    device: Option<Block>,
    memory: PhantomData<M>,
}

impl<E: Float + Element, M: Memory> Output<E, M> {
    pub fn tensor<const R: usize>(&mut self, shape: [usize; R]) -> TensorMut<'_, E, R, M> {
        assert_eq!(shape.iter().product::<usize>(), self.buf.len());
        let data = match &self.device {
            None => self.buf.as_mut_ptr(),
            Some(block) => block.address().cast::<E>().wrapping_add(self.buf.at()),
        };
        // SAFETY: as many elements, borrowed like self.
        unsafe { TensorMut::from_raw(data, shape) }
    }

    /// The contents, if nothing was written around them.
    pub fn finish(mut self) -> Vec<E> {
        if let Some(block) = &self.device {
            block.read(0, self.buf.surroundings_mut());
        }
        self.buf.finish()
    }
}
