//! Programs that deadlock, though no step of their schedules waits for a step that waits for it.

use super::*;
use crate::schedule::Readers;

/// Writes what a rank does in a scan of `len` elements of four ranks. Each publishes for those behind it, or for all
/// others, of which those before it read nothing of it, at last.
pub(crate) fn write_scan(b: &mut Builder, rank: Rank, len: usize, for_all: bool) {
    let (own, sum) = (Span::new(IN, 0, len), Span::new(OUT, 0, len));
    let behind = rank + 1..4;
    if for_all {
        b.publish(Readers::set((0..4).filter(|other| *other != rank)), own);
    } else if rank < 3 {
        b.publish(Readers::set(behind.clone()), own);
    }
    for from in 0..rank {
        match from {
            0 => b.fetch(0, 0, 0, sum),
            _ => b.fetch_reduce(from, 0, 0, sum, sum, Side::Right),
        }
    }
    match rank {
        0 => b.copy(own, sum),
        _ => b.reduce(sum, own, sum),
    }
    if for_all {
        behind.for_each(|from| b.fetch(from, 0, 0, sum.slice(0, 0)));
    }
    b.await_readers();
}

/// A scan of four ranks by [`write_scan`]. A fifth rank has nothing to do.
fn scan(for_all: bool) -> Vec<Schedule> {
    schedules(5, |b, rank| {
        if rank < 4 {
            write_scan(b, rank, 4, for_all);
        }
    })
}

#[test]
fn a_reader_that_comes_late_to_a_stream_of_which_it_reads_nothing() {
    // Rank 3 reads the streams of 0, 1 and 2 at one pace. That of rank 2 goes on when rank 1 has passed over it, which
    // it does after it has read that of rank 0, which waits for rank 3.
    let contract = plain(5, 4, anything);
    verify(scan(false), &contract).unwrap();
    refused(&scan(true), &contract, "deadlock with Streams");
}

/// An allreduce of ranks in two caches, `0 1 2` and `3`. Rank 1 and 2 publish nothing between the two levels.
fn by_caches(rounds: bool) -> Vec<Schedule> {
    schedules(4, |b, rank| {
        let mut own = all(IN);
        if rank < 3 {
            b.publish(Readers::set((0..3).filter(|other| *other != rank)), own);
            own = b.scratch(4);
            for from in 0..3 {
                match from {
                    0 if rank == 0 => b.copy(all(IN), own),
                    0 => b.fetch(0, 0, 0, own),
                    _ if from == rank => b.reduce(own, all(IN), own),
                    _ => b.fetch_reduce(from, 0, 0, own, own, Side::Right),
                }
            }
        }
        if rounds {
            b.next_round();
        }
        match rank {
            0 => drop(b.publish(Readers::One(3), own)),
            3 => drop(b.publish(Readers::set(0..3), own)),
            _ => {}
        }
        match rank {
            3 => b.fetch_reduce(0, 1, 0, all(OUT), own, Side::Left),
            _ => b.fetch_reduce(3, 0, 0, all(OUT), own, Side::Right),
        }
        b.await_readers();
    })
}

#[test]
fn an_operation_that_reads_what_others_read_later() {
    // Ranks 1 and 2 have nothing to publish between the levels, so one operation of theirs would read at one pace what
    // rank 0 reads one after the other.
    let contract = plain(4, 4, anything);
    verify(by_caches(true), &contract).unwrap();
    refused(&by_caches(false), &contract, "deadlock with Streams");
}
