//! Several threads on one messenger, whose only link is simulated by the test.

use std::ffi::c_void;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::requests::{Ended, Side};
use super::*;
use crate::collective::{Collective, Constants, Shape};
use crate::engine::plan::PlanCache;
use crate::messaging::Send;
use crate::sys::{Pollable, Waker};
use crate::testing::links::{StreamLink, Turns, sockets, unconnected};
use crate::transport::{Clock, Interest, Link, SystemClock};
use crate::types::{Rank, Space};
use crate::wait_mode::WaitMode;
use crate::wire::Message;
use crate::wire::header::HEADER_BYTES;

const CONNECTION: u32 = 1;

/// A peer that sends a put to a nonexistent region, of more bytes than could be received in a year.
struct Busy {
    /// The part of the header that was not received yet.
    header: Vec<u8>,
}

impl Link for Busy {
    fn send(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.header.is_empty() {
            return Ok(parts.iter().map(|part| part.len()).sum());
        }
        let n = parts[0].len().min(self.header.len());
        parts[0][..n].copy_from_slice(&self.header[..n]);
        self.header.drain(..n);
        Ok(n)
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn end(self: Box<Self>, _: Vec<u8>, _: Vec<u8>) {}
}

/// A link that is full until it has been read once: the flush after that is the first that can send.
struct Full {
    has_room: bool,
}

impl Link for Full {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.has_room {
            true => Ok(parts.iter().map(|part| part.len()).sum()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn receive(&mut self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.has_room = true;
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn end(self: Box<Self>, _: Vec<u8>, _: Vec<u8>) {}
}

/// Rank 0 of two, connected to rank 1 by `link`. Its descriptor is always readable, or never.
fn engine(link: impl Link + 'static, readable: bool) -> (Engine, Waker) {
    let waker = Waker::new().unwrap();
    if readable {
        waker.wake();
    }
    let mut messenger = Messenger::new(0, 2, unconnected(Some(Pollable::from(&waker)), None), None);
    messenger.established(1, Box::new(link), CONNECTION);
    let spin = Spin::of(Duration::ZERO);
    (Engine::new(messenger, Arc::new(SystemClock), |_| String::new(), spin).unwrap(), waker)
}

/// A context that always makes progress, but never for the thread that waits.
fn busy() -> (Engine, Waker) {
    let message = Message::Put { request: 0, region: 0, offset: 0, bytes: isize::MAX as u64 };
    let header: [u8; HEADER_BYTES] = message.encode(CONNECTION);
    engine(Busy { header: header.into() }, true)
}

#[test]
fn traffic_of_others_does_not_take_a_wait_past_its_deadline() {
    let (engine, _readable) = busy();
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_millis(50);
            let guard = engine.lock();
            let ready = |_: &mut Core| given_up.load(Ordering::Relaxed).then_some(());
            let (guard, result) = engine.wait(guard, deadline, ready);
            engine.hand_over(guard);
            result
        });
        let until = Instant::now() + Duration::from_secs(5);
        while !waits.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        given_up.store(true, Ordering::Relaxed);
        assert_eq!(waits.join().unwrap(), None, "it waited for longer than its deadline");
    });
}

#[test]
fn traffic_of_others_does_not_keep_the_lock_from_them() {
    let (engine, _readable) = busy();
    let (waiting, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = engine.lock();
            let ready = |_: &mut Core| {
                waiting.store(true, Ordering::Relaxed);
                given_up.load(Ordering::Relaxed).then_some(())
            };
            let (guard, _) = engine.wait(guard, Instant::now() + Duration::from_secs(20), ready);
            engine.hand_over(guard);
        });
        while !waiting.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let posts = scope.spawn(|| drop(engine.lock()));
        let until = Instant::now() + Duration::from_secs(5);
        while !posts.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let posted = posts.is_finished();
        given_up.store(true, Ordering::Relaxed);
        waits.join().unwrap();
        assert!(posted, "the lock was never free");
    });
}

/// The watch must neither try again at once, when the thread with the lock may have lost its core to it, nor take the
/// work from a thread that waits for a request.
#[test]
fn threads_that_have_the_lock_or_stay_are_visits() {
    let (engine, _readable) = busy();
    let guard = engine.lock();
    engine.take_visits();
    std::thread::scope(|scope| scope.spawn(|| engine.serve()).join().unwrap());
    assert_eq!((engine.take_visits(), engine.take_visits()), (1, 0));
    drop(guard);
    let stay = engine.stay();
    assert_eq!([engine.take_visits(), engine.take_visits()], [usize::MAX; 2]);
    drop(stay);
    assert_eq!(engine.take_visits(), 0);
}

#[test]
fn what_ends_in_the_last_flush_before_sleeping_is_seen() {
    let (engine, _readable) = engine(Full { has_room: false }, false);
    let mut guard = engine.lock();
    let owner = guard.requests.enter();
    let message = [0u8; 4];
    let (token, from) = (Requests::token(owner, Side::Send), message.as_ptr());
    let send =
        Send { to: 1, space: Space::USER, slot: 1, fingerprint: 0, from, bytes: message.len(), more: false, token };
    // SAFETY: `message` lives until the end of this function, which waits for the send.
    unsafe { guard.messenger.send(send) };
    let deadline = Instant::now() + Duration::from_secs(10);
    let (guard, ended) = engine.wait(guard, deadline, |core| core.requests.take(owner, Side::Send));
    engine.hand_over(guard);
    assert!(matches!(ended, Some(Ended::Message(1, 4))), "{ended:?}");
    assert!(Instant::now() < deadline, "it slept although what it waited for had ended");
}

#[test]
fn connectors_get_the_current_time_even_after_a_long_pause() {
    let turns = Turns::default();
    let messenger = Messenger::new(0, 2, unconnected(None, Some(turns.clone())), None);
    let engine = Engine::new(messenger, Arc::new(SystemClock), |_| String::new(), Spin::of(Duration::ZERO)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let before = Instant::now();
    engine.leave(engine.lock());
    assert!(turns.lock().unwrap().drain(..).all(|turn| turn >= before), "after a post");
    std::thread::sleep(Duration::from_millis(20));
    let (before, deadline) = (Instant::now(), Instant::now() + Duration::from_millis(20));
    let (guard, _) = engine.wait(engine.lock(), deadline, |_| None::<()>);
    engine.hand_over(guard);
    let turns = turns.lock().unwrap();
    assert!(turns[0] >= before, "when a wait began");
    assert!(turns[turns.len() - 1] >= deadline, "when it had slept");
}

/// A clock that advances by 1 µs each time it is read. Sleeping takes no real time.
struct Ticks {
    start: Instant,
    ticks: Mutex<u32>,
    /// The tick at which a thread first slept.
    slept: Mutex<Option<u32>>,
    /// At the first yield after this tick, another thread has the core for as many ticks.
    preempted: Mutex<Option<(u32, u32)>>,
}

impl Ticks {
    fn new(preempted: Option<(u32, u32)>) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            ticks: Mutex::new(0),
            slept: Mutex::new(None),
            preempted: preempted.into(),
        })
    }

    fn at(&self, micros: u64) -> Instant {
        self.start + Duration::from_micros(micros)
    }
}

impl Clock for Ticks {
    fn now(&self) -> Instant {
        let mut ticks = self.ticks.lock().unwrap();
        *ticks += 1;
        self.at(u64::from(*ticks))
    }

    fn sleep(&self, _: &[Pollable], until: Instant) -> bool {
        let mut ticks = self.ticks.lock().unwrap();
        self.slept.lock().unwrap().get_or_insert(*ticks);
        *ticks = until.duration_since(self.start).as_micros() as u32;
        false
    }

    fn yield_now(&self) {
        let mut ticks = self.ticks.lock().unwrap();
        if let Some((_, taken)) = self.preempted.lock().unwrap().take_if(|(at, _)| *at < *ticks) {
            *ticks += taken;
        }
    }
}

#[test]
fn a_wait_for_one_peer_polls_for_as_long_as_was_set_for_that() {
    let after = |micros| Spin::of(Duration::from_micros(micros));
    // When the wait of 1000 µs falls asleep, in µs.
    let falls_asleep = |peer: Option<Rank>| {
        let clock = Ticks::new(None);
        let messenger = Messenger::new(0, 4, unconnected(None, None), None);
        let engine = Engine::new(messenger, clock.clone(), |_| String::new(), after(100)).unwrap();
        let mut guard = engine.lock();
        guard.waiters.set_pair_spin(1, Some(after(0)));
        guard.waiters.set_pair_spin(2, Some(Spin::FOREVER));
        guard.waiters.set_pair_spin(3, Some(Spin::FOREVER));
        guard.waiters.set_pair_spin(3, None);
        let (guard, _) = engine.wait_for(guard, peer, &mut Idle::default(), clock.at(1000), |_| None::<()>);
        engine.hand_over(guard);
        *clock.slept.lock().unwrap()
    };
    let usual = falls_asleep(None).unwrap();
    assert!((100..120).contains(&usual), "{usual}");
    assert!(falls_asleep(Some(1)).unwrap() < 20);
    assert_eq!(falls_asleep(Some(2)), None);
    assert_eq!(falls_asleep(Some(3)), Some(usual));
}

/// When the first of these waits falls asleep, in µs, if its thread is preempted so. Each wait has turns that end at its
/// times, and polls for 10 ms where it has its core to itself.
fn falls_asleep(waits: &[&[u64]], preempted: Option<(u32, u32)>) -> Option<u32> {
    let clock = Ticks::new(preempted);
    let messenger = Messenger::new(0, 2, unconnected(None, None), None);
    let constants = Constants { spin_us: 100.0, spin_alone_us: 10_000.0, ..Constants::BUILT_IN };
    let spin = Spin::new(WaitMode::Auto, Cores::Own, &constants);
    let engine = Engine::new(messenger, clock.clone(), |_| String::new(), spin).unwrap();
    for turns in waits {
        let mut idle = Idle::default();
        for end in *turns {
            let (guard, _) = engine.wait_for(engine.lock(), None, &mut idle, clock.at(*end), |_| None::<()>);
            engine.hand_over(guard);
        }
    }
    *clock.slept.lock().unwrap()
}

#[test]
fn a_wait_polls_on_until_another_thread_has_had_its_core_for_long() {
    let slept = |preempted, within: std::ops::Range<u32>| {
        let slept = falls_asleep(&[&[50_000]], preempted).unwrap();
        assert!(within.contains(&slept), "{preempted:?}: {slept}");
    };
    slept(None, 10_000..10_020);
    slept(Some((150, 40)), 10_000..10_020);
    slept(Some((150, 3900)), 10_000..10_020);
    slept(Some((150, 4100)), 4250..4270);
}

#[test]
fn the_next_wait_sleeps_at_once_after_another_thread_has_had_the_core() {
    // The first wait ends while the other thread has the core.
    let slept = |preempted| falls_asleep(&[&[200], &[50_000]], preempted).unwrap();
    let at = slept(Some((150, 4100)));
    assert!((4250..4280).contains(&at), "{at}");
    let at = slept(Some((150, 3900)));
    assert!((14_050..14_100).contains(&at), "{at}");
}

#[test]
fn a_wait_in_turns_polls_no_longer_than_one() {
    let slept = falls_asleep(&[&[100, 200, 280, 50_000]], None).unwrap();
    assert!((10_000..10_020).contains(&slept), "{slept}");
    assert_eq!(falls_asleep(&[&[100, 200, 280]], None), None);
}

#[test]
fn the_thread_that_polls_does_so_for_as_long_as_any_that_waits_would() {
    let (engine, _readable) = engine(Full { has_room: false }, false);
    engine.lock().waiters.set_pair_spin(2, Some(Spin::FOREVER));
    let (over, eager_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let wait = |peer, over: &AtomicBool| {
        let ready = |_: &mut Core| over.load(Ordering::Relaxed).then_some(());
        let (guard, result) =
            engine.wait_for(engine.lock(), peer, &mut Idle::default(), Instant::now() + Duration::from_secs(20), ready);
        engine.hand_over(guard);
        assert!(result.is_some(), "it waited in vain");
    };
    let end = |over: &AtomicBool| {
        over.store(true, Ordering::Relaxed);
        engine.wake();
    };
    std::thread::scope(|scope| {
        let polls = scope.spawn(|| wait(None, &over));
        let await_that = |met: &dyn Fn(&Core) -> bool| {
            while !met(&engine.lock()) && !polls.is_finished() {
                std::thread::yield_now();
            }
        };
        await_that(&|core| core.waiters.sleeping.is_some());
        let eager = scope.spawn(|| wait(Some(2), &eager_over));
        await_that(&|core| core.waiters.peers() == [Some(2)]);
        await_that(&|core| core.waiters.sleeping.is_none());
        let slept = (0..300).any(|_| {
            std::thread::yield_now();
            engine.lock().waiters.sleeping.is_some()
        });
        end(&eager_over);
        eager.join().unwrap();
        await_that(&|core| core.waiters.sleeping.is_some());
        end(&over);
        polls.join().unwrap();
        assert!(!slept);
    });
}

/// What the reduction function needs to act as the peer.
struct Asks {
    engine: Engine,
    peer: UnixStream,
}

/// A reduction function during which the peer sends a query.
unsafe extern "C" fn count_call(
    _: *mut c_void,
    _: *const c_void,
    _: *const c_void,
    _: usize,
    asks: *mut c_void,
) -> i32 {
    // SAFETY: the test passes a pointer to an `Asks` that lives until the run has ended.
    let Asks { engine, peer } = unsafe { &*asks.cast::<Asks>() };
    let query = Message::Query { slot: 3, fingerprint: 0 }.encode(CONNECTION);
    (&*peer).write_all(&query).unwrap();
    engine.leave(engine.lock());
    0
}

#[test]
fn a_reply_during_a_reduction_function_says_so() {
    let (ours, peer) = sockets();
    let (engine, _readable) = engine(StreamLink::new(ours, Default::default()), false);
    let mut asks = Asks { engine, peer };
    let shape = Shape { inputs: 2, ..Shape::new(Collective::Allreduce, 0, 1, 1) };
    let plan = PlanCache::default().get(&shape, Collective::Allreduce.algorithm("local").unwrap(), true).unwrap();
    let algorithm = Collective::Allreduce.algorithm("local").unwrap();
    let call = Prepared::internal(plan, (&shape, algorithm), 8, 5, false).unwrap();
    let call = Arc::new(Prepared { combine: Combine::User, ..call });
    let (inputs, mut output) = ([0u64; 2], 0u64);
    let binding = Binding {
        call: &call,
        inputs: &[inputs[..1].as_ptr().cast(), inputs[1..].as_ptr().cast()],
        outputs: &[(&raw mut output).cast()],
        function: Some((count_call, (&raw const asks).cast_mut().cast())),
        tag: 3,
        in_order: false,
    };
    let mut guard = asks.engine.lock();
    let index = guard.start(call.clone(), &binding, None).unwrap();
    let (mut guard, over) = asks.engine.finish(guard, index, Instant::now() + Duration::from_secs(20));
    assert!(over && guard.end(index).is_none());
    drop(guard);
    let mut header = [0; HEADER_BYTES];
    asks.peer.read_exact(&mut header).unwrap();
    let Ok(Message::Reply { waiting: false, instead: 0, bytes }) = Message::decode(&header, CONNECTION) else {
        panic!("{header:?}")
    };
    let mut text = vec![0; bytes as usize];
    asks.peer.read_exact(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("inside its reduction function"), "{text}");
}

/// A second thread that asks gets nothing, and takes nothing from the first one.
#[test]
fn one_thread_polls_alone() {
    let (engine, _waker) = engine(Full { has_room: true }, false);
    let first = engine.poll_alone(&engine.lock(), None).unwrap();
    for _ in 0..2 {
        assert!(engine.poll_alone(&engine.lock(), None).is_none());
        assert!(engine.is_polled_alone());
    }
    drop(first);
    assert!(!engine.is_polled_alone());
    assert!(engine.poll_alone(&engine.lock(), None).is_some());
}
