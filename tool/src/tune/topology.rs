//! Measures the bandwidth from every rank to every other, for `spanning_trees`.

use std::time::Instant;

use gloo_rs::context::UnboundBuffer;
use gloo_rs::error::Result;
use gloo_rs::types::{Rank, Slot};

use crate::bench::buffer::Buffer;
use crate::bench::measure::{barrier, largest_of_all_ranks};
use crate::ranks::Member;

/// Bytes of a message: large enough for its latency not to matter.
const MESSAGE_BYTES: usize = 4 << 20;
/// Messages in each direction; the fastest counts. One more comes first, which makes the connection.
const MESSAGES: usize = 4;

/// Measures bandwidths in MB/s, a row for each sender, the same on all ranks. In each round, every rank is in at most
/// one pair; pairs of the same hosts take turns, so that each has the network card for itself.
pub fn measure(member: &Member) -> Result<Vec<u32>> {
    let context = &member.context;
    let (rank, ranks) = (context.rank(), context.size());
    let memory = Buffer::new(MESSAGE_BYTES, None)?;
    // SAFETY: `memory` has this length, is used only through `buffer`, and is dropped after it.
    let buffer = unsafe { context.unbound_buffer(memory.as_ptr(), MESSAGE_BYTES) }?;
    let mut links = vec![0.0; ranks * ranks];
    for round in 0..rounds(ranks) {
        let slot = context.next_slot(2);
        let pairs: Vec<(Rank, Rank)> =
            (0..ranks).filter_map(|low| Some((low, partner(low, ranks, round).filter(|high| low < *high)?))).collect();
        for up in [true, false] {
            let ways: Vec<_> = pairs.iter().map(|&(low, high)| if up { (low, high) } else { (high, low) }).collect();
            for turn in turns(&ways, context.hosts()) {
                barrier(context, 1)?;
                match turn.into_iter().find(|(from, to)| [*from, *to].contains(&rank)) {
                    Some((from, to)) if from == rank => send(&buffer, to, slot)?,
                    Some((from, _)) => links[from * ranks + rank] = receive(&buffer, from, slot)?,
                    None => {}
                }
            }
        }
    }
    largest_of_all_ranks(context, &mut links)?;
    let link = |(index, bandwidth): (usize, f64)| {
        let between_two = index / ranks != index % ranks;
        if between_two { (bandwidth / 1e6).round().clamp(1.0, u32::MAX.into()) as u32 } else { 0 }
    };
    Ok(links.into_iter().enumerate().map(link).collect())
}

/// Splits `ways` into parts that can be used at the same time: in each, a host sends to at most one other and receives
/// from at most one.
fn turns(ways: &[(Rank, Rank)], hosts: &[u32]) -> Vec<Vec<(Rank, Rank)>> {
    let mut turns: Vec<Vec<(Rank, Rank)>> = Vec::new();
    let leaves = |(from, to): (Rank, Rank)| hosts[from] != hosts[to];
    for &way in ways {
        let meets = |&other: &(Rank, Rank)| {
            leaves(other) && leaves(way) && (hosts[other.0] == hosts[way.0] || hosts[other.1] == hosts[way.1])
        };
        match turns.iter_mut().find(|turn| !turn.iter().any(meets)) {
            Some(turn) => turn.push(way),
            None => turns.push(vec![way]),
        }
    }
    turns
}

/// Number of rounds until every rank was in a pair with every other.
fn rounds(ranks: usize) -> usize {
    if ranks < 2 { 0 } else { ranks.next_multiple_of(2) - 1 }
}

/// The partner of `rank`, as in a round-robin tournament: one rank is fixed, the others rotate.
fn partner(rank: Rank, ranks: usize, round: usize) -> Option<Rank> {
    let circle = rounds(ranks);
    let partner = match rank {
        // The rank that would be its own partner gets the fixed one.
        _ if rank == circle => (0..circle).find(|other| 2 * other % circle == round)?,
        _ => match (round + circle - rank) % circle {
            other if other == rank => circle,
            other => other,
        },
    };
    (partner < ranks).then_some(partner)
}

/// Sends each time the peer is ready.
fn send(buffer: &UnboundBuffer, to: Rank, slot: Slot) -> Result<()> {
    for _ in 0..=MESSAGES {
        buffer.recv(&[to], slot + 1, 0, 1)?;
        buffer.wait_recv(None)?;
        buffer.send(to, slot, 0, MESSAGE_BYTES)?;
        buffer.wait_send(None)?;
    }
    Ok(())
}

/// The bandwidth in bytes per second.
fn receive(buffer: &UnboundBuffer, from: Rank, slot: Slot) -> Result<f64> {
    let mut min = f64::INFINITY;
    for message in 0..=MESSAGES {
        buffer.recv(&[from], slot, 0, MESSAGE_BYTES)?;
        let start = Instant::now();
        buffer.send(from, slot + 1, 0, 1)?;
        buffer.wait_send(None)?;
        buffer.wait_recv(None)?;
        if message > 0 {
            min = min.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(MESSAGE_BYTES as f64 / min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_share_a_card_take_turns() {
        assert_eq!(turns(&[(0, 2), (1, 3)], &[0, 0, 0, 0]), [[(0, 2), (1, 3)]]);
        assert_eq!(turns(&[(0, 2), (1, 3)], &[0, 1, 2, 3]), [[(0, 2), (1, 3)]]);
        assert_eq!(turns(&[(0, 2), (1, 3)], &[0, 0, 1, 1]), [[(0, 2)], [(1, 3)]]);
        assert_eq!(turns(&[(0, 3), (2, 1)], &[0, 0, 1, 1]), [[(0, 3), (2, 1)]], "one each way");
        assert_eq!(turns(&[(0, 1), (2, 3)], &[0, 0, 0, 1]), [[(0, 1), (2, 3)]], "one stays inside");
        assert_eq!(turns(&[], &[0]), [] as [Vec<_>; 0]);
    }

    #[test]
    fn every_pair_occurs_once() {
        for ranks in 1..=17 {
            let mut met = vec![0; ranks * ranks];
            for round in 0..rounds(ranks) {
                for rank in 0..ranks {
                    if let Some(other) = partner(rank, ranks, round) {
                        assert_eq!(partner(other, ranks, round), Some(rank), "{ranks} ranks, round {round}");
                        assert_ne!(other, rank);
                        met[rank * ranks + other] += 1;
                    }
                }
            }
            for (index, times) in met.into_iter().enumerate() {
                assert_eq!(times, usize::from(index / ranks != index % ranks), "{ranks} ranks");
            }
        }
    }
}
