//! One value from rank 0 to the other processes of its host, through a file.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::support::{Backoff, Deadline, seconds};

/// Puts `value` into the file `path`, whole, for this user only.
pub fn publish(path: &Path, value: &str) -> Result<()> {
    let failed = |error: &io::Error| Error::io(format_args!("cannot write {}", path.display()), error);
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| {
        // It is of no use to anybody.
        let _ = fs::remove_file(&beside);
        failed(&error)
    })
}

/// What `open` makes of the value in the file `path`, as soon as there is one that it can use: an earlier program of the same
/// processes may have left its own.
pub fn look_up<T>(path: &Path, deadline: &Deadline, mut open: impl FnMut(&str) -> Result<T>) -> Result<T> {
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
    let mut fault = None;
    loop {
        match fs::read_to_string(path) {
            Ok(value) => match open(&value) {
                Ok(found) => return Ok(found),
                Err(error) => fault = Some(error),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(format_args!("cannot read {}", path.display()), &error)),
        }
        if deadline.passed() {
            let waited = seconds(deadline.elapsed());
            return Err(fault.unwrap_or_else(|| {
                let path = path.display();
                Error::new(ErrorKind::Timeout, format!("rank 0 has not written {path} after {waited}: is it there?"))
            }));
        }
        backoff.sleep(deadline);
    }
}
