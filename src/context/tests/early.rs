//! Peers that send more than anybody has asked for.

use std::time::Instant;

use super::*;
use crate::messaging::matching::UNEXPECTED_OVERHEAD;

const BYTES: usize = 60_000;
const PAUSE: usize = 4 << 20;
/// More than the limit and what the system keeps for a connection.
const MESSAGES: usize = 1000;
const SOON: Option<Duration> = Some(Duration::from_secs(20));

fn buffer(context: &Arc<Context>, memory: &mut [u8]) -> UnboundBuffer {
    // SAFETY: the callers drop the buffer before the memory.
    unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()).unwrap() }
}

/// Two ranks, of which rank 1 keeps little of what it has not asked for.
fn pair(most: usize) -> Vec<Arc<Context>> {
    let contexts = group(2);
    contexts[1].lock().unwrap().messenger.set_limits(PAUSE, most);
    contexts
}

fn kept(contexts: &[Arc<Context>]) -> usize {
    contexts[1].lock().unwrap().messenger.kept(0)
}

/// Waits until rank 1 keeps no more than before for a while, and returns how much that is.
fn settled(contexts: &[Arc<Context>]) -> usize {
    let until = Instant::now() + Duration::from_secs(20);
    let mut last = (0, Instant::now());
    while Instant::now() < until && (last.0 == 0 || last.1.elapsed() < Duration::from_millis(300)) {
        let now = kept(contexts);
        if now != last.0 {
            last = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    last.0
}

/// Rank 0 has sent `MESSAGES` to slot 5, and then one to slot 6.
fn run_ahead(contexts: &[Arc<Context>], from: &mut [u8], last: &mut [u8]) -> [UnboundBuffer; 2] {
    let (send, after) = (buffer(&contexts[0], from), buffer(&contexts[0], last));
    let first = buffer(&contexts[1], &mut []);
    first.recv(&[0], 4, 0, 0).unwrap();
    after.send(1, 4, 0, 0).unwrap();
    assert_eq!(first.wait_recv(SOON).unwrap(), Some(0));
    assert_eq!(after.wait_send(SOON).unwrap(), Some(1));
    (0..MESSAGES).for_each(|_| send.send(1, 5, 0, BYTES).unwrap());
    after.send(1, 6, 0, 1).unwrap();
    [send, after]
}

#[test]
fn who_runs_ahead_is_held_back_and_nothing_is_lost() {
    let contexts = pair(1 << 30);
    let (mut from, mut last, mut into) = (random_bytes(1, BYTES), [7], vec![0u8; BYTES]);
    let sends = run_ahead(&contexts, &mut from, &mut last);
    let most = settled(&contexts);
    // One turn of reading may go beyond the limit.
    assert!((PAUSE..PAUSE + (1 << 20)).contains(&most), "{most}");
    let recv = buffer(&contexts[1], &mut into);
    for number in 0..MESSAGES {
        recv.recv(&[0], 5, 0, BYTES).unwrap();
        let result = recv.wait_recv(SOON);
        assert!(matches!(result, Ok(Some(0))), "message {number}: {result:?}");
        assert!(kept(&contexts) < PAUSE + (2 << 20), "message {number}: {} bytes are kept", kept(&contexts));
    }
    recv.recv(&[0], 6, 0, 1).unwrap();
    assert_eq!(recv.wait_recv(SOON).unwrap(), Some(0));
    (0..MESSAGES).for_each(|_| assert_eq!(sends[0].wait_send(SOON).unwrap(), Some(1)));
    assert_eq!(kept(&contexts), 0);
    drop((sends, recv));
    assert!(into[0] == 7 && into[1..] == from[1..]);
}

#[test]
fn what_stands_behind_too_much_is_found() {
    let contexts = pair(1 << 30);
    let (mut from, mut last, mut into) = (random_bytes(1, BYTES), [7], vec![0u8; BYTES]);
    let sends = run_ahead(&contexts, &mut from, &mut last);
    settled(&contexts);
    let recv = buffer(&contexts[1], &mut into);
    recv.recv(&[0], 6, 0, 1).unwrap();
    assert_eq!(recv.wait_recv(SOON).unwrap(), Some(0));
    assert_eq!(kept(&contexts), MESSAGES * (BYTES + UNEXPECTED_OVERHEAD));
    for _ in 0..MESSAGES {
        recv.recv(&[0], 5, 0, BYTES).unwrap();
        assert_eq!(recv.wait_recv(SOON).unwrap(), Some(0));
    }
    assert_eq!(kept(&contexts), 0);
    drop((sends, recv));
    assert!(into == from);
}

#[test]
fn who_sends_far_too_much_is_cut_off() {
    let contexts = pair(4 * PAUSE);
    let (mut from, mut last, mut into) = (random_bytes(1, BYTES), [7], vec![0u8; 1]);
    let sends = run_ahead(&contexts, &mut from, &mut last);
    let recv = buffer(&contexts[1], &mut into);
    recv.recv(&[0], 6, 0, 1).unwrap();
    let error = recv.wait_recv(SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert!(error.message().contains("rank 0 at 127.0.0.1:"), "{error}");
    assert!(error.message().contains("no receive was posted for") && error.message().contains("16777216"), "{error}");
    assert!(kept(&contexts) < 4 * PAUSE + (1 << 20));
    drop((sends, recv));
}

#[test]
fn writes_for_nobody_are_held_back_too() {
    const LARGE: usize = 50_000_000;
    let contexts = pair(1 << 30);
    let from = random_bytes(1, LARGE);
    let mut into = vec![0u8; LARGE];
    // SAFETY: the vectors outlive the buffers.
    let send = unsafe { contexts[0].pair(1).unwrap().send_buffer(9, from.as_ptr(), LARGE).unwrap() };
    send.send(0, LARGE, 0).unwrap();
    let most = settled(&contexts);
    assert!((PAUSE..PAUSE + (1 << 20)).contains(&most), "{most}");
    // SAFETY: as above.
    let recv = unsafe { contexts[1].pair(0).unwrap().recv_buffer(9, into.as_mut_ptr(), LARGE).unwrap() };
    assert_eq!(recv.wait_recv(SOON).unwrap(), (0, LARGE));
    assert_eq!(kept(&contexts), 0);
    drop((send, recv));
    assert!(from == into);
}

#[test]
fn who_is_held_back_may_leave() {
    let contexts = pair(1 << 30);
    let (mut from, mut last, mut into) = (random_bytes(1, BYTES), [7], vec![0u8; BYTES]);
    let sends = run_ahead(&contexts, &mut from, &mut last);
    let here = settled(&contexts) / (BYTES + UNEXPECTED_OVERHEAD);
    drop(sends);
    contexts[0].close();
    let recv = buffer(&contexts[1], &mut into);
    for _ in 0..here {
        recv.recv(&[0], 5, 0, BYTES).unwrap();
        assert_eq!(recv.wait_recv(SOON).unwrap(), Some(0));
    }
    recv.recv(&[0], 7, 0, 1).unwrap();
    let error = recv.wait_recv(SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
    drop(recv);
    assert!(into == from);
}
