//! How many contributions each operand of a reduction stands for: the weights of a running mean.
//!
//! An average of float16 is not their sum, divided in the end, which may overflow although the average does not: each
//! reduction computes the mean of all contributions so far, from the means of its operands and their numbers of
//! contributions. Only the schedules of all ranks together say what these numbers are.

use super::{Action, Buffer, Schedule, Side, Span};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::types::Rank;

/// The numbers of contributions of the left and of the right operand of a reduction.
pub type Weights = [u32; 2];

/// Neighbouring elements with equal numbers of contributions: how many elements, and the number. Nearly always there is
/// one run, which needs no allocation.
#[derive(Clone, Default)]
struct Runs {
    first: (usize, u32),
    others: Vec<(usize, u32)>,
}

impl Runs {
    fn one(len: usize, number: u32) -> Self {
        Self { first: (len, number), others: Vec::new() }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, u32)> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    fn push(&mut self, len: usize, number: u32) {
        let last = self.others.last_mut().unwrap_or(&mut self.first);
        match last {
            _ if len == 0 => {}
            (0, _) => *last = (len, number),
            (of_last, same) if *same == number => *of_last += len,
            _ => self.others.push((len, number)),
        }
    }

    /// `len` elements from element `from` on.
    fn part(&self, from: usize, len: usize) -> Self {
        let mut part = Self::default();
        let mut begin = 0;
        for (run, number) in self.iter() {
            let end = begin + run;
            part.push(end.min(from + len).saturating_sub(begin.max(from)), number);
            begin = end;
        }
        part
    }
}

/// The numbers of contributions of a buffer's elements: first element, one past the last, and the number. Elements that
/// no step has written are contributions themselves.
#[derive(Default)]
struct Counts(Vec<(usize, usize, u32)>);

impl Counts {
    fn read(&self, span: Span) -> Runs {
        let mut runs = Runs::default();
        let mut at = span.offset;
        for &(start, end, number) in &self.0[self.0.partition_point(|range| range.1 <= span.offset)..] {
            if start >= span.end() {
                break;
            }
            runs.push(start.saturating_sub(at), 1);
            let from = at.max(start);
            at = end.min(span.end());
            runs.push(at - from, number);
        }
        runs.push(span.end() - at, 1);
        runs
    }

    fn write(&mut self, span: Span, runs: &Runs) {
        let first = self.0.partition_point(|range| range.1 <= span.offset);
        let last = self.0.partition_point(|range| range.0 < span.end());
        let mut at = span.offset;
        let pieces = runs.iter().map(|(len, number)| {
            at += len;
            (at - len, at, number)
        });
        let Some(overlapped) = self.0.get(first..last).filter(|ranges| !ranges.is_empty()) else {
            self.0.splice(first..first, pieces);
            return;
        };
        let ((start, _, left), (_, end, right)) = (overlapped[0], overlapped[last - first - 1]);
        let before = (start < span.offset).then_some((start, span.offset, left));
        let after = (end > span.end()).then_some((span.end(), end, right));
        self.0.splice(first..last, before.into_iter().chain(pieces).chain(after));
    }
}

/// The schedules of all ranks as one list of steps, in the order of ranks.
struct Job<'a> {
    schedules: &'a [Schedule],
    /// The index in the list of each rank's first step.
    first: Vec<usize>,
    memory: Vec<QuickMap<Buffer, Counts>>,
    /// How many steps each step waits for, and the message or the publication that it needs, if any.
    missing: Vec<u32>,
    /// The steps of the same rank that wait for each step.
    dependents: Vec<Vec<u32>>,
    /// By sender, receiver and channel: the step that receives the message.
    receivers: QuickMap<(u32, u32, u32), usize>,
    /// By rank and number: the steps that fetch from the publication.
    fetchers: QuickMap<(u32, u32), Vec<usize>>,
    /// What has arrived for each step that receives or fetches.
    arrived: QuickMap<usize, Runs>,
}

/// Returns the weights of the operands of each step of `rank` that reduces; of other steps zeros. `schedules` are those
/// of all ranks, which the [verifier](super::verify()) accepts. Fails if the elements of an operand differ in their
/// numbers of contributions, which those of no algorithm do. The time grows with the number of all ranks' steps.
pub fn weights(schedules: &[Schedule], rank: Rank) -> Result<Box<[Weights]>> {
    let mut job = Job::new(schedules);
    let mut result = vec![[0; 2]; schedules[rank].steps.len()];
    let mut ready: Vec<usize> = (0..job.missing.len()).filter(|step| job.missing[*step] == 0).collect();
    let mut missing = schedules[rank].steps.iter().filter(|step| step.action.reduces()).count();
    while missing > 0 {
        let index =
            ready.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "the schedules of all ranks do not end"))?;
        let of = job.first.partition_point(|first| *first <= index) - 1;
        let at = index - job.first[of];
        let weights = job.execute(of, at, &mut ready).ok_or_else(|| wrong(schedules, of, at))?;
        if of == rank && schedules[rank].steps[at].action.reduces() {
            result[at] = weights;
            missing -= 1;
        }
        for dependent in std::mem::take(&mut job.dependents[index]) {
            job.release(job.first[of] + dependent as usize, &mut ready);
        }
    }
    Ok(result.into())
}

#[cold]
fn wrong(schedules: &[Schedule], rank: Rank, at: usize) -> Error {
    let action = schedules[rank].steps[at].action;
    let text = format!("rank {rank}, step {at} ({action:?}): operands of different numbers of contributions");
    Error::new(ErrorKind::Internal, text)
}

impl<'a> Job<'a> {
    fn new(schedules: &'a [Schedule]) -> Self {
        let (mut first, mut missing, mut dependents) = (Vec::new(), Vec::new(), Vec::new());
        let (mut receivers, mut fetchers) = (QuickMap::default(), QuickMap::<_, Vec<usize>>::default());
        for (rank, schedule) in schedules.iter().enumerate() {
            let (rank, begin) = (rank as u32, missing.len());
            first.push(begin);
            dependents.resize(begin + schedule.steps.len(), Vec::new());
            for (at, step) in schedule.steps.iter().enumerate() {
                let len = step.action.progress() as isize;
                let needed = step.after.iter().filter(|dependency| len.saturating_add(dependency.shift) > 0);
                let mut waits = 0;
                for dependency in needed {
                    dependents[begin + dependency.step as usize].push(at as u32);
                    waits += 1;
                }
                if let Some(from) = step.action.source() {
                    receivers.insert((from as u32, rank, step.channel), begin + at);
                    waits += 1;
                } else if let Some((from, publication, _)) = step.action.publication() {
                    fetchers.entry((from as u32, publication)).or_default().push(begin + at);
                    waits += 1;
                }
                missing.push(waits);
            }
        }
        let memory = schedules.iter().map(|_| QuickMap::default()).collect();
        Self { schedules, first, memory, missing, dependents, receivers, fetchers, arrived: QuickMap::default() }
    }

    /// One of the things for which `step` waits is there.
    fn release(&mut self, step: usize, ready: &mut Vec<usize>) {
        self.missing[step] -= 1;
        if self.missing[step] == 0 {
            ready.push(step);
        }
    }

    fn read(&self, rank: Rank, span: Span) -> Runs {
        self.memory[rank].get(&span.buffer).map_or_else(|| Counts::default().read(span), |counts| counts.read(span))
    }

    fn write(&mut self, rank: Rank, span: Span, runs: &Runs) {
        self.memory[rank].entry(span.buffer).or_default().write(span, runs);
    }

    /// Executes step `at` of `rank`; the steps that need its message or publication may become ready. Returns the
    /// weights of a reduction.
    fn execute(&mut self, rank: Rank, at: usize, ready: &mut Vec<usize>) -> Option<Weights> {
        let step = &self.schedules[rank].steps[at];
        let arrived = self.arrived.remove(&(self.first[rank] + at)).unwrap_or_default();
        let mut weights = [0; 2];
        let mut reduce = |left: &Runs, right: &Runs| {
            weights = [left.first.1, right.first.1];
            let is_one = left.others.is_empty() && right.others.is_empty();
            is_one.then_some(Runs::one(left.first.0, weights[0].checked_add(weights[1])?))
        };
        let result = match step.action {
            Action::Send { to, from } => {
                let receiver = *self.receivers.get(&(rank as u32, to, step.channel))?;
                self.arrived.insert(receiver, self.read(rank, from));
                self.release(receiver, ready);
                return Some(weights);
            }
            Action::Publish { from, .. } => {
                let runs = self.read(rank, from);
                for fetcher in self.fetchers.remove(&(rank as u32, step.channel)).unwrap_or_default() {
                    self.arrived.insert(fetcher, runs.clone());
                    self.release(fetcher, ready);
                }
                return Some(weights);
            }
            Action::Divide { .. } | Action::AwaitReaders => return Some(weights),
            Action::Recv { .. } => arrived,
            Action::Fetch { at, into, .. } => arrived.part(at, into.len),
            Action::Copy { from, .. } => self.read(rank, from),
            Action::Reduce { left, right, .. } => reduce(&self.read(rank, left), &self.read(rank, right))?,
            Action::RecvReduce { with, incoming, .. } | Action::FetchReduce { with, incoming, .. } => {
                let first = step.action.publication().map_or(0, |(_, _, at)| at);
                let (own, fetched) = (self.read(rank, with), arrived.part(first, with.len));
                match incoming {
                    Side::Left => reduce(&fetched, &own)?,
                    Side::Right => reduce(&own, &fetched)?,
                }
            }
        };
        self.write(rank, step.action.writes()?, &result);
        Some(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Builder;

    fn out(offset: usize, len: usize) -> Span {
        Span::new(Buffer::Output(0), offset, len)
    }

    /// Three ranks in a row, of which the last has two inputs: the steps that reduce have numbers, the others none.
    #[test]
    fn operands_have_the_contributions_that_were_reduced_into_them() {
        let mut first = Builder::new();
        first.send(1, out(0, 8));
        let mut second = Builder::new();
        second.recv_reduce(0, out(0, 8), out(0, 8), Side::Left);
        second.send(2, out(2, 4));
        let mut third = Builder::new();
        let (input, scratch) = (|n| Span::new(Buffer::Input(n), 0, 4), third.scratch(4));
        third.reduce(input(0), input(1), scratch);
        third.recv_reduce(1, out(0, 4), scratch, Side::Right);
        let schedules = [first, second, third].map(Builder::build);
        let of = |rank| weights(&schedules, rank).unwrap().to_vec();
        assert_eq!((of(0), of(1), of(2)), (vec![[0, 0]], vec![[1, 1], [0, 0]], vec![[1, 1], [2, 2]]));
    }

    #[test]
    fn operands_of_different_numbers_of_contributions_are_refused() {
        let mut one = Builder::new();
        one.recv_reduce(1, out(0, 4), out(0, 4), Side::Right);
        one.reduce(out(0, 8), Span::new(Buffer::Input(0), 0, 8), out(0, 8));
        let mut other = Builder::new();
        other.send(0, out(0, 4));
        let error = weights(&[one.build(), other.build()], 0).unwrap_err();
        assert!(error.message().contains("operands of different numbers of contributions"), "{error}");
    }

    #[test]
    fn fetches_begin_anywhere_in_a_publication() {
        let mut one = Builder::new();
        one.reduce(out(4, 4), Span::new(Buffer::Input(0), 4, 4), out(4, 4));
        one.publish(super::super::Readers::One(1), out(0, 8));
        one.await_readers();
        let mut other = Builder::new();
        other.fetch_reduce(0, 0, 4, out(0, 4), out(0, 4), Side::Left);
        other.fetch(0, 0, 2, out(4, 4));
        other.reduce(out(4, 2), out(0, 2), out(8, 2));
        other.reduce(out(6, 2), out(0, 2), out(8, 2));
        other.await_readers();
        let found = weights(&[one.build(), other.build()], 1).unwrap();
        assert_eq!(*found, [[2, 1], [0, 0], [1, 3], [2, 3], [0, 0]]);
    }
}
