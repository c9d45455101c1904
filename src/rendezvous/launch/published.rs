//! Passes one value from rank 0 to the other processes of its host, through a file in a directory of the job.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::support::{Backoff, Deadline, seconds};
use crate::sys;
use crate::sys::file::{Until, create_private};
use crate::types::Rank;

/// The number of programs that this process, which is `rank`, has run in this job before this one. All ranks count in
/// the same way, so that no rank reads the value that rank 0 has published in an earlier program.
pub fn program_number(path: &Path, rank: Rank) -> Result<usize> {
    for number in 0.. {
        let file = with_end(path, &format!("{rank}.{number}"));
        match create_private(&file) {
            Ok(_) => return Ok(number),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(format_args!("cannot make {}", file.display()), &error)),
        }
    }
    unreachable!("a folder with 2^64 files")
}

/// Writes `value` to the file `path` atomically, readable only for this user.
pub fn publish(path: &Path, value: &str) -> Result<()> {
    let failed = |error: &io::Error| Error::io(format_args!("cannot write {}", path.display()), error);
    let beside = with_end(path, &format!("{}.new", std::process::id()));
    let written = create_private(&beside)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| {
        // A partly written file is useless; if it cannot be removed, it does no harm.
        let _ = fs::remove_file(&beside);
        failed(&error)
    })
}

/// The maximum number of bytes of a file with an address.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Waits until the file `path` exists, and returns its contents.
pub fn look_up(path: &Path, deadline: &Deadline) -> Result<String> {
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
    loop {
        match sys::file::read(path, MAX_FILE_BYTES, Until::after(deadline.remaining())) {
            Ok(value) => return Ok(String::from_utf8_lossy(&value).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(format_args!("cannot read {}", path.display()), &error)),
        }
        if deadline.passed() {
            let (path, waited) = (path.display(), seconds(deadline.elapsed()));
            let text = format!("rank 0 has not written {path} after {waited}: is it there?");
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        backoff.sleep(deadline);
    }
}

/// `path` with a dot and `end` appended.
pub fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}
