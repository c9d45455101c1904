//! Schedules that use nothing but the host's shared memory, compiled for one thread that executes operations in order:
//! what the engine executes, and what [`verify`](super::verify()) therefore verifies besides the schedules.

use std::ops::Range;

use super::weights::Weights;
use super::{Action, Buffer, Readers, Schedule, Side, Span};
use crate::publications::{MAX_MEMBERS, MAX_PUBLICATIONS, Members};

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
    /// `into` = the operands, which are a range of [`Compiled::operands`], combined from left to right; a copy if there
    /// is one.
    Combine { operands: Range<usize>, into: Span },
    /// `span = span / by`.
    Divide { span: Span, by: u32 },
    /// Waits until the readers have finished, if something was published by reference.
    AwaitReaders,
}

/// A compiled schedule.
#[derive(Debug)]
pub struct Compiled {
    /// What is executed, in this order.
    pub ops: Box<[Op]>,
    /// The operands of all operations.
    pub operands: Box<[Operand]>,
    /// The number of contributions that each operand stands for, if reductions compute means; empty otherwise.
    pub contributions: Box<[u32]>,
    /// Elements of each publication.
    pub published: Box<[usize]>,
    /// The members that read each publication.
    pub to: Box<[Members]>,
    /// The members of which publications are read.
    pub fetched: Members,
    /// The last operation that reads publications of each member.
    pub last_fetch: Box<[usize]>,
    /// The last operation that publishes, or reads publications.
    pub last_shared: usize,
    /// Elements of scratch memory that the operations use: less than the schedule's where copies were left out.
    pub scratch: usize,
}

/// A combination that the next steps may extend.
struct Chain {
    first: usize,
    into: Span,
    /// The round of its fetches, if it has any.
    round: Option<u32>,
}

struct Compiler<'a> {
    schedule: &'a Schedule,
    ops: Vec<Op>,
    operands: Vec<Operand>,
    contributions: Vec<u32>,
    chain: Option<Chain>,
}

impl Compiled {
    /// Compiles `schedule` of a rank of `members`. `fused`: chains of reductions become one operation with many
    /// operands, which a kernel combines in one pass. `weights` has an entry for each step, or is empty if there are no
    /// means. `None` if the schedule has messages, or exceeds [`MAX_MEMBERS`] or [`MAX_PUBLICATIONS`].
    pub fn new(schedule: &Schedule, weights: &[Weights], members: usize, fused: bool) -> Option<Self> {
        let (ops, operands, contributions) = (Vec::new(), Vec::new(), Vec::new());
        let mut compiler = Compiler { schedule, ops, operands, contributions, chain: None };
        let (mut to, mut published) = (Vec::new(), Vec::new());
        for (index, step) in schedule.steps.iter().enumerate() {
            match step.action {
                ref action if action.is_message() => return None,
                Action::Publish { to: readers, from } => {
                    // Every listed reader fetches from each publication that lists it.
                    to.push(match readers {
                        Readers::All => Members::MAX,
                        Readers::One(rank) => Members::from(1u8).checked_shl(rank)?,
                        Readers::Set(set) => set,
                    });
                    published.push(from.len);
                    compiler.finish(Op::Publish(from));
                }
                Action::AwaitReaders => compiler.finish(Op::AwaitReaders),
                Action::Divide { span, by } => compiler.finish(Op::Divide { span, by }),
                ref action => compiler.combine(index, action, weights.get(index), step.channel, fused),
            }
        }
        compiler.flush();
        compiler.leave_out_copies();
        let scratch = compiler.scratch();
        let Compiler { ops, operands, contributions, .. } = compiler;
        let (mut fetched_from, mut last_fetch, mut last_shared) = (0, vec![0; members], 0);
        for (index, op) in ops.iter().enumerate() {
            let fetched = match op {
                Op::Combine { operands: range, .. } => &operands[range.clone()],
                Op::Publish(_) => {
                    last_shared = index;
                    continue;
                }
                _ => continue,
            };
            for operand in fetched {
                if let Operand::Peer { from, .. } = operand {
                    *last_fetch.get_mut(*from as usize)? = index;
                    fetched_from |= Members::from(1u8).checked_shl(*from)?;
                    last_shared = index;
                }
            }
        }
        (members <= MAX_MEMBERS && published.len() <= MAX_PUBLICATIONS).then(|| Self {
            ops: ops.into(),
            operands: operands.into(),
            contributions: contributions.into(),
            published: published.into(),
            to: to.into(),
            fetched: fetched_from,
            last_fetch: last_fetch.into(),
            last_shared,
            scratch,
        })
    }

    /// Bytes of memory that its lists take.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.ops)
            + size_of_val(&*self.operands)
            + size_of_val(&*self.contributions)
            + size_of_val(&*self.published)
            + size_of_val(&*self.to)
            + size_of_val(&*self.last_fetch)
    }

    /// Whether no operation combines some of the `contributions` to an element, but either all or none.
    pub fn combines_at_once(&self, contributions: usize) -> bool {
        self.ops.iter().all(|op| match op {
            Op::Combine { operands, into } => into.len == 0 || operands.len() == 1 || operands.len() == contributions,
            _ => true,
        })
    }

    /// Whether it reads what other ranks have published.
    pub fn fetches(&self) -> bool {
        self.operands.iter().any(|operand| matches!(operand, Operand::Peer { .. }))
    }
}

impl Compiler<'_> {
    fn flush(&mut self) {
        if let Some(Chain { first, into, .. }) = self.chain.take() {
            self.ops.push(Op::Combine { operands: first..self.operands.len(), into });
        }
    }

    fn finish(&mut self, op: Op) {
        self.flush();
        self.ops.push(op);
    }

    fn combine(&mut self, index: usize, action: &Action, weights: Option<&Weights>, channel: u32, fused: bool) {
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
        let round = action.publication().map(|_| channel);
        let extends = fused && self.extends(index, left, right, into, round);
        if !extends {
            self.flush();
            self.chain = Some(Chain { first: self.operands.len(), into, round });
            self.operands.push(left);
            self.contributions.extend(weights.map(|weights| weights[0]));
        }
        if let (Some(Chain { first, .. }), Some(weights), Some(_)) = (&self.chain, weights, right)
            && self.operands.len() == first + 1
        {
            // A copy or a fetch began the chain, and has no weights.
            self.contributions[*first] = weights[0];
        }
        if let Some(right) = right {
            self.operands.push(right);
            self.contributions.extend(weights.map(|weights| weights[1]));
        }
        if let Some(chain) = &mut self.chain {
            chain.into = into;
            chain.round = chain.round.or(round);
        }
    }

    /// Whether the step `index` continues the chain: its left operand is the chain's result, which nothing else needs.
    fn extends(&self, index: usize, left: Operand, right: Option<Operand>, into: Span, round: Option<u32>) -> bool {
        let Some(chain) = &self.chain else { return false };
        if chain.round.zip(round).is_some_and(|(chain, step)| chain != step) {
            return false;
        }
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

    /// Leaves out copies of elements that are then combined with others into where they were: an operation may write
    /// where one of its operands is. The schedule needs such a copy because it reduces two by two.
    fn leave_out_copies(&mut self) {
        let mut at = 0;
        while at < self.ops.len() {
            if self.leave_out_copy(at).is_some() {
                self.ops.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Makes the only operation that reads the copy that operation `at` makes, if it is one, read the original, if that
    /// is still there.
    fn leave_out_copy(&mut self, at: usize) -> Option<()> {
        let Op::Combine { operands: ref range, into: copy } = self.ops[at] else { return None };
        let [Operand::Own(original)] = self.operands[range.clone()] else { return None };
        let uses = |other: &usize| *other != at && self.touched(*other).any(|span| span.overlaps(copy));
        let mut users = (0..self.ops.len()).filter(uses);
        let (Some(user), None, Buffer::Scratch) = (users.next(), users.next(), copy.buffer) else { return None };
        let Op::Combine { operands: ref range, into } = self.ops[user] else { return None };
        let written = |op: &Op| match op {
            Op::Combine { into: span, .. } | Op::Divide { span, .. } => span.overlaps(original),
            Op::Publish(_) | Op::AwaitReaders => false,
        };
        let reads = |operand: &Operand| matches!(operand, Operand::Own(span) if span.overlaps(copy));
        let is_it = |operand: &Operand| *operand == Operand::Own(copy);
        let range = range.clone();
        let whole = self.operands[range.clone()].iter().all(|operand| is_it(operand) || !reads(operand));
        if user < at || into != original || !whole || self.ops[at + 1..user].iter().any(written) {
            return None;
        }
        self.operands[range].iter_mut().filter(|operand| is_it(operand)).for_each(|it| *it = Operand::Own(original));
        Some(())
    }

    /// The spans of this rank's buffers that the operation `index` reads or writes.
    fn touched(&self, index: usize) -> impl Iterator<Item = Span> {
        let (own, operands) = match self.ops[index] {
            Op::Combine { ref operands, into } => (Some(into), operands.clone()),
            Op::Divide { span, .. } | Op::Publish(span) => (Some(span), 0..0),
            Op::AwaitReaders => (None, 0..0),
        };
        let reads = |operand: &Operand| match *operand {
            Operand::Own(span) => Some(span),
            Operand::Peer { .. } => None,
        };
        own.into_iter().chain(self.operands[operands].iter().filter_map(reads))
    }

    /// Elements of scratch memory up to the last one that an operation uses.
    fn scratch(&self) -> usize {
        let touched = (0..self.ops.len()).flat_map(|index| self.touched(index));
        touched.filter(|span| span.buffer == Buffer::Scratch).map(|span| span.offset + span.len).max().unwrap_or(0)
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

#[cfg(all(test, not(loom)))]
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
        let program = Compiled::new(&schedule, &[], 4, true).unwrap();
        assert_eq!(
            *program.ops,
            [Op::Publish(input(8)), Op::Combine { operands: 0..4, into: out(8) }, Op::AwaitReaders]
        );
        assert_eq!(*program.operands, [peer(0), peer(1), Operand::Own(input(8)), peer(3)]);
        assert_eq!((&*program.to, &*program.published), (&[u64::MAX][..], &[8][..]));
        let program = Compiled::new(&schedule, &[], 4, false).unwrap();
        assert_eq!(program.ops.len(), 6, "with a function of the caller: one operation for each step");
    }

    #[test]
    fn a_result_that_is_used_twice_is_not_left_out() {
        let mut b = Builder::new();
        let scratch = b.scratch(8);
        b.publish(Readers::One(1), input(8));
        b.fetch(1, 0, 0, scratch);
        b.reduce(scratch, input(8), out(8));
        b.reduce(scratch, out(8), Span::new(Buffer::Output(1), 0, 8));
        b.await_readers();
        let program = Compiled::new(&b.build(), &[], 4, true).unwrap();
        assert_eq!(program.ops.len(), 5, "{:?}", program.ops);
        assert_eq!(*program.to, [2]);
    }

    #[test]
    fn a_chain_ends_in_another_place_if_nothing_else_reads_the_first() {
        let mut b = Builder::new();
        let scratch = b.scratch(8);
        b.publish(Readers::All, input(8));
        b.fetch(0, 0, 0, scratch);
        b.fetch_reduce(1, 0, 0, scratch, scratch, Side::Right);
        b.reduce(scratch, out(8), out(8));
        b.await_readers();
        let program = Compiled::new(&b.build(), &[], 4, true).unwrap();
        assert_eq!(program.ops[1], Op::Combine { operands: 0..3, into: out(8) });
    }

    #[test]
    fn messages_are_not_for_one_thread() {
        let mut b = Builder::new();
        b.publish(Readers::All, input(8));
        b.send(1, input(8));
        assert!(Compiled::new(&b.build(), &[], 4, true).is_none());
    }
}
