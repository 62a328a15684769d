//! `gated_mla` over a grid of shapes that no CPU could go through element by element in float64.
use std::collections::{BTreeMap, BTreeSet};

use gatemix::sys::GM_BATCH_INVARIANT;
use half::bf16;

use crate::common::abi::last_kernel;
use crate::common::cases::{Case, Exact, Gate, sample};
use crate::common::compare::{Errors, assert_each};
use crate::common::cuda::Stream;
use crate::common::say;
use crate::gate::{FLAGS, OnGpu, assert_same, result_of};

const ROWS: [usize; 19] = [1, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 4096];
const MOST: usize = 4096;
const WIDTHS: [usize; 5] = [256, 512, 1024, 2048, 16384];
const DEPTHS: [usize; 13] = [1, 2, 7, 8, 33, 63, 64, 65, 72, 100, 320, 6144, 7168];

fn shapes() -> impl Iterator<Item = (usize, usize)> {
    WIDTHS.into_iter().flat_map(|n| DEPTHS.map(|k| (n, k)))
}

/// Against the CPU's kernel, bit by bit. The rows of a smaller m are the first ones of the largest.
pub fn every_element_of_a_grid() {
    let (stream, mut kernels) = (Stream::new(), BTreeSet::new());
    for (n, k) in shapes() {
        let case = Gate::with_one_result(MOST, n, k);
        let want = result_of(&case);
        let gpu = OnGpu::new(&case, [0; 4], &stream);
        for (m, flags) in ROWS.into_iter().flat_map(|m| FLAGS.map(|flags| (m, flags))) {
            gpu.check("", m, flags, &want);
            kernels.insert(last_kernel());
        }
    }
    say(&format!("kernels over the grid: {kernels:?}"));
    let of = |arch| kernels.iter().any(|kernel: &String| kernel.contains(arch));
    let mut forms = vec!["sm80/decode", "sm80/prefill", "sm80/decode/unaligned", "sm80/prefill/unaligned"];
    forms.extend(["sm90/direct", "sm90/decode", "sm90/prefill"].iter().filter(|_| of("/sm90/")));
    let missing: Vec<&str> =
        forms.into_iter().filter(|form| !kernels.contains(&format!("gated_mla/cuda/{form}"))).collect();
    assert!(missing.is_empty(), "the grid has no shape for {missing:?}");
}

/// Elements of random inputs: the first and last row of every m, some rows between, and some columns.
fn samples(case: &Gate) -> Vec<Exact> {
    let ends = ROWS.iter().map(|m| m - 1).chain([0, 2, 40, 100, 511, 513, 2047, 2048, 3000]);
    let rows: BTreeSet<usize> = ends.collect();
    case.exact_at(&rows.into_iter().collect::<Vec<_>>(), &sample(case.n, 512))
}

/// Against float64, with errors no larger than those of the steps in bf16.
pub fn samples_of_a_grid_against_float64() {
    let stream = Stream::new();
    let mut errors = vec![[Errors::default(); 2]; FLAGS.len()];
    for (n, k) in shapes() {
        let case = Gate::random(MOST, n, k);
        let exact = samples(&case);
        let gpu = OnGpu::new(&case, [0; 4], &stream);
        for (m, flags) in ROWS.into_iter().flat_map(|m| FLAGS.map(|flags| (m, flags))) {
            let exact: Vec<&Exact> = exact.iter().filter(|e| e.at.0 < m).collect();
            let [ours, eager] = check_samples(&gpu, &exact, [m, n, k], flags);
            let total = &mut errors[FLAGS.iter().position(|f| *f == flags).unwrap()];
            (total[0], total[1]) = (total[0].and(ours), total[1].and(eager));
        }
    }
    for (flags, [ours, eager]) in FLAGS.iter().zip(errors) {
        say(&format!("gated_mla over the grid, flags {flags}: error {ours}, eager bf16 {eager}"));
    }
}

fn check_samples(gpu: &OnGpu, exact: &[&Exact], [m, n, k]: [usize; 3], flags: i32) -> [Errors; 2] {
    gpu.spoil_out();
    gpu.launch(0, m, flags);
    let what = format!("{} m {m} n {n} k {k} flags {flags}", last_kernel());
    let mut rows = BTreeMap::new();
    exact.iter().for_each(|e| _ = rows.entry(e.at.0).or_insert_with(|| gpu.rows(e.at.0, 1)));
    let got = |e: &Exact| bf16::from_bits(rows[&e.at.0][e.at.1]);
    assert_each(&what, exact.iter().map(|e| (e.at, got(e), e.near)), |got, near| near.admits(*got));
    let (mut ours, mut eager) = (Errors::default(), Errors::default());
    for e in exact {
        ours.add(got(e), e.near.value);
        eager.add(e.eager, e.near.value);
    }
    assert!(ours.at_most(eager), "{what}: error {ours}, eager bf16 {eager}");
    [ours, eager]
}

/// Numbers of rows, on both sides of where another form takes over and between, and the first row of such a batch.
fn batches(n: usize) -> BTreeSet<(usize, usize)> {
    // Tiles of 128 rows from which on gated_mla.cu takes the prefill form, and the wider one.
    let tiles = [(40 * 128usize).div_ceil(n).max(2), (120 * 256usize).div_ceil(n)];
    let changes = tiles.iter().flat_map(|tiles| [128 * (tiles - 1), 128 * (tiles - 1) + 1]);
    let fixed = [1, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 300, 1000, MOST];
    let sizes = fixed.into_iter().chain(changes).filter(|m| (1..=MOST).contains(m));
    sizes.flat_map(|m| [0, 8, MOST / 2, MOST - m].map(|first| (m, first.min(MOST - m)))).collect()
}

/// With GM_BATCH_INVARIANT: alone, in batches of any number of rows, and in any place there.
pub fn batch_invariant_rows() {
    let stream = Stream::new();
    for (n, k) in WIDTHS.into_iter().flat_map(|n| [65, 72, 1024, 6144].map(|k| (n, k))) {
        let case = Gate::random(MOST, n, k);
        let gpu = OnGpu::new(&case, [0; 4], &stream);
        for flags in FLAGS.into_iter().filter(|flags| flags & GM_BATCH_INVARIANT != 0) {
            gpu.launch(0, MOST, flags);
            let (all, kernel) = (gpu.rows(0, MOST), last_kernel());
            for (m, first) in batches(n) {
                gpu.spoil_out();
                gpu.launch(first, m, flags);
                let what = format!("{} m {m} n {n} k {k} flags {flags}, row {first} of {kernel}", last_kernel());
                assert_same(&what, &gpu.rows(first, m), &all[first * n..][..m * n], n);
            }
        }
    }
}

/// With GM_BATCH_INVARIANT other rows may be anything.
pub fn batch_invariant_rows_beside_spoilt_ones() {
    let stream = Stream::new();
    for (m, n, k) in [(16, 2048, 6144), (128, 2048, 6144), (1000, 16384, 72), (4096, 2048, 320)] {
        let case = Gate::random(m, n, k);
        let spoilt = [f32::NAN, f32::INFINITY, 100.0].map(|value| {
            let mut spoilt = case.pick(&(0..m).collect::<Vec<_>>());
            (5..m).step_by(16).for_each(|row| spoilt.spoil(row, value));
            (value, spoilt)
        });
        let mut gpu = OnGpu::new(&case, [0; 4], &stream);
        for flags in FLAGS.into_iter().filter(|flags| flags & GM_BATCH_INVARIANT != 0) {
            gpu.refill(&case);
            gpu.launch(0, m, flags);
            let before = gpu.rows(0, m);
            for (value, spoilt) in &spoilt {
                gpu.refill(spoilt);
                gpu.launch(0, m, flags);
                let mut after = gpu.rows(0, m);
                (5..m).step_by(16).for_each(|row| after[row * n..][..n].copy_from_slice(&before[row * n..][..n]));
                let what = format!("{} m {m} n {n} k {k} flags {flags}, beside {value}", last_kernel());
                assert_same(&what, &after, &before, n);
            }
        }
    }
}
