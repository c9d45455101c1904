//! Errors when a peer's process ends or a connection is reset.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use super::malformed::victim;
use super::*;
use crate::collective::{Collective, Shape};
use crate::messaging::{Outcome, Send, Token};
use crate::net::address::Address;
use crate::net::handshake::{self, Accepting, Acceptor, Answer};
use crate::net::this_host::host;
use crate::types::{DataType, Space};
use crate::wire::Message;

/// A listener that `context` takes for rank 0.
fn listen_as_rank_0(context: &Context) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sockets = vec![listener.local_addr().unwrap()];
    let address = Address {
        identity: [9; 16],
        sockets,
        host: host().unwrap(),
        cores: 1,
        place: Default::default(),
        segment: None,
        ibverbs: false,
        network: 0,
        streams: 1,
    };
    context.lock().unwrap().messenger.set_peer(0, &address.serialize()).unwrap();
    listener
}

/// The other rank's connection, which has proven itself and waits for an answer.
fn accept_as_rank_0(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut acceptor = Acceptor::new([3; 32]);
    let find = |_: &_| Some(handshake::key(&JobToken::from_environment(), &[9; 16]));
    loop {
        let mut bytes = vec![0; acceptor.wanted()];
        stream.read_exact(&mut bytes).unwrap();
        match acceptor.take(&bytes, find).unwrap() {
            Accepting::Waiting => {}
            Accepting::Send(challenge) => stream.write_all(&challenge).unwrap(),
            Accepting::Proven(_) => return stream,
        }
    }
}

#[test]
fn who_accepts_the_connection_of_a_context_that_fails_meanwhile_hears_the_reason() {
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let context = Context::new(device(), 1, 2, &options).unwrap();
    let device = context.device().clone();
    let listener = listen_as_rank_0(&context);
    context.lock().unwrap().messenger.connect(0);
    let rank_0 = std::thread::spawn(move || accept_as_rank_0(&listener));
    while !rank_0.is_finished() {
        context.lock().unwrap().progress();
    }
    let mut stream = rank_0.join().unwrap();
    let reason = Error::new(ErrorKind::ConnectionLost, "rank 1: rank 2 is gone");
    let mut guard = context.lock().unwrap();
    guard.break_with(&reason, Some(&reason));
    context.finish_closing(guard);
    drop(context);
    stream.write_all(&Answer::Accepted.encode()).unwrap();
    let mut received = Vec::new();
    // The other end may be closed already, so that the answer resets the connection.
    let _ = stream.read_to_end(&mut received);
    assert!(received.ends_with(b"rank 1: rank 2 is gone"), "{received:?}");
    drop(device);
}

#[test]
fn a_peer_that_says_it_is_connecting_and_ends_is_noticed() {
    let options = ContextOptions { timeout: Duration::from_secs(30), ..Default::default() };
    let context = Context::new(device(), 1, 2, &options).unwrap();
    let listener = listen_as_rank_0(&context);
    let mut memory = [0u8; 4];
    // SAFETY: the array outlives the buffer.
    let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), 4).unwrap() };
    std::thread::scope(|scope| {
        // Rank 0 connects at the same time, decides that its own connection is used, and is killed.
        scope.spawn(move || {
            let mut stream = accept_as_rank_0(&listener);
            stream.write_all(&Answer::Yield.encode()).unwrap();
        });
        let started = Instant::now();
        buffer.recv(&[0], 1, 0, 4).unwrap();
        let error = buffer.wait_recv(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
        assert!(error.message().contains(" is gone: cannot connect to rank 0 at 127.0.0.1:"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    });
}

/// The error of a message to rank 0 that is sent after rank 0 has sent `last` and reset the connection.
fn send_into_a_reset(last: &[Message]) -> Error {
    let (context, mut stream, connection) = victim();
    // The context does not read while this lock is held.
    let mut guard = context.lock().unwrap();
    last.iter().for_each(|message| stream.write_all(&message.encode(connection)).unwrap());
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    let token = Token { owner: 1, detail: 0 };
    let bytes = [0u8; 8];
    let (space, from) = (Space::USER, bytes.as_ptr());
    let send = Send { to: 0, space, slot: 1, fingerprint: 0, from, bytes: 8, more: false, token };
    // SAFETY: the array outlives the connection, which ends before this returns.
    unsafe { guard.messenger.send(send) };
    let mut events = Vec::new();
    guard.messenger.flush(&mut events);
    match events.into_iter().find(|e| e.token == token).map(|e| e.outcome) {
        Some(Outcome::Failed(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reset_that_a_send_detects_is_reported() {
    let error = send_into_a_reset(&[]);
    assert!(error.message().starts_with("the connection to rank 0"), "{error}");
    assert!(error.message().ends_with(" broke while sending: Connection reset by peer (os error 104)"), "{error}");
}

#[test]
fn a_goodbye_says_more_than_the_reset_behind_it() {
    let error = send_into_a_reset(&[Message::Goodbye]);
    assert!(error.message().ends_with(" has closed its context"), "{error}");
}

#[test]
fn who_connects_later_hears_the_reason_and_passes_it_on_as_it_is() {
    let contexts = group(3);
    let reason = Error::new(ErrorKind::Timeout, "rank 0: it has had enough");
    let mut guard = contexts[0].lock().unwrap();
    guard.break_with(&reason, Some(&reason));
    contexts[0].finish_closing(guard);
    for (rank, context) in contexts.iter().enumerate().skip(1) {
        let mut memory = [0u8; 4];
        // SAFETY: the array outlives the buffer.
        let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), 4).unwrap() };
        buffer.recv(&[rank - 1], 1, 0, 4).unwrap();
        let error = buffer.wait_recv(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
        let (who, why) = error.message().split_once(" gave up: ").unwrap();
        assert!(who.contains(&format!("rank {} at 127.0.0.1:", rank - 1)), "{error}");
        assert_eq!(why, "rank 0: it has had enough");
        context.close();
    }
}

#[test]
fn who_connects_after_a_failed_context_was_destroyed_hears_the_reason_too() {
    let mut contexts = group(3);
    // A program keeps its device for its next context.
    let _device = contexts[1].device().clone();
    let reason = Error::new(ErrorKind::ConnectionLost, "rank 1: rank 0 is gone").with_rank(0);
    let mut guard = contexts[1].lock().unwrap();
    guard.break_with(&reason, Some(&reason));
    contexts[1].finish_closing(guard);
    drop(contexts.remove(1));
    let mut memory = [0u8; 4];
    // SAFETY: the array outlives the buffer.
    let buffer = unsafe { contexts[1].unbound_buffer(memory.as_mut_ptr(), 4).unwrap() };
    buffer.recv(&[1], 1, 0, 4).unwrap();
    let error = buffer.wait_recv(None).unwrap_err();
    assert!(error.message().ends_with(" gave up: rank 1: rank 0 is gone"), "{error}");
    assert_eq!(error.details().rank, Some(0), "{error}");
}

#[test]
fn a_device_forgets_the_oldest_of_many_contexts_that_failed() {
    let device = device();
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let failed = |_| {
        let context = Context::new(device.clone(), 0, 2, &options).unwrap();
        let address = context.lock().unwrap().messenger.address();
        let reason = Error::new(ErrorKind::ConnectionLost, "rank 0: it has had enough");
        let mut guard = context.lock().unwrap();
        guard.break_with(&reason, Some(&reason));
        context.finish_closing(guard);
        address
    };
    let addresses: Vec<_> = (0..65).map(failed).collect();
    for (at, expected) in [(0, "has closed its context"), (1, "gave up: rank 0: it has had enough")] {
        let context = Context::new(self::device(), 1, 2, &options).unwrap();
        context.lock().unwrap().messenger.set_peer(0, &addresses[at]).unwrap();
        let mut memory = [0u8; 4];
        // SAFETY: the array outlives the buffer.
        let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), 4).unwrap() };
        buffer.recv(&[0], 1, 0, 4).unwrap();
        let error = buffer.wait_recv(None).unwrap_err();
        assert!(error.message().contains(expected), "{error}");
    }
}

#[test]
fn a_closed_context_is_not_connected_again() {
    let store = crate::rendezvous::in_process::InProcessStore::new();
    let options = ContextOptions::default();
    let (device, parent) = (device(), group(1));
    let context = Context::new(device.clone(), 0, 1, &options).unwrap();
    context.close();
    let two = Context::new(device.clone(), 0, 2, &options).unwrap();
    let pair = two.pair(1).unwrap();
    let address = pair.address().unwrap();
    two.close();
    let results =
        [context.connect(&*store), context.connect_from(&parent[0], 1), pair.connect(&address), two.connect(&*store)];
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Closed, "{error}");
        assert!(error.message().contains("rank 0 has closed this context"), "{error}");
    }
}

/// Whether links were never used, or never made: a rank that has destroyed its context in order is not gone.
#[test]
fn a_rank_that_was_never_spoken_to_and_leaves_in_order_has_closed_its_context() {
    for contexts in [group(2), super::shared::connected(2, false)] {
        let [stays, leaves] = &contexts[..] else { panic!("two ranks") };
        // Its device lives on.
        let _device = leaves.device().clone();
        leaves.close();
        let mut data = [1i64; 4];
        let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, stays.rank(), 2, 4) };
        let call = Call { outputs: &[data.as_mut_ptr().cast()], ..Call::new(shape, DataType::Int64) };
        // SAFETY: the array is as long as the shape says, and lives until the call returns.
        let error = unsafe { stays.run(&call) }.unwrap_err();
        assert_eq!((error.kind(), error.details().rank), (ErrorKind::ConnectionLost, Some(leaves.rank())), "{error}");
        // A connection that is made later is refused.
        let says = |what| error.message().contains(what);
        assert!(says("has closed its context") || says("its context is closed"), "{error}");
        assert!(!says("is gone"), "{error}");
    }
}
