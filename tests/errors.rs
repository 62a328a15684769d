//! Every operator refuses every bad argument with the right status and a sentence that names the argument, its value
//! and the rule, and leaves all memory untouched.
mod common;

use std::ptr;

use common::abi::{Call, OPERATORS, call, last_error, last_kernel, shown};
use gatemix::sys::*;

/// One spoilt call for each argument of each operator.
fn for_each_arg(mut test: impl FnMut(Call, usize, &'static str)) {
    for op in OPERATORS {
        let names: Vec<&'static str> = call(op, 3).args.iter().map(|arg| arg.name).collect();
        names.into_iter().enumerate().for_each(|(i, name)| test(call(op, 3), i, name));
    }
}

#[test]
fn the_unspoilt_calls_succeed() {
    OPERATORS.iter().for_each(|op| call(op, 3).succeeds());
}

#[test]
fn null_pointers() {
    for_each_arg(|mut call, i, name| {
        call.args[i].null = true;
        if (call.op, name) == ("rms_norm", "weight") {
            return call.succeeds(); // the only optional tensor
        }
        call.refused(GM_ERROR_NULL_POINTER, &[&format!("{name} is NULL"), "required"]);
    });
    for_each_arg(|mut call, i, name| {
        call.args[i].tensor.data = ptr::null_mut();
        call.refused(GM_ERROR_NULL_POINTER, &[&format!("{name}.data is NULL"), "not empty"]);
    });
}

#[test]
fn element_types() {
    for_each_arg(|mut call, i, name| {
        let right = call.args[i].tensor.dtype;
        for wrong in [0, 4, 77, -1, i32::MAX, GM_BF16 + GM_F32 - right] {
            call.args[i].tensor.dtype = wrong;
            // x alone with a type that it may have is seen as a wrong type of out.
            let mixed = (call.op, name, wrong) == ("rms_norm", "x", GM_F32);
            let value = if mixed { "out.dtype = 1 ".into() } else { format!("{name}.dtype = {wrong} ") };
            let rule = match (mixed, right) {
                (true, _) => "must be f32, as x.dtype",
                (_, GM_BF16) => "must be bf16",
                _ => "must be f32",
            };
            call.refused(GM_ERROR_DTYPE, &[&value, rule]);
        }
    });
}

#[test]
fn half_precision_is_only_for_rms_norm() {
    for_each_arg(|mut call, i, name| {
        call.args[i].tensor.dtype = GM_F16;
        let part = if (call.op, name) == ("rms_norm", "x") { "x.dtype" } else { &format!("{name}.dtype = 2 (f16)") };
        call.refused(GM_ERROR_DTYPE, &[part, "must be"]);
    });
}

#[test]
fn ranks() {
    for_each_arg(|mut call, i, name| {
        for rank in [0, 5, -1, i32::MAX] {
            call.args[i].tensor.rank = rank;
            call.refused(GM_ERROR_RANK, &[&format!("{name}.rank = {rank} must be ")]);
        }
    });
    for op in OPERATORS {
        let mut call = call(op, 3);
        let out = call.args.iter_mut().rfind(|arg| arg.output).unwrap();
        (out.tensor.rank, out.tensor.shape[2], out.tensor.stride[2]) = (3, 1, 1);
        call.refused(GM_ERROR_RANK, &[".rank = 3 must be 2"]);
    }
}

#[test]
fn negative_dimensions() {
    for_each_arg(|mut call, i, name| {
        for axis in 0..call.args[i].tensor.rank as usize {
            let right = std::mem::replace(&mut call.args[i].tensor.shape[axis], -7);
            call.refused(GM_ERROR_SHAPE, &[&format!("{name}.shape[{axis}] = -7 must not be negative")]);
            call.args[i].tensor.shape[axis] = right;
        }
    });
}

#[test]
fn dimensions_that_do_not_match() {
    for_each_arg(|mut call, i, name| {
        for axis in 0..call.args[i].tensor.rank as usize {
            let right = call.args[i].tensor.shape[axis];
            let free = call.op == "mhc_pre_mix" && matches!((name, axis), ("gemm_out", 2) | ("scale" | "base", 0));
            let smallest = if name == "scale" { 1 } else { 4 };
            for wrong in [right - 1, right + 1, 4321] {
                if free && wrong > right {
                    continue;
                }
                let wrong = if free { smallest - 1 } else { wrong };
                call.args[i].tensor.shape[axis] = wrong;
                let parts = [&format!("{name}.shape")[..], "must be"];
                // fn follows from two dimensions of residual: only their product is a number in the sentence.
                if (call.op, name, axis) == ("hc_head", "residual", 2) {
                    call.refused(GM_ERROR_SHAPE, &[&format!("fn.shape[1] = 36 must be {}", 4 * wrong), parts[0]]);
                } else {
                    call.refused(GM_ERROR_SHAPE, &[parts[0], parts[1], &wrong.to_string()]);
                }
            }
            call.args[i].tensor.shape[axis] = right;
        }
    });
}

#[test]
fn rules_for_single_dimensions() {
    let cases: [(&str, &str, usize, i64, &str); 12] = [
        ("gated_mla", "weight", 0, 255, "must be a multiple of 256"),
        ("gated_mla", "weight", 0, 257, "must be a multiple of 256"),
        ("gated_mla", "x", 1, 0, "must be at least 1"),
        ("rms_norm", "x", 1, 0, "must be at least 1"),
        ("hc_collapse", "residual", 1, 3, "must be 1, 2, 4 or 8"),
        ("hc_collapse", "residual", 2, 0, "must be at least 1"),
        ("hc_head", "residual", 1, 16, "must be 1, 2, 4 or 8"),
        ("hc_head", "residual", 2, 0, "must be at least 1"),
        ("mhc_pre_mix", "gemm_out", 0, 0, "must be at least 1"),
        ("mhc_pre_mix", "out", 1, 5, "must be 1, 2, 4 or 8"),
        ("mhc_post_collapse_rms_norm", "residual", 1, 0, "must be 1, 2, 4 or 8"),
        ("mhc_post_collapse_rms_norm", "residual", 2, 0, "must be at least 1"),
    ];
    for (op, name, axis, size, rule) in cases {
        let mut call = call(op, 3);
        call.arg(name).tensor.shape[axis] = size;
        call.refused(GM_ERROR_SHAPE, &[&format!("{name}.shape[{axis}] = {size} {rule}")]);
    }
}

#[test]
fn post_mix_may_have_a_third_dimension_of_one() {
    let mut call = call("mhc_post_collapse_rms_norm", 3);
    let post = &mut call.arg("post_mix").tensor;
    (post.rank, post.shape[2], post.stride[2]) = (3, 1, 1);
    call.succeeds();
    call = common::abi::call("mhc_post_collapse_rms_norm", 3);
    let post = &mut call.arg("post_mix").tensor;
    (post.rank, post.shape[2], post.stride[2]) = (3, 2, 1);
    call.refused(GM_ERROR_SHAPE, &["post_mix.shape[2] = 2 must be 1"]);
}

#[test]
fn tensors_beyond_64_bits() {
    for op in OPERATORS {
        let mut call = call(op, 3);
        for arg in &mut call.args {
            let tokens = arg.tensor.shape.iter_mut().find(|size| **size == 3 && arg.name != "scale");
            tokens.into_iter().for_each(|size| *size = i64::MAX / 4);
        }
        call.refused(GM_ERROR_SHAPE, &[call.args[0].name, &(i64::MAX / 4).to_string(), "is too large"]);
    }
    for (op, name) in [("hc_collapse", "residual"), ("hc_collapse", "pre_mix"), ("mhc_pre_mix", "gemm_out")] {
        for stride in [i64::MAX / 2, i64::MIN] {
            let mut call = call(op, 3);
            call.arg(name).tensor.stride[0] = stride;
            call.refused(GM_ERROR_SHAPE, &[name, &stride.to_string(), "is too large"]);
        }
    }
}

/// Arguments that may have any strides.
fn is_strided(op: &str, name: &str) -> bool {
    matches!((op, name), ("hc_collapse", "residual" | "pre_mix") | ("mhc_pre_mix", "gemm_out" | "sqrsum"))
}

#[test]
fn strides() {
    for_each_arg(|mut call, i, name| {
        for axis in 0..call.args[i].tensor.rank as usize {
            let tensor = &mut call.args[i].tensor;
            let (right, size) = (tensor.stride[axis], tensor.shape[axis]);
            let leading = (call.op, name, axis) == ("rms_norm", "x", 0);
            tensor.stride[axis] = if leading { right - 1 } else { right + 1 };
            let (wrong, rule) = (tensor.stride[axis], if leading { "must be at least" } else { "must be" });
            if size == 1 || is_strided(call.op, name) {
                call.succeeds(); // ignored, or allowed
            } else {
                let part = format!("{name}.stride[{axis}] = {wrong} {rule} {right}");
                call.refused(GM_ERROR_STRIDE, &[&part]);
            }
            call.args[i].tensor.stride[axis] = right;
        }
    });
}

#[test]
fn rows_of_rms_norm_must_be_equally_spaced() {
    let mut call = call("rms_norm", 4);
    for name in ["x", "out"] {
        let tensor = &mut call.arg(name).tensor;
        (tensor.rank, tensor.shape, tensor.stride) = (3, [2, 2, 7, 0], [14, 7, 1, 0]);
    }
    call.arg("x").tensor.stride[0] = 15;
    call.refused(GM_ERROR_STRIDE, &["x.stride[0] = 15 must be 14", "equally spaced"]);
}

#[test]
fn alignment() {
    for_each_arg(|mut call, i, name| {
        let (data, size) = (call.args[i].tensor.data, if call.args[i].tensor.dtype == GM_F32 { 4 } else { 2 });
        for bytes in 1..size {
            let shifted = data.wrapping_byte_add(bytes);
            call.args[i].tensor.data = shifted;
            let part = format!("{name}.data = {} must be a multiple of {size}", shown(shifted));
            call.refused(GM_ERROR_ALIGNMENT, &[&part]);
        }
    });
}

#[test]
fn overlaps() {
    let in_place = [
        ("gated_mla", "out", "attn"),
        ("rms_norm", "out", "x"),
        ("mhc_post_collapse_rms_norm", "residual_out", "residual"),
    ];
    for_each_arg(|mut call, i, name| {
        if !call.args[i].output {
            return;
        }
        let own = call.args[i].tensor.data;
        for other in (0..call.args.len()).filter(|other| *other != i) {
            let (other_name, base) = (call.args[other].name, call.args[other].tensor.data);
            for bytes in [0, 4] {
                if bytes == 4 && call.args[other].tensor.shape == [1, 0, 0, 0] {
                    continue;
                }
                call.args[i].tensor.data = base.wrapping_byte_add(bytes);
                if bytes == 0 && in_place.contains(&(call.op, name, other_name)) {
                    assert_eq!(call.invoke(), GM_OK, "{}: {name} as {other_name}: {}", call.op, last_error());
                } else {
                    let at = shown(call.args[i].tensor.data);
                    let parts = [&at, &shown(base), name, other_name, "overlaps", "must"];
                    call.refused(GM_ERROR_OVERLAP, &parts.map(|p| p as &str));
                }
            }
        }
        call.args[i].tensor.data = own;
        call.succeeds();
    });
}

#[test]
fn a_strided_x_cannot_be_normalised_in_place() {
    let mut call = call("rms_norm", 3);
    call.arg("x").tensor.stride[0] = 8;
    let data = call.arg("x").tensor.data;
    call.arg("out").tensor.data = data;
    call.refused(GM_ERROR_OVERLAP, &["out", "x", "the same tensor"]);
}

#[test]
fn epsilons() {
    for op in OPERATORS {
        for i in 0..call(op, 3).floats.len() {
            for (wrong, text) in
                [(f32::NAN, "nan"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf"), (-0.25, "-0.25")]
            {
                let mut call = call(op, 3);
                call.floats[i].1 = wrong;
                let part = format!("{} = {text} must be finite and not negative", call.floats[i].0);
                call.refused(GM_ERROR_INVALID_VALUE, &[&part]);
            }
            for right in [0.0, 1e-20, 1e-45, f32::MAX] {
                let mut call = call(op, 3);
                call.floats[i].1 = right;
                call.succeeds();
            }
        }
    }
}

#[test]
fn modes_and_hc_hidden() {
    for (op, name, values, rule) in [
        ("hc_head", "mode", [2, -1, 255], "must be GM_HEAD_ROUNDED (0) or GM_HEAD_FP32 (1)"),
        ("mhc_pre_mix", "hc_hidden", [0, -1, i64::MIN], "must be at least 1"),
    ] {
        for value in values {
            let mut call = call(op, 3);
            call.int = value;
            call.refused(GM_ERROR_INVALID_VALUE, &[&format!("{name} = {value} {rule}")]);
        }
    }
}

#[test]
fn no_tokens() {
    for op in OPERATORS {
        let mut empty = call(op, 0);
        for arg in empty.args.iter_mut().filter(|arg| arg.tensor.shape[..arg.tensor.rank as usize].contains(&0)) {
            arg.tensor.data = ptr::null_mut();
            arg.tensor.stride = [-5; 4]; // ignored
        }
        assert_eq!(empty.invoke(), GM_OK, "{op}: {}", last_error());
        assert_eq!(last_kernel(), "none");
        empty.args[0].tensor.dtype = 9;
        empty.refused(GM_ERROR_DTYPE, &[empty.args[0].name]);
    }
}
