//! Threads around a transport of the tests' own.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::requests::{Ended, Side};
use super::*;
use crate::collective::{Collective, Shape};
use crate::engine::plan::PlanCache;
use crate::sys::Waker;
use crate::transport::{Call, Recv, Remote, Send, Token};
use crate::types::{Rank, Slot};

/// What the tests want to happen.
struct Fake {
    readable: Waker,
    /// Something always moves, for somebody else.
    busy: bool,
    /// Ends when the transport is flushed, and is not seen before: a socket that had no room has some a moment later.
    ends_late: Option<Token>,
    /// Comes next.
    comes: Option<Event>,
    /// What peers that asked were told, and whether the same call waits here.
    told: Vec<(String, bool)>,
}

impl Transport for Fake {
    unsafe fn send(&mut self, _: Send) {}
    unsafe fn recv(&mut self, _: Recv) {}
    unsafe fn put(&mut self, _: Remote, _: *const u8, _: usize, _: Token) {}
    unsafe fn get(&mut self, _: Remote, _: *mut u8, _: usize, _: Token) {}
    unsafe fn register(&mut self, _: u32, _: *mut u8, _: usize) {}
    fn unregister(&mut self, _: u32) {}
    unsafe fn write(&mut self, _: Rank, _: Slot, _: u64, _: *const u8, _: usize, _: Token) {}
    unsafe fn bind(&mut self, _: Rank, _: Slot, _: *mut u8, _: usize, _: Token) -> Result<()> {
        Ok(())
    }
    fn cancel(&mut self, _: u32) {}
    fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        events.extend(self.comes.take());
        self.busy
    }
    fn tell(&mut self, _: Rank, text: &str, same: bool) {
        self.told.push((text.to_owned(), same));
    }
    fn flush(&mut self, events: &mut Vec<Event>) {
        events.extend(self.ends_late.take().map(|token| Event { token, outcome: Outcome::Done { rank: 1, bytes: 4 } }));
    }
    fn poll_fd(&self) -> RawFd {
        self.readable.as_raw_fd()
    }
    fn next_timer(&self) -> Option<Instant> {
        None
    }
    fn outgoing(&self) -> usize {
        0
    }
    fn describe(&self, _: u32) -> String {
        String::new()
    }
    fn address(&self) -> Vec<u8> {
        Vec::new()
    }
    fn set_peer(&mut self, _: Rank, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn connect(&mut self, _: Rank) {}
    fn is_connected(&self, _: Rank) -> Result<bool> {
        Ok(false)
    }
    fn is_isolated(&self) -> bool {
        false
    }
    fn shares_host(&self, _: Rank) -> Option<bool> {
        None
    }
    fn disconnect(&mut self, _: Rank, _: &Error) {}
    fn close(&mut self, _: &Error, _: Option<&Error>) {}
}

fn engine(busy: bool) -> Engine<Fake> {
    let transport = Fake { readable: Waker::new().unwrap(), busy, ends_late: None, comes: None, told: Vec::new() };
    if busy {
        transport.readable.wake();
    }
    Engine::new(transport, |_| String::new(), Spin::For(Duration::ZERO)).unwrap()
}

#[test]
fn traffic_of_others_does_not_take_a_wait_past_its_deadline() {
    let engine = engine(true);
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_millis(50);
            let guard = engine.lock();
            let ready = |_: &mut Core<Fake>| given_up.load(Ordering::Relaxed).then_some(());
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
    let engine = engine(true);
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = engine.lock();
            let ready = |_: &mut Core<Fake>| given_up.load(Ordering::Relaxed).then_some(());
            let (guard, _) = engine.wait(guard, Instant::now() + Duration::from_secs(20), ready);
            engine.hand_over(guard);
        });
        std::thread::sleep(Duration::from_millis(20));
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

#[test]
fn what_ends_in_the_last_flush_before_sleeping_is_seen() {
    let engine = engine(false);
    let mut guard = engine.lock();
    let owner = guard.requests.enter();
    guard.transport.ends_late = Some(Requests::token(owner, Side::Send));
    let deadline = Instant::now() + Duration::from_secs(10);
    let (guard, ended) = engine.wait(guard, deadline, |core| core.requests.take(owner, Side::Send));
    engine.hand_over(guard);
    assert!(matches!(ended, Some(Ended::Message(1))), "{ended:?}");
    assert!(Instant::now() < deadline, "it slept although what it waited for had ended");
}

/// Lets a peer ask for call 5, tag 3, in the middle of it.
unsafe extern "C" fn is_asked(
    _: *mut c_void,
    _: *const c_void,
    _: *const c_void,
    _: usize,
    engine: *mut c_void,
) -> i32 {
    // SAFETY: the test passes its engine.
    let engine = unsafe { &*engine.cast::<Engine<Fake>>() };
    let mut guard = engine.lock();
    let outcome = Outcome::Asked { rank: 1, call: Call { check: 5, tag: 3 } };
    guard.transport.comes = Some(Event { token: Token { owner: EVERYONE, detail: 0 }, outcome });
    engine.leave(guard);
    0
}

#[test]
fn who_asks_while_a_function_is_at_work_is_told_of_it() {
    let engine = engine(false);
    let shape = Shape { inputs: 2, ..Shape::new(Collective::Allreduce, 0, 1, 1) };
    let plan = PlanCache::default().get(&shape, Collective::Allreduce.algorithm("local").unwrap(), true).unwrap();
    let (inputs, mut output) = ([0u64; 2], 0u64);
    let binding = Binding {
        inputs: &[inputs[..1].as_ptr().cast(), inputs[1..].as_ptr().cast()],
        outputs: &[(&raw mut output).cast()],
        element: 8,
        segment: 1,
        combine: Combine::User(is_asked, (&raw const engine).cast_mut().cast()),
        check: 5,
        counted: false,
        tag: 3,
        count: 1,
    };
    let mut guard = engine.lock();
    let index = guard.start(plan, &binding).unwrap();
    let (mut guard, over) = engine.finish(guard, index, Instant::now() + Duration::from_secs(20));
    assert!(over && guard.end(index).is_none());
    let told = &guard.transport.told;
    assert!(matches!(&told[..], [(text, false)] if text.contains("inside its reduction function")), "{told:?}");
}
