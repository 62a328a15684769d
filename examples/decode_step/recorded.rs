//! Every mHC operator on recorded inputs, beside the recorded output of the public kernel.
use std::collections::HashMap;
use std::error::Error;

use gatemix::{
    Exec, HcHead, HeadMode, MhcPostCollapseRmsNorm, MhcPreMix, Tensor, TensorMut, hc_collapse, hc_head,
    mhc_post_collapse_rms_norm, mhc_pre_mix, rms_norm,
};
use half::bf16;
use safetensors::SafeTensors;

struct File<'a> {
    tensors: SafeTensors<'a>,
    metadata: HashMap<String, String>,
}

impl<'a> File<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, Box<dyn Error>> {
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        Ok(Self { tensors: SafeTensors::deserialize(bytes)?, metadata })
    }

    fn eps(&self, name: &str) -> Result<f32, Box<dyn Error>> {
        let text = self.metadata.get(name).ok_or_else(|| format!("the metadata has no {name}"))?;
        Ok(text.parse().map_err(|error| format!("{name} = {text:?}: {error}"))?)
    }

    fn shape<const R: usize>(&self, name: &str) -> Result<[usize; R], Box<dyn Error>> {
        let tensor = self.tensors.tensor(name)?;
        tensor.shape().try_into().map_err(|_| format!("{name} does not have {R} dimensions").into())
    }

    fn bf16s(&self, name: &str) -> Result<Vec<bf16>, Box<dyn Error>> {
        let tensor = self.tensors.tensor(name)?;
        let bytes = tensor.data().chunks_exact(2);
        Ok(bytes.map(|b| bf16::from_bits(u16::from_le_bytes([b[0], b[1]]))).collect())
    }

    fn f32s(&self, name: &str) -> Result<Vec<f32>, Box<dyn Error>> {
        let tensor = self.tensors.tensor(name)?;
        let bytes = tensor.data().chunks_exact(4);
        Ok(bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }
}

pub fn run(path: &str) -> Result<bool, Box<dyn Error>> {
    let bytes = std::fs::read(path)?;
    let file = File::new(&bytes)?;
    let [tokens, streams, hidden] = file.shape("residual")?;
    println!("{path}: T {tokens}, n {streams}, H {hidden}");
    let exec = Exec::cpu();
    let agree = [
        seam(&exec, &file, [tokens, streams, hidden])?,
        collapse(&exec, &file, [tokens, streams, hidden])?,
        norm(&exec, &file, [tokens, hidden])?,
        pre_mix(&exec, &file, [tokens, streams], hidden)?,
        head(&exec, &file, [tokens, streams, hidden])?,
    ];
    println!("  {:<22} no recorded output; checked against float64 below", "gated_mla");
    Ok(agree.iter().all(|&ok| ok))
}

fn seam(exec: &Exec, file: &File, [t, n, h]: [usize; 3]) -> Result<bool, Box<dyn Error>> {
    let (residual, sublayer_out) = (file.bf16s("residual")?, file.bf16s("sublayer_out")?);
    let (post_mix, comb_mix, pre_mix) = (file.f32s("post_mix")?, file.f32s("comb_mix")?, file.f32s("pre_mix")?);
    let norm_weight = file.bf16s("norm_weight")?;
    let (mut residual_out, mut layer_input) = (vec![bf16::ZERO; t * n * h], vec![bf16::ZERO; t * h]);
    let inputs = MhcPostCollapseRmsNorm {
        sublayer_out: Tensor::new(&sublayer_out, [t, h])?,
        post_mix: Tensor::new(&post_mix, [t, n])?,
        comb_mix: Tensor::new(&comb_mix, [t, n, n])?,
        pre_mix: Tensor::new(&pre_mix, [t, n])?,
        norm_weight: Tensor::new(&norm_weight, [h])?,
        norm_eps: file.eps("norm_eps")?,
    };
    mhc_post_collapse_rms_norm(
        exec,
        Tensor::new(&residual, [t, n, h])?,
        &inputs,
        &mut TensorMut::new(&mut residual_out, [t, n, h])?,
        &mut TensorMut::new(&mut layer_input, [t, h])?,
    )?;
    let streams =
        agrees("post.. residual_out", &residual_out, &file.bf16s("post_collapse_rms_norm.residual_out")?, 0, 0);
    let input =
        agrees("post.. layer_input", &layer_input, &file.bf16s("post_collapse_rms_norm.layer_input")?, t * h, 1);
    Ok(streams && input)
}

fn collapse(exec: &Exec, file: &File, [t, n, h]: [usize; 3]) -> Result<bool, Box<dyn Error>> {
    let (residual, pre_mix) = (file.bf16s("residual")?, file.f32s("pre_mix")?);
    let mut out = vec![bf16::ZERO; t * h];
    hc_collapse(
        exec,
        Tensor::new(&residual, [t, n, h])?,
        Tensor::new(&pre_mix, [t, n])?,
        &mut TensorMut::new(&mut out, [t, h])?,
    )?;
    Ok(agrees("hc_collapse", &out, &file.bf16s("collapse.out")?, 0, 0))
}

fn norm(exec: &Exec, file: &File, [t, h]: [usize; 2]) -> Result<bool, Box<dyn Error>> {
    let x = file.bf16s("sublayer_out")?;
    let mut out = vec![bf16::ZERO; t * h];
    rms_norm(exec, Tensor::new(&x, [t, h])?, None, file.eps("norm_eps")?, &mut TensorMut::new(&mut out, [t, h])?)?;
    Ok(agrees("rms_norm", &out, &file.bf16s("rmsnorm.out")?, t * h, 1))
}

fn pre_mix(exec: &Exec, file: &File, [t, n]: [usize; 2], h: usize) -> Result<bool, Box<dyn Error>> {
    let (gemm_out, sqrsum) = (file.f32s("pre_mix.gemm_out")?, file.f32s("pre_mix.sqrsum")?);
    let (scale, base) = (file.f32s("hc_scale")?, file.f32s("hc_base")?);
    let mut out = vec![0.0f32; t * n];
    let inputs = MhcPreMix {
        gemm_out: Tensor::new(&gemm_out, file.shape("pre_mix.gemm_out")?)?.into(),
        sqrsum: Tensor::new(&sqrsum, file.shape("pre_mix.sqrsum")?)?.into(),
        scale: Tensor::new(&scale, [scale.len()])?,
        base: Tensor::new(&base, [base.len()])?,
        hc_hidden: n * h,
        rms_eps: file.eps("rms_eps")?,
        hc_pre_eps: file.eps("hc_pre_eps")?,
    };
    mhc_pre_mix(exec, &inputs, &mut TensorMut::new(&mut out, [t, n])?)?;
    let recorded = file.f32s("pre_mix.out")?;
    let errors: Vec<f32> = out.iter().zip(&recorded).map(|(a, b)| ((a - b) / b).abs()).collect();
    let ok = out.len() == recorded.len() && errors.iter().all(|&error| error <= 1.1e-6);
    let error = errors.iter().copied().fold(0.0, f32::max);
    println!("  {:<22} max relative error {error:.1e}  {}", "mhc_pre_mix", verdict(ok));
    Ok(ok)
}

fn head(exec: &Exec, file: &File, [t, n, h]: [usize; 3]) -> Result<bool, Box<dyn Error>> {
    let residual = file.bf16s("residual")?;
    let (fn_weight, scale, base) = (file.f32s("head.fn")?, file.f32s("head.scale")?, file.f32s("head.base")?);
    let mut out = vec![bf16::ZERO; t * h];
    let inputs = HcHead {
        residual: Tensor::new(&residual, [t, n, h])?,
        fn_weight: Tensor::new(&fn_weight, [n, n * h])?,
        scale: Tensor::new(&scale, [1])?,
        base: Tensor::new(&base, [n])?,
        rms_eps: file.eps("rms_eps")?,
        hc_eps: file.eps("hc_eps")?,
        mode: HeadMode::Rounded,
    };
    hc_head(exec, &inputs, &mut TensorMut::new(&mut out, [t, h])?)?;
    // An ulp of a gate is several ulps of an element in which the streams cancel.
    Ok(agrees("hc_head", &out, &file.bf16s("head.out")?, 2, 16))
}

/// Prints how two bf16 tensors differ; true if in at most `mismatches` elements, by at most `ulps`, and none is NaN.
fn agrees(name: &str, ours: &[bf16], recorded: &[bf16], mismatches: usize, ulps: u32) -> bool {
    let distances: Vec<u32> = ours.iter().zip(recorded).map(|(a, b)| order(*a).abs_diff(order(*b))).collect();
    let differing = distances.iter().filter(|&&d| d > 0).count();
    let largest = distances.iter().copied().max().unwrap_or(0);
    let numbers = ours.len() == recorded.len() && !ours.iter().any(|v| v.is_nan());
    let ok = numbers && differing <= mismatches && largest <= ulps;
    println!("  {name:<22} {differing} of {} differ, max {largest} ulp  {}", recorded.len(), verdict(ok));
    ok
}

/// Position of a bf16 number on the number line, in ulps.
fn order(value: bf16) -> i32 {
    let magnitude = i32::from(value.to_bits() & 0x7fff);
    if value.is_sign_negative() { -magnitude } else { magnitude }
}

pub fn verdict(ok: bool) -> &'static str {
    if ok { "ok" } else { "DISAGREES" }
}
