//! Unexpected messages, limits on them, and changes to buffers while data arrives.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use super::job::play;
use super::{idle, idle_until};
use crate::context::{Context, ContextOptions, UnboundBuffer};
use crate::error::ErrorKind;
use crate::messaging::matching::UNEXPECTED_OVERHEAD_BYTES;
use crate::testing::loopback::{LinkModel, Network, Random};

const BYTES: usize = 60_000;
const MESSAGES: usize = 100;
/// A quarter of the data sent, and more than the capacity of a link.
const PAUSE: usize = 1 << 20;
/// A single pass of reading may exceed a limit by this many bytes.
const TURN: usize = 1 << 19;
/// More than the capacity of a link, and more than a single pass reads.
const HUGE: usize = 4 << 20;
/// Long enough for all data in transit to arrive.
const SETTLED: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(10);

fn link_model() -> LinkModel {
    LinkModel {
        delay: Duration::from_micros(1)..Duration::from_micros(50),
        capacity: 100_000,
        piece: 30_000,
        reads_above: None,
        places_above: None,
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

fn queued_bytes(context: &Context) -> usize {
    context.lock().unwrap().messenger.queued_bytes(0)
}

/// Runs two ranks. Rank 1 stops reading at `PAUSE` bytes of unexpected messages, and accepts at most `max` bytes.
fn pair(max: usize, rank_0: impl Fn(&Network, &Arc<Context>), rank_1: impl Fn(&Network, &Arc<Context>)) {
    play(link_model(), 2, &ContextOptions::default(), |network, context| {
        if context.rank() == 0 {
            return rank_0(network, context);
        }
        context.lock().unwrap().messenger.set_limits(PAUSE, max);
        rank_1(network, context);
    });
}

/// Rank 0 sends `MESSAGES` messages on slot 5 and one on slot 6. With `all` it waits until they have been sent.
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

/// Bytes of unexpected messages queued at rank 1 after a while.
fn settle(network: &Network, context: &Context) -> usize {
    idle(network, SETTLED);
    queued_bytes(context)
}

fn receive(recv: &UnboundBuffer, slot: u64, bytes: usize) {
    recv.recv(&[0], slot, 0, bytes).unwrap();
    assert_eq!(recv.wait_recv(None).unwrap(), Some((0, bytes)));
}

#[test]
fn a_sender_that_runs_ahead_is_throttled_and_no_message_is_lost() {
    let ahead = |_: &Network, context: &Arc<Context>| run_ahead(context, true);
    pair(1 << 30, ahead, |network, context| {
        let max = settle(network, context);
        assert!((PAUSE..PAUSE + TURN).contains(&max), "{max}");
        let mut into = vec![0u8; BYTES];
        let recv = buffer(context, &mut into);
        for number in 0..MESSAGES {
            receive(&recv, 5, BYTES);
            assert!(
                queued_bytes(context) < PAUSE + 2 * TURN,
                "message {number}: {} bytes are queued",
                queued_bytes(context)
            );
        }
        receive(&recv, 6, 1);
        assert_eq!(queued_bytes(context), 0);
        drop(recv);
        assert!(into[0] == 7 && into[1..] == random_bytes(BYTES)[1..]);
    });
}

#[test]
fn a_message_behind_many_unexpected_ones_is_matched() {
    let ahead = |_: &Network, context: &Arc<Context>| run_ahead(context, true);
    pair(1 << 30, ahead, |network, context| {
        assert!(settle(network, context) < PAUSE + TURN);
        let mut into = vec![0u8; BYTES];
        let recv = buffer(context, &mut into);
        receive(&recv, 6, 1);
        assert_eq!(queued_bytes(context), MESSAGES * (BYTES + UNEXPECTED_OVERHEAD_BYTES));
        (0..MESSAGES).for_each(|_| receive(&recv, 5, BYTES));
        assert_eq!(queued_bytes(context), 0);
        drop(recv);
        assert!(into == random_bytes(BYTES));
    });
}

#[test]
fn a_sender_that_exceeds_the_limit_is_disconnected() {
    const MAX_BYTES: usize = 4 * PAUSE;
    // The sends do not fail: they were completed before.
    let ahead = |network: &Network, context: &Arc<Context>| {
        let (mut from, mut last) = (random_bytes(BYTES), [7]);
        let sends = [buffer(context, &mut from), buffer(context, &mut last)];
        (0..MESSAGES).for_each(|_| sends[0].send(1, 5, 0, BYTES).unwrap());
        sends[1].send(1, 6, 0, 1).unwrap();
        idle(network, 2 * SETTLED);
    };
    pair(MAX_BYTES, ahead, |network, context| {
        settle(network, context);
        let mut into = [0u8];
        let recv = buffer(context, &mut into);
        recv.recv(&[0], 6, 0, 1).unwrap();
        let error = recv.wait_recv(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        for part in ["rank 0 at node 0", "no receive was posted for", &MAX_BYTES.to_string()] {
            assert!(error.message().contains(part), "{error}");
        }
        assert!(queued_bytes(context) < MAX_BYTES + TURN);
    });
}

/// Rank 0 writes `HUGE` bytes into the buffer that rank 1 binds to slot 9, now or later.
fn writes_huge(_: &Network, context: &Arc<Context>) {
    let from = random_bytes(HUGE);
    // SAFETY: the vector lives longer than the buffer.
    let send = unsafe { context.pair(1).unwrap().send_buffer(9, from.as_ptr(), HUGE).unwrap() };
    send.send(0, HUGE, 0).unwrap();
    send.wait_send(None).unwrap();
}

#[test]
fn writes_without_a_bound_buffer_are_throttled_too() {
    pair(1 << 30, writes_huge, |network, context| {
        let max = settle(network, context);
        assert!((PAUSE..PAUSE + TURN).contains(&max), "{max}");
        let mut into = vec![0u8; HUGE];
        // SAFETY: the vector lives longer than the buffer, which is dropped first.
        let recv = unsafe { context.pair(0).unwrap().recv_buffer(9, into.as_mut_ptr(), HUGE).unwrap() };
        assert_eq!(recv.wait_recv(None).unwrap(), (0, HUGE));
        assert_eq!(queued_bytes(context), 0);
        drop(recv);
        assert!(into == random_bytes(HUGE));
    });
}

#[test]
fn a_throttled_sender_may_close_its_context() {
    let leaves = |network: &Network, context: &Arc<Context>| {
        let mut from = random_bytes(BYTES);
        let send = buffer(context, &mut from);
        (0..MESSAGES).for_each(|_| send.send(1, 5, 0, BYTES).unwrap());
        idle(network, 2 * SETTLED);
        drop(send);
        context.close();
    };
    pair(1 << 30, leaves, |network, context| {
        let here = settle(network, context) / (BYTES + UNEXPECTED_OVERHEAD_BYTES);
        assert!(here > 0 && here < MESSAGES);
        idle(network, 2 * SETTLED);
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
        let some = || queued_bytes(context) > UNEXPECTED_OVERHEAD_BYTES;
        assert!(idle_until(network, network.now() + LONG, some) && queued_bytes(context) < HUGE);
        let mut into = vec![0u8; HUGE];
        // SAFETY: the vector lives longer than the buffer, which is dropped first.
        let recv = unsafe { context.pair(0).unwrap().recv_buffer(9, into.as_mut_ptr(), HUGE).unwrap() };
        assert_eq!(recv.wait_recv(None).unwrap(), (0, HUGE));
        drop(recv);
        assert!(into == random_bytes(HUGE));
    });
}

#[test]
fn dropping_a_buffer_does_not_affect_a_put_into_another_buffer_over_the_same_memory() {
    let shared = OnceCell::new();
    let puts = |network: &Network, context: &Arc<Context>| {
        let mut from = random_bytes(HUGE);
        let local = buffer(context, &mut from);
        idle(network, SETTLED);
        local.put(shared.get().unwrap(), 0, 0, 0, HUGE).unwrap();
        assert_eq!(local.wait_send(None).unwrap(), Some(1));
    };
    pair(1 << 30, puts, |network, context| {
        let mut into = vec![0u8; HUGE];
        let (first, last) = (into.as_ptr(), into[HUGE - 1..].as_ptr());
        let (other, remote) = (buffer(context, &mut into), buffer(context, &mut into));
        other.remote_key().unwrap();
        assert!(shared.set(remote.remote_key().unwrap()).is_ok());
        // SAFETY: both addresses are in the vector, which lives long enough. Only this thread writes to it, inside the
        // library, and the read is volatile.
        let [has_begun, has_ended] = [first, last].map(|at| move || unsafe { at.read_volatile() } != 0);
        assert!(idle_until(network, network.now() + LONG, has_begun) && !has_ended());
        drop(other);
        assert!(idle_until(network, network.now() + LONG, has_ended));
        drop(remote);
        assert!(into == random_bytes(HUGE));
    });
}
