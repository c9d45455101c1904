//! Links between hosts (network namespaces): what ranks measure of them.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::netns::{Namespace, Network, Rank, Report, Wire, ran_as_root_elsewhere};
use gloo_rs::collective::{Collective, Constants, Shape};
use gloo_rs::context::{Call, Context, ContextOptions};
use gloo_rs::rendezvous;
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::tuner::file::Tuning;
use gloo_rs::types::DataType;

const RANK: &str = "GLOO_RS_TEST_RANK";
const SIZE: &str = "GLOO_RS_TEST_SIZE";
const STORE: &str = "GLOO_RS_TEST_STORE";
/// Once this key is in the store, an allreduce must succeed.
const HEALED: &str = "healed";

const PATIENCE: Duration = Duration::from_secs(40);
/// Time that connecting may take on a loaded machine, beyond the second for a link without replies.
const SLACK: Duration = Duration::from_secs(3);

/// Not a test by itself: one rank of a job. Prints the published constants and the algorithms that they select.
#[test]
#[ignore = "run by the tests"]
fn one_rank() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let (rank, size): (usize, usize) = (variable(RANK).parse().unwrap(), variable(SIZE).parse().unwrap());
    let store = rendezvous::url::open(&variable(STORE), rank, PATIENCE).unwrap();
    let device = Device::create(&DeviceOptions::default()).unwrap();
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let context = Context::new(device.clone(), rank, size, &options).unwrap();
    let began = Instant::now();
    context.connect(&*store).unwrap();
    println!("\nconnected: {}", began.elapsed().as_millis());
    println!("tuning: {}", context.tuning().to_toml().replace('\n', "\\n"));
    let mut chosen = Vec::new();
    for collective in [Collective::Allreduce, Collective::Broadcast, Collective::Allgather, Collective::Alltoall] {
        for power in 0..26 {
            let shape = Shape::new(collective, rank, size, 1 << power);
            chosen.push(context.choose(&shape, DataType::Float32));
        }
    }
    println!("chooses: {}", chosen.join(" "));
    store.set(&format!("told/{rank}"), b"").unwrap();
    store.wait(&[HEALED], PATIENCE).unwrap();
    let input = vec![rank as i64; 100_000];
    let mut output = vec![0i64; input.len()];
    let call = Call {
        inputs: &[input.as_ptr().cast()],
        outputs: &[output.as_mut_ptr().cast()],
        ..Call::new(Shape::new(Collective::Allreduce, rank, size, input.len()), DataType::Int64)
    };
    // SAFETY: the vectors are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }.unwrap();
    assert!(output.iter().all(|sum| *sum == (size * (size - 1) / 2) as i64));
    store.set(&format!("done/{rank}"), b"").unwrap();
    let all: Vec<String> = (0..size).map(|rank| format!("done/{rank}")).collect();
    store.wait(&all.iter().map(String::as_str).collect::<Vec<_>>(), PATIENCE).unwrap();
}

/// The values on which all ranks agreed.
struct Agreed {
    tuning: Tuning,
    /// Selected algorithms, by collective and size.
    chosen: String,
    /// The longest time in which a rank connected.
    took: Duration,
}

/// Runs a job until it ends: ranks in turn on `hosts`, with `variables` by rank. `heal` is called once all have
/// connected.
fn agree(
    hosts: &[&Namespace],
    variables: impl Fn(usize) -> Vec<(&'static str, &'static str)>,
    heal: impl FnOnce(),
) -> Agreed {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store").display());
    let rank = |(rank, host): (usize, &&Namespace)| {
        let mut command = host.command(std::env::current_exe().unwrap());
        command
            .args(["--exact", "links::one_rank", "--ignored", "--nocapture"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.env(RANK, rank.to_string()).env(SIZE, hosts.len().to_string()).env(STORE, &url);
        for name in ["GLOO_RS_TUNING", "GLOO_RS_ALGORITHM", "GLOO_RS_SOCKET_IFNAME"] {
            command.env_remove(name);
        }
        Rank(command.envs(variables(rank)).spawn().unwrap())
    };
    let ranks: Vec<Rank> = hosts.iter().enumerate().map(rank).collect();
    let store = rendezvous::url::open(&url, hosts.len(), PATIENCE).unwrap();
    let told: Vec<String> = (0..hosts.len()).map(|rank| format!("told/{rank}")).collect();
    store.wait(&told.iter().map(String::as_str).collect::<Vec<_>>(), PATIENCE).unwrap();
    heal();
    store.set(HEALED, b"").unwrap();
    let said: Vec<Report> = ranks.into_iter().map(Rank::finish).collect();
    for what in ["tuning", "chooses"] {
        for rank in 1..hosts.len() {
            assert_eq!(said[rank].get(what), said[0].get(what), "rank {rank} goes by other things than rank 0");
        }
    }
    let took = said.iter().map(|report| report.get("connected").parse().unwrap()).max().unwrap();
    Agreed {
        tuning: Tuning::parse(&said[0].get("tuning").replace("\\n", "\n")).unwrap(),
        chosen: said[0].get("chooses").to_owned(),
        took: Duration::from_millis(took),
    }
}

fn nothing(_: usize) -> Vec<(&'static str, &'static str)> {
    Vec::new()
}

#[test]
fn all_ranks_use_the_links_that_rank_0_measures() {
    if ran_as_root_elsewhere("links::all_ranks_use_the_links_that_rank_0_measures") {
        return;
    }
    let (_network, hosts) = Network::of_hosts(3);
    let ranks = [&hosts[0], &hosts[0], &hosts[1], &hosts[1], &hosts[2]];
    // The third host is not measured, and the variables of other ranks are ignored.
    hosts[2].limit("eth0", "10mbit", "8kb");
    let odd = |rank| match rank {
        2 => vec![("GLOO_RS_TUNING", "default")],
        3 => vec![("GLOO_RS_TUNING", "/nowhere/tuning.toml"), ("GLOO_RS_ALGORITHM", "allreduce:tree")],
        _ => Vec::new(),
    };
    let mut chosen_by_measure = Vec::new();
    for (rate, burst) in [("100mbit", "8kb"), ("500mbit", "32kb")] {
        hosts[..2].iter().for_each(|host| host.limit("eth0", rate, burst));
        // The precision depends on the machine's load; unit tests check which constants follow from which times.
        let Agreed { tuning, chosen, .. } = agree(&ranks, odd, || {});
        assert!(tuning.local.is_some() && tuning.remote.is_some() && tuning.gamma.is_some(), "{rate}: {tuning:?}");
        // The time to send a message is a part of its round trip.
        let overhead = tuning.constants["overhead_us"] / 1e6;
        assert!(overhead > 0.0 && overhead <= 2.0 * tuning.remote.unwrap().latency, "{rate}: {overhead} s, {tuning:?}");
        chosen_by_measure.push(chosen);
    }
    let built_in = agree(&ranks, |rank| if rank == 0 { vec![("GLOO_RS_TUNING", "default")] } else { odd(rank) }, || {});
    assert_eq!(built_in.tuning, Tuning::default());
    assert!(chosen_by_measure.iter().all(|chosen| *chosen != built_in.chosen), "what is measured makes no difference");
}

#[test]
fn the_link_to_a_far_host_is_measured() {
    if ran_as_root_elsewhere("links::the_link_to_a_far_host_is_measured") {
        return;
    }
    let hosts = [Namespace::new(), Namespace::new()];
    let addresses = [(&hosts[0], "10.88.0.1/24"), (&hosts[1], "10.88.0.2/24")];
    let _wire = Wire::new(addresses, Duration::from_millis(2));
    let interface = |_| vec![("GLOO_RS_SOCKET_IFNAME", "wire0")];
    for (rate, burst) in [("100mbit", "8kb"), ("1gbit", "128kb")] {
        hosts.iter().for_each(|host| host.limit("wire0", rate, burst));
        let agreed = agree(&[&hosts[0], &hosts[1]], interface, || {});
        let remote = agreed.tuning.remote.expect("the link between hosts was measured");
        assert!(remote.latency > 1.9e-3, "{rate}: {remote:?}");
        assert!(agreed.took < Duration::from_secs(1) + SLACK, "{rate}: {:?}", agreed.took);
    }
}

#[test]
fn a_link_that_drops_packets_neither_hangs_nor_fails_connecting() {
    if ran_as_root_elsewhere("links::a_link_that_drops_packets_neither_hangs_nor_fails_connecting") {
        return;
    }
    let (_network, hosts) = Network::of_hosts(2);
    let ranks = [&hosts[0], &hosts[0], &hosts[1]];
    for (swallowed, known) in [("ip protocol tcp", false), ("ip length > 1000", true)] {
        hosts[1].swallow(swallowed);
        let agreed = agree(&ranks, nothing, || hosts[1].swallow_no_more());
        assert!(agreed.took >= Duration::from_secs(1), "{swallowed}: it cannot have waited, {:?}", agreed.took);
        assert!(agreed.took < Duration::from_secs(1) + SLACK, "{swallowed}: {:?}", agreed.took);
        assert!(agreed.tuning.local.is_some(), "{swallowed}: the other link works");
        // Short messages arrived, long ones did not.
        assert_eq!(agreed.tuning.remote.is_some(), known, "{swallowed}");
        if let Some(remote) = agreed.tuning.remote {
            assert!(remote.latency < 20e-3 && remote.bandwidth == Constants::BUILT_IN.remote.bandwidth, "{remote:?}");
        }
    }
}
