use std::ffi::{CStr, c_char};

use crate::sys;

/// The result of a call into gatemix.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused.
///
/// Every variant holds a sentence with the argument, its value and the rule that it breaks. A refused call leaves
/// its outputs untouched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A required pointer is null. Only tensors made with `from_raw` can cause this.
    #[error("{0}")]
    NullPointer(String),
    /// A scalar is out of range, or a cudarc slice or stream belongs to another context than it must.
    #[error("{0}")]
    InvalidValue(String),
    /// A tensor has an element type that the operator does not take.
    #[error("{0}")]
    Dtype(String),
    /// A tensor has the wrong number of dimensions.
    #[error("{0}")]
    Rank(String),
    /// A dimension is too large, or does not match the slice or the other arguments.
    #[error("{0}")]
    Shape(String),
    /// A tensor is not laid out as the operator needs it.
    #[error("{0}")]
    Stride(String),
    /// A pointer is not a multiple of its element size. Only tensors made with `from_raw` can cause this.
    #[error("{0}")]
    Alignment(String),
    /// An output shares memory with another argument. Only tensors made with `from_raw` can cause this.
    #[error("{0}")]
    Overlap(String),
    /// The backend is not in this build, or has no usable device.
    #[error("{0}")]
    Backend(String),
    /// CUDA refused the launch.
    #[error("{0}")]
    Cuda(String),
    /// An earlier call of someone else's left a CUDA error, which is still pending, or cudarc has kept one. Nothing was
    /// launched.
    #[error("{0}")]
    CudaPending(String),
    /// A status that this version of the crate has no variant for.
    #[error("{message}")]
    Unknown {
        /// The status of the C call.
        status: i32,
        /// The sentence of the C call.
        message: String,
    },
}

impl Error {
    /// The `GM_ERROR_*` code of the C interface.
    pub fn status(&self) -> i32 {
        match self {
            Self::NullPointer(_) => sys::GM_ERROR_NULL_POINTER,
            Self::InvalidValue(_) => sys::GM_ERROR_INVALID_VALUE,
            Self::Dtype(_) => sys::GM_ERROR_DTYPE,
            Self::Rank(_) => sys::GM_ERROR_RANK,
            Self::Shape(_) => sys::GM_ERROR_SHAPE,
            Self::Stride(_) => sys::GM_ERROR_STRIDE,
            Self::Alignment(_) => sys::GM_ERROR_ALIGNMENT,
            Self::Overlap(_) => sys::GM_ERROR_OVERLAP,
            Self::Backend(_) => sys::GM_ERROR_BACKEND,
            Self::Cuda(_) => sys::GM_ERROR_CUDA,
            Self::CudaPending(_) => sys::GM_ERROR_CUDA_PENDING,
            Self::Unknown { status, .. } => *status,
        }
    }
}

/// Must follow the call on the same thread, which is where C keeps the sentence.
pub(crate) fn check(status: sys::gm_status) -> Result<()> {
    if status == sys::GM_OK {
        return Ok(());
    }
    // SAFETY: gm_last_error has no preconditions; its string stays until the next failing call on this thread.
    let message = unsafe { to_string(sys::gm_last_error()) };
    Err(match status {
        sys::GM_ERROR_NULL_POINTER => Error::NullPointer(message),
        sys::GM_ERROR_INVALID_VALUE => Error::InvalidValue(message),
        sys::GM_ERROR_DTYPE => Error::Dtype(message),
        sys::GM_ERROR_RANK => Error::Rank(message),
        sys::GM_ERROR_SHAPE => Error::Shape(message),
        sys::GM_ERROR_STRIDE => Error::Stride(message),
        sys::GM_ERROR_ALIGNMENT => Error::Alignment(message),
        sys::GM_ERROR_OVERLAP => Error::Overlap(message),
        sys::GM_ERROR_BACKEND => Error::Backend(message),
        sys::GM_ERROR_CUDA => Error::Cuda(message),
        sys::GM_ERROR_CUDA_PENDING => Error::CudaPending(message),
        status => Error::Unknown { status, message },
    })
}

/// A sentence with numbers in it is printed by C, so that a locale may put bytes beyond ASCII in.
///
/// # Safety
/// A NUL-terminated string that is neither freed nor changed during the call.
pub(crate) unsafe fn to_string(text: *const c_char) -> String {
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// A NUL-terminated constant.
pub(crate) unsafe fn constant(text: *const c_char) -> &'static str {
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_str().expect("constants are ASCII")
}
