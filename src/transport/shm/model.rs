//! What two ranks do at the same time in the memory that they share, in every order of events that C11 permits, by
//! loom. `scripts/loom.sh` runs it.

use std::io::{ErrorKind, IoSlice, IoSliceMut};

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

use super::listing::{Entry, Listed};
use super::registration::Registration;
use super::ring::{Consumer, Line, Producer, has_room};
use crate::publications::model::{Member, Memory};
use crate::publications::{EntryHandle, Incoming, LINE, Members, Outgoing, Place, Publication};
use crate::sync::{AtomicU64, fence};
use crate::transport::local::{MESSAGES, PUBLICATIONS, Waiting};

/// An event for which a rank waits.
const EVENT: u64 = MESSAGES;
/// Lines of a ring.
const LINES: usize = 4;
/// How often a thread may lose its core where it does not wait. A missing order in the ring shows after one.
const PREEMPTIONS: usize = 2;

/// Runs `ranks` through every order of events.
fn model(ranks: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(ranks);
}

/// A ring, what its ends share beside it, and the sleep of one end.
struct Shared {
    lines: Vec<Line>,
    consumed: AtomicU64,
    waiting: Waiting,
    wants_room: Waiting,
    rung: AtomicBool,
    /// When the peer has rung last.
    rung_at: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lines: (0..LINES).map(|_| Line::new()).collect(),
            consumed: AtomicU64::new(0),
            waiting: Waiting::new(),
            wants_room: Waiting::new(),
            rung: AtomicBool::new(false),
            rung_at: AtomicU64::new(0),
        })
    }

    /// Wakes the owner like `PeerSegment::wake`.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.must_be_rung(EVENT, 1, &self.rung_at) {
            // The kernel orders what comes before the ring and after it was taken.
            self.rung.swap(true, Ordering::AcqRel);
        }
    }

    fn producer(&self) -> Producer {
        // SAFETY: the threads keep this alive.
        unsafe { Producer::new(self.lines.as_ptr(), LINES, &self.consumed) }
    }

    fn consumer(&self) -> Consumer {
        // SAFETY: as above.
        unsafe { Consumer::new(self.lines.as_ptr(), LINES, &self.consumed) }
    }
}

/// Takes what there is, at most two bytes, into two places; none if there is nothing.
fn pop(consumer: &mut Consumer) -> Vec<u8> {
    let mut into = [0; 2];
    let (first, second) = into.split_at_mut(1);
    match consumer.pop(&mut [IoSliceMut::new(first), IoSliceMut::new(second)]) {
        Ok((got, _)) => into[..got].to_vec(),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::WouldBlock);
            Vec::new()
        }
    }
}

/// More records than the ring has lines, so that lines are used again; loom sees any access that is not ordered.
#[test]
fn records_arrive_in_order_and_lines_are_used_again() {
    model(|| {
        let shared = Shared::new();
        let sender = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let mut producer = shared.producer();
                for byte in 1..=5u8 {
                    while producer.push(&[IoSlice::new(&[byte])]).is_err() {
                        loom::thread::yield_now();
                    }
                }
            })
        };
        let (mut consumer, mut got) = (shared.consumer(), Vec::new());
        while got.len() < 5 {
            let bytes = pop(&mut consumer);
            if bytes.is_empty() {
                loom::thread::yield_now();
            }
            got.extend(bytes);
        }
        assert_eq!(got, [1, 2, 3, 4, 5]);
        sender.join().unwrap();
    });
}

/// A receiver that says that it sleeps, and then finds nothing, is woken.
#[test]
fn who_sleeps_is_woken() {
    model(|| {
        let shared = Shared::new();
        let sender = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                shared.producer().push(&[IoSlice::new(&[1])]).unwrap();
                shared.wake();
            })
        };
        shared.waiting.begin(EVENT);
        let seen = pop(&mut shared.consumer());
        sender.join().unwrap();
        assert!(!seen.is_empty() || shared.rung.load(Ordering::Relaxed), "nobody would wake it");
    });
}

/// A receiver that has answered its doorbell is woken again for what comes after, though the peer rings only once for
/// what comes before.
#[test]
fn who_has_answered_is_woken_again() {
    model(|| {
        let shared = Shared::new();
        shared.waiting.begin(EVENT);
        let sender = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let mut producer = shared.producer();
                for byte in 1..=2 {
                    producer.push(&[IoSlice::new(&[byte])]).unwrap();
                    shared.wake();
                }
            })
        };
        let (mut consumer, mut seen) = (shared.consumer(), 0);
        // What a rank does once its doorbell is readable.
        if shared.rung.swap(false, Ordering::AcqRel) {
            shared.waiting.answer();
            seen = std::iter::repeat_with(|| pop(&mut consumer).len()).take_while(|got| *got > 0).sum();
        }
        sender.join().unwrap();
        assert!(seen == 2 || shared.rung.load(Ordering::Relaxed), "nobody would wake it");
    });
}

/// A sender that says that it wants room and that it sleeps, and then finds no room, is woken.
#[test]
fn who_waits_for_room_is_woken() {
    model(|| {
        let shared = Shared::new();
        let mut producer = shared.producer();
        let mut sent = 0;
        while producer.push(&[IoSlice::new(&[1])]).is_ok() {
            sent += 1;
        }
        let receiver = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let (mut consumer, mut into) = (shared.consumer(), [0; LINES]);
                let (got, crossed) = consumer.pop(&mut [IoSliceMut::new(&mut into)]).unwrap();
                assert_eq!(got, sent);
                if crossed && shared.wants_room.must_be_woken(EVENT) {
                    shared.wake();
                }
            })
        };
        shared.wants_room.begin(EVENT);
        let mut seen = producer.push(&[IoSlice::new(&[1])]).is_ok();
        if !seen {
            shared.waiting.begin(EVENT);
            seen = has_room(LINES, shared.consumed.load(Ordering::Relaxed), producer.position());
        }
        receiver.join().unwrap();
        assert!(seen || shared.rung.load(Ordering::Relaxed), "nobody would wake it");
    });
}

/// A rank that sleeps until a member of its table has published something is woken.
#[test]
fn who_sleeps_is_woken_by_a_publication() {
    model(|| {
        let (memory, shared) = (Memory::new(2), Shared::new());
        let mut publisher = Member::new(&memory, 0);
        let publisher = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let mut handle = publisher.open(1, 0);
                publisher.publish(&mut handle, &[1]);
                shared.wake();
            })
        };
        let mut reader = Member::new(&memory, 1);
        let mut handle = reader.open(1, 0);
        shared.waiting.begin(EVENT);
        let seen = reader.table.find(&mut handle, 0, 0).is_some();
        publisher.join().unwrap();
        assert!(seen || shared.rung.load(Ordering::Relaxed), "nobody would wake it");
    });
}

/// A rank that waits for one member is woken by it, though it has ignored that member before, and though one of its
/// threads sleeps that ignores the member, if another one waits for it.
#[test]
fn who_waits_for_one_member_is_woken_by_it() {
    const MEMBER: usize = 0;
    let wait_only: fn(&Waiting) = |waiting| {
        waiting.wait_only_for(1 << MEMBER);
        waiting.begin(PUBLICATIONS);
    };
    for wait in [wait_only, |waiting| waiting.wait_also_for(1 << MEMBER)] {
        model(move || {
            let (memory, shared) = (Memory::new(2), Shared::new());
            shared.waiting.wait_only_for(0);
            shared.waiting.begin(PUBLICATIONS);
            let mut publisher = Member::new(&memory, MEMBER);
            let publisher = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let mut handle = publisher.open(1, 0);
                    publisher.publish(&mut handle, &[1]);
                    fence(Ordering::SeqCst);
                    if shared.waiting.must_be_rung(PUBLICATIONS, MEMBER, &shared.rung_at) {
                        shared.rung.store(true, Ordering::Relaxed);
                    }
                })
            };
            let mut reader = Member::new(&memory, 1);
            let mut handle = reader.open(1, 0);
            wait(&shared.waiting);
            let seen = reader.table.find(&mut handle, MEMBER, 0).is_some();
            publisher.join().unwrap();
            assert!(seen || shared.rung.load(Ordering::Relaxed), "nobody would wake it");
        });
    }
}

/// A rank that sleeps until its readers have finished is woken.
#[test]
fn who_sleeps_is_woken_by_an_acknowledgement() {
    model(|| {
        let (memory, shared) = (Memory::new(2), Shared::new());
        let mut publisher = Member::new(&memory, 0);
        let mut own = publisher.open(1, 0);
        publisher.publish(&mut own, &[1]);
        let mut reader = Member::new(&memory, 1);
        let reader = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let mut handle = reader.open(1, 0);
                reader.find(&mut handle, 0, 0);
                reader.table.acknowledge(&mut handle, |_| true);
                shared.wake();
            })
        };
        shared.waiting.begin(EVENT);
        let seen = publisher.table.missing_reader(&own, u64::MAX).is_none();
        reader.join().unwrap();
        assert!(seen || shared.rung.load(Ordering::Relaxed), "nobody would wake it");
    });
}

/// A doorbell, and the events for which its owner waits.
struct Doorbell {
    waiting: Waiting,
    /// When the peer has rung last.
    rung_at: AtomicU64,
    rung: Mutex<bool>,
    rings: Condvar,
}

impl Doorbell {
    fn new() -> Self {
        let (rung, rings) = (Mutex::new(false), Condvar::new());
        Self { waiting: Waiting::new(), rung_at: AtomicU64::new(0), rung, rings }
    }

    /// Wakes the owner like `HostGroup::wake_members`.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.must_be_rung(PUBLICATIONS, 1, &self.rung_at) {
            *self.rung.lock().unwrap() = true;
            self.rings.notify_one();
        }
    }

    /// Called by the owner: repeats `turn`, which does what can be done and returns whether there was anything, until
    /// `is_done`, and sleeps while there is nothing. As the engine does, it looks once more before that. A sleep that
    /// nobody ends is a deadlock, which loom reports.
    fn work<T>(&self, state: &mut T, turn: impl Fn(&mut T) -> bool, is_done: impl Fn(&T) -> bool) {
        while !is_done(state) {
            if turn(state) {
                continue;
            }
            self.waiting.begin(PUBLICATIONS);
            let found = turn(state);
            if !found {
                let mut rung = self.rung.lock().unwrap();
                while !*rung {
                    rung = self.rings.wait(rung).unwrap();
                }
            }
            self.waiting.end(PUBLICATIONS);
            if !found {
                *self.rung.lock().unwrap() = false;
                self.waiting.answer();
            }
        }
    }
}

/// What a rank has read of a stream.
struct Reading {
    member: Member,
    handle: EntryHandle,
    stream: Option<Incoming>,
    at: usize,
}

/// Two ranks that do in each turn what they can, and sleep if that is nothing, as those do whose calls also send
/// messages: one writes three pieces into a ring of two, which the other reads.
#[test]
fn ranks_that_return_between_pieces_wake_each_other_until_all_is_read() {
    const BYTES: usize = 3 * LINE;
    model(|| {
        let memory = Memory::new(2);
        let bells = Arc::new([Doorbell::new(), Doorbell::new()]);
        let mut publisher = Member::new(&memory, 0);
        let publisher_bells = bells.clone();
        let publisher = loom::thread::spawn(move || {
            let (mut handle, data) = (publisher.open(1, 2 * LINE), [7; BYTES]);
            // SAFETY: the bytes live until all are written.
            let stream =
                unsafe { publisher.table.publish_stream(&mut handle, data.as_ptr(), BYTES, 2 * LINE, Members::MAX) };
            publisher_bells[1].wake();
            let write = |stream: &mut Outgoing| {
                let wrote = publisher.table.write(stream);
                if wrote {
                    publisher_bells[1].wake();
                }
                wrote
            };
            publisher_bells[0].work(&mut stream.expect("there is room for the ring"), write, Outgoing::is_written);
        });
        let mut member = Member::new(&memory, 1);
        let handle = member.open(1, 0);
        let read = |reading: &mut Reading| {
            let Some(stream) = reading.stream else {
                let found = reading.member.table.find(&mut reading.handle, 0, 0);
                if let Some(Some(Publication { place: Place::Stream { cell }, .. })) = found {
                    reading.stream = reading.member.table.incoming(0, 0, cell);
                }
                return reading.stream.is_some();
            };
            if reading.member.table.written(&stream) <= reading.at {
                return false;
            }
            let piece = Publication { bytes: LINE, place: Place::Here(stream.place(reading.at).0) };
            assert_eq!(reading.member.content(0, piece), [7; LINE]);
            reading.at += LINE;
            reading.member.table.consume(&stream, reading.at);
            bells[0].wake();
            true
        };
        let mut reading = Reading { member, handle, stream: None, at: 0 };
        bells[1].work(&mut reading, read, |reading| reading.at == BYTES);
        publisher.join().unwrap();
    });
}

/// What a peer has read of a message is that message, unless it sees that the registration has ended: not what the
/// owner writes to the memory afterwards, nor the memory of a later message.
#[test]
fn a_peer_that_reads_another_message_sees_that_the_registration_has_ended() {
    model(|| {
        let shared = Arc::new((Registration::new(), AtomicU64::new(10)));
        assert!(shared.0.begin(1, 5, 50));
        let owner = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let (registration, memory) = &*shared;
                registration.end(1);
                memory.store(20, Ordering::Relaxed);
                assert!(registration.begin(2, 6, 60));
            })
        };
        let (registration, memory) = &*shared;
        for (key, expected) in [(1, ((5, 50), 10)), (2, ((6, 60), 20))] {
            if let Some(place) = registration.load(key) {
                let read = (place, memory.load(Ordering::Relaxed));
                assert!(registration.has_ended(key) || read == expected, "{read:?}");
            }
        }
        owner.join().unwrap();
    });
}

/// A peer that opens the descriptor of an allocation has that allocation, unless it sees that the allocation has ended.
/// `open` is what the descriptor's number stands for. Two threads of the owner change the entry, one after the other.
#[test]
fn a_peer_that_opens_another_descriptor_sees_that_the_allocation_has_ended() {
    let list = |number| Listed { generation: number, address: number * 10, bytes: number * 100, descriptor: 7 };
    model(move || {
        let shared = Arc::new((Entry::new(), AtomicU64::new(1)));
        let peer = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let (entry, open) = &*shared;
                let Some(Listed { generation, address, bytes, .. }) = entry.load() else { return };
                assert_eq!((address, bytes), (generation * 10, generation * 100), "words of two allocations");
                let opened = open.load(Ordering::Relaxed);
                assert!(entry.has_ended(generation) || opened == generation, "{opened} for {generation}");
            })
        };
        let (entry, open) = &*shared;
        entry.set(&list(1));
        entry.clear();
        open.store(2, Ordering::Relaxed);
        let other = {
            let shared = shared.clone();
            loom::thread::spawn(move || shared.0.set(&list(2)))
        };
        peer.join().unwrap();
        other.join().unwrap();
    });
}
