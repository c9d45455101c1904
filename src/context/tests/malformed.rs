//! A peer that has proven itself, and then sends what no peer would.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::wire::message::{FLAG_ANNOUNCED, Header, Kind};
use crate::net::address::Address;
use crate::net::handshake::{self, Answer, Connecting, Connector, Hello};

/// Rank 1 of two, and a connection that it takes for rank 0's, with the number that its frames carry.
pub(super) fn victim() -> (Arc<Context>, TcpStream, u32) {
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let context = Context::new(device(), 1, 2, &options).unwrap();
    let own = context.lock().unwrap().messenger.address();
    let identity = Address::deserialize(&own).unwrap().identity;
    let key = handshake::key(&JobToken::from_environment(), &identity);
    let to = handshake::handle(&identity);
    let hello = Hello { has_token: key.has_token(), rank: 0, to, from: [5; 16], nonce: [6; 32] };
    let mut connector = Connector::new(key, &hello);
    let mut stream = TcpStream::connect(context.device().addresses()[0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(connector.hello()).unwrap();
    loop {
        let mut bytes = vec![0; connector.wanted()];
        stream.read_exact(&mut bytes).unwrap();
        match connector.take(&bytes).unwrap() {
            Connecting::Waiting => {}
            Connecting::Send(proof) => stream.write_all(&proof).unwrap(),
            Connecting::Done(answer, frames) => {
                assert_eq!(answer, Answer::Accepted);
                return (context, stream, frames);
            }
        }
    }
}

#[test]
fn a_malformed_frame_ends_the_connection_with_a_reason() {
    let plain = Header::new(Kind::Data, 1, 4);
    let edited = |at: usize, value: u8| {
        move |frames: u32| {
            let mut wire = plain.encode(frames);
            wire[at] = value;
            wire
        }
    };
    let header = |header: Header| move |frames: u32| header.encode(frames);
    let answer = |kind| Header::new(kind, 7, 0);
    type Frame<'a> = Box<dyn Fn(u32) -> [u8; Header::BYTES] + 'a>;
    let cases: [(Frame, &str); 12] = [
        (Box::new(edited(0, 99)), "malformed frame: kind 99"),
        (Box::new(edited(0, 0)), "malformed frame: kind 0"),
        (Box::new(edited(1, 77)), "malformed frame: version 77"),
        (Box::new(edited(2, 2)), "malformed frame: space 2"),
        (Box::new(edited(3, 0x80)), "malformed frame: flags 0x80"),
        (Box::new(edited(15, 1)), "malformed frame: 0x01000000 where zeros stand"),
        (Box::new(|frames| plain.encode(!frames)), "malformed frame: identity"),
        (Box::new(edited(31, 0xff)), "malformed frame: 18374686479671623684 bytes"),
        (Box::new(header(Header::new(Kind::Abort, 0, 1 << 20))), "1048576 bytes"),
        (Box::new(header(answer(Kind::PutDone))), "answered a request that was not made"),
        (Box::new(header(answer(Kind::GetDone))), "answered a request that was not made"),
        // It comes unasked, and fits nowhere.
        (Box::new(header(Header::new(Kind::Data, 1, 1 << 60))), "sent a message of 1152921504606846976 bytes"),
    ];
    for (frame, part) in cases {
        let (context, mut stream, frames) = victim();
        let mut memory = [0u8; 4];
        // SAFETY: the array outlives the buffer.
        let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), 4).unwrap() };
        buffer.recv(&[0], 1, 0, 4).unwrap();
        stream.write_all(&frame(frames)).unwrap();
        let error = buffer.wait_recv(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.message().contains(part) && error.message().contains("rank 0"), "{part:?} is not in {error}");
    }
}

#[test]
fn lengths_that_are_only_announced_take_no_memory() {
    let announced = Header { flags: FLAG_ANNOUNCED, ..Header::new(Kind::Data, 2, 1 << 60) };
    // Unasked; announced by a flag only; for a buffer that nobody bound.
    for header in [Header::new(Kind::ReadyToSend, 1, 1 << 60), announced, Header::new(Kind::Write, 3, 1 << 60)] {
        let (context, mut stream, frames) = victim();
        stream.write_all(&header.encode(frames)).unwrap();
        stream.write_all(&[1; 100]).unwrap();
        let until = std::time::Instant::now() + Duration::from_millis(200);
        while std::time::Instant::now() < until {
            context.lock().unwrap().progress();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(context.lock().unwrap().messenger.kept(0) < 2000);
    }
}
