//! A part of another store, so that the keys of different users do not collide.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::error::Result;

/// Prepends `prefix/` to every key of another store. Keeps that store alive; its limits and errors apply.
pub struct PrefixStore {
    prefix: String,
    base: Arc<dyn Store>,
}

impl PrefixStore {
    /// The part of `base` under `prefix`, which must give keys that are valid for `base`.
    pub fn new(prefix: impl Into<String>, base: Arc<dyn Store>) -> Self {
        Self { prefix: prefix.into(), base }
    }

    /// An empty key stays empty, so that `base` refuses it.
    fn key(&self, key: &str) -> String {
        if key.is_empty() { String::new() } else { format!("{}/{key}", self.prefix) }
    }

    fn with_keys<T>(&self, keys: &[&str], call: impl FnOnce(&[&str]) -> T) -> T {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        call(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.base.set(&self.key(key), value)
    }

    fn set_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.base.set_within(&self.key(key), value, timeout)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.base.get(&self.key(key), timeout)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.with_keys(keys, |keys| self.base.wait(keys, timeout))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.base.add(&self.key(key), amount)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.base.append(&self.key(key), value)
    }

    fn append_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.base.append_within(&self.key(key), value, timeout)
    }

    fn claim_within(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.base.claim_within(&self.key(key), value, timeout)
    }

    fn disclaim(&self) {
        self.base.disclaim();
    }

    fn set_and_settle_claims(&self, key: &str, value: &[u8], timeout: Duration) -> Result<()> {
        self.base.set_and_settle_claims(&self.key(key), value, timeout)
    }

    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        self.with_keys(keys, |keys| self.base.multi_get(keys, timeout))
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let keys: Vec<String> = pairs.iter().map(|(key, _)| self.key(key)).collect();
        let pairs: Vec<_> = keys.iter().map(String::as_str).zip(pairs.iter().map(|(_, value)| *value)).collect();
        self.base.multi_set(&pairs)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.base.delete(&self.key(key))
    }

    fn describe(&self) -> String {
        format!("{} under {:?}", self.base.describe(), self.prefix)
    }

    fn server(&self) -> Option<SocketAddr> {
        self.base.server()
    }

    fn obstacle(&self) -> Option<String> {
        self.base.obstacle()
    }
}

#[cfg(test)]
mod tests {
    use super::super::InProcessStore;
    use super::*;

    #[test]
    fn keys_gain_the_prefix_and_a_slash() {
        let base = InProcessStore::new();
        let (a, b) = (PrefixStore::new("a", base.clone()), PrefixStore::new("b", base.clone()));
        a.set("k", b"1").unwrap();
        assert_eq!(base.get("a/k", Duration::ZERO).unwrap(), b"1");
        assert!(b.get("k", Duration::ZERO).unwrap_err().message().contains("\"b/k\""));
        let nested = PrefixStore::new("c", Arc::new(a));
        nested.set("k", b"2").unwrap();
        assert_eq!(base.get("a/c/k", Duration::ZERO).unwrap(), b"2");
        assert_eq!(nested.describe(), r#"inproc:// under "a" under "c""#);
    }
}
