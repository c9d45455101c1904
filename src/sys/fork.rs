//! Forks: how a process detects that it is a child, and what a child does not keep.

use std::io;

#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicU32, Ordering};

/// Distinguishes the process that created the mark from children created by fork, without a system call: the kernel
/// clears a page of memory in the child.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub struct ForkMark {
    page: *mut AtomicU32,
    /// Whether the kernel clears the page. If it cannot (Linux before 4.14), process ids are compared.
    emptied: bool,
}

// SAFETY: the mark owns the mapping, which contains only an atomic and is not tied to a thread.
#[cfg(target_os = "linux")]
unsafe impl Send for ForkMark {}
// SAFETY: shared references only access an atomic.
#[cfg(target_os = "linux")]
unsafe impl Sync for ForkMark {}

#[cfg(target_os = "linux")]
const MARK_BYTES: usize = size_of::<AtomicU32>();

#[cfg(target_os = "linux")]
impl ForkMark {
    /// A mark of the calling process.
    pub fn new() -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address chosen by the kernel does not affect existing memory; the length
        // is rounded up to a page.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), MARK_BYTES, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page was mapped just now with at least this length, and the advice does not invalidate it in this
        // process.
        let emptied = unsafe { libc::madvise(page, MARK_BYTES, libc::MADV_WIPEONFORK) } == 0;
        let mark = Self { page: page.cast(), emptied };
        mark.word().store(std::process::id(), Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped until `drop`, page-aligned, and contains a valid `AtomicU32`; it is accessed only
        // as such.
        unsafe { &*self.page }
    }

    /// Whether this process is not the one that created the mark.
    #[inline]
    pub fn is_child(&self) -> bool {
        let maker = self.word().load(Ordering::Relaxed);
        if self.emptied { maker == 0 } else { maker != std::process::id() }
    }
}

#[cfg(target_os = "linux")]
impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the mark owns the mapping, and no reference to it can exist any more.
        unsafe { libc::munmap(self.page.cast(), MARK_BYTES) };
    }
}

/// Distinguishes the process that created the mark from children created by fork, which some systems do not have.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub struct ForkMark(u32);

#[cfg(not(target_os = "linux"))]
impl ForkMark {
    /// A mark of the calling process.
    pub fn new() -> io::Result<Self> {
        Ok(Self(std::process::id()))
    }

    /// Whether this process is not the one that created the mark.
    #[inline]
    pub fn is_child(&self) -> bool {
        cfg!(unix) && self.0 != std::process::id()
    }
}

/// What `body` returns in a child by fork. It must not panic.
///
/// # Safety
/// `body` does only what a child of this process may do.
#[cfg(all(test, target_os = "linux"))]
pub unsafe fn in_a_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: by the contract; the status is valid for a write.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(!body()));
        }
        let mut status = -1;
        libc::waitpid(child, &mut status, 0);
        status == 0
    }
}

/// What `body` returns in a child by fork in which no descriptor can be opened. It must not panic.
#[cfg(all(test, target_os = "linux"))]
pub fn without_descriptors(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child may allocate memory: the only other threads are those of tests, and glibc's allocator works in
    // a child.
    unsafe {
        in_a_child(|| {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            body()
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_fork_mark_recognises_a_child() {
        let mark = ForkMark::new().unwrap();
        let kept = ForkMark { page: ForkMark::new().map(std::mem::ManuallyDrop::new).unwrap().page, emptied: false };
        assert!(!mark.is_child() && !kept.is_child());
        // SAFETY: after fork, the child only reads memory and makes async-signal-safe system calls.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(if mark.is_child() && kept.is_child() { 0 } else { 1 });
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
        assert!(!mark.is_child());
    }
}
