//! Calls of `gated_mla` on parts of operands that lie anywhere on a device.
use std::ffi::c_void;
use std::rc::Rc;

use gatemix::sys::*;
use half::bf16;

use crate::common::abi::{cpu_exec, last_error, last_kernel, tensor};
use crate::common::cases::Gate;
use crate::common::compare::assert_each;
use crate::common::cuda::{self, Block, Stream};
use crate::common::data::Buf;
use crate::fence::Fenced;

/// Every way to run.
pub const FLAGS: [i32; 6] =
    [0, GM_PORTABLE, GM_PDL, GM_BATCH_INVARIANT, GM_PORTABLE | GM_BATCH_INVARIANT, GM_PDL | GM_BATCH_INVARIANT];

/// Bytes around an operand: NaN, or the guard of an output.
const ROOM: usize = 4096;
const NAN: u8 = 0xFF;
const GUARD: u8 = 0x5A;

struct Operand {
    block: Block,
    at: usize,
}

impl Operand {
    fn new(data: &[bf16], shift: usize, fill: u8, stream: &Rc<Stream>) -> Operand {
        let at = ROOM + 2 * shift;
        let block = stream.alloc(at + size_of_val(data) + ROOM);
        block.fill(fill);
        block.write(at, data);
        Operand { block, at }
    }

    fn address(&self) -> *mut c_void {
        self.block.address().wrapping_byte_add(self.at)
    }
}

/// Where x, weight, attn and out begin.
type Addresses = [*mut c_void; 4];

/// Elements that x, weight, attn and out begin past a multiple of 16 bytes.
pub type Shifts = [usize; 4];

pub struct OnGpu<'a> {
    case: &'a Gate,
    pub device: i32,
    stream: Rc<Stream>,
    x: Operand,
    weight: Operand,
    attn: Operand,
    out: Operand,
}

impl<'a> OnGpu<'a> {
    pub fn new(case: &'a Gate, shifts: Shifts, stream: &Rc<Stream>) -> OnGpu<'a> {
        let [x, weight, attn] = [(&case.x, 0), (&case.weight, 1), (&case.attn, 2)]
            .map(|(data, i): (&Buf<bf16>, usize)| Operand::new(data, shifts[i], NAN, stream));
        let out = Operand::new(&case.attn, shifts[3], GUARD, stream);
        OnGpu { case, device: 0, stream: stream.clone(), x, weight, attn, out }
    }

    /// Other inputs of the same shape.
    pub fn refill(&mut self, case: &'a Gate) {
        assert_eq!((self.case.m, self.case.n, self.case.k), (case.m, case.n, case.k));
        self.case = case;
        for (operand, data) in [(&self.x, &case.x), (&self.weight, &case.weight), (&self.attn, &case.attn)] {
            operand.block.write(operand.at, data);
        }
    }

    pub fn spoil_out(&self) {
        self.out.block.fill(GUARD);
    }

    /// Queues the call for `m` rows from `first` on.
    #[track_caller]
    pub fn launch(&self, first: usize, m: usize, flags: i32) {
        let (n, k) = (self.case.n, self.case.k);
        let at = |operand: &Operand, row: usize| operand.address().wrapping_byte_add(2 * first * row);
        let addresses = [at(&self.x, k), self.weight.address(), at(&self.attn, n), at(&self.out, n)];
        launch(addresses, [m, n, k], self.device, &self.stream, flags);
    }

    /// The same with out for attn, which it begins as.
    #[track_caller]
    pub fn launch_in_place(&self, m: usize, flags: i32) {
        let (n, k) = (self.case.n, self.case.k);
        self.out.block.copy(self.out.at, &self.attn.block, self.attn.at, 2 * m * n);
        let addresses = [self.x.address(), self.weight.address(), self.out.address(), self.out.address()];
        launch(addresses, [m, n, k], self.device, &self.stream, flags);
    }

    /// Rows of out.
    pub fn rows(&self, first: usize, rows: usize) -> Vec<u16> {
        let mut bits = vec![0u16; rows * self.case.n];
        self.out.block.read(self.out.at + 2 * first * self.case.n, &mut bits);
        bits
    }

    /// out is `want` in the rows that the last call was for, and what lies around them is untouched.
    #[track_caller]
    pub fn assert_rows(&self, what: &str, first: usize, want: &[u16]) {
        let n = self.case.n;
        let what = format!("{what}: {} of {} rows n {n} k {}", last_kernel(), want.len() / n, self.case.k);
        assert_same(&what, &self.rows(first, want.len() / n), want, n);
        let begin = self.out.at + 2 * first * n;
        let mut around = [[0u8; ROOM]; 2];
        self.out.block.read(begin - ROOM, &mut around[0]);
        self.out.block.read(begin + size_of_val(want), &mut around[1]);
        assert!(around.as_flattened().iter().all(|byte| *byte == GUARD), "{what}: elements around them are written");
    }

    #[track_caller]
    pub fn check(&self, what: &str, m: usize, flags: i32, want: &[u16]) {
        self.spoil_out();
        self.launch(0, m, flags);
        self.assert_rows(&format!("{what} flags {flags}"), 0, &want[..m * self.case.n]);
    }
}

#[track_caller]
fn launch(addresses: Addresses, [m, n, k]: [usize; 3], device: i32, stream: &Stream, flags: i32) {
    let shapes = [[m, k], [n, k], [m, n], [m, n]].map(|shape| shape.map(|size| size as i64));
    let [x, weight, attn, out] = [0, 1, 2, 3].map(|i| tensor(addresses[i], GM_BF16, &shapes[i], &[shapes[i][1], 1]));
    let (backend, stream) = (GM_BACKEND_CUDA, stream.handle());
    let exec = gm_exec { backend, device, stream, flags: flags as u32, ..cpu_exec() };
    // SAFETY: the tensors lie inside of their operands.
    let status = unsafe { gm_gated_mla(&exec, &x, &weight, &attn, &out) };
    assert_eq!(status, GM_OK, "m {m} n {n} k {k} flags {flags}: {}", last_error());
    cuda::ok(cuda::cudaPeekAtLastError());
    assert!(flags & GM_PORTABLE == 0 || !last_kernel().contains("/sm90/"), "{}", last_kernel());
}

/// Every operand ends where its device memory does. Returns out.
pub fn run_at_the_end(case: &Gate, flags: i32, stream: &Rc<Stream>) -> Vec<u16> {
    let [x, weight, attn] = [&case.x, &case.weight, &case.attn].map(|data| Fenced::new(data, stream));
    let out = Fenced::new(&case.attn, stream);
    let addresses = [x.address(), weight.address(), attn.address(), out.address()];
    launch(addresses, [case.m, case.n, case.k], 0, stream, flags);
    let mut bits = vec![0u16; case.m * case.n];
    // SAFETY: out is as large.
    unsafe { stream.read(out.address(), &mut bits) };
    bits
}

/// What all kernels must give for [`Gate::with_one_result`].
pub fn result_of(case: &Gate) -> Vec<u16> {
    case.run(&gatemix::Exec::cpu().into()).iter().map(|v| v.to_bits()).collect()
}

/// Fails with the first element that differs.
#[track_caller]
pub fn assert_same(what: &str, got: &[u16], want: &[u16], n: usize) {
    if got != want {
        let items = got.iter().zip(want).enumerate().map(|(i, (got, want))| {
            let value = |bits: &u16| bf16::from_bits(*bits);
            ((i / n, i % n), value(got), value(want))
        });
        assert_each(what, items, |got, want| got.to_bits() == want.to_bits());
    }
}
