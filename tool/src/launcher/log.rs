//! Files with the output of each rank.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file with all that a rank writes to one of its outputs, unchanged.
pub struct Log {
    path: PathBuf,
    /// `None` once it could not be written.
    file: Option<File>,
}

/// The log files of a rank's standard output and standard error.
pub struct Pair {
    pub output: Log,
    pub errors: Log,
}

impl Pair {
    /// Makes the files of `rank` in `folder`, which is made as well; those of another start have other names.
    pub fn create(folder: &Path, rank: usize, restart: u32) -> Result<Self, String> {
        fs::create_dir_all(folder).map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
        let start = if restart == 0 { String::new() } else { format!(".restart-{restart}") };
        let log = |what| Log::create(folder.join(format!("rank-{rank}{start}.{what}")));
        Ok(Self { output: log("out")?, errors: log("err")? })
    }
}

impl Log {
    fn create(path: PathBuf) -> Result<Self, String> {
        let file = File::create(&path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self { path, file: Some(file) })
    }

    /// Appends `bytes`. Fails once; what comes after that is dropped.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some(Err(error)) = self.file.as_mut().map(|file| file.write_all(bytes)) else { return Ok(()) };
        self.file = None;
        Err(format!("cannot write {}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_once() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut log = Log { path: "rank-0.out".into(), file: Some(full) };
        let error = log.write(b"x").unwrap_err();
        assert!(error.starts_with("cannot write rank-0.out: No space left"), "{error}");
        assert_eq!(log.write(b"y"), Ok(()));
    }
}
