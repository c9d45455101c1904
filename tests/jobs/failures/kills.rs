//! A job loses a rank 200 times: the others notice, connect again over the same store, and continue with its
//! replacement.

use std::time::{Duration, Instant};

use gloo_rs::collective::Collective;
use gloo_rs::context::ContextOptions;
use gloo_rs::error::ErrorKind;
use gloo_rs::rendezvous::Store;

use super::calls::{Case, count_ranks};
use super::job::{Job, LONG, Rank, SIZE};
use crate::support::Random;

const KILLS: usize = 200;
/// From this round on another rank is the one that is never killed.
const HALF: usize = KILLS / 2;
/// Rounds before memory and descriptors are measured.
const WARM_UP: usize = 15;

/// Rank 0 survives the first half, rank 3 the second.
fn victim(random: &mut Random, round: usize) -> usize {
    match round {
        0..HALF => 1 + random.below(3),
        // Now rank 0 is killed too, and first.
        HALF => 0,
        _ => random.below(3),
    }
}

pub fn one_rank(rank: &Rank) {
    let mut round: usize = rank.what.parse().unwrap();
    let first = round;
    let options = ContextOptions { timeout: Duration::from_secs(30), ..Default::default() };
    while round <= KILLS {
        let context = rank.connect(&format!("round {round}"), &[0, 1, 2, 3], &options).unwrap();
        rank.mark(&format!("connected {round}/"));
        // All ranks choose the same random calls.
        let mut random = Random::new(round as u64);
        let mut up = false;
        let error = loop {
            if round == KILLS && up {
                break None;
            }
            let mut calls = || {
                assert_eq!(count_ranks(&context)?, SIZE as f32);
                let collective = random.pick(Collective::ALL);
                Case::new(collective, random.pick(&[1, 1000, 60_000])).run(&context)
            };
            if let Err(error) = calls() {
                break Some(error);
            }
            if !std::mem::replace(&mut up, true) {
                rank.mark(&format!("up {round}/"));
            }
        };
        let noticed = Instant::now();
        drop(context);
        if let Some(error) = error {
            let own = format!("rank {}: ", rank.rank);
            let (text, ended) = (error.message(), noticed.elapsed());
            assert!(ended < Duration::from_secs(5), "a broken context ended only after {ended:?}");
            // No rank has waited for the timeout.
            assert_eq!(error.kind(), ErrorKind::ConnectionLost, "round {round}: {text}");
            assert!(text.starts_with(&own) && text.contains(" at 127.0.0.1:"), "round {round}: {text}");
            rank.mark(&format!("noticed {round}/"));
        }
        if round == first + WARM_UP || round == first + HALF - 1 {
            println!("@use\t{}\t{round}\t{}\t{}", rank.rank, descriptors(), resident_bytes());
        }
        round += 1;
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn two_hundred_kills() {
    let mut job = Job::start("kills", "0");
    let mut random = Random::new(20_26);
    for round in 0..KILLS {
        // Sometimes before the first collective, while connections are being made.
        let stage = if round % 40 == 20 { "connected" } else { "up" };
        job.wait_all(&format!("{stage} {round}/"));
        std::thread::sleep(Duration::from_micros(random.below(15_000) as u64));
        let victim = victim(&mut random, round);
        job.children[victim].kill().unwrap();
        job.children[victim].wait().unwrap();
        let killed = Instant::now();
        let others: Vec<String> =
            (0..SIZE).filter(|rank| *rank != victim).map(|rank| format!("noticed {round}/{rank}")).collect();
        job.store.wait(&others.iter().map(String::as_str).collect::<Vec<_>>(), LONG).unwrap();
        assert!(killed.elapsed() < Duration::from_secs(12), "round {round}: noticed after {:?}", killed.elapsed());
        job.spawn("kills", &(round + 1).to_string(), victim);
    }
    let lines = job.finish_lines(&[]);
    let uses: Vec<Vec<usize>> = lines
        .iter()
        .filter_map(|line| line.split_once("@use\t"))
        .map(|(_, fields)| fields.split('\t').map(|f| f.parse().unwrap()).collect())
        .collect();
    let mut compared = 0;
    for early in &uses {
        let [rank, round, descriptors, bytes] = early[..] else { panic!("{early:?}") };
        let late = uses.iter().find(|u| u[0] == rank && u[1] == round + HALF - 1 - WARM_UP);
        let Some([_, _, descriptors_then, bytes_then]) = late.map(Vec::as_slice) else { continue };
        compared += 1;
        // One or two connections of the store may be opened or closed.
        assert!(
            *descriptors_then <= descriptors + 4,
            "rank {rank}: from {descriptors} to {descriptors_then} descriptors"
        );
        assert!(*bytes_then <= bytes + (6 << 20), "rank {rank}: from {bytes} to {bytes_then} bytes");
    }
    assert_eq!(compared, 2, "{uses:?}");
}
