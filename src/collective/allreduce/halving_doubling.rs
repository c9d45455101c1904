//! Recursive halving, then recursive doubling, with binary blocks for any number of ranks (Thakur, Rabenseifner and
//! Gropp, "Optimization of collective communication operations in MPICH", 2005; binary blocks: Rabenseifner and Träff
//! 2004).
//!
//! Eight ranks: rank 0 exchanges halves with rank 1 and keeps the first, exchanges quarters with rank 2, eighths with
//! rank 4; now each rank has a complete eighth. The same exchanges in reverse order distribute all eighths.
//!
//! Other numbers are sums of powers of two. Six ranks: the blocks of ranks 0-3 and 4-5. Each block halves on its own:
//! rank 4 has the first half of its block's sum, rank 5 the second; ranks 0-3 have quarters 0, 2, 1, 3. Each half
//! consists of two quarters: rank 4 sends quarter 0 to rank 0 and quarter 1 to rank 2, rank 5 sends quarter 2 to rank 1
//! and quarter 3 to rank 3. These complete them and send them back; then both blocks double. With more blocks the
//! smallest sends its part to the next larger, and so on.
//!
//! Steps: `2 lg P` for powers of two; otherwise `2 lg` of the largest block and at most two for each other block. For a
//! power of two a rank sends `2 S (P - 1) / P` bytes. Lower ranks are the left operand, so the operation need not
//! commute.

use super::super::phases::{contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "halving_doubling", generate, cost, uses: Uses::Sizes };

/// `2^bits` consecutive ranks from `start` on.
#[derive(Clone, Copy)]
struct Block {
    start: usize,
    bits: u32,
}

/// The blocks of `size` ranks, largest first, and the index of the block that contains `rank`.
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

/// The part of `whole` that rank `index` of a block has after `bits` halvings: bit `i` of the index selects the half
/// kept in step `i`.
fn piece(whole: Span, index: usize, bits: u32) -> Span {
    (0..bits).fold(whole, |range, bit| range.part(2, index >> bit & 1))
}

/// `2 lg P α + 2 (P - 1)/P S/B + (P - 1)/P γS` for a power of two; otherwise the times of the blocks, plus the
/// transfers between them.
fn cost(case: &Case<'_>) -> Cost {
    if case.is_empty() {
        return Cost::default();
    }
    let (bytes, gamma) = (case.bytes(), case.network.gamma);
    let (blocks, _) = blocks(case.shape.size, 0);
    let part = |bits: u32| bytes / (1_usize << bits) as f64;
    let exchanges = |bits: u32, gamma: f64| -> f64 {
        // Segmentation gains little: the next step's data is behind the current step's, or competes with it.
        (0..bits)
            .map(|bit| (case.link(1 << bit), part(bit + 1)))
            .map(|(link, part)| case.stream(link, 1.0, part, gamma))
            .sum()
    };
    // From the smallest block, whose parts are the largest, to the largest block, and back.
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

    // Halving within the block.
    let mut current = if bits == 0 { contribution(&mut b, &sources, 0, whole.len, whole) } else { own };
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

    // The partial sums go up the chain of blocks, and the results come down.
    let smaller = blocks.get(mine + 1).map(|block| block.start + index % (1 << block.bits));
    if let Some(peer) = smaller {
        b.recv_reduce(peer, own, current, Side::Right);
        current = own;
    }
    if mine > 0 {
        let larger = blocks[mine - 1];
        let shares =
            || (index..1 << larger.bits).step_by(1 << bits).map(|i| (larger.start + i, piece(whole, i, larger.bits)));
        for (peer, share) in shares() {
            b.send(peer, Span { buffer: current.buffer, ..share });
        }
        for (peer, share) in shares() {
            b.recv(peer, share);
        }
    } else {
        b.copy(current, own);
        b.divide(own, shape.divisor());
    }
    if let Some(peer) = smaller {
        b.send(peer, own);
    }

    // Doubling within the block.
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
