//! Recursive halving, then recursive doubling, with binary blocks for any number of ranks (Thakur, Rabenseifner and Gropp,
//! "Optimization of collective communication operations in MPICH", 2005; binary blocks: Rabenseifner and Träff 2004).
//!
//! Eight ranks: rank 0 exchanges halves with rank 1 and keeps the first, exchanges quarters with rank 2, eighths with rank
//! 4; now each rank has an eighth, complete. The same exchanges backwards bring all eighths to everyone.
//!
//! Other numbers are sums of powers of two. Six ranks: the blocks 0-3 and 4-5. Each block halves on its own: rank 4 has the
//! first half of its block's, rank 5 the second; ranks 0-3 have the quarters 0, 2, 1, 3. Halves nest around quarters: rank 4
//! sends quarter 0 to rank 0 and quarter 1 to rank 2, rank 5 sends quarter 2 to rank 1 and quarter 3 to rank 3. These
//! complete them and send them back the same way; then both blocks double. With more blocks the smallest hands its
//! part to the next larger, and so on.
//!
//! Steps: `2 lg P` for powers of two, else `2 lg` of the largest block and two for each other block at most. A power of two
//! sends `2 S (P - 1) / P` bytes. Lower ranks stand on the left, so the operation need not commute.

use super::super::phases::{contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "halving_doubling", generate, cost, uses: Uses::Sizes };

/// `2^bits` ranks from `start` on.
#[derive(Clone, Copy)]
struct Block {
    start: usize,
    bits: u32,
}

/// The powers of two that make up `size`, the largest first, and which of them `rank` is in.
fn blocks(size: usize, rank: usize) -> (Vec<Block>, usize) {
    let mut blocks = Vec::new();
    let mut start = 0;
    let mut mine = 0;
    for bits in (0..usize::BITS).rev().filter(|bit| size >> bit & 1 == 1) {
        if rank >= start {
            mine = blocks.len();
        }
        blocks.push(Block { start, bits });
        start += 1 << bits;
    }
    (blocks, mine)
}

/// What rank `index` of a block has of `whole` after `bits` halvings: bit `i` of the index says which half it kept in step `i`.
fn piece(whole: Span, index: usize, bits: u32) -> Span {
    (0..bits).fold(whole, |range, bit| range.part(2, index >> bit & 1))
}

/// `2 lg P α + 2 (P - 1)/P S/B + (P - 1)/P γS` for a power of two. For others the blocks' own times, and what must go from
/// each to the next.
fn cost(case: &Case<'_>) -> Cost {
    if case.is_empty() {
        return Cost::default();
    }
    let (bytes, gamma) = (case.bytes(), case.network.gamma);
    let (blocks, _) = blocks(case.shape.size, 0);
    let part = |bits: u32| bytes / (1_usize << bits) as f64;
    let exchanges = |bits: u32, gamma: f64| -> f64 {
        // Segments gain little: what is sent next lies behind, or competes with what is still being sent.
        (0..bits)
            .map(|bit| (case.link(1 << bit), part(bit + 1)))
            .map(|(link, part)| case.stream(link, 1.0, part, gamma))
            .sum()
    };
    // From the smallest block, which has the largest parts, to the largest one, and back.
    let between = case.link(case.shape.size / 2);
    let handed = |block: &Block| case.stream(between, 1.0, part(block.bits), 0.0);
    let mut up = 0.0;
    for (index, block) in blocks.iter().enumerate().rev() {
        let own = exchanges(block.bits, gamma);
        up = blocks.get(index + 1).map_or(own, |smaller| own.max(up + handed(smaller)) + gamma * part(block.bits));
    }
    let mut down = 0.0;
    let mut path = up;
    let mut messages = 0.0;
    let mut sent = 0.0;
    for (index, block) in blocks.iter().enumerate() {
        let ranks = (1_usize << block.bits) as f64;
        down += if index > 0 { handed(block) } else { 0.0 };
        path = path.max(up + down + exchanges(block.bits, 0.0));
        let pieces: f64 = (0..block.bits).map(|bit| case.pieces(part(bit + 1))).sum();
        messages += 2.0 * ranks * pieces;
        sent += 2.0 * (ranks - 1.0) * bytes;
        if index > 0 {
            let larger = blocks[index - 1].bits;
            messages += 2.0 * (1_usize << larger) as f64 * case.pieces(part(larger));
            sent += 2.0 * bytes;
        }
    }
    Cost { path, messages, sent, reduced: (case.ranks() - 1.0) * bytes }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let sources = sources(shape);
    let whole = shape.output(0);
    let (blocks, mine) = blocks(shape.size, shape.rank);
    let Block { start, bits } = blocks[mine];
    let index = shape.rank - start;
    let own = piece(whole, index, bits);

    // Halving inside the block.
    let mut held = if bits == 0 { contribution(&mut b, &sources, 0, whole.len, whole) } else { own };
    for bit in 0..bits {
        let peer = index ^ (1 << bit);
        let (mut give, keep) = (piece(whole, peer, bit + 1), piece(whole, index, bit + 1));
        let mut with = keep;
        if bit == 0 {
            give = contribution(&mut b, &sources, give.offset, give.len, give);
            with = contribution(&mut b, &sources, keep.offset, keep.len, keep);
        }
        b.send(start + peer, give);
        b.recv_reduce(start + peer, keep, with, if peer < index { Side::Left } else { Side::Right });
    }

    // Up the chain of blocks, and down again.
    let smaller = blocks.get(mine + 1).map(|block| block.start + index % (1 << block.bits));
    if let Some(peer) = smaller {
        b.recv_reduce(peer, own, held, Side::Right);
        held = own;
    }
    if mine > 0 {
        let larger = blocks[mine - 1];
        let shares =
            || (index..1 << larger.bits).step_by(1 << bits).map(|i| (larger.start + i, piece(whole, i, larger.bits)));
        for (peer, share) in shares() {
            b.send(peer, Span { buffer: held.buffer, ..share });
        }
        for (peer, share) in shares() {
            b.recv(peer, share);
        }
    } else {
        b.copy(held, own);
        b.divide(own, shape.divisor());
    }
    if let Some(peer) = smaller {
        b.send(peer, own);
    }

    // Doubling inside the block.
    fan_out(&mut b, shape, own);
    for bit in (0..bits).rev() {
        let peer = index ^ (1 << bit);
        let (give, take) = (piece(whole, index, bit + 1), piece(whole, peer, bit + 1));
        b.send(start + peer, give);
        b.recv(start + peer, take);
        fan_out(&mut b, shape, take);
    }
    Ok(b.build())
}
