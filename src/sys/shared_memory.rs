//! Anonymous memory that other processes of the host can map: memfds. They have no name in any file system, and their
//! pages are freed when the last process that has a descriptor or a mapping ends.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::NonNull;

use super::check;
use super::process::Descriptor;
use crate::error::in_words;

/// The name of the memory, which is shown in `/proc/PID/fd` and `/proc/PID/maps` only.
const NAME: &CStr = c"gloo_rs";
/// What `/proc/PID/fd/N` links to.
const LINK: &str = "/memfd:gloo_rs";
/// Bytes of which the pages are taken by one call.
const COMMITTED_BYTES: u64 = 4 << 20;
/// Length and alignment of a huge page on most systems.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// glibc has this function since 2.27 only.
fn memfd_create(flags: libc::c_uint) -> io::Result<RawFd> {
    // SAFETY: the name ends with NUL and is not kept.
    check(unsafe { libc::syscall(libc::SYS_memfd_create, NAME.as_ptr(), flags) as RawFd })
}

/// Memory shared by a descriptor. It can grow, but never shrink, so an access within its size never raises SIGBUS.
#[derive(Debug)]
pub struct SharedMemory(File);

impl SharedMemory {
    /// Creates empty memory.
    pub fn create() -> io::Result<Self> {
        // Linux before 6.3 refuses the flag that the memory holds no code, and later ones may demand it.
        const NOEXEC_SEAL: libc::c_uint = 8;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let named = |e| io::Error::new(io::Error::kind(&e), format!("memfd_create: {}", in_words(&e)));
        let fd = memfd_create(flags | NOEXEC_SEAL).or_else(|_| memfd_create(flags)).map_err(named)?;
        // SAFETY: the descriptor was created just now, and nothing else owns it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: the call takes no pointers.
        check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) })?;
        Ok(Self(file))
    }

    /// Opens another process's memory for reading. Fails if the descriptor is not such memory, or the memory could
    /// shrink.
    pub fn open(descriptor: Descriptor) -> io::Result<Self> {
        // Opening a file of another kind could have effects.
        if !descriptor.target()?.starts_with(LINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{descriptor} is no shared memory")));
        }
        let file = descriptor.open()?;
        // SAFETY: the call takes no pointers.
        let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the memory of {descriptor} could shrink"),
            ));
        }
        Ok(Self(file))
    }

    /// Whether `descriptor` is this memory, too.
    pub fn is(&self, descriptor: Descriptor) -> io::Result<bool> {
        let (own, other) = (self.0.metadata()?, descriptor.metadata()?);
        Ok((own.dev(), own.ino()) == (other.dev(), other.ino()))
    }

    /// The size in bytes.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// Makes the memory at least `bytes` long. New bytes are zero, and take no memory until they are written.
    pub fn grow(&self, bytes: u64) -> io::Result<()> {
        if self.bytes()? >= bytes {
            return Ok(());
        }
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is a valid rlimit; the call fills it or, on failure, leaves its initial value.
        unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
        // Beyond the limit the kernel would raise SIGXFSZ.
        if bytes > limit.rlim_cur {
            let text = format!("the limit on the size of files, {} bytes, is less than {bytes}", limit.rlim_cur);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.0.set_len(bytes)
    }

    /// Maps the first `bytes`, which must not be accessed beyond the memory's size.
    pub fn map(&self, bytes: usize, access: Access) -> io::Result<Mapping> {
        // SAFETY: a mapping at an address chosen by the kernel does not affect existing memory.
        unsafe { Mapping::new(std::ptr::null_mut(), bytes, access.protection(), libc::MAP_SHARED, self.0.as_raw_fd()) }
    }

    /// [`SharedMemory::map`] for large amounts of data: with huge pages, if the memory is as long as one and the system
    /// allows them.
    pub fn map_data(&self, bytes: usize, access: Access) -> io::Result<Mapping> {
        Mapping::for_data(bytes, access, libc::MAP_SHARED, self.0.as_raw_fd())
    }

    /// Takes all pages, so that no access to them fails later.
    pub fn commit(&self) -> io::Result<()> {
        let (bytes, mut at, mut part) = (self.bytes()?, 0, COMMITTED_BYTES);
        while at < bytes {
            let length = part.min(bytes - at);
            // SAFETY: the call takes no pointers.
            let done = unsafe { libc::fallocate(self.0.as_raw_fd(), 0, at as libc::off_t, length as libc::off_t) };
            match check(done) {
                Ok(_) => at += length,
                // A call that a signal interrupts gives back all that it has taken: a shorter one may end before the
                // next signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => part = (part / 2).max(page_bytes() as u64),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Frees the pages. The bytes become zero, and may still be accessed.
    pub fn clear(&self) -> io::Result<()> {
        let (mode, bytes) = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, self.bytes()?);
        // SAFETY: the call takes no pointers.
        check(unsafe { libc::fallocate(self.0.as_raw_fd(), mode, 0, bytes as libc::off_t) }).map(drop)
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    /// The memory's descriptor in this process.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor { process: std::process::id(), number: self.0.as_raw_fd() as u32 }
    }

    /// Reads into `into` from `offset`; returns the number of bytes, which is less only at the end of the memory.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(into, offset)
    }
}

/// What a mapping permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads. A write raises SIGSEGV.
    Read,
    /// Reads and writes.
    Write,
}

impl Access {
    fn protection(self) -> libc::c_int {
        match self {
            Self::Read => libc::PROT_READ,
            Self::Write => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// A mapping of memory, until it is dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is not tied to a thread; it hands out raw pointers only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process for large amounts of data, as [`SharedMemory::map_data`].
    pub fn private(bytes: usize) -> io::Result<Self> {
        Self::for_data(bytes, Access::Write, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn for_data(bytes: usize, access: Access, flags: libc::c_int, fd: RawFd) -> io::Result<Self> {
        let null = std::ptr::null_mut();
        if bytes < HUGE_PAGE_BYTES {
            // SAFETY: a mapping at an address chosen by the kernel does not affect existing memory.
            return unsafe { Self::new(null, bytes, access.protection(), flags, fd) };
        }
        let room = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: as above.
        let reserved = unsafe { Self::new(null, room, libc::PROT_NONE, reserve, -1) }?;
        let before = reserved.start().align_offset(HUGE_PAGE_BYTES);
        let pages = bytes.next_multiple_of(page_bytes());
        let start = reserved.start().wrapping_add(before);
        // SAFETY: the range lies in the reserved memory, which nothing else uses.
        let mapping = unsafe { Self::new(start.cast(), bytes, access.protection(), flags | libc::MAP_FIXED, fd) }?;
        std::mem::forget(reserved);
        // SAFETY: the rest of the reserved memory; the advice does not change what the memory contains. Without huge
        // pages the memory can be used as well.
        unsafe {
            if before > 0 {
                libc::munmap(start.wrapping_sub(before).cast(), before);
            }
            if room > before + pages {
                libc::munmap(start.wrapping_add(pages).cast(), room - before - pages);
            }
            libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    /// Leaves the memory out of children by fork: they have nothing there, whatever they map in its place.
    pub fn exclude_from_children(&self) -> io::Result<()> {
        // SAFETY: the mapping is this one's; the advice changes nothing in this process.
        check(unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DONTFORK) }).map(drop)
    }

    /// Takes all pages of memory of this process.
    pub fn commit(&self) -> io::Result<()> {
        // SAFETY: the mapping is this one's; the advice does not change what the memory contains.
        match check(unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_POPULATE_WRITE) }) {
            // Linux before 5.14 does not know it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            done => return done.map(drop),
        }
        for at in (0..self.bytes).step_by(page_bytes()) {
            // SAFETY: the byte lies in the mapping, which is new: nothing else accesses it, and it is zero.
            unsafe { self.start().add(at).write_volatile(0) };
        }
        Ok(())
    }

    /// # Safety
    /// `at` is NULL, or the flags contain `MAP_FIXED`, and nothing uses the `bytes` at `at`.
    unsafe fn new(
        at: *mut libc::c_void,
        bytes: usize,
        protection: libc::c_int,
        flags: libc::c_int,
        fd: RawFd,
    ) -> io::Result<Self> {
        // SAFETY: by the contract, this does not affect memory that is in use.
        let start = unsafe { libc::mmap(at, bytes, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: NonNull::new(start.cast()).expect("no mapping is at address 0"), bytes })
    }

    /// The mapping's first byte, aligned to a page.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The mapping's length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this owns the mapping; users of its pointers keep it alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Bytes of a page.
fn page_bytes() -> usize {
    // SAFETY: the call takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("every system has pages")
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    fn own(number: u32) -> Descriptor {
        Descriptor { process: std::process::id(), number }
    }

    #[test]
    fn what_one_mapping_writes_another_reads() {
        let memory = SharedMemory::create().unwrap();
        memory.grow(10_000).unwrap();
        memory.grow(5000).unwrap();
        assert_eq!(memory.bytes().unwrap(), 10_000);
        let opened = SharedMemory::open(memory.descriptor()).unwrap();
        assert!(opened.is(memory.descriptor()).unwrap() && opened.is(opened.descriptor()).unwrap());
        let [write, read] = [memory.map(10_000, Access::Write).unwrap(), opened.map(10_000, Access::Read).unwrap()];
        // SAFETY: both mappings are 10,000 bytes long, and nothing else accesses them.
        unsafe {
            write.start().add(9_999).write(7);
            assert_eq!(read.start().add(9_999).read_volatile(), 7);
        }
        memory.write_at(b"end", 9_998).unwrap();
        let mut into = [0; 8];
        assert_eq!(opened.read_at(&mut into, 9_997).unwrap(), 4);
        assert_eq!(&into[..4], b"\0end");
        assert!(opened.write_at(b"x", 0).is_err(), "it was opened for reading");
    }

    #[test]
    fn memory_for_data_is_zero_aligned_to_huge_pages_and_gives_its_pages_back() {
        for bytes in [1, 5000, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 1] {
            let memory = SharedMemory::create().unwrap();
            memory.grow(bytes as u64).unwrap();
            let shared = memory.map_data(bytes, Access::Write).unwrap();
            let read = memory.map_data(bytes, Access::Read).unwrap();
            for mapping in [&shared, &Mapping::private(bytes).unwrap()] {
                assert_eq!(mapping.bytes(), bytes);
                assert_eq!(mapping.start().addr() % if bytes < HUGE_PAGE_BYTES { 4096 } else { HUGE_PAGE_BYTES }, 0);
                // SAFETY: the mapping has so many bytes, and nothing else accesses them.
                unsafe {
                    assert!(std::slice::from_raw_parts(mapping.start(), bytes).iter().all(|byte| *byte == 0));
                    mapping.start().write_bytes(7, bytes);
                }
            }
            // SAFETY: as above.
            let last = || unsafe { read.start().add(bytes - 1).read_volatile() };
            assert_eq!(last(), 7);
            memory.clear().unwrap();
            assert_eq!((last(), memory.bytes().unwrap()), (0, bytes as u64));
        }
        for bytes in [1 << 60, usize::MAX - HUGE_PAGE_BYTES, usize::MAX] {
            assert_eq!(Mapping::private(bytes).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        }
    }

    /// There is so much memory that taking all pages by one call takes longer than the time between two signals.
    #[test]
    fn pages_are_taken_though_signals_come() {
        const BYTES: u64 = 64 << 20;
        let memory = SharedMemory::create().unwrap();
        memory.grow(BYTES).unwrap();
        let every = std::time::Duration::from_millis(5);
        crate::sys::signal::interrupted(every, || memory.commit().unwrap());
        assert_eq!(memory.0.metadata().unwrap().blocks() * 512, BYTES);
        memory.clear().unwrap();
    }

    #[test]
    fn memory_cannot_shrink_and_other_files_are_refused() {
        let memory = SharedMemory::create().unwrap();
        memory.grow(4096).unwrap();
        assert!(memory.0.set_len(100).is_err());
        let file = File::open("/dev/null").unwrap();
        let error = SharedMemory::open(own(file.as_raw_fd() as u32)).unwrap_err();
        assert!(error.to_string().contains("is no shared memory"), "{error}");
        assert!(!memory.is(own(file.as_raw_fd() as u32)).unwrap());
        // SAFETY: a name that ends with NUL; the descriptor is owned by the file.
        let plain = unsafe { File::from_raw_fd(check(libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC)).unwrap()) };
        let error = SharedMemory::open(own(plain.as_raw_fd() as u32)).unwrap_err();
        assert!(error.to_string().contains("could shrink"), "{error}");
    }
}
