use std::mem;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop};

use crate::memory::{RawStream, sealed::Access};
use crate::tensor::{check_len, check_span};
use crate::{Backend, Element, Error, Exec, Memory, Result, Tensor, TensorMut, TensorView, backend_status};

/// Memory of a CUDA device in slices of the crate [`cudarc`].
///
/// An operator borrows the slices of its tensors as cudarc's own functions do: its stream waits for their last use on
/// other streams, and later uses wait for the operator. So no call needs `unsafe`, a stream or an event of yours.
///
/// ```no_run
/// use gatemix::cudarc::driver::CudaContext;
/// use gatemix::half::bf16;
/// use gatemix::{Exec, Tensor, TensorMut, rms_norm};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let x = stream.clone_htod(&[bf16::ONE; 2 * 4096])?;
/// let mut out = stream.alloc_zeros::<bf16>(2 * 4096)?;
///
/// let exec = Exec::cudarc(&stream)?;
/// let shape = [2, 4096];
/// rms_norm(&exec, Tensor::from_cudarc(&x, shape)?, None, 1e-6, &mut TensorMut::from_cudarc(&mut out, shape)?)?;
/// let host: Vec<bf16> = stream.clone_dtoh(&out)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `from_raw` makes tensors of this memory too, of addresses that cudarc doesn't know. Their promises are those of
/// [`Cuda`](crate::Cuda).
///
/// cudarc decides what is tracked: nothing as long as a context has no stream but the default ones, nor after
/// [`disable_event_tracking`](cudarc::driver::CudaContext::disable_event_tracking). Capture a graph in one of these
/// ways, since a captured stream cannot wait for an event from before.
#[derive(Copy, Clone, Debug)]
pub enum Cudarc {}

impl Memory for Cudarc {
    const BACKEND: Backend = Backend::Cuda;
}

/// What a tensor refers to, without the lifetime, which is the tensor's.
#[derive(Copy, Clone, Debug)]
pub enum Place<Address, Slice> {
    Address(Address),
    Slice(Slice),
}

impl Access for Cudarc {
    type Stream = Arc<CudaStream>;
    type Source<E: Element> = Place<*const E, *const dyn DevicePtr<E>>;
    type Target<E: Element> = Place<*mut E, *mut dyn DevicePtrMut<E>>;
    type Guard<'g> = SyncOnDrop<'g>;

    fn source<E: Element>(address: *const E) -> Self::Source<E> {
        Place::Address(address)
    }

    fn target<E: Element>(address: *mut E) -> Self::Target<E> {
        Place::Address(address)
    }

    fn ready(stream: &Arc<CudaStream>) -> Result<RawStream> {
        let context = stream.context();
        // Here cudarc also leaves word if the stream could not wait for a slice.
        context
            .check_err()
            .map_err(|error| Error::CudaPending(format!("cudarc has kept an earlier error: {error}")))?;
        // C makes the device current, and leaves it to the thread which of the device's contexts that is.
        context.bind_to_thread().map_err(|error| Error::Cuda(error.to_string()))?;
        Ok(RawStream { device: device(context)?, stream: stream.cu_stream().cast() })
    }

    unsafe fn read<'g, E: Element>(
        source: Self::Source<E>,
        stream: &'g Arc<CudaStream>,
    ) -> Result<(*const E, SyncOnDrop<'g>)> {
        let slice = match source {
            Place::Address(address) => return Ok((address, SyncOnDrop::Record(None))),
            // SAFETY: valid during 'g.
            Place::Slice(slice) => unsafe { &*slice },
        };
        check_context(slice.stream(), stream)?;
        let (address, guard) = slice.device_ptr(stream);
        Ok((address as *const E, guard))
    }

    unsafe fn write<'g, E: Element>(
        target: Self::Target<E>,
        stream: &'g Arc<CudaStream>,
    ) -> Result<(*mut E, SyncOnDrop<'g>)> {
        let slice = match target {
            Place::Address(address) => return Ok((address, SyncOnDrop::Record(None))),
            // SAFETY: valid during 'g, and used by nobody else.
            Place::Slice(slice) => unsafe { &mut *slice },
        };
        check_context(slice.stream(), stream)?;
        let (address, guard) = slice.device_ptr_mut(stream);
        Ok((address as *mut E, guard))
    }
}

/// cudarc orders the uses of a slice within one `CudaContext`, not between several of the same device.
fn check_context(slice: &CudaStream, stream: &CudaStream) -> Result<()> {
    if Arc::ptr_eq(slice.context(), stream.context()) {
        return Ok(());
    }
    Err(Error::InvalidValue(format!(
        "a tensor's slice belongs to a CudaContext of device {}, which must be that of the stream, of device {}",
        slice.context().ordinal(),
        stream.context().ordinal()
    )))
}

fn device(context: &CudaContext) -> Result<i32> {
    let ordinal = context.ordinal();
    i32::try_from(ordinal).map_err(|_| Error::InvalidValue(format!("device = {ordinal} is too large")))
}

impl Exec<Cudarc> {
    /// On a stream of the crate [`cudarc`].
    ///
    /// Operators return when their work is queued on the stream.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device cannot be used, [`Error::InvalidValue`] if the stream's context is not the
    /// primary one of its device.
    pub fn cudarc(stream: &Arc<CudaStream>) -> Result<Self> {
        let context = stream.context();
        if !context.is_primary() {
            return Err(Error::InvalidValue("the stream's CudaContext must be the primary one of its device".into()));
        }
        backend_status(Backend::Cuda, device(context)?)?;
        Ok(Self::on(Arc::clone(stream)))
    }
}

/// What a tensor to read may borrow: a [`CudaSlice`], [`CudaView`] or [`CudaViewMut`].
pub trait CudarcSlice<E>: DevicePtr<E> + Sealed {}

/// What a tensor to write may borrow: a [`CudaSlice`] or [`CudaViewMut`].
pub trait CudarcSliceMut<E>: CudarcSlice<E> + DevicePtrMut<E> {}

/// Types that tell the truth about their address and length, which cudarc lets any type claim, and can be shared
/// between threads.
pub trait Sealed: Send + Sync {}

impl<E: Element> Sealed for CudaSlice<E> {}
impl<E: Element> Sealed for CudaView<'_, E> {}
impl<E: Element> Sealed for CudaViewMut<'_, E> {}

impl<E: Element> CudarcSlice<E> for CudaSlice<E> {}
impl<E: Element> CudarcSlice<E> for CudaView<'_, E> {}
impl<E: Element> CudarcSlice<E> for CudaViewMut<'_, E> {}

impl<E: Element> CudarcSliceMut<E> for CudaSlice<E> {}
impl<E: Element> CudarcSliceMut<E> for CudaViewMut<'_, E> {}

fn source<'a, E: Element>(slice: &'a (impl CudarcSlice<E> + 'a)) -> <Cudarc as Access>::Source<E> {
    let slice: *const (dyn DevicePtr<E> + 'a) = slice;
    // SAFETY: the types differ by the lifetime only.
    Place::Slice(unsafe { mem::transmute::<*const (dyn DevicePtr<E> + 'a), *const dyn DevicePtr<E>>(slice) })
}

fn target<'a, E: Element>(slice: &'a mut (impl CudarcSliceMut<E> + 'a)) -> <Cudarc as Access>::Target<E> {
    let slice: *mut (dyn DevicePtrMut<E> + 'a) = slice;
    // SAFETY: the types differ by the lifetime only.
    Place::Slice(unsafe { mem::transmute::<*mut (dyn DevicePtrMut<E> + 'a), *mut dyn DevicePtrMut<E>>(slice) })
}

impl<'a, E: Element, const R: usize> Tensor<'a, E, R, Cudarc> {
    /// Gives a slice on a device a shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the product of `shape` is not the length of `slice`.
    pub fn from_cudarc(slice: &'a impl CudarcSlice<E>, shape: [usize; R]) -> Result<Self> {
        check_len(slice.len(), &shape)?;
        Ok(Self::from_source(source(slice), shape))
    }
}

impl<'a, E: Element, const R: usize> TensorMut<'a, E, R, Cudarc> {
    /// Gives a slice on a device a shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the product of `shape` is not the length of `slice`.
    pub fn from_cudarc(slice: &'a mut impl CudarcSliceMut<E>, shape: [usize; R]) -> Result<Self> {
        check_len(slice.len(), &shape)?;
        Ok(Self::from_target(target(slice), shape))
    }
}

impl<'a, E: Element, const R: usize> TensorView<'a, E, R, Cudarc> {
    /// A view of a slice on a device; see [`TensorView::new`].
    ///
    /// # Errors
    /// [`Error::Shape`] if an element lies outside `slice`.
    pub fn from_cudarc(slice: &'a impl CudarcSlice<E>, shape: [usize; R], strides: [usize; R]) -> Result<Self> {
        check_span(slice.len(), &shape, &strides)?;
        Ok(Self::from_source(source(slice), shape, strides))
    }
}
