//! Recursive vector halving with distance doubling, for blocks of any lengths and any number of ranks (Thakur,
//! Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005; binary blocks:
//! Rabenseifner and Träff, "More efficient reduction algorithms for non-power-of-two number of processors", 2004). It
//! has few steps and few bytes: best for medium buffers.
//!
//! Eight ranks: rank 0 exchanges with rank 1, keeps the blocks of even ranks and sends the others; then it exchanges
//! with rank 2 and keeps blocks 0 and 4; then with rank 4, and keeps block 0. Neighbours reduce first and lower ranks
//! are the left operand, so the operation need not commute. (Distance halving would avoid the copy below, but reduces 0
//! with 4 first.) The set of ranks is halved, not the elements: each message holds whole blocks of any lengths. To make
//! them contiguous, the elements are first copied to scratch memory in the order of their ranks' reversed bits; several
//! inputs are reduced in the same step.
//!
//! Other numbers are sums of powers of two. Six ranks: the groups 0-3 and 4-5. In the first group rank 0 is also
//! responsible for block 4 and rank 1 for block 5. Each group halves on its own: rank 4 then has blocks 0, 4, 2 of its
//! group's sums, rank 5 has 1, 5, 3. Rank 4 sends 0 and 4 to rank 0 and 2 to rank 2; rank 5 sends 1 and 5 to rank 1 and
//! 3 to rank 3. The receivers reduce them as the right operand, and finally send block 4 to rank 4 and 5 to rank 5.
//! With more groups the smallest sends its sums to the next larger one, and so on. In MPICH, the ranks beyond a power
//! of two first send all their data to a neighbour; then a rank transfers `2 S` bytes in sequence, here little more
//! than `S`.
//!
//! Steps: `lg P` for powers of two; otherwise `lg` of the largest group, at most one for each other group, and one
//! more. For a power of two a rank sends `S (P - 1) / P` bytes if the blocks are equal.

use super::super::blocks::Blocks;
use super::super::phases::{contribution, relocate, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "halving_doubling", generate, cost, uses: Uses::Sizes };

/// The order in which the blocks of a call are stored for halving.
struct Order {
    /// The largest group has `2^bits` ranks.
    bits: u32,
    /// The ranks in the order of their blocks: by the reversed bits of the number in the largest group; each is
    /// followed by the rank beyond that group for whose block it is responsible, if any.
    ranks: Vec<usize>,
    /// The index in `ranks` of the first block of each rank of the largest group, by reversed bits; then the length of
    /// `ranks`.
    group_ends: Vec<usize>,
    /// The offset in elements of each block of `ranks`; then the end of the last.
    starts: Vec<usize>,
}

impl Order {
    fn new(counts: &[usize]) -> Self {
        let (size, bits) = (counts.len(), counts.len().ilog2());
        let (mut ranks, mut group_ends, mut starts) = (Vec::with_capacity(size), vec![0], vec![0]);
        for reversed in 0..1 << bits {
            let first = if bits == 0 { 0 } else { (reversed as usize).reverse_bits() >> (usize::BITS - bits) };
            ranks.extend([first, first + (1 << bits)].into_iter().filter(|&rank| rank < size));
            group_ends.push(ranks.len());
        }
        for &rank in &ranks {
            starts.push(starts[starts.len() - 1] + counts[rank]);
        }
        Self { bits, ranks, group_ends, starts }
    }

    /// Offset and length of the data of rank `index` of a group after `halvings`: the reversed bits have a prefix of
    /// that length.
    fn piece(&self, index: usize, halvings: u32) -> (usize, usize) {
        let prefix = if halvings == 0 { 0 } else { index.reverse_bits() >> (usize::BITS - halvings) };
        let shift = self.bits - halvings;
        let (first, end) =
            (self.starts[self.group_ends[prefix << shift]], self.starts[self.group_ends[(prefix + 1) << shift]]);
        (first, end - first)
    }

    /// After `halvings`: bytes of the longest piece, and number of messages of all pieces together.
    fn pieces(&self, case: &Case<'_>, halvings: u32) -> (f64, f64) {
        let bytes = (0..1 << halvings).map(|index| case.of(self.piece(index, halvings).1));
        bytes.fold((0.0, 0.0), |(longest, all), bytes| (bytes.max(longest), all + case.pieces(bytes)))
    }
}

/// The number of halvings of each group of `size` ranks, largest group first.
fn groups(size: usize) -> impl Iterator<Item = u32> {
    (0..usize::BITS).rev().filter(move |bit| size >> bit & 1 == 1)
}

/// Returns this rank's contribution in halving order: the input itself if that is the rank order, else a copy in
/// scratch memory.
fn arrange(b: &mut Builder, shape: &Shape<'_>, blocks: &Blocks, order: &Order) -> Span {
    let sources = sources(shape);
    let len = order.starts[shape.size];
    if sources.len() == 1 && order.ranks.is_sorted() {
        return Span::new(sources[0], 0, len);
    }
    let whole = b.scratch(len);
    for (&rank, &start) in order.ranks.iter().zip(&order.starts) {
        let (offset, len) = blocks.of_rank(rank);
        let target = whole.slice(start, len);
        let from = contribution(b, &sources, offset, len, target);
        b.copy(from, target);
    }
    whole
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, .. } = *shape;
    let counts = shape.recv_counts;
    let (blocks, order) = (Blocks::new(counts), Order::new(counts));
    let whole = arrange(&mut b, shape, &blocks, &order);
    let result = shape.output(0).slice(0, counts[rank]);

    // This rank's group and its index in the group.
    let bits: Vec<u32> = groups(size).collect();
    let starts: Vec<usize> =
        bits.iter().scan(0, |next, bits| Some(std::mem::replace(next, *next + (1 << bits)))).collect();
    let mine = starts.iter().rposition(|&start| start <= rank).unwrap_or(0);
    let (start, index) = (starts[mine], rank - starts[mine]);

    let piece = |index, halvings| {
        let (offset, len) = order.piece(index, halvings);
        whole.slice(offset, len)
    };
    let mut own = whole;
    for halvings in 1..=bits[mine] {
        let peer = index ^ (1 << (halvings - 1));
        b.send(start + peer, piece(peer, halvings));
        own = piece(index, halvings);
        // In place, the start of the output may still be being sent.
        let is_result = halvings == bits[mine] && size.is_power_of_two() && whole.buffer != result.buffer;
        let into = if is_result { result } else { own };
        b.recv_reduce(start + peer, into, own, if peer < index { Side::Left } else { Side::Right });
        own = into;
    }
    if let Some(smaller) = bits.get(mine + 1) {
        b.recv_reduce(starts[mine + 1] + index % (1 << smaller), own, own, Side::Right);
    }
    if mine > 0 {
        let larger = bits[mine - 1];
        for peer in (index..1 << larger).step_by(1 << bits[mine]) {
            b.send(starts[mine - 1] + peer, piece(peer, larger));
        }
        b.recv(rank - (1 << order.bits), result);
        return Ok(b.build());
    }
    b.divide(own, shape.divisor());
    // The block of the other rank for which this rank is responsible follows its own.
    let taken_on = rank + (1 << order.bits);
    if taken_on < size {
        b.send(taken_on, own.slice(counts[rank], counts[taken_on]));
    }
    relocate(&mut b, own.slice(0, counts[rank]), result);
    Ok(b.build())
}

/// `lg P α + S (P - 1) / P (1 / B + γ)` for powers of two and equal blocks; otherwise the sum over the groups, each of
/// which waits for the smaller ones.
fn cost(case: &Case<'_>) -> Cost {
    let counts = case.shape.recv_counts;
    let (order, gamma) = (Order::new(counts), case.network.gamma);
    let mut cost = Cost::default();
    let all = case.of(order.starts[counts.len()]);
    if all == 0.0 {
        return cost;
    }
    // The time at which the next smaller group has its sums.
    let mut handed = 0.0;
    let mut smaller: Option<u32> = None;
    for bits in groups(counts.len()).collect::<Vec<_>>().into_iter().rev() {
        let mut halved = 0.0;
        for halvings in 1..=bits {
            let (longest, messages) = order.pieces(case, halvings);
            halved += case.stream(case.link(1 << (halvings - 1)), 1.0, longest, 0.0) + gamma * longest;
            cost.messages += messages * (1 << (bits - halvings)) as f64;
        }
        cost.path = halved;
        if let Some(smaller) = smaller {
            let (longest, messages) = order.pieces(case, bits);
            // A rank of the smaller group sends all its data, in several messages.
            let sends = case.stream(case.link(counts.len()), 1.0, order.pieces(case, smaller).0, 0.0);
            // That data is received after the data of the last halving.
            let behind = halved + longest / case.link(counts.len()).bandwidth;
            cost.path = behind.max(handed + sends) + gamma * longest;
            cost.messages += messages;
        }
        handed = cost.path;
        smaller = Some(bits);
    }
    let beyond = &counts[1 << order.bits..];
    cost.sent = all * (counts.len() - 1) as f64;
    cost.reduced = cost.sent;
    if !beyond.is_empty() {
        let (bytes, longest, messages) = case.blocks(beyond);
        cost.path += case.stream(case.link(counts.len()), 1.0, longest, 0.0);
        cost.messages += messages;
        cost.sent += bytes;
    }
    cost
}
