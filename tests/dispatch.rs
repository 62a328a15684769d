//! Which kernel runs, and what lowers the choice.
mod common;

use std::env;

use common::cases::{self, Gate};
use common::{levels, rerun};
use gatemix::last_kernel;

const ISAS: [&str; 3] = ["portable", "avx2", "avx512"];

fn rank(isa: &str) -> usize {
    ISAS.iter().position(|name| *name == isa).unwrap_or_else(|| panic!("{isa} is not one of {ISAS:?}"))
}

/// The instruction set of the kernel that ran last, which must be one of `op`.
fn isa_of(op: &str) -> &'static str {
    let mut parts = last_kernel().split('/');
    assert_eq!((parts.next(), parts.next()), (Some(op), Some("cpu")), "{}", last_kernel());
    parts.next().unwrap()
}

/// Holds with any GATEMIX_CPU_ISA; the next test runs it with all of them.
#[test]
fn every_operator_runs_at_its_level() {
    let cap = env::var("GATEMIX_CPU_ISA").ok().filter(|cap| ISAS.contains(&&cap[..])).map_or(2, |cap| rank(&cap));
    let mut best = None;
    for case in cases::all() {
        let ran: Vec<&str> = levels()
            .into_iter()
            .map(|(_, exec)| {
                case.run_bits(&exec);
                isa_of(case.op())
            })
            .collect();
        let [cpu, serial, without_avx512, portable] = ran[..] else { unreachable!() };
        assert_eq!(cpu, serial, "{}", case.op());
        assert_eq!(rank(without_avx512), rank(cpu).min(1), "{}", case.op());
        assert_eq!(portable, "portable", "{}", case.op());
        assert!(rank(cpu) <= cap, "{} runs {cpu} in spite of GATEMIX_CPU_ISA", case.op());
        assert_eq!(*best.get_or_insert(cpu), cpu, "{} runs another level than the others", case.op());
    }
    let (info, best) = (gatemix::build_info(), best.unwrap());
    assert!(info.contains(&format!("using {best};")), "{info}");
    println!("best={best}");
}

#[test]
fn the_environment_lowers_the_level() {
    let best = |cap| {
        let output = rerun("every_operator_runs_at_its_level", &[("GATEMIX_CPU_ISA", cap)]);
        let text = String::from_utf8(output.stdout).unwrap();
        rank(text.split("best=").nth(1).unwrap().split_whitespace().next().unwrap())
    };
    let here = best(None);
    for (cap, isa) in ISAS.iter().enumerate() {
        assert_eq!(best(Some(isa)), here.min(cap), "GATEMIX_CPU_ISA={isa}");
    }
    for other in ["", "AVX2", "sse9", "avx2 "] {
        assert_eq!(best(Some(other)), here, "GATEMIX_CPU_ISA={other:?} is no level");
    }
}

#[test]
fn few_rows_and_many_rows_have_kernels_of_their_own() {
    for m in [1, 8, 9, 12, 13, 48, 49, 200] {
        let case = Gate::random(m, 256, 40);
        for (level, exec) in levels() {
            case.run(&exec);
            let isa = isa_of("gated_mla");
            let few = [("portable", 8), ("avx2", 12), ("avx512", 48)].iter().any(|(i, max)| *i == isa && m <= *max);
            let shape = if few { "gemv" } else { "gemm" };
            assert_eq!(last_kernel(), format!("gated_mla/cpu/{isa}/{shape}"), "{level} m {m}");
        }
    }
}

#[test]
fn versions() {
    assert_eq!(gatemix::version(), env!("CARGO_PKG_VERSION"));
    assert_eq!(gatemix::abi_version(), gatemix::sys::GM_ABI_VERSION);
    let info = gatemix::build_info();
    for part in [gatemix::version(), "cpu: ", "portable", "cuda: "] {
        assert!(info.contains(part), "{info} lacks {part}");
    }
    assert!(!info.contains('\n'));
}
