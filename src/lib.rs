//! The output gate of MLA attention and the mHC residual streams of LLM inference: small C kernels behind a safe API.
//!
//! | operator | | CPU | CUDA |
//! |---|---|---|---|
//! | [`gated_mla()`] | `attn * sigmoid(x @ weight^T)`, the output gate of an MLA layer | yes | yes |
//! | [`rms_norm`] | RMS normalisation, with or without a weight | yes | yes |
//! | [`hc_collapse`] | the weighted sum of the residual streams | yes | yes |
//! | [`hc_head`] | gates, then the weighted sum, before the language-model head | yes | yes |
//! | [`mhc_pre_mix`] | gates from the partial results of a split-K projection | yes | yes |
//! | [`mhc_post_collapse_rms_norm`] | new residual streams, their collapse, its norm | yes | yes |
//!
//! An operator takes an [`Exec`], which says where it runs, and [`Tensor`]s, which give slices a shape. It writes to the
//! [`TensorMut`]s that it is given; the C library allocates nothing. [`gated_mla_support`] tells in advance whether a
//! layer can use the gate.
//!
//! ```
//! use gatemix::half::bf16;
//! use gatemix::{Exec, Tensor, TensorMut, rms_norm};
//!
//! let x = [2.0, 2.0, -2.0, -2.0].map(bf16::from_f32);
//! let mut out = [bf16::ZERO; 4];
//! rms_norm(&Exec::cpu(), Tensor::new(&x, [2, 2])?, None, 0.0, &mut TensorMut::new(&mut out, [2, 2])?)?;
//! assert_eq!(out, [1.0, 1.0, -1.0, -1.0].map(bf16::from_f32));
//! # Ok::<(), gatemix::Error>(())
//! ```
//!
//! What types can say is checked at compile time: element types, memory, rank, contiguity, aliasing. The rest, above
//! all shapes that don't match, is an [`Error`] with a sentence that names the argument, its value and the rule.
//!
//! # Guarantees
//! The same inputs give the same bits, whatever the number of threads, as long as they agree on flushing subnormals. In
//! all operators but the gate, a token's result does not depend on the other tokens; in the gate its last bits may, unless
//! the `Exec` is [`batch_invariant`](Exec::batch_invariant). No tokens is a success that computes nothing.
//!
//! # On CUDA
//! With feature `cudarc`, `Exec::cudarc` and `Tensor::from_cudarc` take the streams and slices of the crate cudarc,
//! whose events order the operators with all other work. Without it, [`Exec::cuda`] takes a stream and
//! [`Tensor::from_raw`] an address, and their caller vouches for both; [`Cuda`] says for what.
//!
//! An operator queues one kernel on the stream and returns. It allocates nothing, waits for nothing and leaves the
//! thread's current device as it was, so that it can be captured into a graph, also as the first call of a process. The
//! graph keeps the scalars of the call and reads the tensors again at each replay.
//!
//! [`Error::Cuda`] says that CUDA refused the launch, [`Error::CudaPending`] that an earlier call of someone else's had
//! left an error, and nothing was launched. An error while a kernel runs shows later, where the stream is waited for.
//!
//! [`Exec::pdl`] lets a kernel start before the preceding one ends.
//!
//! # Features
//! - `rayon` (default): the CPU kernels run on rayon's threads.
//! - `cuda`: builds the CUDA kernels, which needs nvcc 12.9 or later. The result starts on machines without a GPU.
//! - `cudarc`: `cuda` for the slices and streams of cudarc. How cudarc finds CUDA, and which version, is for your crate
//!   to say with cudarc's features; unless it does, cudarc loads it when it is first used. Needs Rust 1.88, as cudarc
//!   does.
//! - `bindgen`: regenerates [`sys`] at build time, which needs libclang.
//!
//! # Environment
//! - `GATEMIX_ENABLE`: `1` or `0` overrules the caller of [`gate_enabled`].
//! - `GATEMIX_CPU_ISA`: `portable`, `avx2` or `avx512` caps the instruction set of the CPU kernels; read once. Any other
//!   value is ignored.
//! - `GATEMIX_CUDA_ARCHS`: at build time, the GPU architectures to compile for, such as `90a;100f`.

#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks)]

#[cfg(feature = "cudarc")]
mod cudarc_memory;
mod error;
mod exec;
mod gated_mla;
mod memory;
mod mhc;
mod norm;
mod support;
mod tensor;
mod width;

/// The C interface as it is in `gatemix.h`, whose version it follows.
#[allow(missing_docs, non_camel_case_types, rustdoc::broken_intra_doc_links)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod sys {
    #[cfg(feature = "bindgen")]
    include!(concat!(env!("OUT_DIR"), "/sys.rs"));
    #[cfg(not(feature = "bindgen"))]
    include!("sys.rs");
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "cudarc")]
pub use cudarc;
pub use half;

#[cfg(feature = "cudarc")]
pub use cudarc_memory::{Cudarc, CudarcSlice, CudarcSliceMut};
pub use error::{Error, Result};
pub use exec::{Backend, Exec, backend_status};
pub use gated_mla::{GateWeight, gated_mla, gated_mla_in_place};
pub use memory::{Cuda, Host, Memory};
pub use mhc::{
    HcHead, HeadMode, MhcPostCollapseRmsNorm, MhcPreMix, hc_collapse, hc_head, mhc_post_collapse_rms_norm,
    mhc_post_collapse_rms_norm_in_place, mhc_pre_mix,
};
pub use norm::{rms_norm, rms_norm_in_place};
pub use support::{
    GateFacts, Gating, Unsupported, UnsupportedReason, gate_enabled, gated_mla_support, gated_mla_support_all,
};
pub use tensor::{DType, Element, Tensor, TensorMut, TensorView};
pub use width::{GateWidth, StaticGateWidth};

/// The version of the C library.
pub fn version() -> &'static str {
    // SAFETY: a static string.
    unsafe { error::constant(sys::gm_version()) }
}

/// The version of the C interface: it grows with every incompatible change.
pub fn abi_version() -> u32 {
    // SAFETY: no preconditions.
    unsafe { sys::gm_abi_version() }
}

/// One line on this build and machine: version, compiler, instruction sets compiled in and the one in use, CUDA.
pub fn build_info() -> String {
    // SAFETY: the string stays until the next call on this thread.
    unsafe { error::to_string(sys::gm_build_info()) }
}

/// The kernel of the last operator that succeeded on this thread, such as `gated_mla/cpu/avx512/gemv`.
///
/// `"none"` if that operator had nothing to compute, `""` if there was none.
pub fn last_kernel() -> &'static str {
    // SAFETY: a static string.
    unsafe { error::constant(sys::gm_last_kernel()) }
}
