//! Memory that other processes of the host can map, on a system where ranks do not share memory: creating it fails.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

use super::process::Descriptor;

/// Shared memory. There is none.
#[derive(Debug)]
pub enum SharedMemory {}

impl SharedMemory {
    /// Fails.
    pub fn create() -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "ranks share memory on Linux only"))
    }

    /// Fails.
    pub fn open(_descriptor: Descriptor) -> io::Result<Self> {
        Self::create()
    }

    /// Whether `descriptor` is this memory, too.
    pub fn is(&self, _descriptor: Descriptor) -> io::Result<bool> {
        match *self {}
    }

    /// The size in bytes.
    pub fn bytes(&self) -> io::Result<u64> {
        match *self {}
    }

    /// Makes the memory at least `bytes` long.
    pub fn grow(&self, _bytes: u64) -> io::Result<()> {
        match *self {}
    }

    /// Maps the first `bytes`.
    pub fn map(&self, _bytes: usize, _access: Access) -> io::Result<Mapping> {
        match *self {}
    }

    /// [`SharedMemory::map`] for large amounts of data.
    pub fn map_data(&self, _bytes: usize, _access: Access) -> io::Result<Mapping> {
        match *self {}
    }

    /// Takes all pages.
    pub fn commit(&self) -> io::Result<()> {
        match *self {}
    }

    /// Frees the pages.
    pub fn clear(&self) -> io::Result<()> {
        match *self {}
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
        match *self {}
    }

    /// Reads into `into` from `offset`.
    pub fn read_at(&self, _into: &mut [u8], _offset: u64) -> io::Result<usize> {
        match *self {}
    }

    /// The memory's descriptor in this process.
    pub fn descriptor(&self) -> Descriptor {
        match *self {}
    }
}

/// What a mapping permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Reads and writes.
    Write,
}

/// Memory of this process, until it is dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is not tied to a thread; it is handed out as raw pointers only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A page of most systems.
const ALIGNMENT_BYTES: usize = 4096;

impl Mapping {
    /// Zeroed memory of this process.
    pub fn private(bytes: usize) -> io::Result<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT_BYTES).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, layout })
    }

    /// Takes all pages of memory of this process.
    pub fn commit(&self) -> io::Result<()> {
        for at in (0..self.layout.size()).step_by(ALIGNMENT_BYTES) {
            // SAFETY: the byte lies in this memory, which is new: nothing else accesses it, and it is zero.
            unsafe { self.start().add(at).write_volatile(0) };
        }
        Ok(())
    }

    /// The mapping's first byte, aligned to a page.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The mapping's length in bytes.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; users of its pointers keep it alive.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
