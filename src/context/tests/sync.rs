//! Waits that sleep, and waits that poll: as set for a pair, or by the options of the context or the device.

use std::sync::Mutex;

use super::agreement::on_this_host;
use super::*;
use crate::collective::{Collective, Shape};
use crate::types::DataType;
use crate::wait_mode::WaitMode;

/// Above the eager limit, so that the message waits for its receive.
const LARGE: usize = 200_000;
/// Checks after which a polling thread is assumed never to sleep.
const LOOKS: usize = 300;

fn buffer(context: &Arc<Context>, memory: &mut [u8]) -> UnboundBuffer {
    // SAFETY: the callers drop the buffer before the memory.
    unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()).unwrap() }
}

fn is_polled(context: &Context) -> bool {
    context.lock().unwrap().waiters.polling || context.engine().is_polled_alone()
}

fn is_asleep(context: &Context) -> bool {
    std::thread::yield_now();
    context.lock().unwrap().waiters.sleeping.is_some()
}

/// Runs `wait`, which waits until `end`, then `meanwhile`, and checks whether the wait sleeps then, or never.
fn check(context: &Context, sleeps: bool, wait: impl FnOnce() + Send, meanwhile: impl FnOnce(), end: impl FnOnce()) {
    std::thread::scope(|scope| {
        let waits = scope.spawn(wait);
        while !is_polled(context) && !waits.is_finished() {
            std::thread::yield_now();
        }
        meanwhile();
        let asleep = if sleeps {
            std::iter::repeat_with(|| is_asleep(context)).any(|asleep| asleep || waits.is_finished())
                && !waits.is_finished()
        } else {
            // It may sleep until it sees the last change.
            std::iter::repeat_with(|| is_asleep(context)).any(|asleep| !asleep || waits.is_finished());
            waits.is_finished() || (0..LOOKS).any(|_| is_asleep(context))
        };
        end();
        assert_eq!(asleep, sleeps);
    });
}

/// A wait for a receive from any of these.
fn check_recv(context: &Arc<Context>, ranks: &[&[Rank]], sleeps: bool) {
    let mut memory = [0u8; 8];
    let recv = buffer(context, &mut memory);
    ranks.iter().for_each(|ranks| recv.recv(ranks, 7, 0, 1).unwrap());
    let wait = || assert_eq!(recv.wait_recv(None).unwrap_err().kind(), ErrorKind::Closed);
    check(context, sleeps, wait, || (), || recv.close());
}

/// A wait for a large message to that rank, which has posted no receive.
fn check_send(context: &Arc<Context>, to: Rank, sleeps: bool) {
    let mut memory = vec![0u8; LARGE];
    let send = buffer(context, &mut memory);
    send.send(to, 7, 0, LARGE).unwrap();
    let wait = || assert_eq!(send.wait_send(None).unwrap_err().kind(), ErrorKind::Closed);
    check(context, sleeps, wait, || (), || send.close());
}

/// A wait for a write by that rank.
fn check_bound(context: &Arc<Context>, rank: Rank, sleeps: bool, meanwhile: impl FnOnce()) {
    let mut memory = [0u8; 8];
    // SAFETY: the array outlives the buffer.
    let recv = unsafe { context.pair(rank).unwrap().recv_buffer(7, memory.as_mut_ptr(), 8).unwrap() };
    let wait = || assert_eq!(recv.wait_recv(None).unwrap_err().kind(), ErrorKind::Closed);
    check(context, sleeps, wait, meanwhile, || recv.close());
}

#[test]
fn waits_for_one_pair_only_sleep_as_was_set_for_it() {
    let contexts = group(3);
    let context = &contexts[0];
    let pair = context.pair(1).unwrap();
    context.lock().unwrap().waiters.set_spin(Spin::FOREVER);
    pair.set_sync(true, false).unwrap();
    check_bound(context, 1, true, || ());
    check_bound(context, 2, false, || ());
    check_recv(context, &[&[1]], true);
    check_recv(context, &[&[1, 1], &[1]], true);
    check_recv(context, &[&[2]], false);
    check_recv(context, &[&[1, 2]], false);
    check_recv(context, &[&[1], &[2], &[1]], false);
    check_send(context, 1, true);
    check_send(context, 2, false);
    pair.set_sync(false, false).unwrap();
    check_bound(context, 1, false, || ());
}

#[test]
fn waits_for_one_pair_only_poll_as_was_set_for_it() {
    let contexts = group(3);
    let context = &contexts[0];
    let pair = context.pair(1).unwrap();
    context.lock().unwrap().waiters.set_spin(Spin::of(Duration::ZERO));
    // Includes current waits.
    check_bound(context, 1, false, || {
        while !is_asleep(context) {}
        pair.set_sync(true, true).unwrap();
    });
    check_recv(context, &[&[1]], false);
    check_recv(context, &[&[1], &[2]], true);
    check_bound(context, 2, true, || ());
}

#[test]
fn receives_count_from_when_none_was_under_way() {
    let contexts = group(2);
    let context = &contexts[0];
    let (mut memory, mut theirs) = ([0u8; 8], [0u8; 1]);
    let (own, other) = (buffer(context, &mut memory), buffer(&contexts[1], &mut theirs));
    context.lock().unwrap().waiters.set_spin(Spin::FOREVER);
    context.pair(1).unwrap().set_sync(true, false).unwrap();
    own.recv(&[0], 1, 0, 1).unwrap();
    own.recv(&[1], 7, 2, 1).unwrap();
    own.send(0, 1, 1, 1).unwrap();
    assert_eq!(own.wait_recv(None).unwrap(), Some((0, 1)));
    let wait = || assert_eq!(own.wait_recv(None).unwrap(), None);
    // Started while an operation with another rank was in progress.
    check(context, false, wait, || (), || own.abort_wait_recv());
    other.send(0, 7, 0, 1).unwrap();
    assert_eq!(own.wait_recv(None).unwrap(), Some((1, 1)));
    own.recv(&[1], 7, 2, 1).unwrap();
    check(context, true, wait, || (), || own.abort_wait_recv());
}

fn barrier(context: &Context) -> Result<()> {
    let shape = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, context.rank(), 2, 0) };
    // SAFETY: a barrier has no buffers.
    unsafe { context.run(&Call::new(shape, DataType::Uint8)) }
}

/// A wait in a barrier for the other rank, which closing ends. The error says for which rank it waited.
fn check_barrier(context: &Context, sleeps: bool) {
    let wait = || {
        let error = barrier(context).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        let waits = format!("rank {}", 1 - context.rank());
        let found = error.message().split_once("has closed this context; it waited ");
        assert!(found.is_some_and(|(_, waited)| waited.contains(&waits)), "{error}");
    };
    check(context, sleeps, wait, || (), || context.close());
}

#[test]
fn collectives_are_not_affected() {
    let contexts = group(2);
    contexts[0].lock().unwrap().waiters.set_spin(Spin::FOREVER);
    contexts[0].pair(1).unwrap().set_sync(true, false).unwrap();
    check_barrier(&contexts[0], false);
}

#[test]
fn waits_poll_or_sleep_as_the_options_say() {
    for (wait, sleeps) in [(WaitMode::Poll, false), (WaitMode::Sleep, true)] {
        let options = ContextOptions { timeout: Duration::from_secs(60), wait: Some(wait), ..Default::default() };
        check_recv(&group_with(2, &options)[0], &[&[1]], sleeps);
        for shared in [true, false] {
            let (contexts, parts) = (on_this_host(2, shared, options.clone()), Mutex::new(Vec::new()));
            run(&contexts, |context| {
                let part = context.split(Some(0), 0).unwrap().unwrap();
                parts.lock().unwrap().push(part);
            });
            let parts: Vec<_> = parts.into_inner().unwrap();
            [&parts[0], &contexts[0]].into_iter().for_each(|context| check_barrier(context, sleeps));
        }
    }
}

#[test]
fn nobody_polls_where_nobody_waits() {
    for shared in [true, false] {
        let options =
            ContextOptions { timeout: Duration::from_secs(60), wait: Some(WaitMode::Poll), ..Default::default() };
        let contexts = on_this_host(2, shared, options);
        run(&contexts, |context| barrier(context).unwrap());
        for context in &contexts {
            assert!(!is_polled(context));
            // From then on the device's thread sleeps until something comes.
            while !context.engine().is_watched() {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn the_context_s_options_come_before_the_device_s() {
    let options =
        DeviceOptions { hostname: Some("127.0.0.1".into()), wait: Some(WaitMode::Poll), ..Default::default() };
    let device = Device::create(&options).unwrap();
    let chosen = |wait| {
        let options = ContextOptions { wait, ..Default::default() };
        Context::new(device.clone(), 0, 1, &options).unwrap().options.wait
    };
    assert_eq!(chosen(None), Some(WaitMode::Poll));
    assert_eq!(chosen(Some(WaitMode::Sleep)), Some(WaitMode::Sleep));
}
