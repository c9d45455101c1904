//! Verifies that the schedules of all ranks together do what the collective requires.
//!
//! The verifier does not rely on the builder; schedules are only data. It checks six properties.
//! 1. *Form* ([`program`]): spans are inside their buffers, inputs are never written, dependencies refer to earlier
//!    steps, and every send matches one receive of the same length.
//! 2. *Order* ([`race`]): on each rank, any two steps that access the same element, one of them writing, are ordered by
//!    dependencies, element by element and for any segment size. So the result does not depend on timing, on when a
//!    send reads its buffer, or on when a receive fills it.
//! 3. *Shared memory* ([`shared`]): every publication is fetched, within its bounds, by exactly the ranks that it
//!    names, once by each, and what they fetch is not written before they are done, whatever the timing.
//! 4. *Progress* ([`execute`]): with synchronous sends, which complete only together with their receive, one segment
//!    per message, the steps of a rank on shared memory one after the other, and publications that are written only as
//!    fast as all of their readers read, every step finishes. A finished step never blocks another one, so a single
//!    execution order suffices. Messages in segments of any length can do at least what whole messages can: the
//!    dependencies of their first elements are a subset of those of all elements.
//! 5. *Compiled programs* ([`compiled`]): where nothing but shared memory is used, what the schedules are compiled into
//!    ends, whether publications are copied, read where they are, or written as streams through rings of any length.
//! 6. *Result* ([`symbol`]): while the steps are executed for 4, each element holds the expression tree by which it was
//!    computed. In the end it must be the one that the [`Contract`] requires: every contribution exactly once, divided
//!    exactly once if it is an average, and the same tree, hence the same bits, on all ranks.
//!
//! Memory is represented in pieces ([`pieces`]): neighbouring elements that are accessed by the same steps cost as much
//! as one.

mod compiled;
mod execute;
mod pieces;
mod program;
mod race;
mod shared;
mod symbol;
mod tables;

#[cfg(test)]
pub(crate) mod tests;

use std::borrow::Borrow;
use std::ops::Range;

use super::compiled::Compiled;
use super::{Action, Buffer, Schedule};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Rank;

use execute::Machine;
use program::Program;

/// An element that a caller supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leaf {
    /// The rank that supplied it.
    pub rank: Rank,
    /// The index of the input (or, in place, output).
    pub input: u32,
    /// The index of the element. Reductions only combine elements with the same index.
    pub element: usize,
}

/// The required final content of an element of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The content is not specified.
    Anything,
    /// The element is never written.
    Untouched,
    /// A copy of this element.
    Copy(Leaf),
    /// The reduction of all contributions of `ranks` at index `element`, each exactly once, then divided by `divisor`
    /// if that is not 1.
    Reduced {
        /// The contributing ranks.
        ranks: Range<Rank>,
        /// The index in each contributor's inputs.
        element: usize,
        /// 1 for no division.
        divisor: u64,
        /// Whether lower ranks must be the left operands.
        in_order: bool,
    },
}

/// The required result of a collective, for each element of each rank's buffers.
pub trait Contract {
    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Length in elements of a caller's buffer; `None` if the rank has no such buffer.
    fn len(&self, rank: Rank, buffer: Buffer) -> Option<usize>;

    /// Number of elements per index that `rank` contributes to a reduction; its [`Leaf::input`]s are less than this.
    fn contributions(&self, rank: Rank) -> u32;

    /// The initial content of a caller's buffer at `index`; `None` if it is undefined.
    fn initial(&self, rank: Rank, buffer: Buffer, index: usize) -> Option<Leaf>;

    /// The required final content of `output` at `index`.
    fn expected(&self, rank: Rank, output: u32, index: usize) -> Expect;

    /// The host of `rank`: ranks fetch publications only within their host.
    fn host(&self, _rank: Rank) -> u32 {
        0
    }

    /// Whether the collective is a barrier. Its messages are tokens with undefined contents, and no rank may finish
    /// before it has received, directly or indirectly, a token from every other rank.
    fn synchronizes(&self) -> bool {
        false
    }
}

/// What one rank sends, and the memory that it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of messages if every step is one segment.
    pub messages: usize,
    /// Elements sent.
    pub elements: usize,
    /// Size of scratch memory in elements.
    pub scratch: usize,
}

/// Properties of valid schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The longest chain of dependent messages if every step is one segment.
    pub steps: usize,
    /// Traffic of each rank.
    pub traffic: Vec<Traffic>,
    /// Whether every reduction has its contributions in rank order; then the operation need not commute.
    pub in_order: bool,
    /// Whether every reduction combines what the first two ranks contribute, the result with what the third does, and
    /// so on; each rank's own contributions before that, also from the left.
    pub folds: bool,
    /// A number for each expression by which a reduced element was computed, apart from its index: equal for equal ones,
    /// also in calls of other lengths.
    pub expressions: Vec<u64>,
}

/// Verifies that `schedules`, one per rank, satisfy `contract`. The error names the rank, step or element that violates
/// it.
///
/// Each schedule is used once, so schedules can be generated one after the other. The time grows with the number of
/// steps and of pieces into which their spans cut memory, hardly with the number of elements; the memory needed grows
/// with the elements of all buffers.
pub fn verify(schedules: impl IntoIterator<Item: Borrow<Schedule>>, contract: &dyn Contract) -> Result<Report> {
    let mut program = Program::new(contract.ranks());
    // The engine fuses the steps of a reduction by an operation of the library. Those by a function of the caller it
    // executes one by one, of another schedule.
    let mut compiled = [(true, Vec::new()), (false, Vec::new())];
    let (mut shares, mut sends) = (false, false);
    for schedule in schedules {
        let schedule = schedule.borrow();
        program.add(schedule, contract)?;
        let has = |of: fn(&Action) -> bool| schedule.steps.iter().any(|step| of(&step.action));
        shares |= has(Action::is_shared);
        sends |= has(Action::is_message);
        if !sends {
            let of_functions = schedule.without_receive_and_reduce();
            for ((fused, programs), schedule) in compiled.iter_mut().zip([schedule, &of_functions]) {
                programs.push(Compiled::new(schedule, &[], contract.ranks(), *fused));
            }
        }
    }
    if program.of_rank.len() < contract.ranks() {
        return Err(wrong(format!("{} schedules for {} ranks", program.of_rank.len(), contract.ranks())));
    }
    shared::connect(&mut program, contract)?;
    program.connect()?;
    race::check(&program, contract)?;
    shared::check(&program)?;
    let mut machine = Machine::new(&program, contract);
    machine.run(u32::MAX, false)?;
    // Where messages are sent, the engine executes the steps one by one, as the machine does.
    if shares && !sends {
        for (_, programs) in compiled {
            let programs: Option<Vec<_>> = programs.into_iter().collect();
            compiled::check(&programs.ok_or_else(|| wrong("too many ranks or publications".into()))?)?;
        }
    }
    let (in_order, folds, expressions) = machine.check(contract)?;
    if contract.synchronizes() {
        machine.check_barrier()?;
    }
    let steps = machine.longest_chain();
    Ok(Report { steps, traffic: program.traffic, in_order, folds, expressions })
}

/// Executes the schedules with several segment lengths, trying the newest or the oldest step first, and checks that the
/// results equal those of whole messages.
#[cfg(test)]
pub(crate) fn execute_in_segments(schedules: &[Schedule], contract: &dyn Contract) -> Result<()> {
    let mut program = Program::new(contract.ranks());
    schedules.iter().try_for_each(|schedule| program.add(schedule, contract))?;
    shared::connect(&mut program, contract)?;
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
