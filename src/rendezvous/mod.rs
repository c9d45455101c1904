//! How ranks find each other: key-value stores, and the rank and size that a launcher gives to a process.

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
pub(crate) mod tests;
pub mod url;

pub use callback::{CallbackStore, StoreCallbacks};
pub use file::FileStore;
pub use in_process::InProcessStore;
pub use launch::Launch;
pub use prefix::PrefixStore;
pub use redis::RedisOptions;
pub use tcp::TcpStore;

/// Longest key, in bytes. It is the same for every kind of store, so that a program that works with one works with all.
pub const MAX_KEY_BYTES: usize = 4 << 10;

/// Longest value, in bytes, including after appending.
pub const MAX_VALUE_BYTES: usize = 64 << 20;

/// A key-value store that all ranks of a job can access. Thread-safe.
///
/// Keys are non-empty UTF-8 without NUL bytes, at most [`MAX_KEY_BYTES`] long; values are any bytes, at most
/// [`MAX_VALUE_BYTES`]. Every error names the key, the store and the elapsed time.
pub trait Store: Send + Sync {
    /// Sets `key`, replacing any value it has.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Like [`Store::set`], for callers that can wait only for `timeout`: soon after it the call fails if the store
    /// does not answer. The default is for stores that answer or fail at once.
    fn set_within(&self, key: &str, value: &[u8], _timeout: Duration) -> Result<()> {
        self.set(key, value)
    }

    /// Waits until `key` has a value, and returns it. Fails with `Timeout` after `timeout`.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;

    /// Waits until all `keys` have values. Fails with `Timeout` after `timeout` and names the missing keys;
    /// a zero timeout checks once.
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()>;

    /// Adds `amount` to the decimal integer at `key` (0 if the key does not exist) and returns the sum. Atomic.
    fn add(&self, key: &str, amount: i64) -> Result<i64>;

    /// Appends to the value of `key` (empty if the key does not exist). Atomic.
    fn append(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Like [`Store::append`], for callers that can wait only for `timeout`, and that accept that `value` is appended
    /// twice if the reply to the first request is lost. The default is for stores that answer or fail at once.
    fn append_within(&self, key: &str, value: &[u8], _timeout: Duration) -> Result<()> {
        self.append(key, value)
    }

    /// Like [`Store::append_within`]. If the store's server sees the connection of this process break before the claims
    /// are settled, it takes `value` back, so that another process may take this one's place; all values that are
    /// claimed for a key have one length. The default is for stores whose server does not see that.
    fn claim_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.append_within(key, value, timeout)
    }

    /// What this process has claimed is taken back when its store ends, even if that is in order, unless claims are
    /// settled.
    fn disclaim(&self) {}

    /// Like [`Store::set_within`]; rank 0 calls it once all ranks are there: claims of all processes last from now on.
    fn set_and_settle_claims(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.set_within(key, value, timeout)
    }

    /// Waits until all `keys` have values, and returns these in the order of `keys`. Fails with `Timeout` after
    /// `timeout`.
    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>>;

    /// Sets every key of `pairs`.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()>;

    /// Removes `key`. Returns whether it existed.
    fn delete(&self, key: &str) -> Result<bool>;

    /// The kind and address of the store, for messages: `tcp://10.0.0.1:29500`.
    fn describe(&self) -> String;

    /// The address at which this process reaches the store's server, if there is one. The route to it is used to choose
    /// the interface for connections to other ranks.
    fn server(&self) -> Option<SocketAddr> {
        None
    }

    /// Returns, for errors of ranks that wait for others, what may keep these from the store, as far as this process
    /// can tell. May ask the system's resolver.
    fn obstacle(&self) -> Option<String> {
        None
    }
}
