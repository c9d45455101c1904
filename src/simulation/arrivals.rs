//! What arrives before it is asked for, too much of it, and what happens while something arrives.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use super::job::play;
use super::{idle, idle_until};
use crate::context::{Context, ContextOptions, UnboundBuffer};
use crate::error::ErrorKind;
use crate::messaging::matching::UNEXPECTED_OVERHEAD;
use crate::transport::loopback::{LinkModel, Network, Random};

const BYTES: usize = 60_000;
const MESSAGES: usize = 100;
/// A quarter of what is sent, and more than a link holds.
const PAUSE: usize = 1 << 20;
/// One turn of reading may go so far beyond a limit.
const TURN: usize = 1 << 19;
/// More than a link holds, and than one turn reads.
const HUGE: usize = 4 << 20;
/// By then everything has arrived that can.
const SETTLED: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(10);

fn link_model() -> LinkModel {
    LinkModel {
        delay: Duration::from_micros(1)..Duration::from_micros(50),
        capacity: 100_000,
        piece: 30_000,
        reads_above: None,
    }
}

fn random_bytes(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(bytes as u64);
    (0..bytes).map(|_| random.bits() as u8 | 1).collect()
}

fn buffer(context: &Arc<Context>, memory: &mut [u8]) -> UnboundBuffer {
    // SAFETY: the callers drop the buffer before the memory.
    unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()).unwrap() }
}

fn kept(context: &Context) -> usize {
    context.lock().unwrap().messenger.kept(0)
}

/// Two ranks, of which rank 1 keeps little of what it has not asked for, and at most `most`.
fn pair(most: usize, rank_0: impl Fn(&Network, &Arc<Context>), rank_1: impl Fn(&Network, &Arc<Context>)) {
    play(link_model(), 2, &ContextOptions::default(), |network, context| {
        if context.rank() == 0 {
            return rank_0(network, context);
        }
        context.lock().unwrap().messenger.set_limits(PAUSE, most);
        rank_1(network, context);
    });
}

/// Rank 0 sends `MESSAGES` to slot 5, and then one to slot 6, and goes on when `all` have left, or at once.
fn run_ahead(context: &Arc<Context>, all: bool) {
    let (mut from, mut last) = (random_bytes(BYTES), [7]);
    let (send, after) = (buffer(context, &mut from), buffer(context, &mut last));
    (0..MESSAGES).for_each(|_| send.send(1, 5, 0, BYTES).unwrap());
    after.send(1, 6, 0, 1).unwrap();
    if all {
        (0..MESSAGES).for_each(|_| assert_eq!(send.wait_send(None).unwrap(), Some(1)));
        assert_eq!(after.wait_send(None).unwrap(), Some(1));
    }
}

/// What rank 1 keeps after a while.
fn settle(network: &Network, context: &Context) -> usize {
    idle(network, context, SETTLED);
    kept(context)
}

fn receive(recv: &UnboundBuffer, slot: u64, bytes: usize) {
    recv.recv(&[0], slot, 0, bytes).unwrap();
    assert_eq!(recv.wait_recv(None).unwrap(), Some(0));
}

#[test]
fn who_runs_ahead_is_held_back_and_nothing_is_lost() {
    let ahead = |_: &Network, context: &Arc<Context>| run_ahead(context, true);
    pair(1 << 30, ahead, |network, context| {
        let most = settle(network, context);
        assert!((PAUSE..PAUSE + TURN).contains(&most), "{most}");
        let mut into = vec![0u8; BYTES];
        let recv = buffer(context, &mut into);
        for number in 0..MESSAGES {
            receive(&recv, 5, BYTES);
            assert!(kept(context) < PAUSE + 2 * TURN, "message {number}: {} bytes are kept", kept(context));
        }
        receive(&recv, 6, 1);
        assert_eq!(kept(context), 0);
        drop(recv);
        assert!(into[0] == 7 && into[1..] == random_bytes(BYTES)[1..]);
    });
}

#[test]
fn what_stands_behind_too_much_is_found() {
    let ahead = |_: &Network, context: &Arc<Context>| run_ahead(context, true);
    pair(1 << 30, ahead, |network, context| {
        assert!(settle(network, context) < PAUSE + TURN);
        let mut into = vec![0u8; BYTES];
        let recv = buffer(context, &mut into);
        receive(&recv, 6, 1);
        assert_eq!(kept(context), MESSAGES * (BYTES + UNEXPECTED_OVERHEAD));
        (0..MESSAGES).for_each(|_| receive(&recv, 5, BYTES));
        assert_eq!(kept(context), 0);
        drop(recv);
        assert!(into == random_bytes(BYTES));
    });
}

#[test]
fn who_sends_far_too_much_is_cut_off() {
    const MOST: usize = 4 * PAUSE;
    // What becomes of its messages it is not told.
    let ahead = |network: &Network, context: &Arc<Context>| {
        let (mut from, mut last) = (random_bytes(BYTES), [7]);
        let sends = [buffer(context, &mut from), buffer(context, &mut last)];
        (0..MESSAGES).for_each(|_| sends[0].send(1, 5, 0, BYTES).unwrap());
        sends[1].send(1, 6, 0, 1).unwrap();
        idle(network, context, 2 * SETTLED);
    };
    pair(MOST, ahead, |network, context| {
        settle(network, context);
        let mut into = [0u8];
        let recv = buffer(context, &mut into);
        recv.recv(&[0], 6, 0, 1).unwrap();
        let error = recv.wait_recv(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        for part in ["rank 0 at node 0", "no receive was posted for", &MOST.to_string()] {
            assert!(error.message().contains(part), "{error}");
        }
        assert!(kept(context) < MOST + TURN);
    });
}

/// Rank 0 writes `HUGE` into the buffer that rank 1 has bound to slot 9, or will.
fn writes_huge(_: &Network, context: &Arc<Context>) {
    let from = random_bytes(HUGE);
    // SAFETY: the vector outlives the buffer.
    let send = unsafe { context.pair(1).unwrap().send_buffer(9, from.as_ptr(), HUGE).unwrap() };
    send.send(0, HUGE, 0).unwrap();
    send.wait_send(None).unwrap();
}

#[test]
fn writes_for_nobody_are_held_back_too() {
    pair(1 << 30, writes_huge, |network, context| {
        let most = settle(network, context);
        assert!((PAUSE..PAUSE + TURN).contains(&most), "{most}");
        let mut into = vec![0u8; HUGE];
        // SAFETY: as above.
        let recv = unsafe { context.pair(0).unwrap().recv_buffer(9, into.as_mut_ptr(), HUGE).unwrap() };
        assert_eq!(recv.wait_recv(None).unwrap(), (0, HUGE));
        assert_eq!(kept(context), 0);
        drop(recv);
        assert!(into == random_bytes(HUGE));
    });
}

#[test]
fn who_is_held_back_may_leave() {
    let leaves = |network: &Network, context: &Arc<Context>| {
        let mut from = random_bytes(BYTES);
        let send = buffer(context, &mut from);
        (0..MESSAGES).for_each(|_| send.send(1, 5, 0, BYTES).unwrap());
        idle(network, context, 2 * SETTLED);
        drop(send);
        context.close();
    };
    pair(1 << 30, leaves, |network, context| {
        let here = settle(network, context) / (BYTES + UNEXPECTED_OVERHEAD);
        assert!(here > 0 && here < MESSAGES);
        idle(network, context, 2 * SETTLED);
        let mut into = vec![0u8; BYTES];
        let recv = buffer(context, &mut into);
        (0..here).for_each(|_| receive(&recv, 5, BYTES));
        recv.recv(&[0], 7, 0, 1).unwrap();
        assert_eq!(recv.wait_recv(None).unwrap_err().kind(), ErrorKind::ConnectionLost);
        drop(recv);
        assert!(into == random_bytes(BYTES));
    });
}

#[test]
fn a_buffer_may_be_bound_while_a_write_for_it_arrives() {
    pair(1 << 30, writes_huge, |network, context| {
        let some = || kept(context) > UNEXPECTED_OVERHEAD;
        assert!(idle_until(network, context, network.now() + LONG, some) && kept(context) < HUGE);
        let mut into = vec![0u8; HUGE];
        // SAFETY: as above.
        let recv = unsafe { context.pair(0).unwrap().recv_buffer(9, into.as_mut_ptr(), HUGE).unwrap() };
        assert_eq!(recv.wait_recv(None).unwrap(), (0, HUGE));
        drop(recv);
        assert!(into == random_bytes(HUGE));
    });
}

#[test]
fn a_buffer_that_is_dropped_does_not_refuse_what_is_put_into_another_over_the_same_memory() {
    let shared = OnceCell::new();
    let puts = |network: &Network, context: &Arc<Context>| {
        let mut from = random_bytes(HUGE);
        let local = buffer(context, &mut from);
        idle(network, context, SETTLED);
        local.put(shared.get().unwrap(), 0, 0, 0, HUGE).unwrap();
        assert_eq!(local.wait_send(None).unwrap(), Some(1));
    };
    pair(1 << 30, puts, |network, context| {
        let mut into = vec![0u8; HUGE];
        let (first, last) = (into.as_ptr(), into[HUGE - 1..].as_ptr());
        let (other, remote) = (buffer(context, &mut into), buffer(context, &mut into));
        other.remote_key().unwrap();
        assert!(shared.set(remote.remote_key().unwrap()).is_ok());
        // SAFETY: both are in the vector, to which nobody writes but this thread, inside the library.
        let [has_begun, has_ended] = [first, last].map(|at| move || unsafe { at.read_volatile() } != 0);
        assert!(idle_until(network, context, network.now() + LONG, has_begun) && !has_ended());
        drop(other);
        assert!(idle_until(network, context, network.now() + LONG, has_ended));
        drop(remote);
        assert!(into == random_bytes(HUGE));
    });
}
