//! A store for ranks that are threads of one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::Store;
use super::support::{Deadline, NAMED_KEYS, check_key, check_value, no_value, value_of};
use super::table::Table;
use crate::error::{Error, Result};
use crate::reserve::{try_collect, try_copy, try_with_capacity};

/// The open stores with a name. An entry does not keep its store alive, and is removed with it.
static NAMED: Mutex<BTreeMap<String, Weak<InProcessStore>>> = Mutex::new(BTreeMap::new());

/// Keys and values in the memory of this process. Clones of the `Arc` share the store.
pub struct InProcessStore {
    /// Empty for a store created by [`InProcessStore::new`].
    name: String,
    table: Mutex<Table>,
    /// Notified when a key gets a value.
    changed: Condvar,
}

impl InProcessStore {
    /// A new empty store without a name.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::empty(String::new()))
    }

    /// The store with this name in this process; it exists as long as a reference to it. Fails if `name` is empty.
    pub fn open(name: &str) -> Result<Arc<Self>> {
        if name.is_empty() {
            return Err(Error::invalid("the name of an in-process store must not be empty"));
        }
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = named.get(name).and_then(Weak::upgrade) {
            return Ok(store);
        }
        let store = Arc::new(Self::empty(name.to_owned()));
        named.insert(name.to_owned(), Arc::downgrade(&store));
        Ok(store)
    }

    fn empty(name: String) -> Self {
        Self { name, table: Mutex::default(), changed: Condvar::new() }
    }

    /// No code panics in the middle of a change, so the table is consistent even if the lock is poisoned.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_keys(&self, keys: &[&str]) -> Result<()> {
        keys.iter().try_for_each(|key| check_key(|| self.describe(), key))
    }

    /// Waits until the table has all `keys`, and returns it locked.
    fn await_keys(&self, keys: &[&str], timeout: Duration) -> Result<MutexGuard<'_, Table>> {
        self.check_keys(keys)?;
        let deadline = Deadline::after(timeout);
        let mut table = self.lock();
        let mut at = 0;
        loop {
            // Continues at the key that was missing last, so that keys found before are not looked up after each
            // wake-up.
            match (at..keys.len()).chain(0..at).find(|&i| !table.contains(keys[i])) {
                None => return Ok(table),
                Some(missing) => at = missing,
            }
            if deadline.passed() {
                let mut missing = keys.iter().copied().filter(|key| !table.contains(key));
                let shown: Vec<_> = missing.by_ref().take(NAMED_KEYS).collect();
                let count = shown.len() + missing.count();
                return Err(no_value(&self.describe(), keys.len(), count, shown, deadline.elapsed()));
            }
            table = self.changed.wait_timeout(table, deadline.remaining()).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn copy(&self, key: &str, value: &[u8]) -> Result<Vec<u8>> {
        try_copy(value, value_of(key)).map_err(|error| error.context(self.describe()))
    }

    /// Changes the table and wakes the waiting threads.
    fn change<T>(&self, key: &str, change: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        check_key(|| self.describe(), key)?;
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result.map_err(|error| error.context(self.describe()))
    }
}

impl Drop for InProcessStore {
    fn drop(&mut self) {
        if self.name.is_empty() {
            return;
        }
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have opened a new store with this name since the last reference to this one was dropped.
        if named.get(&self.name).is_some_and(|store| store.strong_count() == 0) {
            named.remove(&self.name);
        }
    }
}

impl Store for InProcessStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_value(|| self.describe(), key, value.len())?;
        self.change(key, |table| table.set(key, value))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let table = self.await_keys(&[key], timeout)?;
        let value = table.get(key).cloned();
        drop(table);
        value.map_or(Ok(Vec::new()), |value| self.copy(key, &value))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.await_keys(keys, timeout).map(drop)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.change(key, |table| table.add(key, amount))
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        check_value(|| self.describe(), key, value.len())?;
        self.change(key, |table| table.append(key, value))
    }

    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let table = self.await_keys(keys, timeout)?;
        let failed = |error: Error| error.context(self.describe());
        let mut values = try_with_capacity(keys.len(), "values").map_err(failed)?;
        values.extend(keys.iter().filter_map(|key| table.get(key).cloned()));
        drop(table);
        try_collect(keys.iter().zip(&values).map(|(key, value)| self.copy(key, value)), "values")
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        for (key, value) in pairs {
            check_key(|| self.describe(), key)?;
            check_value(|| self.describe(), key, value.len())?;
        }
        let mut table = self.lock();
        let set = pairs.iter().try_for_each(|(key, value)| table.set(key, value));
        drop(table);
        self.changed.notify_all();
        set.map_err(|error| error.context(self.describe()))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        check_key(|| self.describe(), key)?;
        Ok(self.lock().remove(key))
    }

    fn describe(&self) -> String {
        format!("inproc://{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_is_one_store_until_the_last_lets_go() {
        let name = "in_process::tests::one_name";
        let one = InProcessStore::open(name).unwrap();
        let two = InProcessStore::open(name).unwrap();
        assert!(Arc::ptr_eq(&one, &two));
        one.set("k", b"v").unwrap();
        assert_eq!(two.get("k", Duration::ZERO).unwrap(), b"v");
        assert_eq!(one.describe(), format!("inproc://{name}"));

        drop((one, two));
        assert!(!NAMED.lock().unwrap().contains_key(name), "a name outlived its store");
        let three = InProcessStore::open(name).unwrap();
        assert!(three.get("k", Duration::ZERO).is_err(), "a new store had an old store's key");
    }

    #[test]
    fn stores_without_a_name_are_apart() {
        let (one, two) = (InProcessStore::new(), InProcessStore::new());
        one.set("k", b"v").unwrap();
        assert!(two.get("k", Duration::ZERO).is_err());
        assert!(InProcessStore::open("").is_err());
    }
}
