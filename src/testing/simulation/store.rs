//! A store for simulated ranks: waits pass in virtual time, and a rank can be killed before or after each request.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{idle, sleep};
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::Store;
use crate::testing::loopback::{Network, NodeStatus};

/// How long a request takes.
const REQUEST: Duration = Duration::from_micros(100);
/// How long one takes that is delayed.
pub const DELAY: Duration = Duration::from_secs(9);
/// How often a rank that waits looks.
const LOOK: Duration = Duration::from_millis(5);

/// What all ranks see.
#[derive(Clone, Default)]
pub struct Table(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Table {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happens to a store, or to its rank, at one of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The rank is killed before the request has an effect.
    KilledBefore,
    /// The rank is killed after that.
    KilledAfter,
    /// From this request on, none reaches the store.
    CutOff,
    /// The request takes [`DELAY`].
    Delayed,
    /// The request has its effect, and from then on none reaches the store, nor an answer the rank.
    AnswersCutOff,
}

/// The store of the rank at one node.
pub struct VirtualStore {
    table: Table,
    network: Network,
    node: usize,
    requests: Mutex<Cell<u64>>,
    fate: Option<(u64, Fate)>,
}

impl VirtualStore {
    /// The store of the rank at `node`. `fate`: what happens at the request with this number.
    pub fn new(table: &Table, network: &Network, node: usize, fate: Option<(u64, Fate)>) -> Arc<Self> {
        let (table, network) = (table.clone(), network.clone());
        Arc::new(Self { table, network, node, requests: Mutex::default(), fate })
    }

    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).get()
    }

    /// Makes a request, which `act` carries out.
    fn request<T>(&self, act: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> Result<T> {
        let number = self.requests() + 1;
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).set(number);
        idle(&self.network, REQUEST);
        let lost = || Err(Error::new(ErrorKind::Io, format!("{}: the store does not answer", self.describe())));
        let fate = self.fate.filter(|(at, _)| number >= *at);
        match fate {
            Some((at, Fate::Delayed)) if number == at => idle(&self.network, DELAY),
            Some((at, Fate::KilledBefore)) if number == at => self.die(),
            Some((_, Fate::CutOff)) => return lost(),
            Some((at, Fate::AnswersCutOff)) if number > at => return lost(),
            _ => {}
        }
        let done = act(&mut self.table.lock());
        match fate {
            Some((at, Fate::KilledAfter)) if number == at => self.die(),
            Some((_, Fate::AnswersCutOff)) => return lost(),
            _ => {}
        }
        Ok(done)
    }

    fn die(&self) {
        self.network.fail(self.node, NodeStatus::Crashed);
        loop {
            sleep(self.network.now() + Duration::from_secs(1 << 20));
        }
    }

    fn wait_until(&self, deadline: Instant, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        loop {
            let all = |table: &mut BTreeMap<String, Vec<u8>>| keys.iter().map(|key| table.get(*key).cloned()).collect();
            // Only the first look is a request.
            let found: Option<Vec<Vec<u8>>> = all(&mut self.table.lock());
            match found {
                Some(found) => return Ok(found),
                None if self.network.now() >= deadline => {
                    let text = format!("{}: not all of {keys:?} are there", self.describe());
                    return Err(Error::new(ErrorKind::Timeout, text));
                }
                None => idle(&self.network, LOOK.min(deadline - self.network.now())),
            }
        }
    }
}

impl Store for VirtualStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.request(|table| drop(table.insert(key.to_owned(), value.to_vec())))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        Ok(self.multi_get(&[key], timeout)?.remove(0))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.multi_get(keys, timeout).map(drop)
    }

    fn add(&self, _: &str, _: i64) -> Result<i64> {
        unreachable!("no rank adds")
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.request(|table| table.entry(key.to_owned()).or_default().extend_from_slice(value))
    }

    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let deadline = self.network.now() + timeout;
        self.request(|_| ())?;
        self.wait_until(deadline, keys)
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.request(|table| table.remove(key).is_some())
    }

    fn describe(&self) -> String {
        "the simulated store".to_owned()
    }
}
