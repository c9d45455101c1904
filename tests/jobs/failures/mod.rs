//! The errors on other ranks when one dies, hangs, does not come, or makes another call: their texts, and when they
//! come.

pub mod calls;
mod fork;
mod job;
mod kills;
mod lost;
mod mismatch;
mod resources;
mod silent;
mod threads;
#[cfg(feature = "tls")]
mod tls;

/// Not a test by itself: one process of a job that a test starts.
#[test]
#[ignore = "run by the tests of this file"]
fn one_rank() {
    let rank = job::Rank::from_environment();
    match rank.scenario.as_str() {
        "lost" => lost::one_rank(&rank),
        "silent" => silent::one_rank(&rank),
        "mismatch" => mismatch::one_rank(&rank),
        "descriptors" => resources::one_rank(&rank),
        "rendezvous" => resources::one_rank_without_descriptors(&rank),
        "memory" => resources::one_rank_without_memory(&rank),
        "fork" => fork::one_rank(&rank),
        "kills" => kills::one_rank(&rank),
        other => panic!("no scenario {other}"),
    }
}
