//! The pieces of the exact results: float64, each with the error that fp32 arithmetic may make.
use super::compare::Near;

/// Half an ulp of an fp32 number, relative to it.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;
/// The relative error that a sigmoid may have.
pub const SIGMOID: f64 = 1.0 / (1u64 << 20) as f64;
/// The relative error that rsqrt(mean of `len` squares + eps) may have: 4 roundings, and those of the sum, halved by the
/// root. With random signs, in 8 partial sums or more, the latter are 5 standard deviations.
pub fn rsqrt_error(len: usize) -> f64 {
    U * (4.0 + (len as f64).sqrt() / 12.0)
}

/// A dot product with the error of its accumulation: every step rounds a partial sum by up to U. These roundings have
/// random signs, and the partial sums grow like a random walk to its end, so that this is 6 standard deviations.
pub fn dot(products: impl Iterator<Item = f64>) -> Near {
    let (mut value, mut squares, mut len) = (0.0, 0.0, 0.0);
    for product in products {
        value += product;
        squares += product * product;
        len += 1.0;
    }
    let end = f64::max(value.abs(), f64::sqrt(squares));
    Near { value, tol: if len == 1.0 { 0.0 } else { 2.0 * U * f64::sqrt(len) * end } }
}

pub fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// sigmoid(mix * scale + base) + eps
pub fn gate(mix: Near, scale: f32, base: f32, eps: f32) -> Near {
    let (scale, base, eps) = (f64::from(scale), f64::from(base), f64::from(eps));
    let z = mix.value * scale + base;
    let gate = sigmoid(z);
    let logit = mix.tol * scale.abs() + U * (2.0 * (mix.value * scale).abs() + z.abs());
    let value = gate + eps;
    if !z.is_finite() {
        return Near { value, tol: 0.0 };
    }
    Near { value, tol: 1.01 * gate * (1.0 - gate) * logit + SIGMOID * gate + U * value }
}

/// x * rsqrt(mean(x^2) + eps) * weight
pub fn normalised(x: &[f64], weight: Option<&[f64]>, eps: f32) -> Vec<Near> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let r = 1.0 / (mean + f64::from(eps)).sqrt();
    let error = rsqrt_error(x.len()) + 2.0 * U;
    let element = |(d, x): (usize, &f64)| {
        let value = x * r * weight.map_or(1.0, |w| w[d]);
        Near { value, tol: error * value.abs() }
    };
    x.iter().enumerate().map(element).collect()
}
