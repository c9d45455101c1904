//! Prefixes over a butterfly: the way of scan and exscan.
//!
//! Sanders and Träff, "Parallel prefix (scan) algorithms for MPI" (2006), call it simultaneous binomial trees; MPICH has it
//! under the name of recursive doubling. In step `k` the ranks whose numbers differ in bit `k` exchange the totals of their
//! groups of `2^k`. The upper one puts what arrives on the left of its result; both combine it with their total.
//!
//! The shorter way of Hillis and Steele (rank `r` sends to `r + 2^k`) has as many messages, but the low ranks, which wait for
//! nobody, send those of later steps at once and hold up on the way what others wait for: on the simulator 64 ranks take 2.5
//! times as long. Here every message waits for the one before.

use super::phases::{rounds, sources};
use super::{Case, Shape};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side, Span};

/// Whether `rank` tells its partner in step `bit` the total of its group, and the partner's number. A lower rank always
/// does; an upper one only if the partner has use for it.
fn tells(size: usize, rank: usize, bit: u32) -> (bool, usize) {
    let peer = rank ^ (1 << bit);
    (if peer > rank { peer < size } else { forwards(size, peer, bit) }, peer)
}

/// Whether `rank` tells anyone totals after step `bit`: in some step `later` a rank that is above there, or a lower one of
/// before, which has use for it because of that.
fn forwards(size: usize, rank: usize, bit: u32) -> bool {
    let lowest = |later: u32| rank & !((1 << later) - (2 << bit));
    (bit + 1..rounds(size)).any(|later| rank >> later & 1 == 0 && lowest(later) + (1 << later) < size)
}

/// The schedule; the result has this rank's own elements if it is `inclusive`.
pub(super) fn generate(shape: &Shape<'_>, inclusive: bool) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, count, .. } = *shape;
    let output = shape.output(0);
    let own = Span::new(sources(shape)[0], 0, count);
    let (mut total, mut result) = (own, inclusive.then_some(own));
    // Totals by turns: one may still be on its way out while the next is computed.
    let (mut places, mut arrival) = ([None, None], None);
    for bit in 0..rounds(size) {
        let (sends, peer) = tells(size, rank, bit);
        if sends {
            b.send(peer, total);
        }
        if peer >= size || !tells(size, peer, bit).0 {
            continue;
        }
        if !forwards(size, rank, bit) {
            // Only a lower partner tells a rank that has no use for totals any more.
            match result {
                Some(result) => b.recv_reduce(peer, output, result, Side::Left),
                None => b.recv(peer, output),
            }
            result = Some(output);
            continue;
        }
        places.swap(0, 1);
        let next = *places[0].get_or_insert_with(|| b.scratch(count));
        if peer > rank {
            if result == Some(total) && total != own {
                // The next totals will need its place.
                b.copy(total, output);
                result = Some(output);
            }
            b.recv_reduce(peer, next, total, Side::Right);
        } else if result == Some(total) {
            // All that has arrived came from below.
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

/// `lg P (α + S / B + γ S)`: what a rank combines for its result it combines while the total is on its way. Where that takes
/// longer, so do the steps after the third: most ranks then have both to combine.
pub(super) fn cost(case: &Case<'_>, inclusive: bool) -> Cost {
    let (size, steps, bytes) = (case.shape.size, rounds(case.shape.size), case.bytes());
    // Alone with another, the second rank of an exscan has nothing to combine.
    let gamma = if inclusive || size > 2 { case.network.gamma } else { 0.0 };
    let told = (0..size).map(|rank| (0..steps).filter(|&bit| tells(size, rank, bit).0).count()).sum::<usize>();
    let reduced: usize = (0..size).map(|rank| reductions(size, rank, inclusive)).sum();
    let link = case.link(size);
    let longer = (2.0 * gamma * bytes - case.step(link, bytes, gamma)).max(0.0);
    Cost {
        path: case.stream(link, steps.into(), bytes, gamma) + f64::from(steps.saturating_sub(3)) * longer,
        messages: told as f64 * case.pieces(bytes),
        sent: told as f64 * bytes,
        reduced: reduced as f64 * bytes,
    }
}

/// How many reductions a rank does.
fn reductions(size: usize, rank: usize, inclusive: bool) -> usize {
    let (mut count, mut has_result, mut is_total) = (0, inclusive, inclusive);
    for bit in 0..rounds(size) {
        let peer = rank ^ (1 << bit);
        if peer >= size || !tells(size, peer, bit).0 {
            continue;
        }
        let forwards = forwards(size, rank, bit);
        count += match (peer > rank, forwards) {
            (true, _) => 1,
            (false, true) if is_total => 1,
            (false, _) => usize::from(forwards) + usize::from(has_result),
        };
        is_total &= peer < rank;
        has_result |= peer < rank;
    }
    count
}
