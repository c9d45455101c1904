//! An interpreter of PTX, the assembly language of NVIDIA's drivers: of the instructions that `src/cuda/kernels.ptx`
//! consists of, and no others. What it does not know is an error that names the line.
//!
//! A module is translated once; its kernels are launched any number of times. Threads run one after the other, so
//! kernels whose threads wait for each other cannot be run, and the instructions for that are unknown. Every access to
//! memory is checked against a map of what is accessible, and must be aligned to its bytes, as on a GPU.
//!
//! Arithmetic is that of a GPU: rounded to nearest, ties to even, with subnormal numbers; any NaN that an operation on
//! float32 returns is 0x7FFFFFFF.

mod execute;
mod functions;
mod memory;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

pub use execute::{Geometry, Order};
pub use memory::AddressMap;

/// What a text says that the interpreter does not know, or what a kernel does that a GPU would not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kernels of a PTX file.
#[derive(Debug)]
pub struct Module {
    /// The version of PTX that the file is in: major, minor.
    pub version: (u32, u32),
    /// The oldest architecture that it can be compiled for, such as `sm_70`.
    pub target: String,
    kernels: HashMap<String, Kernel>,
}

impl Module {
    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }

    /// The names of all kernels, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }
}

/// A kernel, translated.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    /// The bytes of each parameter, which `cuLaunchKernel` reads at the address it is given for it.
    pub parameters: Vec<usize>,
    /// Most threads of a block.
    pub most_threads: u32,
    /// What the registers hold before the first instruction: the constants of the instructions, and in all others what
    /// a program that reads a register before it writes it should not find there.
    registers: Vec<u64>,
    instructions: Vec<Instruction>,
    /// The line and the text of each instruction.
    lines: Vec<(u32, String)>,
}

/// The place of a register or a constant in [`Kernel::registers`].
type Slot = u32;

/// The registers that tell a thread which one it is; they come first. In every direction but x there is one of each.
const SPECIAL: [&str; 4] = ["%ctaid.x", "%nctaid.x", "%tid.x", "%ntid.x"];

#[derive(Clone, Debug)]
struct Instruction {
    /// The predicate on which it depends, and which value it must have.
    guard: Option<(Slot, bool)>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Makes the value of a register of those of others.
    Compute {
        function: Function,
        into: Slot,
        operands: [Slot; 4],
    },
    Load {
        space: Space,
        element: Element,
        into: [Slot; 4],
        number: u32,
        address: Slot,
        offset: u64,
    },
    Store {
        element: Element,
        from: [Slot; 4],
        number: u32,
        address: Slot,
        offset: u64,
    },
    /// Goes on with the instruction of this number.
    Branch(usize),
    Return,
}

/// The value of a register from those of one or more operands. A value is in the lowest bits; the others are 0.
#[derive(Clone, Copy, Debug)]
enum Function {
    One(fn(u64) -> u64),
    Two(fn(u64, u64) -> u64),
    Three(fn(u64, u64, u64) -> u64),
    Four(fn(u64, u64, u64, u64) -> u64),
}

impl Function {
    fn operands(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Two(_) => 2,
            Self::Three(_) => 3,
            Self::Four(_) => 4,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Global,
    /// Addresses begin at 0, where the parameters do.
    Parameters,
}

/// One of the elements that a load or a store moves.
#[derive(Clone, Copy, Debug)]
struct Element {
    bytes: u32,
    /// If it is a signed number, the bits of the register that it is extended to.
    signed_to: Option<u32>,
}
