//! Hosts between which connections pass in one direction only, or in none.

use std::net::TcpListener;

use super::{SECONDS, folder, listen, nothing, run};
use crate::netns::{Network, ran_as_root_elsewhere};

/// Packets that open connections from this address.
fn opening(from: &str) -> String {
    format!("ip saddr {from} tcp flags & (syn | ack) == syn")
}

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// What a firewall does with a packet, in nft's language.
const VERDICTS: [&str; 3] = ["drop", "reject", "reject with tcp reset"];

#[test]
fn one_direction_suffices() {
    if ran_as_root_elsewhere("hosts::firewalls::one_direction_suffices") {
        return;
    }
    let (_network, hosts) = Network::of_hosts(2);
    for verdict in VERDICTS {
        for closed in [0, 1] {
            hosts[closed].treat(&opening(ADDRESSES[1 - closed]), verdict);
            let (_folder, store) = folder();
            let reports = run(&[&hosts[0], &hosts[1]], &store, nothing);
            assert_eq!(listen(&reports), ["10.77.0.1 on eth0", "10.77.0.2 on eth0"], "{verdict}");
            assert!(
                reports.iter().all(|report| report.find("kept alive").is_some()),
                "{verdict}: {}",
                reports[closed].0
            );
            hosts[closed].swallow_no_more();
        }
    }
}

#[test]
fn both_sides_say_that_a_firewall_may_be_between_them() {
    if ran_as_root_elsewhere("hosts::firewalls::both_sides_say_that_a_firewall_may_be_between_them") {
        return;
    }
    let (_network, hosts) = Network::of_hosts(2);
    for verdict in VERDICTS {
        for host in [0, 1] {
            hosts[host].treat(&opening(ADDRESSES[1 - host]), verdict);
        }
        let (_folder, store) = folder();
        for (rank, report) in run(&[&hosts[0], &hosts[1]], &store, |_| vec![(SECONDS, "5")]).iter().enumerate() {
            let error = report.get("failed");
            for part in [&*format!("rank {} at {}:", 1 - rank, ADDRESSES[1 - rank]), "firewall", "GLOO_RS_PORT_RANGE"] {
                assert!(error.contains(part), "{verdict}: no {part:?} in what rank {rank} says: {error}");
            }
        }
        hosts.iter().for_each(|host| host.swallow_no_more());
    }
}

#[test]
fn a_firewall_that_passes_a_range_of_ports_suffices() {
    if ran_as_root_elsewhere("hosts::firewalls::a_firewall_that_passes_a_range_of_ports_suffices") {
        return;
    }
    const RANGE: &str = "20000-20002";
    let (_network, hosts) = Network::of_hosts(2);
    for (host, other) in hosts.iter().zip(ADDRESSES.iter().rev()) {
        host.treat(&format!("{} tcp dport != {RANGE}", opening(other)), "drop");
    }
    // The store is at a port of the range, too: computed from the number of the step.
    let slurm = |rank| {
        let rank = ["0", "1"][rank];
        vec![("GLOO_RS_PORT_RANGE", RANGE), ("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", rank)]
            .into_iter()
            .chain([("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_NODELIST", ADDRESSES[0])])
            .collect()
    };
    let reports = run(&[&hosts[0], &hosts[1]], super::LAUNCHED, slurm);
    assert_eq!(listen(&reports), ["10.77.0.1 on eth0", "10.77.0.2 on eth0"]);
    for report in &reports {
        let port: u16 = report.get("port").parse().unwrap();
        assert!((20000..=20002).contains(&port), "{}", report.0);
    }

    // Where all ports are taken, the error says of which range.
    let _taken: Vec<_> =
        (20000..=20002).map(|port| hosts[1].within(|| TcpListener::bind((ADDRESSES[1], port)).unwrap())).collect();
    let (_folder, store) = folder();
    let reports = run(&[&hosts[0], &hosts[1]], &store, |_| vec![("GLOO_RS_PORT_RANGE", RANGE), (SECONDS, "5")]);
    for part in ["no port of GLOO_RS_PORT_RANGE=20000-20002 is free", "10.77.0.2:20002"] {
        assert!(reports[1].get("failed").contains(part), "{}", reports[1].0);
    }
}

#[test]
fn hosts_without_a_common_network_say_so() {
    if ran_as_root_elsewhere("hosts::firewalls::hosts_without_a_common_network_say_so") {
        return;
    }
    let mut networks = [Network::new(), Network::new()];
    let [first, second] = &mut networks;
    let hosts = [first.host(&[("eth0", &["10.66.0.1/24"])]), second.host(&[("eth0", &["10.88.0.1/24"])])];
    let (_folder, store) = folder();
    for (rank, report) in run(&[&hosts[0], &hosts[1]], &store, |_| vec![(SECONDS, "3")]).iter().enumerate() {
        let (own, other) = if rank == 0 { ("10.66.0.1", "10.88.0.1") } else { ("10.88.0.1", "10.66.0.1") };
        let listens = format!("rank {} listens at {other}, this rank at {own}: ", 1 - rank);
        for part in [&*listens, "networks that do not reach each other", "GLOO_RS_SOCKET_IFNAME"] {
            assert!(report.get("failed").contains(part), "no {part:?} in what rank {rank} says: {}", report.0);
        }
    }
}
