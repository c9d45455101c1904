//! Keys and values in memory, without locks, waits or I/O, for the in-process store and the TCP store's server.

use std::collections::HashMap;
use std::sync::Arc;

use super::MAX_VALUE_BYTES;
use super::support::{sum, value_of as what, value_too_long};
use crate::error::Result;
use crate::reserve::{try_copy, try_reserve, try_reserve_entry, try_with_capacity};

/// Errors name the key; the owner of the table adds the store's name.
#[derive(Default)]
pub(super) struct Table {
    /// Reference-counted, so that a value can be sent to any number of waiting readers without copies.
    values: HashMap<String, Arc<Vec<u8>>>,
}

impl Table {
    pub(super) fn get(&self, key: &str) -> Option<&Arc<Vec<u8>>> {
        self.values.get(key)
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let value = Arc::new(try_copy(value, what(key))?);
        match self.values.get_mut(key) {
            Some(old) => *old = value,
            None => {
                try_reserve_entry(&mut self.values, "a table of keys")?;
                self.values.insert(key.to_owned(), value);
            }
        }
        Ok(())
    }

    pub(super) fn add(&mut self, key: &str, amount: i64) -> Result<i64> {
        let sum = sum(key, self.get(key).map(|value| value.as_slice()), amount)?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    pub(super) fn append(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let Some(current) = self.values.get_mut(key) else {
            return self.set(key, value);
        };
        let bytes = current.len().saturating_add(value.len());
        if bytes > MAX_VALUE_BYTES {
            return Err(value_too_long(key, bytes));
        }
        match Arc::get_mut(current) {
            Some(own) => {
                try_reserve(own, value.len(), what(key))?;
                own.extend_from_slice(value);
            }
            // The value is on its way to a reader, so it is copied.
            None => {
                let mut longer = try_with_capacity(bytes, what(key))?;
                longer.extend_from_slice(current);
                longer.extend_from_slice(value);
                *current = Arc::new(longer);
            }
        }
        Ok(())
    }

    /// Takes back the first of the appended values, all of one length, that equals `value`. The key is removed with its
    /// last one.
    pub(super) fn take_back(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let Some(current) = self.values.get_mut(key) else { return Ok(()) };
        let length = value.len().max(1);
        let Some(index) = current.chunks(length).position(|part| part == value) else { return Ok(()) };
        let (from, to) = (index * length, (index + 1) * length);
        if current.len() == value.len() {
            self.values.remove(key);
        } else if let Some(own) = Arc::get_mut(current) {
            own.drain(from..to);
        } else {
            // The value is on its way to a reader, so it is copied.
            let mut shorter = try_with_capacity(current.len() - length, what(key))?;
            shorter.extend_from_slice(&current[..from]);
            shorter.extend_from_slice(&current[to..]);
            *current = Arc::new(shorter);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &str) -> bool {
        self.values.remove(key).is_some()
    }
}
