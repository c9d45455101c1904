//! Parts that several algorithms are made of.

use super::ring::Ring;
use super::{Case, Shape};
use crate::schedule::cost::Cost;
use crate::schedule::{Buffer, Builder, Schedule, Side, Span};

/// This rank's buffers that are combined: the inputs, or in place the outputs.
pub(super) fn sources(shape: &Shape<'_>) -> Vec<Buffer> {
    if shape.inputs > 0 {
        (0..shape.inputs as u32).map(Buffer::Input).collect()
    } else {
        (0..shape.outputs as u32).map(Buffer::Output).collect()
    }
}

/// Combines `len` elements at `offset` of all `sources`, in `place`. Returns where the result is: one source is not
/// copied but used where it lies. `place` may be in the first source.
pub(super) fn contribution(b: &mut Builder, sources: &[Buffer], offset: usize, len: usize, place: Span) -> Span {
    let from = |buffer: Buffer| Span::new(buffer, offset, len);
    let mut sum = from(sources[0]);
    for &source in &sources[1..] {
        b.reduce(sum, from(source), place);
        sum = place;
    }
    sum
}

/// Receives from each of `children`, in that order, and combines with `held`, in `place`. Returns where the result is.
pub(super) fn combine_children(
    b: &mut Builder,
    children: impl IntoIterator<Item = (usize, Side)>,
    mut held: Span,
    place: Span,
) -> Span {
    for (child, side) in children {
        b.recv_reduce(child, place, held, side);
        held = place;
    }
    held
}

/// Receives everyone's `held` on `root`, all at once, and combines them there in the order of ranks, in `output`.
pub(super) fn combine_at_root(b: &mut Builder, shape: &Shape<'_>, held: Span, output: Span) {
    let places: Vec<Span> =
        (0..shape.size).map(|rank| if rank == shape.rank { held } else { b.scratch(held.len) }).collect();
    for from in (0..shape.size).filter(|&rank| rank != shape.rank) {
        b.recv(from, places[from]);
    }
    let mut sum = places[0];
    for (rank, &place) in places.iter().enumerate().skip(1) {
        // The own elements may lie in the output until their turn.
        let into = if rank < shape.rank { sum } else { output };
        b.reduce(sum, place, into);
        sum = into;
    }
    b.copy(sum, output);
}

/// Seconds until the root has done so: `α + n S/B + γS` where `n` is [`Case::in_turn`], or by the sum of the reductions and of
/// what the root does for its messages if they take longer; those are so many besides the ones that it receives.
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

/// Moves `from` to `into` where the two may overlap.
pub(super) fn relocate(b: &mut Builder, from: Span, into: Span) {
    if from != into && from.overlaps(into) {
        let aside = b.scratch(from.len);
        b.copy(from, aside);
        b.copy(aside, into);
    } else {
        b.copy(from, into);
    }
}

/// [`Ring::reduce_scatter`] of this rank's buffers over all ranks. `chunk` tells where a chunk lies in the sources, `place`
/// where this rank puts (asked once for each chunk, in the order of the steps) what it has of it.
pub(super) fn ring_reduce_scatter(
    b: &mut Builder,
    shape: &Shape<'_>,
    chunk: impl Fn(usize) -> (usize, usize),
    mut place: impl FnMut(usize) -> Span,
) -> Span {
    let sources = sources(shape);
    Ring::of_all(shape).reduce_scatter(b, |b, index| {
        let ((offset, len), into) = (chunk(index), place(index));
        (contribution(b, &sources, offset, len, into), into)
    })
}

/// Two places in scratch memory, used by turns: for a ring whose partial results need not stay. What is received into one
/// was sent on, from the other, one step earlier, so a rank never waits for itself.
pub(super) fn two_places<'a>(
    b: &mut Builder,
    longest: usize,
    len: impl Fn(usize) -> usize + 'a,
) -> impl FnMut(usize) -> Span + 'a {
    let mut places = [b.scratch(longest), b.scratch(longest)];
    move |chunk| {
        places.swap(0, 1);
        places[0].slice(0, len(chunk))
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

/// Seconds until [`ring_reduce_scatter`] of chunks of `bytes` has completed the first segment of each, and the last one.
pub(super) fn ring_reduce_scatter_times(case: &Case<'_>, bytes: f64) -> (f64, f64) {
    let (others, link, gamma) = (case.ranks() - 1.0, case.link(1), case.network.gamma);
    let segment = case.segment(bytes);
    let first = (others - 1.0) * case.step(link, bytes, gamma) + link.time(segment) + gamma * segment;
    let busy = (bytes - segment) * gamma + case.later(bytes) * link.busy;
    (first, first + busy.max(case.wire(link, bytes) - segment / link.bandwidth))
}

/// What [`ring_allgather`] costs: as long as the `longest` block takes, all blocks having `all` bytes and being `pieces`
/// messages.
pub(super) fn ring_allgather_cost(case: &Case<'_>, longest: f64, all: f64, pieces: f64) -> Cost {
    let others = case.ranks() - 1.0;
    let path = case.stream(case.link(1), others, longest, 0.0);
    Cost { path, messages: others * pieces, sent: others * all, reduced: 0.0 }
}

/// An allgather in one step: `own` is sent to all others, the next rank first, and the others' blocks are received.
pub(super) fn to_everyone(b: &mut Builder, shape: &Shape<'_>, own: Span, block: impl Fn(usize) -> Span) {
    for distance in 1..shape.size {
        b.send(shape.after(distance), own);
        let from = shape.before(distance);
        b.recv(from, block(from));
    }
}

/// Where a value is that is combined several times while its older versions may still be on their way out: by turns in the
/// output and in scratch memory, so that the last version lies in the output and no rank waits for its own send.
pub(super) struct Versions {
    held: Span,
    output: Span,
    scratch: Option<Span>,
    left: usize,
}

impl Versions {
    /// `held` will be combined `rounds` times; `output` is where the last version must be.
    pub fn new(held: Span, output: Span, rounds: usize) -> Self {
        Self { held, output, scratch: None, left: rounds }
    }

    /// Where the newest version is.
    pub fn held(&self) -> Span {
        self.held
    }

    /// Receives from `peer` and combines. `sent`: whether the version held now is also being sent.
    pub fn combine(&mut self, b: &mut Builder, peer: usize, incoming: Side, sent: bool) {
        self.left -= 1;
        let (held, output) = (self.held, self.output);
        let scratch = &mut self.scratch;
        let mut aside = |b: &mut Builder| *scratch.get_or_insert_with(|| b.scratch(output.len));
        let into = if self.left.is_multiple_of(2) { output } else { aside(b) };
        if into == held && sent {
            let arrived = aside(b);
            b.recv(peer, arrived);
            match incoming {
                Side::Left => b.reduce(arrived, held, into),
                Side::Right => b.reduce(held, arrived, into),
            }
        } else {
            b.recv_reduce(peer, into, held, incoming);
        }
        self.held = into;
    }

    /// Ends with the newest version in the output.
    pub fn finish(self, b: &mut Builder) {
        b.copy(self.held, self.output);
    }
}

/// Rounds of a tree or a butterfly over `size` ranks: the smallest `h` with `2^h >= size`.
pub(super) fn rounds(size: usize) -> u32 {
    size.next_power_of_two().ilog2()
}

/// A binomial tree over the ranks, counted from the root: the parent of `v` is `v` without its lowest set bit.
///
/// Six ranks: 0 has the children 1, 2, 4; 2 has 3; 4 has 5.
pub(super) struct Binomial {
    size: usize,
    root: usize,
    /// This rank, counted from the root.
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

    /// The child with the smallest subtree first.
    pub fn children(&self) -> Vec<usize> {
        let bits = if self.index == 0 { rounds(self.size) } else { self.index.trailing_zeros() };
        let indices = (0..bits).map(|bit| self.index + (1 << bit)).filter(|&index| index < self.size);
        indices.map(|index| self.rank(index)).collect()
    }

    /// The number of `rank`, counted from the root.
    pub fn index(&self, rank: usize) -> usize {
        (rank + self.size - self.root) % self.size
    }

    /// Ranks in the subtree of `rank`, itself included: they follow it, around the end.
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

/// A gather in one step: everyone but the root sends its block, the root receives each `block` (offset and length).
pub(super) fn collect(shape: &Shape<'_>, block: impl Fn(usize) -> (usize, usize)) -> Schedule {
    let mut b = Builder::new();
    if shape.rank != shape.root {
        b.send(shape.root, shape.input(0));
        return b.build();
    }
    let place = |rank| {
        let (offset, len) = block(rank);
        shape.output(0).slice(offset, len)
    };
    for distance in 1..shape.size {
        let from = shape.after(distance);
        b.recv(from, place(from));
    }
    if shape.inputs > 0 {
        b.copy(shape.input(0), place(shape.rank));
    }
    b.build()
}

/// A scatter in one step: the root sends each `block`, everyone else receives its own.
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
