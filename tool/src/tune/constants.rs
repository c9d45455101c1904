//! Measures the constants of the cost model several times, by the code that measures them when ranks connect.

use std::time::Duration;

use gloo_rs::collective::constants::{Constant, TABLE};
use gloo_rs::context::{Context, ContextOptions};
use gloo_rs::error::Result;
use gloo_rs::rendezvous::PrefixStore;
use gloo_rs::schedule::cost::Link;
use gloo_rs::tuner::file::Tuning;

use crate::bench::measure::barrier;
use crate::ranks::Member;

/// Number of measurements; odd, so that one of them is the median.
const MEASUREMENTS: usize = 5;

/// The medians, for the links that exist.
pub fn measure(member: &Member, timeout: Duration) -> Result<Tuning> {
    let (rank, ranks) = (member.context.rank(), member.context.size());
    // Ignores a file that the environment may name.
    let options = ContextOptions { timeout, tuning: Some("measure".into()), ..Default::default() };
    let mut all = Vec::new();
    for time in 0..MEASUREMENTS {
        let context = Context::new(member.context.device().clone(), rank, ranks, &options)?;
        context.connect(&PrefixStore::new(format!("gloo-rs-tune/{time}"), member.store.clone()))?;
        all.push(context.tuning().clone());
        // No rank leaves while others measure.
        barrier(&member.context, 1)?;
    }
    let number = |of: &dyn Fn(&Tuning) -> Option<f64>| median(all.iter().filter_map(of).collect());
    let link = |of: &dyn Fn(&Tuning) -> Option<Link>| {
        let latency = number(&|tuning| of(tuning).map(|link| link.latency))?;
        Some(Link { latency, bandwidth: number(&|tuning| of(tuning).map(|link| link.bandwidth))? })
    };
    // Ranks publish only those constants with names that are measured.
    let constants = TABLE.iter();
    let of = |constant: &Constant| number(&|tuning| tuning.constants.get(constant.name).copied());
    Ok(Tuning {
        local: link(&|tuning| tuning.local),
        remote: link(&|tuning| tuning.remote),
        gamma: number(&|tuning| tuning.gamma),
        constants: constants.filter_map(|constant| Some((constant.name, of(constant)?))).collect(),
        ..Default::default()
    })
}

/// Rounds to four digits, which is the precision of such a measurement.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let median = numbers.get(numbers.len() / 2)?;
    format!("{median:.3e}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_have_four_digits() {
        assert_eq!(median(vec![3.0, 1.234567e-5, 1e-9]), Some(1.235e-5));
        assert_eq!(median(vec![]), None);
    }
}
