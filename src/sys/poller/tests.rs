//! One contract for all pollers.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Instant;

use super::*;
use crate::sys::{self, AsRaw, Waker};

/// Long enough for anything that must happen.
const LONG: Duration = Duration::from_secs(60);

const KINDS: &[PollerKind] = &[
    #[cfg(target_os = "linux")]
    PollerKind::Epoll,
    PollerKind::Poll,
    #[cfg(feature = "uv")]
    PollerKind::Uv,
];

/// Two ends of a connection.
fn pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    let ends = [ours, theirs];
    ends.iter().for_each(|end| end.set_nonblocking(true).unwrap());
    ends
}

fn send(socket: &TcpStream, bytes: &[u8]) {
    assert_eq!(sys::send(socket.raw(), &[io::IoSlice::new(bytes)]).unwrap(), bytes.len());
}

/// What a poller finds within the time.
fn found(poller: &Poller, timeout: Duration) -> Vec<Event> {
    let mut events = [Event::default(); 8];
    let until = Instant::now() + timeout;
    loop {
        let n = poller.wait(&mut events, Some(until.saturating_duration_since(Instant::now()))).unwrap();
        if n > 0 || Instant::now() >= until {
            return events[..n].to_vec();
        }
    }
}

fn each(test: impl Fn(Poller)) {
    KINDS.iter().for_each(|kind| test(Poller::new(*kind).unwrap()));
}

#[test]
fn what_is_ready_is_reported_until_it_is_not() {
    each(|poller| {
        let [ours, theirs] = pair();
        let registration = poller.add(&ours, READ, 7).unwrap();
        assert_eq!(found(&poller, Duration::ZERO), []);
        send(&theirs, b"ab");
        for _ in 0..3 {
            assert_eq!(found(&poller, LONG), [Event { number: 7, ready: READ }], "{poller:?}");
        }
        let mut into = [0; 8];
        assert_eq!(sys::receive(ours.raw(), &mut [io::IoSliceMut::new(&mut into)]).unwrap(), 2);
        assert_eq!(found(&poller, Duration::ZERO), []);
        registration.set(READ | WRITE, 8).unwrap();
        assert_eq!(found(&poller, LONG), [Event { number: 8, ready: WRITE }]);
        registration.set(0, 8).unwrap();
        send(&theirs, b"c");
        assert_eq!(found(&poller, Duration::from_millis(20)), []);
        registration.set(READ, 9).unwrap();
        assert_eq!(found(&poller, LONG), [Event { number: 9, ready: READ }]);
        registration.end();
        assert_eq!(found(&poller, Duration::from_millis(20)), []);
        let again = poller.add(&ours, READ, 10).unwrap();
        assert_eq!(found(&poller, LONG), [Event { number: 10, ready: READ }]);
        drop((again, ours));
        // The kernel watches a socket until its last copy is closed, and a child that another test has made by fork may have one.
        let until = Instant::now() + LONG;
        while !found(&poller, Duration::from_millis(20)).is_empty() {
            assert!(Instant::now() < until, "{poller:?} watches a socket that is closed");
        }
    });
}

#[test]
fn the_end_and_the_failure_of_a_connection_are_reported() {
    each(|poller| {
        let [ours, theirs] = pair();
        let _registration = poller.add(&ours, READ | PEER_ENDED, 1).unwrap();
        drop(theirs);
        let events = found(&poller, LONG);
        assert!(matches!(events[..], [Event { number: 1, ready }] if ready & READ != 0), "{poller:?}: {events:?}");
        if cfg!(target_os = "linux") {
            assert_ne!(events[0].ready & PEER_ENDED, 0, "{poller:?}");
        }
    });
    each(|poller| {
        let [ours, theirs] = pair();
        let _registration = poller.add(&ours, READ, 1).unwrap();
        // With unread bytes, the end is a reset.
        send(&ours, b"unread");
        while theirs.peek(&mut [0]).is_err() {
            std::thread::yield_now();
        }
        drop(theirs);
        let events = found(&poller, LONG);
        assert!(matches!(events[..], [Event { number: 1, ready }] if ready & READ != 0), "{poller:?}: {events:?}");
    });
}

#[test]
fn more_events_than_there_is_room_for_come_with_the_next_wait() {
    each(|poller| {
        let pairs: Vec<_> = (0..5).map(|_| pair()).collect();
        let _all: Vec<_> =
            pairs.iter().enumerate().map(|(n, [ours, _])| poller.add(ours, READ, n as u64).unwrap()).collect();
        pairs.iter().for_each(|[_, theirs]| send(theirs, b"x"));
        let mut events = [Event::default(); 2];
        let mut seen = [false; 5];
        let until = Instant::now() + LONG;
        while seen != [true; 5] && Instant::now() < until {
            let n = poller.wait(&mut events, Some(LONG)).unwrap();
            for event in &events[..n] {
                let number = event.number as usize;
                seen[number] = true;
                // What is read is reported no more.
                let _ = sys::receive(pairs[number][0].raw(), &mut [io::IoSliceMut::new(&mut [0])]);
            }
        }
        assert_eq!(seen, [true; 5], "{poller:?}");
    });
}

#[test]
fn a_time_limit_is_kept_and_may_be_longer_than_any_clock() {
    each(|poller| {
        let began = Instant::now();
        assert_eq!(poller.wait(&mut [Event::default()], Some(Duration::from_millis(20))).unwrap(), 0);
        assert!(began.elapsed() >= Duration::from_millis(20), "{poller:?}");
        let [ours, theirs] = pair();
        let _registration = poller.add(&ours, READ, 1).unwrap();
        send(&theirs, b"x");
        assert_eq!(poller.wait(&mut [Event::default()], Some(Duration::MAX)).unwrap(), 1, "{poller:?}");
        assert_eq!(poller.wait(&mut [Event::default()], None).unwrap(), 1, "{poller:?}");
    });
}

#[cfg(target_os = "linux")]
#[test]
fn an_interest_that_could_not_be_set_is_not_taken_for_set() {
    let poller = Poller::new(PollerKind::Epoll).unwrap();
    // epoll watches no such files.
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut watched = Watched::default();
    for _ in 0..2 {
        assert_eq!(watched.set(&poller, &file, READ, 1).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}

/// Runs `sleep` on another thread, and `change` once it sleeps, as far as one can tell.
fn while_asleep(sleep: impl FnOnce() -> bool + Send + 'static, change: impl FnOnce()) -> bool {
    let (say, hear) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        say.send(()).unwrap();
        sleep()
    });
    hear.recv().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    change();
    thread.join().unwrap()
}

#[test]
fn a_sleeping_thread_hears_of_what_another_adds_and_changes() {
    each(|poller| {
        let [ours, theirs] = pair();
        send(&theirs, b"x");
        let sleeper = poller.clone();
        // Whether it wakes for the change or for the event: it finds the event.
        let sleep = move || !found(&sleeper, LONG).is_empty();
        let mut registration = None;
        assert!(while_asleep(sleep, || registration = Some(poller.add(&ours, READ, 1).unwrap())));
        let registration = registration.unwrap();
        registration.set(0, 1).unwrap();
        let sleeper = poller.clone();
        let woken = while_asleep(
            move || {
                // Any number of changes may wake it before the event does.
                let until = Instant::now() + LONG;
                while Instant::now() < until && found(&sleeper, Duration::ZERO).is_empty() {
                    sys::poll(&[Pollable::Poller(sleeper.clone())], LONG);
                }
                Instant::now() < until
            },
            || registration.set(READ, 1).unwrap(),
        );
        assert!(woken, "{poller:?}");
    });
}

#[test]
fn a_poller_of_pollers_sleeps_until_one_of_them_has_events() {
    each(|inner| {
        let kind = KINDS.iter().find(|kind| {
            let same = Poller::new(**kind).unwrap();
            std::mem::discriminant(&same) == std::mem::discriminant(&inner)
        });
        let outer = Poller::new(kind.unwrap().of_pollers()).unwrap();
        let nested = outer.add(inner.clone(), READ, 5).unwrap();
        let waker = Waker::new().unwrap();
        let _woken = outer.add(&waker, READ, 6).unwrap();
        let [ours, theirs] = pair();
        let _registration = inner.add(&ours, READ, 1).unwrap();
        assert_eq!(found(&outer, Duration::from_millis(20)), []);
        let sleeper = outer.clone();
        let heard =
            while_asleep(move || found(&sleeper, LONG) == [Event { number: 5, ready: READ }], || send(&theirs, b"x"));
        assert!(heard, "{inner:?}");
        nested.set(0, 5).unwrap();
        assert_eq!(found(&outer, Duration::from_millis(20)), []);
        let sleeper = outer.clone();
        assert!(while_asleep(move || found(&sleeper, LONG) == [Event { number: 6, ready: READ }], || waker.wake()));
        waker.clear();
        nested.set(READ, 7).unwrap();
        assert_eq!(found(&outer, LONG), [Event { number: 7, ready: READ }]);
        nested.end();
        assert_eq!(found(&outer, Duration::from_millis(20)), []);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_child_by_fork_leaves_the_parents_poller_alone() {
    each(|poller| {
        let [ours, theirs] = pair();
        let mut parts = Some((poller.add(&ours, READ, 1).unwrap(), poller.clone()));
        // SAFETY: the child drops objects, which may free memory: the only other threads are those of tests, and
        // glibc's allocator works in a child.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                drop(parts.take());
                libc::_exit(0);
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
        send(&theirs, b"x");
        assert_eq!(found(&poller, LONG), [Event { number: 1, ready: READ }], "{poller:?}");
    });
}

/// The system may refuse for lack of memory, for example: whoever waits neither fails nor keeps a core busy, and a
/// poller says why it does not wait.
#[cfg(target_os = "linux")]
#[test]
fn a_wait_that_the_system_refuses_takes_time_or_fails() {
    let refused = || {
        let [ours, _theirs] = pair();
        let list = Poller::new(PollerKind::Poll).unwrap();
        let _registered = list.add(&ours, READ, 7).unwrap();
        crate::testing::seccomp::forbid(libc::SYS_ppoll, libc::ENOMEM);
        for source in [Pollable::Socket(ours.raw()), Pollable::Poller(list.clone())] {
            let began = Instant::now();
            assert!(!sys::poll(&[source], LONG) && began.elapsed() >= Duration::from_millis(1));
        }
        for timeout in [None, Some(LONG), Some(Duration::ZERO)] {
            let error = list.wait(&mut [Event::default()], timeout).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "{timeout:?}");
        }
    };
    std::thread::spawn(refused).join().unwrap();
}
