//! `gated_mla` of every form where operands lie anywhere, in graphs, on several streams and devices, again and again.
use std::env;

use crate::common::cases::Gate;
use crate::common::cuda::{self, Stream};
use crate::common::{abi::last_kernel, rerun, skip};
use crate::gate::{FLAGS, OnGpu, assert_same, result_of, run_at_the_end};

/// m, n and k of shapes for all forms: those of a few rows, of up to 128, of many, and without alignment.
const SHAPES: [[usize; 3]; 11] = [
    [4, 512, 6144],
    [16, 2048, 320],
    [8, 16384, 72],
    [33, 4096, 320],
    [128, 1024, 6144],
    [129, 16384, 72],
    [300, 2048, 320],
    [1000, 8192, 320],
    [7, 512, 33],
    [200, 1024, 65],
    [700, 2048, 100],
];

/// Runs a test with each shape.
fn for_each_shape(mut test: impl FnMut(&Gate, &[u16])) {
    for [m, n, k] in SHAPES {
        let case = Gate::with_one_result(m, n, k);
        test(&case, &result_of(&case));
    }
}

pub fn operands_anywhere() {
    let stream = Stream::new();
    for_each_shape(|case, want| {
        let one = (0..4).flat_map(|i| [1, 2, 4].map(|by| std::array::from_fn(|j| if i == j { by } else { 0 })));
        for shifts in one.chain([[1, 1, 1, 1], [1, 3, 5, 7], [0, 0, 2, 2], [0, 0, 1, 3], [4, 4, 4, 4]]) {
            let gpu = OnGpu::new(case, shifts, &stream);
            FLAGS.iter().for_each(|flags| gpu.check(&format!("shifts {shifts:?}"), case.m, *flags, want));
        }
    });
}

pub fn in_place() {
    let stream = Stream::new();
    for_each_shape(|case, want| {
        for (shift, flags) in [0, 1, 2].into_iter().flat_map(|shift| FLAGS.map(|flags| (shift, flags))) {
            let gpu = OnGpu::new(case, [0, 0, 0, shift], &stream);
            gpu.spoil_out();
            gpu.launch_in_place(case.m, flags);
            gpu.assert_rows(&format!("in place, shift {shift} flags {flags}"), 0, want);
        }
    });
}

/// The last, as a fault would end the process's use of the device.
pub fn at_the_end_of_device_memory() {
    let stream = Stream::new();
    for_each_shape(|case, want| {
        for flags in FLAGS {
            let got = run_at_the_end(case, flags, &stream);
            let what = format!("{} m {} n {} k {} flags {flags}", last_kernel(), case.m, case.n, case.k);
            assert_same(&what, &got, want, case.n);
        }
    });
}

/// Of inputs whose last bits depend on the order of summation.
pub fn a_hundred_repeats() {
    let stream = Stream::new();
    for [m, n, k] in SHAPES.into_iter().chain([[4096, 1024, 6144]]) {
        let (case, other) = (Gate::random(m, n, k), Gate::random(9, 256, 65));
        let (gpu, other) = (OnGpu::new(&case, [0; 4], &stream), OnGpu::new(&other, [0; 4], &stream));
        for flags in FLAGS {
            gpu.launch(0, m, flags);
            let want = gpu.rows(0, m);
            for round in 0..100 {
                gpu.spoil_out();
                other.launch(0, 9, flags);
                gpu.launch(0, m, flags);
                assert_same(
                    &format!("{} m {m} n {n} k {k} flags {flags}, round {round}", last_kernel()),
                    &gpu.rows(0, m),
                    &want,
                    n,
                );
            }
        }
    }
}

const ONLY: &str = "GATEMIX_TEST_SHAPE";

/// Of one shape, if the environment says so.
pub fn capture_and_replay() {
    let only: Option<usize> = env::var(ONLY).ok().map(|index| index.parse().unwrap());
    for (_, [m, n, k]) in SHAPES.into_iter().enumerate().filter(|(i, _)| only.is_none_or(|only| only == *i)) {
        let first = Gate::with_one_result(m, n, k);
        let second = first.reversed();
        let wants = [&first, &second].map(result_of);
        assert!(wants[0] != wants[1], "other inputs, the same results");
        for flags in FLAGS {
            let stream = Stream::new();
            let mut gpu = OnGpu::new(&first, [0; 4], &stream);
            gpu.spoil_out();
            let graph = stream.capture(|| gpu.launch(0, m, flags)); // before any other call
            assert_eq!(graph.node_count(), 1, "{}", last_kernel());
            for (case, want) in [(&first, &wants[0]), (&second, &wants[1]), (&first, &wants[0])] {
                gpu.refill(case);
                gpu.spoil_out();
                graph.launch(&stream);
                gpu.assert_rows(&format!("replay, flags {flags}"), 0, want);
            }
        }
    }
}

pub fn capture_is_the_first_call_of_a_process() {
    for i in 0..SHAPES.len() {
        rerun("cuda::gated_mla_calls::capture_and_replay", &[(ONLY, Some(&i.to_string()))]);
    }
}

/// Every form beside every other.
pub fn two_streams_at_once() {
    let cases: Vec<Gate> = SHAPES.iter().map(|[m, n, k]| Gate::with_one_result(*m, *n, *k)).collect();
    let wants: Vec<Vec<u16>> = cases.iter().map(result_of).collect();
    let gpus: Vec<OnGpu> = cases.iter().map(|case| OnGpu::new(case, [0; 4], &Stream::new())).collect();
    for (a, b) in (0..cases.len()).flat_map(|a| (a + 1..cases.len()).map(move |b| (a, b))) {
        for flags in FLAGS {
            [a, b].iter().for_each(|i| gpus[*i].spoil_out());
            (0..4).for_each(|_| [a, b].iter().for_each(|i| gpus[*i].launch(0, cases[*i].m, flags)));
            [a, b].iter().for_each(|i| gpus[*i].assert_rows(&format!("{a} and {b}, flags {flags}"), 0, &wants[*i]));
        }
    }
}

/// While another device is the current one.
pub fn a_second_device() {
    if cuda::device_count() < 2 {
        skip("this takes two devices");
    }
    for_each_shape(|case, want| {
        cuda::ok(cuda::cudaSetDevice(1));
        let mut gpu = OnGpu::new(case, [0; 4], &Stream::new());
        gpu.device = 1;
        cuda::ok(cuda::cudaSetDevice(0));
        for flags in FLAGS {
            gpu.check("device 1", case.m, flags, want);
            assert_eq!(cuda::current_device(), 0);
        }
    });
}
