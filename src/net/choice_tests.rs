use std::net::{SocketAddrV4, SocketAddrV6};

use super::*;
use crate::error::ErrorKind;

fn interface(name: &str, address: &str, scope: u32) -> Interface {
    let address = match address.parse().unwrap() {
        IpAddr::V4(v4) => SocketAddrV4::new(v4, 0).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, scope).into(),
    };
    Interface { name: name.to_owned(), address, up: true, loopback: name == "lo", speed_mbps: None }
}

/// A host with loopback, an interface with all kinds of addresses (IPv6 first), two more interfaces, and one that is
/// down.
fn host() -> Vec<Interface> {
    vec![
        interface("lo", "127.0.0.1", 0),
        interface("lo", "::1", 0),
        interface("eth0", "fe80::2", 2),
        interface("eth0", "fd00::2", 0),
        interface("eth0", "10.0.0.2", 0),
        interface("eth0", "10.0.0.3", 0),
        interface("ib0", "fe80::9", 3),
        interface("ib0", "fd00::9", 0),
        interface("docker0", "172.17.0.1", 0),
        interface("wlan0", "fe80::7", 5),
        Interface { up: false, ..interface("eth1", "10.1.0.2", 0) },
    ]
}

fn names(host: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: &[&str] = match host {
        "node" => &["::1", "fd00::2", "10.0.0.2"],
        "debian" => &["127.0.1.1"],
        "elsewhere" => &["10.9.9.9", "fd00::99"],
        "mixed" => &["10.9.9.9", "10.0.0.3"],
        "hers" => &["10.1.0.2"],
        literal => return lookup(literal),
    };
    Ok(addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0)).collect())
}

fn text(chosen: &[Chosen]) -> String {
    let one = |c: &Chosen| {
        assert_eq!(c.address.port(), 0);
        let scope = if let SocketAddr::V6(v6) = c.address { v6.scope_id() } else { 0 };
        let scope = if scope > 0 { format!("%{scope}") } else { String::new() };
        format!("{}{scope} on {}", c.address.ip(), c.interface.as_deref().unwrap())
    };
    chosen.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn chosen(interfaces: Option<&str>, hostname: Option<&str>) -> String {
    match named(interfaces, hostname, &host(), &names).unwrap() {
        Choice::Named(chosen) => text(&chosen),
        Choice::Free(patterns) => format!("free: {patterns:?}"),
    }
}

fn refused(interfaces: Option<&str>, hostname: Option<&str>) -> String {
    let error = named(interfaces, hostname, &host(), &names).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    error.message().to_owned()
}

#[test]
fn named_interfaces_give_an_address_of_each_family() {
    for (list, expected) in [
        ("eth0", "10.0.0.2 on eth0, fd00::2 on eth0"),
        ("ib0", "fd00::9 on ib0"),
        ("lo", "127.0.0.1 on lo, ::1 on lo"),
        ("wlan0", "fe80::7%5 on wlan0"),
        ("ib0,eth0", "fd00::9 on ib0, 10.0.0.2 on eth0"),
        ("docker0,eth0", "172.17.0.1 on docker0, fd00::2 on eth0"),
        ("eth9,ib*", "fd00::9 on ib0"),
        ("eth1,docker*", "172.17.0.1 on docker0"),
        ("*", "10.0.0.2 on eth0, fd00::2 on eth0"),
        ("lo,eth0", "127.0.0.1 on lo, ::1 on lo"),
        ("10.0.0.0/8", "10.0.0.2 on eth0"),
        ("10.0.0.3", "10.0.0.3 on eth0"),
        ("fd00::/8,10.0.0.0/8", "fd00::2 on eth0, 10.0.0.2 on eth0"),
        ("fe80::/10", "fe80::2%2 on eth0"),
    ] {
        assert_eq!(chosen(Some(list), None), expected, "{list}");
    }
}

#[test]
fn without_names_or_with_exclusions_the_choice_is_made_later() {
    assert_eq!(chosen(None, None), "free: None");
    assert_eq!(chosen(Some("^docker*"), None), "free: Some(\"^docker*\")");
}

#[test]
fn a_host_name_must_be_this_hosts() {
    assert_eq!(chosen(None, Some("node")), "10.0.0.2 on eth0, fd00::2 on eth0");
    assert_eq!(chosen(None, Some("mixed")), "10.0.0.3 on eth0");
    assert_eq!(chosen(None, Some("debian")), "127.0.1.1 on lo");
    let message = refused(None, Some("elsewhere"));
    assert!(message.contains("10.9.9.9, fd00::99") && message.contains("this host does not have"), "{message}");
    assert!(message.contains("eth0 (fe80::2, fd00::2, 10.0.0.2, 10.0.0.3)"), "{message}");
    assert!(refused(None, Some("hers")).contains("eth1 (10.1.0.2; down)"));
    assert!(refused(None, Some("0.0.0.0")).contains("does not have"));
}

#[test]
fn addresses_are_matched_with_their_scope() {
    assert_eq!(chosen(None, Some("fd00::9")), "fd00::9 on ib0");
    assert_eq!(chosen(None, Some("fe80::9")), "fe80::9%3 on ib0");
    let address = SocketAddrV6::new("fe80::9".parse().unwrap(), 0, 0, 2).into();
    assert!(own(address, &allowed(&host(), None)).is_none());
    assert_eq!(chosen(None, Some("::ffff:10.0.0.3")), "10.0.0.3 on eth0");
}

#[test]
fn interfaces_and_host_name_together_must_agree() {
    assert_eq!(chosen(Some("ib0,eth*"), Some("mixed")), "10.0.0.3 on eth0");
    assert_eq!(chosen(Some("^ib0"), Some("mixed")), "10.0.0.3 on eth0");
    assert!(refused(Some("ib0"), Some("mixed")).contains("which no interface of \"ib0\" has"));
}

#[test]
fn errors_name_the_pattern_and_the_interfaces() {
    let message = refused(Some("no-such-card"), None);
    assert!(message.contains("\"no-such-card\" does not exist; there are lo (127.0.0.1, ::1), eth0 ("), "{message}");
    let message = refused(Some("eth1, ib9*,192.168.0.0/16"), None);
    assert!(
        message.contains("interface \"eth1\" is down, and no interface with an IP address is called \"ib9*\""),
        "{message}"
    );
    assert!(message.contains(", and no interface has an address in 192.168.0.0/16; there are lo"), "{message}");
    assert!(refused(Some("^*"), None).contains("\"^*\" excludes all that are up; there are lo"));
}

/// `host` with `routes`, as pairs of destination and source address.
fn surroundings<'a>(patterns: Option<&'a Patterns>, route: &'a Route<'a>) -> Surroundings<'a> {
    Surroundings { interfaces: host(), unlisted: None, patterns, route }
}

fn at(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), 29500)
}

fn several(list: Option<&str>, routes: &[(&str, &str)], store: Option<&str>, others: &[&str]) -> Vec<Chosen> {
    let patterns = list.map(|list| Patterns::parse(list).unwrap());
    let route = |goal: SocketAddr| {
        let found = routes.iter().find(|(to, _)| goal.ip().to_string() == *to);
        Ok(found.map(|(_, from)| from.parse().unwrap()))
    };
    let found = surroundings(patterns.as_ref(), &route)
        .on_several_hosts(store.map(at), &mut others.iter().map(|ip| at(ip)))
        .unwrap();
    assert!(!found.is_empty() && found.len() <= 2, "{found:?}");
    found
}

#[test]
fn on_several_hosts_the_route_to_the_store_is_used() {
    let found =
        several(None, &[("10.0.0.9", "10.0.0.3"), ("192.0.2.1", "172.17.0.1")], Some("10.0.0.9"), &["10.7.7.7"]);
    assert_eq!(text(&found), "10.0.0.3 on eth0, fd00::2 on eth0");
    assert_eq!(found[0].why, "it reaches the store at 10.0.0.9");
    assert_eq!(found[1].why, "it is another address of eth0");
    let found = several(None, &[("fd00::77", "fd00::9")], Some("fd00::77"), &[]);
    assert_eq!(text(&found), "fd00::9 on ib0");
    // The store is on this host, at an address that other hosts know.
    assert_eq!(
        text(&several(None, &[("10.0.0.2", "10.0.0.2")], Some("10.0.0.2"), &[])),
        "10.0.0.2 on eth0, fd00::2 on eth0"
    );
}

#[test]
fn otherwise_the_routes_to_other_ranks_are_used() {
    let routes =
        [("127.0.1.1", "127.0.0.1"), ("172.17.0.5", "172.17.0.1"), ("fd00::55", "fd00::9"), ("10.0.0.9", "10.0.0.2")];
    let found = several(None, &routes, Some("127.0.1.1"), &["10.9.9.9", "172.17.0.5", "10.0.0.9", "fd00::55"]);
    assert_eq!(text(&found), "172.17.0.1 on docker0, fd00::9 on ib0");
    assert_eq!(found[0].why, "it reaches another rank's host at 172.17.0.5");
    let found = several(None, &routes, None, &["10.0.0.9"]);
    assert_eq!(text(&found), "10.0.0.2 on eth0, fd00::2 on eth0");
    // The store shows one family; another rank shows the other, which that interface lacks.
    let routes = [("172.17.0.9", "172.17.0.1"), ("fd00::55", "fd00::9")];
    let found = several(None, &routes, Some("172.17.0.9"), &["172.17.0.8", "fd00::55"]);
    assert_eq!(text(&found), "172.17.0.1 on docker0, fd00::9 on ib0");
}

#[test]
fn otherwise_the_default_route_or_the_first_address_that_is_not_loopback_is_used() {
    let found = several(None, &[("192.0.2.1", "172.17.0.1"), ("2001:db8::1", "fd00::2")], None, &[]);
    assert_eq!(text(&found), "172.17.0.1 on docker0, fd00::2 on eth0");
    assert_eq!(found[0].why, "the default route leaves from it");
    assert_eq!(text(&several(None, &[("192.0.2.1", "10.0.0.3")], None, &[])), "10.0.0.3 on eth0, fd00::2 on eth0");
    let found = several(None, &[], Some("127.0.0.1"), &["10.0.0.9"]);
    assert_eq!(text(&found), "10.0.0.2 on eth0, fd00::2 on eth0");
    assert_eq!(found[0].why, "this host has no better one");
    assert_eq!(text(&several(Some("^eth*,ib0,docker0"), &[], None, &[])), "127.0.0.1 on lo, ::1 on lo");
}

#[test]
fn excluded_interfaces_are_not_used_even_for_the_route_to_the_store() {
    let routes = [("10.0.0.9", "10.0.0.3"), ("172.17.0.9", "172.17.0.1"), ("192.0.2.1", "10.0.0.3")];
    let found = several(Some("^eth0"), &routes, Some("10.0.0.9"), &["172.17.0.9"]);
    assert_eq!(text(&found), "172.17.0.1 on docker0");
    assert_eq!(text(&several(Some("^eth0"), &routes, Some("10.0.0.9"), &[])), "172.17.0.1 on docker0, fd00::9 on ib0");
}

#[test]
fn on_one_host_loopback_is_used_unless_it_is_excluded() {
    let nowhere = |_| Ok(None);
    let rank = |sockets: &[&str]| Address {
        identity: [0; 16],
        sockets: sockets.iter().map(|s| at(s)).collect(),
        host: 1,
        cores: 1,
        place: Default::default(),
        segment: None,
        ibverbs: false,
        network: 0,
        streams: 1,
    };
    let everyone = [rank(&[]), rank(&["10.0.0.2", "fd00::2"]), rank(&["fd00::9"])];
    assert_eq!(text(&surroundings(None, &nowhere).on_one_host(&everyone[..2]).unwrap()), "127.0.0.1 on lo");
    assert_eq!(text(&surroundings(None, &nowhere).on_one_host(&everyone).unwrap()), "127.0.0.1 on lo, ::1 on lo");
    let patterns = Patterns::parse("^lo").unwrap();
    let found = surroundings(Some(&patterns), &nowhere).on_one_host(&[]).unwrap();
    assert_eq!(text(&found), "10.0.0.2 on eth0, fd00::2 on eth0");
    let patterns = Patterns::parse("^*").unwrap();
    let error = surroundings(Some(&patterns), &nowhere).on_one_host(&[]).unwrap_err();
    assert!(error.message().contains("no address to listen on; there are lo"), "{error}");
}

#[test]
fn this_host_reaches_itself() {
    let loopback = interface::interfaces().unwrap().into_iter().find(|i| i.loopback && i.address.is_ipv4()).unwrap();
    assert!(loopback.up && loopback.address.port() == 0);
    assert_eq!(source("127.0.0.1:9".parse().unwrap()).unwrap(), Some(Ipv4Addr::LOCALHOST.into()));
    assert_eq!(source("127.0.0.1:0".parse().unwrap()).unwrap(), Some(Ipv4Addr::LOCALHOST.into()));
    let here = Surroundings::here(None).unwrap();
    assert!(here.towards_store("127.0.0.1:9".parse().unwrap()).unwrap().is_empty());
    for chosen in here.on_one_host(&[]).unwrap() {
        std::net::TcpListener::bind(chosen.address).unwrap();
    }
    let Choice::Named(by_name) = Choice::make(Some(&loopback.name), None).unwrap() else { panic!("free") };
    let Choice::Named(by_address) = Choice::make(None, Some("127.0.0.1")).unwrap() else { panic!("free") };
    assert_eq!((by_name[0].address, &by_name[0].interface), (by_address[0].address, &by_address[0].interface));
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_without_descriptors_does_not_take_every_address_for_its_own() {
    assert!(crate::sys::without_descriptors(|| {
        let made = Choice::make(None, Some("192.0.2.1"));
        made.is_err_and(|error| error.kind() == ErrorKind::ResourceExhausted)
            && is_own("192.0.2.1:0".parse().unwrap()).is_err()
    }));
}
