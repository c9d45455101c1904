//! An authenticated peer that violates the protocol.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::net::address::Address;
use crate::net::handshake::{self, Answer, Connecting, Connector, Hello, Part};
use crate::types::{Slot, Space};
use crate::wire::header::HEADER_BYTES;
use crate::wire::message::Cause;
use crate::wire::{Envelope, Message};

/// Rank 1 of two, the peer's end of a connection that it assumes to be rank 0's, and its connection number.
pub(super) fn victim() -> (Arc<Context>, TcpStream, u32) {
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let context = Context::new(device(), 1, 2, &options).unwrap();
    let (own, at) = {
        let messenger = &context.lock().unwrap().messenger;
        (messenger.address(), messenger.connections().address().sockets[0])
    };
    let identity = Address::deserialize(&own).unwrap().identity;
    let key = handshake::key(&JobToken::from_environment(), &identity);
    let to = handshake::handle(&identity);
    let hello = Hello { has_token: key.has_token(), rank: 0, to, from: [5; 16], nonce: [6; 32], part: Part::first(1) };
    let mut connector = Connector::new(key, &hello);
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(connector.hello()).unwrap();
    loop {
        let mut bytes = vec![0; connector.wanted()];
        stream.read_exact(&mut bytes).unwrap();
        match connector.take(&bytes).unwrap() {
            Connecting::Waiting => {}
            Connecting::Send(proof) => stream.write_all(&proof).unwrap(),
            Connecting::Done(answer, connection) => {
                assert_eq!(answer, Answer::Accepted);
                return (context, stream, connection);
            }
        }
    }
}

fn envelope(slot: Slot, bytes: u64) -> Envelope {
    Envelope { space: Space::USER, slot, fingerprint: 0, bytes, more: false }
}

#[test]
fn a_malformed_header_ends_the_connection_with_a_reason() {
    let data = |bytes| Message::Data { envelope: envelope(1, bytes), announced: false, placed: 0 };
    let plain = data(4);
    let edited = |at: usize, value: u8| {
        move |connection: u32| {
            let mut wire = plain.encode(connection);
            wire[at] = value;
            wire
        }
    };
    let header = |message: Message| move |connection: u32| message.encode(connection);
    type Header<'a> = Box<dyn Fn(u32) -> [u8; HEADER_BYTES] + 'a>;
    let cases: [(Header, &str); 12] = [
        (Box::new(edited(0, 99)), "malformed header: kind 99"),
        (Box::new(edited(0, 0)), "malformed header: kind 0"),
        (Box::new(edited(1, 77)), "malformed header: version 77"),
        (Box::new(edited(2, 99)), "malformed header: space 99"),
        (Box::new(edited(3, 0x80)), "malformed header: flag 128"),
        (Box::new(edited(15, 1)), "a call number where there is no collective: 65536"),
        (Box::new(|connection| plain.encode(!connection)), "malformed header: connection"),
        (Box::new(edited(31, 0xff)), "malformed header: 18374686479671623684 bytes"),
        (Box::new(header(Message::Abort { cause: Cause::Failure, culprit: 0, bytes: 1 << 20 })), "1048576 bytes"),
        (Box::new(header(Message::PutDone { request: 7, refused: false })), "answered a request that was not made"),
        (
            Box::new(header(Message::GetDone { request: 7, refused: false, bytes: 0 })),
            "answered a request that was not made",
        ),
        // An unexpected message that is too long.
        (Box::new(header(data(1 << 60))), "sent a message of 1152921504606846976 bytes"),
    ];
    for (header, part) in cases {
        let (context, mut stream, connection) = victim();
        let mut memory = [0u8; 4];
        // SAFETY: the array outlives the buffer.
        let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), 4).unwrap() };
        buffer.recv(&[0], 1, 0, 4).unwrap();
        stream.write_all(&header(connection)).unwrap();
        let error = buffer.wait_recv(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.message().contains(part) && error.message().contains("rank 0"), "{part:?} is not in {error}");
    }
}
