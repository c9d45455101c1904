//! Blocks of elements, one per rank, and the algorithms that move them: binomial gather and scatter, Bruck's
//! all-to-all.

use super::phases::{Binomial, relocate, rounds};
use super::price::UNKNOWN;
use super::{Case, Shape, Uses};
use crate::error::{Error, Result};
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span};

/// Consecutive blocks, in rank order.
pub(super) struct Blocks {
    /// Offset of each block, followed by the end of the last.
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

    /// The blocks of the root's counts ([`Shape::counts`]): for algorithms with [`Uses::Counts`].
    pub fn of_root_counts(shape: &Shape<'_>) -> Result<Self> {
        (shape.counts.len() == shape.size).then(|| Self::new(shape.counts)).ok_or_else(|| missing_counts(shape))
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

    /// Offset and length of the blocks of ranks `first..end` together.
    pub fn range(&self, first: usize, end: usize) -> (usize, usize) {
        (self.starts[first], self.starts[end] - self.starts[first])
    }

    /// Offset and length of a rank's block.
    pub fn of_rank(&self, rank: usize) -> (usize, usize) {
        self.range(rank, rank + 1)
    }

    /// A rank's block as a part of `whole`, which holds all blocks.
    pub fn span(&self, whole: Span, rank: usize) -> Span {
        whole.slice(self.starts[rank], self.of_rank(rank).1)
    }

    /// Offset and length of the blocks of `many` ranks from `first` on, modulo the number of ranks: two ranges if they
    /// wrap around.
    pub fn around(&self, first: usize, many: usize) -> Vec<(usize, usize)> {
        let size = self.size();
        match first + many {
            end if end <= size => vec![self.range(first, end)],
            end => vec![self.range(first, size), self.range(0, end - size)],
        }
    }

    /// Total elements of [`Blocks::around`].
    pub fn len_around(&self, first: usize, many: usize) -> usize {
        self.around(first, many).iter().map(|(_, len)| len).sum()
    }
}

/// The counts that every rank sends ([`Shape::counts`]), one row per rank: for algorithms with [`Uses::Counts`].
pub(super) fn all_counts<'a>(shape: &Shape<'a>) -> Result<&'a [usize]> {
    (shape.counts.len() == shape.size * shape.size).then_some(shape.counts).ok_or_else(|| missing_counts(shape))
}

/// The error for a shape without the counts that the algorithm needs.
fn missing_counts(shape: &Shape<'_>) -> Error {
    let (name, given) = (shape.collective.name(), shape.counts.len());
    Error::invalid(format!(
        "{name}: this algorithm needs the counts of other ranks ({:?}); got {given} counts",
        Uses::Counts
    ))
}

/// Gather up a binomial tree. A rank receives its subtrees' blocks behind its own and sends all of them to its parent.
/// The root receives them at their final offsets; the blocks of a subtree that wraps around the last rank arrive in two
/// messages.
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
    let current = match tree.below(shape.rank) {
        1 => shape.input(0),
        many => {
            let current = b.scratch(blocks.len_around(shape.rank, many));
            b.copy(shape.input(0), current.slice(0, shape.input(0).len));
            for child in tree.children() {
                b.recv(child, below(shape, &tree, blocks, current, child));
            }
            current
        }
    };
    for piece in pieces(shape, &tree, blocks, current) {
        b.send(parent, piece);
    }
    b.build()
}

/// Scatter down a binomial tree, largest subtree first: the inverse of [`gather_tree`]. `whole` is where the root has
/// all blocks.
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
    let current = match tree.below(shape.rank) {
        1 => output,
        many => b.scratch(blocks.len_around(shape.rank, many)),
    };
    for piece in pieces(shape, &tree, blocks, current) {
        b.recv(parent, piece);
    }
    for child in tree.children().into_iter().rev() {
        b.send(child, below(shape, &tree, blocks, current, child));
    }
    b.copy(current.slice(0, output.len), output);
    b.build()
}

/// The blocks of `child`'s subtree within `current`, which holds the blocks of this rank's subtree, its own first.
fn below(shape: &Shape<'_>, tree: &Binomial, blocks: &Blocks, current: Span, child: usize) -> Span {
    let before = tree.index(child) - tree.index(shape.rank);
    current.slice(blocks.len_around(shape.rank, before), blocks.len_around(child, tree.below(child)))
}

/// The messages in which `current`, the blocks of this rank's subtree, is sent to or received from the parent.
fn pieces(shape: &Shape<'_>, tree: &Binomial, blocks: &Blocks, current: Span) -> Vec<Span> {
    if tree.parent() != Some(shape.root) {
        return vec![current];
    }
    let pieces = blocks.around(shape.rank, tree.below(shape.rank));
    let mut next = consecutive(current);
    pieces.into_iter().map(|(_, len)| next(len)).collect()
}

/// The cost of a binomial tree in which each edge carries the blocks of the subtree below it, in either direction: `lg
/// P α + S (P - 1) / P / B` for a power of two and equal blocks.
pub(super) fn tree_cost(case: &Case<'_>, blocks: &Blocks) -> Cost {
    let (size, root) = (case.shape.size, case.shape.root);
    let mut cost = Cost::default();
    // Computed for the scatter; the gather is symmetric. Ranks are relative to the root; each sends to its largest
    // subtree first.
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
            // On one host every pair of ranks has its own link, so sends do not delay each other.
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

/// The cost of one message between the root and each other rank, all at once. An empty list, where only the root knows
/// the counts, is priced as if all blocks were empty.
pub(super) fn one_to_all_cost(case: &Case<'_>, counts: &[usize]) -> Cost {
    let mut others = counts.to_vec();
    if let Some(own) = others.get_mut(case.shape.root) {
        *own = 0;
    }
    let (sent, longest, messages) = case.blocks(&others);
    Cost { path: case.at_once(sent, longest, messages, false), messages, sent, reduced: 0.0 }
}

/// [`tree_cost`] with the root's counts from the shape.
pub(super) fn root_counts_tree_cost(case: &Case<'_>) -> Cost {
    Blocks::of_root_counts(case.shape).map_or(UNKNOWN, |blocks| tree_cost(case, &blocks))
}

/// All-to-all in `ceil(lg P)` steps (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
/// communications in multiport message-passing systems", 1997).
///
/// A block whose destination is `i` ranks ahead moves `2^k` ranks in step `k` if bit `k` of `i` is set, together with
/// all other such blocks. They are packed into scratch memory to be sent and are received in scratch memory; copies
/// after the last step put them into the output. The blocks with the longest distance come first: the received blocks
/// are then in the order of the output, and few copies are needed.
///
/// `len` returns the length of a block by source and destination, `sent` where this rank's block for a destination is,
/// `received` where the block from a source must be stored.
pub(super) fn bruck(
    shape: &Shape<'_>,
    len: impl Fn(usize, usize) -> usize,
    sent: impl Fn(usize) -> Span,
    received: impl Fn(usize) -> Span,
) -> Schedule {
    let mut b = Builder::new();
    let size = shape.size;
    // The current location of the block that is at this rank and whose total distance is `i`, indexed by `i`.
    let mut current: Vec<Span> = (0..size).map(|i| sent(shape.after(i))).collect();
    for bit in 0..rounds(size) {
        let moving = move || (0..size).rev().filter(move |i| i >> bit & 1 == 1);
        let away = b.scratch(moving().map(|i| current[i].len).sum());
        copy_all(&mut b, moving().map(|i| current[i]), consecutive(away));
        b.send(shape.after(1 << bit), away);
        let arriving = |i: usize| {
            // The block has moved by the distance in the bits up to this one.
            let source = shape.before(i & ((2 << bit) - 1));
            len(source, (source + i) % size)
        };
        let arrived = b.scratch(moving().map(arriving).sum());
        b.recv(shape.before(1 << bit), arrived);
        let mut next = consecutive(arrived);
        moving().for_each(|i| current[i] = next(arriving(i)));
    }
    let goes_to = |i: usize| received(shape.before(i));
    let mut targets = (0..size).rev().map(goes_to);
    copy_all(&mut b, current.iter().rev().copied(), |_| targets.next().expect("a target for each block"));
    b.build()
}

/// Returns consecutive slices of `whole`.
fn consecutive(whole: Span) -> impl FnMut(usize) -> Span {
    let mut next = 0;
    move |len| {
        next += len;
        whole.slice(next - len, len)
    }
}

/// Copies spans to the targets that `into` returns for their lengths. Spans adjacent at both ends are copied in one
/// step.
fn copy_all(b: &mut Builder, spans: impl Iterator<Item = Span>, mut into: impl FnMut(usize) -> Span) {
    let mut run: Option<(Span, Span)> = None;
    for from in spans {
        let into = into(from.len);
        let adjoins = |a: Span, b: Span| a.buffer == b.buffer && a.end() == b.offset;
        match &mut run {
            _ if from.len == 0 => {}
            Some((first, target)) if adjoins(*first, from) && adjoins(*target, into) => {
                first.len += from.len;
                target.len += from.len;
            }
            _ => run.replace((from, into)).into_iter().for_each(|(from, into)| b.copy(from, into)),
        }
    }
    run.into_iter().for_each(|(from, into)| b.copy(from, into));
}

/// Number of blocks that a rank sends in step `bit` of [`bruck`].
pub(super) fn bruck_blocks(size: usize, bit: u32) -> usize {
    // Complete periods of `2^(bit + 1)` numbers, then the remainder.
    let half = 1 << bit;
    size / (2 * half) * half + (size % (2 * half)).saturating_sub(half)
}
