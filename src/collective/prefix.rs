//! Prefix sums over a butterfly, for scan and exscan.
//!
//! Sanders and Träff, "Parallel prefix (scan) algorithms for MPI" (2006), call this simultaneous binomial trees; MPICH
//! calls it recursive doubling. In step `k` the ranks whose numbers differ in bit `k` exchange the totals of their
//! groups of `2^k` ranks. The upper rank combines the received total with its result, on the left; both ranks combine
//! it with their own total.
//!
//! The algorithm of Hillis and Steele (rank `r` sends to `r + 2^k`) has as many messages. There the low ranks wait for
//! no message, so they send those of later steps at once, which delays messages of earlier steps: 2.5 times the time in
//! the simulator with 64 ranks. Here every message depends on the one before.

use super::phases::{rounds, sources};
use super::{Case, Shape};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side, Span};

/// Whether `rank` sends its group's total to its partner in step `bit`, and the partner's rank. The lower rank of a
/// pair always does; the upper one only if the partner needs the total later.
fn sends_total(size: usize, rank: usize, bit: u32) -> (bool, usize) {
    let peer = rank ^ (1 << bit);
    (if peer > rank { peer < size } else { sends_later(size, peer, bit) }, peer)
}

/// Whether `rank` sends a total in any step after `bit`: to an upper partner, or to a lower one that needs it for the
/// same reason.
fn sends_later(size: usize, rank: usize, bit: u32) -> bool {
    let lowest = |later: u32| rank & !((1 << later) - (2 << bit));
    (bit + 1..rounds(size)).any(|later| rank >> later & 1 == 0 && lowest(later) + (1 << later) < size)
}

/// Generates the schedule; the result includes this rank's own elements if `inclusive`.
pub(super) fn generate(shape: &Shape<'_>, inclusive: bool) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, count, .. } = *shape;
    let output = shape.output(0);
    let own = Span::new(sources(shape)[0], 0, count);
    let (mut total, mut result) = (own, inclusive.then_some(own));
    // Totals alternate between two buffers, because one may still be being sent while the next is computed.
    let (mut buffers, mut arrival) = ([None, None], None);
    for bit in 0..rounds(size) {
        let (sends, peer) = sends_total(size, rank, bit);
        if sends {
            b.send(peer, total);
        }
        if peer >= size || !sends_total(size, peer, bit).0 {
            continue;
        }
        if !sends_later(size, rank, bit) {
            // A rank that sends no more totals receives only from lower partners.
            match result {
                Some(result) => b.recv_reduce(peer, output, result, Side::Left),
                None => b.recv(peer, output),
            }
            result = Some(output);
            continue;
        }
        buffers.swap(0, 1);
        let next = *buffers[0].get_or_insert_with(|| b.scratch(count));
        if peer > rank {
            if result == Some(total) && total != own {
                // The buffer will be reused for the next total.
                b.copy(total, output);
                result = Some(output);
            }
            b.recv_reduce(peer, next, total, Side::Right);
        } else if result == Some(total) {
            // Everything received so far came from lower ranks, so the result equals the total.
            b.recv_reduce(peer, next, total, Side::Left);
            result = Some(next);
        } else {
            let arrived = *arrival.get_or_insert_with(|| b.scratch(count));
            b.recv(peer, arrived);
            b.reduce(arrived, total, next);
            match result {
                Some(result) => b.reduce(arrived, result, output),
                None => b.copy(arrived, output),
            }
            result = Some(output);
        }
        total = next;
    }
    if let Some(result) = result {
        b.copy(result, output);
    }
    Ok(b.build())
}

/// `lg P (α + S / B + γ S)`: a rank updates its result while the total is in transit. If the update takes longer, so do
/// the steps after the third, in which most ranks update both.
pub(super) fn cost(case: &Case<'_>, inclusive: bool) -> Cost {
    let (size, steps, bytes) = (case.shape.size, rounds(case.shape.size), case.bytes());
    // With two ranks, an exscan has no reduction.
    let gamma = if inclusive || size > 2 { case.network.gamma } else { 0.0 };
    let totals = (0..size).map(|rank| (0..steps).filter(|&bit| sends_total(size, rank, bit).0).count()).sum::<usize>();
    let reduced: usize = (0..size).map(|rank| reductions(size, rank, inclusive)).sum();
    let link = case.link(size);
    let longer = (2.0 * gamma * bytes - case.step(link, bytes, gamma)).max(0.0);
    Cost {
        path: case.stream(link, steps.into(), bytes, gamma) + f64::from(steps.saturating_sub(3)) * longer,
        messages: totals as f64 * case.pieces(bytes),
        sent: totals as f64 * bytes,
        reduced: reduced as f64 * bytes,
    }
}

/// Number of reductions of a rank.
fn reductions(size: usize, rank: usize, inclusive: bool) -> usize {
    let (mut count, mut has_result, mut is_total) = (0, inclusive, inclusive);
    for bit in 0..rounds(size) {
        let peer = rank ^ (1 << bit);
        if peer >= size || !sends_total(size, peer, bit).0 {
            continue;
        }
        let sends_later = sends_later(size, rank, bit);
        count += match (peer > rank, sends_later) {
            (true, _) => 1,
            (false, true) if is_total => 1,
            (false, _) => usize::from(sends_later) + usize::from(has_result),
        };
        is_total &= peer < rank;
        has_result |= peer < rank;
    }
    count
}
