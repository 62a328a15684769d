//! The support check of `gated_mla`: reasons in their order, sentences with the offending value.
mod common;

use common::rerun;
use gatemix::{
    Backend, DType, GateFacts, Gating, UnsupportedReason as Reason, gate_enabled, gated_mla_support,
    gated_mla_support_all,
};

const CAPABILITIES: [(u8, u8); 9] = [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)];

fn good() -> GateFacts {
    GateFacts {
        enabled: true,
        has_gate: true,
        backend_usable: true,
        backend: Some(Backend::Cuda),
        capability: Some((9, 0)),
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

/// In the order in which the reasons are checked. No platform has no capability list, so Backend stands without
/// Capability.
const SPOILERS: [Spoiler; 9] = [
    (|f| f.enabled = false, Reason::NotEnabled, &["enabled", "0"]),
    (|f| f.has_gate = false, Reason::NoGate, &["has_gate", "0"]),
    (|f| f.backend_usable = false, Reason::NotBuilt, &["backend"]),
    (|f| f.backend = None, Reason::Backend, &["backend = 0"]),
    (|f| f.capability = Some((7, 5)), Reason::Capability, &["75", "80, 86, 87, 89, 90, 100, 103, 120, 121"]),
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

#[test]
fn capabilities() {
    for major in 0..16 {
        for minor in 0..10 {
            let facts = GateFacts { capability: Some((major, minor)), ..good() };
            let verdict = gated_mla_support(&facts);
            assert_eq!(verdict.is_ok(), CAPABILITIES.contains(&(major, minor)), "{major}.{minor}");
        }
    }
    let unknown = GateFacts { capability: None, ..good() };
    assert_eq!(gated_mla_support(&unknown).unwrap_err().reason, Reason::Capability);
    for capability in [None, Some((7, 5))] {
        assert!(gated_mla_support(&GateFacts { backend: Some(Backend::Cpu), capability, ..good() }).is_ok());
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
