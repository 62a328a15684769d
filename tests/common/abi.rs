//! Valid calls of the C operators, to be spoilt one argument at a time.
use std::ffi::{CStr, c_void};
use std::ptr;

use gatemix::sys::*;

use super::data::Rng;

pub const OPERATORS: [&str; 6] =
    ["gated_mla", "rms_norm", "hc_collapse", "hc_head", "mhc_pre_mix", "mhc_post_collapse_rms_norm"];
/// A tensor's memory goes on for so many words, so that a check that is missing does no harm.
const ROOM: usize = 4096;
const GUARD: u64 = 0x5A5A_5A5A_5A5A_5A5A;

pub struct Arg {
    pub name: &'static str,
    pub tensor: gm_tensor,
    pub output: bool,
    /// Pass NULL instead of the descriptor.
    pub null: bool,
    pub memory: Vec<u64>,
}

pub struct Call {
    pub op: &'static str,
    pub args: Vec<Arg>,
    /// The scalars by name; the integers are hc_hidden and mode.
    pub floats: Vec<(&'static str, f32)>,
    pub int: i64,
    pub exec: gm_exec,
}

pub fn cpu_exec() -> gm_exec {
    gm_exec {
        struct_size: size_of::<gm_exec>(),
        backend: GM_BACKEND_CPU,
        device: 0,
        stream: ptr::null_mut(),
        parallel: ptr::null(),
        workspace: ptr::null_mut(),
        workspace_size: 0,
        flags: 0,
    }
}

/// A call that succeeds, with `t` tokens.
pub fn call(op: &'static str, t: i64) -> Call {
    let hidden = match op {
        "gated_mla" => 5,
        "rms_norm" => 7,
        _ => 9,
    };
    sized(op, t, hidden)
}

/// The same, with rows of another length.
pub fn sized(op: &'static str, t: i64, h: i64) -> Call {
    const B: i32 = GM_BF16;
    const F: i32 = GM_F32;
    let (args, floats, int): (Vec<Arg>, Vec<(&'static str, f32)>, i64) = match op {
        "gated_mla" => (
            vec![
                input("x", B, &[t, h]),
                input("weight", B, &[256, h]),
                input("attn", B, &[t, 256]),
                output("out", B, &[t, 256]),
            ],
            vec![],
            0,
        ),
        "rms_norm" => {
            (vec![input("x", B, &[t, h]), input("weight", B, &[h]), output("out", B, &[t, h])], vec![("eps", 1e-6)], 0)
        }
        "hc_collapse" => {
            (vec![input("residual", B, &[t, 4, h]), input("pre_mix", F, &[t, 4]), output("out", B, &[t, h])], vec![], 0)
        }
        "hc_head" => (
            vec![
                input("residual", B, &[t, 4, h]),
                input("fn", F, &[4, 4 * h]),
                input("scale", F, &[1]),
                input("base", F, &[4]),
                output("out", B, &[t, h]),
            ],
            vec![("rms_eps", 1e-6), ("hc_eps", 1e-6)],
            i64::from(GM_HEAD_ROUNDED),
        ),
        "mhc_pre_mix" => (
            vec![
                input("gemm_out", F, &[5, t, 24]),
                input("sqrsum", F, &[5, t]),
                input("scale", F, &[3]),
                input("base", F, &[24]),
                output("out", F, &[t, 4]),
            ],
            vec![("rms_eps", 1e-6), ("hc_pre_eps", 1e-6)],
            4 * h,
        ),
        "mhc_post_collapse_rms_norm" => (
            vec![
                input("residual", B, &[t, 4, h]),
                input("sublayer_out", B, &[t, h]),
                input("post_mix", F, &[t, 4]),
                input("comb_mix", F, &[t, 4, 4]),
                input("pre_mix", F, &[t, 4]),
                input("norm_weight", B, &[h]),
                output("residual_out", B, &[t, 4, h]),
                output("layer_input", B, &[t, h]),
            ],
            vec![("norm_eps", 1e-6)],
            0,
        ),
        _ => unreachable!("{op}"),
    };
    Call { op, args, floats, int, exec: cpu_exec() }
}

fn input(name: &'static str, dtype: i32, shape: &[i64]) -> Arg {
    let mut arg = output(name, dtype, shape);
    arg.output = false;
    arg.fill(0);
    arg
}

fn output(name: &'static str, dtype: i32, shape: &[i64]) -> Arg {
    let count: i64 = shape.iter().product();
    let mut memory = vec![GUARD; count as usize * element_size(dtype) / 8 + ROOM];
    let strides: Vec<i64> = (1..=shape.len()).map(|axis| shape[axis..].iter().product()).collect();
    let tensor = tensor(memory.as_mut_ptr().cast(), dtype, shape, &strides);
    Arg { name, tensor, output: true, null: false, memory }
}

pub fn element_size(dtype: i32) -> usize {
    if dtype == GM_F32 { 4 } else { 2 }
}

pub fn tensor(data: *mut c_void, dtype: i32, shape: &[i64], strides: &[i64]) -> gm_tensor {
    let mut tensor = gm_tensor { data, dtype, rank: shape.len() as i32, shape: [0; 4], stride: [0; 4] };
    tensor.shape[..shape.len()].copy_from_slice(shape);
    tensor.stride[..shape.len()].copy_from_slice(strides);
    tensor
}

impl Arg {
    /// Random numbers of magnitude 0.5 to 1, in either element type, that lead to gates between 0 and 1.
    pub fn fill(&mut self, seed: usize) {
        let exponents = if self.name == "scale" { 0x3C00_3C00_3C00_3C00 } else { 0x3F00_3F00_3F00_3F00 };
        let random = if self.name == "sqrsum" { 0x007F_007F_007F_007F } else { 0x807F_807F_807F_807F };
        let mut rng = Rng::new(&[seed, self.memory.len(), self.name.len()]);
        self.memory.iter_mut().for_each(|word| *word = exponents | (rng.next() & random));
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: all of its memory.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), size_of_val(&self.memory[..])) }
    }

    /// The dimension that counts tokens.
    pub fn token_axis(&self) -> Option<usize> {
        match self.name {
            "weight" | "norm_weight" | "fn" | "scale" | "base" => None,
            "gemm_out" | "sqrsum" => Some(1),
            _ => Some(0),
        }
    }
}

impl Call {
    pub fn arg(&mut self, name: &str) -> &mut Arg {
        self.args.iter_mut().find(|arg| arg.name == name).unwrap()
    }

    pub fn invoke(&self) -> gm_status {
        self.invoke_on(&self.exec)
    }

    pub fn invoke_on(&self, exec: *const gm_exec) -> gm_status {
        let t = |i: usize| if self.args[i].null { ptr::null() } else { &raw const self.args[i].tensor };
        let f = |i: usize| self.floats[i].1;
        // SAFETY: the tensors describe the memory of their arguments, or the call is refused.
        unsafe {
            match self.op {
                "gated_mla" => gm_gated_mla(exec, t(0), t(1), t(2), t(3)),
                "rms_norm" => gm_rms_norm(exec, t(0), t(1), f(0), t(2)),
                "hc_collapse" => gm_hc_collapse(exec, t(0), t(1), t(2)),
                "hc_head" => gm_hc_head(exec, t(0), t(1), t(2), t(3), f(0), f(1), self.int as i32, t(4)),
                "mhc_pre_mix" => gm_mhc_pre_mix(exec, t(0), t(1), t(2), t(3), self.int, f(0), f(1), t(4)),
                _ => {
                    let [r, x, post, comb, pre, w, next, y] = [0, 1, 2, 3, 4, 5, 6, 7].map(t);
                    gm_mhc_post_collapse_rms_norm(exec, r, x, post, comb, pre, w, f(0), next, y)
                }
            }
        }
    }

    /// The call is refused with this status and a sentence that holds all of `parts`; no memory is written.
    pub fn refused(&self, status: gm_status, parts: &[&str]) {
        self.refused_on(&self.exec, status, parts);
    }

    pub fn refused_on(&self, exec: *const gm_exec, status: gm_status, parts: &[&str]) {
        let before: Vec<Vec<u64>> = self.args.iter().map(|arg| arg.memory.clone()).collect();
        let got = self.invoke_on(exec);
        let sentence = last_error();
        assert_eq!(got, status, "{}: {parts:?} gives {sentence:?}", self.op);
        for part in parts {
            assert!(sentence.contains(part), "{}: {sentence:?} lacks {part:?}", self.op);
        }
        for (arg, before) in self.args.iter().zip(before) {
            assert!(arg.memory == before, "{}: {} was written, although {sentence}", self.op, arg.name);
        }
    }

    /// The call succeeds and writes all of its outputs.
    pub fn succeeds(&self) {
        let status = self.invoke();
        assert_eq!(status, GM_OK, "{}: {}", self.op, last_error());
        for arg in self.args.iter().filter(|arg| arg.output) {
            assert!(arg.memory[0] != GUARD, "{}: {} was not written", self.op, arg.name);
        }
    }
}

pub fn last_error() -> String {
    // SAFETY: a string of this thread's, copied at once.
    unsafe { CStr::from_ptr(gm_last_error()) }.to_str().unwrap().to_owned()
}

pub fn last_kernel() -> String {
    // SAFETY: a static string.
    unsafe { CStr::from_ptr(gm_last_kernel()) }.to_str().unwrap().to_owned()
}

/// A pointer as C prints it.
pub fn shown(data: *const c_void) -> String {
    format!("{data:p}")
}
