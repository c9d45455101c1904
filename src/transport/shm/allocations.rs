//! Memory that a rank allocates for data, and that the other ranks of its host read where it is.
//!
//! Each allocation is anonymous memory of its own. Its owner lists it in a table of its segment: where it begins in the
//! owner's process, and which descriptor it has there. A peer that reads from such an address maps the memory, once.
//! What it finds in the table is checked like bytes from a socket, and read once: a table with nonsense in it leads to
//! wrong data, or to no mapping.

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::listing::{Entry, Listed};
use super::segment::{OwnSegment, PeerSegment};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Ordering;
use crate::sys::memory_limits;
use crate::sys::process::Descriptor;
use crate::sys::shared_memory::{Access, Mapping, SharedMemory};
use crate::transport::local::InPlace;

/// Shorter allocations are not listed: what is in them is copied in any case.
const LISTED_BYTES: usize = 16 << 10;

/// What a rank has allocated for data of the caller.
pub struct Allocations {
    /// The segment with the table, if the rank has one.
    own: Option<Arc<OwnSegment>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By their first address.
    all: BTreeMap<usize, Allocation>,
    /// The generation of the last one that was listed.
    generation: u64,
}

/// The fields are in this order so that the memory is unmapped before it is closed.
struct Allocation {
    mapping: Mapping,
    /// The memory, and the number of its entry, if it is listed.
    listed: Option<(SharedMemory, usize)>,
}

impl Allocations {
    /// Makes an empty set of allocations; later ones are listed in the table of `own`.
    pub fn new(own: Option<Arc<OwnSegment>>) -> Self {
        Self { own, state: Mutex::default() }
    }

    /// Allocates `bytes` of zeroed memory, aligned to a page at least. It stays allocated until [`Allocations::free`]
    /// or [`Allocations::free_all`]. If it cannot be shared, it is memory of this process. With `commit`, it has all
    /// its pages then; without, they are taken when they are first written.
    pub fn allocate(&self, bytes: usize, commit: bool) -> Result<NonNull<u8>> {
        let mut state = self.state();
        let length = bytes.max(1);
        // The system refuses private memory of such a length, but not shared memory.
        let unknown = |error| {
            let what = "cannot tell how much memory this process can have";
            Error::io(format_args!("cannot allocate {bytes} bytes: {what}"), &error)
        };
        if let Some(max_bytes) =
            memory_limits::max_bytes().map_err(unknown)?.filter(|max_bytes| length as u64 > *max_bytes)
        {
            let text = format!("cannot allocate {bytes} bytes: this process can have {max_bytes} at most, with swap");
            return Err(Error::new(ErrorKind::ResourceExhausted, text));
        }
        // Shared memory is counted when pages are taken. Where the system counts strictly, a write could find none:
        // SIGBUS.
        let at_once = commit || memory_limits::is_strict().map_err(unknown)?;
        let share = |own: &Arc<OwnSegment>| state.share(own, length, at_once).ok();
        let shared = self.own.as_ref().filter(|_| length >= LISTED_BYTES).and_then(share);
        let allocation = match shared {
            Some(allocation) => allocation,
            None => {
                let mapping = Mapping::private(length);
                let committed =
                    mapping.and_then(|mapping| if commit { mapping.commit().map(|()| mapping) } else { Ok(mapping) });
                let mapping = committed.map_err(|error| {
                    let text = format!("cannot allocate {bytes} bytes: {}", crate::error::in_words(&error));
                    Error::new(ErrorKind::ResourceExhausted, text).with_errno(error.raw_os_error())
                })?;
                Allocation { mapping, listed: None }
            }
        };
        let start = allocation.mapping.start();
        state.all.insert(start.addr(), allocation);
        Ok(NonNull::new(start).expect("no mapping is at address 0"))
    }

    /// Frees the memory that begins at `memory`. Fails if [`Allocations::allocate`] has not returned it, or it was
    /// freed.
    ///
    /// # Safety
    /// This process does not access the memory any more.
    pub unsafe fn free(&self, memory: *mut u8) -> Result<()> {
        let allocation = self.state().all.remove(&memory.addr()).ok_or_else(|| {
            Error::invalid(format!(
                "no memory that was allocated on this context begins at {memory:p}, or it was freed"
            ))
        })?;
        self.end(allocation);
        Ok(())
    }

    /// How many bytes are mapped of the allocation that begins at `memory`, if there is one.
    pub fn mapped_bytes(&self, memory: *mut u8) -> Option<usize> {
        self.state().all.get(&memory.addr()).map(|allocation| allocation.mapping.bytes())
    }

    /// Takes over what was allocated by `other`, and lists it in the table of this one, as far as there is room.
    /// Returns what it is, and how many bytes of it are mapped.
    pub fn take_over(&self, other: &Self) -> Vec<(*mut u8, usize)> {
        let all = std::mem::take(&mut other.state().all);
        let mut state = self.state();
        let mut taken = Vec::with_capacity(all.len());
        for (start, allocation) in all {
            let Allocation { mapping, listed } = allocation;
            let listed = listed.zip(other.own.as_ref()).and_then(|((memory, at), former)| {
                let entry = &former.allocations().entries[at];
                let bytes = entry.load()?.bytes;
                entry.clear();
                let at = state.list(self.own.as_ref()?, &mapping, &memory, bytes)?;
                Some((memory, at))
            });
            taken.push((mapping.start(), mapping.bytes()));
            state.all.insert(start, Allocation { mapping, listed });
        }
        taken
    }

    /// Frees all memory.
    ///
    /// # Safety
    /// As for [`Allocations::free`].
    pub unsafe fn free_all(&self) {
        let all = std::mem::take(&mut self.state().all);
        all.into_values().for_each(|allocation| self.end(allocation));
    }

    fn end(&self, allocation: Allocation) {
        let (Some((memory, at)), Some(own)) = (&allocation.listed, &self.own) else { return };
        own.allocations().entries[*at].clear();
        // Peers may keep it mapped for some time. If this fails, the pages are freed after that.
        let _ = memory.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Allocates memory that the table of `own` lists.
    fn share(&mut self, own: &OwnSegment, bytes: usize, commit: bool) -> io::Result<Allocation> {
        if free_entry(own).is_none() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let memory = SharedMemory::create()?;
        memory.grow(bytes as u64)?;
        if commit {
            memory.commit()?;
        }
        let mapping = memory.map_data(bytes, Access::Write)?;
        let at = self.list(own, &mapping, &memory, bytes as u64).expect("nobody else takes entries");
        Ok(Allocation { mapping, listed: Some((memory, at)) })
    }

    /// Lists `bytes` of `memory` in the table of `own`, and returns the number of the entry. `None` if all are taken.
    fn list(&mut self, own: &OwnSegment, mapping: &Mapping, memory: &SharedMemory, bytes: u64) -> Option<usize> {
        let (table, at) = (own.allocations(), free_entry(own)?);
        self.generation += 1;
        table.entries[at].set(&Listed {
            generation: self.generation,
            address: mapping.start().addr() as u64,
            bytes,
            descriptor: u64::from(memory.descriptor().number),
        });
        table.used.fetch_max(at as u64 + 1, Ordering::Relaxed);
        Some(at)
    }
}

/// The number of an entry in the table of `own` that lists nothing.
fn free_entry(own: &OwnSegment) -> Option<usize> {
    own.allocations().entries.iter().position(|entry| entry.generation.load(Ordering::Relaxed) == 0)
}

/// What this rank has mapped of the allocations of one peer.
#[derive(Default)]
pub(super) struct Views(Mutex<Vec<View>>);

/// What was found at an entry of the peer's table.
#[derive(Default)]
struct View {
    generation: u64,
    /// `None` if it could not be mapped.
    mapping: Option<Arc<Mapping>>,
}

impl Views {
    /// The `bytes` from `address` on in the process of `peer`, if they lie in memory that it has allocated, and that
    /// can be mapped.
    pub fn find(&self, peer: &PeerSegment, address: u64, bytes: usize) -> Option<InPlace> {
        let entries = peer.allocations().entries();
        if entries.is_empty() {
            return None;
        }
        let mut views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let length = views.len().max(entries.len());
        views.resize_with(length, View::default);
        let mut found = None;
        for (entry, view) in entries.iter().zip(views.iter_mut()) {
            let listed = entry.load();
            if listed.as_ref().map_or(0, |listed| listed.generation) != view.generation {
                *view = View::default();
            }
            let Some(listed) = listed else { continue };
            let Some(offset) = listed.offset(address, bytes as u64) else { continue };
            if view.generation == 0 {
                let mapping = map(peer, entry, &listed).ok().map(Arc::new);
                *view = View { generation: listed.generation, mapping };
            }
            // The entry's length may not be the one that was mapped, if the peer has changed it.
            let fits = |mapping: &Arc<Mapping>| offset + bytes as u64 <= mapping.bytes() as u64;
            found = view.mapping.clone().filter(fits).map(|mapping| {
                let start = mapping.start().cast_const().wrapping_add(offset as usize);
                InPlace::new(mapping, start)
            });
        }
        found
    }
}

#[cfg(test)]
impl Views {
    /// How many allocations are mapped.
    pub fn mapped(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|view| view.mapping.is_some()).count()
    }
}

/// Maps what `entry` lists.
fn map(peer: &PeerSegment, entry: &Entry, listed: &Listed) -> io::Result<Mapping> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let number = u32::try_from(listed.descriptor).map_err(|_| invalid())?;
    let memory = SharedMemory::open(Descriptor { process: peer.process_id(), number })?;
    let bytes = usize::try_from(listed.bytes).map_err(|_| invalid())?;
    if memory.bytes()? < listed.bytes {
        return Err(invalid());
    }
    let mapping = memory.map_data(bytes, Access::Read)?;
    // After the end of the allocation or of the process, the descriptor may be another's.
    let ended = entry.has_ended(listed.generation) || peer.has_exited();
    if ended { Err(invalid()) } else { Ok(mapping) }
}

// Miri knows no shared memory.
#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use super::super::HostGroup;
    use super::super::listing::ENTRIES;
    use super::*;
    use crate::transport::LocalRanks;

    /// The bytes from `at` on, as member 1 finds them in place.
    fn found(groups: &[Arc<HostGroup>], at: *const u8, bytes: usize) -> Option<Vec<u8>> {
        let here = groups[1].in_place(0, at.addr() as u64, bytes)?;
        // SAFETY: it has so many bytes, which nothing writes meanwhile in these tests.
        Some(unsafe { std::slice::from_raw_parts(here.start(), bytes) }.to_vec())
    }

    fn allocate(allocations: &Allocations, bytes: usize, content: u8) -> *mut u8 {
        let memory = allocations.allocate(bytes, false).unwrap().as_ptr();
        // SAFETY: it has so many bytes.
        unsafe {
            assert!(std::slice::from_raw_parts(memory, bytes).iter().all(|byte| *byte == 0));
            memory.write_bytes(content, bytes);
        }
        memory
    }

    #[test]
    fn what_a_member_allocates_others_read_in_place() {
        let groups = HostGroup::in_process(2);
        let allocations = groups[0].allocations();
        for (bytes, content) in [(LISTED_BYTES, 3), (5 << 20, 4)] {
            let memory = allocate(&allocations, bytes, content);
            // SAFETY: within the memory.
            unsafe { memory.add(bytes - 1).write(9) };
            assert_eq!(found(&groups, memory, 1), Some(vec![content]));
            assert_eq!(found(&groups, memory.wrapping_add(bytes - 2), 2), Some(vec![content, 9]));
            assert!(found(&groups, memory, bytes).is_some() && groups[0].has_allocated(memory, bytes));
            for (at, bytes) in [(usize::MAX, 1), (0, bytes + 1), (bytes - 1, 2), (1, usize::MAX)] {
                assert_eq!(found(&groups, memory.wrapping_add(at), bytes), None, "{bytes} bytes at {at}");
                assert!(!groups[0].has_allocated(memory.wrapping_add(at), bytes));
            }
        }
        assert_eq!(groups[1].mapped(0), 2);
        let small = allocate(&allocations, LISTED_BYTES - 1, 5);
        assert_eq!(found(&groups, small, 1), None);
        // SAFETY: nothing uses the memory.
        unsafe { allocations.free_all() };
    }

    #[test]
    fn freed_memory_is_not_found_but_what_is_allocated_in_its_place() {
        let groups = HostGroup::in_process(2);
        let allocations = groups[0].allocations();
        let first = allocate(&allocations, 1 << 20, 0);
        assert_eq!(found(&groups, first, 2), Some(vec![0; 2]));
        // SAFETY: nothing uses the memory.
        unsafe { allocations.free(first) }.unwrap();
        for content in 1..20 {
            let memory = allocate(&allocations, 1 << 20, content);
            // The entry gets the same address each time: mostly the memory is there, but not always.
            groups[0].own_table().entries[0].address.store(first.addr() as u64, Ordering::Relaxed);
            assert_eq!(found(&groups, first, 2), Some(vec![content; 2]));
            let kept = groups[1].in_place(0, first.addr() as u64, 1 << 20).unwrap();
            // SAFETY: nothing else uses the memory.
            unsafe { allocations.free(memory) }.unwrap();
            // SAFETY: as above.
            let twice = unsafe { allocations.free(memory) }.unwrap_err();
            assert!(twice.message().contains("or it was freed"), "{twice}");
            // SAFETY: it stays mapped.
            assert_eq!(unsafe { kept.start().read() }, 0, "its pages were not freed");
            assert_eq!((found(&groups, first, 2), groups[1].mapped(0)), (None, 0));
        }
    }

    #[test]
    fn further_allocations_are_not_shared() {
        let groups = HostGroup::in_process(2);
        let allocations = groups[0].allocations();
        let all: Vec<_> = (0..=ENTRIES).map(|_| allocate(&allocations, LISTED_BYTES, 1)).collect();
        let shared = |memory: *mut u8| found(&groups, memory, 1).is_some();
        assert_eq!(all.iter().position(|memory| !shared(*memory)), Some(ENTRIES));
        // SAFETY: nothing uses the memory.
        unsafe { allocations.free(all[7]) }.unwrap();
        assert!(shared(allocate(&allocations, LISTED_BYTES, 2)));
        assert_eq!(groups[1].mapped(0), ENTRIES);
        // SAFETY: as above.
        unsafe { allocations.free_all() };
        assert_eq!((found(&groups, all[0], 1), groups[1].mapped(0)), (None, 0));
    }

    #[test]
    fn without_a_segment_it_is_memory_of_the_process() {
        let allocations = Allocations::new(None);
        let memory = allocate(&allocations, 1 << 20, 7);
        assert_eq!(memory.addr() % 4096, 0);
        let error = allocations.allocate(usize::MAX, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert!(error.message().contains("cannot allocate 18446744073709551615 bytes: "), "{error}");
        // SAFETY: nothing uses the memory.
        unsafe {
            allocations.free(memory).unwrap();
            assert!(allocations.free(std::ptr::dangling_mut()).is_err());
        }
    }

    #[test]
    fn more_than_a_process_can_have_is_refused_whether_it_is_shared_or_not() {
        let max_bytes = memory_limits::max_bytes().unwrap().unwrap() as usize;
        let groups = HostGroup::in_process(2);
        for allocations in [&groups[0].allocations(), &Allocations::new(None)] {
            let error = allocations.allocate(max_bytes + 1, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
            let text = format!("cannot allocate {} bytes: this process can have {max_bytes} at most", max_bytes + 1);
            assert!(error.message().starts_with(&text), "{error}");
        }
    }

    #[test]
    fn a_limit_that_could_not_be_read_is_not_taken_for_none() {
        let allocations = Allocations::new(None);
        let fails = |allocated: Result<_>| allocated.is_err_and(|error| error.kind() == ErrorKind::ResourceExhausted);
        assert!(crate::sys::without_descriptors(|| fails(allocations.allocate(4096, false))));
    }

    #[test]
    fn pages_are_taken_when_they_are_written_or_at_once() {
        const BYTES: usize = 4 << 20;
        let groups = HostGroup::in_process(2);
        let (shared, private) = (groups[0].allocations(), Allocations::new(None));
        for commit in [false, true] {
            let taken = if commit { BYTES } else { 0 };
            let memory = shared.allocate(BYTES, commit).unwrap();
            let number = groups[0].own_table().entries[0].descriptor.load(Ordering::Relaxed);
            let file = std::fs::metadata(format!("/proc/self/fd/{number}")).unwrap();
            assert_eq!(std::os::unix::fs::MetadataExt::blocks(&file) as usize * 512, taken);
            // SAFETY: nothing uses the memory.
            unsafe { shared.free(memory.as_ptr()) }.unwrap();

            let memory = private.allocate(BYTES, commit).unwrap();
            let mut pages = vec![0u8; BYTES / 4096];
            // SAFETY: the memory has so many bytes, and the vector a byte for each page.
            assert_eq!(unsafe { libc::mincore(memory.as_ptr().cast(), BYTES, pages.as_mut_ptr()) }, 0);
            assert_eq!(pages.iter().filter(|page| **page & 1 != 0).count() * 4096, taken);
            // SAFETY: nothing uses the memory.
            unsafe { private.free(memory.as_ptr()) }.unwrap();
        }
    }

    #[test]
    fn nonsense_in_a_table_leads_to_no_access_beyond_what_is_mapped() {
        use proptest::prelude::*;
        let groups = HostGroup::in_process(2);
        let allocations = groups[0].allocations();
        let memory = allocate(&allocations, LISTED_BYTES, 1);
        let start = memory.addr() as u64;
        let table = groups[0].own_table();
        let descriptor = table.entries[0].descriptor.load(Ordering::Relaxed);
        // A length that grows after the memory was mapped, and one that the memory does not have.
        assert!(found(&groups, memory, LISTED_BYTES).is_some());
        table.entries[0].bytes.store(1 << 30, Ordering::Relaxed);
        assert!(found(&groups, memory, LISTED_BYTES + 1).is_none(), "more than is mapped");
        table.entries[0].generation.store(100, Ordering::Relaxed);
        assert!(found(&groups, memory, 1).is_none(), "the memory is shorter");
        let word = prop_oneof![
            any::<u64>(),
            0u64..5,
            start - 5..start + 5,
            Just(u64::MAX),
            Just(descriptor),
            (1u64 << 16) - 2..(1 << 16) + 2,
        ];
        let words = proptest::collection::vec((0usize..9, word), 0..12);
        proptest!(ProptestConfig::with_cases(3000), |(words in words, at in start - 2..start + 3, bytes in 0usize..70_000)| {
            for (at, value) in words {
                let word = match at {
                    0 => &table.used,
                    _ => {
                        let Entry { generation, address, bytes, descriptor } = &table.entries[(at - 1) / 4];
                        [generation, address, bytes, descriptor][(at - 1) % 4]
                    }
                };
                word.store(value, Ordering::Relaxed);
            }
            if let Some(here) = groups[1].in_place(0, at, bytes) && bytes > 0 {
                // SAFETY: it has so many bytes. SIGSEGV or SIGBUS is a failure of this test.
                unsafe { [here.start().read_volatile(), here.start().add(bytes - 1).read_volatile()] };
            }
        });
        table.entries[0].descriptor.store(descriptor, Ordering::Relaxed);
        // SAFETY: nothing uses the memory.
        unsafe { allocations.free(memory) }.unwrap();
    }
}
