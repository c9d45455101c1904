//! Files.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a file for reading. Does not wait for a writer if it is a FIFO.
pub fn open_without_blocking(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.open(path)
}

/// Creates a file for writing that only this user can read, where files have modes. Fails if there is one.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Closes a file, with the result, which network file systems use to report a full disk.
pub fn close(file: File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::fd::IntoRawFd;
        // SAFETY: `into_raw_fd` has given up the ownership of an open descriptor, so nothing else closes it.
        if unsafe { libc::close(file.into_raw_fd()) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // Linux closes the descriptor even if a signal interrupts the call.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        }
    }
    #[cfg(not(unix))]
    {
        // The standard library does not tell what closing says; flushing says the same.
        file.sync_all()
    }
}

/// By what a file is recognised as another one, or as changed: where it lies, its length, and when it was last written.
#[cfg(unix)]
pub type Stamp = [i64; 5];
/// By what a file is recognised as changed: its length, and when it was last written.
#[cfg(not(unix))]
pub type Stamp = (u64, Option<std::time::SystemTime>);

/// That of a file with this metadata.
pub fn stamp(of: &Metadata) -> Stamp {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        [of.dev() as i64, of.ino() as i64, of.size() as i64, of.mtime(), of.mtime_nsec()]
    }
    #[cfg(not(unix))]
    (of.len(), of.modified().ok())
}

/// The bits of a file's mode by which others than its owner may read or write it; 0 where files have no mode.
pub fn open_to_others(metadata: &Metadata) -> u32 {
    #[cfg(unix)]
    {
        std::os::unix::fs::MetadataExt::mode(metadata) & 0o077
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        0
    }
}
