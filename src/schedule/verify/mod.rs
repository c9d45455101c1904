//! Proves that the schedules of all ranks, taken together, do what a collective promises.
//!
//! Nothing here trusts the builder: schedules are only data. The proof has four parts.
//! 1. *Form* ([`program`]): spans lie inside their buffers, inputs are never written, dependencies point backwards, every
//!    send meets one receive of the same length.
//! 2. *Order* ([`race`]): on each rank, any two steps that touch one element, one of them writing, are ordered by the
//!    dependencies, element by element and whatever the segment size. So the result cannot depend on timing, on when
//!    a send reads its buffer, or on when a receive fills it.
//! 3. *Progress* ([`execute`]): with sends that complete only together with their receive, and messages that are not cut,
//!    every step finishes. Since a finished step never stops another one, one order of execution shows it for all. Messages
//!    cut into segments, of whatever length, can do what whole ones did: their first elements wait for nothing that all
//!    elements together do not wait for.
//! 4. *Meaning* ([`symbol`]): during that execution each element holds the expression tree it would have been computed by.
//!    In the end it must be the one that the [`Contract`] asks for: every contribution exactly once, divided exactly once
//!    if it is an average, and the same tree, hence the same bits, on all ranks.
//!
//! Memory is looked at in pieces ([`pieces`]): neighbouring elements that the same steps touch cost as much as one.

mod execute;
mod pieces;
mod program;
mod race;
mod symbol;

#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::ops::Range;

use super::{Buffer, Schedule};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Rank;

use execute::Machine;
use program::Program;

/// One element that a caller supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leaf {
    /// Whose.
    pub rank: Rank,
    /// In which of that rank's inputs (or outputs, in place).
    pub input: u32,
    /// Its index there. Reductions only combine elements with the same index.
    pub element: usize,
}

/// What an element of an output must be in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Whatever it likes.
    Anything,
    /// Never written.
    Untouched,
    /// A copy of that element.
    Copy(Leaf),
    /// All contributions of `ranks` at index `element`, each exactly once, divided by `divisor` in the end if that is not 1.
    Reduced {
        /// Who contributes.
        ranks: Range<Rank>,
        /// Index in each contributor's inputs.
        element: usize,
        /// 1 for no division.
        divisor: u64,
        /// Whether lower ranks must stand on the left.
        in_order: bool,
    },
}

/// What a collective promises, for each element of each rank's buffers.
pub trait Contract {
    /// Processes.
    fn ranks(&self) -> usize;

    /// Elements of a buffer of the caller's, or `None` if that rank has no such buffer.
    fn len(&self, rank: Rank, buffer: Buffer) -> Option<usize>;

    /// Elements with one index that `rank` contributes to a reduction; its [`Leaf::input`]s are below this.
    fn contributions(&self, rank: Rank) -> u32;

    /// What a buffer of the caller's holds at `index` before; `None` if nothing that may be read.
    fn initial(&self, rank: Rank, buffer: Buffer, index: usize) -> Option<Leaf>;

    /// What `output` must hold at `index` afterwards.
    fn expected(&self, rank: Rank, output: u32, index: usize) -> Expect;

    /// Whether the messages are tokens: their contents mean nothing, but before a rank finishes it must have heard,
    /// directly or not, from every other.
    fn synchronizes(&self) -> bool {
        false
    }
}

/// What one rank sends and needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent, if no step is cut into segments.
    pub messages: usize,
    /// Elements sent.
    pub elements: usize,
    /// Elements of scratch memory.
    pub scratch: usize,
}

/// What was learnt about schedules that are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The longest chain of messages that must follow one another, if no step is cut into segments.
    pub steps: usize,
    /// By rank.
    pub traffic: Vec<Traffic>,
    /// Whether every reduced element combines its contributions in the order of ranks: then the operation need not commute.
    pub in_order: bool,
}

/// Proves that `schedules`, one for each rank, keep `contract`. An error says which rank, step or element breaks it.
///
/// Each schedule is looked at once, so they can be generated one after the other. Time grows with the number of steps and of
/// pieces that their spans cut memory into, hardly with elements; memory with the elements of all buffers.
pub fn verify(schedules: impl IntoIterator<Item: Borrow<Schedule>>, contract: &dyn Contract) -> Result<Report> {
    let mut program = Program::new(contract.ranks());
    for schedule in schedules {
        program.add(schedule.borrow(), contract)?;
    }
    if program.of_rank.len() < contract.ranks() {
        return Err(wrong(format!("{} schedules for {} ranks", program.of_rank.len(), contract.ranks())));
    }
    program.connect()?;
    race::check(&program, contract)?;
    let mut machine = Machine::new(&program, contract);
    machine.run(u32::MAX, false)?;
    let in_order = machine.check(contract)?;
    if contract.synchronizes() {
        machine.check_everyone_heard_everyone()?;
    }
    let steps = machine.longest_chain();
    Ok(Report { steps, traffic: program.traffic, in_order })
}

/// Executes them cut into segments of several lengths, trying the newest step first or the oldest: nothing comes out but what
/// whole messages give.
#[cfg(test)]
pub(crate) fn execute_in_segments(schedules: &[Schedule], contract: &dyn Contract) -> Result<()> {
    let mut program = Program::new(contract.ranks());
    schedules.iter().try_for_each(|schedule| program.add(schedule, contract))?;
    program.connect()?;
    let mut machine = Machine::new(&program, contract);
    machine.run(u32::MAX, false)?;
    let whole = machine.contents();
    for (segment, newest) in [(u32::MAX, true), (1, false), (1, true), (2, true), (3, false), (5, true)] {
        machine.run(segment, newest).map_err(|e| e.context(format!("with segments of {segment}")))?;
        if machine.contents() != whole {
            return Err(wrong(format!("segments of {segment}, newest first {newest}: another result")));
        }
    }
    Ok(())
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Internal, message)
}
