//! The device's thread: accepts connections, and makes progress for contexts on which no thread waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::super::shared::{Entry, NEVER, Shared, WAKER};
use super::super::{LINGER, TICK};
use super::deferral::Deferral;
use crate::net::gate::{self, Gate, Handshake, Refused};
use crate::net::handshake::{Accepting, Acceptor, Fault, Handle, Proven};
use crate::net::stream::Stream;
use crate::sys;
use crate::sys::poller::Event;
use crate::transport::BackgroundProgress;

/// Timeout for the whole handshake of an incoming connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The handshake of an incoming connection for one of the device's contexts.
pub(super) struct IncomingConnection {
    acceptor: Acceptor,
    binding: Vec<u8>,
    shared: Arc<Shared>,
}

impl Handshake for IncomingConnection {
    type Proven = Proven;

    fn wanted(&self) -> usize {
        self.acceptor.wanted()
    }

    fn bind(&mut self, binding: &[u8]) {
        self.binding = binding.to_vec();
    }

    fn claims(&self) -> Option<u32> {
        self.acceptor.claims()
    }

    fn take(&mut self, bytes: &[u8]) -> Result<Accepting<Proven>, Refused> {
        let find =
            |handle: &Handle| self.shared.contexts().by_handle.get(handle).map(|entry| entry.key.bound(&self.binding));
        let refused = |fault: Fault| Refused(fault, fault.reply());
        self.acceptor.take(bytes, find).map_err(refused)
    }
}

pub(super) struct Thread {
    shared: Arc<Shared>,
    gate: Gate<Stream, IncomingConnection>,
    serving: Vec<Weak<dyn BackgroundProgress>>,
    /// Whether the last wait for events has failed.
    wait_failed: bool,
}

impl Thread {
    pub fn new(shared: Arc<Shared>) -> Self {
        let known = shared.clone();
        let begin = move |socket| {
            let (stream, acceptor) = (known.security.accept(socket)?, Acceptor::new(sys::random()?));
            Ok((stream, IncomingConnection { acceptor, binding: Vec::new(), shared: known.clone() }))
        };
        let gate = Gate::new("device", shared.log.clone(), &shared.listeners, TIMEOUT, begin);
        Self { shared, gate, serving: Vec::new(), wait_failed: false }
    }

    pub fn run(&mut self) {
        sys::block_signals();
        let mut ready = [Event::default(); 64];
        let mut last_tick = Instant::now();
        let mut stop_at = None;
        let mut deferral = Deferral::new(last_tick);
        loop {
            let draining = !self.shared.contexts().draining.is_empty();
            if self.shared.stop.load(Ordering::SeqCst) {
                let until = *stop_at.get_or_insert_with(|| Instant::now() + LINGER);
                if !draining || Instant::now() >= until {
                    return;
                }
            }
            let idle = !draining && self.gate.next_tick().is_none();
            self.shared.asleep.store(idle, Ordering::SeqCst);
            let sleep = idle && self.shared.unarmed.load(Ordering::SeqCst) == 0;
            if !sleep {
                // A context that is disarmed from now on finds a thread that ticks already.
                self.shared.asleep.store(false, Ordering::SeqCst);
            }
            let until = if sleep { self.shared.until_reminder() } else { Some(TICK) };
            let n = self.wait(&mut ready, until);
            self.shared.asleep.store(false, Ordering::SeqCst);
            let found = ready;
            let contexts = |number: u64| number != WAKER && !gate::owns(number);
            for event in &found[..n] {
                match event.number {
                    WAKER => self.shared.waker.clear(),
                    number if gate::owns(number) => self.accept_connections(number),
                    _ => {}
                }
            }
            let mut numbers = found[..n].iter().map(|event| event.number).filter(|number| contexts(*number)).peekable();
            if numbers.peek().is_some() {
                for number in numbers {
                    self.serve(
                        |entry| entry.number == number,
                        |context| {
                            if !deferral.defers(context.visits()) {
                                context.drive();
                            }
                        },
                    );
                }
                // The listener's descriptor stays readable, so the thread sleeps instead of polling.
                deferral.delay(Instant::now()).into_iter().for_each(std::thread::sleep);
            }
            if self.shared.until_reminder().is_some_and(|time| time.is_zero()) {
                // What a context has asked for until then, it is reminded of now.
                self.shared.reminder.swap(NEVER, Ordering::SeqCst);
                self.serve(|_| true, |context| context.reminded());
            }
            if !sleep && last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    /// Waits for events. If the poller fails, as it does if the program closes its descriptor, says so once, and waits
    /// for a tick.
    fn wait(&mut self, ready: &mut [Event], timeout: Option<Duration>) -> usize {
        let waited = self.shared.poller.wait(ready, timeout);
        let had_failed = std::mem::replace(&mut self.wait_failed, waited.is_err());
        waited.unwrap_or_else(|error| {
            if !had_failed {
                self.gate.warn(&format!("cannot wait for events, so no connection is accepted: {error}"));
            }
            std::thread::sleep(TICK);
            0
        })
    }

    /// Calls `progress` for the contexts that `which` selects. The lock on the list is not held meanwhile, because a
    /// context may change the list.
    fn serve(&mut self, which: impl Fn(&Entry) -> bool, mut progress: impl FnMut(&dyn BackgroundProgress)) {
        let contexts = self.shared.contexts();
        self.serving.extend(contexts.by_handle.values().filter(|e| which(e)).filter_map(|e| e.context.clone()));
        drop(contexts);
        self.serving.drain(..).filter_map(|context| context.upgrade()).for_each(|context| progress(&*context));
    }

    fn tick(&mut self) {
        self.serve(|_| true, |context| context.tick());
        self.gate.tick(Instant::now());
        // Without the lock, which calls of the program need.
        let mut draining = std::mem::take(&mut self.shared.contexts().draining);
        draining.retain_mut(|(closing, until)| closing.linger() && Instant::now() < *until);
        self.shared.contexts().draining.append(&mut draining);
    }

    /// Passes authenticated connections to their contexts.
    fn accept_connections(&mut self, number: u64) {
        for (stream, peer) in self.gate.ready(number) {
            let contexts = self.shared.contexts();
            let Some(entry) = contexts.by_handle.get(&peer.to) else { continue };
            let (arrivals, context, notice) = (entry.arrivals.clone(), entry.context.clone(), entry.notice.clone());
            drop(contexts);
            if let Some(notice) = notice {
                self.shared.notify(stream, peer.frames, &notice);
                continue;
            }
            arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((stream, peer));
            if let Some(context) = context.and_then(|context| context.upgrade()) {
                context.arrived();
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::super::deferral::{GRACE, MAX_TOTAL};
    use super::*;
    use crate::transport::device::{Device, DeviceOptions};
    use crate::transport::{Device as _, JobToken};

    /// A thread of the program is always about to come.
    #[derive(Default)]
    struct AlwaysVisited {
        looks: AtomicU32,
        drives: AtomicU32,
        reminders: AtomicU32,
    }

    impl BackgroundProgress for AlwaysVisited {
        fn drive(&self) {
            self.drives.fetch_add(1, Ordering::Relaxed);
        }

        fn visits(&self) -> usize {
            self.looks.fetch_add(1, Ordering::Relaxed);
            1
        }

        fn tick(&self) {}

        fn reminded(&self) {
            self.reminders.fetch_add(1, Ordering::Relaxed);
        }

        fn arrived(&self) {}
    }

    #[test]
    fn a_context_is_driven_though_the_program_comes_again_and_again() {
        let options =
            DeviceOptions { hostname: Some("127.0.0.1".into()), shared_memory: Some(true), ..Default::default() };
        let device = Device::create(&options).unwrap();
        let mut connections = device.clone().connections(&JobToken::none()).unwrap();
        let context = Arc::new(AlwaysVisited::default());
        let weak: Weak<dyn BackgroundProgress> = Arc::<AlwaysVisited>::downgrade(&context);
        let watch = device.watch(&connections, weak).unwrap();
        // The doorbell goes on ringing, since the context does not look.
        connections.bell().unwrap().ring();
        let start = Instant::now();
        while context.drives.load(Ordering::Relaxed) < 3 {
            assert!(start.elapsed() < Duration::from_secs(20), "the context is not driven");
            std::thread::sleep(GRACE);
        }
        drop(watch);
        let looks = context.looks.load(Ordering::Relaxed);
        // The doorbell is readable at once after each delay, so a thread comes once in somewhat more than the delay.
        let fewest = 2 * MAX_TOTAL.div_duration_f64(GRACE) as u32;
        assert!(looks >= fewest, "driven after {looks} looks");
    }

    #[test]
    fn a_poller_that_fails_is_reported_once() {
        let (say, heard) = std::sync::mpsc::channel();
        let log: crate::log::LogCallback = Arc::new(move |_, text: &str| say.send(text.to_owned()).unwrap_or(()));
        let options = DeviceOptions { hostname: Some("127.0.0.1".into()), log: Some(log), ..Default::default() };
        let device = Device::create(&options).unwrap();
        device.shared.poller.break_down();
        device.shared.waker.wake();
        let long = Duration::from_secs(20);
        let warning = "device: cannot wait for events, so no connection is accepted: Invalid argument (os error 22)";
        while heard.recv_timeout(long).expect("a warning") != warning {}
        std::thread::sleep(10 * TICK);
        drop(device);
        assert!(heard.try_iter().all(|line| line != warning), "it is said again");
    }

    #[test]
    fn a_context_is_reminded_once() {
        let options = DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
        let device = Device::create(&options).unwrap();
        let connections = device.clone().connections(&JobToken::none()).unwrap();
        let context = Arc::new(AlwaysVisited::default());
        let weak: Weak<dyn BackgroundProgress> = Arc::<AlwaysVisited>::downgrade(&context);
        let watch = device.clone().watch(&connections, weak).unwrap();
        let reminders = || context.reminders.load(Ordering::Relaxed);
        assert_eq!(device.shared.until_reminder(), None);
        watch.remind(Duration::from_secs(3600));
        for round in 1..=3 {
            // The thread sleeps until the later one.
            watch.remind(Duration::from_millis(1));
            let start = Instant::now();
            while reminders() < round {
                assert!(start.elapsed() < Duration::from_secs(20), "the context is not reminded");
                std::thread::sleep(GRACE);
            }
            assert_eq!((reminders(), device.shared.until_reminder()), (round, None), "no other time is left");
        }
    }
}
