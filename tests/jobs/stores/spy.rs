//! A store that observes and counts the calls to another one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gloo_rs::error::Result;
use gloo_rs::rendezvous::Store;

/// Numbers of calls and keys, and bytes of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    pub calls: usize,
    pub keys: usize,
    pub bytes: usize,
}

/// One rank's access to another store.
pub struct Spy<'a> {
    base: Arc<dyn Store>,
    /// Called before every call, with its first key.
    before: Box<dyn Fn(&str) + Send + Sync + 'a>,
    used: Mutex<Used>,
}

impl<'a> Spy<'a> {
    pub fn new(base: Arc<dyn Store>, before: impl Fn(&str) + Send + Sync + 'a) -> Self {
        Self { base, before: Box::new(before), used: Mutex::default() }
    }

    pub fn used(&self) -> Used {
        *self.used.lock().unwrap()
    }

    fn call<T>(&self, keys: &[&str], sent: usize, call: impl FnOnce() -> Result<T>, got: fn(&T) -> usize) -> Result<T> {
        (self.before)(keys[0]);
        let result = call();
        let mut used = self.used.lock().unwrap();
        used.calls += 1;
        used.keys += keys.len();
        used.bytes += keys.iter().map(|key| key.len()).sum::<usize>() + sent + result.as_ref().map_or(0, got);
        drop(used);
        result
    }
}

impl Store for Spy<'_> {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(&[key], value.len(), || self.base.set(key, value), |()| 0)
    }
    fn set_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.call(&[key], value.len(), || self.base.set_within(key, value, timeout), |()| 0)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.call(&[key], 0, || self.base.get(key, timeout), Vec::len)
    }
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.call(keys, 0, || self.base.wait(keys, timeout), |()| 0)
    }
    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.call(&[key], 8, || self.base.add(key, amount), |_| 8)
    }
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(&[key], value.len(), || self.base.append(key, value), |()| 0)
    }
    fn append_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.call(&[key], value.len(), || self.base.append_within(key, value, timeout), |()| 0)
    }
    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        self.call(keys, 0, || self.base.multi_get(keys, timeout), |values| values.iter().map(Vec::len).sum())
    }
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        let bytes = pairs.iter().map(|(_, value)| value.len()).sum();
        self.call(&keys, bytes, || self.base.multi_set(pairs), |()| 0)
    }
    fn delete(&self, key: &str) -> Result<bool> {
        self.call(&[key], 0, || self.base.delete(key), |_| 1)
    }
    fn describe(&self) -> String {
        self.base.describe()
    }
    fn server(&self) -> Option<std::net::SocketAddr> {
        self.base.server()
    }
}
