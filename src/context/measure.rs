//! Measures a link by messages of increasing size that the rank at the other end returns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::collective::{Collective, Shape};
use crate::context::Context;
use crate::engine::plan::Plan;
use crate::engine::{Binding, Prepared};
use crate::reduce;
use crate::reserve::try_zeros;
use crate::schedule::cost::Link;
use crate::schedule::{Buffer, Builder, Span};
use crate::types::{DataType, Rank, ReduceOp};
use crate::wire::fingerprint::Purpose;

/// Message sizes, and the most round trips of each. The very first message makes the connection, and is not counted.
const SCRIPT: [(usize, usize); 5] = [(8, 21), (8 << 10, 3), (64 << 10, 3), (256 << 10, 3), (1 << 20, 3)];
const LARGEST: usize = SCRIPT[SCRIPT.len() - 1].0;

/// The measurement ends after this time, or after so many round trips of the shortest message if these take longer. On
/// a new connection to a distant host, TCP's congestion window limits the rate at first, and grows from message to
/// message.
const BUDGET: Duration = Duration::from_millis(10);
const ROUND_TRIPS: u32 = 20;
/// The shortest message is repeated for this time, but a few times at least.
const SHORT: Duration = Duration::from_millis(2);
const FEW: usize = 3;
/// A larger message is not sent if it would take both this time and four round trips.
const LONG: Duration = Duration::from_millis(5);

/// First byte of a message: whether another of the same size follows, one of the next size, or none.
const AGAIN: u8 = 0;
const LARGER: u8 = 1;
const LAST: u8 = 2;

/// Separates these messages from those of collectives: one that was not received in time may remain in a queue.
const DIGEST: u64 = Purpose::Measurement.alone();

/// One side of one round trip.
fn prepared(context: &Context, peer: Rank, bytes: usize, asks: bool) -> Option<Arc<Prepared>> {
    let (input, output) = (Span::new(Buffer::Input(0), 0, bytes), Span::new(Buffer::Output(0), 0, bytes));
    let mut builder = Builder::new();
    if asks {
        builder.send(peer, input);
        builder.recv(peer, output);
    } else {
        builder.recv(peer, output);
        builder.send(peer, output);
    }
    let shape = Shape::new(Collective::PairwiseExchange, context.rank, context.size, bytes);
    let (plan, algorithm) = (Arc::new(Plan::new(&builder.build())), shape.collective.algorithms().first()?);
    // Not counted, since one side may time out alone.
    Prepared::internal(plan, (&shape, algorithm), 1, DIGEST, false).map(Arc::new).ok()
}

/// The measured properties of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub link: Link,
    /// o of LogGP: the time in seconds that this rank needs to send a short message.
    pub overhead: f64,
}

/// Runs one side of a round trip, until `until`. Its bytes are at most the length of the buffers; the answering side
/// returns what it receives. Returns the seconds that it took to post the message, including sending it if it was sent
/// at once; `None` if it failed.
fn exchange(context: &Context, call: &Arc<Prepared>, from: &[u8], into: &mut [u8], until: Instant) -> Option<f64> {
    let (inputs, outputs) = ([from.as_ptr()], [into.as_mut_ptr()]);
    let binding = Binding { call, inputs: &inputs, outputs: &outputs, function: None, tag: 0, in_order: false };
    let mut guard = context.lock().ok()?;
    let began = Instant::now();
    let index = guard.start(call.clone(), &binding, None).ok()?;
    guard.progress();
    let posted = began.elapsed().as_secs_f64();
    let engine = context.engine();
    let (mut guard, over) = engine.wait(guard, until, |core| core.is_over(index).then_some(()));
    let well = over.is_some() && !guard.has_failed(index);
    // The buffers are not accessed afterwards.
    guard.end(index);
    engine.hand_over(guard);
    well.then_some(posted)
}

/// Rank 0: measures the link to `peer`, if that answers, until `until`. `bandwidth` is used if it could not be
/// measured.
pub(super) fn link(context: &Context, peer: Rank, until: Instant, bandwidth: f64) -> Option<Measured> {
    let mut from = try_zeros(LARGEST, "a measurement").ok()?;
    let mut into = try_zeros(LARGEST, "a measurement").ok()?;
    // By size, the shortest time of half a round trip.
    let mut best: Vec<(usize, f64)> = Vec::new();
    let mut overhead = f64::INFINITY;
    let mut connected = None;
    let measured = |best: &[(usize, f64)], overhead| Some(Measured { link: fitted(best, bandwidth)?, overhead });
    for (index, (bytes, times)) in SCRIPT.into_iter().enumerate() {
        let ready = prepared(context, peer, bytes, true)?;
        for time in 0..times {
            let follows = match connected {
                None => AGAIN,
                Some(connected) => follows(index, time, [connected, Instant::now(), until], &best),
            };
            from[0] = follows;
            let sent = Instant::now();
            let Some(posted) = exchange(context, &ready, &from, &mut into, until) else {
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

/// The first byte of the message of this size after `time` others of it: of ranks that were connected at the first of
/// these times, at the second one, if the other end answers until the third one.
fn follows(index: usize, time: usize, [connected, now, until]: [Instant; 3], best: &[(usize, f64)]) -> u8 {
    let [elapsed, left] = [now, until].map(|time| time.saturating_duration_since(connected));
    let shortest = best.first().map_or(0.0, |shortest| shortest.1);
    // At most half of the time for which the other end answers.
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

/// The link for these times by size, the shortest message first. Uses `bandwidth` if they do not show it; `None` if
/// there are none.
fn fitted(best: &[(usize, f64)], bandwidth: f64) -> Option<Link> {
    let (first, last) = (best.first()?, best.last()?);
    let latency = first.1.max(1e-9);
    let bytes = last.0.saturating_sub(first.0) as f64;
    // The clock may be too coarse for the difference.
    let time = (last.1 - first.1).max(bytes / 1e12);
    Some(Link { latency, bandwidth: if bytes > 0.0 { bytes / time } else { bandwidth } })
}

/// Answers the measurement of rank `peer`, until `until`.
pub(super) fn answer(context: &Context, peer: Rank, until: Instant) {
    let Ok(mut memory) = try_zeros(LARGEST, "a measurement") else { return };
    for (bytes, times) in SCRIPT {
        let Some(ready) = prepared(context, peer, bytes, false) else { return };
        for _ in 0..times {
            if exchange(context, &ready, &[], &mut memory, until).is_none() {
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

/// Seconds to reduce one byte of floats in cache.
pub(super) fn gamma() -> Option<f64> {
    const FLOATS: usize = 8 << 10;
    let kernel = reduce::kernel(DataType::Float32, ReduceOp::Sum)?;
    let mut into = try_zeros::<f32>(FLOATS, "a measurement").ok()?;
    let with = try_zeros::<f32>(FLOATS, "a measurement").ok()?;
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let began = Instant::now();
        let (into, with) = (into.as_mut_ptr().cast::<u8>(), with.as_ptr().cast::<u8>());
        // SAFETY: both buffers have `FLOATS` floats; the result may be the left operand.
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

    /// The messages that a link of this latency and bandwidth is measured with: the number of each size, and the total
    /// time.
    fn messages_on(latency: f64, bandwidth: f64) -> (Vec<usize>, f64) {
        let (mut counts, mut best, mut clock) = (vec![0; SCRIPT.len()], Vec::new(), 0.0);
        let began = Instant::now();
        let (mut index, mut time) = (0, 1);
        loop {
            let times = [0.0, clock, 1.0].map(|time| began + Duration::from_secs_f64(time));
            let follows = follows(index, time, times, &best);
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

    /// Bytes that a new TCP connection sends before the first acknowledgement. Each acknowledgement adds as many.
    const WINDOW: usize = 10 * 1448;

    /// The result of measuring a link of this latency and bandwidth over a new connection.
    fn measured_on(latency: f64, bandwidth: f64) -> Link {
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
        let began = Instant::now();
        let (mut index, mut time) = (0, 1);
        loop {
            let times = [0.0, clock, 1.0].map(|time| began + Duration::from_secs_f64(time));
            let follows = follows(index, time, times, &best);
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
    fn a_distant_host_is_distinguished_from_a_slow_link() {
        for latency in [10e-6, 100e-6, 2e-3, 10e-3] {
            for bandwidth in [12.5e6, 125e6, 1.25e9] {
                let link = measured_on(latency, bandwidth);
                assert!((link.latency / latency - 1.0).abs() < 0.1, "{link:?} for {latency:e} s, {bandwidth:e} B/s");
                let ratio = link.bandwidth / bandwidth;
                assert!((0.4..1.6).contains(&ratio), "{link:?} for {latency:e} s, {bandwidth:e} B/s");
            }
        }
    }

    #[test]
    fn the_messages_are_those_that_show_most_in_a_short_time() {
        let (counts, took) = messages_on(5e-6, 5e9);
        assert_eq!(counts, [20, 3, 3, 3, 3]);
        assert!(took < 5e-3, "{took}");
        let (counts, _) = messages_on(50e-6, 125e6);
        assert!(counts[3] > 1 && counts[4] == 0, "a megabyte would take 8 ms: {counts:?}");
        assert_eq!(messages_on(20e-6, 10e6).0, [20, 3, 0, 0, 0], "64 KiB would take 6.6 ms");
        // The shortest message alone takes as long as all messages on a fast link.
        let (counts, took) = messages_on(2e-3, 125e6);
        assert!(counts[0] < 5 && counts[3] == 3 && took < 120e-3, "{counts:?} {took}");
        let (counts, took) = messages_on(60e-3, 125e6);
        assert!(counts[0] >= 2 && took < 0.8, "{counts:?} {took}");
        // Depends on how long bytes take, not messages; over a distant link on more time.
        let next = |extra| {
            let best = [(8, 2e-3), (8 << 10, 2e-3 + extra)];
            let began = Instant::now();
            follows(1, 2, [began, began, began + Duration::from_secs(1)], &best)
        };
        assert_eq!((next(1.9e-3), next(2.1e-3)), (LARGER, LAST));
    }

    #[test]
    fn reducing_takes_time() {
        let gamma = gamma().unwrap();
        assert!(gamma > 1e-13 && gamma < 1e-6, "{gamma}");
    }
}
