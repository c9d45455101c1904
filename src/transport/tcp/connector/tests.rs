//! How long a connector asks a peer that is not there, by the time that it is told.

use std::io::IoSliceMut;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::net::address::{self, Address};
use crate::secret::JobToken;
use crate::transport::tcp::{Device, DeviceOptions};
use crate::transport::{self, ConnectorEvent};

#[test]
fn a_rank_of_this_host_that_refuses_connections_is_gone_within_a_tenth_of_a_second() {
    let device = Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap();
    let mut connector = transport::Device::connector(device, &JobToken::none()).unwrap();
    connector.set_rank(0, 2);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    connector
        .set_peer(
            1,
            Address { identity: [9; 16], sockets: vec![nobody], host: address::host(), cores: 1, segment: None },
        )
        .unwrap();
    connector.connect(1);
    let started = Instant::now();
    let mut events = Vec::new();
    let mut elapsed = Duration::ZERO;
    let why = loop {
        connector.progress(started + elapsed, &mut events);
        if let Some(ConnectorEvent::Unreachable { rank: 1, error }) = events.pop() {
            break error;
        }
        elapsed += Duration::from_millis(1);
    };
    assert!(elapsed >= Duration::from_millis(20) && elapsed <= Duration::from_millis(50), "after {elapsed:?}: {why}");
    assert!(why.message().contains(" is gone: cannot connect to rank 1 at 127.0.0.1:"), "{why}");
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
