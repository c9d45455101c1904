//! Jobs of ranks of one host: real publications in shared memory, in each of their forms.

use super::calls::CollectiveCall;
use super::job::{Job, Work, contexts_of_one_host, reliable};
use super::seeds::{run, seeds};
use crate::engine::shared::program::LONGEST;
use crate::tier::Tier;
use crate::transport::loopback::{Network, Random};
use crate::transport::shm::Sharing;

/// The forms of publications that are too long for what is copied as a whole: by reference, or as streams.
const FORMS: [Sharing; 2] = [Sharing::Processes, Sharing::Segments];

/// Number of seeds that a commit or a time gives.
const DRAWN: u64 = 200;

/// The longest copy and the longest ring, in bytes: most publications of a job take another form, in many rounds.
const LONGEST_BYTES: [(usize, usize); 3] = [(0, 512), (64, 512), (512, 4096)];

/// Runs the job of one seed; the error describes what is wrong.
fn play(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let size = 2 + random.below(15);
    let most = [10, 80, 300][random.below(3)];
    let works: Vec<Work> =
        (0..1 + random.below(4)).map(|_| Work::Call(CollectiveCall::of_one_host(&mut random, size, most))).collect();
    let before = LONGEST.replace(LONGEST_BYTES[random.below(LONGEST_BYTES.len())]);
    let network = Network::new(random.bits(), reliable());
    let found = FORMS[random.below(FORMS.len())];
    let contexts = contexts_of_one_host(&network, size, &Job::options(random.one_in(4)), found);
    let checked = Job::over(network, contexts, &works).check(None);
    LONGEST.set(before);
    checked
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn random_jobs_of_one_host() {
    let fixed = Tier::from_environment().of(60, 500, 20_000);
    run(&seeds(fixed, "", DRAWN), play, "simulation::shared", "Write a test of what it has found.");
}
