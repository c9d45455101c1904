//! A part of another store, so that the keys of different users do not collide.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::error::Result;
use crate::reserve::try_collect;

/// What there is no memory for, in errors.
const KEYS: &str = "keys with the prefix";

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

    fn keys(&self, keys: impl ExactSizeIterator<Item = impl AsRef<str>>) -> Result<Vec<String>> {
        try_collect(keys.map(|key| Ok(self.key(key.as_ref()))), KEYS).map_err(|error| error.context(self.describe()))
    }

    fn with_keys<T>(&self, keys: &[&str], call: impl FnOnce(&[&str]) -> Result<T>) -> Result<T> {
        let keys = self.keys(keys.iter())?;
        let texts = try_collect(keys.iter().map(|key| Ok(key.as_str())), KEYS);
        call(&texts.map_err(|error| error.context(self.describe()))?)
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
        let keys = self.keys(pairs.iter().map(|(key, _)| key))?;
        let pairs = try_collect(keys.iter().zip(pairs).map(|(key, (_, value))| Ok((key.as_str(), *value))), KEYS);
        self.base.multi_set(&pairs.map_err(|error| error.context(self.describe()))?)
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
