use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::to_string;
use crate::{Backend, DType, backend_status, sys};

/// How an attention layer gates its output.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Gating {
    /// Not at all.
    None = sys::GM_GATING_NONE,
    /// One gate per element.
    Elementwise = sys::GM_GATING_ELEMENTWISE,
    /// One gate per head.
    Headwise = sys::GM_GATING_HEADWISE,
}

/// What [`gated_mla_support`] looks at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GateFacts {
    /// The caller wants it; see [`gate_enabled`].
    pub enabled: bool,
    /// The layer has an output gate.
    pub has_gate: bool,
    /// [`backend_status`] is `Ok`.
    pub backend_usable: bool,
    /// `None`: some backend that gatemix doesn't know.
    pub backend: Option<Backend>,
    /// The CUDA compute capability, major and minor. `None`: unknown, or a CPU.
    pub capability: Option<(u8, u8)>,
    /// How the layer gates its output.
    pub gating: Gating,
    /// The element type of the gate's weight. `None`: some type that gatemix doesn't know.
    pub weight_dtype: Option<DType>,
    /// `x` is contiguous.
    pub x_contiguous: bool,
    /// The weight is contiguous.
    pub weight_contiguous: bool,
    /// `attn` is contiguous.
    pub attn_contiguous: bool,
    /// The number of rows of the weight.
    pub gate_width: usize,
}

impl GateFacts {
    /// An elementwise gate with a contiguous bf16 weight on the CPU, enabled unless `GATEMIX_ENABLE` says otherwise.
    pub fn cpu(gate_width: usize) -> Self {
        Self {
            enabled: gate_enabled(true),
            has_gate: true,
            backend_usable: backend_status(Backend::Cpu, 0).is_ok(),
            backend: Some(Backend::Cpu),
            capability: None,
            gating: Gating::Elementwise,
            weight_dtype: Some(DType::Bf16),
            x_contiguous: true,
            weight_contiguous: true,
            attn_contiguous: true,
            gate_width,
        }
    }

    fn raw(&self) -> sys::gm_gate_facts {
        sys::gm_gate_facts {
            struct_size: size_of::<sys::gm_gate_facts>(),
            enabled: self.enabled.into(),
            has_gate: self.has_gate.into(),
            backend_usable: self.backend_usable.into(),
            backend: self.backend.map_or(0, |backend| backend as i32),
            capability: self.capability.map_or(0, |(major, minor)| 10 * i32::from(major) + i32::from(minor)),
            gating_type: self.gating as i32,
            weight_dtype: self.weight_dtype.map_or(0, |dtype| dtype as i32),
            x_contiguous: self.x_contiguous.into(),
            weight_contiguous: self.weight_contiguous.into(),
            attn_contiguous: self.attn_contiguous.into(),
            gate_width: i64::try_from(self.gate_width).unwrap_or(i64::MAX),
        }
    }
}

/// Why a layer can't use [`gated_mla`](crate::gated_mla()), in the order in which it is checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum UnsupportedReason {
    /// The caller has not enabled it.
    NotEnabled = sys::GM_GATE_NOT_ENABLED,
    /// The layer has no output gate.
    NoGate = sys::GM_GATE_NO_GATE,
    /// The library was built without a usable backend.
    NotBuilt = sys::GM_GATE_NOT_BUILT,
    /// There is no such backend.
    Backend = sys::GM_GATE_BACKEND,
    /// There is no kernel for this compute capability.
    Capability = sys::GM_GATE_CAPABILITY,
    /// The gate is not elementwise.
    GatingType = sys::GM_GATE_GATING_TYPE,
    /// The gate's weight is not bf16.
    WeightDtype = sys::GM_GATE_WEIGHT_DTYPE,
    /// The gate's width is not a multiple of 256.
    Width = sys::GM_GATE_WIDTH,
    /// An operand is not contiguous.
    NotContiguous = sys::GM_GATE_NOT_CONTIGUOUS,
}

impl UnsupportedReason {
    const ALL: [Self; sys::GM_GATE_REASON_COUNT as usize - 1] = [
        Self::NotEnabled,
        Self::NoGate,
        Self::NotBuilt,
        Self::Backend,
        Self::Capability,
        Self::GatingType,
        Self::WeightDtype,
        Self::Width,
        Self::NotContiguous,
    ];
}

/// One reason with its sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unsupported {
    /// For programs.
    pub reason: UnsupportedReason,
    /// For people: it holds the offending value.
    pub message: String,
}

/// May this layer use [`gated_mla`](crate::gated_mla())? If not, the first reason.
///
/// Each reason is logged once per process, as a warning, or for debugging where the layer never asked for it
/// ([`NotEnabled`](UnsupportedReason::NotEnabled) and [`NoGate`](UnsupportedReason::NoGate)). So is the first success.
/// The checks are those of vLLM's `hpc_gated_mla_supported`.
///
/// ```
/// use gatemix::{GateFacts, UnsupportedReason, gated_mla_support};
///
/// let facts = GateFacts { enabled: true, ..GateFacts::cpu(16_384) };
/// assert!(gated_mla_support(&facts).is_ok());
///
/// let unsupported = gated_mla_support(&GateFacts { gate_width: 100, ..facts }).unwrap_err();
/// assert_eq!(unsupported.reason, UnsupportedReason::Width);
/// assert!(unsupported.message.contains("100"));
/// ```
///
/// # Errors
/// The first reason that speaks against it.
pub fn gated_mla_support(facts: &GateFacts) -> std::result::Result<(), Unsupported> {
    let mut verdict = sys::gm_gate_verdict::default();
    // SAFETY: both pointers are valid.
    let status = unsafe { sys::gm_gated_mla_support(&facts.raw(), &mut verdict) };
    debug_assert_eq!(status, sys::GM_OK);
    let result = if verdict.supported == 1 { Ok(()) } else { Err(unsupported(&verdict)) };
    if is_first(verdict.reason) {
        match &result {
            Ok(()) => log::info!("gated MLA is on, with a gate width of {}", facts.gate_width),
            Err(Unsupported { reason: UnsupportedReason::NotEnabled | UnsupportedReason::NoGate, message }) => {
                log::debug!("{message}");
            }
            Err(Unsupported { message, .. }) => log::warn!("{message}"),
        }
    }
    result
}

/// All reasons that speak against [`gated_mla`](crate::gated_mla()), in order. Logs nothing.
///
/// ```
/// use gatemix::{GateFacts, Gating, gated_mla_support_all};
///
/// let facts = GateFacts { enabled: true, gating: Gating::Headwise, ..GateFacts::cpu(100) };
/// assert_eq!(gated_mla_support_all(&facts).len(), 2);
/// ```
pub fn gated_mla_support_all(facts: &GateFacts) -> Vec<Unsupported> {
    let mut verdicts = [sys::gm_gate_verdict::default(); UnsupportedReason::ALL.len()];
    let mut count = 0;
    // SAFETY: all pointers are valid, and the capacity is right.
    let status =
        unsafe { sys::gm_gated_mla_support_all(&facts.raw(), verdicts.as_mut_ptr(), verdicts.len(), &mut count) };
    debug_assert_eq!(status, sys::GM_OK);
    verdicts[..count].iter().map(unsupported).collect()
}

/// `default`, unless the environment variable `GATEMIX_ENABLE` says `1` or `0`.
pub fn gate_enabled(default: bool) -> bool {
    // SAFETY: no preconditions.
    unsafe { sys::gm_gate_enabled(default.into()) != 0 }
}

fn unsupported(verdict: &sys::gm_gate_verdict) -> Unsupported {
    // SAFETY: C ends the message with a NUL.
    let message = unsafe { to_string(verdict.message.as_ptr()) };
    Unsupported { reason: UnsupportedReason::ALL[verdict.reason as usize - 1], message }
}

/// Is this the first verdict of its kind in this process?
fn is_first(reason: i32) -> bool {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    let bit = 1 << reason;
    SEEN.fetch_or(bit, Ordering::Relaxed) & bit == 0
}
