//! Small schedules with times computed by hand, and what must be refused.

use super::*;
use crate::schedule::cost::Link;
use crate::schedule::{Buffer, Builder, Span};

/// α = 10 s, B = 4 B/s (an element of 4 bytes takes 1 s), γ = 0.5 s per element.
const NETWORK: Network = Network::flat(Link { latency: 10.0, bandwidth: 4.0 }, 0.125);

fn options() -> Options<'static> {
    Options { segment_bytes: 1 << 30, ..Options::new(NETWORK) }
}

fn span(len: usize) -> Span {
    Span::new(Buffer::Output(0), 0, len)
}

/// Plays what `write` says for each rank.
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
