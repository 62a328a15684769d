//! Calls of the C operators whose operands lie on device 0.
use std::ffi::c_void;
use std::rc::Rc;

use gatemix::sys::*;

use crate::common::abi::{self, Arg, Call, element_size};
use crate::common::cuda::{self, Block, Stream};

/// What outputs begin with, and bytes of it behind every operand.
pub const GUARD: u8 = 0x5A;
const ROOM: usize = 4096;

pub struct OnDevice {
    pub call: Call,
    blocks: Vec<Block>,
    stream: Rc<Stream>,
}

impl OnDevice {
    pub fn new(op: &'static str, tokens: usize, hidden: usize, stream: &Rc<Stream>) -> OnDevice {
        OnDevice::of(abi::sized(op, tokens as i64, hidden as i64), tokens, stream)
    }

    /// `tokens` tokens that repeat those of `call`.
    pub fn of(mut call: Call, tokens: usize, stream: &Rc<Stream>) -> OnDevice {
        (call.exec.backend, call.exec.stream) = (GM_BACKEND_CUDA, stream.handle());
        call.args.iter_mut().for_each(token_major);
        let blocks = call.args.iter().map(|arg| repeated(arg, tokens, stream)).collect();
        let mut device = OnDevice { call, blocks, stream: stream.clone() };
        device.window(0, tokens);
        device
    }

    /// Of one token, in all arguments.
    pub fn token_bytes(&self) -> usize {
        self.call.args.iter().filter(|arg| arg.token_axis().is_some()).map(token_bytes).sum()
    }

    /// Narrows the call to some of the tokens.
    pub fn window(&mut self, first: usize, tokens: usize) {
        for (arg, block) in self.call.args.iter_mut().zip(&self.blocks) {
            arg.tensor.data = block.address();
            if let Some(axis) = arg.token_axis() {
                arg.tensor.data = block.address().wrapping_byte_add(first * token_bytes(arg));
                arg.tensor.shape[axis] = tokens as i64;
            }
        }
    }

    pub fn block(&self, name: &str) -> &Block {
        &self.blocks[self.call.args.iter().position(|arg| arg.name == name).unwrap()]
    }

    /// Other random inputs.
    pub fn fill(&mut self, seed: usize) {
        for (arg, block) in self.call.args.iter_mut().zip(&self.blocks).filter(|(arg, _)| !arg.output) {
            arg.fill(seed);
            block.write(0, &arg.bytes()[..block.bytes()]);
        }
    }

    /// Queues the call, which must leave no error behind.
    #[track_caller]
    pub fn launch(&self) {
        let status = self.call.invoke();
        assert_eq!(status, GM_OK, "{}: {}", self.call.op, abi::last_error());
        cuda::ok(cuda::cudaPeekAtLastError());
    }

    pub fn spoil_outputs(&self) {
        for (_, block) in self.call.args.iter().zip(&self.blocks).filter(|(arg, _)| arg.output) {
            block.fill(GUARD);
        }
    }

    /// Sets all of a token's inputs, to two bf16 numbers or one fp32 number.
    pub fn spoil_token(&self, token: usize, value: u32) {
        for (arg, block) in self.call.args.iter().zip(&self.blocks).filter(|(arg, _)| !arg.output) {
            if arg.token_axis().is_some() {
                block.write(token * token_bytes(arg), &vec![value; token_bytes(arg) / 4]);
            }
        }
    }

    /// The bytes of some tokens, counted from the window's first, in all outputs. Waits for the stream.
    pub fn read(&self, first: usize, tokens: usize) -> Vec<Vec<u8>> {
        let read = |arg: &Arg| {
            let mut bytes = vec![0u8; tokens * token_bytes(arg)];
            let from: *const c_void = arg.tensor.data.wrapping_byte_add(first * token_bytes(arg));
            // SAFETY: the tokens of a tensor.
            unsafe { self.stream.read(from, &mut bytes) };
            bytes
        };
        self.call.args.iter().filter(|arg| arg.output).map(read).collect()
    }

    /// The outputs of `tokens` tokens, computed anew.
    #[track_caller]
    pub fn run(&self, tokens: usize) -> Vec<Vec<u8>> {
        self.spoil_outputs();
        self.launch();
        self.read(0, tokens)
    }
}

/// Slices beside one another, so that a token's numbers are together.
fn token_major(arg: &mut Arg) {
    if arg.token_axis() == Some(1) {
        let slice = arg.tensor.shape[2..arg.tensor.rank as usize].iter().product();
        arg.tensor.stride[..2].copy_from_slice(&[slice, slice * arg.tensor.shape[0]]);
    }
}

fn token_bytes(arg: &Arg) -> usize {
    arg.tensor.stride[arg.token_axis().unwrap()] as usize * element_size(arg.tensor.dtype)
}

/// Device memory with the contents of an argument, and room behind it, as on the host.
fn repeated(arg: &Arg, tokens: usize, stream: &Rc<Stream>) -> Block {
    let Some(axis) = arg.token_axis() else { return stream.upload(&arg.memory) };
    let (some, all) = (arg.tensor.shape[axis] as usize * token_bytes(arg), tokens * token_bytes(arg));
    let block = stream.alloc(all + ROOM);
    block.fill(GUARD);
    block.write(0, &arg.bytes()[..some]);
    let mut done = some;
    while done < all {
        let more = done.min(all - done);
        block.copy(done, &block, 0, more);
        done += more;
    }
    block
}
