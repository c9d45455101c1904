//! Files.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// Opens a file for reading. Does not wait for a writer if it is a FIFO.
pub fn open_without_blocking(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.open(path)
}

/// Until when [`read`] waits for the end of a pipe.
#[derive(Clone, Copy)]
pub struct Until {
    began: Instant,
    timeout: Duration,
}

impl Until {
    /// The time `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self { began: Instant::now(), timeout }
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.began.elapsed())
    }
}

/// The content of a file that a user has named, at most `max_bytes` bytes. It is a regular file, or a pipe, whose
/// writer must end it by `until`: reading anything else might block (a FIFO without a writer) or never end (a device).
pub fn read(path: &Path, max_bytes: u64, until: Until) -> io::Result<Vec<u8>> {
    read_until(path, max_bytes, Some(until))
}

/// Like [`read`], of a regular file only.
pub fn read_regular(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read_until(path, max_bytes, None)
}

/// `until`: for pipes, which are refused if there is none.
fn read_until(path: &Path, max_bytes: u64, until: Option<Until>) -> io::Result<Vec<u8>> {
    let refuse = |kind, why: String| Err(io::Error::new(kind, why));
    let mut file = open_without_blocking(path)?;
    let kind = file.metadata()?.file_type();
    let pipe = until.filter(|_| is_pipe(&kind));
    if !kind.is_file() && pipe.is_none() {
        let why = if until.is_some() { "it is neither a regular file nor a pipe" } else { "it is not a regular file" };
        return refuse(io::ErrorKind::InvalidInput, why.to_owned());
    }
    let mut bytes = Vec::new();
    loop {
        if let Some(until) = pipe
            && !is_readable(&file, until.left())
        {
            // A signal ends the wait as well.
            if !until.left().is_zero() {
                continue;
            }
            let text = format!("this pipe's writer has not closed it after {:?}", until.timeout);
            return refuse(io::ErrorKind::TimedOut, text);
        }
        let room = max_bytes + 1 - bytes.len() as u64;
        match (&mut file).take(room.min(PART_BYTES)).read_to_end(&mut bytes) {
            Ok(0) => return Ok(bytes),
            Ok(_) if bytes.len() as u64 > max_bytes => {
                return refuse(io::ErrorKind::InvalidInput, format!("it has more than {max_bytes} bytes"));
            }
            // What a pipe had is taken already.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Bytes that are read at once.
const PART_BYTES: u64 = 64 << 10;

/// Whether a pipe has bytes, or no writer any more, within `timeout`.
fn is_readable(pipe: &File, timeout: Duration) -> bool {
    #[cfg(unix)]
    {
        super::poll(&[super::Pollable::from(pipe)], timeout)
    }
    #[cfg(not(unix))]
    {
        let _ = (pipe, timeout);
        true
    }
}

fn is_pipe(kind: &FileType) -> bool {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileTypeExt::is_fifo(kind)
    }
    #[cfg(not(unix))]
    {
        let _ = kind;
        false
    }
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

/// The stamp of a file with this metadata.
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

#[cfg(all(test, unix, not(miri)))]
mod tests {
    use super::*;
    use std::io::Write;

    /// How long something is waited for that does not come.
    const SHORT: Duration = Duration::from_millis(50);
    /// How long something is waited for that comes. Other tests fork: until such a child has ended, it has this
    /// process's pipes open.
    const LONG: Duration = Duration::from_secs(60);

    fn refused(path: &Path) -> String {
        read(path, 5, Until::after(SHORT)).unwrap_err().to_string()
    }

    #[test]
    fn regular_files_are_read_up_to_their_bound() {
        let path = std::env::temp_dir().join(format!("gloo_rs-file-{}", std::process::id()));
        for (content, fits) in [(&b""[..], true), (b"12345", true), (b"123456", false)] {
            std::fs::write(&path, content).unwrap();
            match fits {
                true => assert_eq!(read(&path, 5, Until::after(LONG)).unwrap(), content),
                false => assert_eq!(refused(&path), "it has more than 5 bytes"),
            }
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_device_and_a_folder_are_refused() {
        for path in ["/dev/zero", "/dev/null", "/tmp"] {
            assert_eq!(refused(Path::new(path)), "it is neither a regular file nor a pipe", "{path}");
        }
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_not_waited_for_forever() {
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let path = Path::new(&path);
        assert_eq!(refused(path), "this pipe's writer has not closed it after 50ms");
        writer.write_all(b"123").unwrap();
        assert!(refused(path).starts_with("this pipe's writer"), "its writer may write more");
        writer.write_all(b"45").unwrap();
        drop(writer);
        assert_eq!(read(path, 5, Until::after(LONG)).unwrap(), b"45");
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"123456").unwrap();
        assert_eq!(refused(Path::new(&format!("/dev/fd/{}", reader.as_raw_fd()))), "it has more than 5 bytes");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn signals_do_not_end_the_wait_for_a_pipe() {
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let late = std::thread::spawn(move || {
            std::thread::sleep(SHORT);
            writer.write_all(b"123").unwrap();
        });
        let work = move || read(Path::new(&path), 5, Until::after(LONG));
        let found = crate::sys::signal::interrupted(Duration::from_millis(1), work);
        assert_eq!(found.unwrap(), b"123");
        late.join().unwrap();
        drop(reader);
    }

    #[test]
    fn a_fifo_without_a_writer_is_not_waited_for_forever() {
        let path = std::env::temp_dir().join(format!("gloo_rs-fifo-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert!(refused(&path).starts_with("this pipe's writer"));
        std::fs::remove_file(&path).unwrap();
    }
}
