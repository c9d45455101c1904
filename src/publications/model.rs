//! What the members of a table do at the same time, in every order of events that C11 permits, by loom.
//! `scripts/loom.sh` runs it.

use std::alloc::{Layout, alloc, dealloc};
use std::sync::Arc;

use loom::thread::{spawn, yield_now};

use super::layout::View;
use super::*;
use crate::sync::{AtomicU64, Data};

/// How often a thread may lose its core where it does not wait. A missing order in the table shows after one.
const PREEMPTIONS: usize = 2;

/// Runs `members` through every order of events.
fn model(members: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(members);
}

/// The memory of some members.
pub(crate) struct Memory(Vec<*mut u8>);

// SAFETY: the tables order all accesses to it, which the models show.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const LAYOUT: Layout = match Layout::from_size_align(TABLE_BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a table has a layout"),
};

impl Memory {
    pub fn new(members: usize) -> Arc<Self> {
        let base = |_| {
            // SAFETY: the size is not zero.
            let base = unsafe { alloc(LAYOUT) };
            // SAFETY: it is as long and aligned as it must be.
            unsafe { View::new(base) }.make(members);
            base
        };
        Arc::new(Self((0..members).map(base).collect()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` has allocated it with this layout.
        self.0.iter().for_each(|base| unsafe { dealloc(*base, LAYOUT) });
    }
}

/// The tag of a call, so that calls that follow each other in an entry differ in it.
fn tag(call: u64) -> u64 {
    call / 2 % 2
}

/// A member: its table and its calls.
pub(crate) struct Member {
    memory: Arc<Memory>,
    pub table: PublicationTable,
    allocator: EntryAllocator,
}

impl Member {
    pub fn new(memory: &Arc<Memory>, index: usize) -> Self {
        // SAFETY: the memory is as long and aligned as it must be, and lives as long as this.
        let table = unsafe { PublicationTable::new(&memory.0, index) };
        Self { memory: memory.clone(), table, allocator: EntryAllocator::default() }
    }

    /// Occupies an entry for a call, as soon as there is one. The call may have no memory for copies.
    pub fn open(&mut self, call: u64, room: usize) -> EntryHandle {
        let mut handle = EntryHandle::default();
        while self.allocator.acquire(&self.table, &mut handle, tag(call), call, room).is_err() {
            yield_now();
        }
        handle
    }

    pub fn publish(&self, handle: &mut EntryHandle, bytes: &[u8]) {
        // SAFETY: the bytes are copied, or live as long as the model.
        unsafe { self.table.publish(handle, bytes.as_ptr(), bytes.len(), LINE) };
    }

    /// Waits for a publication, in whichever entry it is.
    pub fn find(&self, handle: &mut EntryHandle, member: usize, number: u32) -> Publication {
        loop {
            self.table.search(handle, member);
            if let Some(found) = self.table.find(handle, member, number) {
                return found.expect("its place is possible");
            }
            yield_now();
        }
    }

    /// The content of a publication by value.
    pub fn content(&self, member: usize, publication: Publication) -> Vec<u8> {
        let Place::Here(from) = publication.place else { panic!("not here: {publication:?}") };
        // SAFETY: as in `new`.
        unsafe { View::new(self.memory.0[member]) }.content(from, publication.bytes)
    }
}

/// A call publishes so much in line, and the same in a cell, if it has one.
fn small(call: u64) -> [u8; 3] {
    [call as u8; 3]
}

fn large(call: u64) -> [u8; 40] {
    [call as u8 + 100; 40]
}

/// Makes a call that publishes; loom sees any access that is not ordered.
fn write(publisher: &mut Member, call: u64, room: usize, readers: Members) {
    let mut handle = publisher.open(call, room);
    publisher.publish(&mut handle, &small(call));
    if room > 0 {
        publisher.publish(&mut handle, &large(call));
    }
    publisher.allocator.release(&handle, readers);
}

/// Makes the same call as member 0, and reads what that publishes.
fn read(reader: &mut Member, call: u64, room: usize) {
    let mut handle = reader.open(call, 0);
    let first = reader.find(&mut handle, 0, 0);
    assert_eq!(reader.content(0, first), small(call));
    if room > 0 {
        let second = reader.find(&mut handle, 0, 1);
        // The publication is by reference if an earlier call on another tag has the cell.
        if let Place::Here(_) = second.place {
            assert_eq!(reader.content(0, second), large(call));
        }
    }
    reader.table.acknowledge(&mut handle, |_| true);
    reader.allocator.release(&handle, 0);
}

/// More calls than entries, or cells.
fn many_calls(room: usize) {
    const CALLS: u64 = 3;
    model(move || {
        let memory = Memory::new(2);
        let (mut publisher, mut reader) = (Member::new(&memory, 0), Member::new(&memory, 1));
        let publisher = spawn(move || (1..=CALLS).for_each(|call| write(&mut publisher, call, room, Members::MAX)));
        (1..=CALLS).for_each(|call| read(&mut reader, call, room));
        publisher.join().unwrap();
    });
}

#[test]
fn publications_are_read_whole_and_entries_are_used_again() {
    many_calls(0);
}

#[test]
fn copies_are_read_whole_and_cells_are_used_again() {
    many_calls(LINE);
}

#[test]
fn memory_is_used_again_when_all_readers_have_finished() {
    model(|| {
        let memory = Memory::new(3);
        let mut publisher = Member::new(&memory, 0);
        write(&mut publisher, 2, LINE, Members::MAX);
        let readers = [1, 2].map(|index| {
            let mut reader = Member::new(&memory, index);
            spawn(move || read(&mut reader, 2, LINE))
        });
        // The only cell is used again.
        write(&mut publisher, 3, LINE, Members::MAX);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// A member that is in another call than the one that it looks for finds out nothing else than in which one.
#[test]
fn a_look_at_an_entry_that_is_used_again_sees_one_call_or_none() {
    const CALLS: u64 = 3;
    // A call of the same tag as the last two, which the publisher never makes.
    const OTHER: u64 = 7;
    model(|| {
        let memory = Memory::new(2);
        let mut publisher = Member::new(&memory, 0);
        let publisher = spawn(move || (1..=CALLS).for_each(|call| write(&mut publisher, call, LINE, 0)));
        let mut reader = Member::new(&memory, 1);
        let mut handle = reader.open(OTHER, 0);
        assert_eq!(reader.table.find(&mut handle, 0, 0), None);
        let seen = reader.table.other_call(tag(OTHER), 0, |_| true);
        assert!(seen.is_none_or(|call| call <= CALLS && tag(call) == tag(OTHER)), "{seen:?}");
        publisher.join().unwrap();
    });
}

/// Memory that is published by its address may be written when the readers have finished.
#[test]
fn what_is_published_by_reference_does_not_change_while_it_is_read() {
    model(|| {
        let memory = Memory::new(2);
        // The word stands for bytes that the reader reads by the operating system.
        let data = Arc::new(Data::new(1));
        let mut member = Member::new(&memory, 0);
        let published = data.clone();
        let publisher = spawn(move || {
            let mut handle = member.open(1, 0);
            published.with_mut(|data| {
                // SAFETY: loom fails if anything else accesses it now.
                unsafe { *data = 2 };
            });
            member.publish(&mut handle, &[0; LINE]);
            assert!(handle.is_by_reference());
            while member.table.missing_reader(&handle, Members::MAX).is_some() {
                yield_now();
            }
            published.with_mut(|data| {
                // SAFETY: as above.
                unsafe { *data = 3 };
            });
        });
        let mut reader = Member::new(&memory, 1);
        let mut handle = reader.open(1, 0);
        assert!(matches!(reader.find(&mut handle, 0, 0).place, Place::There(_)));
        // SAFETY: as above.
        assert_eq!(data.with(|data| unsafe { *data }), 2);
        reader.table.acknowledge(&mut handle, |_| true);
        publisher.join().unwrap();
    });
}

/// A ring of two pieces, and three pieces that go through it, twice.
#[test]
fn a_stream_is_read_whole_and_its_ring_is_used_again() {
    const BYTES: usize = 3 * LINE;
    // The second call is on the same tag.
    const CALLS: [u64; 2] = [2, 3];
    model(|| {
        let memory = Memory::new(2);
        let mut publisher = Member::new(&memory, 0);
        let mut reader = Member::new(&memory, 1);
        let publisher = spawn(move || {
            for call in CALLS {
                let mut handle = publisher.open(call, 2 * LINE);
                let data = [call as u8; BYTES];
                // SAFETY: the bytes live until all are written.
                let stream = unsafe {
                    publisher.table.publish_stream(&mut handle, data.as_ptr(), BYTES, 2 * LINE, Members::MAX)
                };
                let mut stream = stream.expect("there is room for the ring");
                while !stream.is_written() {
                    if !publisher.table.write(&mut stream) {
                        yield_now();
                    }
                }
                publisher.allocator.release(&handle, Members::MAX);
            }
        });
        for call in CALLS {
            let mut handle = reader.open(call, 0);
            let Publication { bytes: BYTES, place: Place::Stream { cell } } = reader.find(&mut handle, 0, 0) else {
                panic!("no stream")
            };
            let stream = reader.table.incoming(0, 0, cell).expect("its ring is possible");
            for at in (0..BYTES).step_by(LINE) {
                while reader.table.written(&stream) <= at {
                    yield_now();
                }
                let piece = Publication { bytes: LINE, place: Place::Here(stream.place(at).0) };
                assert_eq!(reader.content(0, piece), [call as u8; LINE]);
                reader.table.consume(&stream, at + LINE);
            }
            reader.table.acknowledge(&mut handle, |_| true);
            reader.allocator.release(&handle, 0);
        }
        publisher.join().unwrap();
    });
}

/// A reader that was not fast enough finds out that it may have read something else.
#[test]
fn what_was_read_before_it_was_withdrawn_stands() {
    model(|| {
        let memory = Memory::new(2);
        // The reader may read it while it is written.
        let data = Arc::new(AtomicU64::new(2));
        let mut member = Member::new(&memory, 0);
        let published = data.clone();
        let publisher = spawn(move || {
            let mut handle = member.open(1, 0);
            member.publish(&mut handle, &[0; LINE]);
            member.table.withdraw(&handle);
            published.store(3, Ordering::Relaxed);
        });
        let mut reader = Member::new(&memory, 1);
        let mut handle = reader.open(1, 0);
        if reader.table.find(&mut handle, 0, 0).is_some() {
            let read = data.load(Ordering::Relaxed);
            assert!(read == 2 || !reader.table.stands(&handle, 0));
        }
        publisher.join().unwrap();
    });
}
