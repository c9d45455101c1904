use super::*;
use crate::error::ErrorKind;

fn interface(name: &str, address: &str, scope: u32) -> Interface {
    let address = match address.parse().unwrap() {
        IpAddr::V4(v4) => SocketAddrV4::new(v4, 0).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, scope).into(),
    };
    Interface { name: name.to_owned(), address, up: true, loopback: name == "lo", speed_mbps: None }
}

/// A host with a loopback, a card with all kinds of addresses (IPv6 first), a second card, and one that is down.
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

fn choose(
    interface: Option<&str>,
    hostname: Option<&str>,
    own_name: Option<&str>,
) -> Result<(SocketAddr, Option<String>)> {
    let options = DeviceOptions {
        interface: interface.map(str::to_owned),
        hostname: hostname.map(str::to_owned),
        port: 77,
        log: None,
    };
    select(&options, &host(), own_name.map(str::to_owned), &names)
}

fn chosen(interface: Option<&str>, hostname: Option<&str>, own_name: Option<&str>) -> (String, String) {
    let (address, interface) = choose(interface, hostname, own_name).unwrap();
    (address.to_string(), interface.unwrap())
}

fn refused(interface: Option<&str>, hostname: Option<&str>) -> String {
    let error = choose(interface, hostname, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    error.message().to_owned()
}

fn pair(address: &str, interface: &str) -> (String, String) {
    (address.to_owned(), interface.to_owned())
}

#[test]
fn an_interface_gives_its_first_ipv4_address_else_its_routable_ipv6_address() {
    assert_eq!(chosen(Some("eth0"), None, None), pair("10.0.0.2:77", "eth0"));
    assert_eq!(chosen(Some("ib0"), None, None), pair("[fd00::9]:77", "ib0"));
    assert_eq!(chosen(Some("lo"), None, None), pair("127.0.0.1:77", "lo"));
}

#[test]
fn a_host_name_must_be_this_hosts() {
    assert_eq!(chosen(None, Some("node"), None), pair("10.0.0.2:77", "eth0"));
    assert_eq!(chosen(None, Some("mixed"), None), pair("10.0.0.3:77", "eth0"));
    assert_eq!(chosen(None, Some("debian"), None), pair("127.0.1.1:77", "lo"));
    let message = refused(None, Some("elsewhere"));
    assert!(message.contains("10.9.9.9, fd00::99") && message.contains("this host"), "{message}");
    assert!(message.contains("eth0 (fe80::2, fd00::2, 10.0.0.2, 10.0.0.3)"), "{message}");
}

#[test]
fn an_address_of_an_interface_that_is_down_is_refused() {
    assert!(refused(Some("eth1"), None).contains("\"eth1\" is down"));
    assert!(refused(None, Some("hers")).contains("eth1 (10.1.0.2; down)"));
}

#[test]
fn addresses_are_matched_with_their_scope() {
    assert_eq!(chosen(None, Some("fd00::9"), None), pair("[fd00::9]:77", "ib0"));
    assert_eq!(chosen(None, Some("fe80::9"), None), pair("[fe80::9%3]:77", "ib0"));
    let address = SocketAddrV6::new("fe80::9".parse().unwrap(), 0, 0, 2).into();
    assert_eq!(own(address, &host().iter().collect::<Vec<_>>()), None);
    assert_eq!(chosen(None, Some("::ffff:10.0.0.3"), None), pair("10.0.0.3:77", "eth0"));
}

#[test]
fn the_wildcard_is_not_an_address_that_peers_could_reach() {
    assert!(refused(None, Some("0.0.0.0")).contains("does not have"));
}

#[test]
fn interface_and_host_name_together_must_agree() {
    assert_eq!(chosen(Some("eth0"), Some("mixed"), None), pair("10.0.0.3:77", "eth0"));
    assert!(refused(Some("ib0"), Some("mixed")).contains("interface ib0 does not have"));
}

#[test]
fn without_options_the_own_name_decides_unless_it_only_means_loopback() {
    assert_eq!(chosen(None, None, Some("node")), pair("10.0.0.2:77", "eth0"));
    assert_eq!(chosen(None, None, Some("debian")), pair("127.0.0.1:77", "lo"));
    assert_eq!(chosen(None, None, Some("elsewhere")), pair("127.0.0.1:77", "lo"));
    assert_eq!(chosen(None, None, None), pair("127.0.0.1:77", "lo"));
}

#[test]
fn an_unknown_interface_is_named_with_those_there_are() {
    let message = refused(Some("no-such-card"), None);
    assert!(message.contains("\"no-such-card\" does not exist; there are lo (127.0.0.1, ::1), eth0 ("), "{message}");
}

#[test]
fn this_host_has_a_loopback_interface_that_can_be_chosen_by_name_and_by_address() {
    let loopback = interfaces().unwrap().into_iter().find(|i| i.loopback && i.address.is_ipv4()).expect("a loopback");
    assert!(loopback.up && loopback.address.port() == 0);
    let by_name = DeviceOptions { interface: Some(loopback.name.clone()), port: 5, ..Default::default() };
    let by_address = DeviceOptions { hostname: Some("127.0.0.1".to_owned()), port: 5, ..Default::default() };
    let expected = ("127.0.0.1:5".parse().unwrap(), Some(loopback.name));
    assert_eq!(resolve(&by_name).unwrap(), expected);
    assert_eq!(resolve(&by_address).unwrap(), expected);
}

#[test]
fn the_default_address_can_be_bound() {
    let (address, _) = resolve(&DeviceOptions::default()).unwrap();
    std::net::TcpListener::bind(address).unwrap();
}
