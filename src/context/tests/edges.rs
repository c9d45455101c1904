//! Edge cases of the order of messages, memory and threads.

use std::net::TcpListener;
use std::time::Instant;

use super::*;
use crate::net::address::Address;
use crate::net::this_host::host;

const LARGE: usize = 200_000;
/// More bytes than the system buffers for a connection.
const HUGE: usize = 40_000_000;
const SOON: Option<Duration> = Some(Duration::from_secs(5));

/// Contexts without the others' addresses: posted operations wait.
fn strangers(size: usize) -> Vec<Arc<Context>> {
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    (0..size).map(|rank| Context::new(device(), rank, size, &options).unwrap()).collect()
}

fn introduce(contexts: &[Arc<Context>]) {
    let addresses: Vec<_> = contexts.iter().map(|c| c.lock().unwrap().messenger.address()).collect();
    for context in contexts {
        for (rank, address) in addresses.iter().enumerate() {
            let mut guard = context.lock().unwrap();
            guard.messenger.set_peer(rank, address).unwrap();
            context.engine().leave(guard);
        }
    }
}

fn buffer(context: &Arc<Context>, memory: &mut [u8]) -> UnboundBuffer {
    // SAFETY: the callers drop the buffer before the memory.
    unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()).unwrap() }
}

/// Returns when rank 0 has received all that rank 1 has sent so far.
fn sync(contexts: &[Arc<Context>]) {
    let (mut from, mut into) = ([7u8], [0u8]);
    let (send, recv) = (buffer(&contexts[1], &mut from), buffer(&contexts[0], &mut into));
    recv.recv(&[1], 99, 0, 1).unwrap();
    send.send(0, 99, 0, 1).unwrap();
    assert_eq!(recv.wait_recv(SOON).unwrap(), Some((1, 1)));
}

#[test]
fn a_credit_that_crosses_an_announcement_loses_nothing() {
    let contexts = strangers(2);
    let (mut small, mut large) = (random_bytes(1, 10), random_bytes(2, LARGE));
    let mut got = [vec![0u8; LARGE], vec![0u8; LARGE]];
    let [first, second] = &mut got;
    let sends = [buffer(&contexts[0], &mut small), buffer(&contexts[0], &mut large)];
    let recvs = [buffer(&contexts[1], first), buffer(&contexts[1], second)];
    // Rank 1 has sent a grant for a large message, but the small one takes the receive. The grant reaches rank 0 after
    // rank 0 has announced the large one.
    recvs[0].recv(&[0], 5, 0, LARGE).unwrap();
    sends[0].send(1, 5, 0, 10).unwrap();
    sends[1].send(1, 5, 0, LARGE).unwrap();
    introduce(&contexts);
    assert_eq!(recvs[0].wait_recv(SOON).unwrap(), Some((0, 10)));
    assert_eq!(sends[1].wait_send(SOON).unwrap(), Some(1));
    recvs[1].recv(&[0], 5, 0, LARGE).unwrap();
    assert_eq!(recvs[1].wait_recv(SOON).unwrap(), Some((0, LARGE)));
    drop((sends, recvs));
    assert!(got[0][..10] == small[..] && got[1] == large);
}

#[test]
fn a_receive_from_any_does_not_use_up_what_another_receive_has_granted() {
    let contexts = group(2);
    let mut from = [random_bytes(1, LARGE), random_bytes(2, LARGE)];
    let mut into = [vec![0u8; LARGE], vec![0u8; LARGE]];
    let sends = from.each_mut().map(|m| buffer(&contexts[0], m));
    let recvs = into.each_mut().map(|m| buffer(&contexts[1], m));
    recvs[0].recv(&[0, 1], 5, 0, LARGE).unwrap();
    recvs[1].recv(&[0], 5, 0, LARGE).unwrap();
    sync(&contexts);
    sends.iter().for_each(|s| s.send(1, 5, 0, LARGE).unwrap());
    recvs.iter().for_each(|r| assert_eq!(r.wait_recv(SOON).unwrap(), Some((0, LARGE))));
    drop((sends, recvs));
    assert!(from == into);
}

#[test]
fn what_stands_behind_an_announced_message_is_sent_though_its_buffer_is_dropped() {
    for second in [10, LARGE] {
        let contexts = group(2);
        let (mut first, mut after) = (random_bytes(1, LARGE), random_bytes(2, second));
        let mut got = [vec![0u8; LARGE], vec![0u8; second]];
        let given_up = buffer(&contexts[0], &mut first);
        let kept = buffer(&contexts[0], &mut after);
        given_up.send(1, 5, 0, LARGE).unwrap();
        kept.send(1, 5, 0, second).unwrap();
        drop(given_up);
        let recvs = got.each_mut().map(|m| buffer(&contexts[1], m));
        recvs[0].recv(&[0], 5, 0, LARGE).unwrap();
        recvs[1].recv(&[0], 5, 0, second).unwrap();
        [LARGE, second].iter().zip(&recvs).for_each(|(n, r)| assert_eq!(r.wait_recv(SOON).unwrap(), Some((0, *n))));
        assert_eq!(kept.wait_send(SOON).unwrap(), Some(1));
        drop((kept, recvs));
        assert!(got[0] == first && got[1] == after);
    }
}

#[test]
fn a_large_message_that_was_granted_is_sent_though_its_buffer_is_dropped() {
    let contexts = group(2);
    let mut from = [random_bytes(1, HUGE), random_bytes(2, LARGE), random_bytes(3, LARGE)];
    let mut into = [vec![0u8; HUGE], vec![0u8; LARGE], vec![0u8; LARGE]];
    let [huge, given_up, kept] = from.each_mut().map(|m| buffer(&contexts[0], m));
    let recvs = into.each_mut().map(|m| buffer(&contexts[1], m));
    recvs[0].recv(&[0], 4, 0, HUGE).unwrap();
    recvs[1].recv(&[0], 5, 0, LARGE).unwrap();
    sync(&contexts);
    // The first message fills the connection, the second waits behind it.
    huge.send(1, 4, 0, HUGE).unwrap();
    given_up.send(1, 5, 0, LARGE).unwrap();
    drop(given_up);
    kept.send(1, 5, 0, LARGE).unwrap();
    recvs[2].recv(&[0], 5, 0, LARGE).unwrap();
    [HUGE, LARGE, LARGE].iter().zip(&recvs).for_each(|(n, r)| assert_eq!(r.wait_recv(SOON).unwrap(), Some((0, *n))));
    drop((huge, kept, recvs));
    assert!(from == into);
}

#[test]
fn nothing_is_put_and_got_without_memory() {
    let contexts = group(2);
    let mut memory = [1u8; 4];
    let remote = buffer(&contexts[1], &mut memory);
    let key = remote.remote_key().unwrap();
    // SAFETY: the buffer has no bytes.
    let empty = unsafe { contexts[0].unbound_buffer(std::ptr::null_mut(), 0).unwrap() };
    empty.get(&key, 0, 0, 4, 0).unwrap();
    assert_eq!(empty.wait_send(SOON).unwrap(), Some(1));
    empty.put(&key, 0, 0, 4, 0).unwrap();
    assert_eq!(empty.wait_send(SOON).unwrap(), Some(1));
    empty.send(1, 1, 0, 0).unwrap();
    remote.recv(&[0], 1, 4, 0).unwrap();
    assert_eq!(remote.wait_recv(SOON).unwrap(), Some((0, 0)));
}

#[test]
fn a_receive_from_oneself_does_not_need_the_others() {
    let contexts = strangers(2);
    let mut memory = [1u8, 2];
    let own = buffer(&contexts[0], &mut memory);
    own.recv(&[0], 1, 0, 1).unwrap();
    introduce(&contexts);
    std::thread::sleep(Duration::from_millis(50));
    own.send(0, 1, 1, 1).unwrap();
    assert_eq!(own.wait_recv(SOON).unwrap(), Some((0, 1)));
    drop(own);
    assert_eq!(memory, [2, 2]);
}

#[test]
fn closing_ends_a_wait_on_a_buffer_that_is_bound_to_a_stranger() {
    let contexts = strangers(2);
    let mut memory = [0u8; 4];
    // SAFETY: the array outlives the buffer.
    let bound = unsafe { contexts[0].pair(1).unwrap().recv_buffer(1, memory.as_mut_ptr(), 4).unwrap() };
    contexts[0].close();
    assert_eq!(bound.wait_recv(SOON).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn closing_a_bound_buffer_ends_the_waits_of_all_threads() {
    let contexts = group(2);
    let pair = contexts[0].pair(1).unwrap();
    let mut memory = [0u8; 4];
    // SAFETY: the array outlives the buffers.
    let (recv, send) = unsafe {
        (pair.recv_buffer(1, memory.as_mut_ptr(), 4).unwrap(), pair.send_buffer(2, memory.as_ptr(), 4).unwrap())
    };
    std::thread::scope(|scope| {
        let recvs = [(); 2].map(|()| scope.spawn(|| recv.wait_recv(None).map(|_| ())));
        let sends = scope.spawn(|| send.wait_send(None));
        await_wait(&contexts[0]);
        recv.close();
        send.close();
        for wait in recvs.into_iter().chain([sends]) {
            let error = wait.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert!(error.message().contains("rank 1: the buffer was destroyed"), "{error}");
        }
    });
}

#[test]
fn what_has_been_sent_arrives_though_the_sender_closes_in_the_middle_of_the_next_message() {
    const BYTES: usize = 60_000;
    let contexts = group(2);
    let mut from = random_bytes(1, BYTES);
    let mut into = vec![0u8; BYTES];
    let send = buffer(&contexts[0], &mut from);
    sync(&contexts);
    // Rank 1 does not read for a while, so that the connection fills up.
    let mut deaf = contexts[1].lock().unwrap();
    for _ in 0..1000 {
        send.send(1, 5, 0, BYTES).unwrap();
    }
    let mut sent = 0;
    while send.wait_send(Some(Duration::from_millis(100))).is_ok() {
        sent += 1;
    }
    assert!((1..1000).contains(&sent), "{sent}");
    // A message that rank 0 has not read when it closes.
    let mut closing = contexts[0].lock().unwrap();
    let token = crate::messaging::Token::CONTEXT;
    let (space, slot, fingerprint) = (crate::types::Space::USER, 1, 0);
    let message =
        crate::messaging::Send { to: 0, space, slot, fingerprint, from: from.as_ptr(), bytes: 8, more: false, token };
    // SAFETY: `from` outlives the contexts' locks.
    unsafe { deaf.messenger.send(message) };
    deaf.messenger.flush(&mut Vec::new());
    closing.break_with(&Error::new(ErrorKind::Closed, "closed"), None);
    contexts[0].finish_closing(closing);
    contexts[1].engine().leave(deaf);
    let recv = buffer(&contexts[1], &mut into);
    for number in 0..sent {
        recv.recv(&[0], 5, 0, BYTES).unwrap();
        let result = recv.wait_recv(SOON);
        assert!(matches!(result, Ok(Some((0, BYTES)))), "message {number} of {sent}: {result:?}");
    }
    drop((send, recv));
    assert!(from == into);
}

#[test]
fn a_thread_that_waits_for_a_connection_hears_of_it_from_the_one_that_polls() {
    for sleeps in [true, false] {
        let contexts = group(3);
        let [pair, other] = [1, 2].map(|rank| contexts[0].pair(rank).unwrap());
        [&pair, &other].iter().for_each(|pair| pair.set_sync(sleeps, !sleeps).unwrap());
        let mut memory = [0u8; 1];
        let never = buffer(&contexts[0], &mut memory);
        never.recv(&[2], 1, 0, 1).unwrap();
        std::thread::scope(|scope| {
            let polls = scope.spawn(|| never.wait_recv(None));
            await_wait(&contexts[0]);
            let started = Instant::now();
            let address = contexts[1].pair(0).unwrap().address().unwrap();
            let result = pair.connect(&address);
            let elapsed = started.elapsed();
            never.abort_wait_recv();
            assert!(polls.join().unwrap().unwrap().is_none());
            result.unwrap();
            assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
        });
    }
}

#[test]
fn a_connection_is_tried_again_though_nobody_waits() {
    let contexts = strangers(2);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = Address {
        identity: [1; 16],
        sockets: vec![listener.local_addr().unwrap()],
        host: host().unwrap(),
        cores: 1,
        place: Default::default(),
        segment: None,
        ibverbs: false,
        network: 0,
        streams: 1,
    };
    let mut memory = [0u8; 1];
    let send = buffer(&contexts[0], &mut memory);
    contexts[0].lock().unwrap().messenger.set_peer(1, &address.serialize()).unwrap();
    send.send(1, 1, 0, 1).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    let mut attempts = 0;
    while attempts < 3 && Instant::now() < until {
        // Every connection is closed at once.
        attempts += usize::from(listener.accept().is_ok());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(attempts, 3);
}

#[test]
fn a_connection_is_tried_again_though_the_thread_that_polls_sleeps() {
    let contexts = strangers(2);
    // The system refuses this at once, since there is no route from loopback.
    let unreachable = Address {
        identity: [1; 16],
        sockets: vec![([192, 0, 2, 1], 9).into()],
        host: host().unwrap(),
        cores: 1,
        place: Default::default(),
        segment: None,
        ibverbs: false,
        network: 0,
        streams: 1,
    }
    .serialize();
    let pair = contexts[0].pair(1).unwrap();
    pair.set_sync(true, false).unwrap();
    let mut memory = [[0u8; 1]; 2];
    let [never, stranger] = memory.each_mut().map(|m| buffer(&contexts[0], m));
    never.recv(&[0], 1, 0, 1).unwrap();
    stranger.recv(&[1], 1, 0, 1).unwrap();
    std::thread::scope(|scope| {
        let polls = scope.spawn(|| never.wait_recv(Some(Duration::from_secs(20))));
        await_wait(&contexts[0]);
        contexts[0].set_timeout(Duration::from_secs(2));
        assert_eq!(pair.connect(&contexts[1].versions.publish(&unreachable)).unwrap_err().kind(), ErrorKind::Timeout);
        never.abort_wait_recv();
        assert!(polls.join().unwrap().unwrap().is_none());
    });
    let waits = describe(&contexts[0], &stranger);
    let attempts = waits.split("not connected after ").nth(1).and_then(|w| w.split(' ').next());
    // Two attempts are made before the wait, and about ten in two seconds.
    assert!(attempts.is_some_and(|n| n.parse::<u32>().unwrap() > 4), "{waits}");
}

/// With `Connect::Full` there is no operation that waits for the connection and could describe why there is none.
#[test]
fn a_timeout_of_connecting_to_everybody_says_why() {
    // A full backlog, so that the system does not answer connection attempts.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let full_at = full.local_addr().unwrap().as_socket().unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&full_at, Duration::from_millis(200)) {
        queue.push(stream);
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = std::net::SocketAddr::from(([192, 0, 2, 1], 9));
    for (socket, why) in [
        (
            silent.local_addr().unwrap(),
            "not connected: its host has accepted the connection, but its process has not answered",
        ),
        (full_at, "not connected: no answer from that address"),
        // The system refuses this at once, since there is no route from loopback.
        (nowhere, "attempts; the last one: cannot connect to rank 1 at 192.0.2.1:9: "),
    ] {
        let contexts = strangers(2);
        let address = Address {
            identity: [1; 16],
            sockets: vec![socket],
            host: host().unwrap(),
            cores: 1,
            place: Default::default(),
            segment: None,
            ibverbs: false,
            network: 0,
            streams: 1,
        };
        contexts[0].set_timeout(Duration::from_millis(1500));
        let error =
            contexts[0].pair(1).unwrap().connect(&contexts[1].versions.publish(&address.serialize())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let begin = format!("no connection to rank 1 at {socket} after 1.5s: not connected");
        assert!(error.message().starts_with(&begin) && error.message().contains(why), "{error}");
    }
}
