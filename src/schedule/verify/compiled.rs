//! Executes the compiled programs of all ranks, with publications in each form in which the engine may make them, and
//! finds deadlocks.
//!
//! The schedule's steps do not tell them: a compiled operation reads several publications at the same pace, and a
//! stream is written only as fast as its slowest reader reads. Here a stream's writer is never more than one element
//! ahead. Whatever its length is, a ring only lets a writer be further ahead, and what can proceed is never hindered by
//! what others do, so one order of execution suffices, and programs that end here end with rings of any length, and
//! with any of their publications in another form.

use super::wrong;
use crate::error::Result;
use crate::schedule::compiled::{Compiled, Op, Operand};
use crate::types::Rank;

/// How publications are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Readers read them where they are; the publisher waits until they have said that they are done.
    References,
    /// Readers read each element after it was written into a ring, at the pace of the slowest reader; the publisher
    /// waits in the same way.
    Streams,
}

/// Checks that `programs`, one for each rank of a host, end.
pub(super) fn check(programs: &[Compiled]) -> Result<()> {
    [Form::References, Form::Streams].into_iter().try_for_each(|form| Machine::new(programs, form).run())
}

/// A publication and how much of it has been read.
struct Publication {
    len: usize,
    readers: u64,
    /// Elements that each rank does not read any more.
    consumed: Vec<usize>,
    /// The smallest number of these among the readers, and how many of them have it.
    min_consumed: usize,
    readers_at_min: u32,
}

struct Machine<'a> {
    programs: &'a [Compiled],
    form: Form,
    /// The next operation of each rank, and how many of its elements are done.
    next: Vec<usize>,
    done: Vec<usize>,
    /// The number of each rank's publications, and all of them.
    published: Vec<usize>,
    publications: Vec<Vec<Publication>>,
    /// The members of which each rank has said that it does not read any more.
    acknowledged: Vec<u64>,
}

impl<'a> Machine<'a> {
    fn new(programs: &'a [Compiled], form: Form) -> Self {
        let size = programs.len();
        let publications = |(rank, program): (Rank, &Compiled)| {
            let others = u64::MAX.checked_shr(u64::BITS - size as u32).unwrap_or(0) & !(1 << rank);
            let of = |(len, to): (&usize, &u64)| Publication::new(*len, to & others, size);
            program.published.iter().zip(&program.to).map(of).collect()
        };
        Self {
            programs,
            form,
            next: vec![0; size],
            done: vec![0; size],
            published: vec![0; size],
            publications: programs.iter().enumerate().map(publications).collect(),
            acknowledged: vec![0; size],
        }
    }

    fn run(&mut self) -> Result<()> {
        let mut any = true;
        while std::mem::take(&mut any) {
            for rank in 0..self.programs.len() {
                while self.advance(rank).is_ok_and(|advanced| advanced) {
                    any = true;
                }
            }
        }
        let stuck: Vec<_> = (0..self.programs.len()).filter_map(|rank| self.advance(rank).err()).collect();
        match stuck.is_empty() {
            true => Ok(()),
            false => Err(wrong(format!("deadlock with {:?}: {}", self.form, stuck.join("; ")))),
        }
    }

    /// Executes the next operation of `rank`, or its next elements. Returns whether there was one, or what it waits
    /// for.
    fn advance(&mut self, rank: Rank) -> Result<bool, String> {
        let program = &self.programs[rank];
        let Some(op) = program.ops.get(self.next[rank]) else {
            self.acknowledged[rank] = u64::MAX;
            return Ok(false);
        };
        match op {
            Op::Publish(_) => self.published[rank] += 1,
            Op::Divide { .. } => {}
            Op::AwaitReaders => self.await_readers(rank)?,
            Op::Combine { operands, into } => {
                if !self.combine(rank, &program.operands[operands.clone()], into.len)? {
                    return Ok(true);
                }
            }
        }
        self.next[rank] += 1;
        self.done[rank] = 0;
        Ok(true)
    }

    fn await_readers(&mut self, rank: Rank) -> Result<(), String> {
        let next = self.next[rank];
        let finished = self.programs[rank].last_fetch.iter().enumerate().filter(|(_, last)| **last < next);
        self.acknowledged[rank] |= finished.fold(0, |all, (member, _)| all | 1 << member);
        let readers = self.publications[rank].iter().fold(0, |all, publication| all | publication.readers);
        let missing = |reader: &Rank| readers >> reader & 1 != 0 && self.acknowledged[*reader] >> rank & 1 == 0;
        match (0..self.programs.len()).find(missing) {
            Some(reader) => Err(format!("rank {rank} waits for its reader, rank {reader}")),
            None => Ok(()),
        }
    }

    /// Combines as many of the `len` elements as there are. Returns whether all are done.
    fn combine(&mut self, rank: Rank, operands: &[Operand], len: usize) -> Result<bool, String> {
        let peers = || {
            operands.iter().filter_map(|operand| match *operand {
                Operand::Peer { from, publication, at } => Some((from as Rank, publication as usize, at)),
                Operand::Own(_) => None,
            })
        };
        if let Some((from, number, _)) = peers().find(|&(from, number, _)| number >= self.published[from]) {
            return Err(format!("rank {rank} waits for publication {number} of rank {from}"));
        }
        let done = self.done[rank];
        if self.form == Form::References || done == len {
            peers().for_each(|(from, number, _)| self.publications[from][number].consume(rank, usize::MAX));
            return Ok(true);
        }
        peers().for_each(|(from, number, at)| self.publications[from][number].consume(rank, at + done));
        let is_written = |&(from, number, at): &(Rank, usize, usize)| {
            let publication = &self.publications[from][number];
            at + done < publication.len && at + done <= publication.min_consumed
        };
        if let Some((from, number, at)) = peers().find(|of| !is_written(of)) {
            let element = at + done;
            return Err(format!("rank {rank} waits for element {element} of publication {number} of rank {from}"));
        }
        self.done[rank] += 1;
        Ok(false)
    }
}

impl Publication {
    fn new(len: usize, readers: u64, ranks: usize) -> Self {
        Self { len, readers, consumed: vec![0; ranks], min_consumed: 0, readers_at_min: readers.count_ones() }
    }

    fn consume(&mut self, rank: Rank, elements: usize) {
        let elements = elements.min(self.len);
        let before = self.consumed[rank];
        if elements <= before {
            return;
        }
        self.consumed[rank] = elements;
        if before != self.min_consumed {
            return;
        }
        self.readers_at_min -= 1;
        if self.readers_at_min == 0 {
            let of_readers = || {
                let reads = |(rank, _): &(usize, _)| self.readers >> rank & 1 != 0;
                self.consumed.iter().enumerate().filter(reads).map(|(_, consumed)| *consumed)
            };
            let min_consumed = of_readers().min().unwrap_or(self.len);
            self.readers_at_min = of_readers().filter(|consumed| *consumed == min_consumed).count() as u32;
            self.min_consumed = min_consumed;
        }
    }
}
