//! Jobs of ranks that share memory, on one host or on several: real publications in each of their forms.

use super::calls::CollectiveCall;
use super::job::{Job, Work, contexts_of_hosts, play_over, reliable};
use super::requests::advance_at_once;
use super::seeds::{run, seeds};
use crate::collective::{Collective, Shape};
use crate::engine::shared::program::MAX_LENGTHS;
use crate::error::Result;
use crate::schedule::verify::tests::compiled::write_scan;
use crate::schedule::{Builder, Schedule};
use crate::testing::loopback::{Network, Random};
use crate::testing::tier::Tier;
use crate::transport::Sharing;

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
    let max = [10, 80, 300][random.below(3)];
    let works: Vec<Work> =
        (0..1 + random.below(4)).map(|_| Work::Call(CollectiveCall::of_one_host(&mut random, size, max))).collect();
    let before = MAX_LENGTHS.replace(LONGEST_BYTES[random.below(LONGEST_BYTES.len())]);
    let network = Network::new(random.bits(), reliable());
    let found = FORMS[random.below(FORMS.len())];
    let contexts = contexts_of_hosts(&network, &vec![1; size], &Job::options(random.one_in(4)), found);
    let checked = Job::over(network, contexts, &works).check(None);
    MAX_LENGTHS.set(before);
    checked
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn random_jobs_of_one_host() {
    let fixed = Tier::from_environment().of(25, 500, 20_000);
    run(&seeds(fixed, "", DRAWN), play, "simulation::shared", "Write a test of what it has found.");
}

/// Runs the job of one seed on several hosts, whose parts of a schedule are on shared memory; the error describes what
/// is wrong.
fn play_on_hosts(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let size = 3 + random.below(8);
    let number = 2 + random.below(2) as u64;
    let mut hosts: Vec<u64> = (0..size).map(|_| 1 + random.bits() % number).collect();
    // At least two hosts, one of which has two ranks.
    (hosts[0], hosts[1], hosts[2]) = (1, 1, 2);
    let max = [10, 80, 300][random.below(3)];
    let work = |random: &mut Random| match random.one_in(4) {
        true => CollectiveCall::random(random, size, false),
        false => CollectiveCall::between_hosts(random, size, max),
    };
    let works: Vec<Work> = (0..1 + random.below(4)).map(|_| Work::Call(work(&mut random))).collect();
    let before = MAX_LENGTHS.replace(LONGEST_BYTES[random.below(LONGEST_BYTES.len())]);
    let network = Network::new(random.bits(), reliable());
    let found = FORMS[random.below(FORMS.len())];
    let contexts = contexts_of_hosts(&network, &hosts, &Job::options(random.one_in(4)), found);
    let checked = Job::over(network, contexts, &works).check(None);
    MAX_LENGTHS.set(before);
    checked
}

/// `SEEDS` and `SEED` select the seeds as in [`random_jobs_of_one_host`].
#[test]
fn random_jobs_of_several_hosts() {
    let fixed = Tier::from_environment().of(25, 500, 20_000);
    run(&seeds(fixed, "", DRAWN), play_on_hosts, "simulation::shared", "Write a test of what it has found.");
}

/// Copies, publications by reference or streams, in an allreduce of two hosts.
#[test]
fn hosts_combine_in_memory_whether_or_not_a_process_may_read_another() {
    let before = MAX_LENGTHS.replace((512, 512));
    for (found, algorithm) in FORMS
        .into_iter()
        .flat_map(|found| ["hierarchical", "hierarchical_direct", "torus_2d", "torus_nd"].map(|name| (found, name)))
    {
        for (hosts, bytes) in [&[1, 1, 2, 2][..], &[1, 1, 1, 2, 2, 2, 1]]
            .into_iter()
            .flat_map(|hosts| [8, 512, 5000, 200_000].map(|bytes| (hosts, bytes)))
        {
            let network = Network::new(1, reliable());
            let contexts = contexts_of_hosts(&network, hosts, &Job::options(false), found);
            let shared: Vec<_> =
                contexts.iter().map(|context| context.lock().unwrap().shared.clone().unwrap()).collect();
            let call = CollectiveCall::plain(Collective::Allreduce, algorithm, hosts.len(), bytes / size_of::<i64>());
            Job::over(network, contexts, &[Work::Call(call)]).check(None).unwrap();
            let all_publish = shared.iter().all(|shared| shared.last_call().is_some());
            assert!(all_publish, "{algorithm}, {hosts:?}, {found:?}, {bytes} bytes");
        }
    }
    MAX_LENGTHS.set(before);
}

/// A scan of four ranks of one host, whose publications are longer than their rings, by the schedules of the algorithm
/// or by others.
fn scan_by_streams(other: Option<fn(&Shape<'_>) -> Result<Schedule>>) -> Result<(), String> {
    let before = MAX_LENGTHS.replace((0, 512));
    let network = Network::new(1, reliable());
    let contexts = contexts_of_hosts(&network, &[1; 4], &Job::options(false), Sharing::Segments);
    let call = CollectiveCall::plain(Collective::Scan, "shared_flat", 4, 300);
    for (context, generate) in contexts.iter().flat_map(|context| other.map(|generate| (context, generate))) {
        call.replace_schedule(context, generate).unwrap();
    }
    let checked = Job::over(network, contexts, &[Work::Call(call)]).check(None);
    MAX_LENGTHS.set(before);
    checked
}

/// See `a_reader_that_comes_late_to_a_stream_of_which_it_reads_nothing` of the verifier.
#[test]
fn streams_that_wait_for_each_other_time_out() {
    fn scan(shape: &Shape<'_>, for_all: bool) -> Result<Schedule> {
        let mut b = Builder::new();
        write_scan(&mut b, shape.rank, shape.count, for_all);
        Ok(b.build())
    }
    scan_by_streams(None).unwrap();
    scan_by_streams(Some(|shape| scan(shape, false))).unwrap();
    let wrong = scan_by_streams(Some(|shape| scan(shape, true))).unwrap_err();
    assert!(wrong.contains("scan shared_flat of 300 int64") && wrong.contains("timed out after 10s"), "{wrong}");
}

#[test]
fn a_started_call_goes_on_as_soon_as_something_is_published() {
    let before = MAX_LENGTHS.replace((0, 512));
    for (hosts, algorithm, found) in
        [([1, 1, 1, 1], "shared_flat", Sharing::Segments), ([1, 1, 2, 2], "hierarchical", Sharing::Processes)]
    {
        let network = Network::new(1, reliable());
        let contexts = contexts_of_hosts(&network, &hosts, &Job::options(false), found);
        let ended =
            play_over(&network, &contexts, |network, context| advance_at_once(network, context, algorithm, 300));
        assert!(ended.iter().all(|ended| ended.is_some()), "{algorithm}");
    }
    MAX_LENGTHS.set(before);
}
