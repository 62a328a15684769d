use std::fmt::Debug;
use std::marker::PhantomData;

use half::{bf16, f16};

use crate::memory::Operand;
use crate::{Error, Exec, Host, Memory, Result, sys};

mod sealed {
    pub trait Sealed {}
}

/// Element types by value.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DType {
    /// bfloat16
    Bf16 = sys::GM_BF16,
    /// IEEE half precision
    F16 = sys::GM_F16,
    /// IEEE single precision
    F32 = sys::GM_F32,
}

/// An element type: [`bf16`], [`f16`](struct@f16) or [`f32`].
pub trait Element: sealed::Sealed + Copy + Debug + Send + Sync + 'static {
    /// The type as a value.
    const DTYPE: DType;
}

impl sealed::Sealed for bf16 {}
impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
}

impl sealed::Sealed for f16 {}
impl Element for f16 {
    const DTYPE: DType = DType::F16;
}

impl sealed::Sealed for f32 {}
impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

/// A contiguous, row-major tensor to read: `R` dimensions (at most 4) of `E` in `M`.
///
/// ```
/// use gatemix::Tensor;
///
/// let matrix = Tensor::new(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// assert_eq!(matrix.shape(), [2, 3]);
/// # Ok::<(), gatemix::Error>(())
/// ```
#[derive(Copy, Clone, Debug)]
pub struct Tensor<'a, E: Element, const R: usize, M: Memory = Host> {
    data: M::Source<E>,
    shape: [usize; R],
    borrow: PhantomData<(&'a [E], M)>,
}

// SAFETY: a Tensor is a `&'a [E]` that may point into a device, or a reference to a type that describes one.
unsafe impl<E: Element, const R: usize, M: Memory> Send for Tensor<'_, E, R, M> {}
// SAFETY: as for Send.
unsafe impl<E: Element, const R: usize, M: Memory> Sync for Tensor<'_, E, R, M> {}

impl<'a, E: Element, const R: usize> Tensor<'a, E, R, Host> {
    /// Gives a slice a shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the product of `shape` is not the length of `data`.
    pub fn new(data: &'a [E], shape: [usize; R]) -> Result<Self> {
        check_len(data.len(), &shape)?;
        Ok(Self::from_source(data.as_ptr(), shape))
    }
}

impl<'a, E: Element, const R: usize, M: Memory> Tensor<'a, E, R, M> {
    /// A tensor from its address.
    ///
    /// # Safety
    /// `data` points to as many initialised `E` in `M` as the product of `shape`, at most `isize::MAX` bytes. Nobody
    /// writes to them during `'a`. For [`Cuda`](crate::Cuda), see there.
    pub unsafe fn from_raw(data: *const E, shape: [usize; R]) -> Self {
        Self::from_source(M::source(data), shape)
    }

    pub(crate) fn from_source(data: M::Source<E>, shape: [usize; R]) -> Self {
        Self { data, shape, borrow: PhantomData }
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> [usize; R] {
        self.shape
    }

    pub(crate) fn lend<'g>(&'g self, exec: &'g Exec<M>) -> Result<Operand<'g, M>> {
        // SAFETY: 'a, which is longer than 'g, borrows it.
        let (data, guard) = unsafe { M::read(self.data, exec.stream())? };
        Ok(Operand { tensor: descriptor(data, self.shape, row_major(self.shape)), _guard: guard })
    }
}

/// A contiguous, row-major tensor to write: `R` dimensions (at most 4) of `E` in `M`.
///
/// ```
/// use gatemix::TensorMut;
///
/// let mut buffer = vec![0.0_f32; 6];
/// assert_eq!(TensorMut::new(&mut buffer, [2, 3])?.shape(), [2, 3]);
/// # Ok::<(), gatemix::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorMut<'a, E: Element, const R: usize, M: Memory = Host> {
    data: M::Target<E>,
    shape: [usize; R],
    borrow: PhantomData<(&'a mut [E], M)>,
}

// SAFETY: a TensorMut is a `&'a mut [E]` that may point into a device, or a reference to a type that describes one.
unsafe impl<E: Element, const R: usize, M: Memory> Send for TensorMut<'_, E, R, M> {}
// SAFETY: as for Send.
unsafe impl<E: Element, const R: usize, M: Memory> Sync for TensorMut<'_, E, R, M> {}

impl<'a, E: Element, const R: usize> TensorMut<'a, E, R, Host> {
    /// Gives a slice a shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the product of `shape` is not the length of `data`.
    pub fn new(data: &'a mut [E], shape: [usize; R]) -> Result<Self> {
        check_len(data.len(), &shape)?;
        Ok(Self::from_target(data.as_mut_ptr(), shape))
    }
}

impl<'a, E: Element, const R: usize, M: Memory> TensorMut<'a, E, R, M> {
    /// A tensor from its address.
    ///
    /// # Safety
    /// `data` points to as many initialised `E` in `M` as the product of `shape`, at most `isize::MAX` bytes. Nobody
    /// else uses them during `'a`. For [`Cuda`](crate::Cuda), see there.
    pub unsafe fn from_raw(data: *mut E, shape: [usize; R]) -> Self {
        Self::from_target(M::target(data), shape)
    }

    pub(crate) fn from_target(data: M::Target<E>, shape: [usize; R]) -> Self {
        Self { data, shape, borrow: PhantomData }
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> [usize; R] {
        self.shape
    }

    pub(crate) fn lend<'g>(&'g mut self, exec: &'g Exec<M>) -> Result<Operand<'g, M>> {
        // SAFETY: 'a, which is longer than 'g, borrows it mutably.
        let (data, guard) = unsafe { M::write(self.data, exec.stream())? };
        Ok(Operand { tensor: descriptor(data, self.shape, row_major(self.shape)), _guard: guard })
    }
}

/// A tensor to read whose elements may lie apart.
///
/// ```
/// use gatemix::TensorView;
///
/// // The first two columns of a [2, 3] matrix.
/// let matrix = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let columns = TensorView::new(&matrix, [2, 2], [3, 1])?;
/// assert_eq!(columns.shape(), [2, 2]);
/// # Ok::<(), gatemix::Error>(())
/// ```
#[derive(Copy, Clone, Debug)]
pub struct TensorView<'a, E: Element, const R: usize, M: Memory = Host> {
    data: M::Source<E>,
    shape: [usize; R],
    strides: [usize; R],
    borrow: PhantomData<(&'a [E], M)>,
}

// SAFETY: as for Tensor.
unsafe impl<E: Element, const R: usize, M: Memory> Send for TensorView<'_, E, R, M> {}
// SAFETY: as for Tensor.
unsafe impl<E: Element, const R: usize, M: Memory> Sync for TensorView<'_, E, R, M> {}

impl<'a, E: Element, const R: usize> TensorView<'a, E, R, Host> {
    /// A view whose element `[i, j, ...]` is `data[i * strides[0] + j * strides[1] + ...]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if an element lies outside `data`.
    pub fn new(data: &'a [E], shape: [usize; R], strides: [usize; R]) -> Result<Self> {
        check_span(data.len(), &shape, &strides)?;
        Ok(Self::from_source(data.as_ptr(), shape, strides))
    }
}

impl<'a, E: Element, const R: usize, M: Memory> TensorView<'a, E, R, M> {
    /// A view from the address of its first element, with strides in elements.
    ///
    /// # Safety
    /// Every element of the view is an initialised `E` in `M`, and all lie within one allocation. Nobody writes to
    /// them during `'a`. For [`Cuda`](crate::Cuda), see there.
    pub unsafe fn from_raw(data: *const E, shape: [usize; R], strides: [usize; R]) -> Self {
        Self::from_source(M::source(data), shape, strides)
    }

    pub(crate) fn from_source(data: M::Source<E>, shape: [usize; R], strides: [usize; R]) -> Self {
        Self { data, shape, strides, borrow: PhantomData }
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> [usize; R] {
        self.shape
    }

    pub(crate) fn lend<'g>(&'g self, exec: &'g Exec<M>) -> Result<Operand<'g, M>> {
        // SAFETY: 'a, which is longer than 'g, borrows it.
        let (data, guard) = unsafe { M::read(self.data, exec.stream())? };
        Ok(Operand { tensor: descriptor(data, self.shape, self.strides), _guard: guard })
    }
}

impl<'a, E: Element, const R: usize, M: Memory> From<Tensor<'a, E, R, M>> for TensorView<'a, E, R, M> {
    fn from(tensor: Tensor<'a, E, R, M>) -> Self {
        Self { data: tensor.data, shape: tensor.shape, strides: row_major(tensor.shape), borrow: PhantomData }
    }
}

pub(crate) fn check_len(len: usize, shape: &[usize]) -> Result<()> {
    let count = shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim));
    if count != Some(len) {
        return Err(Error::Shape(format!("shape = {shape:?} does not fit a slice of {len} elements")));
    }
    Ok(())
}

pub(crate) fn check_span(len: usize, shape: &[usize], strides: &[usize]) -> Result<()> {
    if span(shape, strides).is_none_or(|span| span > len) {
        return Err(Error::Shape(format!(
            "shape = {shape:?} with strides = {strides:?} reaches outside of a slice of {len} elements"
        )));
    }
    Ok(())
}

/// How many elements a view reaches over; None if more than memory can hold.
fn span(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let mut axes = shape.iter().zip(strides);
    axes.try_fold(1_usize, |span, (&dim, &stride)| span.checked_add((dim - 1).checked_mul(stride)?))
}

/// The strides of an empty tensor may wrap: nobody uses them.
fn row_major<const R: usize>(shape: [usize; R]) -> [usize; R] {
    let mut strides = [1_usize; R];
    for axis in (1..R).rev() {
        strides[axis - 1] = strides[axis].wrapping_mul(shape[axis]);
    }
    strides
}

/// A dimension beyond i64 turns negative, and C refuses it. A stride beyond i64 belongs to a dimension of size 1 or to
/// an empty tensor, and C ignores it.
fn descriptor<E: Element, const R: usize>(data: *const E, shape: [usize; R], strides: [usize; R]) -> sys::gm_tensor {
    const { assert!(R <= 4, "a tensor has at most 4 dimensions") };
    let mut tensor = sys::gm_tensor {
        data: data.cast_mut().cast(),
        dtype: E::DTYPE as i32,
        rank: R as i32,
        shape: [0; 4],
        stride: [0; 4],
    };
    for axis in 0..R {
        tensor.shape[axis] = shape[axis] as i64;
        tensor.stride[axis] = strides[axis] as i64;
    }
    tensor
}
