//! A store in a directory that all ranks can access: on one host, or on a shared file system with `flock` (NFS,
//! Lustre).
//!
//! Every key is one file, which is replaced by renaming, so a reader sees an old or a new value, never a partial one.
//! Writers are serialized by a lock on one file in the directory; the kernel releases it when the process ends.
//! An NFS client that caches the absence of files sees new keys late: mount with `lookupcache=positive`.
//! Nothing is synced to the disk: the values are only for the running job. Other files in the directory are left alone.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind as IoErrorKind, Read, Write};
use std::path::PathBuf;
use std::sync::{self, Mutex, MutexGuard};
use std::time::Duration;

use super::support::{Backoff, Deadline, NAMED_KEYS, check_key, check_value, no_value, quote, seconds, sum, value_of};
use super::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Store};
use crate::environment::{self, by_default};
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::{try_reserve, try_with_capacity, try_zeros};
use crate::sys;

/// First bytes of a file. Then come the key's length (u32) and the value's (u64), both little-endian, the key, and the
/// value.
const MAGIC: [u8; 8] = *b"gloo_rs\x01";
const HEADER_BYTES: usize = 20;

/// File systems allow names of 255 bytes. If the encoded key is longer than this, the file's name contains a hash of
/// the key.
const MAX_ENCODED_BYTES: usize = 200;

/// Prefix of names that contain a hash.
const HASHED: &str = "gloo_rs.hash.";

/// A store with one file per key in a directory. Dropping it removes nothing: use a new directory for each job.
pub struct FileStore {
    directory: PathBuf,
    /// How long calls without a timeout wait for the lock. A writer holds it only for one small write: if it is held so
    /// long, the process that holds it is stopped.
    timeout: Duration,
    /// Serializes the threads that use this store, so that only one of them at a time polls for the file lock.
    turn: Mutex<()>,
}

/// Held while writing; released when dropped.
struct Lock<'a> {
    _file: File,
    _turn: MutexGuard<'a, ()>,
}

impl FileStore {
    /// The store in `directory`, which is created if it does not exist. Fails if it cannot be created or written to.
    pub fn new(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        let failed = |error| Error::io(format!("file://{}: cannot use the directory", directory.display()), &error);
        fs::create_dir_all(&directory).map_err(failed)?;
        // Ranks may change their working directory later.
        let directory = directory.canonicalize().map_err(failed)?;
        let store = Self { directory, timeout: environment::default_timeout()?, turn: Mutex::new(()) };
        store.lock(|| "opening the store".to_owned())?;
        Ok(store)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(file_name(key))
    }

    fn failed(&self, doing: impl Display, key: &str, error: &io::Error) -> Error {
        Error::io(format!("{}: {doing} key {}", self.describe(), quote(key)), error)
    }

    fn check(&self, key: &str, value_bytes: usize) -> Result<()> {
        check_key(|| self.describe(), key)?;
        check_value(|| self.describe(), key, value_bytes)
    }

    /// Waits for the lock. Opens the file each time: a child by fork would share the lock of an open file.
    fn lock(&self, doing: impl Fn() -> String) -> Result<Lock<'_>> {
        self.lock_within(self.timeout, doing).map_err(by_default)
    }

    fn lock_within(&self, timeout: Duration, doing: impl Fn() -> String) -> Result<Lock<'_>> {
        let deadline = Deadline::after(timeout);
        let path = self.directory.join("gloo_rs.lock");
        let still_locked = || {
            let (store, doing, waited) = (self.describe(), doing(), seconds(deadline.elapsed()));
            let message = format!("{store}: {doing}: {} is still locked after {waited}", path.display());
            Err(Error::new(ErrorKind::Timeout, message))
        };
        let mut backoff = Backoff::new(Duration::from_micros(50), Duration::from_millis(5));
        let turn = loop {
            match self.turn.try_lock() {
                Ok(turn) => break turn,
                Err(sync::TryLockError::Poisoned(turn)) => break turn.into_inner(),
                // Another thread of this process writes, or waits for the lock, perhaps longer than this one may.
                Err(sync::TryLockError::WouldBlock) if deadline.passed() => return still_locked(),
                Err(sync::TryLockError::WouldBlock) => backoff.sleep(&deadline),
            }
        };
        let failed = |error: &io::Error| {
            Error::io(format!("{}: {}: cannot lock {}", self.describe(), doing(), path.display()), error)
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| failed(&error))?;
        let mut backoff = Backoff::new(Duration::from_micros(50), Duration::from_millis(5));
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file, _turn: turn }),
                Err(TryLockError::Error(error)) if error.kind() == IoErrorKind::Interrupted => continue,
                Err(TryLockError::Error(error)) => return Err(failed(&error)),
                Err(TryLockError::WouldBlock) if deadline.passed() => return still_locked(),
                Err(TryLockError::WouldBlock) => backoff.sleep(&deadline),
            }
        }
    }

    /// Opens the file of `key` and reads up to its value; also returns the value's length. `None` if there is no such
    /// file.
    fn find(&self, key: &str) -> Result<Option<(File, usize)>> {
        let path = self.path(key);
        let mut file = match sys::file::open_without_blocking(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
            // On NFS another host replaced the file between lookup and open. The next attempt finds the new file.
            Err(error) if error.kind() == IoErrorKind::StaleNetworkFileHandle => return Ok(None),
            Err(error) => return Err(self.failed("cannot open", key, &error)),
        };
        let foreign = |what: &str| {
            let message = format!("{}: key {}: {} {what}", self.describe(), quote(key), path.display());
            Err(Error::new(ErrorKind::Mismatch, message))
        };
        if !file.metadata().map_err(|error| self.failed("cannot read", key, &error))?.is_file() {
            return foreign("is not a regular file, so no store has written it");
        }
        let mut header = [0; HEADER_BYTES];
        let mut found = [0; MAX_KEY_BYTES];
        let length = match file.read_exact(&mut header) {
            Ok(()) if header[..8] == MAGIC => u32::from_le_bytes([header[8], header[9], header[10], header[11]]),
            Ok(()) => return foreign("was not written by a store"),
            Err(error) if error.kind() == IoErrorKind::UnexpectedEof => return foreign("is too short for a value"),
            Err(error) => return Err(self.failed("cannot read", key, &error)),
        };
        let Some(found) = found.get_mut(..length as usize) else { return foreign("was not written by a store") };
        file.read_exact(found).map_err(|error| self.failed("cannot read", key, &error))?;
        if found != key.as_bytes() {
            return foreign("holds another key with the same hash");
        }
        let mut value_bytes = [0; 8];
        value_bytes.copy_from_slice(&header[12..]);
        match usize::try_from(u64::from_le_bytes(value_bytes)) {
            Ok(bytes) if bytes <= MAX_VALUE_BYTES => Ok(Some((file, bytes))),
            _ => foreign("has a value of an impossible length"),
        }
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let Some((mut file, bytes)) = self.find(key)? else { return Ok(None) };
        let mut value = try_zeros(bytes, value_of(key)).map_err(|error| error.context(self.describe()))?;
        file.read_exact(&mut value).map_err(|error| self.failed("cannot read the whole value of", key, &error))?;
        Ok(Some(value))
    }

    /// Polls after 1 ms at first, up to every 50 ms later.
    fn await_keys(&self, keys: &[&str], deadline: &Deadline) -> Result<()> {
        keys.iter().try_for_each(|key| self.check(key, 0))?;
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        let mut at = 0;
        loop {
            // The deadline is checked before the last look: a value that was set in time is found.
            let last = deadline.passed();
            let (mut missing, mut count) = (Vec::new(), 0);
            let start = if last { 0 } else { at };
            for i in (start..keys.len()).chain(0..start) {
                if self.find(keys[i])?.is_none() {
                    count += 1;
                    if missing.len() < NAMED_KEYS {
                        missing.push(i);
                    }
                    if !last {
                        break;
                    }
                }
            }
            let Some(&first) = missing.first() else { return Ok(()) };
            if last {
                let shown = missing.iter().map(|&i| keys[i]);
                return Err(no_value(&self.describe(), keys.len(), count, shown, deadline.elapsed()));
            }
            if self.directory.try_exists().is_ok_and(|exists| !exists) {
                let (store, after) = (self.describe(), seconds(deadline.elapsed()));
                let message = format!("{store}: wait for {}: the directory is gone, after {after}", quote(keys[first]));
                return Err(Error::new(ErrorKind::Io, message));
            }
            at = first;
            backoff.sleep(deadline);
        }
    }

    /// Replaces the value of `key`. The caller holds the lock, because other callers read and then write the value.
    fn write(&self, _lock: &Lock<'_>, key: &str, value: &[u8]) -> Result<()> {
        let mut head = Vec::with_capacity(HEADER_BYTES + key.len());
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&(key.len() as u32).to_le_bytes());
        head.extend_from_slice(&(value.len() as u64).to_le_bytes());
        head.extend_from_slice(key.as_bytes());
        let name = file_name(key);
        if name.starts_with(HASHED) {
            self.find(key)?; // fails if another key has the same hash.
        }
        let path = self.directory.join(name);
        let failed = |error| self.failed(format_args!("cannot write {} bytes for", value.len()), key, &error);
        let (temporary, file) = self.create_temporary().map_err(failed)?;
        let written = write_and_close(file, &[&head, value]).and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|error| {
            // If this fails too, a file remains that no reader opens.
            let _ = fs::remove_file(&temporary);
            failed(error)
        })
    }

    /// Creates a file that no reader opens. Its name is random, since process ids of different hosts may be equal.
    fn create_temporary(&self) -> io::Result<(PathBuf, File)> {
        loop {
            let name = format!("gloo_rs.new.{:016x}", RandomState::new().build_hasher().finish());
            let path = self.directory.join(name);
            match File::create_new(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == IoErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Writes, and closes with a check of the result: network file systems report a full disk only on close.
fn write_and_close(mut file: File, parts: &[&[u8]]) -> io::Result<()> {
    parts.iter().try_for_each(|part| file.write_all(part))?;
    sys::file::close(file)
}

/// Name of the file that holds `key`. Different keys have different names, except if hashes collide, which `find`
/// detects.
fn file_name(key: &str) -> String {
    let mut name = String::from("gloo_rs.key.");
    for &byte in key.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
        if name.len() > MAX_ENCODED_BYTES {
            return format!("{HASHED}{:032x}", fnv1a_128(key.as_bytes()));
        }
    }
    name
}

/// FNV-1a with 128 bits (Fowler, Noll, Vo). It must never change, unlike the standard library's hashes: processes with
/// different builds may use one directory.
fn fnv1a_128(bytes: &[u8]) -> u128 {
    const OFFSET_BASIS: u128 = 0x6c62272e07bb014262b821756295c58d;
    const PRIME: u128 = 0x0000000001000000000000000000013b;
    bytes.iter().fold(OFFSET_BASIS, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.set_within(key, value, self.timeout).map_err(by_default)
    }

    fn set_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.check(key, value.len())?;
        let lock = self.lock_within(timeout, || format!("set {}", quote(key)))?;
        self.write(&lock, key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let values = self.multi_get(&[key], timeout)?;
        Ok(values.into_iter().next().unwrap_or_default())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.await_keys(keys, &Deadline::after(timeout))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.check(key, 0)?;
        let lock = self.lock(|| format!("add to {}", quote(key)))?;
        let sum = sum(key, self.read(key)?.as_deref(), amount).map_err(|error| error.context(self.describe()))?;
        self.write(&lock, key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.append_within(key, value, self.timeout).map_err(by_default)
    }

    fn append_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.check(key, value.len())?;
        let lock = self.lock_within(timeout, || format!("append to {}", quote(key)))?;
        let mut whole = self.read(key)?.unwrap_or_default();
        self.check(key, whole.len() + value.len())?;
        try_reserve(&mut whole, value.len(), value_of(key)).map_err(|error| error.context(self.describe()))?;
        whole.extend_from_slice(value);
        self.write(&lock, key, &whole)
    }

    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let deadline = Deadline::after(timeout);
        loop {
            self.await_keys(keys, &deadline)?;
            let mut values = try_with_capacity(keys.len(), "values").map_err(|error| error.context(self.describe()))?;
            for key in keys {
                values.extend(self.read(key)?);
            }
            // Fewer if a key was deleted in between: wait again; this fails if the deadline has passed and the key is
            // still missing.
            if values.len() == keys.len() {
                return Ok(values);
            }
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.check(key, value.len()))?;
        let lock = self.lock(|| format!("set {} keys", pairs.len()))?;
        pairs.iter().try_for_each(|(key, value)| self.write(&lock, key, value))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.check(key, 0)?;
        let _lock = self.lock(|| format!("delete {}", quote(key)))?;
        if self.find(key)?.is_none() {
            return Ok(false);
        }
        fs::remove_file(self.path(key)).map_err(|error| self.failed("cannot delete", key, &error))?;
        Ok(true)
    }

    fn describe(&self) -> String {
        format!("file://{}", self.directory.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes with different builds may use one directory, so names must never change.
    #[test]
    fn names_are_what_they_always_were() {
        assert_eq!(file_name("rank/7-a_b.c é"), "gloo_rs.key.rank%2F7-a_b.c%20%C3%A9");
        assert_eq!(fnv1a_128(b""), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(fnv1a_128(b"a"), 0xd228cb696f1a8caf78912b704e4a8964);
        let long = "k".repeat(300);
        assert_eq!(file_name(&long), format!("gloo_rs.hash.{:032x}", fnv1a_128(long.as_bytes())));
    }
}
