//! Other processes of this host, on a system where they cannot be reached: every call fails, so that ranks share no
//! memory.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;

use super::RawSocket;

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "ranks share memory on Linux only"))
}

/// A descriptor of another process, or of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The process, by the number that it has for itself.
    pub process: u32,
    /// The number of the descriptor there.
    pub number: u32,
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptor {} of process {}", self.number, self.process)
    }
}

impl Descriptor {
    /// Fails.
    pub fn target(self) -> io::Result<String> {
        unsupported()
    }

    /// Fails.
    pub fn metadata(self) -> io::Result<Metadata> {
        unsupported()
    }

    /// Fails.
    pub fn open(self) -> io::Result<File> {
        unsupported()
    }
}

/// A process. There is none.
#[derive(Debug)]
pub enum Process {}

impl Process {
    /// Fails.
    pub fn open(_process: u32) -> io::Result<Self> {
        unsupported()
    }

    /// The process's descriptor.
    pub fn raw(&self) -> RawSocket {
        match *self {}
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        match *self {}
    }
}

/// Fails.
pub fn descriptors() -> io::Result<u64> {
    unsupported()
}

/// Fails.
///
/// # Safety
/// None.
pub unsafe fn read_memory(_process: u32, _address: u64, _into: *mut u8, _bytes: usize) -> io::Result<usize> {
    unsupported()
}

/// Says for messages why [`read_memory`] has failed with `error`.
pub fn why_unreadable(error: &io::Error) -> String {
    error.to_string()
}

/// `None`: there is no Yama.
pub fn ptrace_scope() -> Option<u32> {
    None
}

/// Processes that may trace this one although they are not its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracers {
    /// The process with this number, and those that descend from it.
    Descendants(u32),
    /// All of the same user.
    Any,
}

/// Fails.
pub fn set_tracers(_tracers: Tracers) -> io::Result<()> {
    unsupported()
}

/// Whether this process is `process`.
pub fn descends_from(process: u32) -> bool {
    process == std::process::id()
}
