//! Comparisons: by bit pattern, by ulps, by distance from an exact value. NaN equals NaN, whatever its payload.
use std::fmt::{self, Debug, Display, Formatter};

use half::{bf16, f16};

/// A floating-point element and its format.
pub trait Float: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// Bits of the significand, the hidden one included.
    const DIGITS: i32;
    /// Exponent of the smallest normal number.
    const MIN_EXP: i32;
    const NAN: Self;
    /// A value that no test computes.
    const GUARD: Self;
    fn of(value: f32) -> Self;
    fn f32(self) -> f32;
    fn bits(self) -> u32;
    /// The bit pattern as a number that grows with the value; 0 for both zeros.
    fn order(self) -> i64;
    fn f64(self) -> f64 {
        f64::from(self.f32())
    }
}

macro_rules! float {
    ($type:ty, $bits:ty, $digits:expr, $min_exp:expr, $guard:expr, $of:expr, $f32:expr) => {
        impl Float for $type {
            const DIGITS: i32 = $digits;
            const MIN_EXP: i32 = $min_exp;
            const NAN: Self = <$type>::NAN;
            const GUARD: Self = <$type>::from_bits($guard);
            fn of(value: f32) -> Self {
                $of(value)
            }
            fn f32(self) -> f32 {
                $f32(self)
            }
            fn bits(self) -> u32 {
                self.to_bits().into()
            }
            fn order(self) -> i64 {
                let sign = 1i64 << (<$bits>::BITS - 1);
                let bits = i64::from(self.to_bits());
                if bits & sign != 0 { -(bits & !sign) } else { bits }
            }
        }
    };
}
float!(bf16, u16, 8, -126, 0x5A5A, bf16::from_f32, |v: bf16| f32::from_bits(u32::from(v.to_bits()) << 16));
float!(f16, u16, 11, -14, 0x5A5A, f16::from_f32, f16::to_f32);
float!(f32, u32, 24, -126, 0x5A5A_5A5A, |v| v, |v| v);

/// Both NaN, or the same bits.
pub fn same<E: Float>(a: E, b: E) -> bool {
    a.bits() == b.bits() || (a.f32().is_nan() && b.f32().is_nan())
}

/// How many representable numbers lie from `a` to `b`; infinitely many if just one is NaN.
pub fn ulps<E: Float>(a: E, b: E) -> u64 {
    match (a.f32().is_nan(), b.f32().is_nan()) {
        (true, true) => 0,
        (false, false) => a.order().abs_diff(b.order()),
        _ => u64::MAX,
    }
}

/// An exact result, and how far from it a result may be before its rounding to the element type.
#[derive(Clone, Copy, Debug)]
pub struct Near {
    pub value: f64,
    pub tol: f64,
}

impl Near {
    /// Half an ulp for the final rounding, and `tol` for all that came before.
    pub fn admits<E: Float>(self, got: E) -> bool {
        let got = got.f64();
        let overflow = 2f64.powi(1 - E::MIN_EXP) * (2.0 - 0.5f64.powi(E::DIGITS));
        if got.is_infinite() && self.value.is_finite() {
            return got.signum() == self.value.signum() && self.value.abs() + self.tol >= overflow;
        }
        if !self.value.is_finite() || !got.is_finite() {
            return got == self.value || (got.is_nan() && self.value.is_nan());
        }
        (got - self.value).abs() <= 0.5 * ulp_at::<E>(self.value.abs() + self.tol) + self.tol
    }
}

/// The largest and the mean distance from the exact results.
#[derive(Clone, Copy, Default)]
pub struct Errors {
    pub max: f64,
    sum: f64,
    count: usize,
}

impl Errors {
    pub fn add(&mut self, got: impl Float, want: f64) {
        let error = (got.f64() - want).abs();
        self.max = self.max.max(error);
        self.sum += error;
        self.count += 1;
    }

    pub fn mean(self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// Those of both.
    pub fn and(self, other: Errors) -> Errors {
        Errors { max: self.max.max(other.max), sum: self.sum + other.sum, count: self.count + other.count }
    }

    pub fn at_most(self, other: Errors) -> bool {
        self.max <= other.max && self.mean() <= other.mean()
    }
}

impl Display for Errors {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "max {:.2e} mean {:.2e}", self.max, self.mean())
    }
}

/// The distance of neighbours at `magnitude`.
pub fn ulp_at<E: Float>(magnitude: f64) -> f64 {
    let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    2f64.powi(exponent.max(E::MIN_EXP) - (E::DIGITS - 1))
}

/// Fails with the first pair that is not `ok`, and how many there are.
pub fn assert_each<I: Debug, G: Debug, W: Debug>(
    what: impl Display,
    items: impl IntoIterator<Item = (I, G, W)>,
    ok: impl Fn(&G, &W) -> bool,
) {
    let (mut bad, mut total, mut first) = (0, 0, None);
    for (index, got, want) in items {
        total += 1;
        if !ok(&got, &want) {
            bad += 1;
            first.get_or_insert((index, got, want));
        }
    }
    if let Some((index, got, want)) = first {
        panic!("{what}: [{index:?}] is {got:?}, want {want:?}; {bad} of {total} are wrong");
    }
}

fn assert_pairs<G: Copy + Debug, W: Copy + Debug>(
    what: impl Display,
    got: &[G],
    want: &[W],
    ok: impl Fn(G, W) -> bool,
) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let items = got.iter().zip(want).enumerate().map(|(i, (g, w))| (i, *g, *w));
    assert_each(what, items, |g, w| ok(*g, *w));
}

pub fn assert_bits<E: Float>(what: impl Display, got: &[E], want: &[E]) {
    assert_pairs(what, got, want, same);
}

pub fn assert_ulps<E: Float>(what: impl Display, got: &[E], want: &[E], max: u64) {
    assert_pairs(what, got, want, |g, w| ulps(g, w) <= max);
}

pub fn assert_near<E: Float>(what: impl Display, got: &[E], want: &[Near]) {
    assert_pairs(what, got, want, |g, w| w.admits(g));
}
