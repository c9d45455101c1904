//! Where ranks find each other: key-value stores, and the place in a launched job.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Result;

pub mod callback;
pub mod file;
pub mod in_process;
pub mod launch;
pub mod prefix;
pub mod redis;
mod support;
mod table;
pub mod tcp;
#[cfg(test)]
mod tests;
pub mod url;

pub use callback::{CallbackStore, StoreCallbacks};
pub use file::FileStore;
pub use in_process::InProcessStore;
pub use launch::Launch;
pub use prefix::PrefixStore;
pub use redis::RedisOptions;
pub use tcp::TcpStore;

/// Longest key, in bytes. The same for every kind, so that a program works with all if it works with one.
pub const MAX_KEY_BYTES: usize = 4 << 10;

/// Longest value, in bytes, however it came about.
pub const MAX_VALUE_BYTES: usize = 64 << 20;

/// A key-value store that all ranks of a job reach. Any number of threads may use one at the same time.
///
/// Keys are non-empty, hold no NUL byte and at most [`MAX_KEY_BYTES`]; values are any bytes, at most [`MAX_VALUE_BYTES`].
/// What fails says which key, which store, and after how long.
pub trait Store: Send + Sync {
    /// Sets `key`, replacing its value if it has one.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// As [`Store::set`], for callers who have only `timeout`: a store that does not answer is given up soon after it. Those
    /// that answer at once, or not at all, need not care.
    fn set_within(&self, key: &str, value: &[u8], _timeout: Duration) -> Result<()> {
        self.set(key, value)
    }

    /// The value of `key`, as soon as it has one. Fails with `Timeout` after `timeout`.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;

    /// Returns as soon as all `keys` have values. After `timeout` fails with `Timeout` and names the keys that are missing;
    /// a zero timeout asks once.
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()>;

    /// Adds `amount` to the decimal integer at `key` (absent: 0), and returns the sum. Atomic.
    fn add(&self, key: &str, amount: i64) -> Result<i64>;

    /// Appends to the value of `key` (absent: empty). Atomic.
    fn append(&self, key: &str, value: &[u8]) -> Result<()>;

    /// As [`Store::append`], for callers who have only `timeout`, and for whom `value` may be appended twice, where the answer to
    /// the first time was lost. Stores that answer at once, or not at all, need not care.
    fn append_within(&self, key: &str, value: &[u8], _timeout: Duration) -> Result<()> {
        self.append(key, value)
    }

    /// The values of all `keys`, in their order, as soon as all have one.
    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>>;

    /// Sets every key of `pairs`.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()>;

    /// Removes `key`; whether it was there.
    fn delete(&self, key: &str) -> Result<bool>;

    /// What and where, for messages: `tcp://10.0.0.1:29500`.
    fn describe(&self) -> String;

    /// Where the store's server is reached from here, if it has one: the way there may be the way to the other ranks.
    fn server(&self) -> Option<SocketAddr> {
        None
    }
}
