//! Pairwise exchange: in step `i` every rank sends to the rank `i` after it and receives from the rank `i` before it
//! (Thakur, Rabenseifner and Gropp 2005). Every block is sent once: best except for small blocks.
//!
//! Six ranks: rank 0 sends to 1 and receives from 5, then to 2 and from 4, to 3 and from 3, to 4 and from 2, to 5 and
//! from 1. The steps do not wait for each other; empty blocks are not sent.
//!
//! Steps: 1, since none of the `P - 1` messages waits for another. Every rank sends all blocks but its own.

use super::super::blocks::{Blocks, all_counts};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "pairwise", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let (outgoing, incoming) = (Blocks::new(shape.send_counts), Blocks::new(shape.recv_counts));
    let sent = |rank| outgoing.span(shape.input(0), rank);
    let received = |rank| incoming.span(shape.output(0), rank);
    for distance in 1..shape.size {
        let (to, from) = (shape.after(distance), shape.before(distance));
        b.send(to, sent(to));
        b.recv(from, received(from));
    }
    b.copy(sent(shape.rank), received(shape.rank));
    Ok(b.build())
}

/// `α + S (P - 1) / (P B)` for equal blocks; `S` is the size of a rank's input. The counts are used only if all ranks
/// know them.
fn cost(case: &Case<'_>) -> Cost {
    let size = case.shape.size;
    let mut cost = Cost::default();
    let Ok(counts) = all_counts(case.shape) else { return cost };
    let (mut busiest, mut longest, mut max) = (0.0f64, 0.0f64, 0.0f64);
    let mut received = vec![0.0; size];
    for (rank, row) in counts.chunks_exact(size).enumerate() {
        let (mut sent, mut messages) = (0.0, 0.0);
        for (to, &count) in row.iter().enumerate().filter(|(to, _)| *to != rank) {
            let bytes = case.of(count);
            sent += bytes;
            received[to] += bytes;
            longest = longest.max(bytes);
            messages += case.pieces(bytes);
        }
        max = max.max(messages);
        cost.messages += messages;
        busiest = busiest.max(sent);
        cost.sent += sent;
    }
    busiest = received.into_iter().fold(busiest, f64::max);
    cost.path = case.at_once(busiest, longest, max, true);
    cost
}
