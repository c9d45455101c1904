//! Jobs on several hosts (network namespaces): where ranks listen, and their errors when the network fails.

mod firewalls;
mod memory;

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failures::calls::Case;

use crate::netns::{Namespace, Network, Rank, Report, ran_as_root_elsewhere};
use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions};
use gloo_rs::error::Error;
use gloo_rs::rendezvous::{self, Launch, PrefixStore, Store};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;

const RANK: &str = "GLOO_RS_TEST_RANK";
const SIZE: &str = "GLOO_RS_TEST_SIZE";
const STORE: &str = "GLOO_RS_TEST_STORE";
const HOSTNAME: &str = "GLOO_RS_TEST_HOSTNAME";
/// The name in place of a store's URL that stands for the launcher's store.
const LAUNCHED: &str = "launched";
/// Timeout of the context.
const SECONDS: &str = "GLOO_RS_TEST_SECONDS";
const ENDLESS: &str = "GLOO_RS_TEST_ENDLESS";
const INTERFACES: &str = "GLOO_RS_SOCKET_IFNAME";

/// Timeout of every operation during which the network fails.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time that a loaded machine may need beyond the documented second.
const SLACK: Duration = Duration::from_secs(5);
/// Timeout of operations that must succeed.
const LONG: Duration = Duration::from_secs(60);
const COUNT: usize = 100_000;

fn allreduce(context: &Context) -> Result<(), Error> {
    let input = vec![context.rank() as i64; COUNT];
    let mut output = vec![0i64; COUNT];
    let call = Call {
        inputs: &[input.as_ptr().cast()],
        outputs: &[output.as_mut_ptr().cast()],
        ..Call::new(Shape::new(Collective::Allreduce, context.rank(), context.size(), COUNT), DataType::Int64)
    };
    // SAFETY: the vectors are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }?;
    assert!(output.iter().all(|sum| *sum == (context.size() * (context.size() - 1) / 2) as i64));
    Ok(())
}

/// Number of established connections of this host that have a keepalive timer.
fn kept_alive() -> usize {
    let table = |name: &str| std::fs::read_to_string(format!("/proc/self/net/{name}")).unwrap();
    let alive = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[3] == "01" && fields[5].starts_with("02:")
    };
    ["tcp", "tcp6"].iter().map(|name| table(name).lines().skip(1).filter(|line| alive(line)).count()).sum()
}

/// Not a test by itself: one rank of a job. Prints its result to standard output.
#[test]
#[ignore = "run by the tests"]
fn one_rank() {
    let variable = |name: &str| std::env::var(name).ok();
    let rank: usize = variable(RANK).unwrap().parse().unwrap();
    let size = variable(SIZE).unwrap().parse().unwrap();
    let timeout = variable(SECONDS).map_or(20, |seconds| seconds.parse().unwrap());
    let timeout = Duration::from_secs(timeout);
    let store = match variable(STORE).unwrap() {
        url if url == LAUNCHED => Launch::from_environment(timeout).unwrap().store,
        url => rendezvous::url::open(&url, rank, timeout).unwrap(),
    };
    let device = Device::create(&DeviceOptions { hostname: variable(HOSTNAME), ..Default::default() }).unwrap();
    if variable(ENDLESS).is_some() {
        return run_all_until_they_fail(&store, &device, rank, size);
    }
    let context = Context::new(device.clone(), rank, size, &ContextOptions { timeout, ..Default::default() }).unwrap();
    if let Err(error) = context.connect(&*store) {
        println!("\nfailed: {error}");
        return;
    }
    let addresses: Vec<String> = device.addresses().iter().map(|a| a.ip().to_string()).collect();
    println!("\nlistens: {} on {}", addresses.join(" "), device.interface().unwrap_or_default());
    println!("port: {}", device.addresses()[0].port());
    if let Err(error) = allreduce(&context) {
        println!("failed: {error}");
        return;
    }
    // No data is in flight for a moment, so the ranks that wait have only keepalive probes to send.
    let until = Instant::now() + Duration::from_secs(5);
    while kept_alive() == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("kept alive: {}", kept_alive() > 0);
    wait_all(&*store, "done", size, || store.set(&format!("done/{rank}"), b"").unwrap());
}

/// After `own` is done, waits for the key `name` of every rank.
fn wait_all(store: &dyn Store, name: &str, size: usize, own: impl FnOnce()) {
    own();
    let keys: Vec<String> = (0..size).map(|rank| format!("{name}/{rank}")).collect();
    store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), LONG).unwrap();
}

/// All collectives at the same time, each in a thread with a context of its own, one call after the other until one
/// fails.
fn run_all_until_they_fail(store: &Arc<dyn Store>, device: &Arc<Device>, rank: usize, size: usize) {
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let contexts: Vec<_> = Collective::ALL
        .iter()
        .map(|collective| {
            let context = Context::new(device.clone(), rank, size, &options).unwrap();
            context.connect(&PrefixStore::new(collective.name(), store.clone())).unwrap();
            (Case::new(*collective, COUNT), context)
        })
        .collect();
    std::thread::scope(|scope| {
        contexts.iter().for_each(|(case, context)| drop(scope.spawn(|| case.run(context).unwrap())));
    });
    contexts.iter().for_each(|(_, context)| context.set_timeout(TIMEOUT));
    wait_all(&**store, "running", size, || store.set(&format!("running/{rank}"), b"").unwrap());
    std::thread::scope(|scope| {
        for (case, context) in &contexts {
            scope.spawn(move || {
                let (error, after) = loop {
                    let started = Instant::now();
                    if let Err(error) = case.run(context) {
                        break (error, started.elapsed());
                    }
                };
                assert!(context.broken().is_some());
                println!("\n{}: {} {error}", case.collective.name(), after.as_millis());
            });
        }
    });
}

/// Starts one rank on each host; `variables` by rank.
fn start(
    hosts: &[&Namespace],
    store: impl Fn(usize) -> String,
    variables: impl Fn(usize) -> Vec<(&'static str, &'static str)>,
) -> Vec<Rank> {
    let rank = |(rank, host): (usize, &&Namespace)| {
        let mut command = host.command(std::env::current_exe().unwrap());
        command
            .args(["--exact", "hosts::one_rank", "--ignored", "--nocapture"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.env(RANK, rank.to_string()).env(SIZE, hosts.len().to_string()).env(STORE, store(rank));
        command.env_remove(INTERFACES).envs(variables(rank));
        Rank(command.spawn().unwrap())
    };
    hosts.iter().enumerate().map(rank).collect()
}

/// Runs a job with one rank on each host until it ends.
fn run(
    hosts: &[&Namespace],
    store: &str,
    variables: impl Fn(usize) -> Vec<(&'static str, &'static str)>,
) -> Vec<Report> {
    start(hosts, |_| store.to_owned(), variables).into_iter().map(Rank::finish).collect()
}

fn nothing(_: usize) -> Vec<(&'static str, &'static str)> {
    Vec::new()
}

fn listen(reports: &[Report]) -> Vec<&str> {
    reports.iter().map(|report| report.get("listens")).collect()
}

/// A store in a new folder that all hosts can access.
fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store").display());
    (folder, url)
}

#[test]
fn by_default_ranks_listen_where_the_store_or_other_ranks_are_reached() {
    if ran_as_root_elsewhere("hosts::by_default_ranks_listen_where_the_store_or_other_ranks_are_reached") {
        return;
    }
    let mut network = Network::new();
    let hosts: Vec<_> = (1..4)
        .map(|i| network.host(&[("idle0", &[&*format!("10.66.{i}.1/24")]), ("eth0", &[&*format!("10.77.0.{i}/24")])]))
        .collect();
    let hosts: Vec<_> = hosts.iter().collect();
    let expected = ["10.77.0.1 on eth0", "10.77.0.2 on eth0", "10.77.0.3 on eth0"];
    assert_eq!(listen(&run(&hosts, "tcp://10.77.0.1:29500", nothing)), expected);
    // Rank 0 serves on all addresses and sees its server at loopback, as if /etc/hosts mapped the host's name to
    // 127.0.1.1.
    let store = |rank| format!("tcp://{}:29501", if rank == 0 { "0.0.0.0" } else { "10.77.0.1" });
    let reports: Vec<_> = start(&hosts, store, nothing).into_iter().map(Rank::finish).collect();
    assert_eq!(listen(&reports), expected);
    // All ranks on one host, though the store is at an address that others can reach.
    let here = [hosts[0], hosts[0]];
    for listens in listen(&run(&here, "tcp://10.77.0.1:29502", nothing)) {
        assert!(listens.starts_with("127.0.0.1") && listens.ends_with(" on lo"), "{listens}");
    }
}

#[test]
fn hosts_with_one_or_both_families_work_together_unless_two_have_none_in_common() {
    if ran_as_root_elsewhere("hosts::hosts_with_one_or_both_families_work_together_unless_two_have_none_in_common") {
        return;
    }
    let mut network = Network::new();
    let v4 = network.host(&[("eth0", &["10.77.0.1/24"])]);
    let both = network.host(&[("eth0", &["10.77.0.2/24", "fd77::2/64"])]);
    let v6 = network.host(&[("eth0", &["fd77::3/64"])]);
    let other_v6 = network.host(&[("eth0", &["fd77::4/64"])]);
    let reports = run(&[&v6, &other_v6], "tcp://[fd77::3]:29500", nothing);
    assert_eq!(listen(&reports), ["fd77::3 on eth0", "fd77::4 on eth0"]);
    for (hosts, expected) in [
        ([&v4, &both], ["10.77.0.1 on eth0", "10.77.0.2 fd77::2 on eth0"]),
        ([&v6, &both], ["fd77::3 on eth0", "10.77.0.2 fd77::2 on eth0"]),
    ] {
        let (_folder, store) = folder();
        let reports = run(&hosts, &store, nothing);
        assert_eq!(listen(&reports), expected);
        // No connection to a store that could be counted instead.
        assert!(reports.iter().all(|r| r.find("kept alive") == Some("true")), "no keepalive on a connection");
    }
    let (_folder, store) = folder();
    for report in run(&[&v4, &both, &v6], &store, nothing) {
        let expected = "rank 0 listens on IPv4 only (10.77.0.1) and rank 2 on IPv6 only (fd77::3)";
        assert!(report.get("failed").contains(expected), "{}", report.get("failed"));
    }
    // A network that drops one family's packets: the other family is tried after a while.
    let silent = network.host(&[("eth0", &["10.77.0.5/24", "fd77::5/64"])]);
    silent.swallow("ip protocol tcp");
    let (_folder, store) = folder();
    assert_eq!(listen(&run(&[&both, &silent], &store, nothing)).len(), 2);
}

#[test]
fn a_list_of_interfaces_selects_among_several() {
    if ran_as_root_elsewhere("hosts::a_list_of_interfaces_selects_among_several") {
        return;
    }
    let mut network = Network::new();
    let mut host = |i: usize| {
        let addresses = [format!("10.77.0.{i}/24"), format!("10.88.0.{i}/24"), format!("fd88::{i}/64")];
        network.host(&[("eth0", &[&*addresses[0]]), ("ib0", &[&*addresses[1], &*addresses[2]])])
    };
    let hosts = [host(1), host(2)];
    for (list, expected) in [
        ("eth0", "10.77.0.1 on eth0"),
        ("ib9,ib*,eth0", "10.88.0.1 fd88::1 on ib0"),
        ("^eth*", "10.88.0.1 fd88::1 on ib0"),
        ("10.88.0.0/16", "10.88.0.1 on ib0"),
        ("fd80::/9", "fd88::1 on ib0"),
    ] {
        let variables = |_| vec![(INTERFACES, list)];
        let reports = run(&[&hosts[0], &hosts[1]], "tcp://10.77.0.1:29500", variables);
        assert_eq!(reports[0].get("listens"), expected, "{list}");
    }
}

#[test]
fn loopback_is_refused_on_several_hosts_also_if_it_is_named() {
    if ran_as_root_elsewhere("hosts::loopback_is_refused_on_several_hosts_also_if_it_is_named") {
        return;
    }
    let mut network = Network::new();
    let hosts = [network.host(&[("eth0", &["10.77.0.1/24"])]), network.host(&[("eth0", &["10.77.0.2/24"])])];
    for (variable, value, listens) in [(HOSTNAME, "127.0.1.1", "(127.0.1.1)"), (INTERFACES, "lo", "(127.0.0.1, ::1)")] {
        let variables = |rank| if rank == 1 { vec![(variable, value)] } else { Vec::new() };
        for report in run(&[&hosts[0], &hosts[1]], "tcp://10.77.0.1:29500", variables) {
            let expected = format!("the ranks run on 2 hosts, but rank 1 listens on loopback {listens}");
            assert!(report.get("failed").contains(&expected), "{}", report.get("failed"));
            assert!(report.get("failed").contains(INTERFACES), "{}", report.get("failed"));
        }
    }
}

/// Disconnects the host of rank 1 by `cut` in the middle of every collective of four ranks.
fn survive(cut: impl Fn(&Namespace)) {
    let mut network = Network::new();
    let hosts: Vec<_> = (1..5).map(|i| network.host(&[("eth0", &[&*format!("10.77.0.{i}/24")])])).collect();
    let (_folder, store) = folder();
    let ranks = start(&hosts.iter().collect::<Vec<_>>(), |_| store.clone(), |_| vec![(ENDLESS, "1")]);
    let watch = rendezvous::url::open(&store, 4, TIMEOUT).unwrap();
    wait_all(&*watch, "running", 4, || {});
    cut(&hosts[1]);
    let reports: Vec<Report> = ranks.into_iter().map(Rank::finish).collect();
    for collective in Collective::ALL.iter().map(|collective| collective.name()) {
        let errors: Vec<&str> = (0..4).map(|rank| assert_complete(rank, collective, &reports[rank])).collect();
        // At least one of the other ranks waits for rank 1 directly; rank 1 itself waits for all.
        let silent = "connected, but it has not answered for ";
        let blamed = |error: &&str| error.contains("rank 1 at 10.77.0.2:") && error.contains(silent);
        assert!([errors[0], errors[2], errors[3]].iter().any(blamed), "{errors:#?}");
        assert!(errors[1].contains(silent) && !errors[1].contains(" gave up: "), "{errors:#?}");
    }
}

/// Checks that rank's error: it came in time, and has the rank, the operation, the bytes, and the elapsed time.
fn assert_complete<'a>(rank: usize, collective: &str, report: &'a Report) -> &'a str {
    let found = report.find(collective).unwrap_or_else(|| panic!("{collective}: {}", report.0));
    let (after, error) = found.split_once(' ').unwrap();
    let after = Duration::from_millis(after.parse().unwrap());
    assert!(after < TIMEOUT + Duration::from_secs(1) + SLACK, "after {after:?}: {error}");
    let bytes = if collective == "barrier" { "tag 3" } else { " bytes), tag 3" };
    let begins = format!("rank {rank}: {collective} ");
    for part in [&*begins, bytes, ": after ", " at 10.77.0.", "timed out after 3s, in collective number "] {
        assert!(error.contains(part), "no {part:?} in what rank {rank} says: {error}");
    }
    let waits = ["waiting to receive ", "waiting to send ", "waiting for rank "];
    assert!(waits.iter().any(|part| error.contains(part)), "rank {rank} does not say what it waits for: {error}");
    error
}

#[test]
fn a_pulled_cable_ends_every_collective_within_its_timeout() {
    if ran_as_root_elsewhere("hosts::a_pulled_cable_ends_every_collective_within_its_timeout") {
        return;
    }
    survive(|host| drop(host.run("ip link set eth0 down")));
}

#[test]
fn dropped_packets_end_every_collective_within_its_timeout() {
    if ran_as_root_elsewhere("hosts::dropped_packets_end_every_collective_within_its_timeout") {
        return;
    }
    survive(|host| host.swallow("ip saddr 10.77.0.0/24"));
}
