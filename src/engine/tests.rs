//! Threads around a transport of the tests' own.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::sys::Waker;
use crate::transport::{Recv, Remote, Send, Token};
use crate::types::{Rank, Slot};

/// Something always moves, for somebody else.
struct Busy(Waker);

impl Transport for Busy {
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
    fn progress(&mut self, _: &mut Vec<Event>) -> bool {
        true
    }
    fn flush(&mut self, _: &mut Vec<Event>) {}
    fn poll_fd(&self) -> RawFd {
        self.0.as_raw_fd()
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

fn busy() -> Engine<Busy> {
    let transport = Busy(Waker::new().unwrap());
    // Always readable, as the transport says.
    transport.0.wake();
    Engine::new(transport, |_| String::new(), Spin::For(Duration::ZERO)).unwrap()
}

#[test]
fn traffic_of_others_does_not_take_a_wait_past_its_deadline() {
    let engine = busy();
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_millis(50);
            let guard = engine.lock().unwrap();
            let ready = |_: &mut Core<Busy>| given_up.load(Ordering::Relaxed).then_some(());
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
    let engine = busy();
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = engine.lock().unwrap();
            let ready = |_: &mut Core<Busy>| given_up.load(Ordering::Relaxed).then_some(());
            let (guard, _) = engine.wait(guard, Instant::now() + Duration::from_secs(20), ready);
            engine.hand_over(guard);
        });
        std::thread::sleep(Duration::from_millis(20));
        let posts = scope.spawn(|| drop(engine.lock().unwrap()));
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
