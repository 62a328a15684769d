//! Properties that hold for every operator, at every level.
use gatemix::last_kernel;

use super::cases::Case;
use super::levels;

/// Repeat runs give the same bits, also after a run of another problem.
pub fn repeats<C: Case>(case: &C, other: &C) {
    for (level, exec) in levels() {
        let first = case.run_bits(&exec);
        for _ in 0..3 {
            other.run_bits(&exec);
            assert!(case.run_bits(&exec) == first, "{} at level {level} gives other bits", case.op());
        }
    }
}

/// A token's bits are the same alone, twice in a row, and in a batch of any size.
pub fn tokens_are_independent<C: Case>(case: &C) {
    for (level, exec) in levels() {
        let batch = case.run_bits(&exec);
        for (t, bits) in batch.iter().enumerate() {
            for copies in [1, 2, 5] {
                for (i, alone) in case.pick(&vec![t; copies]).run_bits(&exec).iter().enumerate() {
                    let op = case.op();
                    assert!(alone == bits, "{op} at level {level}: token {t}, copy {i} of {copies}, has other bits");
                }
            }
        }
    }
}

/// NaN or an infinity in a token's inputs changes that token and no other.
pub fn spoilt_tokens_stay_alone<C: Case>(case: &C, token: usize) {
    let all: Vec<usize> = (0..case.tokens()).collect();
    for (level, exec) in levels() {
        let before = case.run_bits(&exec);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut spoilt = case.pick(&all);
            spoilt.spoil(token, value);
            for (t, bits) in spoilt.run_bits(&exec).iter().enumerate() {
                let (op, same) = (case.op(), *bits == before[t]);
                assert_eq!(same, t != token, "{op} at level {level}: token {t}, after {value} in token {token}");
            }
        }
    }
}

/// No tokens: a success that runs nothing.
pub fn empty_is_nothing<C: Case>(case: &C) {
    for (level, exec) in levels() {
        case.run_bits(&exec);
        assert_ne!(last_kernel(), "none", "{} at level {level}", case.op());
        assert!(case.pick(&[]).run_bits(&exec).is_empty());
        assert_eq!(last_kernel(), "none", "{} at level {level}", case.op());
    }
}
