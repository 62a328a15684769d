//! The support check of `gated_mla`: reasons in their order, sentences with the offending value.
mod common;

use std::ffi::{CStr, CString, c_char};

use common::rerun;
use gatemix::{
    Backend, DType, GateFacts, Gating, UnsupportedReason as Reason, gate_enabled, gated_mla_support,
    gated_mla_support_all,
};

fn good() -> GateFacts {
    GateFacts {
        enabled: true,
        has_gate: true,
        backend_usable: true,
        backend: Some(Backend::Cpu),
        capability: None,
        gating: Gating::Elementwise,
        weight_dtype: Some(DType::Bf16),
        x_contiguous: true,
        weight_contiguous: true,
        attn_contiguous: true,
        gate_width: 16384,
    }
}

/// A way to spoil good facts, the reason that it gives, and what the sentence must hold.
type Spoiler = (fn(&mut GateFacts), Reason, &'static [&'static str]);

/// Another one than the backend may be.
fn old_gpu(facts: &mut GateFacts) {
    (facts.backend, facts.capability) = (facts.backend.and(Some(Backend::Cuda)), Some((7, 5)));
}

/// In the order in which the reasons are checked. No platform has no capability list, so Backend stands without
/// Capability.
const SPOILERS: [Spoiler; 9] = [
    (|f| f.enabled = false, Reason::NotEnabled, &["enabled", "0"]),
    (|f| f.has_gate = false, Reason::NoGate, &["has_gate", "0"]),
    (|f| f.backend_usable = false, Reason::NotBuilt, &["backend"]),
    (|f| f.backend = None, Reason::Backend, &["backend = 0"]),
    (old_gpu, Reason::Capability, &["compute capability 75", "has kernels for: "]),
    (|f| f.gating = Gating::Headwise, Reason::GatingType, &["headwise", "elementwise"]),
    (|f| f.weight_dtype = Some(DType::F16), Reason::WeightDtype, &["f16", "bf16"]),
    (|f| f.gate_width = 16383, Reason::Width, &["16383", "multiple of 256"]),
    (|f| f.attn_contiguous = false, Reason::NotContiguous, &["attn", "contiguous"]),
];

#[test]
fn good_facts_are_supported() {
    assert_eq!(gated_mla_support(&good()).map_err(|e| e.message), Ok(()));
    assert!(gated_mla_support_all(&good()).is_empty());
}

#[test]
fn each_reason_alone() {
    for (spoil, reason, parts) in SPOILERS {
        let mut facts = good();
        spoil(&mut facts);
        let verdict = gated_mla_support(&facts).unwrap_err();
        assert_eq!(verdict.reason, reason);
        assert_eq!(verdict.to_string(), verdict.message);
        parts.iter().for_each(|part| assert!(verdict.message.contains(part), "{:?} lacks {part}", verdict.message));
        let all = gated_mla_support_all(&facts);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!((all[0].reason, &all[0].message), (reason, &verdict.message));
    }
}

#[test]
fn the_first_of_several_reasons_is_given() {
    for first in 0..SPOILERS.len() {
        let mut facts = good();
        SPOILERS[first..].iter().for_each(|(spoil, ..)| spoil(&mut facts));
        assert_eq!(gated_mla_support(&facts).unwrap_err().reason, SPOILERS[first].1);
        let all: Vec<Reason> = gated_mla_support_all(&facts).iter().map(|u| u.reason).collect();
        // Without a platform no capability is asked for.
        let masked = |reason: &Reason| first <= 3 && *reason == Reason::Capability;
        let want: Vec<Reason> = SPOILERS[first..].iter().map(|s| s.1).filter(|r| !masked(r)).collect();
        assert_eq!(all, want);
    }
}

// Inside the library, for lists that this build doesn't have.
unsafe extern "C" {
    fn gm_capability_served(code: *const c_char, capability: i32) -> bool;
    fn gm_capability_list(code: *const c_char, text: *mut c_char, size: usize);
}

fn list(code: &CStr) -> String {
    let mut text = [0; 80];
    // SAFETY: a string, and memory of this size.
    unsafe {
        gm_capability_list(code.as_ptr(), text.as_mut_ptr(), text.len());
        CStr::from_ptr(text.as_ptr()).to_str().unwrap().into()
    }
}

#[test]
fn the_capabilities_of_a_narrowed_build() {
    for (code, want) in [
        (c"", "none"),
        (c"sm_90a", "90"),
        (c"sm_80", "80, 86, 87, 88, 89"),
        (c"sm_87", "87, 88, 89"),
        (c"sm_86:sm_90a", "86, 87, 88, 89, 90"),
        (c"sm_90a:sm_80", "80, 86, 87, 88, 89, 90"),
        (c"sm_100f", "100, 103"),
        (c"sm_100a:sm_103a", "100, 103"),
        (c"sm_103f:sm_120a", "103, 120"),
        (c"sm_100:sm_121", "100, 103, 121"),
        (c"sm_110:sm_120", "110, 120, 121"),
        (c"compute_100", "100, 103, 110, 120, 121 and later"),
        (c"sm_80:compute_120", "80, 86, 87, 88, 89, 120, 121 and later"),
        (
            c"sm_80:sm_86:sm_89:sm_90a:sm_100f:sm_120:compute_80",
            "80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121 and later",
        ),
    ] {
        assert_eq!(list(code), want, "{code:?}");
        let (listed, later) = (want.trim_end_matches(" and later"), want.ends_with("later"));
        for capability in [-90, 0, 9, 70, 75, 80, 86, 87, 89, 90, 100, 103, 120, 121, 130, 1000] {
            let served = listed.split(", ").any(|listed| listed == capability.to_string());
            // SAFETY: a string.
            let got = unsafe { gm_capability_served(code.as_ptr(), capability) };
            assert_eq!(got, served || later && capability > 121, "{code:?} {capability}");
        }
    }
}

/// The code of this build, as its build info names it.
fn code() -> Vec<String> {
    let info = gatemix::build_info();
    info.split("code ").nth(1).map_or(vec![], |code| code.split(':').map(String::from).collect())
}

/// Code of one kind on a device of one capability.
fn runs(code: &str, capability: i32) -> bool {
    let (kind, number) = code.split_once('_').unwrap();
    let own: i32 = number.trim_end_matches(['a', 'f']).parse().unwrap();
    match kind {
        "compute" => capability >= own,
        _ if number.ends_with('a') => capability == own,
        _ => (own..=own / 10 * 10 + 9).contains(&capability),
    }
}

#[test]
fn the_capabilities_of_this_build() {
    let code = code();
    assert_eq!(code.is_empty(), gatemix::build_info().contains("cuda: absent"));
    let on = |capability| GateFacts { backend: Some(Backend::Cuda), capability, ..good() };
    for (major, minor) in (0..16).flat_map(|major| (0..10).map(move |minor| (major, minor))) {
        let served = code.iter().any(|code| runs(code, i32::from(10 * major + minor)));
        assert_eq!(gated_mla_support(&on(Some((major, minor)))).is_ok(), served, "{major}.{minor} with {code:?}");
    }
    assert_eq!(gated_mla_support(&on(None)).unwrap_err().reason, Reason::Capability);
    let sentence = gated_mla_support(&on(Some((7, 5)))).unwrap_err().message;
    let listed = list(&CString::new(code.join(":")).unwrap());
    assert!(sentence.ends_with(&format!("has kernels for: {listed}")), "{sentence:?} with {code:?}");
    for capability in [None, Some((7, 5)), Some((9, 0))] {
        assert!(gated_mla_support(&GateFacts { capability, ..good() }).is_ok(), "the CPU has none");
    }
}

/// All of them, or those that the build was narrowed to.
#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "this build has no CUDA backend")]
fn the_capabilities_that_a_build_must_have() {
    if let Some(archs) = option_env!("GATEMIX_CUDA_ARCHS").filter(|archs| !archs.is_empty()) {
        let asked = archs.split([';', ',', ' ']).filter(|arch| !arch.is_empty());
        let want: Vec<String> = asked.map(|arch| format!("sm_{}", if arch == "90" { "90a" } else { arch })).collect();
        return assert_eq!(code(), want, "GATEMIX_CUDA_ARCHS={archs}");
    }
    for capability in [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)] {
        let facts = GateFacts { backend: Some(Backend::Cuda), capability: Some(capability), ..good() };
        assert_eq!(gated_mla_support(&facts), Ok(()), "{capability:?}");
    }
}

#[test]
fn widths() {
    for width in [0, 256, 512, 8192, 16384, 1 << 40] {
        assert!(gated_mla_support(&GateFacts { gate_width: width, ..good() }).is_ok(), "{width}");
    }
    for width in [1, 64, 128, 255, 257, 384, 16384 + 128] {
        let verdict = gated_mla_support(&GateFacts { gate_width: width, ..good() }).unwrap_err();
        assert_eq!(verdict.reason, Reason::Width);
        assert!(verdict.message.contains(&width.to_string()), "{}", verdict.message);
    }
}

#[test]
fn types_and_operands() {
    for dtype in [None, Some(DType::F32), Some(DType::F16)] {
        let verdict = gated_mla_support(&GateFacts { weight_dtype: dtype, ..good() }).unwrap_err();
        assert_eq!(verdict.reason, Reason::WeightDtype);
    }
    let verdict = gated_mla_support(&GateFacts { gating: Gating::None, ..good() }).unwrap_err();
    assert_eq!(verdict.reason, Reason::GatingType);
    assert!(verdict.message.contains("none"), "{}", verdict.message);
    let strided = [
        ("x", GateFacts { x_contiguous: false, ..good() }),
        ("weight", GateFacts { weight_contiguous: false, ..good() }),
        ("attn", GateFacts { attn_contiguous: false, ..good() }),
    ];
    for (name, facts) in strided {
        let verdict = gated_mla_support(&facts).unwrap_err();
        assert_eq!(verdict.reason, Reason::NotContiguous);
        assert!(verdict.message.contains(&format!("{name} is not contiguous")), "{}", verdict.message);
    }
    let two = GateFacts { weight_contiguous: false, attn_contiguous: false, ..good() };
    let verdict = gated_mla_support(&two).unwrap_err();
    assert!(verdict.message.contains("weight and attn are not contiguous"), "{}", verdict.message);
}

/// Holds with any GATEMIX_ENABLE; the next test runs it with several.
#[test]
fn the_environment_or_the_callers_default() {
    let value = std::env::var("GATEMIX_ENABLE").ok();
    for default in [true, false] {
        let want = match value.as_deref() {
            Some("1") => true,
            Some("0") => false,
            _ => default,
        };
        assert_eq!(gate_enabled(default), want, "{value:?} {default}");
    }
    let facts = GateFacts::cpu(512);
    assert_eq!(facts.enabled, value.as_deref() != Some("0"));
    assert_eq!(gated_mla_support(&facts).is_ok(), facts.enabled);
    println!("enabled={}", facts.enabled);
}

#[test]
fn the_environment_overrides() {
    for (value, enabled) in [(None, true), (Some("1"), true), (Some("0"), false), (Some(""), true), (Some("yes"), true)]
    {
        let output = rerun("the_environment_or_the_callers_default", &[("GATEMIX_ENABLE", value)]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(&format!("enabled={enabled}")), "{value:?}: {text}");
    }
}
