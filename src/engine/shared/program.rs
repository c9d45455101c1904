//! Schedules that use nothing but the host's shared memory, compiled for one thread that executes their steps in order.

use std::ops::{Range, RangeInclusive};

use super::COPIED_BYTES;
use crate::collective::constants::Constants;
use crate::reduce::Side;
use crate::schedule::{Action, Buffer, Readers, Schedule, Span};
use crate::transport::board::{CELL_BYTES, INLINE_BYTES, LINE, MAX_MEMBERS, MAX_PUBLICATIONS, Members, PIECES};

/// An operand.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Elements of this rank's buffers.
    Own(Span),
    /// Elements of the publication with this number of rank `from`, from element `at` on.
    Peer { from: u32, publication: u32, at: usize },
}

/// An operation.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Publishes a span.
    Publish(Span),
    /// `into` = the operands, which are a range of [`Program::operands`], combined from left to right; a copy if there is one.
    Combine { operands: Range<usize>, into: Span },
    /// `span = span / by`.
    Divide { span: Span, by: u32 },
    /// Waits until the readers have finished, if something was published by reference.
    AwaitReaders,
}

/// A compiled schedule.
#[derive(Debug)]
pub struct Program {
    /// What is executed, in this order.
    pub ops: Box<[Op]>,
    /// The operands of all operations.
    pub operands: Box<[Operand]>,
    /// Elements of each publication.
    pub published: Box<[usize]>,
    /// Who reads each of them.
    pub to: Box<[Members]>,
    /// Which of them may be by reference because one rank reads them.
    sole: Box<[bool]>,
    /// Whether publications may be streams, of which readers read each once from the beginning to the end.
    pub streams: bool,
    /// If so: lengths in bytes of those with one reader that are by reference.
    pub by_reference: RangeInclusive<usize>,
    /// Which members read this rank's publications.
    pub readers: Members,
    /// For each member: the last operation that reads its publications.
    pub last_fetch: Box<[usize]>,
    /// If all that the first operation does is to copy these elements to scratch memory, so that others can read them: see
    /// [`Program::skips_copy`].
    aside: Option<Span>,
}

/// How the publications of a program use the memory on the board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that they take, apart from the slot.
    pub room: usize,
    /// Bytes of the longest publication that is copied as a whole.
    pub copied: usize,
    /// Bytes of the ring of each longer one; 0 if these are published by reference.
    pub ring: usize,
}

/// The same as [`COPIED_BYTES`] for a rank that fetches nothing.
const COPIED_ALONE_BYTES: usize = COPIED_BYTES / 32;
/// A rank that fetches nothing writes a stream while others read it, so streams are as fast as reads by the operating system from so
/// much shorter a length on.
const ALONE: usize = 8;
/// Longest ring: half a second-level cache.
const RING_BYTES: usize = 1 << 20;
/// Shortest ring that is better than reads by the operating system.
const SHORTEST_RING_BYTES: usize = 32 << 10;

/// A combination that the next steps may extend.
struct Chain {
    first: usize,
    into: Span,
}

struct Compiler<'a> {
    schedule: &'a Schedule,
    ops: Vec<Op>,
    operands: Vec<Operand>,
    chain: Option<Chain>,
}

impl Program {
    /// Compiles `schedule` of a rank of `members`; `None` if it has other steps than those of one thread and shared memory. `fused`: chains of
    /// reductions become one operation with many operands, which a kernel combines in one pass.
    pub fn new(schedule: &Schedule, members: usize, fused: bool) -> Option<Self> {
        let mut compiler = Compiler { schedule, ops: Vec::new(), operands: Vec::new(), chain: None };
        let (mut to_all, mut published) = (Vec::new(), Vec::new());
        let mut shared = false;
        for (index, step) in schedule.steps.iter().enumerate() {
            shared |= step.action.is_shared();
            match step.action {
                Action::Send { .. } | Action::Recv { .. } | Action::RecvReduce { .. } => return None,
                Action::Publish { to, from } => {
                    // Every listed reader fetches from each publication that lists it.
                    to_all.push(match to {
                        Readers::All => Members::MAX,
                        Readers::One(rank) => Members::from(1u8).checked_shl(rank)?,
                        Readers::Set(set) => set,
                    });
                    published.push(from.len);
                    compiler.finish(Op::Publish(from));
                }
                Action::AwaitReaders => compiler.finish(Op::AwaitReaders),
                Action::Divide { span, by } => compiler.finish(Op::Divide { span, by }),
                ref action => compiler.combine(index, action, fused),
            }
        }
        compiler.flush();
        let Compiler { ops, operands, .. } = compiler;
        let mut last_fetch = vec![0; members];
        for (index, op) in ops.iter().enumerate() {
            let Op::Combine { operands: range, .. } = op else { continue };
            for operand in &operands[range.clone()] {
                if let Operand::Peer { from, .. } = operand {
                    last_fetch[*from as usize] = index;
                }
            }
        }
        // More than two ranks, some of which share cores, would wait for each other's reads in the middle of the call.
        let reduces = ops.iter().any(|op| matches!(op, Op::Combine { operands, .. } if operands.len() > 1));
        (shared && published.len() <= MAX_PUBLICATIONS).then(|| Self {
            by_reference: by_reference(&Constants::here(), &operands),
            aside: aside(schedule.scratch, &ops, &operands, &published),
            last_fetch: last_fetch.into(),
            ops: ops.into(),
            operands: operands.into(),
            published: published.into(),
            readers: to_all.iter().fold(0, |all, to| all | to),
            sole: to_all.iter().map(|to| members == 2 || to.count_ones() == 1 && !reduces).collect(),
            to: to_all.into(),
            streams: true,
        })
    }
}

impl Program {
    /// The elements that take the place of all scratch memory, if the first operation need not be executed, since elements have
    /// `element` bytes.
    #[inline]
    pub fn skips_copy(&self, element: usize) -> Option<Span> {
        // Such a publication is a copy itself.
        let is_copy = |(publication, len): (usize, &usize)| {
            let bytes = len * element;
            bytes <= COPIED_BYTES && !self.is_by_reference(publication, bytes)
        };
        self.aside.filter(|_| self.published.iter().enumerate().all(is_copy))
    }

    /// Whether `publication`, of `bytes`, is by reference because the operating system reads it faster out of its rank's memory than it
    /// is copied twice.
    #[inline]
    pub fn is_by_reference(&self, publication: usize, bytes: usize) -> bool {
        self.streams && self.sole[publication] && self.by_reference.contains(&bytes)
    }

    /// Bytes of the publications but for those.
    fn copies(&self, element: usize) -> impl Iterator<Item = usize> {
        let all = self.published.iter().map(move |len| len * element).enumerate();
        all.filter(|(publication, bytes)| !self.is_by_reference(*publication, *bytes)).map(|(_, bytes)| bytes)
    }

    /// How the publications use the board's memory, if elements have `element` bytes.
    pub fn memory(&self, element: usize) -> Memory {
        // While all ranks copy, none waits; but if only this one publishes, the others read while it writes.
        let (mut copied, mut ring) =
            (if fetches(&self.operands) || !self.streams { COPIED_BYTES } else { COPIED_ALONE_BYTES }, 0);
        let bytes = || self.copies(element);
        let taken = |copied, ring| -> usize {
            let one = |bytes: usize| if bytes <= copied { bytes.next_multiple_of(LINE) } else { ring };
            bytes().map(one).sum()
        };
        let longer = |copied| bytes().filter(|bytes| *bytes > copied).count();
        if self.streams && (longer(copied) > 0 || taken(copied, 0) > CELL_BYTES) {
            let rings = |number: usize, room: usize| {
                // Pieces are of whole elements, and of whole cache lines.
                let unit = PIECES * LINE * element;
                let ring = (room / number.max(1)).min(RING_BYTES) / unit * unit;
                if ring < SHORTEST_RING_BYTES { 0 } else { ring }
            };
            // As many as possible are copied as a whole, or all get the same.
            let rest = CELL_BYTES.saturating_sub(taken(copied, 0));
            ring = rings(longer(copied), rest);
            if ring < RING_BYTES / 2 {
                ring = rings(self.published.len(), CELL_BYTES);
                copied = if ring > 0 { ring } else { copied };
                // Many short streams of one reader each take longer than reads by the operating system: an alltoall of 4 to 32 MiB
                // of eight ranks on two cores 1.2 to 1.6 times as long.
                if ring < RING_BYTES / 2 && self.sole.iter().all(|sole| *sole) {
                    ring = 0;
                }
            }
        }
        let room = match *self.published {
            [only] if only * element <= INLINE_BYTES => 0,
            _ => taken(copied, ring),
        };
        Memory { room, copied, ring }
    }
}

fn fetches(operands: &[Operand]) -> bool {
    operands.iter().any(|operand| matches!(operand, Operand::Peer { .. }))
}

/// See [`Program::by_reference`].
fn by_reference(constants: &Constants, operands: &[Operand]) -> RangeInclusive<usize> {
    let (value, read) = (constants.memory_sole_value_bytes as usize, constants.memory_sole_read_bytes as usize);
    match fetches(operands) {
        true => value + 1..=read,
        false => value.min(COPIED_ALONE_BYTES) + 1..=read / ALONE,
    }
}

/// See [`Program::aside`]. The elements are then published, the only publication, and combined with others in place; nothing else
/// reads the copy. What is combined may replace one of its operands.
fn aside(scratch: usize, ops: &[Op], operands: &[Operand], published: &[usize]) -> Option<Span> {
    let [
        Op::Combine { operands: copied, into: copy },
        Op::Publish(_),
        Op::Combine { operands: combined, into },
        rest @ ..,
    ] = ops
    else {
        return None;
    };
    let [Operand::Own(own)] = operands[copied.clone()] else { return None };
    let is_scratch = |span: &Span| span.buffer == Buffer::Scratch;
    let reads = |operand: &Operand| matches!(operand, Operand::Own(span) if is_scratch(span));
    let uses = |op: &Op| match op {
        Op::Combine { operands: range, into } => is_scratch(into) || operands[range.clone()].iter().any(reads),
        Op::Divide { span, .. } | Op::Publish(span) => is_scratch(span),
        Op::AwaitReaders => false,
    };
    let in_place = operands[combined.clone()].iter().all(|operand| !reads(operand) || *operand == Operand::Own(*copy));
    let is_all = is_scratch(copy) && (copy.offset, copy.len) == (0, scratch);
    (is_all && published.len() == 1 && *into == own && in_place && !rest.iter().any(uses)).then_some(own)
}

impl Compiler<'_> {
    fn flush(&mut self) {
        if let Some(Chain { first, into }) = self.chain.take() {
            self.ops.push(Op::Combine { operands: first..self.operands.len(), into });
        }
    }

    fn finish(&mut self, op: Op) {
        self.flush();
        self.ops.push(op);
    }

    fn combine(&mut self, index: usize, action: &Action, fused: bool) {
        let (left, right, into) = match *action {
            Action::Fetch { from, publication, at, into } => (Operand::Peer { from, publication, at }, None, into),
            Action::FetchReduce { from, publication, at, into, with, incoming } => {
                let (peer, own) = (Operand::Peer { from, publication, at }, Operand::Own(with));
                match incoming {
                    Side::Left => (peer, Some(own), into),
                    Side::Right => (own, Some(peer), into),
                }
            }
            Action::Copy { from, into } => (Operand::Own(from), None, into),
            Action::Reduce { left, right, into } => (Operand::Own(left), Some(Operand::Own(right)), into),
            _ => return,
        };
        let extends = fused && self.extends(index, left, right, into);
        if !extends {
            self.flush();
            self.chain = Some(Chain { first: self.operands.len(), into });
            self.operands.push(left);
        }
        self.operands.extend(right);
        if let Some(chain) = &mut self.chain {
            chain.into = into;
        }
    }

    /// Whether the step `index` continues the chain: its left operand is the chain's result, which nothing else needs.
    fn extends(&self, index: usize, left: Operand, right: Option<Operand>, into: Span) -> bool {
        let Some(chain) = &self.chain else { return false };
        if self.operands.len() - chain.first >= MAX_MEMBERS {
            return false;
        }
        if left != Operand::Own(chain.into) || matches!(right, Some(Operand::Own(span)) if span.overlaps(chain.into)) {
            return false;
        }
        // The result must not overlap an operand partially: the kernel may write it before it reads the rest.
        let partial = |operand: &Operand| matches!(operand, Operand::Own(span) if span.overlaps(into) && *span != into);
        if self.operands[chain.first..].iter().chain(&right).any(partial) {
            return false;
        }
        into == chain.into || self.is_dead(chain.into, index)
    }

    /// Whether no step after `index` reads `span` before it is written again.
    fn is_dead(&self, span: Span, index: usize) -> bool {
        span.buffer == Buffer::Scratch
            && self.schedule.steps[index + 1..].iter().all(|step| {
                let reads = step.action.reads().into_iter().flatten();
                reads.into_iter().all(|read| !read.overlaps(span))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Builder;

    fn out(len: usize) -> Span {
        Span::new(Buffer::Output(0), 0, len)
    }

    fn input(len: usize) -> Span {
        Span::new(Buffer::Input(0), 0, len)
    }

    fn peer(from: u32) -> Operand {
        Operand::Peer { from, publication: 0, at: 0 }
    }

    #[test]
    fn a_chain_of_reductions_is_one_operation() {
        let mut b = Builder::new();
        b.publish(Readers::All, input(8));
        b.fetch(0, 0, 0, out(8));
        b.fetch_reduce(1, 0, 0, out(8), out(8), Side::Right);
        b.reduce(out(8), input(8), out(8));
        b.fetch_reduce(3, 0, 0, out(8), out(8), Side::Right);
        b.await_readers();
        let schedule = b.build();
        let program = Program::new(&schedule, 4, true).unwrap();
        assert_eq!(
            *program.ops,
            [Op::Publish(input(8)), Op::Combine { operands: 0..4, into: out(8) }, Op::AwaitReaders]
        );
        assert_eq!(*program.operands, [peer(0), peer(1), Operand::Own(input(8)), peer(3)]);
        assert_eq!((program.readers, &*program.published), (u64::MAX, &[8][..]));
        let program = Program::new(&schedule, 4, false).unwrap();
        assert_eq!(program.ops.len(), 6, "with a function of the caller: one operation for each step");
    }

    #[test]
    fn a_result_that_is_used_twice_is_not_left_out() {
        let mut b = Builder::new();
        let aside = b.scratch(8);
        b.publish(Readers::One(1), input(8));
        b.fetch(1, 0, 0, aside);
        b.reduce(aside, input(8), out(8));
        b.reduce(aside, out(8), Span::new(Buffer::Output(1), 0, 8));
        b.await_readers();
        let program = Program::new(&b.build(), 4, true).unwrap();
        assert_eq!(program.ops.len(), 5, "{:?}", program.ops);
        assert_eq!(program.readers, 2);
    }

    #[test]
    fn a_chain_ends_in_another_place_if_nothing_else_reads_the_first() {
        let mut b = Builder::new();
        let aside = b.scratch(8);
        b.publish(Readers::All, input(8));
        b.fetch(0, 0, 0, aside);
        b.fetch_reduce(1, 0, 0, aside, aside, Side::Right);
        b.reduce(aside, out(8), out(8));
        b.await_readers();
        let program = Program::new(&b.build(), 4, true).unwrap();
        assert_eq!(program.ops[1], Op::Combine { operands: 0..3, into: out(8) });
    }

    #[test]
    fn a_copy_is_left_out_where_the_publication_is_one() {
        let schedule = |count, twice| {
            let mut b = Builder::new();
            let aside = b.scratch(count);
            b.copy(out(count), aside);
            b.publish(Readers::All, aside);
            b.fetch(0, 0, 0, out(count));
            b.reduce(out(count), aside, out(count));
            if twice {
                b.copy(aside, Span::new(Buffer::Output(1), 0, count));
            }
            b.await_readers();
            b.build()
        };
        let program = |count, twice| Program::new(&schedule(count, twice), 2, true).unwrap();
        assert_eq!(program(8, false).skips_copy(4), Some(out(8)));
        assert_eq!(program(8, true).skips_copy(4), None, "the result replaces what is read afterwards");
        let most = COPIED_BYTES / 4;
        assert_eq!(program(most, false).skips_copy(4), Some(out(most)));
        assert_eq!(program(most + 1, false).skips_copy(4), None, "others read it where it is");
        assert_eq!(
            Program::new(&schedule(8, false), 2, false).unwrap().skips_copy(4),
            None,
            "two operations write the output"
        );
    }

    #[test]
    fn short_publications_are_copied_and_long_ones_are_streams() {
        let for_readers = |readers: Readers, lens: &[usize], fetches: bool| {
            let mut b = Builder::new();
            lens.iter().for_each(|len| {
                b.publish(readers, input(*len));
            });
            if fetches {
                b.fetch(1, 0, 0, out(8));
            }
            b.await_readers();
            Program::new(&b.build(), 3, true).unwrap().memory(4)
        };
        let memory = |lens: &[usize], fetches| for_readers(Readers::One(1), lens, fetches);
        let (most, piece) = (COPIED_BYTES / 4, PIECES * LINE * 4);
        assert_eq!(memory(&[8], true), Memory { room: 0, copied: COPIED_BYTES, ring: 0 });
        assert_eq!(memory(&[most, 8], true), Memory { room: COPIED_BYTES + LINE, copied: COPIED_BYTES, ring: 0 });
        let one = memory(&[most + 1, 8], true);
        assert_eq!(
            one,
            Memory { room: one.ring + LINE, copied: COPIED_BYTES, ring: (RING_BYTES - LINE) / piece * piece + piece }
        );
        let alone = memory(&[most, 8], false);
        assert_eq!((alone.copied, alone.ring), (COPIED_ALONE_BYTES, RING_BYTES));
        // More of them than fit into a cell: those of several readers are streams, the others are read where they are.
        for (lens, fetches) in [(&[most; 7][..], true), (&[10 * most; 7], true), (&[most + 1; 64], false)] {
            let many = for_readers(Readers::set([1, 2]), lens, fetches);
            assert!(many.room <= CELL_BYTES && many.copied == many.ring, "{many:?}");
            assert!(many.ring >= SHORTEST_RING_BYTES && many.ring.is_multiple_of(piece), "{many:?}");
            assert_eq!(memory(lens, fetches), Memory { room: 0, copied: many.copied, ring: 0 });
        }
        let short = memory(&[10 * most, 8, 8, 10 * most, 10 * most, 10 * most], true);
        assert_eq!((short.room, short.ring), (2 * LINE, 0), "{short:?}");
        let mut program = Program::new(
            &{
                let mut b = Builder::new();
                b.publish(Readers::All, input(10 * most));
                b.build()
            },
            2,
            true,
        )
        .unwrap();
        program.streams = false;
        assert_eq!(program.memory(4), Memory { room: 0, copied: COPIED_BYTES, ring: 0 });
    }

    #[test]
    fn publications_with_one_reader_are_by_reference_where_the_constants_say_so() {
        let constants =
            Constants { memory_sole_value_bytes: 400.0, memory_sole_read_bytes: 8000.0, ..Constants::BUILT_IN };
        let program = |to: Readers, members, fetches: bool, reduces: bool| {
            let mut b = Builder::new();
            for len in [100, 101, 2000, 2001] {
                b.publish(to, input(len));
            }
            if fetches {
                b.fetch(1, 0, 0, out(8));
            }
            if reduces {
                b.fetch_reduce(1, 1, 0, out(8), out(8), Side::Right);
            }
            b.await_readers();
            let mut program = Program::new(&b.build(), members, true).unwrap();
            assert!(!program.is_by_reference(1, 404), "built in are lengths that do nothing");
            program.by_reference = by_reference(&constants, &program.operands);
            program
        };
        let chosen = |program: &Program| [0, 1, 2, 3].map(|at| program.is_by_reference(at, program.published[at] * 4));
        for (to, members, reduces, expected) in [
            (Readers::One(1), 9, false, true),
            (Readers::One(1), 9, true, false),
            (Readers::Set(2), 9, false, true),
            (Readers::All, 2, true, true),
            (Readers::All, 3, false, false),
            (Readers::Set(6), 9, false, false),
        ] {
            let mut program = program(to, members, true, reduces);
            assert_eq!(chosen(&program), [false, expected, expected, false], "{to:?}");
            // The first and the last are copied, and the others only where several read them.
            let both = [400usize, 8004].map(|bytes| bytes.next_multiple_of(LINE)).iter().sum::<usize>();
            let all = both + [404usize, 8000].map(|bytes| bytes.next_multiple_of(LINE)).iter().sum::<usize>();
            assert_eq!(program.memory(4).room, if expected { both } else { all });
            program.streams = false;
            assert_eq!(chosen(&program), [false; 4]);
        }
        let alone = program(Readers::All, 2, false, false);
        assert_eq!(chosen(&alone), [false, true, false, false], "up to an eighth");
    }

    #[test]
    fn messages_are_not_for_one_thread() {
        let mut b = Builder::new();
        b.publish(Readers::All, input(8));
        b.send(1, input(8));
        assert!(Program::new(&b.build(), 4, true).is_none());
        let mut b = Builder::new();
        b.copy(input(8), out(8));
        assert!(Program::new(&b.build(), 4, true).is_none(), "nothing is shared");
    }
}
