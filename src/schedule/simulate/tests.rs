//! Small schedules whose times were computed by hand, and inputs that must be refused.

use super::*;
use crate::schedule::cost::Link;
use crate::schedule::{Buffer, Builder, Side, Span};

/// α = 10 s, B = 4 B/s (an element of 4 bytes takes 1 s), γ = 0.5 s per element.
const NETWORK: Network = Network::flat(Link { latency: 10.0, bandwidth: 4.0 }, 0.125);

fn options() -> Options<'static> {
    Options { segment_bytes: 1 << 30, ..Options::new(NETWORK) }
}

fn span(len: usize) -> Span {
    Span::new(Buffer::Output(0), 0, len)
}

/// Simulates what `write` writes for each rank.
fn play(ranks: usize, options: Options<'_>, write: impl Fn(Rank, &mut Builder) + Sync) -> Simulation {
    try_play(ranks, options, write).unwrap()
}

fn try_play(ranks: usize, options: Options<'_>, write: impl Fn(Rank, &mut Builder) + Sync) -> Result<Simulation> {
    let generate = |rank| {
        let mut builder = Builder::new();
        write(rank, &mut builder);
        Ok(builder.build())
    };
    simulate(ranks, &generate, &options)
}

#[test]
fn a_message_takes_latency_and_its_bytes() {
    let result = play(2, options(), |rank, b| match rank {
        0 => b.send(1, span(5)),
        _ => b.recv(0, span(5)),
    });
    assert_eq!(result.finished, [5.0, 15.0], "the sender is done when the bytes have left");
    assert_eq!((result.seconds, result.steps, result.messages), (15.0, 1, 1));
    assert_eq!((&result.sent[..], &result.reduced[..]), (&[20, 0][..], &[0, 0][..]));
    assert_eq!(result.link_use, 5.0 / 15.0);
}

#[test]
fn messages_over_one_link_follow_one_another_without_its_latency() {
    let result = play(2, options(), |rank, b| {
        for _ in 0..2 {
            match rank {
                0 => b.send(1, span(5)),
                _ => {
                    let into = b.scratch(5);
                    b.recv(0, into);
                }
            }
        }
    });
    assert_eq!(result.finished, [10.0, 20.0]);
    assert_eq!(
        (result.steps, result.scratch_bytes),
        (1, 40),
        "the second does not wait for the first, only for the link"
    );
}

#[test]
fn links_are_duplex() {
    let result = play(2, options(), |rank, b| {
        b.send(1 - rank, span(5));
        let arrived = b.scratch(5);
        b.recv(1 - rank, arrived);
    });
    assert_eq!(result.finished, [15.0, 15.0]);
}

#[test]
fn a_chain_waits_for_each_message() {
    let result = play(4, options(), |rank, b| {
        if rank > 0 {
            b.recv(rank - 1, span(5));
        }
        if rank < 3 {
            b.send(rank + 1, span(5));
        }
    });
    assert_eq!(result.finished, [5.0, 20.0, 35.0, 45.0], "a sender is done when its bytes have left");
    assert_eq!(result.steps, 3);
}

#[test]
fn prefixes_stream_through_a_chain() {
    let options = Options { segment_bytes: 8, ..options() };
    // 5 elements as 2 + 2 + 1: the total is the first link's time for all, plus the last segment's time on each other
    // link.
    let result = play(3, options, |rank, b| {
        if rank > 0 {
            b.recv(rank - 1, span(5));
        }
        if rank < 2 {
            b.send(rank + 1, span(5));
        }
    });
    // Arrivals at rank 1: 12, 14, 15; it forwards them from 12 to 14, 16, 17; they arrive 10 later.
    assert_eq!(result.finished, [5.0, 17.0, 27.0]);
    assert_eq!((result.steps, result.messages), (2, 6));
}

#[test]
fn a_rank_reduces_one_message_at_a_time() {
    // Three ranks send 4 elements to rank 3, which take 4 s each on the card and 2 s to reduce.
    let gather = |rank: Rank, b: &mut Builder| {
        if rank < 3 {
            return b.send(3, span(4));
        }
        for from in 0..3 {
            b.recv_reduce(from, span(4), span(4), Side::Left);
        }
    };
    let result = play(4, options(), gather);
    assert_eq!(
        result.finished,
        [4.0, 4.0, 4.0, 24.0],
        "they come at 14, 18, 22 through the card, the last is reduced to 24"
    );
    assert_eq!(result.reduced, [0, 0, 0, 48]);
    assert_eq!(result.link_use, 12.0 / 24.0, "the receiver's card");
    assert_eq!(result.steps, 3, "each reduction waits for the one before");
    // With one link per pair all arrive at 14; the reductions run one after the other.
    let near = Network { per_host: 4, ..NETWORK };
    assert_eq!(play(4, Options { network: near, ..options() }, gather).finished[3], 14.0 + 3.0 * 2.0);
}

#[test]
fn local_reductions_and_copies() {
    let result = play(1, options(), |_, b| {
        let (left, right) = (b.scratch(8), b.scratch(8));
        b.reduce(left, right, span(8));
        b.copy(span(8), left);
        b.divide(left, 3);
    });
    assert_eq!(result.seconds, 4.0, "8 elements of 0.5 s; copies and divisions cost nothing");
    assert_eq!((result.steps, result.link_use, result.scratch_bytes), (0, 0.0, 64));
}

/// A rank that sends to three others, and one that receives from three: 2 s of CPU time per message, 4 s of which are
/// part of α.
#[test]
fn a_rank_is_busy_with_each_message_between_hosts() {
    let fan = |rank: Rank, b: &mut Builder| match rank {
        0 => (1..4).for_each(|to| b.send(to, span(1))),
        _ => b.recv(0, span(1)),
    };
    let gather = |rank: Rank, b: &mut Builder| match rank {
        0 => (1..4).for_each(|from| b.recv(from, Span::new(Buffer::Output(0), from, 1))),
        _ => b.send(0, span(1)),
    };
    let network = Network { overhead: 2.0, ..NETWORK };
    let with = |network| Options { network, ..options() };
    let pair = |rank: Rank, b: &mut Builder| match rank {
        0 => b.send(1, span(5)),
        _ => b.recv(0, span(5)),
    };
    assert_eq!(play(2, with(network), pair).finished, [7.0, 15.0], "one message takes no longer than without");
    assert_eq!(play(4, options(), fan).finished, [3.0, 11.0, 12.0, 13.0]);
    assert_eq!(play(4, with(network), fan).finished, [7.0, 11.0, 13.0, 15.0], "they leave the rank at 2, 4, 6");
    assert_eq!(play(4, options(), gather).finished, [13.0, 1.0, 1.0, 1.0]);
    assert_eq!(play(4, with(network), gather).finished, [15.0, 3.0, 3.0, 3.0], "they come at 9, 10, 11");
    let network = Network { gap: 5.0, ..network };
    assert_eq!(play(4, with(network), fan).finished, [13.0, 11.0, 16.0, 21.0], "they leave the rank at 2, 7, 12");
    assert_eq!(play(4, with(network), gather).finished[0], 21.0, "the first is in at 11");
    // On one host, and over explicit links, messages take no CPU time.
    let free = play(4, Options { network: Network { per_host: 4, ..NETWORK }, ..options() }, fan);
    assert_eq!(play(4, with(Network { per_host: 4, ..network }), fan), free);
    let links = [4.0; 16];
    assert_eq!(play(4, Options { links: &links, ..with(network) }, fan), free);
}

/// Reductions and messages of a rank compete for its CPU.
#[test]
fn messages_and_reductions_share_the_cpu_of_a_rank() {
    let network = Network { overhead: 2.0, ..NETWORK };
    let result = play(3, Options { network, ..options() }, |rank, b| match rank {
        0 => {
            b.recv_reduce(1, span(8), span(8), Side::Left);
            b.recv(2, Span::new(Buffer::Output(1), 0, 1));
        }
        1 => b.send(0, span(8)),
        _ => {
            let first = b.scratch(8);
            b.send(0, first.slice(0, 1));
        }
    });
    // Both messages are sent at 2 and reach rank 0's card at 8; rank 1's occupies it for 8 s. Rank 0's CPU takes it
    // until 18 and reduces for 4 s, during which rank 2's arrives.
    assert_eq!(result.finished, [24.0, 10.0, 3.0]);
}

#[test]
fn hosts_share_a_card_and_have_links_inside() {
    let local = Link { latency: 1.0, bandwidth: 8.0 };
    let network = Network { local, per_host: 2, ..NETWORK };
    // Ranks 0 and 1 send 4 elements to 2 and 3 on the next host; rank 0 also sends to rank 1.
    let write = |rank: Rank, b: &mut Builder| {
        if rank < 2 {
            b.send(rank + 2, span(4));
        } else {
            b.recv(rank - 2, span(4));
        }
        if rank == 0 {
            b.send(1, span(4));
        }
        if rank == 1 {
            let arrived = b.scratch(4);
            b.recv(0, arrived);
        }
    };
    let result = play(4, Options { network, ..options() }, write);
    assert_eq!(result.finished, [4.0, 8.0, 14.0, 18.0], "the card takes one after the other");
    // With interleaved hosts {0, 2} and {1, 3} only the message within a host becomes one between hosts.
    let result = play(4, Options { network, hosts: &[0, 1, 0, 1], ..options() }, write);
    assert_eq!(result.finished, [4.0, 14.0, 3.0, 3.0]);
    let interleaved = Network { consecutive: false, ..network };
    assert_eq!(
        play(4, Options { network: interleaved, ..options() }, write),
        result,
        "the network's own way to say so"
    );
}

#[test]
fn a_network_card_serves_messages_in_order_of_arrival() {
    // Rank 0 sends 10 elements to rank 1 and then 1 to rank 3; rank 2 sends 4 to rank 3 at time 0.
    let result = play(4, options(), |rank, b| match rank {
        0 => {
            b.send(1, span(10));
            b.send(3, span(1));
        }
        1 => b.recv(0, span(10)),
        2 => b.send(3, span(4)),
        _ => {
            b.recv(0, Span::new(Buffer::Output(1), 0, 1));
            b.recv(2, span(4));
        }
    });
    assert_eq!(
        result.finished,
        [11.0, 20.0, 4.0, 21.0],
        "rank 2's message does not wait for rank 0's, which leaves late"
    );
}

#[test]
fn explicit_links_between_pairs() {
    let links = [0.0, 4.0, 2.0, 4.0, 0.0, 0.0, 4.0, 4.0, 0.0];
    let write = |rank: Rank, b: &mut Builder| match rank {
        0 => {
            b.send(1, span(4));
            b.send(2, span(4));
        }
        _ => b.recv(0, span(4)),
    };
    let result = play(3, Options { links: &links, ..options() }, write);
    assert_eq!(result.finished, [8.0, 14.0, 18.0], "both at once, the second at half the speed");
    let missing = [0.0, 4.0, 0.0, 4.0, 0.0, 0.0, 4.0, 4.0, 0.0];
    let error = try_play(3, Options { links: &missing, ..options() }, write).unwrap_err();
    assert!(error.message().contains("rank 0 sends to rank 2, but there is no link between them"), "{error}");
}

#[test]
fn a_receiver_that_is_not_ready_delays_no_other_message() {
    // Rank 1 may receive into its buffer only after sending it to rank 2, which it may do only after rank 2's message.
    let result = play(3, options(), |rank, b| match rank {
        0 => b.send(1, span(5)),
        1 => {
            b.recv(2, span(5));
            b.send(2, span(5));
            b.recv(0, span(5));
        }
        _ => {
            b.send(1, span(5));
            b.recv(1, Span::new(Buffer::Output(1), 0, 5));
        }
    });
    // Both messages need rank 1's card at 10: rank 0's is first, rank 2's arrives at 20; the buffer has been sent at
    // 25.
    assert_eq!(result.finished, [5.0, 25.0, 35.0]);
}

#[test]
fn symmetric_ranks_are_simulated_once_with_the_same_result() {
    // A ring in which ranks forward what they reduce, three times. One element more on the last rank breaks the
    // symmetry.
    let ring = |size: usize, turns: usize, odd: bool| {
        move |rank: Rank, b: &mut Builder| {
            let own = span(64);
            for _ in 0..turns {
                b.send((rank + 1) % size, own);
                b.recv_reduce((rank + size - 1) % size, own, own, Side::Left);
            }
            if odd && rank == size - 1 {
                b.copy(Span::new(Buffer::Input(0), 0, 1), Span::new(Buffer::Output(1), 0, 1));
            }
        }
    };
    for per_host in [1, 2, 4, 8] {
        let network = Network { local: Link { latency: 0.25, bandwidth: 16.0 }, per_host, ..NETWORK };
        for (segment_bytes, overhead) in [(16, 0.0), (1 << 20, 0.0), (16, 3.0), (1 << 20, 3.0)] {
            let network = Network { overhead, gap: overhead, ..network };
            let options = Options { network, segment_bytes, trace: &[0, 5], ..options() };
            let sorted = |mut result: Simulation| {
                result.trace.sort_unstable();
                result
            };
            let quick = sorted(play(8, options, ring(8, 3, false)));
            let whole = sorted(play(8, options, ring(8, 3, true)));
            assert_eq!(quick, whole, "{per_host} on a host, segments of {segment_bytes}");
            let trace = |rank: Rank| quick.trace.iter().filter(move |work| work.rank == rank).count();
            // Each segment is sent, received and reduced; between hosts there are two more activities for CPU time.
            let each = match (overhead > 0.0, per_host) {
                (true, 1) => Some(5),
                (true, _) => None,
                (false, _) => Some(3),
            };
            if let Some(each) = each {
                assert_eq!(trace(0), 3 * each * 256 / segment_bytes.min(256));
                assert_eq!(trace(5), trace(0));
            }
            assert!(quick.trace.iter().all(|work| work.peer.is_none_or(|peer| (peer + 8 - work.rank) % 8 % 6 == 1)));
        }
    }
}

#[test]
fn the_trace_records_when_wires_and_ranks_were_busy() {
    let options = Options { trace: &[0, 1], ..options() };
    let mut trace = play(3, options, |rank, b| match rank {
        0 => b.send(1, span(4)),
        1 => {
            b.recv_reduce(0, span(4), span(4), Side::Left);
            b.recv_reduce(2, span(4), span(4), Side::Left);
        }
        _ => b.send(1, span(4)),
    })
    .trace;
    trace.sort_unstable();
    let work = |rank, activity, peer, begin: u64, end: u64| Trace {
        rank,
        activity,
        peer,
        begin: begin * 1_000_000_000_000,
        end: end * 1_000_000_000_000,
        bytes: 16,
    };
    let expected = [
        work(0, Activity::Send, Some(1), 0, 4),
        work(1, Activity::Receive, Some(0), 10, 14),
        work(1, Activity::Receive, Some(2), 14, 18),
        work(1, Activity::Reduce, None, 14, 16),
        work(1, Activity::Reduce, None, 18, 20),
    ];
    assert_eq!(trace, expected);
}

#[test]
fn what_cannot_be_simulated() {
    let pair = |rank: Rank, b: &mut Builder| match rank {
        0 => b.send(1, span(5)),
        _ => b.recv(0, span(5)),
    };
    let refused = |ranks, options, write: &(dyn Fn(Rank, &mut Builder) + Sync), why: &str| {
        let error = try_play(ranks, options, write).expect_err(why);
        assert_eq!(error.kind(), crate::error::ErrorKind::InvalidArgument);
        assert!(error.message().contains(why), "{error}");
    };
    refused(0, options(), &pair, "no ranks");
    refused(2, options(), &|rank, b: &mut Builder| b.send(1 - rank, span(1)), "which never receives from it");
    refused(
        2,
        options(),
        &|rank, b: &mut Builder| {
            if rank == 1 {
                b.recv(0, span(3))
            }
        },
        "rank 1 never finishes step 0",
    );
    let twice = |rank: Rank, b: &mut Builder| {
        pair(rank, b);
        if rank == 0 {
            b.send(1, span(1));
        }
    };
    refused(2, options(), &twice, "sends message 1 to rank 1, which never receives it");
    let unlike = |rank: Rank, b: &mut Builder| match rank {
        0 => b.send(1, span(5)),
        _ => b.recv(0, span(4)),
    };
    refused(2, options(), &unlike, "5 elements sent, 4 received");
    refused(2, options(), &|_, b: &mut Builder| b.send(7, span(1)), "rank 7 is not a valid peer");
    let ring = |rank: Rank, b: &mut Builder| {
        b.recv(1 - rank, span(1));
        b.send(1 - rank, span(1));
    };
    refused(2, options(), &ring, "rank 0 never finishes step 0: of message 0 from rank 1, 0 elements of 1 arrived");
    refused(2, Options { hosts: &[0], ..options() }, &pair, "hosts are given for 1 of 2 ranks");
    refused(2, Options { hosts: &[0, 2], ..options() }, &pair, "host number 2 is out of range");
    refused(2, Options { links: &[1.0], ..options() }, &pair, "1 links are given; 2 ranks have 4");
    refused(2, Options { links: &[1.0, -1.0, 1.0, 1.0], ..options() }, &pair, "a link has -1 B/s");
    refused(2, Options { element_bytes: 0, ..options() }, &pair, "0 bytes");
    refused(2, Options { memory: 10, ..options() }, &pair, "need more than the 0 MiB");
    let with = |latency, bandwidth, gamma| Options::new(Network::flat(Link { latency, bandwidth }, gamma));
    refused(2, with(f64::NAN, 1.0, 0.0), &pair, "α is NaN");
    refused(2, with(0.0, 0.0, 0.0), &pair, "a bandwidth is 0 B/s");
    refused(2, with(0.0, 1.0, -1.0), &pair, "γ is -1 s");
    let ranks = |overhead, gap| Options::new(Network { overhead, gap, ..NETWORK });
    refused(2, ranks(-1.0, 0.0), &pair, "o is -1 s");
    refused(2, ranks(0.0, f64::NAN), &pair, "g is NaN");
    refused(2, ranks(6.0, 0.0), &pair, "o is 6 s, at both ends; that is more than α, 10 s");
    let slow = |rank: Rank, b: &mut Builder| match rank {
        0 => b.send(1, span(5000)),
        _ => b.recv(0, span(5000)),
    };
    refused(2, with(0.0, 1e-3, 0.0), &slow, "might be");
    let long = |rank: Rank, b: &mut Builder| match rank {
        0 => b.send(1, span(1 << 32)),
        _ => b.recv(0, span(1 << 32)),
    };
    refused(2, options(), &long, "4294967296 elements; at most 4294967295 can be simulated");
}
