//! Bytes over several connections, by socket pairs.

use std::io::{ErrorKind, IoSlice, IoSliceMut};

use proptest::prelude::*;
use socket2::{Domain, Socket, Type};

use super::super::STRIPE_BYTES;
use super::Streams;
use crate::net::stream::Stream;
use crate::sys::OwnedSocket;

/// Returns both ends of a link with `connections` connections, whose sockets hold little.
fn ends(connections: usize) -> [Streams; 2] {
    let mut ends = [Vec::new(), Vec::new()];
    for _ in 0..connections {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        for (end, socket) in ends.iter_mut().zip([one, other]) {
            socket.set_nonblocking(true).unwrap();
            socket.set_send_buffer_size(STRIPE_BYTES / 3).unwrap();
            end.push(Stream::from(OwnedSocket::from(socket)).into());
        }
    }
    ends.map(|streams| Streams::new(streams.into()))
}

/// Cuts `bytes` at most at these distances, repeated.
fn pieces<'a>(bytes: &'a [u8], sizes: &[usize], limit: usize) -> Vec<IoSlice<'a>> {
    let mut rest = bytes;
    let cut = sizes.iter().cycle().take(limit).map(|size| {
        let (piece, after) = rest.split_at(rest.len().min(*size));
        rest = after;
        IoSlice::new(piece)
    });
    cut.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// In whatever parts they are sent and received, all bytes arrive in order, and each connection has carried its
    /// stripes alone.
    #[test]
    fn all_bytes_arrive_in_order(
        connections in 1usize..6,
        bytes in 0usize..6 * STRIPE_BYTES,
        sent_parts in proptest::collection::vec(0usize..2 * STRIPE_BYTES, 1..20),
        received_parts in proptest::collection::vec(1usize..2 * STRIPE_BYTES, 1..20),
    ) {
        let data: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8 ^ (at / STRIPE_BYTES) as u8).collect();
        let [mut sender, mut receiver] = ends(connections);
        let (mut sent, mut arrived) = (0, Vec::<u8>::new());
        let (mut turn, limit) = (0, 16 * bytes + 10_000);
        while arrived.len() < bytes {
            turn += 1;
            prop_assert!(turn < limit, "{sent} sent and {} arrived of {bytes}", arrived.len());
            match sender.send(&pieces(&data[sent..], &sent_parts[turn % sent_parts.len()..], 20)) {
                Ok(n) => sent += n,
                Err(e) => prop_assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
            let size = received_parts[turn % received_parts.len()];
            let (mut one, mut other) = (vec![0; size], vec![0; size / 2]);
            match receiver.receive(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)]) {
                Ok(n) => arrived.extend(one.iter().chain(&other).take(n)),
                Err(e) => prop_assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
        prop_assert!(arrived == data && sent == bytes);
    }
}

#[test]
fn connections_take_turns() {
    let [mut sender, receiver] = ends(3);
    let mut receivers = receiver.all;
    let mut sent = 0;
    // Two rounds and a bit.
    let data: Vec<u8> = (0..6 * STRIPE_BYTES + 5).map(|at| (at / STRIPE_BYTES) as u8).collect();
    let mut arrived = [const { Vec::new() }; 3];
    let mut patience = 10_000;
    while arrived.iter().map(Vec::len).sum::<usize>() < data.len() {
        patience -= 1;
        assert!(patience > 0);
        sent += sender.send(&[IoSlice::new(&data[sent..])]).unwrap_or(0);
        for (stream, arrived) in receivers.iter_mut().zip(&mut arrived) {
            let mut bytes = vec![0; STRIPE_BYTES];
            let n = stream.receive(&mut [IoSliceMut::new(&mut bytes)]).unwrap_or(0);
            arrived.extend_from_slice(&bytes[..n]);
        }
    }
    let stripe = |number: u8| vec![number; STRIPE_BYTES];
    assert!(arrived[0] == [stripe(0), stripe(3), vec![6; 5]].concat());
    assert!(arrived[1] == [stripe(1), stripe(4)].concat());
    assert!(arrived[2] == [stripe(2), stripe(5)].concat());
}

#[test]
fn the_end_of_the_connection_whose_turn_it_is_is_the_end_of_the_link() {
    let [mut sender, mut receiver] = ends(2);
    assert_eq!(sender.send(&[IoSlice::new(b"last words")]).unwrap(), 10);
    // The other one is not read.
    drop(sender);
    let mut bytes = [0; 100];
    assert_eq!(receiver.receive(&mut [IoSliceMut::new(&mut bytes)]).unwrap(), 10);
    assert_eq!(receiver.receive(&mut [IoSliceMut::new(&mut bytes)]).unwrap(), 0);
}
