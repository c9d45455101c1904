//! Contexts on threads, connected over TCP on loopback.

mod abort;
mod agreement;
mod alloc;
mod background;
mod blocking_store;
mod contributions;
mod counters;
mod counts;
mod deadlines;
mod disagreement;
mod disconnects;
mod edges;
mod factors;
mod functions;
mod leaving;
mod listening;
mod malformed;
mod membership;
mod numbers;
mod oob;
mod order;
mod pollers;
mod prepared;
mod refusals;
mod request;
mod rounds;
mod shared;
mod split;
mod streams;
mod sync;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod topology;
#[cfg(target_os = "linux")]
mod unreadable;
mod versions;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::collective::{Collective, Shape};
use crate::error::ErrorKind;
use crate::transport::device::{Device, DeviceOptions};
use crate::types::DataType;

fn device() -> Arc<Device> {
    Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap()
}

fn random_bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Contexts that have each other's addresses and are not connected yet.
fn group(size: usize) -> Vec<Arc<Context>> {
    group_with(size, &ContextOptions { timeout: Duration::from_secs(20), ..Default::default() })
}

fn group_with(size: usize, options: &ContextOptions) -> Vec<Arc<Context>> {
    let contexts: Vec<_> = (0..size).map(|rank| Context::new(device(), rank, size, options).unwrap()).collect();
    let addresses: Vec<_> = contexts.iter().map(|c| c.lock().unwrap().messenger.address()).collect();
    for context in &contexts {
        for (rank, address) in addresses.iter().enumerate() {
            context.lock().unwrap().messenger.set_peer(rank, address).unwrap();
        }
    }
    contexts
}

fn run(contexts: &[Arc<Context>], work: impl Fn(&Arc<Context>) + Sync) {
    std::thread::scope(|scope| {
        for context in contexts {
            scope.spawn(|| work(context));
        }
    });
}

/// Returns when a thread waits on `context`.
fn await_wait(context: &Context) {
    while !context.lock().unwrap().waiters.polling {
        std::thread::yield_now();
    }
}

/// Returns when `context` has queued so many unexpected bytes from rank 0.
fn await_queued(context: &Context, bytes: usize) {
    while context.lock().unwrap().messenger.queued_bytes(0) < bytes {
        context.lock().unwrap().progress();
    }
}

#[test]
fn messages_of_all_sizes_reach_all_ranks() {
    let contexts = group(4);
    run(&contexts, |context| {
        for (round, bytes) in [0usize, 1, 4, 4000, 65_536, 65_537, 300_000, 5_000_000].into_iter().enumerate() {
            let mut sent = random_bytes((context.rank() * 100 + round) as u64, bytes);
            let mut got = vec![0; bytes * context.size()];
            // SAFETY: the vectors outlive the buffers.
            let (send, recv) = unsafe {
                let send = context.unbound_buffer(sent.as_mut_ptr(), bytes).unwrap();
                (send, context.unbound_buffer(got.as_mut_ptr(), got.len()).unwrap())
            };
            let slot = round as u64;
            for peer in 0..context.size() {
                recv.recv(&[peer], slot, peer * bytes, bytes).unwrap();
                send.send(peer, slot, 0, bytes).unwrap();
            }
            for _ in 0..context.size() {
                assert_eq!(recv.wait_recv(None).unwrap().unwrap().1, bytes);
                send.wait_send(None).unwrap().unwrap();
            }
            for peer in 0..context.size() {
                assert_eq!(got[peer * bytes..][..bytes], random_bytes((peer * 100 + round) as u64, bytes));
            }
        }
    });
}

#[test]
fn a_send_completes_though_the_receiver_does_not_wait() {
    let contexts = group(2);
    let bytes = 8_000_000;
    run(&contexts, |context| {
        let mut data = random_bytes(context.rank() as u64, bytes);
        // SAFETY: the vector outlives the buffer.
        let buffer = unsafe { context.unbound_buffer(data.as_mut_ptr(), bytes).unwrap() };
        let mut done = [0];
        // SAFETY: as above.
        let signal = unsafe { context.unbound_buffer(done.as_mut_ptr(), 1).unwrap() };
        if context.rank() == 0 {
            buffer.send(1, 5, 0, bytes).unwrap();
            buffer.wait_send(None).unwrap();
            signal.send(1, 6, 0, 1).unwrap();
        } else {
            buffer.recv(&[0], 5, 0, bytes).unwrap();
            // No thread waits on this context until rank 0 has finished, so the device's thread must progress it.
            while describe(context, &buffer).contains("receive") {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(buffer.wait_recv(None).unwrap(), Some((0, bytes)));
            assert_eq!(data, random_bytes(0, bytes));
            signal.recv(&[0], 6, 0, 1).unwrap();
            signal.wait_recv(None).unwrap();
        }
    });
}

fn describe(context: &Context, buffer: &UnboundBuffer) -> String {
    context.lock().unwrap().messenger.diagnosis().describe(buffer.owner(), Instant::now())
}

#[test]
fn receive_from_any_sees_everyone_and_itself() {
    let contexts = group(3);
    run(&contexts, |context| {
        let mut own = [context.rank() as u8];
        let mut got = [9u8; 9];
        // SAFETY: the arrays outlive the buffers.
        let (send, recv) = unsafe {
            (context.unbound_buffer(own.as_mut_ptr(), 1).unwrap(), context.unbound_buffer(got.as_mut_ptr(), 9).unwrap())
        };
        for i in 0..9 {
            recv.recv(&[0, 1, 2, 1], 7, i, 1).unwrap();
        }
        for peer in 0..3 {
            for _ in 0..3 {
                send.send(peer, 7, 0, 1).unwrap();
            }
        }
        let mut seen = [0; 3];
        for _ in 0..9 {
            seen[recv.wait_recv(None).unwrap().unwrap().0] += 1;
            send.wait_send(None).unwrap();
        }
        assert_eq!(seen, [3, 3, 3]);
        drop((send, recv));
        got.sort_unstable();
        assert_eq!(got, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    });
}

#[test]
fn waits_end_by_timeout_abort_and_close() {
    let contexts = group(2);
    let context = &contexts[0];
    let mut data = [0u8; 100];
    // SAFETY: the array outlives the buffer.
    let buffer = unsafe { context.unbound_buffer(data.as_mut_ptr(), 100).unwrap() };
    buffer.recv(&[1], 1, 0, 100).unwrap();
    let error = buffer.wait_recv(Some(Duration::from_millis(50))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("0 of 100 bytes from rank 1 at 127.0.0.1:"), "{error}");
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(buffer.wait_recv(None).unwrap(), None));
        await_wait(context);
        buffer.abort_wait_recv();
    });
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(buffer.wait_recv(None).unwrap_err().kind(), ErrorKind::Closed));
        await_wait(context);
        context.close();
    });
    let error = buffer.send(1, 1, 0, 1).and_then(|()| buffer.wait_send(None).map(|_| ())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[test]
fn puts_and_gets_reach_remote_memory_and_nothing_else() {
    let contexts = group(2);
    let bytes = 200_000;
    let mut memory = random_bytes(1, bytes);
    let mut local = random_bytes(2, bytes);
    // SAFETY: the vectors outlive the buffers.
    let (remote, own) = unsafe {
        (
            contexts[1].unbound_buffer(memory.as_mut_ptr(), bytes).unwrap(),
            contexts[0].unbound_buffer(local.as_mut_ptr(), bytes).unwrap(),
        )
    };
    let key: RemoteKey = remote.remote_key().unwrap().to_string().parse().unwrap();
    own.put(&key, 0, 0, 50_000, 100_000).unwrap();
    assert_eq!(own.wait_send(None).unwrap(), Some(1));
    own.get(&key, 0, 100_000, 0, 100_000).unwrap();
    assert_eq!(own.wait_send(None).unwrap(), Some(1));
    assert!(own.get(&key, 0, 0, 100_001, 100_000).is_err());
    drop(remote);
    own.put(&key, 0, 0, 0, 10).unwrap();
    let error = own.wait_send(None).unwrap_err();
    assert!(error.message().contains("rank 1 at 127.0.0.1:"), "{error}");
    drop(own);
    let mut expected = random_bytes(1, bytes);
    expected[50_000..150_000].copy_from_slice(&random_bytes(2, bytes)[..100_000]);
    assert!(memory == expected);
    assert!(local[100_000..] == expected[..100_000]);
}

#[test]
fn a_wait_for_a_get_is_ended_as_that_for_a_send() {
    let contexts = group(2);
    let (mut memory, mut local) = ([7u8; 4], [0u8; 4]);
    // SAFETY: the arrays outlive the buffers.
    let (remote, own) = unsafe {
        (
            contexts[1].unbound_buffer(memory.as_mut_ptr(), 4).unwrap(),
            contexts[0].unbound_buffer(local.as_mut_ptr(), 4).unwrap(),
        )
    };
    let key = remote.remote_key().unwrap();
    // Rank 1 does not answer while this lock is held.
    let silent = contexts[1].lock().unwrap();
    own.get(&key, 0, 0, 0, 4).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(own.wait_send(None).unwrap(), None));
        await_wait(&contexts[0]);
        own.abort_wait_send();
    });
    drop(silent);
    assert_eq!(own.wait_send(None).unwrap(), Some(1));
    assert_eq!(own.wait_recv(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::Timeout);
    drop((own, remote));
    assert_eq!(local, memory);
}

#[test]
fn bound_buffers_write_where_they_are_told() {
    let contexts = group(2);
    let (a, b) = (contexts[0].pair(1).unwrap(), contexts[1].pair(0).unwrap());
    let mut from = random_bytes(3, 1000);
    let mut into = vec![0u8; 2000];
    // SAFETY: the vectors outlive the buffers.
    let send = unsafe { a.send_buffer(9, from.as_ptr(), 1000).unwrap() };
    send.send(0, 500, 0).unwrap();
    send.wait_send(None).unwrap();
    // The write arrives before its buffer is bound.
    await_queued(&contexts[1], 500);
    // SAFETY: as above.
    let recv = unsafe { b.recv_buffer(9, into.as_mut_ptr(), 2000).unwrap() };
    assert_eq!(recv.wait_recv(None).unwrap(), (0, 500));
    send.send(500, 500, 1500).unwrap();
    send.wait_send(None).unwrap();
    assert_eq!(recv.wait_recv(None).unwrap(), (1500, 500));
    assert!(send.send(501, 500, 0).is_err() && send.wait_recv(None).is_err() && recv.send(0, 1, 0).is_err());
    drop((send, recv));
    assert_eq!(into[..500], from[..500]);
    assert_eq!(into[1500..], from[500..]);
    from.clear();
}

#[test]
fn both_ranks_hear_of_a_write_outside_a_bound_buffer() {
    const TEXT: &str = "wrote 1000 bytes at offset 1001 of slot 0x9, whose buffer has 2000 bytes";
    for early in [false, true] {
        let contexts = group(2);
        let (a, b) = (contexts[0].pair(1).unwrap(), contexts[1].pair(0).unwrap());
        let (from, mut into, mut other) = (random_bytes(3, 1000), vec![0u8; 2000], [0u8; 4]);
        // SAFETY: the memory outlives the buffers.
        let send = unsafe { a.send_buffer(9, from.as_ptr(), 1000).unwrap() };
        // SAFETY: as above. The writer gets the error from this buffer, since its write has completed long before.
        let waits = unsafe { a.recv_buffer(8, other.as_mut_ptr(), 4).unwrap() };
        // SAFETY: as above.
        let mut bind = || unsafe { b.recv_buffer(9, into.as_mut_ptr(), 2000).unwrap() };
        let bound = (!early).then(&mut bind);
        send.send(0, 1000, 1001).unwrap();
        if early {
            send.wait_send(None).unwrap();
            await_queued(&contexts[1], 1000);
        }
        let recv = bound.unwrap_or_else(bind);
        for (error, peer) in [(recv.wait_recv(None), "rank 0"), (waits.wait_recv(None), "rank 1")] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.message().contains(TEXT) && error.message().contains(peer), "{error}");
        }
        // A later wait fails too.
        send.send(0, 1, 0).unwrap();
        let error = std::iter::repeat_with(|| send.wait_send(None)).find_map(Result::err).unwrap();
        assert!(error.kind() == ErrorKind::Mismatch && error.message().contains(TEXT), "{error}");
        drop((send, recv, waits));
        assert!(into.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn pairs_connect_by_hand_and_close() {
    let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
    let contexts: Vec<_> = (0..2).map(|rank| Context::new(device(), rank, 2, &options).unwrap()).collect();
    let pairs = [contexts[0].pair(1).unwrap(), contexts[1].pair(0).unwrap()];
    let addresses = [pairs[0].address().unwrap(), pairs[1].address().unwrap()];
    assert!(!pairs[0].is_connected() && contexts[0].shares_host(1).is_err());
    std::thread::scope(|scope| {
        scope.spawn(|| pairs[0].connect(&addresses[1]).unwrap());
        scope.spawn(|| pairs[1].connect(&addresses[0]).unwrap());
    });
    assert!(pairs[0].is_connected() && pairs[1].is_connected() && contexts[0].shares_host(1).unwrap());
    let mut data = [0u8; 4];
    // SAFETY: the array outlives the buffer.
    let buffer = unsafe { contexts[0].unbound_buffer(data.as_mut_ptr(), 4).unwrap() };
    buffer.recv(&[1], 1, 0, 4).unwrap();
    pairs[1].close();
    let error = buffer.wait_recv(None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost);
    assert!(error.message().contains("rank 1 at 127.0.0.1:"), "{error}");
    assert!(!pairs[0].is_connected() && !pairs[1].is_connected());
    assert!(contexts[0].pair(0).is_err() && contexts[0].pair(2).is_err());
    assert!(pairs[0].connect(b"nonsense").is_err());
}

#[test]
fn errors_by_the_default_timeout_name_what_sets_it() {
    let names = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        error.message().contains("GLOO_RS_TIMEOUT")
    };
    let by_default =
        ContextOptions { timeout: Duration::from_millis(50), timeout_by_default: true, ..Default::default() };
    let chosen = ContextOptions { timeout_by_default: false, ..by_default.clone() };
    for (options, named) in [(&by_default, true), (&chosen, false)] {
        let alone = Context::new(device(), 0, 2, options).unwrap();
        assert_eq!(names(alone.connect(&*crate::rendezvous::InProcessStore::new()).unwrap_err()), named);
    }
    let contexts = group_with(2, &ContextOptions { timeout: Duration::from_secs(20), ..by_default.clone() });
    let mut memory = [0; 8];
    // SAFETY: the array outlives the buffer.
    let buffer = unsafe { contexts[0].unbound_buffer(memory.as_mut_ptr(), memory.len()) }.unwrap();
    let short = Some(Duration::from_millis(20));
    assert!(!names(buffer.wait_recv(short).unwrap_err()), "the call named its timeout");
    contexts[0].set_timeout(Duration::from_millis(20));
    assert!(!names(buffer.wait_recv(None).unwrap_err()), "the program has chosen the context's");
}

/// The errors of several calls on a context, the first of which takes longer than its timeout and breaks the context.
#[test]
fn only_the_call_that_its_default_timeout_ends_says_so_and_once() {
    for shared in [true, false] {
        let barrier = |context: &Context, timeout: Option<Duration>| {
            let shape = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, 0, 2, 0) };
            // SAFETY: there are no buffers.
            unsafe { context.run(&Call { timeout, ..Call::new(shape, DataType::Uint8) }) }.unwrap_err()
        };
        let split = |context: &Context| context.split(Some(0), 0).err().unwrap();
        // The operation that comes first, and how often its error and those of later operations name the variable.
        for (first, named) in [(0, 1), (1, 0), (2, 1)] {
            let contexts = agreement::on_this_host(2, shared, ContextOptions::default());
            let context = &contexts[0];
            context.timeout.set(Duration::from_millis(500), true);
            let error = match first {
                0 => barrier(context, None),
                1 => barrier(context, Some(Duration::from_millis(20))),
                _ => split(context),
            };
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            context.timeout.set(Duration::from_secs(30), true);
            for error in [error, barrier(context, None), split(context)] {
                assert_eq!(error.message().matches("GLOO_RS_TIMEOUT").count(), named, "operation {first}: {error}");
            }
        }
    }
}
