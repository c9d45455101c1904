//! Measures how many connections between two ranks the network needs, for links between hosts.

use std::time::{Duration, Instant};

use gloo_rs::error::Result;
use gloo_rs::transport::tcp::device::STREAMS;

use crate::bench::measure::{barrier, largest_of_all_ranks};
use crate::ranks::Member;

/// The numbers that are tried.
const NUMBERS: [u32; 4] = [1, 2, 4, 8];
/// The call that is timed, and how often after one that is not: TCP's window grows with the first.
const CALL_BYTES: usize = 4 << 20;
const CALLS: usize = 3;
/// More connections are worth their descriptors and system calls only if they save so much of the time.
const MIN_GAIN: f64 = 0.1;

/// A member of the same job whose links have as many connections as the network needs, and that number, the same on all
/// ranks. `None` if there is nothing to choose: on one host, over queue pairs, or where a rank's environment says how
/// many.
pub fn choose(member: &Member, interface: Option<&str>, timeout: Duration) -> Result<Option<(Member, u32)>> {
    let context = &member.context;
    let is_set = std::env::var_os(STREAMS).is_some_and(|value| !value.is_empty());
    let mut settled = [f64::from(u8::from(is_set || context.device().transport() == "ibverbs"))];
    largest_of_all_ranks(context, &mut settled)?;
    if settled[0] > 0.0 || context.hosts().iter().all(|host| *host == context.hosts()[0]) {
        return Ok(None);
    }
    let mut times = Vec::new();
    for streams in NUMBERS {
        times.push(time(&member.with_streams(streams, "try", interface, timeout)?)?);
        // No rank leaves while others measure.
        barrier(context, 1)?;
    }
    largest_of_all_ranks(context, &mut times)?;
    let streams = fewest(&times);
    Ok(Some((member.with_streams(streams, "use", interface, timeout)?, streams)))
}

/// The shortest time of a call, in seconds.
fn time(member: &Member) -> Result<f64> {
    let mut numbers = vec![1.0; CALL_BYTES / size_of::<f64>()];
    let mut best = f64::INFINITY;
    for call in 0..=CALLS {
        barrier(&member.context, 1)?;
        let began = Instant::now();
        largest_of_all_ranks(&member.context, &mut numbers)?;
        if call > 0 {
            best = best.min(began.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

/// The fewest connections whose time is nearly the best.
fn fewest(times: &[f64]) -> u32 {
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    let good = times.iter().position(|time| *time * (1.0 - MIN_GAIN) <= best);
    NUMBERS[good.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_connections_must_be_worth_it() {
        assert_eq!(fewest(&[1.0, 0.95, 0.93, 0.91]), 1);
        assert_eq!(fewest(&[4.0, 2.0, 1.0, 0.95]), 4);
        assert_eq!(fewest(&[8.0, 4.0, 2.0, 1.0]), 8);
        assert_eq!(fewest(&[1.0, 2.0, 3.0, 4.0]), 1);
    }
}
