//! Mistakes that the types turn into compile errors.
//! The messages are those of the compiler that CI pins; `TRYBUILD=overwrite` takes those of another.

#[test]
fn compile_fail() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
