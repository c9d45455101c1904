//! Blocks of elements, one for each rank, on their way down a tree, up a tree, or from everyone to everyone.

use super::phases::{Binomial, relocate, rounds};
use super::price::UNKNOWN;
use super::{Case, Shape, Uses};
use crate::error::{Error, Result};
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span};

/// Blocks that follow one another in the order of ranks.
pub(super) struct Blocks {
    /// Where each begins, and where the last one ends.
    starts: Vec<usize>,
}

impl Blocks {
    pub fn new(counts: &[usize]) -> Self {
        Self::of(counts.iter().copied())
    }

    /// `size` blocks of `len` elements each.
    pub fn equal(size: usize, len: usize) -> Self {
        Self::of((0..size).map(|_| len))
    }

    /// Those that the root has told: for algorithms with [`Uses::Counts`].
    pub fn told(shape: &Shape<'_>) -> Result<Self> {
        (shape.counts.len() == shape.size).then(|| Self::new(shape.counts)).ok_or_else(|| untold(shape))
    }

    fn of(counts: impl Iterator<Item = usize>) -> Self {
        let mut next = 0;
        let ends = counts.map(|count| {
            next += count;
            next
        });
        Self { starts: [0].into_iter().chain(ends).collect() }
    }

    fn size(&self) -> usize {
        self.starts.len() - 1
    }

    /// Offset and length of the blocks of the ranks from `first` up to, not including, `end`.
    pub fn range(&self, first: usize, end: usize) -> (usize, usize) {
        (self.starts[first], self.starts[end] - self.starts[first])
    }

    /// Offset and length of a rank's block.
    pub fn of_rank(&self, rank: usize) -> (usize, usize) {
        self.range(rank, rank + 1)
    }

    /// A rank's block in `whole`, which has all of them.
    pub fn span(&self, whole: Span, rank: usize) -> Span {
        whole.slice(self.starts[rank], self.of_rank(rank).1)
    }

    /// The blocks of `many` ranks from `first` on, around the end: there they lie in two pieces.
    pub fn around(&self, first: usize, many: usize) -> Vec<(usize, usize)> {
        let size = self.size();
        match first + many {
            end if end <= size => vec![self.range(first, end)],
            end => vec![self.range(first, size), self.range(0, end - size)],
        }
    }

    /// Elements of those.
    pub fn len_around(&self, first: usize, many: usize) -> usize {
        self.around(first, many).iter().map(|(_, len)| len).sum()
    }
}

/// What every rank has told of the blocks that it sends, a row for each: for algorithms with [`Uses::Counts`].
pub(super) fn everyone_told<'a>(shape: &Shape<'a>) -> Result<&'a [usize]> {
    (shape.counts.len() == shape.size * shape.size).then_some(shape.counts).ok_or_else(|| untold(shape))
}

/// The error for a shape without the counts that the algorithm needs.
fn untold(shape: &Shape<'_>) -> Error {
    let (name, given) = (shape.collective.name(), shape.counts.len());
    Error::invalid(format!("{name}: this algorithm needs the counts of others ({:?}), {given} are given", Uses::Counts))
}

/// Gathers up a binomial tree: a rank receives the blocks of its subtrees behind its own and sends all of them on. At the root
/// they are received where they belong; only a subtree that goes around the last rank comes in two pieces for that.
pub(super) fn gather_tree(shape: &Shape<'_>, blocks: &Blocks) -> Schedule {
    let mut b = Builder::new();
    let tree = Binomial::new(shape);
    let Some(parent) = tree.parent() else {
        for child in tree.children() {
            for (offset, len) in blocks.around(child, tree.below(child)) {
                b.recv(child, shape.output(0).slice(offset, len));
            }
        }
        if shape.inputs > 0 {
            b.copy(shape.input(0), blocks.span(shape.output(0), shape.rank));
        }
        return b.build();
    };
    let held = match tree.below(shape.rank) {
        1 => shape.input(0),
        many => {
            let held = b.scratch(blocks.len_around(shape.rank, many));
            b.copy(shape.input(0), held.slice(0, shape.input(0).len));
            for child in tree.children() {
                b.recv(child, below(shape, &tree, blocks, held, child));
            }
            held
        }
    };
    for piece in pieces(shape, &tree, blocks, held) {
        b.send(parent, piece);
    }
    b.build()
}

/// Scatters down a binomial tree, the largest subtree first: the mirror of [`gather_tree`]. `whole` is where the root has all
/// blocks.
pub(super) fn scatter_tree(mut b: Builder, shape: &Shape<'_>, blocks: &Blocks, whole: Span) -> Schedule {
    let tree = Binomial::new(shape);
    let output = shape.output(0);
    let Some(parent) = tree.parent() else {
        for child in tree.children().into_iter().rev() {
            for (offset, len) in blocks.around(child, tree.below(child)) {
                b.send(child, whole.slice(offset, len));
            }
        }
        let own = if shape.inputs > 1 { shape.input(shape.rank) } else { blocks.span(whole, shape.rank) };
        relocate(&mut b, own, output.slice(0, own.len));
        return b.build();
    };
    let held = match tree.below(shape.rank) {
        1 => output,
        many => b.scratch(blocks.len_around(shape.rank, many)),
    };
    for piece in pieces(shape, &tree, blocks, held) {
        b.recv(parent, piece);
    }
    for child in tree.children().into_iter().rev() {
        b.send(child, below(shape, &tree, blocks, held, child));
    }
    b.copy(held.slice(0, output.len), output);
    b.build()
}

/// Where the blocks of `child`'s subtree are in `held`, which has those of this rank's, itself first.
fn below(shape: &Shape<'_>, tree: &Binomial, blocks: &Blocks, held: Span, child: usize) -> Span {
    let before = tree.index(child) - tree.index(shape.rank);
    held.slice(blocks.len_around(shape.rank, before), blocks.len_around(child, tree.below(child)))
}

/// The messages in which `held`, the blocks of this rank's subtree, travels to or from the parent.
fn pieces(shape: &Shape<'_>, tree: &Binomial, blocks: &Blocks, held: Span) -> Vec<Span> {
    if tree.parent() != Some(shape.root) {
        return vec![held];
    }
    let pieces = blocks.around(shape.rank, tree.below(shape.rank));
    let mut next = consecutive(held);
    pieces.into_iter().map(|(_, len)| next(len)).collect()
}

/// What a binomial tree costs whose edges carry the blocks of the ranks below, either way: `lg P α + S (P - 1) / P / B` for a
/// power of two and equal blocks.
pub(super) fn tree_cost(case: &Case<'_>, blocks: &Blocks) -> Cost {
    let (size, root) = (case.shape.size, case.shape.root);
    let mut cost = Cost::default();
    // Downwards, by number from the root: a rank sends to its largest subtree first. Upwards is the mirror.
    let mut arrived = vec![0.0; size];
    for index in 0..size {
        let bits = if index == 0 { rounds(size) } else { index.trailing_zeros() };
        let mut sent = arrived[index];
        for bit in (0..bits).rev() {
            let child = index + (1 << bit);
            if child >= size {
                continue;
            }
            let pieces = blocks.around((root + child) % size, (size - child).min(1 << bit));
            let bytes = case.of(pieces.iter().map(|(_, len)| len).sum());
            if bytes <= 0.0 {
                continue;
            }
            let link = case.lone_link(1 << bit).one_way();
            arrived[child] = sent + case.stream(link, 1.0, bytes, 0.0);
            // On a host every pair has a link of its own.
            let turn = (bytes / link.bandwidth).max(case.pieces(bytes) * link.turn());
            sent += if case.network.per_host >= size { 0.0 } else { turn };
            cost.path = cost.path.max(arrived[child]);
            cost.sent += bytes;
            let pieces = if index == 0 { pieces } else { vec![(0, pieces.iter().map(|(_, len)| len).sum())] };
            cost.messages += pieces.iter().map(|&(_, len)| case.pieces(case.of(len))).sum::<f64>();
        }
    }
    cost
}

/// What it costs that the root sends each rank its block at once, or receives it. Nobody but the root may know the counts: an
/// empty list is priced as if all were.
pub(super) fn one_to_all_cost(case: &Case<'_>, counts: &[usize]) -> Cost {
    let mut others = counts.to_vec();
    if let Some(own) = others.get_mut(case.shape.root) {
        *own = 0;
    }
    let (sent, longest, messages) = case.blocks(&others);
    Cost { path: case.at_once(sent, longest, messages, false), messages, sent, reduced: 0.0 }
}

/// [`tree_cost`] of the counts that the root has told.
pub(super) fn told_tree_cost(case: &Case<'_>) -> Cost {
    Blocks::told(case.shape).map_or(UNKNOWN, |blocks| tree_cost(case, &blocks))
}

/// From everyone to everyone in `ceil(lg P)` steps (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for
/// all-to-all communications in multiport message-passing systems", 1997).
///
/// A block that must go `i` ranks on goes `2^k` ranks in step `k` if `i` has bit `k`, together with all others that do. They
/// are packed into scratch memory for that, and arrive there; the last step's copies put them in place. Those that go furthest
/// come first: then the ones that have arrived lie as in the output, and are copied in few pieces.
///
/// `len` tells the length of a block by source and destination, `sent` where this rank's for another lies, `received` where
/// another's must go.
pub(super) fn bruck(
    shape: &Shape<'_>,
    len: impl Fn(usize, usize) -> usize,
    sent: impl Fn(usize) -> Span,
    received: impl Fn(usize) -> Span,
) -> Schedule {
    let mut b = Builder::new();
    let size = shape.size;
    // Where the block is that this rank holds of those that go `i` ranks on in all.
    let mut held: Vec<Span> = (0..size).map(|i| sent(shape.after(i))).collect();
    for bit in 0..rounds(size) {
        let moving = move || (0..size).rev().filter(move |i| i >> bit & 1 == 1);
        let away = b.scratch(moving().map(|i| held[i].len).sum());
        copy_all(&mut b, moving().map(|i| held[i]), consecutive(away));
        b.send(shape.after(1 << bit), away);
        let arriving = |i: usize| {
            // It has gone as far as the bits up to this one say.
            let source = shape.before(i & ((2 << bit) - 1));
            len(source, (source + i) % size)
        };
        let arrived = b.scratch(moving().map(arriving).sum());
        b.recv(shape.before(1 << bit), arrived);
        let mut next = consecutive(arrived);
        moving().for_each(|i| held[i] = next(arriving(i)));
    }
    let goes_to = |i: usize| received(shape.before(i));
    let mut places = (0..size).rev().map(goes_to);
    copy_all(&mut b, held.iter().rev().copied(), |_| places.next().expect("a place for each"));
    b.build()
}

/// Hands out slices of `whole` from its start.
fn consecutive(whole: Span) -> impl FnMut(usize) -> Span {
    let mut next = 0;
    move |len| {
        next += len;
        whole.slice(next - len, len)
    }
}

/// Copies spans to where `into` says for their lengths; one step does for all that adjoin on both sides.
fn copy_all(b: &mut Builder, spans: impl Iterator<Item = Span>, mut into: impl FnMut(usize) -> Span) {
    let mut run: Option<(Span, Span)> = None;
    for from in spans {
        let into = into(from.len);
        let adjoins = |a: Span, b: Span| a.buffer == b.buffer && a.end() == b.offset;
        match &mut run {
            _ if from.len == 0 => {}
            Some((first, place)) if adjoins(*first, from) && adjoins(*place, into) => {
                first.len += from.len;
                place.len += from.len;
            }
            _ => run.replace((from, into)).into_iter().for_each(|(from, into)| b.copy(from, into)),
        }
    }
    run.into_iter().for_each(|(from, into)| b.copy(from, into));
}

/// How many blocks a rank sends in step `bit` of [`bruck`].
pub(super) fn bruck_blocks(size: usize, bit: u32) -> usize {
    // Whole periods of `2^(bit + 1)` numbers, and what is left.
    let half = 1 << bit;
    size / (2 * half) * half + (size % (2 * half)).saturating_sub(half)
}
