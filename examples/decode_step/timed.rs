//! The two hot operators at the shapes of real models, on generated data.
use std::time::{Duration, Instant};

use gatemix::{
    Exec, GateWeight, GateWidth, MhcPostCollapseRmsNorm, Result, Tensor, TensorMut, gated_mla, last_kernel,
    mhc_post_collapse_rms_norm,
};
use half::bf16;

use crate::noise::Noise;
use crate::recorded::verdict;

/// The gate of Hunyuan V4 (64 heads of 256), 8 tokens.
pub fn gate() -> Result<bool> {
    let (m, n, k) = (8, 16384, 6144);
    let mut noise = Noise(1);
    let (x, attn) = (noise.bf16s(m * k, 1.0), noise.bf16s(m * n, 1.0));
    let weight = noise.bf16s(n * k, 1.0 / (k as f32).sqrt());
    let mut out = vec![bf16::ZERO; m * n];
    let width = GateWidth::new(n)?;
    let time = median(5, || {
        gated_mla(
            &Exec::cpu(),
            Tensor::new(&x, [m, k])?,
            GateWeight::new(&weight, width, k)?,
            Tensor::new(&attn, [m, n])?,
            &mut TensorMut::new(&mut out, [m, n])?,
        )
    })?;
    // Rounding to bf16 is 2^-8 relative at most; 2^-14 leaves room for the fp32 sum of 6144 products.
    let tolerance = 2f64.powi(-8) + 2f64.powi(-14);
    let ok = (0..m * n).step_by(997).all(|i| {
        let (row, column) = (i / n, i % n);
        let products = x[row * k..][..k].iter().zip(&weight[column * k..][..k]);
        let z: f64 = products.map(|(a, b)| a.to_f64() * b.to_f64()).sum();
        let exact = attn[i].to_f64() / (1.0 + (-z).exp());
        (out[i].to_f64() - exact).abs() <= exact.abs() * tolerance
    });
    report(&format!("gated_mla m {m} n {n} k {k}"), time, 2 * (m * k + n * k + 2 * m * n), ok, "");
    Ok(ok)
}

/// The seam of DeepSeek-V4.1, 8 tokens.
pub fn seam() -> Result<bool> {
    let (t, n, h) = (8, 4, 5120);
    let mut noise = Noise(2);
    let (residual, sublayer_out) = (noise.bf16s(t * n * h, 1.0), noise.bf16s(t * h, 1.0));
    let norm_weight = vec![bf16::ONE; h];
    let (post_mix, pre_mix) = (noise.f32s(t * n), noise.f32s(t * n));
    // With comb a cyclic shift and no sublayer output, the streams move by one place and keep their bits.
    let comb_mix: Vec<f32> = (0..t * n * n).map(|i| f32::from(u8::from((i / n + 1) % n == i % n))).collect();
    let still = vec![bf16::ZERO; t * h];
    let (mut residual_out, mut layer_input) = (vec![bf16::ZERO; t * n * h], vec![bf16::ZERO; t * h]);
    let mut step = |sublayer_out: &[bf16]| {
        let inputs = MhcPostCollapseRmsNorm {
            sublayer_out: Tensor::new(sublayer_out, [t, h])?,
            post_mix: Tensor::new(&post_mix, [t, n])?,
            comb_mix: Tensor::new(&comb_mix, [t, n, n])?,
            pre_mix: Tensor::new(&pre_mix, [t, n])?,
            norm_weight: Tensor::new(&norm_weight, [h])?,
            norm_eps: 1e-20,
        };
        mhc_post_collapse_rms_norm(
            &Exec::cpu(),
            Tensor::new(&residual, [t, n, h])?,
            &inputs,
            &mut TensorMut::new(&mut residual_out, [t, n, h])?,
            &mut TensorMut::new(&mut layer_input, [t, h])?,
        )
    };
    let time = median(101, || step(&sublayer_out))?;
    step(&still)?;
    let shifted = (0..t * n * h).all(|i| {
        let (token, stream, column) = (i / (n * h), i / h % n, i % h);
        residual_out[i] == residual[(token * n + (stream + n - 1) % n) * h + column]
    });
    // The root mean square of a normalised row is 1, to the rounding of its elements.
    let normed = layer_input.chunks(h).all(|row| {
        let mean = row.iter().map(|v| v.to_f64().powi(2)).sum::<f64>() / h as f64;
        (mean.sqrt() - 1.0).abs() < 2f64.powi(-8)
    });
    let bytes = 20 * t * h;
    let note = format!("  ({:.1} MB, which stay in cache)", bytes as f64 / 1e6);
    report(&format!("post_collapse_rms_norm T {t} H {h}"), time, bytes, shifted && normed, &note);
    Ok(shifted && normed)
}

fn report(name: &str, time: Duration, bytes: usize, ok: bool, note: &str) {
    let seconds = time.as_secs_f64();
    let rate = bytes as f64 / seconds / 1e9;
    println!("{name:<34} {:9.1} us {rate:6.1} GB/s  {}  {}{note}", seconds * 1e6, last_kernel(), verdict(ok));
}

/// Median time of `runs` calls, after one that warms up.
fn median(runs: usize, mut call: impl FnMut() -> Result<()>) -> Result<Duration> {
    call()?;
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[runs / 2])
}
