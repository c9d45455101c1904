//! Measures a link, with the rank at its other end: messages of growing size go there and come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::engine::plan::Plan;
use crate::engine::{Binding, Combine, TAG_SHIFT};
use crate::reduce;
use crate::schedule::cost::Link;
use crate::schedule::{Buffer, Builder, Span};
use crate::types::{DataType, Rank, ReduceOp};

/// How often messages of how many bytes go to and fro. Before these, one makes the connection.
const SCRIPT: [(usize, usize); 5] = [(8, 20), (8 << 10, 3), (64 << 10, 3), (256 << 10, 3), (1 << 20, 3)];
const LARGEST: usize = SCRIPT[SCRIPT.len() - 1].0;

/// After so long no more of the script is played.
const BUDGET: Duration = Duration::from_millis(10);
/// Nor if a message would take so long.
const LONG: Duration = Duration::from_millis(5);

/// First byte of a message: whether another one follows.
const MORE: u8 = 0;
const LAST: u8 = 1;

/// Tells these messages from those of collectives.
pub(super) const CHECK: u32 = 29 << 27;
/// The last slot of all. A collective with this tag would have to send millions of messages from one rank to another.
const TAG: u32 = u32::MAX;
const CHANNEL: u32 = (1 << TAG_SHIFT) - 1;

/// The messages of the script, the first one in front.
fn script() -> impl Iterator<Item = usize> {
    let sizes = SCRIPT.iter().flat_map(|&(bytes, times)| std::iter::repeat_n(bytes, times));
    std::iter::once(SCRIPT[0].0).chain(sizes)
}

/// One side's part in a message that goes to and fro.
fn plan(peer: Rank, bytes: usize, asks: bool) -> Arc<Plan> {
    let (input, output) = (Span::new(Buffer::Input(0), 0, bytes), Span::new(Buffer::Output(0), 0, bytes));
    let mut builder = Builder::new();
    if asks {
        builder.send(peer, input);
        builder.recv(peer, output);
    } else {
        builder.recv(peer, output);
        builder.send(peer, output);
    }
    let mut schedule = builder.build();
    // A message that nobody took in time must not meet a collective's receive.
    schedule.steps.iter_mut().for_each(|step| step.channel = CHANNEL);
    Arc::new(Plan::new(&schedule))
}

/// Plays one side's part in a message, which is as long as the buffers or shorter (who answers sends nothing of its own);
/// whether it went well until `until`.
fn play(context: &Context, plan: &Arc<Plan>, bytes: usize, from: &[u8], into: &mut [u8], until: Instant) -> bool {
    let binding = Binding {
        inputs: &[from.as_ptr()],
        outputs: &[into.as_mut_ptr()],
        element: 1,
        segment: bytes,
        combine: Combine::Nothing,
        check: CHECK,
        tag: TAG,
        count: bytes,
    };
    let Ok(mut guard) = context.lock() else { return false };
    let Ok(index) = guard.start(plan.clone(), &binding) else { return false };
    let engine = context.engine();
    let (mut guard, over) = engine.wait(guard, until, |core| core.is_over(index).then_some(()));
    let well = over.is_some() && !guard.has_failed(index);
    // From here on nothing touches the memory.
    guard.end(index);
    engine.hand_over(guard);
    well
}

/// Rank 0: what the link to `peer` is like, if that plays its part until `until`.
pub(super) fn link(context: &Context, peer: Rank, until: Instant) -> Option<Link> {
    let (mut from, mut into) = (vec![1; LARGEST], vec![1; LARGEST]);
    let mut began = None;
    // The shortest half of a round trip, by size.
    let mut best: Vec<(usize, f64)> = Vec::new();
    let mut messages = script().peekable();
    let mut ready = plan(peer, SCRIPT[0].0, true);
    while let Some(bytes) = messages.next() {
        let next = messages.peek().copied();
        let expected = |next: usize| match best.last() {
            Some(&(known, time)) if known == bytes && known > SCRIPT[0].0 => time * (next / known) as f64,
            _ => 0.0,
        };
        let late = began.is_some_and(|began: Instant| began.elapsed() > BUDGET);
        let last = late || next.is_none_or(|next| expected(next) > LONG.as_secs_f64());
        from[0] = if last { LAST } else { MORE };
        let sent = Instant::now();
        if !play(context, &ready, bytes, &from, &mut into, until) {
            break;
        }
        let half = sent.elapsed().as_secs_f64() / 2.0;
        match best.last_mut() {
            // The first made the connection.
            _ if began.is_none() => began = Some(Instant::now()),
            Some((known, time)) if *known == bytes => *time = time.min(half),
            _ => best.push((bytes, half)),
        }
        if last {
            break;
        }
        if let Some(next) = next.filter(|next| *next != bytes) {
            ready = plan(peer, next, true);
        }
    }
    fitted(&best)
}

/// The link on which messages take these times, by size, the shortest first; `None` where these say nothing.
fn fitted(best: &[(usize, f64)]) -> Option<Link> {
    let (first, last) = (best.first()?, best.last()?);
    let bytes = last.0.checked_sub(first.0).filter(|bytes| *bytes > 0)?;
    // A clock too coarse for it.
    let time = (last.1 - first.1).max(bytes as f64 / 1e12);
    Some(Link { latency: first.1.max(1e-9), bandwidth: bytes as f64 / time })
}

/// Plays the part of the rank at the other end of a link that rank `peer` measures, until `until`.
pub(super) fn answer(context: &Context, peer: Rank, until: Instant) {
    let mut memory = vec![1; LARGEST];
    let mut ready = (0, plan(peer, 0, false));
    for bytes in script() {
        if ready.0 != bytes {
            ready = (bytes, plan(peer, bytes, false));
        }
        if !play(context, &ready.1, bytes, &[], &mut memory, until) || memory[0] == LAST {
            break;
        }
    }
}

/// Seconds to reduce a byte: floats that are in cache.
pub(super) fn gamma() -> Option<f64> {
    const FLOATS: usize = 8 << 10;
    let kernel = reduce::kernel(DataType::Float32, ReduceOp::Sum)?;
    let (mut into, with) = (vec![1f32; FLOATS], vec![1f32; FLOATS]);
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let began = Instant::now();
        let (into, with) = (into.as_mut_ptr().cast::<u8>(), with.as_ptr().cast::<u8>());
        // SAFETY: both have so many floats; the result may be the left operand.
        unsafe { kernel(into, into, with, FLOATS) };
        best = best.min(began.elapsed().as_secs_f64());
    }
    Some(best.max(1e-9) / (FLOATS * size_of::<f32>()) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_fitted_to_the_smallest_and_the_largest_message() {
        let link = fitted(&[(8, 10e-6), (8192, 20e-6), ((1 << 20) + 8, 10e-6 + 1e-3)]).unwrap();
        assert_eq!(link.latency, 10e-6);
        assert!((link.bandwidth / (1048576.0 / 1e-3) - 1.0).abs() < 1e-9, "{link:?}");
        assert_eq!(fitted(&[(8, 10e-6)]), None, "nothing is known of the bandwidth");
        assert_eq!(fitted(&[]), None);
        let noise = fitted(&[(8, 10e-6), (8192, 9e-6)]).unwrap();
        assert!(noise.bandwidth.is_finite() && noise.bandwidth > 0.0, "{noise:?}");
    }

    #[test]
    fn reducing_takes_time() {
        let gamma = gamma().unwrap();
        assert!(gamma > 1e-13 && gamma < 1e-6, "{gamma}");
    }
}
