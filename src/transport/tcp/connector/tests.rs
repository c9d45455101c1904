//! How long a connector asks a peer that is not there, by the time that it is told.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::{Arrivals, State, TcpConnector};
use crate::error::{Error, ErrorKind};
use crate::net::address::{self, Address};
use crate::net::closed;
use crate::secret::JobToken;
use crate::transport::tcp::{Device, DeviceOptions};
use crate::transport::{self, Connector, ConnectorEvent};

/// How long a rank at `sockets` is asked before it is unreachable, and why it is; at most 10 s. `here`: it is on this host.
fn patience(sockets: Vec<SocketAddr>, here: bool) -> Option<(Duration, Error)> {
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    let mut connector = transport::Device::connector(device, &JobToken::none()).unwrap();
    connector.set_rank(0, 2);
    let host = if here {
        address::host()
    } else {
        // Loopback addresses are not used for another host.
        connector.set_sockets(vec![SocketAddr::from(([0; 4], 0))]);
        address::host() ^ 1
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

/// A rank that has ended may leave its port to the socket that connects to it.
#[test]
fn a_connection_to_itself_is_refused() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let own = socket.local_addr().unwrap();
    socket.connect(&own).unwrap();
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    let mut connector =
        TcpConnector::new(&JobToken::none(), Vec::new(), device.shared.clone(), Arrivals::default()).unwrap();
    connector.set_rank(0, 2);
    let identity = [9; 16];
    let (sockets, host) = (vec![own.as_socket().unwrap()], address::host());
    let address =
        Address { identity, sockets, host, cores: 1, place: Default::default(), segment: None, ibverbs: false };
    connector.set_peer(1, address).unwrap();
    let registration = connector.poller.add(&socket, crate::sys::READ, 1).unwrap();
    connector.set_state(1, State::Connecting(registration, socket.into()));
    let error = connector.continue_handshake(1, &identity).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
    assert!(error.message().contains("Connection refused"), "{error}");
}

#[test]
fn an_address_that_does_not_refuse_may_still_be_valid() {
    // 192.0.2.1 belongs to no host, and there is no route to it from loopback.
    assert!(patience(vec![closed(), SocketAddr::from(([192, 0, 2, 1], 9))], true).is_none());
}

#[test]
fn a_connection_that_a_context_has_not_seen_when_it_is_destroyed_gets_its_notice() {
    let options = DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
    let devices = [(); 2].map(|()| Device::create(&options).unwrap());
    let [mut one, mut other] =
        devices.each_ref().map(|device| transport::Device::connector(device.clone(), &JobToken::none()).unwrap());
    one.set_rank(0, 2);
    other.set_rank(1, 2);
    other.set_peer(0, one.address().clone()).unwrap();
    other.connect(0);
    let mut events = Vec::new();
    while devices[0].statistics().accepted == 0 {
        other.progress(Instant::now(), &mut events);
    }
    // It has made no progress since.
    one.close(Some(Arc::new(|_| b"it has had enough".to_vec())));
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
