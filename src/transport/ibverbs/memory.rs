//! Memory that devices access: the program's, as far as it is registered, and buffers of this library.
//!
//! A program could unmap memory and map other memory at the same address. A registration would not notice that: the
//! device would go on to access the old pages. So only memory is registered whose lifetime the library knows, because
//! it has allocated it, or because a buffer says so: from its first use on, or from its second if it is short, until it
//! is released. All other memory is copied through buffers of the [`Pool`].

use std::collections::BTreeMap;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::handles::{DeviceContext, MemoryRegion};
use super::rail::Rail;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::sys::shared_memory::Mapping;

/// The maximum number of rails between two ranks.
pub const MAX_RAILS: usize = 4;

/// Environment variable for [`Registration`].
pub const VARIABLE: &str = "GLOO_RS_IB_REGISTRATION_CACHE";

/// The memory of the program that is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// What the library knows to stay mapped: its allocations, and buffers.
    #[default]
    Known,
    /// Nothing of the program's memory.
    Off,
}

impl Registration {
    /// Returns what [`VARIABLE`] says. Fails with `InvalidArgument` if its value is unknown.
    pub fn from_environment() -> Result<Self> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Self::Known),
            Some(value) => match value.to_str() {
                Some("" | "known") => Ok(Self::Known),
                Some("off") => Ok(Self::Off),
                _ => Err(Error::invalid(format!("{VARIABLE} is {value:?}; it must be known or off"))),
            },
        }
    }
}

/// From this length on, memory is registered at its first use. To register less takes longer than to copy it.
const AT_ONCE_BYTES: usize = 1 << 20;

/// Keys of registered memory, one for each rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// The keys for work requests of this side.
    pub local: [u32; MAX_RAILS],
    /// The keys for work requests of the other side.
    pub remote: [u32; MAX_RAILS],
}

/// Memory registered with all rails.
pub struct Registered {
    _regions: Vec<MemoryRegion>,
    /// The keys of the memory.
    pub keys: Keys,
}

impl Registered {
    /// Registers memory with all rails.
    ///
    /// # Safety
    /// It is mapped until the result is dropped.
    pub unsafe fn new(rails: &[Arc<Rail>], memory: *mut u8, bytes: usize) -> io::Result<Self> {
        let mut keys = Keys::default();
        let mut regions = Vec::with_capacity(rails.len());
        for (index, rail) in rails.iter().enumerate() {
            // SAFETY: the caller guarantees it.
            let region = unsafe { MemoryRegion::new(&rail.domain, memory, bytes)? };
            (keys.local[index], keys.remote[index]) = (region.local_key, region.remote_key);
            regions.push(region);
        }
        Ok(Self { _regions: regions, keys })
    }
}

/// The error for memory that could not be registered.
pub fn cannot_register(bytes: usize, error: &io::Error) -> Error {
    // Without the permission to lock as much, or where the limit is not enough, verbs report one of these.
    let limited = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM));
    let hint = match limited.then(sys::locked_memory_limit).flatten() {
        Some(limit) => format!(
            "; this process may lock {limit} bytes of memory: raise the limit (ulimit -l unlimited, or memlock in \
             /etc/security/limits.conf, LimitMEMLOCK of a systemd unit, --ulimit memlock=-1 of a container)"
        ),
        None => String::new(),
    };
    Error::new(ErrorKind::ResourceExhausted, format!("cannot register {bytes} bytes of memory: {error}{hint}"))
}

/// Memory of the program that is known to stay mapped.
struct Range {
    bytes: usize,
    /// How many times it was retained.
    holders: usize,
    /// Times that it was used without being registered.
    uses: u32,
    registered: Option<Registered>,
    /// Registering it has failed.
    refused: bool,
}

/// The program's memory that the links of a context may register.
pub struct Registry {
    rails: Vec<Arc<Rail>>,
    policy: Registration,
    /// By first address. Ranges may overlap.
    ranges: BTreeMap<usize, Vec<Range>>,
    /// The longest range, which bounds the search.
    longest: usize,
    /// How many times memory was registered.
    pub registrations: u64,
}

impl Registry {
    /// Makes the registry of a context with these rails.
    pub fn new(rails: Vec<Arc<Rail>>, policy: Registration) -> Self {
        Self { rails, policy, ranges: BTreeMap::new(), longest: 0, registrations: 0 }
    }

    /// Announces memory that stays mapped until it is released with the same arguments.
    pub fn retain(&mut self, memory: *mut u8, bytes: usize) {
        if self.policy == Registration::Off || bytes == 0 {
            return;
        }
        let at = self.ranges.entry(memory as usize).or_default();
        match at.iter_mut().find(|range| range.bytes == bytes) {
            Some(range) => range.holders += 1,
            None => at.push(Range { bytes, holders: 1, uses: 0, registered: None, refused: false }),
        }
        self.longest = self.longest.max(bytes);
    }

    /// Ends what [`Registry::retain`] has begun. No device accesses the memory afterwards, unless it is retained by
    /// other holders.
    pub fn release(&mut self, memory: *mut u8, bytes: usize) {
        let Some(at) = self.ranges.get_mut(&(memory as usize)) else { return };
        if let Some(index) = at.iter().position(|range| range.bytes == bytes) {
            at[index].holders -= 1;
            if at[index].holders == 0 {
                at.swap_remove(index);
            }
        }
        if at.is_empty() {
            self.ranges.remove(&(memory as usize));
        }
    }

    /// The keys of this memory if it is registered, or is now: from its second use on, if it is short.
    pub fn keys(&mut self, memory: *const u8, bytes: usize) -> Option<Keys> {
        self.find(memory, bytes, false)
    }

    /// The keys of this memory, which is registered now unless it was before; `None` if it may not or cannot be.
    pub fn register(&mut self, memory: *const u8, bytes: usize) -> Option<Keys> {
        self.find(memory, bytes, true)
    }

    fn find(&mut self, memory: *const u8, bytes: usize, at_once: bool) -> Option<Keys> {
        if self.policy == Registration::Off {
            return None;
        }
        let (first, end) = (memory as usize, memory as usize + bytes);
        let lowest = first.saturating_sub(self.longest);
        let around = self.ranges.range_mut(lowest..=first).rev();
        let mut around = around.flat_map(|(at, ranges)| ranges.iter_mut().map(move |range| (*at, range)));
        let found = around.find(|(at, range)| at + range.bytes >= end && !range.refused);
        if let Some((at, range)) = found {
            if let Some(registered) = &range.registered {
                return Some(registered.keys);
            }
            range.uses += 1;
            let is_short = range.bytes < AT_ONCE_BYTES && range.uses == 1;
            if is_short && !at_once {
                return None;
            }
            self.registrations += 1;
            // SAFETY: who has retained the range guarantees that it stays mapped until it is released.
            let registered = unsafe { Registered::new(&self.rails, at as *mut u8, range.bytes) };
            range.refused = registered.is_err();
            range.registered = registered.ok();
            return range.registered.as_ref().map(|registered| registered.keys);
        }
        None
    }
}

/// Part of the pool; from its start on it has as many bytes as were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolBuffer {
    chunk: u32,
    first: u32,
    granules: u32,
    /// The memory of the buffer.
    pub memory: NonNull<u8>,
    /// Keys of the memory.
    pub keys: Keys,
}

// SAFETY: it only names memory of the pool.
unsafe impl Send for PoolBuffer {}

/// The unit of the pool's memory.
const GRANULE_BYTES: usize = 16 << 10;
const CHUNK_GRANULES: usize = 256;
/// What is registered at once: the longest buffer.
pub const CHUNK_BYTES: usize = CHUNK_GRANULES * GRANULE_BYTES;
/// The maximum number of chunks of a context: 64 MiB.
const MAX_CHUNKS: usize = 16;

/// Zeroed memory that begins at a page, for the device of a rail. A child by fork does not have it: on any kernel, the
/// pages to which the device writes stay with this process.
pub struct Pages {
    mapping: ManuallyDrop<Mapping>,
    device: Arc<DeviceContext>,
}

impl Pages {
    /// Allocates `bytes` bytes, at least one.
    pub fn new(rail: &Rail, bytes: usize) -> io::Result<Self> {
        let mapping = Mapping::private(bytes)?;
        mapping.exclude_from_children()?;
        Ok(Self { mapping: ManuallyDrop::new(mapping), device: rail.domain.context().clone() })
    }

    /// Where it begins.
    pub fn start(&self) -> *mut u8 {
        self.mapping.start()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // A child may have mapped other memory there.
        if !self.device.is_inherited() {
            // SAFETY: it is dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}

struct Chunk {
    // First, so that it is deregistered before it is freed.
    registered: Registered,
    pages: Pages,
    taken: [bool; CHUNK_GRANULES],
    free: usize,
}

/// Registered buffers for messages whose memory is not registered. Memory is added when it is needed, and kept.
pub struct Pool {
    rails: Vec<Arc<Rail>>,
    chunks: Vec<Chunk>,
    /// No more memory can be registered.
    exhausted: bool,
    /// How many times memory was registered.
    pub registrations: u64,
}

// SAFETY: the pool owns the memory that its buffers point to.
unsafe impl Send for Pool {}

impl Pool {
    /// Makes the pool of a context with these rails, without memory.
    pub fn new(rails: Vec<Arc<Rail>>) -> Self {
        Self { rails, chunks: Vec::new(), exhausted: false, registrations: 0 }
    }

    /// A buffer of `bytes` bytes; `None` if there is none now.
    pub fn take(&mut self, bytes: usize) -> Option<PoolBuffer> {
        let granules = bytes.div_ceil(GRANULE_BYTES).max(1);
        if granules > CHUNK_GRANULES {
            return None;
        }
        loop {
            for (index, chunk) in self.chunks.iter_mut().enumerate().filter(|(_, chunk)| chunk.free >= granules) {
                if let Some(first) = find_run(&chunk.taken, granules) {
                    chunk.taken[first..first + granules].fill(true);
                    chunk.free -= granules;
                    // SAFETY: the granules are inside the chunk, which is not at address 0.
                    let memory = unsafe { NonNull::new_unchecked(chunk.pages.start().add(first * GRANULE_BYTES)) };
                    let [chunk_number, first, granules] = [index, first, granules].map(|number| number as u32);
                    let keys = chunk.registered.keys;
                    return Some(PoolBuffer { chunk: chunk_number, first, granules, memory, keys });
                }
            }
            self.grow()?;
        }
    }

    fn grow(&mut self) -> Option<()> {
        if self.exhausted || self.chunks.len() == MAX_CHUNKS {
            return None;
        }
        self.registrations += 1;
        let rail = self.rails.first()?;
        let chunk = Pages::new(rail, CHUNK_BYTES).and_then(|pages| {
            // SAFETY: the memory is freed after the registration has ended.
            let registered = unsafe { Registered::new(&self.rails, pages.start(), CHUNK_BYTES)? };
            Ok(Chunk { registered, pages, taken: [false; CHUNK_GRANULES], free: CHUNK_GRANULES })
        });
        self.exhausted = chunk.is_err();
        self.chunks.push(chunk.ok()?);
        Some(())
    }

    /// Ends the registrations of memory that no buffer uses, as far as the order of chunks permits. Returns whether
    /// there were any. Later buffers may register memory again.
    pub fn shrink(&mut self) -> bool {
        let before = self.chunks.len();
        while self.chunks.pop_if(|chunk| chunk.free == CHUNK_GRANULES).is_some() {}
        self.exhausted = false;
        self.chunks.len() < before
    }

    /// Gives a buffer back.
    pub fn give_back(&mut self, buffer: PoolBuffer) {
        let chunk = &mut self.chunks[buffer.chunk as usize];
        let (first, granules) = (buffer.first as usize, buffer.granules as usize);
        chunk.taken[first..first + granules].fill(false);
        chunk.free += granules;
    }
}

/// The first place with so many free granules in a row.
fn find_run(taken: &[bool; CHUNK_GRANULES], granules: usize) -> Option<usize> {
    let mut run = 0;
    taken.iter().enumerate().find_map(|(at, taken)| {
        run = if *taken { 0 } else { run + 1 };
        (run == granules).then(|| at + 1 - granules)
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::testing::fake_ibverbs::{DeviceModel, Fabric};

    /// What happens in a child by fork; it makes system calls only. Returns the child's status.
    fn in_a_child(body: impl FnOnce() -> bool) -> i32 {
        // SAFETY: as the caller guarantees.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(!body()));
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        }
    }

    #[test]
    fn a_child_by_fork_has_nothing_where_the_pages_are_and_keeps_what_it_puts_there() {
        let fabric = Fabric::with_clock(Instant::now, 1, Duration::ZERO..Duration::from_micros(1));
        fabric.add_node(0, vec![DeviceModel::roce("fake0", 1)]);
        let rail = fabric.rails(0).remove(0);
        for bytes in [1 << 16, CHUNK_BYTES] {
            let pages = Pages::new(&rail, bytes).unwrap();
            let start = pages.start();
            // SAFETY: the pages have so many bytes.
            unsafe { start.add(bytes - 1).write(7) };
            let mut resident = [0u8; CHUNK_BYTES / 4096];
            let status = in_a_child(|| {
                // SAFETY: the first call writes a byte for each page, and the second does not replace memory that is
                // mapped.
                let (is_mapped, own) = unsafe {
                    let (flags, place) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, start.cast());
                    let is_mapped = libc::mincore(place, bytes, resident.as_mut_ptr()) == 0;
                    let access = libc::PROT_READ | libc::PROT_WRITE;
                    (is_mapped, libc::mmap(place, bytes, access, flags | libc::MAP_FIXED_NOREPLACE, -1, 0))
                };
                drop(pages);
                // SAFETY: mapped just now.
                !is_mapped && own == start.cast() && unsafe { start.add(bytes - 1).read_volatile() } == 0
            });
            assert_eq!(status, 0);
        }
    }

    #[test]
    fn a_run_is_found_where_it_is_free() {
        let mut taken = [false; CHUNK_GRANULES];
        assert_eq!(find_run(&taken, CHUNK_GRANULES), Some(0));
        taken[3] = true;
        assert_eq!((find_run(&taken, 3), find_run(&taken, 4)), (Some(0), Some(4)));
        assert_eq!(find_run(&taken, CHUNK_GRANULES - 3), None);
        taken.fill(true);
        assert_eq!(find_run(&taken, 1), None);
    }

    #[test]
    fn the_error_for_memory_that_may_not_be_locked_says_how_to_raise_the_limit() {
        let text = cannot_register(4096, &io::Error::from_raw_os_error(libc::ENOMEM)).message().to_owned();
        assert!(text.contains("4096 bytes"), "{text}");
        assert_eq!(text.contains("ulimit -l"), sys::locked_memory_limit().is_some(), "{text}");
        let text = cannot_register(1, &io::Error::from_raw_os_error(libc::EIO)).message().to_owned();
        assert!(!text.contains("ulimit"), "{text}");
    }
}
