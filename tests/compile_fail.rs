//! Mistakes that the types turn into compile errors.
//! The messages are those of one compiler; `TRYBUILD=overwrite` takes those of another.
use std::io::Write;
use std::process::Command;

const RUSTC: &str = "rustc 1.95.";

#[test]
fn compile_fail() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().unwrap();
    let version = String::from_utf8_lossy(&output.stdout);
    if !version.starts_with(RUSTC) {
        // Past the capture, as in common::say.
        writeln!(std::io::stderr(), "skipped: {} words its errors otherwise than {RUSTC}", version.trim()).unwrap();
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    if cfg!(feature = "cudarc") {
        cases.compile_fail("tests/ui/cudarc/*.rs");
    }
}
