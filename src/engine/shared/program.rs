//! Programs: compiled schedules, with how their publications use the publication table.

use std::ops::{Deref, RangeInclusive};

use crate::collective::constants::Constants;
use crate::publications::{CELL_BYTES, INLINE_BYTES, LINE, MAX_PUBLICATIONS, MEDIUM_CELL_BYTES, Members, PIECES};
use crate::schedule::compiled::{Compiled, Op, Operand};
use crate::schedule::weights::Weights;
use crate::schedule::{Buffer, Schedule, Span};

/// A compiled schedule, and how its publications are made.
#[derive(Debug)]
pub struct Program {
    compiled: Compiled,
    /// Whether each publication may be by reference because one rank reads it.
    sole: Box<[bool]>,
    /// Whether long publications are streams even if readers can read the memory of the publisher's process.
    pub streams: bool,
    /// Lengths in bytes of the publications with one reader that are by reference, if readers can read that memory.
    pub by_reference: RangeInclusive<usize>,
    /// The members that read this rank's publications.
    pub readers: Members,
    /// These, and the members whose publications this rank reads: who may wait for what a call does.
    pub peers: Members,
    /// If all that the first operation does is to copy these elements to scratch memory, so that others can read them:
    /// see [`Program::skips_copy`].
    copy: Option<Span>,
}

impl Deref for Program {
    type Target = Compiled;

    fn deref(&self) -> &Compiled {
        &self.compiled
    }
}

/// How the publications of a program use the memory in the publication table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that they take, apart from the entry.
    pub room: usize,
    /// Bytes of the longest publication that is copied as a whole.
    pub copied: usize,
    /// Bytes of the ring of each longer one; 0 if these are published by reference.
    pub ring: usize,
}

/// Publications of at most this many bytes are copied into shared memory as a whole; longer ones piece by piece, or
/// readers read them from the publisher's buffer.
pub const COPIED_BYTES: usize = 1 << 20;
/// What [`COPIED_BYTES`] is for a rank that fetches nothing.
const COPIED_ALONE_BYTES: usize = COPIED_BYTES / 32;
/// A rank that fetches nothing writes a stream while others read it, so streams are as fast as reads by the operating
/// system from so much shorter a length on.
const ALONE_DIVISOR: usize = 8;
/// Longest ring: half a second-level cache.
const RING_BYTES: usize = 1 << 20;
/// Shortest ring that is better than reads by the operating system.
const MIN_RING_BYTES: usize = 32 << 10;

/// Bytes of the longest elements for which each publication of a program can have a ring, however many there are.
pub const MAX_ELEMENT_BYTES: usize = 64;

// The cells of the models are too short for that.
#[cfg(not(all(test, loom)))]
const _: () = assert!(MAX_PUBLICATIONS * PIECES * LINE * (MAX_ELEMENT_BYTES - 1) <= CELL_BYTES);

/// Bytes of the longest publication that is copied as a whole, and of the longest ring.
#[cfg(not(test))]
fn max_lengths() -> (usize, usize) {
    (COPIED_BYTES, RING_BYTES)
}

#[cfg(test)]
thread_local! {
    /// Shorter ones, for the simulation of jobs.
    pub(crate) static MAX_LENGTHS: std::cell::Cell<(usize, usize)> = const { std::cell::Cell::new((COPIED_BYTES, RING_BYTES)) };
}

#[cfg(test)]
fn max_lengths() -> (usize, usize) {
    MAX_LENGTHS.get()
}

impl Program {
    /// The program of `schedule` on a rank of `members`; see [`Compiled::new`]. `None` also if no step is on shared
    /// memory.
    pub fn new(schedule: &Schedule, weights: &[Weights], members: usize, fused: bool) -> Option<Self> {
        if !schedule.steps.iter().any(|step| step.action.is_shared()) {
            return None;
        }
        let compiled = Compiled::new(schedule, weights, members, fused)?;
        let Compiled { ops, operands, published, to, .. } = &compiled;
        // More than two ranks, some of which share cores, would wait for each other's reads in the middle of the call.
        let reduces = ops.iter().any(|op| matches!(op, Op::Combine { operands, .. } if operands.len() > 1));
        let readers = to.iter().fold(0, |all, to| all | to);
        Some(Self {
            by_reference: by_reference(&Constants::here(), compiled.fetches()),
            copy: first_copy(compiled.scratch, ops, operands, published),
            readers,
            peers: readers | compiled.fetched,
            sole: to.iter().map(|to| members == 2 || to.count_ones() == 1 && !reduces).collect(),
            streams: true,
            compiled,
        })
    }

    /// The elements that take the place of all scratch memory, if the first operation need not be executed, since
    /// elements have `element` bytes.
    #[inline]
    pub fn skips_copy(&self, element: usize) -> Option<Span> {
        // Such a publication is a copy itself.
        let is_copy = |(publication, len): (usize, &usize)| {
            let bytes = len * element;
            bytes <= max_lengths().0 && !self.is_by_reference(publication, bytes)
        };
        self.copy.filter(|_| self.published.iter().enumerate().all(is_copy))
    }

    /// Whether `publication`, of `bytes`, is by reference because the operating system reads it faster out of its
    /// rank's memory than it is copied twice.
    #[inline]
    pub fn is_by_reference(&self, publication: usize, bytes: usize) -> bool {
        self.streams && self.sole[publication] && self.by_reference.contains(&bytes)
    }

    /// How the publications use the publication table's memory, if elements have `element` bytes. `reads`: whether
    /// ranks read the memory of each other's processes; if not, no publication is by reference, and elements have at
    /// most [`MAX_ELEMENT_BYTES`].
    pub fn memory(&self, element: usize, reads: bool) -> Memory {
        let streams = self.streams || !reads;
        // While all ranks copy, none waits; but if only this one publishes, the others read while it writes.
        let (longest_copy, longest_ring) = max_lengths();
        let alone = longest_copy.min(COPIED_ALONE_BYTES);
        let (mut copied, mut ring) = (if self.fetches() || !streams { longest_copy } else { alone }, 0);
        let by_reference = |publication: usize, bytes: usize| reads && self.is_by_reference(publication, bytes);
        let all = || self.published.iter().map(|len| len * element).enumerate();
        let bytes = || all().filter(|(publication, bytes)| !by_reference(*publication, *bytes)).map(|(_, bytes)| bytes);
        let taken = |copied, ring| -> usize {
            let one = |bytes: usize| if bytes <= copied { bytes.next_multiple_of(LINE) } else { ring };
            bytes().map(one).sum()
        };
        let longer = |copied| bytes().filter(|bytes| *bytes > copied).count();
        if streams && (longer(copied) > 0 || taken(copied, 0) > CELL_BYTES) {
            let rings = |number: usize, room: usize| {
                let unit = ring_unit(element);
                let ring = (room / number.max(1)).min(longest_ring) / unit * unit;
                if reads && ring < MIN_RING_BYTES { 0 } else { ring }
            };
            // The shortest publications are copied as a whole, as many as fit; or all get the same room.
            let rest = CELL_BYTES.saturating_sub(taken(copied, 0));
            ring = rings(longer(copied), rest);
            if ring < longest_ring / 2 {
                ring = rings(self.published.len(), CELL_BYTES);
                copied = if ring > 0 { ring } else { copied };
                // Many short streams of one reader each take longer than reads by the operating system: an alltoall of
                // 4 to 32 MiB of eight ranks on two cores 1.2 to 1.6 times as long.
                if reads && ring < longest_ring / 2 && self.sole.iter().all(|sole| *sole) {
                    ring = 0;
                }
            }
        }
        let room = match *self.published {
            [only] if only * element <= INLINE_BYTES => 0,
            // Only long cells have streams.
            _ if longer(copied) > 0 && ring > 0 => taken(copied, ring).max(MEDIUM_CELL_BYTES + 1),
            _ => taken(copied, ring),
        };
        Memory { room, copied, ring }
    }
}

/// What the length of a ring is a multiple of: pieces are of whole elements, and of whole cache lines.
pub fn ring_unit(element: usize) -> usize {
    let common = 1 << element.trailing_zeros().min(LINE.trailing_zeros());
    PIECES * LINE / common * element
}

/// See [`Program::by_reference`].
fn by_reference(constants: &Constants, fetches: bool) -> RangeInclusive<usize> {
    let (value, read) = (constants.memory_sole_value_bytes as usize, constants.memory_sole_read_bytes as usize);
    match fetches {
        true => value + 1..=read,
        false => value.min(COPIED_ALONE_BYTES) + 1..=read / ALONE_DIVISOR,
    }
}

/// See [`Program::copy`]. The elements are then published, the only publication, and combined with others in place;
/// nothing else reads the copy. What is combined may replace one of its operands.
fn first_copy(scratch: usize, ops: &[Op], operands: &[Operand], published: &[usize]) -> Option<Span> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::Side;
    use crate::schedule::{Builder, Readers};

    fn out(len: usize) -> Span {
        Span::new(Buffer::Output(0), 0, len)
    }

    fn input(len: usize) -> Span {
        Span::new(Buffer::Input(0), 0, len)
    }

    #[test]
    fn a_copy_is_left_out_where_the_publication_is_one() {
        let schedule = |count, twice| {
            let mut b = Builder::new();
            let scratch = b.scratch(count);
            b.copy(out(count), scratch);
            b.publish(Readers::All, scratch);
            b.fetch(0, 0, 0, out(count));
            b.reduce(out(count), scratch, out(count));
            if twice {
                b.copy(scratch, Span::new(Buffer::Output(1), 0, count));
            }
            b.await_readers();
            b.build()
        };
        let program = |count, twice| Program::new(&schedule(count, twice), &[], 2, true).unwrap();
        assert_eq!(program(8, false).skips_copy(4), Some(out(8)));
        assert_eq!(program(8, true).skips_copy(4), None, "the result replaces what is read afterwards");
        let max_len = COPIED_BYTES / 4;
        assert_eq!(program(max_len, false).skips_copy(4), Some(out(max_len)));
        assert_eq!(program(max_len + 1, false).skips_copy(4), None, "others read it where it is");
        assert_eq!(
            Program::new(&schedule(8, false), &[], 2, false).unwrap().skips_copy(4),
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
            Program::new(&b.build(), &[], 3, true).unwrap().memory(4, true)
        };
        let memory = |lens: &[usize], fetches| for_readers(Readers::One(1), lens, fetches);
        let (max_len, piece) = (COPIED_BYTES / 4, ring_unit(4));
        assert_eq!(memory(&[8], true), Memory { room: 0, copied: COPIED_BYTES, ring: 0 });
        assert_eq!(memory(&[max_len, 8], true), Memory { room: COPIED_BYTES + LINE, copied: COPIED_BYTES, ring: 0 });
        let one = memory(&[max_len + 1, 8], true);
        assert_eq!(
            one,
            Memory { room: one.ring + LINE, copied: COPIED_BYTES, ring: (RING_BYTES - LINE) / piece * piece + piece }
        );
        let alone = memory(&[max_len, 8], false);
        assert_eq!((alone.copied, alone.ring), (COPIED_ALONE_BYTES, RING_BYTES));
        // More of them than fit into a cell: those of several readers are streams, the others are read where they are.
        for (lens, fetches) in [(&[max_len; 7][..], true), (&[10 * max_len; 7], true), (&[max_len + 1; 64], false)] {
            let many = for_readers(Readers::set([1, 2]), lens, fetches);
            assert!(many.room <= CELL_BYTES && many.copied == many.ring, "{many:?}");
            assert!(many.ring >= MIN_RING_BYTES && many.ring.is_multiple_of(piece), "{many:?}");
            assert_eq!(memory(lens, fetches), Memory { room: 0, copied: many.copied, ring: 0 });
        }
        let short = memory(&[10 * max_len, 8, 8, 10 * max_len, 10 * max_len, 10 * max_len], true);
        assert_eq!((short.room, short.ring), (2 * LINE, 0), "{short:?}");
        let mut program = Program::new(
            &{
                let mut b = Builder::new();
                b.publish(Readers::All, input(10 * max_len));
                b.build()
            },
            &[],
            2,
            true,
        )
        .unwrap();
        program.streams = false;
        assert_eq!(program.memory(4, true), Memory { room: 0, copied: COPIED_BYTES, ring: 0 });
    }

    /// Where no process may read another, each publication that is not copied has a ring, of whole elements and lines.
    #[test]
    fn each_long_publication_has_a_ring_where_nothing_is_by_reference() {
        for element in 1..=MAX_ELEMENT_BYTES {
            for number in [1, 2, 63, MAX_PUBLICATIONS] {
                let mut b = Builder::new();
                (0..number).for_each(|_| _ = b.publish(Readers::One(1), input(COPIED_BYTES + 1)));
                b.fetch(1, 0, 0, out(8));
                b.await_readers();
                let memory = Program::new(&b.build(), &[], 3, true).unwrap().memory(element, false);
                let Memory { room, copied, ring } = memory;
                assert!(
                    ring > 0 && ring.is_multiple_of(PIECES * LINE) && ring.is_multiple_of(PIECES * element),
                    "{memory:?}"
                );
                assert!(room <= CELL_BYTES && number * ring <= room && copied <= COPIED_BYTES, "{memory:?}");
            }
        }
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
            let mut program = Program::new(&b.build(), &[], members, true).unwrap();
            assert!(!program.is_by_reference(1, 404), "built in are lengths that do nothing");
            program.by_reference = by_reference(&constants, program.fetches());
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
            assert_eq!(program.memory(4, true).room, if expected { both } else { all });
            program.streams = false;
            assert_eq!(chosen(&program), [false; 4]);
        }
        let alone = program(Readers::All, 2, false, false);
        assert_eq!(chosen(&alone), [false, true, false, false], "up to an eighth");
    }
}
