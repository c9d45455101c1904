//! Jobs whose links are queue pairs of a simulated fabric.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::calls::CollectiveCall;
use super::job::{Job, Work, contexts_on, reliable};
use super::messages::Messages;
use super::{Body, idle, sleep};
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, Reduction};
use crate::error::Result;
use crate::transport::Device;
use crate::transport::ibverbs::fake::{DeviceModel, Fabric, FabricNode, LeftBehind};
use crate::transport::ibverbs::rail::PathOptions;
use crate::transport::loopback::{Network, NodeStatus, Random};
use crate::types::{DataType, ReduceOp};

/// The time of a step of a packet.
const DELAY: Range<Duration> = Duration::from_micros(1)..Duration::from_micros(20);
/// A connection breaks after four times 4 ms.
const PATH: PathOptions = PathOptions { traffic_class: 0, timeout: 10, retry_count: 3 };

/// Runs `works` on `size` ranks with `rails` ports each. `script` may schedule failures first.
fn run(
    seed: u64,
    size: usize,
    rails: usize,
    works: &[Work],
    script: impl FnOnce(&Network, &Fabric),
) -> (Job, Fabric, LeftBehind) {
    let network = Network::new(seed, reliable());
    let fabric = Fabric::beside(&network, seed, DELAY);
    let left = LeftBehind::new(&network);
    let node = |rank: usize| -> Arc<dyn Device> {
        let device = |rail: usize| DeviceModel::roce(&format!("fake{rail}"), (rank * rails + rail) as u16);
        fabric.add_node(rank, (0..rails).map(device).collect());
        FabricNode::new(&network, &fabric, &left, PATH, sleep)
    };
    let contexts = contexts_on((0..size).map(node).collect(), &Job::options(seed.is_multiple_of(2)));
    script(&network, &fabric);
    (Job::over(network, contexts, works), fabric, left)
}

fn works(random: &mut Random, size: usize) -> Vec<Work> {
    let work = |_| match random.below(4) {
        0 => Work::Messages(Messages::random(random, true)),
        _ => Work::Call(CollectiveCall::random(random, size, true)),
    };
    (0..3).map(work).collect()
}

/// `SEEDS=400` sets the number of seeds; `SEED=7` plays only that one.
fn seeds() -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    number("SEED").map_or(0..number("SEEDS").unwrap_or(20), |seed| seed..seed + 1)
}

#[test]
fn calls_succeed_over_queue_pairs() {
    let mut posted = 0;
    for seed in seeds() {
        let mut random = Random::new(seed);
        let (size, rails) = (2 + random.below(4), 1 + random.below(2));
        let works = works(&mut random, size);
        let (job, fabric, left) = run(seed, size, rails, &works, |_, _| ());
        job.check(None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        left.finish(&fabric);
        assert_eq!(fabric.rnr(), 0, "seed {seed}");
        posted += fabric.counts(0).doorbells[0];
        fabric.assert_clean();
    }
    assert!(posted > 0 || seeds().count() == 1);
}

#[test]
fn all_learn_that_a_rank_fails() {
    let mut failed = 0;
    for seed in seeds() {
        let mut random = Random::new(seed);
        let size = 2 + random.below(4);
        let works = works(&mut random, size);
        let culprit = random.below(size);
        let status = if seed.is_multiple_of(2) { NodeStatus::Crashed } else { NodeStatus::Silent };
        let (bytes, requests) = (random.below(2000) as u64, random.below(40) as u64);
        let (job, fabric, left) = run(seed, size, 1, &works, |network, fabric| match seed % 4 {
            0 | 1 => fabric.fail_after(culprit, requests, status),
            _ => network.fail_after(culprit, bytes, status),
        });
        failed += u64::from(job.network.status(culprit) != NodeStatus::Running);
        job.check(Some(culprit)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        left.finish(&fabric);
        fabric.assert_clean();
    }
    assert!(failed > 0 || seeds().count() == 1);
}

/// Each work request of a job fails, one in each play, in every way that a device reports.
#[test]
fn a_work_request_that_fails_ends_the_job() {
    use ibverbs_sys::ibv_wc_status as status;
    let statuses = [
        status::IBV_WC_RETRY_EXC_ERR,
        status::IBV_WC_LOC_PROT_ERR,
        status::IBV_WC_REM_ACCESS_ERR,
        status::IBV_WC_FATAL_ERR,
    ];
    // A job in which the rank posts many requests.
    let job = |seed| {
        let works = works(&mut Random::new(seed), 3);
        let play = move |script: &dyn Fn(&Fabric)| {
            let (job, fabric, left) = run(seed, 3, 1, &works, |_, fabric| script(fabric));
            let errors = job.check_ends();
            left.finish(&fabric);
            fabric.assert_clean();
            (errors, fabric)
        };
        let (errors, fabric) = play(&|_| ());
        assert_eq!(errors.expect("all goes well").len(), 0);
        let counts = fabric.counts(1);
        let requests = counts.sends.iter().chain(&counts.writes).sum::<u64>() + counts.reads;
        (requests, play)
    };
    let (requests, play) = (0..).map(job).find(|(requests, _)| (40..200).contains(requests)).expect("there are many");
    let mut failed = 0;
    for n in 0..requests {
        let status = statuses[n as usize % statuses.len()];
        let (errors, _) = play(&|fabric| fabric.fail_request(1, n, status));
        let errors = errors.unwrap_or_else(|wrong| panic!("request {n} with status {status}: {wrong}"));
        failed += u64::from(!errors.is_empty());
        // Only rank 1 sees the request's status; the others have it from its last words.
        for error in errors {
            assert!(error.message().contains("fake0:1"), "request {n} with status {status}: {error}");
        }
    }
    // Those that do not matter are of the end.
    assert!(failed > requests / 2, "{failed} of {requests}");
}

/// An allreduce of one number.
fn allreduce(context: &Context) -> Result<()> {
    let (input, mut output) = (1f32, 0f32);
    let call = Call {
        shape: Shape::new(Collective::Allreduce, context.rank(), context.size(), 1),
        algorithm: None,
        dtype: DataType::Float32.into(),
        reduction: Reduction::Op(ReduceOp::Sum),
        inputs: &[(&raw const input).cast()],
        outputs: &[(&raw mut output).cast()],
        tag: 3,
        timeout: None,
        max_segment_bytes: None,
    };
    // SAFETY: both buffers have one number, and live until the call returns.
    unsafe { context.run(&call) }
}

/// Rank 0 waits for rank 1, which makes its second call late; meanwhile `change` happens. Returns the result of rank 0, and how long after
/// the change it ended.
fn play_waiting(change: impl Fn(&Fabric)) -> (Result<()>, Duration) {
    const BEFORE: Duration = Duration::from_secs(1);
    let network = Network::new(3, reliable());
    let fabric = Fabric::beside(&network, 3, DELAY);
    let left = LeftBehind::new(&network);
    let node = |rank: usize| -> Arc<dyn Device> {
        fabric.add_node(rank, vec![DeviceModel::roce("fake0", rank as u16)]);
        FabricNode::new(&network, &fabric, &left, PATH, sleep)
    };
    let contexts = contexts_on((0..2).map(node).collect(), &Job::options(false));
    let mut ended = None;
    let waits: Body<'_> = Box::new(|| {
        allreduce(&contexts[0]).expect("all is well");
        let began = network.now();
        let result = allreduce(&contexts[0]);
        ended = Some((result, (network.now() - began).saturating_sub(BEFORE)));
    });
    let is_late: Body<'_> = Box::new(|| {
        allreduce(&contexts[1]).expect("all is well");
        idle(&network, &contexts[1], BEFORE);
        change(&fabric);
        idle(&network, &contexts[1], 4 * BEFORE);
        let _ = allreduce(&contexts[1]);
    });
    super::run(&network, vec![waits, is_late], |rank| contexts[rank].close());
    contexts.iter().for_each(|context| context.close());
    drop(contexts);
    left.finish(&fabric);
    ended.expect("rank 0 has ended")
}

/// What a change of rank 0's port or device does to it while it waits.
fn assert_noticed(change: impl Fn(&Fabric), what: &str) {
    let (result, took) = play_waiting(change);
    let error = result.expect_err("the message cannot come");
    assert!(took < Duration::from_secs(2), "{took:?}: {error}");
    assert_eq!(error.details().rank, Some(1), "{error}");
    assert!(error.message().contains("fake0:1") && error.message().contains(what), "{error}");
}

#[test]
fn a_rank_that_only_waits_notices_that_its_device_is_removed() {
    assert_noticed(|fabric| fabric.remove_device(0, 0), "fake0:1");
}

#[test]
fn a_rank_that_only_waits_notices_that_its_port_goes_down() {
    assert_noticed(|fabric| fabric.set_port(0, 0, 1, false), "its port is down");
}

#[test]
fn a_port_that_is_down_for_a_short_time_ends_nothing() {
    let (result, _) = play_waiting(|fabric| {
        fabric.set_port(0, 0, 1, false);
        fabric.set_port(0, 0, 1, true);
    });
    result.expect("retries have succeeded");
}
