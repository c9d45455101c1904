//! Building blocks that several algorithms share.

use super::ring::Ring;
use super::{Case, Shape};
use crate::schedule::cost::Cost;
use crate::schedule::{Buffer, Builder, Schedule, Side, Span};

/// The buffers that this rank contributes to a reduction: the inputs or, in place, the outputs.
pub(super) fn sources(shape: &Shape<'_>) -> Vec<Buffer> {
    if shape.inputs > 0 {
        (0..shape.inputs as u32).map(Buffer::Input).collect()
    } else {
        (0..shape.outputs as u32).map(Buffer::Output).collect()
    }
}

/// Reduces `len` elements at `offset` of all `sources` into `target`. Returns where the result is: a single source is
/// not copied. `target` may overlap the first source.
pub(super) fn contribution(b: &mut Builder, sources: &[Buffer], offset: usize, len: usize, target: Span) -> Span {
    let from = |buffer: Buffer| Span::new(buffer, offset, len);
    let mut sum = from(sources[0]);
    for &source in &sources[1..] {
        b.reduce(sum, from(source), target);
        sum = target;
    }
    sum
}

/// Receives from each of `children` in this order and reduces with `current` into `target`. Returns where the result
/// is.
pub(super) fn combine_children(
    b: &mut Builder,
    children: impl IntoIterator<Item = (usize, Side)>,
    mut current: Span,
    target: Span,
) -> Span {
    for (child, side) in children {
        b.recv_reduce(child, target, current, side);
        current = target;
    }
    current
}

/// Receives from each of `peer(0)` to `peer(ranks - 1)` but this one, `peer(rank)`, and combines from the left into
/// `into`. This rank's own part is `own`, which may be there. Returns where the result is: a single part is not copied.
pub(super) fn combine_from_left(
    b: &mut Builder,
    (rank, ranks): (usize, usize),
    peer: impl Fn(usize) -> usize,
    own: Span,
    into: Span,
) -> Span {
    // What lower ranks contribute arrives before the own part is read.
    let before = if rank > 0 && own.overlaps(into) { b.scratch(into.len) } else { into };
    let mut current = own;
    for other in (0..ranks).filter(|other| *other > 0 || rank > 0) {
        let target = if other < rank { before } else { into };
        match other {
            0 => b.recv(peer(0), target),
            _ if other == rank => b.reduce(current, own, target),
            _ => b.recv_reduce(peer(other), target, current, Side::Right),
        }
        current = target;
    }
    current
}

/// This rank's contributions to `part` of an output.
pub(super) fn apart(sources: &[Buffer], part: Span) -> impl Iterator<Item = Span> {
    sources.iter().map(move |&buffer| Span { buffer, ..part })
}

/// Receives the contributions of each of `others`, as many as this rank's `own`, and combines all at once into `into`,
/// which the first of `own` may be.
pub(super) fn combine_apart(b: &mut Builder, others: impl IntoIterator<Item = usize>, mut own: Vec<Span>, into: Span) {
    let contributions = own.len();
    for other in others {
        for _ in 0..contributions {
            let arrived = b.scratch(into.len);
            b.recv(other, arrived);
            own.push(arrived);
        }
    }
    let mut current = own[0];
    for next in &own[1..] {
        b.reduce(current, *next, into);
        current = into;
    }
    b.copy(current, into);
}

/// On the root: receives the data of all other ranks concurrently and reduces it in rank order into `output`.
/// `current` is the root's contribution.
pub(super) fn combine_at_root(b: &mut Builder, shape: &Shape<'_>, current: Span, output: Span) {
    let buffers: Vec<Span> =
        (0..shape.size).map(|rank| if rank == shape.rank { current } else { b.scratch(current.len) }).collect();
    for from in (0..shape.size).filter(|&rank| rank != shape.rank) {
        b.recv(from, buffers[from]);
    }
    let mut sum = buffers[0];
    for (rank, &received) in buffers.iter().enumerate().skip(1) {
        // The root's own elements may be in the output until they are reduced.
        let into = if rank < shape.rank { sum } else { output };
        b.reduce(sum, received, into);
        sum = into;
    }
    b.copy(sum, output);
}

/// Seconds for [`combine_at_root`]: `α + n S/B + γS` where `n` is [`Case::in_turn`], or the sum of the reductions and
/// of the root's CPU time for messages, if that is longer. `besides` is the number of messages that the root handles in
/// addition to those that it receives.
pub(super) fn at_root(case: &Case<'_>, besides: f64) -> f64 {
    if case.is_empty() {
        return 0.0;
    }
    let (bytes, others, gamma) = (case.bytes(), case.ranks() - 1.0, case.network.gamma);
    let (link, segment) = (case.link(case.shape.size / 2).one_way(), case.segment(bytes));
    let messages = case.leaving() * others * case.pieces(bytes) - 1.0;
    let arriving = ((case.in_turn() * bytes - segment) / link.bandwidth).max(messages * link.gap);
    let busy = (others * bytes - segment) * gamma + (messages + besides) * link.busy;
    link.time(segment) + arriving.max(busy) + gamma * segment
}

/// Copies a range of `Output(0)` to all other outputs.
pub(super) fn fan_out(b: &mut Builder, shape: &Shape<'_>, range: Span) {
    for output in 1..shape.outputs as u32 {
        b.copy(range, Span { buffer: Buffer::Output(output), ..range });
    }
}

/// Copies `from` to `into`; the two may overlap.
pub(super) fn relocate(b: &mut Builder, from: Span, into: Span) {
    if from != into && from.overlaps(into) {
        let scratch = b.scratch(from.len);
        b.copy(from, scratch);
        b.copy(scratch, into);
    } else {
        b.copy(from, into);
    }
}

/// [`Ring::reduce_scatter`] of this rank's buffers over all ranks. `chunk` returns the offset and length of a chunk in
/// the sources; `target`, called once per chunk in step order, returns where its partial result must be stored.
pub(super) fn ring_reduce_scatter(
    b: &mut Builder,
    shape: &Shape<'_>,
    chunk: impl Fn(usize) -> (usize, usize),
    mut target: impl FnMut(usize) -> Span,
) -> Span {
    let sources = sources(shape);
    Ring::of_all(shape).reduce_scatter(b, |b, index| {
        let ((offset, len), into) = (chunk(index), target(index));
        (contribution(b, &sources, offset, len, into), into)
    })
}

/// Two scratch buffers used alternately for a ring whose partial results are not kept. The data received into one was
/// sent from the other in the step before, so no rank waits for its own send.
pub(super) fn two_scratch_buffers<'a>(
    b: &mut Builder,
    longest: usize,
    len: impl Fn(usize) -> usize + 'a,
) -> impl FnMut(usize) -> Span + 'a {
    let mut buffers = [b.scratch(longest), b.scratch(longest)];
    move |chunk| {
        buffers.swap(0, 1);
        buffers[0].slice(0, len(chunk))
    }
}

/// [`Ring::allgather`] over all ranks.
pub(super) fn ring_allgather(
    b: &mut Builder,
    shape: &Shape<'_>,
    own: Span,
    block: impl Fn(usize) -> Span,
    arrived: impl FnMut(&mut Builder, Span),
) {
    Ring::of_all(shape).allgather(b, own, block, arrived);
}

/// Seconds until [`ring_reduce_scatter`] with chunks of `bytes` has completed the first segment of each chunk, and the
/// last.
pub(super) fn ring_reduce_scatter_times(case: &Case<'_>, bytes: f64) -> (f64, f64) {
    let (others, link, gamma) = (case.ranks() - 1.0, case.link(1), case.network.gamma);
    let segment = case.segment(bytes);
    let first = (others - 1.0) * case.step(link, bytes, gamma) + link.time(segment) + gamma * segment;
    let busy = (bytes - segment) * gamma + case.later(bytes) * link.busy;
    (first, first + busy.max(case.wire(link, bytes) - segment / link.bandwidth))
}

/// The cost of [`ring_allgather`]: the time is that of the `longest` block; all blocks together have `all` bytes and
/// `pieces` messages.
pub(super) fn ring_allgather_cost(case: &Case<'_>, longest: f64, all: f64, pieces: f64) -> Cost {
    let others = case.ranks() - 1.0;
    let path = case.stream(case.link(1), others, longest, 0.0);
    Cost { path, messages: others * pieces, sent: others * all, reduced: 0.0 }
}

/// An allgather in one step: sends `own` to all other ranks, starting with the next rank, and receives their blocks.
pub(super) fn direct_allgather(b: &mut Builder, shape: &Shape<'_>, own: Span, block: impl Fn(usize) -> Span) {
    for distance in 1..shape.size {
        b.send(shape.after(distance), own);
        let from = shape.before(distance);
        b.recv(from, block(from));
    }
}

/// The location of a value that is reduced repeatedly while older versions may still be being sent. It alternates
/// between the output and scratch memory, such that the last version is in the output and no rank waits for its own
/// send.
pub(super) struct Versions {
    current: Span,
    output: Span,
    scratch: Option<Span>,
    left: usize,
}

impl Versions {
    /// `current` will be reduced `rounds` times; the last version will be in `output`.
    pub fn new(current: Span, output: Span, rounds: usize) -> Self {
        Self { current, output, scratch: None, left: rounds }
    }

    /// The location of the newest version.
    pub fn current(&self) -> Span {
        self.current
    }

    /// Receives from `peer` and reduces. `sent`: whether the current version is also being sent.
    pub fn combine(&mut self, b: &mut Builder, peer: usize, incoming: Side, sent: bool) {
        self.left -= 1;
        let (current, output) = (self.current, self.output);
        let scratch = &mut self.scratch;
        let mut scratch_span = |b: &mut Builder| *scratch.get_or_insert_with(|| b.scratch(output.len));
        let into = if self.left.is_multiple_of(2) { output } else { scratch_span(b) };
        if into == current && sent {
            let arrived = scratch_span(b);
            b.recv(peer, arrived);
            match incoming {
                Side::Left => b.reduce(arrived, current, into),
                Side::Right => b.reduce(current, arrived, into),
            }
        } else {
            b.recv_reduce(peer, into, current, incoming);
        }
        self.current = into;
    }

    /// Makes sure that the newest version is in the output.
    pub fn finish(self, b: &mut Builder) {
        b.copy(self.current, self.output);
    }
}

/// Number of rounds of a tree or a butterfly over `size` ranks: the smallest `h` with `2^h >= size`.
pub(super) fn rounds(size: usize) -> u32 {
    size.next_power_of_two().ilog2()
}

/// A binomial tree over the ranks relative to the root: the parent of `v` is `v` without its lowest set bit.
///
/// Six ranks: 0 has the children 1, 2, 4; 2 has 3; 4 has 5.
pub(super) struct Binomial {
    size: usize,
    root: usize,
    /// The position of this rank relative to the root.
    index: usize,
}

impl Binomial {
    pub fn new(shape: &Shape<'_>) -> Self {
        let Shape { size, root, .. } = *shape;
        Self { size, root, index: (shape.rank + size - root) % size }
    }

    /// `None` for the root.
    pub fn parent(&self) -> Option<usize> {
        (self.index > 0).then(|| self.rank(self.index & (self.index - 1)))
    }

    /// The children, in ascending order of subtree size.
    pub fn children(&self) -> Vec<usize> {
        let bits = if self.index == 0 { rounds(self.size) } else { self.index.trailing_zeros() };
        let indices = (0..bits).map(|bit| self.index + (1 << bit)).filter(|&index| index < self.size);
        indices.map(|index| self.rank(index)).collect()
    }

    /// `rank` relative to the root.
    pub fn index(&self, rank: usize) -> usize {
        (rank + self.size - self.root) % self.size
    }

    /// Number of ranks in the subtree of `rank`, including itself. They are consecutive, modulo the number of ranks.
    pub fn below(&self, rank: usize) -> usize {
        match self.index(rank) {
            0 => self.size,
            index => (self.size - index).min(1 << index.trailing_zeros()),
        }
    }

    fn rank(&self, index: usize) -> usize {
        (self.root + index) % self.size
    }
}

/// A gather in one step: all other ranks send their block to the root, which receives each at `block` (offset and
/// length).
pub(super) fn collect(shape: &Shape<'_>, block: impl Fn(usize) -> (usize, usize)) -> Schedule {
    let mut b = Builder::new();
    if shape.rank != shape.root {
        b.send(shape.root, shape.input(0));
        return b.build();
    }
    let target = |rank| {
        let (offset, len) = block(rank);
        shape.output(0).slice(offset, len)
    };
    for distance in 1..shape.size {
        let from = shape.after(distance);
        b.recv(from, target(from));
    }
    if shape.inputs > 0 {
        b.copy(shape.input(0), target(shape.rank));
    }
    b.build()
}

/// A scatter in one step: the root sends each `block`; every other rank receives its own.
pub(super) fn distribute(shape: &Shape<'_>, block: impl Fn(usize) -> Span) -> Schedule {
    let mut b = Builder::new();
    let output = shape.output(0);
    if shape.rank != shape.root {
        b.recv(shape.root, output);
        return b.build();
    }
    for distance in 1..shape.size {
        let to = shape.after(distance);
        b.send(to, block(to));
    }
    let own = block(shape.rank);
    relocate(&mut b, own, output.slice(0, own.len));
    b.build()
}
