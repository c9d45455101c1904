use super::layout::{CELLS, FIRST_ENTRIES, MEDIUM_CELLS, SHORT_CELL_BYTES, SHORT_CELLS};
use super::*;
use crate::testing::tier::Tier;

/// Tables in ordinary memory.
struct Memory(Vec<*mut u8>);

const LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(TABLE_BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a table has a layout"),
};

impl Memory {
    fn new(members: usize) -> Self {
        // SAFETY: the size is not zero.
        Self((0..members).map(|_| unsafe { std::alloc::alloc_zeroed(LAYOUT) }).collect())
    }

    fn tables(&self) -> Vec<PublicationTable> {
        // SAFETY: the memory is as long and aligned as it must be, and outlives the tables in these tests.
        (0..self.0.len()).map(|index| unsafe { PublicationTable::new(&self.0, index) }).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` has allocated it with this layout.
        self.0.iter().for_each(|base| unsafe { std::alloc::dealloc(*base, LAYOUT) });
    }
}

const COPIED: usize = 1 << 16;
/// The length of a publication that is copied, but not into the entry.
const LONG: usize = 5 * LINE + 100;
const _: () = assert!(LONG > INLINE_BYTES);

fn open(allocator: &mut EntryAllocator, table: &PublicationTable, call: u64, room: usize) -> EntryHandle {
    let mut handle = EntryHandle::default();
    assert_eq!(allocator.acquire(table, &mut handle, 7, call, room), Ok(true));
    handle
}

fn publish(table: &PublicationTable, handle: &mut EntryHandle, bytes: &[u8]) {
    // SAFETY: the bytes outlive the table's use in these tests.
    unsafe { table.publish(handle, bytes.as_ptr(), bytes.len(), COPIED) };
}

fn content(publication: Publication) -> Vec<u8> {
    let Place::Here(from) = publication.place else { panic!("not here: {publication:?}") };
    // SAFETY: the place is valid for so many bytes.
    unsafe { std::slice::from_raw_parts(from, publication.bytes) }.to_vec()
}

fn found(table: &PublicationTable, handle: &mut EntryHandle, member: usize, number: u32) -> Option<Publication> {
    table.find(handle, member, number).map(Option::unwrap)
}

#[test]
fn members_beyond_the_most_have_no_bit() {
    assert_eq!([all_but(0, 1), all_but(0, 2), all_but(1, 3)], [0, 0b10, 0b101]);
    assert_eq!([all_but(63, MAX_MEMBERS), all_but(70, 100)], [u64::MAX >> 1, u64::MAX]);
}

#[test]
fn what_a_member_publishes_the_others_find() {
    let memory = Memory::new(2);
    let tables = memory.tables();
    let mut allocators = [EntryAllocator::default(), EntryAllocator::default()];
    let [mut one, mut other] = [0, 1].map(|i| open(&mut allocators[i], &tables[i], 1, 4096));
    assert_eq!(found(&tables[1], &mut other, 0, 0), None);
    let long = vec![3; LONG];
    publish(&tables[0], &mut one, b"small");
    publish(&tables[0], &mut one, &long);
    publish(&tables[0], &mut one, &[]);
    assert!(!one.is_by_reference());
    let contents: Vec<_> = (0..3).map(|n| content(found(&tables[1], &mut other, 0, n).unwrap())).collect();
    assert_eq!(contents, [b"small".to_vec(), long, Vec::new()]);
    assert_eq!(found(&tables[1], &mut other, 0, 3), None);
    let huge = vec![1; COPIED + 1];
    publish(&tables[0], &mut one, &huge);
    assert!(one.is_by_reference());
    let place = Place::There(huge.as_ptr().addr() as u64);
    assert_eq!(found(&tables[1], &mut other, 0, 3), Some(Publication { bytes: huge.len(), place }));
}

#[test]
fn calls_are_told_apart_and_found_in_any_entry() {
    let memory = Memory::new(2);
    let tables = memory.tables();
    let mut allocators = [EntryAllocator::default(), EntryAllocator::default()];
    // Member 0 begins two calls in one order, member 1 in the other.
    let [mut a0, mut b0] = [1, 2].map(|call| open(&mut allocators[0], &tables[0], call, 0));
    let [mut b1, mut a1] = [2, 1].map(|call| open(&mut allocators[1], &tables[1], call, 0));
    publish(&tables[0], &mut a0, b"a");
    publish(&tables[0], &mut b0, b"b");
    for (handle, expected) in [(&mut a1, b"a"), (&mut b1, b"b")] {
        assert_eq!(found(&tables[1], handle, 0, 0), None, "in the expected entry is another call");
        tables[1].search(handle, 0);
        assert_eq!(content(found(&tables[1], handle, 0, 0).unwrap()), expected);
    }
    assert_eq!(tables[1].other_call(a1.tag, 0, |theirs| theirs != 1), Some(2));
    assert_eq!(tables[1].other_call(a1.tag, 0, |theirs| theirs > 2), None);
}

#[test]
fn calls_that_have_ended_are_forgotten_and_others_are_not() {
    let memory = Memory::new(2);
    let tables = memory.tables();
    let mut allocators = [EntryAllocator::default(), EntryAllocator::default()];
    let [mut ended, mut unread, mut open] = [1, 2, 3].map(|call| open(&mut allocators[0], &tables[0], call, 0));
    for handle in [&mut ended, &mut unread, &mut open] {
        publish(&tables[0], handle, b"x");
    }
    let mut reader_handle = self::open(&mut allocators[1], &tables[1], 1, 0);
    assert!(found(&tables[1], &mut reader_handle, 0, 0).is_some());
    tables[1].acknowledge(&mut reader_handle, |_| true);
    for handle in [&ended, &unread] {
        allocators[0].release(handle, u64::MAX);
    }
    let known = |call| tables[1].other_call(reader_handle.tag, 0, |theirs| theirs == call).is_some();
    assert_eq!([1, 2, 3].map(known), [true; 3]);
    allocators[0].forget(&tables[0]);
    assert_eq!([1, 2, 3].map(known), [false, true, true]);
}

#[test]
fn entries_and_cells_are_reused_when_all_readers_have_finished() {
    let memory = Memory::new(3);
    let tables = memory.tables();
    let mut allocators = [EntryAllocator::default(), EntryAllocator::default(), EntryAllocator::default()];
    let run = |allocators: &mut [EntryAllocator; 3], call: u64, readers: std::ops::Range<usize>, room: usize| {
        let mut handle = open(&mut allocators[0], &tables[0], call, room);
        publish(&tables[0], &mut handle, &[call as u8; 50]);
        for reader in readers {
            let mut reader_handle = open(&mut allocators[reader], &tables[reader], call, 0);
            tables[reader].search(&mut reader_handle, 0);
            assert_eq!(content(found(&tables[reader], &mut reader_handle, 0, 0).unwrap()), [call as u8; 50]);
            tables[reader].acknowledge(&mut reader_handle, |_| true);
            allocators[reader].release(&reader_handle, 0);
        }
        allocators[0].release(&handle, u64::MAX);
    };
    const LONG: usize = MEDIUM_CELL_BYTES + 1;
    let rounds = if cfg!(miri) { 2 } else { 10 };
    for call in 0..rounds * FIRST_ENTRIES as u64 {
        run(&mut allocators, call + 1, 1..3, if call.is_multiple_of(2) { LONG } else { 64 });
    }
    // Member 2 reads no more: copies stop when the cells are used up.
    for call in 0..CELLS as u64 {
        run(&mut allocators, 10_000 + call, 1..2, LONG);
    }
    let mut handle = EntryHandle::default();
    assert_eq!(allocators[0].acquire(&tables[0], &mut handle, 7, 20_000, LONG), Err(Full::Unread(2)));
    assert_eq!(
        allocators[0].acquire(&tables[0], &mut handle, 8, 20_000, LONG),
        Ok(false),
        "calls on other tags do not wait"
    );
    allocators[0].release(&handle, 0);
    for call in CELLS as u64..FIRST_ENTRIES as u64 {
        let mut handle = open(&mut allocators[0], &tables[0], 10_000 + call, 0);
        publish(&tables[0], &mut handle, b"x");
        allocators[0].release(&handle, u64::MAX);
    }
    let full = allocators[0].acquire(&tables[0], &mut handle, 7, 20_000, 0);
    assert!(matches!(full, Err(Full::Unread(1 | 2))), "{full:?}");
    assert_eq!(
        allocators[0].acquire(&tables[0], &mut handle, 8, 20_000, 0),
        Ok(true),
        "calls on other tags do not wait"
    );
}

/// Calls in progress do not share memory, and short ones leave the long cells to long ones.
#[test]
#[cfg_attr(miri, ignore = "takes 20 s; others access cells alike")]
fn each_call_in_progress_has_a_cell_of_its_own() {
    let memory = Memory::new(2);
    let tables = memory.tables();
    let mut allocators = [EntryAllocator::default(), EntryAllocator::default()];
    let bytes = |call: usize| [call as u8; LONG];
    let mut handles = Vec::new();
    let mut begin = |room: usize| {
        let call = handles.len();
        let mut handle = EntryHandle::default();
        let opened = allocators[0].acquire(&tables[0], &mut handle, call as u64, 1, room);
        publish(&tables[0], &mut handle, &bytes(call));
        handles.push(handle);
        opened
    };
    for _ in 0..SHORT_CELLS {
        assert_eq!(begin(SHORT_CELL_BYTES), Ok(true));
    }
    for _ in 0..MEDIUM_CELLS - 1 {
        assert_eq!(begin(SHORT_CELL_BYTES + 1), Ok(true));
    }
    assert_eq!(begin(64), Ok(true), "without a short cell, it takes a medium one");
    for _ in 0..CELLS - 1 {
        assert_eq!(begin(MEDIUM_CELL_BYTES + 1), Ok(true));
    }
    assert_eq!(begin(64), Ok(true), "without a medium cell either, it takes a long one");
    assert_eq!([64, SHORT_CELL_BYTES + 1, MEDIUM_CELL_BYTES + 1].map(&mut begin), [Ok(false); 3]);
    // Each search looks through all entries before, for which Miri takes a minute: it reads some of the cells.
    for call in (0..SHORT_CELLS + MEDIUM_CELLS + CELLS).step_by(if cfg!(miri) { 53 } else { 1 }) {
        let mut reader_handle = EntryHandle::default();
        allocators[1].acquire(&tables[1], &mut reader_handle, call as u64, 1, 0).unwrap();
        tables[1].search(&mut reader_handle, 0);
        assert_eq!(content(found(&tables[1], &mut reader_handle, 0, 0).unwrap()), bytes(call));
    }
}

/// Where readers cannot read other memory, ranks that begin calls in the same order give their cells to the same calls.
#[test]
fn calls_that_wait_get_cells_in_the_order_of_their_beginnings() {
    let memory = Memory::new(2);
    let table = &memory.tables()[0];
    let mut allocator = EntryAllocator::new(false);
    let ask = |allocator: &mut EntryAllocator, handle: &mut EntryHandle, call: u64, room: usize| {
        allocator.acquire(table, handle, call, 1, room)
    };
    let mut next = 0;
    let mut begin = |allocator: &mut EntryAllocator, room: usize| {
        let mut handle = EntryHandle::default();
        next += 1;
        let opened = ask(allocator, &mut handle, next, room);
        (handle, next, opened)
    };
    const LONG: usize = MEDIUM_CELL_BYTES + 1;
    let mut running: Vec<_> = (0..CELLS).map(|_| begin(&mut allocator, LONG)).collect();
    assert!(running.iter().all(|(_, _, opened)| *opened == Ok(true)));
    let [mut first, mut second, mut third] = [(); 3].map(|()| begin(&mut allocator, LONG));
    assert!([&first, &second, &third].iter().all(|(_, _, opened)| *opened == Err(Full::Cells)));
    let mut end = |allocator: &mut EntryAllocator| allocator.release(&running.pop().unwrap().0, 0);

    end(&mut allocator);
    let again = |allocator: &mut EntryAllocator, (handle, call, _): &mut (EntryHandle, u64, _)| {
        ask(allocator, handle, *call, LONG)
    };
    assert_eq!(again(&mut allocator, &mut second), Err(Full::Cells), "it is the first one's");
    let (mut later, _, opened) = begin(&mut allocator, LONG);
    assert_eq!(opened, Err(Full::Cells), "no call passes those that wait");
    assert_eq!(begin(&mut allocator, SHORT_CELL_BYTES).2, Ok(true), "a short cell is of no use to them");
    assert_eq!(again(&mut allocator, &mut first), Ok(true));
    end(&mut allocator);
    assert_eq!(again(&mut allocator, &mut third), Err(Full::Cells));
    // The second gives up.
    allocator.stop_waiting(&mut second.0);
    assert_eq!(again(&mut allocator, &mut third), Ok(true));
    assert!(allocator.has_queue());
    allocator.stop_waiting(&mut later);
    assert!(!allocator.has_queue());
    end(&mut allocator);
    assert_eq!(begin(&mut allocator, LONG).2, Ok(true));
}

/// A reader that acknowledges a publication before its call ends must not do so again then.
#[test]
fn an_acknowledgement_is_not_replaced_by_that_of_the_call_before_in_the_entry() {
    let memory = Memory::new(2);
    let tables = memory.tables();
    let mut allocators = [EntryAllocator::default(), EntryAllocator::default()];
    let mut last = EntryHandle::default();
    let mut readers = Vec::new();
    for call in 1..=FIRST_ENTRIES as u64 + 1 {
        let mut handle = open(&mut allocators[0], &tables[0], call, 0);
        publish(&tables[0], &mut handle, b"x");
        let mut reader_handle = open(&mut allocators[1], &tables[1], call, 0);
        tables[1].search(&mut reader_handle, 0);
        assert!(found(&tables[1], &mut reader_handle, 0, 0).is_some());
        tables[1].acknowledge(&mut reader_handle, |member| member == 0);
        assert_eq!(tables[0].missing_reader(&handle, Members::MAX), None);
        allocators[0].release(&handle, Members::MAX);
        readers.push(reader_handle);
        last = handle;
    }
    let first = &mut readers[0];
    assert_eq!(first.entries.0[0] as usize, last.entry, "the last call uses the first one's entry again");
    tables[1].acknowledge(first, |_| true);
    assert_eq!(tables[0].missing_reader(&last, Members::MAX), None);
}

#[test]
#[cfg_attr(miri, ignore = "takes 15 s; others access entries alike")]
fn calls_in_progress_keep_their_entries() {
    let memory = Memory::new(2);
    let tables = memory.tables();
    let mut allocator = EntryAllocator::default();
    let mut handles: Vec<EntryHandle> =
        (0..ENTRIES as u64).map(|call| open(&mut allocator, &tables[0], call + 1, 0)).collect();
    let mut other_allocator = EntryAllocator::default();
    for call in [1, FIRST_ENTRIES as u64 + 1, ENTRIES as u64] {
        publish(&tables[0], &mut handles[call as usize - 1], &call.to_ne_bytes());
        let mut reader_handle = open(&mut other_allocator, &tables[1], call, 0);
        tables[1].search(&mut reader_handle, 0);
        assert_eq!(content(found(&tables[1], &mut reader_handle, 0, 0).unwrap()), call.to_ne_bytes());
        tables[1].acknowledge(&mut reader_handle, |_| true);
    }
    let unread = |call: usize| tables[0].missing_reader(&handles[call], Members::MAX);
    assert_eq!([0, 1, FIRST_ENTRIES, ENTRIES - 1].map(unread), [None, Some(1), None, None]);
    let mut handle = EntryHandle::default();
    assert_eq!(allocator.acquire(&tables[0], &mut handle, 7, 1000, 0), Err(Full::Occupied));
    allocator.release(&handles[5], 0);
    allocator.acquire(&tables[0], &mut handle, 7, 1000, 0).unwrap();
    assert_eq!(allocator.acquire(&tables[0], &mut EntryHandle::default(), 7, 1001, 0), Err(Full::Occupied));
}

#[test]
fn a_withdrawn_publication_does_not_stand() {
    let memory = Memory::new(2);
    let tables = memory.tables();
    let mut allocators = [EntryAllocator::default(), EntryAllocator::default()];
    let [mut one, mut other] = [0, 1].map(|i| open(&mut allocators[i], &tables[i], 1, 0));
    publish(&tables[0], &mut one, &[0; LONG]);
    assert!(found(&tables[1], &mut other, 0, 0).is_some() && tables[1].stands(&other, 0));
    tables[0].withdraw(&one);
    assert!(!tables[1].stands(&other, 0));
    assert_eq!(found(&tables[1], &mut other, 0, 0), None);
}

#[test]
fn nonsense_in_a_table_is_refused() {
    use proptest::prelude::*;
    let memory = Memory::new(2);
    let tables = memory.tables();
    let mut allocators = [EntryAllocator::default(), EntryAllocator::default()];
    let [mut one, mut other] = [0, 1].map(|i| open(&mut allocators[i], &tables[i], 1, 4096));
    publish(&tables[0], &mut one, &[1; LONG]);
    assert!(found(&tables[1], &mut other, 0, 0).is_some());
    let (start, other) = (memory.0[0].addr(), std::cell::RefCell::new(other));
    let words = proptest::collection::vec((0usize..60, prop_oneof![any::<u64>(), 0u64..64, Just(u64::MAX)]), 0..20);
    proptest!(ProptestConfig::with_cases(if cfg!(miri) { 20 } else { 2000 }), |(words in words, number in 0u32..300)| {
        for (word, value) in words {
            // Words of the entry, to the descriptors of some publications: everything but the stamp, so that the reader
            // goes on.
            let at = PLACES[1] + (1 + word % 52) * 8;
            // SAFETY: within the table.
            unsafe { (*memory.0[0].add(at).cast::<std::sync::atomic::AtomicU64>()).store(value, Ordering::Relaxed) };
        }
        if let Some(Some(Publication { bytes, place: Place::Here(from) })) = tables[1].find(&mut other.borrow_mut(), 0, number) {
            let offset = from.addr() - start;
            prop_assert!(offset <= TABLE_BYTES && bytes <= TABLE_BYTES - offset, "{bytes} bytes at {offset}");
        }
    });
}

#[test]
fn members_that_are_threads_exchange_many_calls() {
    let calls = if cfg!(miri) { 20 } else { Tier::from_environment().of(3000, 20_000, 20_000) };
    let memory = Memory::new(3);
    let tables = memory.tables();
    std::thread::scope(|scope| {
        for table in &tables {
            scope.spawn(move || {
                let mut allocator = EntryAllocator::default();
                for call in 1..=calls {
                    let mut handle = EntryHandle::default();
                    let room = if call % 3 == 0 { LONG.next_multiple_of(LINE) } else { 0 };
                    while allocator.acquire(table, &mut handle, call, call, room).is_err() {
                        std::thread::yield_now();
                    }
                    let length = if room > 0 { LONG } else { 8 };
                    publish(table, &mut handle, &[(call as u8).wrapping_add(table.index() as u8); LONG][..length]);
                    for member in (0..3).filter(|member| *member != table.index()) {
                        let publication = loop {
                            if let Some(publication) = found(table, &mut handle, member, 0) {
                                break publication;
                            }
                            table.search(&mut handle, member);
                            std::thread::yield_now();
                        };
                        assert_eq!(content(publication), vec![(call as u8).wrapping_add(member as u8); length]);
                    }
                    table.acknowledge(&mut handle, |_| true);
                    allocator.release(&handle, u64::MAX);
                }
            });
        }
    });
}

/// One member writes publications of several rings' length, one after the other, and two read them.
#[test]
fn members_that_are_threads_stream() {
    const CALLS: u64 = if cfg!(miri) { 4 } else { 300 };
    // The last piece of a publication is not full.
    const BYTES: usize = 5 * RING / 2 + 100;
    const RING: usize = PIECES * LINE;
    let memory = Memory::new(3);
    let tables = memory.tables();
    let byte = |call: u64, at: usize| (call as usize * 7 + at) as u8;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (table, mut allocator) = (&tables[0], EntryAllocator::default());
            for call in 1..=CALLS {
                let data: Vec<u8> = (0..BYTES).map(|at| byte(call, at)).collect();
                let mut handle = EntryHandle::default();
                while allocator.acquire(table, &mut handle, 7, call, CELL_BYTES).is_err() {
                    std::thread::yield_now();
                }
                // SAFETY: the data lives until all is written.
                let stream = unsafe { table.publish_stream(&mut handle, data.as_ptr(), BYTES, RING, Members::MAX) };
                let mut stream = stream.unwrap();
                while !stream.is_written() {
                    if !table.write(&mut stream) {
                        assert!(matches!(table.slowest(&stream), 1 | 2));
                        std::thread::yield_now();
                    }
                }
                allocator.release(&handle, Members::MAX);
            }
        });
        for table in &tables[1..] {
            scope.spawn(move || {
                let mut allocator = EntryAllocator::default();
                for call in 1..=CALLS {
                    let mut handle = open(&mut allocator, table, call, 0);
                    let publication = loop {
                        table.search(&mut handle, 0);
                        if let Some(found) = found(table, &mut handle, 0, 0) {
                            break found;
                        }
                        std::thread::yield_now();
                    };
                    let Publication { bytes: BYTES, place: Place::Stream { cell } } = publication else {
                        panic!("{publication:?}")
                    };
                    let stream = table.incoming(0, 0, cell).unwrap();
                    let mut at = 0;
                    while at < BYTES {
                        let (from, max) = stream.place(at);
                        let length = max.min(table.written(&stream) - at);
                        // SAFETY: so much is written, and not consumed.
                        let piece = unsafe { std::slice::from_raw_parts(from, length) };
                        let wrong = piece.iter().zip(at..).find(|(own, at)| **own != byte(call, *at));
                        assert_eq!(wrong, None, "call {call}");
                        at += length;
                        table.consume(&stream, at);
                        if length == 0 {
                            std::thread::yield_now();
                        }
                    }
                    table.acknowledge(&mut handle, |_| true);
                    allocator.release(&handle, 0);
                }
            });
        }
    });
}

/// The ring was used for another reader before.
#[test]
fn a_reader_that_has_read_no_earlier_stream_delays_no_other() {
    const RING: usize = PIECES * LINE;
    let memory = Memory::new(3);
    let tables = memory.tables();
    let mut allocator = EntryAllocator::default();
    let data = [1; 2 * RING];
    let mut stream = |call, readers| {
        let mut handle = open(&mut allocator, &tables[0], call, CELL_BYTES);
        // SAFETY: the data outlives the streams.
        let stream =
            unsafe { tables[0].publish_stream(&mut handle, data.as_ptr(), data.len(), RING, readers) }.unwrap();
        allocator.release(&handle, 0);
        stream
    };
    let mut first = stream(1, 1 << 1);
    let incoming = tables[1].incoming(0, 0, 0).unwrap();
    let written = |stream: &mut Outgoing| (0..).take_while(|_| tables[0].write(stream)).count();
    assert_eq!((written(&mut first), tables[0].slowest(&first)), (PIECES, 1));
    tables[1].consume(&incoming, RING);
    assert_eq!((written(&mut first), first.is_written()), (PIECES, true));
    tables[1].consume(&incoming, 2 * RING);
    let mut second = stream(2, Members::MAX);
    assert_eq!((written(&mut second), tables[0].slowest(&second)), (PIECES, 1));
    tables[1].consume(&tables[1].incoming(0, 0, 0).unwrap(), LINE);
    assert_eq!((written(&mut second), tables[0].slowest(&second)), (0, 2));
    tables[2].consume(&tables[2].incoming(0, 0, 0).unwrap(), LINE);
    assert_eq!(written(&mut second), 1);
}

/// Whatever is in a ring's description, the ring is in a cell.
#[test]
fn a_ring_that_is_not_in_a_cell_is_refused() {
    let memory = Memory::new(2);
    let tables = memory.tables();
    let word = |at: usize, value: u64| {
        // SAFETY: within the table of member 0, and aligned.
        unsafe { memory.0[0].add(PLACES[3] + 8 * at).cast::<u64>().write(value) };
    };
    for (at, bytes, possible) in [
        (PLACES[4], 64, true),
        (PLACES[4], 0, false),
        (PLACES[4] + 8, 64, false),
        (PLACES[4] - 64, 64, false),
        (TABLE_BYTES - 64, 64, true),
        (TABLE_BYTES - 64, 65, false),
        (TABLE_BYTES - 64, usize::MAX, false),
    ] {
        word(2, at as u64);
        word(3, bytes as u64);
        let stream = tables[1].incoming(0, 0, 0);
        assert_eq!(stream.is_some(), possible, "{bytes} bytes at {at}");
        for written in [0, 7, u64::MAX] {
            word(0, written);
            stream.iter().for_each(|stream| assert_eq!(tables[1].written(stream) as u64, written));
        }
    }
}
