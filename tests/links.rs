//! Links between hosts (network namespaces): what ranks measure of them, and `gloo-rs tune` over several hosts.

#[allow(dead_code)]
#[path = "support/launcher.rs"]
mod launcher;
#[path = "support/netns.rs"]
mod netns;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Constants, Shape};
use gloo_rs::context::{Call, Context, ContextOptions};
use gloo_rs::rendezvous;
use gloo_rs::transport::tcp::{Device, DeviceOptions};
use gloo_rs::tuner::file::Tuning;
use gloo_rs::types::DataType;
use launcher::{gloo_rs, text};
use netns::{Namespace, Network, Rank, Report, Wire, ran_as_root_elsewhere};
use serde_json::Value;

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

/// Runs a job until it ends: ranks in turn on `hosts`, with `variables` by rank. `heal` is called once all have connected.
fn agree(
    hosts: &[&Namespace],
    variables: impl Fn(usize) -> Vec<(&'static str, &'static str)>,
    heal: impl FnOnce(),
) -> Agreed {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store").display());
    let rank = |(rank, host): (usize, &&Namespace)| {
        let mut command = host.command(std::env::current_exe().unwrap());
        command.args(["--exact", "one_rank", "--ignored", "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::piped());
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

/// A switch with this many hosts, 10.77.0.1 and up.
fn hosts(count: usize) -> (Network, Vec<Namespace>) {
    let mut network = Network::new();
    let hosts = (1..=count).map(|i| network.host(&[("eth0", &[&*format!("10.77.0.{i}/24")])])).collect();
    (network, hosts)
}

#[test]
fn all_ranks_use_the_links_that_rank_0_measures() {
    if ran_as_root_elsewhere("all_ranks_use_the_links_that_rank_0_measures") {
        return;
    }
    let (_network, hosts) = hosts(3);
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
    if ran_as_root_elsewhere("the_link_to_a_far_host_is_measured") {
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
    if ran_as_root_elsewhere("a_link_that_drops_packets_neither_hangs_nor_fails_connecting") {
        return;
    }
    let (_network, hosts) = hosts(2);
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

/// Connects to hosts as ssh does: those named by the addresses of namespaces.
fn ssh(folder: &Path, hosts: &[Namespace]) -> String {
    let cases: String =
        (1..=hosts.len()).map(|number| format!("10.77.0.{number}) net={} ;;\n", hosts[number - 1].path())).collect();
    let script = folder.join("ssh");
    let text = format!(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\ncase $2 in\n{cases}esac\n\
         exec nsenter --net=\"$net\" sh -c \"$3\"\n"
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script.display().to_string()
}

#[test]
fn tune_over_several_hosts_writes_a_file_that_jobs_use() {
    if ran_as_root_elsewhere("tune_over_several_hosts_writes_a_file_that_jobs_use") {
        return;
    }
    let (_network, hosts) = hosts(2);
    hosts.iter().for_each(|host| host.limit("eth0", "500mbit", "32kb"));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (ssh, list) = (ssh(folder.path(), &hosts), file("hosts.txt"));
    std::fs::write(&list, "10.77.0.1 slots=2\n10.77.0.2 slots=2\n").unwrap();
    let finish = |command: &mut Command| -> Vec<Value> {
        let output: Output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let clean = |command: &mut Command| {
        ["GLOO_RS_TUNING", "GLOO_RS_ALGORITHM", "GLOO_RS_SOCKET_IFNAME"].iter().for_each(|name| {
            command.env_remove(name);
        });
    };
    let job = |line: &str, tuning: Option<&Path>| {
        let tool = env!("CARGO_BIN_EXE_gloo-rs");
        let mut args = vec!["run", "--hosts", list.to_str().unwrap(), "--ssh", &ssh, "--no-prefix", "--", tool];
        args.extend(line.split_whitespace());
        let mut command = gloo_rs(&args);
        clean(&mut command);
        finish(command.envs(tuning.map(|path| ("GLOO_RS_TUNING", path))))
    };
    let output = file("t.toml");
    let tune = format!(
        "tune --collective allreduce,broadcast --sizes 4,16Ki --budget 30 --topology --json --output {} --plot {}",
        output.display(),
        file("times.svg").display()
    );
    let measured = |tuning: &Tuning| {
        let right = |(index, &link): (usize, &u32)| match (index / 4, index % 4) {
            (from, to) if from == to => link == 0,
            (from, to) if from / 2 == to / 2 => link > 0,
            // Long messages cannot be faster than the link, and a busy machine only makes them slower.
            _ => (1..100).contains(&link),
        };
        let ends = tuning.local.is_some() && tuning.remote.is_some();
        ends && tuning.links.len() == 16 && tuning.links.iter().enumerate().all(right)
    };
    let mut rows = job(&tune, None);
    let summary = rows.pop().unwrap();
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert!(rows.iter().all(|row| row["ranks"] == 4 && row["verified"] == true), "{rows:?}");
    let links = summary["links"].as_array().unwrap().iter().map(|link| link["link"].as_str().unwrap());
    assert_eq!(links.collect::<Vec<_>>(), ["local", "remote"]);
    assert!(summary["constants"]["overhead_us"].as_f64().unwrap() > 0.0, "{summary}");
    assert!(file("times-allreduce.svg").exists() && file("times-broadcast.svg").exists());
    let mut tuning = Tuning::read(&output).unwrap();
    assert!(measured(&tuning), "500 Mbit/s were taken for {tuning:#?}");
    let remote = tuning.remote.unwrap();

    // First the measured file, then an edited one: if all ranks agree on its unusual values, the file has been read.
    for odd in [None, Some("mesh_2d")] {
        for choice in &mut tuning.choices {
            choice.algorithm = odd.map_or(choice.algorithm.clone(), str::to_owned);
        }
        tuning.choices.retain(|choice| odd.is_none() || choice.collective == Collective::Allreduce);
        let path = file("used.toml");
        std::fs::write(&path, tuning.to_toml()).unwrap();
        let rows = job("bench allreduce --sizes 4,16Ki --warmup 1 --iterations 2 --json", Some(&path));
        for row in rows {
            let bytes = row["bytes"].as_u64().unwrap();
            let choice = &tuning.choice(Collective::Allreduce, 4, bytes as usize).unwrap().algorithm;
            assert_eq!(&row["algorithm"], choice, "{row}");
            // The explanation agrees with what runs in this environment.
            let mut explain =
                gloo_rs(&["info", "--json", "--hosts", "2x2", "--explain", "allreduce", &bytes.to_string()]);
            clean(&mut explain);
            let explained = finish(explain.env("GLOO_RS_TUNING", &path)).remove(0);
            assert_eq!(&explained["chosen"]["algorithm"], choice, "{explained}");
            assert_eq!(explained["remote"]["bandwidth"], remote.bandwidth, "{explained}");
        }
    }
}
