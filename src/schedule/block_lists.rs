//! Schedules for buffers that have one block per rank, where each block is memory of its own.
//!
//! A generator writes a schedule as if a buffer were contiguous. Here each of its spans becomes one of the buffer of
//! that block. What spans several blocks, and must be one span, because it is one message or one publication, goes
//! through scratch memory. So the messages are the same, and other ranks need not know.

use super::{Action, Buffer, Builder, Schedule, Side, Span};

/// Where the blocks of a buffer begin in the contiguous one, and where the last ends.
struct Starts(Option<Vec<usize>>);

impl Starts {
    fn new(counts: Option<&[usize]>) -> Self {
        Self(counts.map(|counts| {
            let mut starts = vec![0];
            for count in counts {
                starts.push(starts[starts.len() - 1] + count);
            }
            starts
        }))
    }

    /// The numbers of elements from the first element of `span` to the ends of the blocks in which it lies.
    fn cut(&self, span: Span, cuts: &mut Vec<usize>) {
        let Some(starts) = &self.0 else { return };
        let first = starts.partition_point(|start| *start <= span.offset);
        cuts.extend(starts[first..].iter().take_while(|start| **start < span.end()).map(|start| start - span.offset));
    }

    /// `span`, which lies in one block, as a part of that block's buffer; `buffer` makes it from the block's number.
    fn place(&self, span: Span, buffer: fn(u32) -> Buffer) -> Span {
        match &self.0 {
            Some(_) if span.len == 0 => Span { buffer: buffer(0), offset: 0, len: 0 },
            Some(starts) => {
                let block = starts.partition_point(|start| *start <= span.offset) - 1;
                Span { buffer: buffer(block as u32), offset: span.offset - starts[block], len: span.len }
            }
            None => span,
        }
    }
}

/// The blocks of both buffers.
struct Blocks {
    input: Starts,
    output: Starts,
}

impl Blocks {
    fn cut(&self, span: Span, cuts: &mut Vec<usize>) {
        match span.buffer {
            Buffer::Input(_) => self.input.cut(span, cuts),
            Buffer::Output(_) => self.output.cut(span, cuts),
            Buffer::Scratch => {}
        }
    }

    fn place(&self, span: Span) -> Span {
        match span.buffer {
            Buffer::Input(_) => self.input.place(span, Buffer::Input),
            Buffer::Output(_) => self.output.place(span, Buffer::Output),
            Buffer::Scratch => span,
        }
    }

    /// `spans`, which have the same length, in pieces of which each lies in one block.
    fn pieces<const N: usize>(&self, spans: [Span; N]) -> Vec<[Span; N]> {
        let len = spans[0].len;
        let mut cuts = Vec::new();
        spans.iter().for_each(|span| self.cut(*span, &mut cuts));
        cuts.push(len);
        cuts.sort_unstable();
        cuts.dedup();
        let mut start = 0;
        let piece = |end: usize| {
            let from = std::mem::replace(&mut start, end);
            spans.map(|span| self.place(span.slice(from, end - from)))
        };
        cuts.into_iter().map(piece).collect()
    }

    /// `span`, if it lies in one block.
    fn whole(&self, span: Span) -> Option<Span> {
        match *self.pieces([span]) {
            [[whole]] => Some(whole),
            _ => None,
        }
    }

    /// `span` in one piece: itself, or a copy in scratch memory.
    fn contiguous(&self, b: &mut Builder, span: Span) -> Span {
        self.whole(span).unwrap_or_else(|| {
            let copy = b.scratch(span.len);
            self.pieces([span, copy]).into_iter().for_each(|[from, into]| b.copy(from, into));
            copy
        })
    }

    /// Has `arrive` write one span, whose elements are then those of `into`.
    fn arrive(&self, b: &mut Builder, into: Span, arrive: impl FnOnce(&mut Builder, Span)) {
        if let Some(whole) = self.whole(into) {
            return arrive(b, whole);
        }
        let arrived = b.scratch(into.len);
        arrive(b, arrived);
        self.pieces([arrived, into]).into_iter().for_each(|[from, into]| b.copy(from, into));
    }

    /// Has `combine` combine what arrives with `with`, or if these have several blocks, `arrive` write one span, whose
    /// elements are then combined.
    fn reduce(
        &self,
        b: &mut Builder,
        (into, with, incoming): (Span, Span, Side),
        combine: impl FnOnce(&mut Builder, Span, Span),
        arrive: impl FnOnce(&mut Builder, Span),
    ) {
        if let [[into, with]] = *self.pieces([into, with]) {
            return combine(b, into, with);
        }
        let arrived = b.scratch(into.len);
        arrive(b, arrived);
        for [arrived, with, into] in self.pieces([arrived, with, into]) {
            match incoming {
                Side::Left => b.reduce(arrived, with, into),
                Side::Right => b.reduce(with, arrived, into),
            }
        }
    }
}

impl Schedule {
    /// This schedule for a caller who has a buffer for each block of the only input, of the only output, or of both.
    /// `inputs` and `outputs` are the lengths of these blocks.
    pub fn in_blocks(&self, inputs: Option<&[usize]>, outputs: Option<&[usize]>) -> Self {
        let blocks = Blocks { input: Starts::new(inputs), output: Starts::new(outputs) };
        let mut b = Builder::new();
        b.scratch(self.scratch);
        let mut round = 0;
        for step in &self.steps {
            if let Action::Fetch { .. } | Action::FetchReduce { .. } = step.action {
                (round..step.channel).for_each(|_| b.next_round());
                round = round.max(step.channel);
            }
            match step.action {
                Action::Send { to, from } => {
                    let from = blocks.contiguous(&mut b, from);
                    b.send(to as usize, from);
                }
                Action::Recv { from, into } => blocks.arrive(&mut b, into, |b, into| b.recv(from as usize, into)),
                Action::RecvReduce { from, into, with, incoming } => blocks.reduce(
                    &mut b,
                    (into, with, incoming),
                    |b, into, with| b.recv_reduce(from as usize, into, with, incoming),
                    |b, into| b.recv(from as usize, into),
                ),
                Action::Copy { from, into } => {
                    blocks.pieces([from, into]).into_iter().for_each(|[from, into]| b.copy(from, into));
                }
                Action::Reduce { left, right, into } => {
                    let pieces = blocks.pieces([left, right, into]).into_iter();
                    pieces.for_each(|[left, right, into]| b.reduce(left, right, into));
                }
                Action::Divide { span, by } => {
                    blocks.pieces([span]).into_iter().for_each(|[span]| b.divide(span, by));
                }
                Action::Publish { to, from } => {
                    let from = blocks.contiguous(&mut b, from);
                    b.publish(to, from);
                }
                Action::Fetch { from, publication, at, into } => {
                    blocks.arrive(&mut b, into, |b, into| b.fetch(from as usize, publication, at, into));
                }
                Action::FetchReduce { from, publication, at, into, with, incoming } => blocks.reduce(
                    &mut b,
                    (into, with, incoming),
                    |b, into, with| b.fetch_reduce(from as usize, publication, at, into, with, incoming),
                    |b, into| b.fetch(from as usize, publication, at, into),
                ),
                Action::AwaitReaders => b.await_readers(),
            }
        }
        b.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Readers;

    fn out(offset: usize, len: usize) -> Span {
        Span::new(Buffer::Output(0), offset, len)
    }

    fn actions(schedule: &Schedule) -> Vec<Action> {
        schedule.steps.iter().map(|step| step.action).collect()
    }

    #[test]
    fn a_span_of_one_block_stays_one_and_others_go_through_scratch_memory() {
        let mut b = Builder::new();
        let scratch = b.scratch(5);
        b.send(1, out(3, 2));
        b.send(1, out(1, 4));
        b.recv(2, out(0, 5));
        b.recv_reduce(2, out(2, 2), scratch.slice(0, 2), Side::Left);
        b.publish(Readers::One(1), out(0, 0));
        let flat = b.build();
        let in_blocks = flat.in_blocks(None, Some(&[3, 0, 2]));
        let block = |index: u32, offset: usize, len: usize| Span::new(Buffer::Output(index), offset, len);
        let scratch = |offset: usize, len: usize| Span::new(Buffer::Scratch, offset, len);
        assert_eq!(
            actions(&in_blocks),
            [
                Action::Send { to: 1, from: block(2, 0, 2) },
                Action::Copy { from: block(0, 1, 2), into: scratch(5, 2) },
                Action::Copy { from: block(2, 0, 2), into: scratch(7, 2) },
                Action::Send { to: 1, from: scratch(5, 4) },
                Action::Recv { from: 2, into: scratch(9, 5) },
                Action::Copy { from: scratch(9, 3), into: block(0, 0, 3) },
                Action::Copy { from: scratch(12, 2), into: block(2, 0, 2) },
                Action::Recv { from: 2, into: scratch(14, 2) },
                Action::Reduce { left: scratch(14, 1), right: scratch(0, 1), into: block(0, 2, 1) },
                Action::Reduce { left: scratch(15, 1), right: scratch(1, 1), into: block(2, 0, 1) },
                Action::Publish { to: Readers::One(1), from: block(0, 0, 0) },
            ]
        );
        assert_eq!(in_blocks.scratch, 16);
        assert_eq!(flat.in_blocks(None, None), flat);
        assert_eq!(flat.in_blocks(None, Some(&[5])), flat);
    }
}
