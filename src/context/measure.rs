//! Measures a link, with the rank at its other end: messages of growing size go there and come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::engine::plan::Plan;
use crate::engine::{Binding, Combine};
use crate::reduce;
use crate::schedule::cost::Link;
use crate::schedule::{Buffer, Builder, Span};
use crate::types::{DataType, Rank, ReduceOp};
use crate::wire::fingerprint::Purpose;

/// How often messages of how many bytes go to and fro at most. The very first makes the connection, and does not count.
const SCRIPT: [(usize, usize); 5] = [(8, 21), (8 << 10, 3), (64 << 10, 3), (256 << 10, 3), (1 << 20, 3)];
const LARGEST: usize = SCRIPT[SCRIPT.len() - 1].0;

/// After so long no more of the script is played; or after so many round trips of the shortest message, if these take longer.
/// A new connection to a far host holds back what it has not heard of for a round trip, and more flows from message to message.
const BUDGET: Duration = Duration::from_millis(10);
const ROUND_TRIPS: u32 = 20;
/// The shortest message is repeated for so long, but a few times in any case.
const SHORT: Duration = Duration::from_millis(2);
const FEW: usize = 3;
/// No larger message is sent if its bytes would take so long, and as long as four round trips.
const LONG: Duration = Duration::from_millis(5);

/// First byte of a message: whether one as long follows, the next of the script, or none.
const AGAIN: u8 = 0;
const LARGER: u8 = 1;
const LAST: u8 = 2;

/// Tells these messages from those of collectives, which they cannot meet: one that nobody took in time may be left.
const DIGEST: u64 = Purpose::Measurement.alone();

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
    Arc::new(Plan::new(&builder.build()))
}

/// What the link to a rank is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub link: Link,
    /// o: seconds that it takes this rank to send a short message.
    pub overhead: f64,
}

/// Plays one side's part in a message, which is as long as the buffers or shorter (who answers sends nothing of its own), until
/// `until`; how many seconds it took to post it, and to send it if it was to be sent at once. `None` if it did not go well.
fn play(
    context: &Context,
    plan: &Arc<Plan>,
    bytes: usize,
    from: &[u8],
    into: &mut [u8],
    until: Instant,
) -> Option<f64> {
    let binding = Binding {
        inputs: &[from.as_ptr()],
        outputs: &[into.as_mut_ptr()],
        element: 1,
        segment: bytes,
        combine: Combine::Nothing,
        digest: DIGEST,
        tag: 0,
        // One side may give up in the middle.
        counted: false,
        count: bytes,
    };
    let mut guard = context.lock().ok()?;
    let began = Instant::now();
    let index = guard.start(plan.clone(), &binding).ok()?;
    guard.progress();
    let posted = began.elapsed().as_secs_f64();
    let engine = context.engine();
    let (mut guard, over) = engine.wait(guard, until, |core| core.is_over(index).then_some(()));
    let well = over.is_some() && !guard.has_failed(index);
    // From here on nothing touches the memory.
    guard.end(index);
    engine.hand_over(guard);
    well.then_some(posted)
}

/// Rank 0: what the link to `peer` is like, if that plays its part until `until`; with `bandwidth` where that cannot be told.
pub(super) fn link(context: &Context, peer: Rank, until: Instant, bandwidth: f64) -> Option<Measured> {
    let (mut from, mut into) = (vec![1; LARGEST], vec![1; LARGEST]);
    // The shortest half of a round trip, by size.
    let mut best: Vec<(usize, f64)> = Vec::new();
    let mut overhead = f64::INFINITY;
    let mut connected = None;
    let measured = |best: &[(usize, f64)], overhead| Some(Measured { link: fitted(best, bandwidth)?, overhead });
    for (index, (bytes, times)) in SCRIPT.into_iter().enumerate() {
        let ready = plan(peer, bytes, true);
        for time in 0..times {
            let follows = match connected {
                None => AGAIN,
                Some(connected) => follows(index, time, connected, until, &best),
            };
            from[0] = follows;
            let sent = Instant::now();
            let Some(posted) = play(context, &ready, bytes, &from, &mut into, until) else {
                return measured(&best, overhead);
            };
            let half = sent.elapsed().as_secs_f64() / 2.0;
            if index == 0 && connected.is_some() {
                overhead = overhead.min(posted);
            }
            match best.last_mut() {
                _ if connected.is_none() => connected = Some(Instant::now()),
                Some((known, time)) if *known == bytes => *time = time.min(half),
                _ => best.push((bytes, half)),
            }
            match follows {
                AGAIN => {}
                LARGER => break,
                _ => return measured(&best, overhead),
            }
        }
    }
    measured(&best, overhead)
}

/// What follows the message of that size that comes after `time` others of it.
fn follows(index: usize, time: usize, connected: Instant, until: Instant, best: &[(usize, f64)]) -> u8 {
    let (elapsed, left) = (connected.elapsed(), until.saturating_duration_since(connected));
    let shortest = best.first().map_or(0.0, |shortest| shortest.1);
    // Not more than half of the time in which the other end plays its part.
    let budget = BUDGET.max(Duration::from_secs_f64(2.0 * shortest) * ROUND_TRIPS).min(left / 2);
    if elapsed > budget {
        return LAST;
    }
    if time + 1 < SCRIPT[index].1 && (index > 0 || time < FEW || elapsed < SHORT) {
        return AGAIN;
    }
    let long = LONG.as_secs_f64().max(4.0 * 2.0 * shortest);
    match (SCRIPT.get(index + 1), best.last()) {
        (Some(larger), Some(last)) if (last.1 - shortest) * larger.0 as f64 <= long * last.0 as f64 => LARGER,
        _ => LAST,
    }
}

/// The link on which messages take these times, by size, the shortest first; with `bandwidth` where these do not tell it, and
/// `None` where they tell nothing.
fn fitted(best: &[(usize, f64)], bandwidth: f64) -> Option<Link> {
    let (first, last) = (best.first()?, best.last()?);
    let latency = first.1.max(1e-9);
    let bytes = last.0.saturating_sub(first.0) as f64;
    // A clock too coarse for it.
    let time = (last.1 - first.1).max(bytes / 1e12);
    Some(Link { latency, bandwidth: if bytes > 0.0 { bytes / time } else { bandwidth } })
}

/// Plays the part of the rank at the other end of a link that rank `peer` measures, until `until`.
pub(super) fn answer(context: &Context, peer: Rank, until: Instant) {
    let mut memory = vec![1; LARGEST];
    for (bytes, times) in SCRIPT {
        let ready = plan(peer, bytes, false);
        for _ in 0..times {
            if play(context, &ready, bytes, &[], &mut memory, until).is_none() {
                return;
            }
            match memory[0] {
                AGAIN => {}
                LARGER => break,
                _ => return,
            }
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
        let fitted = |best: &[(usize, f64)]| fitted(best, 7e8);
        let link = fitted(&[(8, 10e-6), (8192, 20e-6), ((1 << 20) + 8, 10e-6 + 1e-3)]).unwrap();
        assert_eq!(link.latency, 10e-6);
        assert!((link.bandwidth / (1048576.0 / 1e-3) - 1.0).abs() < 1e-9, "{link:?}");
        let far = fitted(&[(8, 0.1)]).unwrap();
        assert_eq!((far.latency, far.bandwidth), (0.1, 7e8), "nothing is known of the bandwidth");
        assert_eq!(fitted(&[]), None);
        let noise = fitted(&[(8, 10e-6), (8192, 9e-6)]).unwrap();
        assert!(noise.bandwidth.is_finite() && noise.bandwidth > 0.0, "{noise:?}");
    }

    /// What a link of that latency and bandwidth gets to carry: how often messages of which size, and for how long.
    fn played(latency: f64, bandwidth: f64) -> (Vec<usize>, f64) {
        let (mut counts, mut best, mut clock) = (vec![0; SCRIPT.len()], Vec::new(), 0.0);
        let now = Instant::now();
        let (mut index, mut time) = (0, 1);
        loop {
            let began = now.checked_sub(Duration::from_secs_f64(clock)).unwrap();
            let follows = follows(index, time, began, began + Duration::from_secs(1), &best);
            let half = latency + SCRIPT[index].0 as f64 / bandwidth;
            clock += 2.0 * half;
            counts[index] += 1;
            if best.len() == index {
                best.push((SCRIPT[index].0, half));
            }
            (index, time) = match follows {
                AGAIN => (index, time + 1),
                LARGER => (index + 1, 0),
                _ => return (counts, clock),
            };
        }
    }

    /// Bytes that a new TCP connection has on their way before it has heard from the other end. What it hears adds as much again.
    const WINDOW: usize = 10 * 1448;

    /// What a link of that latency and bandwidth is taken for, over a connection that is new.
    fn taken_for(latency: f64, bandwidth: f64) -> Link {
        let (mut window, mut best, mut clock) = (WINDOW, Vec::new(), 0.0);
        let mut half = |bytes: usize| {
            let (mut time, mut left) = (latency, bytes);
            while left > window {
                left -= window;
                time += (window as f64 / bandwidth).max(2.0 * latency);
                window *= 2;
            }
            window += left;
            time + left as f64 / bandwidth
        };
        let now = Instant::now();
        let (mut index, mut time) = (0, 1);
        loop {
            let began = now.checked_sub(Duration::from_secs_f64(clock)).unwrap();
            let follows = follows(index, time, began, began + Duration::from_secs(1), &best);
            let took = half(SCRIPT[index].0);
            clock += 2.0 * took;
            match best.last_mut() {
                Some((known, time)) if *known == SCRIPT[index].0 => *time = took.min(*time),
                _ => best.push((SCRIPT[index].0, took)),
            }
            (index, time) = match follows {
                AGAIN => (index, time + 1),
                LARGER => (index + 1, 0),
                _ => return fitted(&best, 7e8).unwrap(),
            };
        }
    }

    #[test]
    fn the_way_to_a_far_host_is_told_from_a_slow_link() {
        for latency in [10e-6, 100e-6, 2e-3, 10e-3] {
            for bandwidth in [12.5e6, 125e6, 1.25e9] {
                let link = taken_for(latency, bandwidth);
                assert!((link.latency / latency - 1.0).abs() < 0.1, "{link:?} for {latency:e} s, {bandwidth:e} B/s");
                let ratio = link.bandwidth / bandwidth;
                assert!((0.4..1.6).contains(&ratio), "{link:?} for {latency:e} s, {bandwidth:e} B/s");
            }
        }
    }

    #[test]
    fn a_link_carries_what_tells_most_in_a_short_time() {
        let (counts, took) = played(5e-6, 5e9);
        assert_eq!(counts, [20, 3, 3, 3, 3]);
        assert!(took < 5e-3, "{took}");
        let (counts, _) = played(50e-6, 125e6);
        assert!(counts[3] > 1 && counts[4] == 0, "a megabyte would take 8 ms: {counts:?}");
        assert_eq!(played(20e-6, 10e6).0, [20, 3, 0, 0, 0], "64 KiB would take 6.6 ms");
        // The shortest message alone takes as long as all of them on a near link.
        let (counts, took) = played(2e-3, 125e6);
        assert!(counts[0] < 5 && counts[3] == 3 && took < 120e-3, "{counts:?} {took}");
        let (counts, took) = played(60e-3, 125e6);
        assert!(counts[0] >= 2 && took < 0.8, "{counts:?} {took}");
        // What counts is how long bytes take, not messages; and over a far link what is long there.
        let next = |extra| {
            let best = [(8, 2e-3), (8 << 10, 2e-3 + extra)];
            follows(1, 2, Instant::now(), Instant::now() + Duration::from_secs(1), &best)
        };
        assert_eq!((next(1.9e-3), next(2.1e-3)), (LARGER, LAST));
    }

    #[test]
    fn reducing_takes_time() {
        let gamma = gamma().unwrap();
        assert!(gamma > 1e-13 && gamma < 1e-6, "{gamma}");
    }
}
