//! What a prepared call needs to start in few steps on shared memory.

use super::program::{Memory, Program};
use crate::engine::plan::Plan;
use crate::publications::{INLINE_BYTES, Members};
use crate::reduce::Kernel;
use crate::schedule::compiled::{Op, Operand};
use crate::schedule::{Buffer, Span};
use crate::wire::fingerprint::kind;

/// What a prepared call needs to start in few steps.
#[derive(Clone, Copy)]
pub struct QuickStart {
    /// Kind of the call.
    pub kind: u8,
    /// How the publications use the publication table's memory.
    pub memory: Memory,
    /// Who reads this rank's publications.
    pub readers: Members,
    /// See [`Program::peers`].
    pub peers: Members,
    /// The first publication, if it needs no preparation.
    pub first: Option<First>,
    /// The rest of the call.
    pub pair: Option<Pair>,
}

/// The first publication of a call, in the entry itself, if nothing comes before it.
#[derive(Clone, Copy)]
pub struct First {
    /// Whether it is of the input, else of the output.
    pub input: bool,
    /// Where it begins there, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
    /// Where what takes the place of scratch memory begins there, else the same as `offset`.
    pub scratch: usize,
    /// The elements that it is of, as the program names them.
    span: Span,
    /// The operation after it.
    pub next: usize,
}

/// What a call executes after its first publication, if it is one combination of what it has published with a
/// publication of another member. As the program has the publication's copy, it waits for no reader.
#[derive(Clone, Copy)]
pub struct Pair {
    /// The member, and the number of its publication.
    pub member: usize,
    /// See `member`.
    pub publication: u32,
    /// Where the operand begins and ends in that publication, in bytes.
    pub at: usize,
    /// See `at`.
    pub end: usize,
    /// Whether the own operand is the left one.
    pub is_left: bool,
    /// Where the result begins in the output, in bytes.
    pub into: usize,
    /// Number of elements.
    pub count: usize,
    /// Combines them.
    pub kernel: Kernel,
}

impl QuickStart {
    /// The quick start of a call with `digest` by `plan`, which has `program`, with elements of `element` bytes, which
    /// `kernel` combines, if one does. `reads`: whether ranks read the memory of each other's processes.
    pub fn new(
        plan: &Plan,
        program: &Program,
        element: usize,
        kernel: Option<Kernel>,
        digest: u64,
        reads: bool,
    ) -> Self {
        let first = First::of(plan, program, element);
        Self {
            kind: kind(digest),
            memory: program.memory(element, reads),
            readers: program.readers,
            peers: program.peers,
            pair: first.zip(kernel).and_then(|(first, kernel)| Pair::of(program, &first, element, kernel)),
            first,
        }
    }
}

impl First {
    /// The first publication of a plan with `program` and elements of `element` bytes. `None` if the call needs scratch
    /// memory, since it may not get any.
    fn of(plan: &Plan, program: &Program, element: usize) -> Option<Self> {
        let copy = program.skips_copy(element);
        if copy.is_none() && plan.scratch > 0 {
            return None;
        }
        let at = usize::from(copy.is_some());
        let Some(&Op::Publish(span)) = program.ops.get(at) else { return None };
        let mut from = span;
        if let Some(copy) = copy {
            if from.buffer != Buffer::Scratch {
                return None;
            }
            (from.buffer, from.offset) = (copy.buffer, copy.offset + from.offset);
        }
        let input = match from.buffer {
            Buffer::Input(_) => true,
            Buffer::Output(_) => false,
            // A signal has no bytes.
            Buffer::Scratch if from.len == 0 => false,
            Buffer::Scratch => return None,
        };
        let (offset, bytes) = (from.offset * element, from.len * element);
        let scratch = copy.map_or(offset, |copy| copy.offset * element);
        (bytes <= INLINE_BYTES).then_some(Self { input, offset, bytes, scratch, span, next: at + 1 })
    }
}

impl Pair {
    /// What a call of two ranks does after its first publication `first`, by `program`, with elements of `element`
    /// bytes.
    fn of(program: &Program, first: &First, element: usize, kernel: Kernel) -> Option<Self> {
        let [Op::Combine { operands, into }, Op::AwaitReaders] = &program.ops[first.next..] else { return None };
        let (own, peer, is_left) = match program.operands[operands.clone()] {
            [Operand::Own(own), peer] => (own, peer, true),
            [peer, Operand::Own(own)] => (own, peer, false),
            _ => return None,
        };
        let Operand::Peer { from, publication, at } = peer else { return None };
        if own != first.span || first.scratch != first.offset || !matches!(into.buffer, Buffer::Output(_)) {
            return None;
        }
        let (at, bytes) = (at * element, into.len * element);
        let (member, end, count) = (from as usize, at + bytes, into.len);
        Some(Self { member, publication, at, end, is_left, into: into.offset * element, count, kernel })
    }
}
