//! Writes a [`Schedule`]. An algorithm lists its steps in an order that would be correct if they ran one at a time and
//! sends were buffered; the builder derives which steps must wait for which.
//!
//! Two steps conflict if their spans share elements and one of them writes these: read after write, write after read,
//! write after write. For every range of every buffer the builder records the last writer and all readers since. A new
//! step can depend only on these, because they depend on all earlier ones.

use std::collections::BTreeMap;

use super::{Action, Buffer, Dependency, Readers, Schedule, Side, Span, Step};
use crate::hash::QuickMap;
use crate::types::Rank;

/// Collects the steps of one rank. Steps without elements are omitted; both ends of an empty message omit it. Empty
/// publications and fetches are signals and are kept; a signal is published after those fetched before.
#[derive(Default)]
pub struct Builder {
    schedule: Schedule,
    memory: QuickMap<Buffer, Ranges>,
    /// Number of messages so far to and from each peer.
    sent: QuickMap<Rank, u32>,
    received: QuickMap<Rank, u32>,
    /// Number of publications so far, and the last.
    published: u32,
    last_published: Option<u32>,
    /// The round of the next fetches; see [`Builder::next_round`].
    round: u32,
    /// The signals that were fetched since the last was published.
    signals: Vec<u32>,
    /// What has been published since the last [`Builder::await_readers`].
    readable: Vec<Span>,
    /// The dependencies of the step being added, and which of them are not implied by others. Fields only to reuse
    /// their memory.
    after: Vec<Dependency>,
    needed: Vec<bool>,
}

/// An access to a range: the step, and the offset at which that step's span starts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Access {
    step: u32,
    offset: usize,
}

/// The accesses to the elements from a [`Ranges`] key to `end`.
#[derive(Clone)]
struct Range {
    end: usize,
    writer: Option<Access>,
    /// Readers since the last write.
    readers: Vec<Access>,
}

/// Disjoint ranges, keyed by first element. Elements that no step has accessed are in none.
#[derive(Default)]
struct Ranges(BTreeMap<usize, Range>);

impl Builder {
    /// An empty schedule.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates `len` elements of scratch memory; their contents are undefined.
    pub fn scratch(&mut self, len: usize) -> Span {
        let span = Span::new(Buffer::Scratch, self.schedule.scratch, len);
        self.schedule.scratch += len;
        span
    }

    /// Sends `from` to rank `to`.
    pub fn send(&mut self, to: Rank, from: Span) {
        self.push(Action::Send { to: to as u32, from });
    }

    /// Receives `into` from rank `from`.
    pub fn recv(&mut self, from: Rank, into: Span) {
        self.push(Action::Recv { from: from as u32, into });
    }

    /// Receives from rank `from` and reduces: `into = with op incoming` for [`Side::Right`], `incoming op with` for
    /// [`Side::Left`].
    pub fn recv_reduce(&mut self, from: Rank, into: Span, with: Span, incoming: Side) {
        self.push(Action::RecvReduce { from: from as u32, into, with, incoming });
    }

    /// `into = from`. The spans must not overlap, unless they are equal; then there is nothing to do.
    pub fn copy(&mut self, from: Span, into: Span) {
        if from != into {
            self.push(Action::Copy { from, into });
        }
    }

    /// `into = left op right`; `into` may equal either of them.
    pub fn reduce(&mut self, left: Span, right: Span, into: Span) {
        self.push(Action::Reduce { left, right, into });
    }

    /// `span = span / by`; nothing if the divisor is 1.
    pub fn divide(&mut self, span: Span, by: u32) {
        if by != 1 {
            self.push(Action::Divide { span, by });
        }
    }

    /// Makes `from` readable for the ranks `to` on this host. Returns the publication's number.
    pub fn publish(&mut self, to: Readers, from: Span) -> u32 {
        self.push(Action::Publish { to, from });
        self.readable.push(from);
        self.last_published = Some(self.schedule.steps.len() as u32 - 1);
        self.published += 1;
        self.published - 1
    }

    /// Reads the elements of a publication of rank `from` from element `at` on.
    pub fn fetch(&mut self, from: Rank, publication: u32, at: usize, into: Span) {
        if into.len == 0 {
            self.signals.push(self.schedule.steps.len() as u32);
        }
        self.push(Action::Fetch { from: from as u32, publication, at, into });
    }

    /// Reads as [`Builder::fetch`] and reduces as [`Builder::recv_reduce`].
    pub fn fetch_reduce(&mut self, from: Rank, publication: u32, at: usize, into: Span, with: Span, incoming: Side) {
        self.push(Action::FetchReduce { from: from as u32, publication, at, into, with, incoming });
    }

    /// Begins a new round of fetches. No compiled operation reads publications of two rounds at one pace. An algorithm
    /// needs this where another rank finishes its reads of one round before it begins those of the next.
    pub fn next_round(&mut self) {
        self.round += 1;
    }

    /// Waits until all fetches of this rank's publications in the call are done.
    pub fn await_readers(&mut self) {
        self.push(Action::AwaitReaders);
    }

    /// Returns the schedule.
    pub fn build(self) -> Schedule {
        self.schedule
    }

    fn push(&mut self, action: Action) {
        let reads = action.reads().into_iter().flatten();
        debug_assert!(reads.chain(action.writes()).all(|span| span.len == action.elements()), "{action:?}");
        if action.progress() == 0 {
            return;
        }
        let step = self.schedule.steps.len() as u32;
        let mut after = std::mem::take(&mut self.after);
        let readable = if action == Action::AwaitReaders { std::mem::take(&mut self.readable) } else { Vec::new() };
        // Whoever writes what was published waits for the readers. Inputs are never written, so reading them creates no
        // dependency.
        let reads = action.reads().into_iter().flatten().chain(readable);
        for span in reads.filter(|span| span.len > 0 && !matches!(span.buffer, Buffer::Input(_))) {
            self.memory.entry(span.buffer).or_default().read(step, span, &mut after);
        }
        if matches!(action, Action::Publish { .. } | Action::AwaitReaders) {
            let is_signal = action.elements() == 0 && action != Action::AwaitReaders;
            let signals = self.signals.drain(..if is_signal { self.signals.len() } else { 0 });
            after.extend(signals.chain(self.last_published).map(|step| Dependency { step, shift: 0 }));
            // A publication and a wait for readers wait for whole steps, although they themselves may have no elements.
            let steps = &self.schedule.steps;
            after.iter_mut().for_each(|d| d.shift = d.shift.max(steps[d.step as usize].action.progress() as isize));
        }
        if let Some(span) = action.writes().filter(|span| span.len > 0) {
            self.memory.entry(span.buffer).or_default().write(step, span, &mut after);
        }
        // Among several dependencies on one step, the one with the largest shift implies the others.
        after.sort_unstable_by_key(|d: &Dependency| (d.step, std::cmp::Reverse(d.shift)));
        after.dedup_by_key(|d| d.step);
        self.leave_out_implied(&mut after, action.progress());
        let counter = match action.destination() {
            Some(to) => Some(self.sent.entry(to).or_default()),
            None => action.source().map(|from| self.received.entry(from).or_default()),
        };
        let channel = match action {
            Action::Publish { .. } => self.published,
            Action::Fetch { .. } | Action::FetchReduce { .. } => self.round,
            _ => counter.map_or(0, |next| std::mem::replace(next, *next + 1)),
        };
        self.schedule.steps.push(Step { action, channel, after: after.as_slice().into() });
        after.clear();
        self.after = after;
    }

    /// Removes dependencies that are implied by others. `after` is sorted by step; `len` is the length of the waiting
    /// step.
    fn leave_out_implied(&mut self, after: &mut Vec<Dependency>, len: usize) {
        if after.len() < 2 {
            return;
        }
        let steps = &self.schedule.steps;
        let elements = |step: u32| steps[step as usize].action.progress() as isize;
        self.needed.clear();
        self.needed.resize(after.len(), true);
        for via in after.iter() {
            for first in &steps[via.step as usize].after {
                let Ok(index) = after.binary_search_by_key(&first.step, |d| d.step) else { continue };
                let direct = after[index].shift;
                // The path through `via` implies the direct dependency unless it requires less, starts later or ends
                // earlier.
                self.needed[index] &= via.shift + first.shift < direct
                    || via.shift < direct.min(0)
                    || elements(via.step) + first.shift < elements(first.step).min(len as isize + direct);
            }
        }
        let mut needed = self.needed.iter();
        after.retain(|_| needed.next() == Some(&true));
    }
}

impl Ranges {
    /// Splits the range that contains `at`, so that no range crosses it.
    fn cut(&mut self, at: usize) {
        if let Some((_, range)) = self.0.range_mut(..at).next_back()
            && range.end > at
        {
            let rest = range.clone();
            range.end = at;
            self.0.insert(at, rest);
        }
    }

    /// The range that is exactly `span`, if any. Most spans are accessed repeatedly.
    fn exactly(&mut self, span: Span) -> Option<&mut Range> {
        self.0.get_mut(&span.offset).filter(|range| range.end == span.end())
    }

    fn read(&mut self, step: u32, span: Span, after: &mut Vec<Dependency>) {
        let reader = Access { step, offset: span.offset };
        if let Some(range) = self.exactly(span) {
            after.extend(range.writer.map(|writer| writer.before(span)));
            range.read_by(reader);
            return;
        }
        self.cut(span.offset);
        self.cut(span.end());
        let mut next = span.offset;
        let mut untouched = Vec::new();
        for (&start, range) in self.0.range_mut(span.offset..span.end()) {
            if start > next {
                untouched.push((next, start));
            }
            next = range.end;
            after.extend(range.writer.map(|writer| writer.before(span)));
            range.read_by(reader);
        }
        if next < span.end() {
            untouched.push((next, span.end()));
        }
        for (start, end) in untouched {
            self.0.insert(start, Range { end, writer: None, readers: vec![reader] });
        }
    }

    fn write(&mut self, step: u32, span: Span, after: &mut Vec<Dependency>) {
        let writer = Some(Access { step, offset: span.offset });
        if let Some(range) = self.exactly(span) {
            range.before_write(step, span, after);
            range.writer = writer;
            range.readers.clear();
            return;
        }
        self.cut(span.offset);
        self.cut(span.end());
        let starts: Vec<usize> = self.0.range(span.offset..span.end()).map(|(&start, _)| start).collect();
        for start in starts {
            let Some(range) = self.0.remove(&start) else { continue };
            range.before_write(step, span, after);
        }
        self.0.insert(span.offset, Range { end: span.end(), writer, readers: Vec::new() });
    }
}

impl Range {
    fn read_by(&mut self, reader: Access) {
        if self.readers.last() != Some(&reader) {
            self.readers.push(reader);
        }
    }

    /// Adds the dependencies of `step`, which writes `span`; the span overlaps this range.
    fn before_write(&self, step: u32, span: Span, after: &mut Vec<Dependency>) {
        // Readers already depend on the writer before them; so does this step's own read.
        let earlier = if self.readers.is_empty() { self.writer.as_slice() } else { &self.readers };
        after.extend(earlier.iter().filter(|a| a.step != step).map(|a| a.before(span)));
    }
}

impl Access {
    /// The dependency of a later step that accesses `span`, which overlaps this access's span.
    fn before(self, span: Span) -> Dependency {
        Dependency { step: self.step, shift: span.offset as isize - self.offset as isize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: usize, len: usize) -> Span {
        Span::new(Buffer::Output(0), offset, len)
    }

    fn input(offset: usize, len: usize) -> Span {
        Span::new(Buffer::Input(0), offset, len)
    }

    fn after(schedule: &Schedule, step: usize) -> Vec<(u32, isize)> {
        schedule.steps[step].after.iter().map(|d| (d.step, d.shift)).collect()
    }

    #[test]
    fn the_three_hazards_and_their_shifts() {
        let mut b = Builder::new();
        b.recv(1, span(10, 10));
        b.send(2, span(15, 10));
        b.recv(1, span(12, 6));
        b.recv(1, span(14, 2));
        b.send(2, input(0, 4));
        b.send(3, input(0, 4));
        let s = b.build();
        assert_eq!(after(&s, 0), []);
        assert_eq!(after(&s, 1), [(0, 5)], "read after write");
        assert_eq!(after(&s, 2), [(0, 2), (1, -3)], "write after write before 15, write after read from there");
        assert_eq!(after(&s, 3), [(2, 2)], "only the last writer");
        assert_eq!(after(&s, 4), []);
        assert_eq!(after(&s, 5), [], "reads do not conflict");
        let channels: Vec<u32> = s.steps.iter().map(|s| s.channel).collect();
        assert_eq!(channels, [0, 0, 1, 2, 1, 0]);
        assert_eq!((s.messages_sent(), s.elements_sent()), (3, 18));
    }

    #[test]
    fn a_write_waits_for_all_readers_since_the_last() {
        let mut b = Builder::new();
        b.copy(input(0, 8), span(0, 8));
        b.send(1, span(0, 4));
        b.send(2, span(2, 4));
        b.send(3, span(0, 8));
        b.copy(input(0, 8), span(0, 8));
        let s = b.build();
        assert_eq!(after(&s, 4), [(1, 0), (2, -2), (3, 0)]);
    }

    #[test]
    fn a_step_never_waits_for_itself() {
        let mut b = Builder::new();
        b.recv_reduce(1, span(0, 4), span(0, 4), Side::Left);
        b.reduce(span(0, 4), span(4, 4), span(0, 4));
        b.divide(span(2, 6), 3);
        let s = b.build();
        assert_eq!(after(&s, 1), [(0, 0)]);
        assert_eq!(after(&s, 2), [(1, 2)], "one dependency for both spans, with the larger shift");
    }

    #[test]
    fn implied_dependencies_are_omitted() {
        let mut b = Builder::new();
        b.copy(input(0, 8), span(0, 8));
        b.copy(span(0, 8), Span::new(Buffer::Output(1), 0, 8));
        b.recv(1, span(2, 4));
        b.reduce(span(2, 4), Span::new(Buffer::Output(1), 2, 4), span(2, 4));
        b.reduce(span(0, 8), Span::new(Buffer::Output(1), 0, 8), span(0, 8));
        let s = b.build();
        assert_eq!(after(&s, 2), [(1, 2)]);
        assert_eq!(after(&s, 3), [(2, 0)], "the receive waits for the copy that the reduction reads from");
        assert_eq!(after(&s, 4), [(1, 0), (3, -2)], "the reduction before covers only the middle");
    }

    #[test]
    fn steps_without_effect_are_omitted() {
        let mut b = Builder::new();
        b.send(1, span(0, 0));
        b.copy(span(0, 4), span(0, 4));
        b.divide(span(0, 4), 1);
        b.send(1, span(0, 4));
        let s = b.build();
        assert_eq!(s.steps.len(), 1);
        assert_eq!(s.steps[0].channel, 0);
    }

    #[test]
    fn what_is_published_is_written_after_its_readers_are_done() {
        let mut b = Builder::new();
        b.copy(input(0, 8), span(0, 8));
        assert_eq!(b.publish(Readers::All, span(0, 8)), 0);
        b.fetch(1, 0, 4, span(4, 4));
        assert_eq!(b.publish(Readers::One(1), span(4, 0)), 1);
        b.fetch(1, 1, 0, span(8, 0));
        b.await_readers();
        b.copy(input(0, 4), span(2, 4));
        b.copy(input(0, 4), span(8, 4));
        let s = b.build();
        assert_eq!(after(&s, 1), [(0, 8)], "read after write");
        assert_eq!(after(&s, 2), [(1, 4)], "write after read");
        assert_eq!(after(&s, 3), [(1, 8)], "publications are in order");
        assert_eq!(after(&s, 4), []);
        assert_eq!(after(&s, 5), [(0, 8), (2, 4), (3, 1)], "all publications, and all writers of what was published");
        assert_eq!(after(&s, 6), [(1, 2), (5, 2)], "written after the readers");
        assert_eq!(after(&s, 7), []);
        let channels: Vec<u32> = s.steps.iter().map(|s| s.channel).collect();
        assert_eq!(channels, [0, 0, 0, 1, 0, 0, 0, 0]);
        let progress: Vec<usize> = s.steps.iter().map(|s| s.action.progress()).collect();
        assert_eq!(progress, [8, 8, 4, 1, 1, 1, 4, 4], "signals are steps too");
    }

    #[test]
    fn a_signal_is_published_after_those_fetched_before() {
        let mut b = Builder::new();
        b.publish(Readers::One(1), span(0, 0));
        b.fetch(1, 0, 0, span(0, 0));
        b.publish(Readers::One(2), span(0, 8));
        b.publish(Readers::One(2), span(0, 0));
        b.publish(Readers::One(3), span(0, 0));
        let s = b.build();
        assert_eq!(after(&s, 2), [(0, 1)], "data do not depend on a signal");
        assert_eq!(after(&s, 3), [(1, 1), (2, 8)]);
        assert_eq!(after(&s, 4), [(3, 1)]);
    }

    #[test]
    fn scratch_is_handed_out_once() {
        let mut b = Builder::new();
        assert_eq!(b.scratch(3), Span::new(Buffer::Scratch, 0, 3));
        assert_eq!(b.scratch(4), Span::new(Buffer::Scratch, 3, 4));
        assert_eq!(b.build().scratch, 7);
    }

    #[test]
    fn split_covers_everything_once() {
        for len in 0..40 {
            for parts in 1..9 {
                let mut next = 0;
                for index in 0..parts {
                    let (offset, part) = super::super::split(len, parts, index);
                    assert_eq!(offset, next);
                    assert!(part == len / parts || part == len / parts + 1);
                    next = offset + part;
                }
                assert_eq!(next, len);
            }
        }
    }
}
