//! How long a connector asks a peer that is not there, by the time that it is told.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::{Arrivals, Attempt, TcpConnector};
use crate::error::{Error, ErrorKind};
use crate::net::address::Address;
use crate::net::closed;
use crate::net::handshake::Part;
use crate::net::this_host;
use crate::secret::JobToken;
use crate::transport::device::{Device, DeviceOptions};
use crate::transport::{self, CloseNotice, Connections, Connector, ConnectorEvent, Link, Peers};

/// How long a rank at `sockets` is asked before it is unreachable, and why it is; at most 10 s. `here`: it is on this
/// host.
fn patience(sockets: Vec<SocketAddr>, here: bool) -> Option<(Duration, Error)> {
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    let mut connector = transport::Device::connections(device, &JobToken::none()).unwrap();
    connector.set_rank(0, 2);
    let host = if here {
        this_host::host().unwrap()
    } else {
        // Loopback addresses are not used for another host.
        connector.set_sockets(vec![SocketAddr::from(([0; 4], 0))]);
        this_host::host().unwrap() ^ 1
    };
    connector
        .set_peer(
            1,
            Address {
                identity: [9; 16],
                sockets,
                host,
                cores: 1,
                place: Default::default(),
                segment: None,
                ibverbs: false,
                network: 0,
                streams: 1,
            },
        )
        .unwrap();
    connector.connect(1);
    let started = Instant::now();
    let mut events = Vec::new();
    (0..10_000).map(Duration::from_millis).find_map(|elapsed| {
        connector.progress(started + elapsed, &mut events);
        events.pop().map(|event| match event {
            ConnectorEvent::Unreachable { rank: 1, error } => (elapsed, error),
            _ => panic!("nobody listens there"),
        })
    })
}

#[test]
fn a_rank_of_this_host_that_refuses_at_all_its_addresses_is_gone_within_a_tenth_of_a_second() {
    for sockets in [vec![closed()], vec![closed(), closed()]] {
        let (elapsed, why) = patience(sockets, true).unwrap();
        assert!((20..=50).contains(&elapsed.as_millis()), "after {elapsed:?}: {why}");
        assert!(why.message().contains(" is gone: cannot connect to rank 1 at 127.0.0.1:"), "{why}");
    }
}

#[test]
fn a_rank_of_another_host_may_refuse_for_two_seconds() {
    // A connection to the unspecified address goes to this host.
    let elsewhere = || SocketAddr::from(([0; 4], closed().port()));
    for sockets in [vec![elsewhere()], vec![elsewhere(), elsewhere()]] {
        let (elapsed, why) = patience(sockets, false).unwrap();
        assert!((2000..=4000).contains(&elapsed.as_millis()), "after {elapsed:?}: {why}");
        assert!(why.message().contains(" is gone: cannot connect to rank 1 at 0.0.0.0:"), "{why}");
    }
}

/// A connector of rank 0 of two at `sockets`, and what it is told of them.
fn lone(device: &Device, sockets: Vec<SocketAddr>) -> (TcpConnector, Peers) {
    let own = device.shared.address([1; 16], sockets).unwrap();
    let connector =
        TcpConnector::new(&JobToken::none(), own.identity, device.shared.clone(), Arrivals::default()).unwrap();
    let mut peers = Peers::new(own);
    peers.size = 2;
    (connector, peers)
}

#[test]
fn errors_name_the_ranks_of_the_context_of_the_call() {
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    let (mut connector, mut peers) = lone(&device, vec![closed()]);
    peers.names = vec![4, 5];
    peers.set(1, Address { host: this_host::host().unwrap() ^ 1, ..peers.own.clone() });
    connector.connect(1);
    let mut events = Vec::new();
    connector.progress(&peers, Instant::now(), &mut events);
    let Some(ConnectorEvent::Unreachable { rank: 1, error }) = events.pop() else { panic!("it is reachable") };
    assert!(error.message().starts_with("there is no route to rank 5: "), "{error}");
    let why = connector.no_common_network(&peers, 1);
    assert!(why.starts_with("; rank 5 listens at 127.0.0.1, this rank at "), "{why}");
}

#[test]
fn an_address_that_has_vanished_is_not_taken_for_a_lack_of_ports() {
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    // 192.0.2.1 belongs to no host.
    let own = vec![SocketAddr::from(([192, 0, 2, 1], 9))];
    let (mut connector, mut peers) = lone(&device, own);
    peers.set(1, Address { sockets: vec![closed()], ..peers.own.clone() });
    connector.connect(1);
    connector.progress(&peers, Instant::now(), &mut Vec::new());
    let why = connector.why_not_connected(&peers, 1);
    assert!(why.contains(": this host has no address 192.0.2.1 any more: name another interface, by "), "{why}");
}

/// A rank that has ended may leave its port to the socket that connects to it.
#[test]
fn a_connection_to_itself_is_refused() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let own = socket.local_addr().unwrap();
    socket.connect(&own).unwrap();
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    let (connector, mut peers) = lone(&device, Vec::new());
    peers.set(1, Address { sockets: vec![own.as_socket().unwrap()], identity: [9; 16], ..peers.own.clone() });
    let registration = connector.poller.add(&socket, crate::sys::READ, 1).unwrap();
    let attempt = Attempt::Opening(registration, socket.into());
    let Err(error) = connector.shake_hands(&peers, 1, attempt, Part::first(1)) else { panic!("it is not refused") };
    assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
    assert!(error.message().contains("Connection refused"), "{error}");
}

#[test]
fn an_address_that_does_not_refuse_may_still_be_valid() {
    // 192.0.2.1 belongs to no host, and there is no route to it from loopback.
    assert!(patience(vec![closed(), SocketAddr::from(([192, 0, 2, 1], 9))], true).is_none());
}

/// Two connectors whose devices want so many connections; 0 knows 1, and 1 knows 0.
fn two(streams: [u32; 2]) -> ([Arc<Device>; 2], [Connections; 2]) {
    let devices = streams.map(|streams| {
        let hostname = Some("127.0.0.1".into());
        Device::create(&DeviceOptions { hostname, streams: Some(streams), ..Default::default() }).unwrap()
    });
    let mut connectors =
        devices.each_ref().map(|device| transport::Device::connections(device.clone(), &JobToken::none()).unwrap());
    let addresses = connectors.each_ref().map(|connector| connector.address().clone());
    for (rank, connector) in connectors.iter_mut().enumerate() {
        connector.set_rank(rank, 2);
        connector.set_peer(1 - rank, addresses[1 - rank].clone()).unwrap();
    }
    (devices, connectors)
}

/// Lets a connector go on until `done`, at most 5 s.
fn until(connector: &mut Connections, mut done: impl FnMut(&Connections, Vec<ConnectorEvent>) -> bool) {
    for _ in 0..5000 {
        let mut events = Vec::new();
        connector.progress(Instant::now(), &mut events);
        if done(connector, events) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not come so far");
}

fn established(events: Vec<ConnectorEvent>) -> Option<Box<dyn Link>> {
    events.into_iter().find_map(|event| match event {
        ConnectorEvent::Established { link, .. } => Some(link),
        ConnectorEvent::Unreachable { error, .. } => panic!("{error}"),
        ConnectorEvent::Ready { .. } | ConnectorEvent::Failed { .. } => None,
    })
}

#[test]
fn a_link_has_as_many_connections_as_both_sides_want() {
    for (streams, expected) in [([1, 1], 1), ([1, 3], 1), ([3, 2], 2), ([16, 16], 16)] {
        // By one side, and by both at once.
        for by in [&[0][..], &[1], &[0, 1]] {
            let (devices, mut connectors) = two(streams);
            by.iter().for_each(|rank| connectors[*rank].connect(1 - *rank));
            let mut links = [None, None];
            for _ in 0..5000 {
                for (connector, link) in connectors.iter_mut().zip(&mut links) {
                    let mut events = Vec::new();
                    connector.progress(Instant::now(), &mut events);
                    *link = link.take().or(established(events));
                }
                if links.iter().all(Option::is_some) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let [Some(one), Some(other)] = &mut links else { panic!("no link: {streams:?}, {by:?}") };
            one.send(&[IoSlice::new(b"hello")]).unwrap();
            let mut bytes = [0; 5];
            while other.receive(&mut [IoSliceMut::new(&mut bytes)]).is_err() {}
            assert_eq!(&bytes, b"hello");
            if let [lone] = by {
                assert_eq!(devices[1 - lone].statistics().accepted, expected, "{streams:?}");
            }
        }
    }
}

/// The state in which 1 has accepted the first of three connections, and 0 has made the others.
fn joining() -> ([Arc<Device>; 2], [Connections; 2]) {
    let (devices, mut connectors) = two([3, 3]);
    connectors[0].connect(1);
    let [one, other] = &mut connectors;
    let incomplete = |connector: &Connections, peer| {
        connector.why_not_connected(peer).starts_with("not connected: there are 1 of 3 connections; ")
    };
    until(other, |other, _| {
        one.progress(Instant::now(), &mut Vec::new());
        incomplete(other, 0)
    });
    let accepted = || devices[1].statistics().accepted == 3;
    until(one, |one, _| incomplete(one, 1) && accepted());
    (devices, connectors)
}

#[test]
fn a_context_that_fails_before_a_link_is_complete_says_why() {
    let notice = || Arc::new(|_| b"it has had enough".to_vec()) as CloseNotice;
    for failing in [0, 1] {
        let (_devices, mut connectors) = joining();
        let [one, other] = &mut connectors;
        let (failing, other) = if failing == 0 { (one, other) } else { (other, one) };
        failing.close(&notice(), true);
        let mut link = None;
        until(other, |_, events| {
            failing.progress(Instant::now(), &mut Vec::new());
            link = established(events);
            link.is_some()
        });
        let (mut bytes, mut link) = ([0; 17], link.unwrap());
        while link.receive(&mut [IoSliceMut::new(&mut bytes)]).is_err() {}
        assert_eq!(&bytes, b"it has had enough");
    }
}

#[test]
fn a_link_that_its_maker_gives_up_is_forgotten() {
    let (_devices, [mut one, mut other]) = joining();
    one.give_up(1);
    until(&mut other, |other, events| {
        assert!(events.is_empty());
        other.why_not_connected(0) == "not connected"
    });
    assert!(!other.is_busy());
}

#[test]
fn a_connection_that_a_context_has_not_seen_when_it_is_destroyed_gets_its_notice() {
    let options = DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
    let devices = [(); 2].map(|()| Device::create(&options).unwrap());
    let [mut one, mut other] =
        devices.each_ref().map(|device| transport::Device::connections(device.clone(), &JobToken::none()).unwrap());
    one.set_rank(0, 2);
    other.set_rank(1, 2);
    other.set_peer(0, one.address().clone()).unwrap();
    other.connect(0);
    let mut events = Vec::new();
    while devices[0].statistics().accepted == 0 {
        other.progress(Instant::now(), &mut events);
    }
    // The listening side has made no progress since, so the handshake is not over.
    let notice: CloseNotice = Arc::new(|_| b"it has had enough".to_vec());
    one.close(&notice, true);
    drop(one);
    for _ in 0..5000 {
        other.progress(Instant::now(), &mut events);
        if let Some(ConnectorEvent::Established { mut link, .. }) = events.pop() {
            let mut bytes = [0; 17];
            while link.receive(&mut [IoSliceMut::new(&mut bytes)]).is_err() {}
            assert_eq!(&bytes, b"it has had enough");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("there is no answer");
}
