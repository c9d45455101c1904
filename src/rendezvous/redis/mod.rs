//! A store in a Redis server. No rank serves it, and ranks may join and leave.
//!
//! Without the cargo feature `redis` only the options exist, and opening a store fails with `Unsupported`.

use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::error::Result;

#[cfg(feature = "redis")]
mod connection;
mod options;
#[cfg(feature = "redis")]
mod store;
#[cfg(all(test, feature = "redis"))]
pub(super) mod tests;
#[cfg(feature = "redis")]
mod tls;

pub use options::{RedisOptions, RedisTls};
#[cfg(feature = "redis")]
pub use store::RedisStore;

/// Opens the store in the server that `options` name; tries to connect until `timeout` ([`RedisStore::connect`]).
#[cfg(feature = "redis")]
pub fn open(options: RedisOptions, timeout: Duration) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(RedisStore::connect(options, timeout)?))
}

/// Fails with `Unsupported`: this build has no Redis store.
#[cfg(not(feature = "redis"))]
pub fn open(options: RedisOptions, _timeout: Duration) -> Result<Arc<dyn Store>> {
    let message = format!("{}: this gloo_rs was built without the feature redis", options.url());
    Err(crate::error::Error::new(crate::error::ErrorKind::Unsupported, message))
}
