//! How much of a store a job uses: in proportion to the number of ranks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gloo_rs::context::{Context, ContextOptions};
use gloo_rs::error::Result;
use gloo_rs::rendezvous::{InProcessStore, Store};

use crate::job::{LONG, device};

/// Calls, keys and bytes of keys and values of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Used {
    calls: usize,
    keys: usize,
    bytes: usize,
}

/// A rank's view of a store that counts what the rank asks of it.
struct Counting {
    base: Arc<InProcessStore>,
    used: Mutex<Used>,
}

impl Counting {
    fn count(&self, keys: &[&str], value_bytes: usize) {
        let mut used = self.used.lock().unwrap();
        used.calls += 1;
        used.keys += keys.len();
        used.bytes += keys.iter().map(|key| key.len()).sum::<usize>() + value_bytes;
    }
}

impl Store for Counting {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.count(&[key], value.len());
        self.base.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let value = self.base.get(key, timeout);
        self.count(&[key], value.as_ref().map_or(0, Vec::len));
        value
    }
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.count(keys, 0);
        self.base.wait(keys, timeout)
    }
    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.count(&[key], 8);
        self.base.add(key, amount)
    }
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.count(&[key], value.len());
        self.base.append(key, value)
    }
    fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let values = self.base.multi_get(keys, timeout);
        self.count(keys, values.iter().flatten().map(Vec::len).sum());
        values
    }
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        self.count(&keys, pairs.iter().map(|(_, value)| value.len()).sum());
        self.base.multi_set(pairs)
    }
    fn delete(&self, key: &str) -> Result<bool> {
        self.count(&[key], 1);
        self.base.delete(key)
    }
    fn describe(&self) -> String {
        self.base.describe()
    }
}

/// Ranks find each other in an order in which nobody waits but rank 0's list, so that counts do not depend on the clock.
fn rendezvous(size: usize) -> Vec<Used> {
    let base = InProcessStore::new();
    let device = device();
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let connect = |rank: usize| {
        let store = Counting { base: base.clone(), used: Mutex::default() };
        let context = Context::new(&device, rank, size, &options).unwrap();
        context.connect(&store).unwrap();
        *store.used.lock().unwrap()
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..size).map(|rank| scope.spawn(move || connect(rank))).collect();
        let zero = connect(0);
        [zero].into_iter().chain(others.into_iter().map(|other| other.join().unwrap())).collect()
    })
}

#[test]
fn store_traffic_grows_with_the_ranks_and_not_with_their_square() {
    let mut longest = BTreeMap::new();
    for size in [4, 16, 64, 256] {
        let used = rendezvous(size);
        let (zero, others) = used.split_first().unwrap();
        // Rank 0: its address, all addresses, their list.
        assert!(zero.calls <= 3 + 40 && zero.keys >= size, "{zero:?} of {size}");
        assert!(zero.keys <= zero.calls * size, "{zero:?} of {size}");
        for other in others {
            // Its address, and the list; more turns only if the machine is slow.
            assert!((2..=2 + 40).contains(&other.calls) && other.keys == other.calls, "{other:?} of {size}");
            // The list is as long as all addresses together: no more than that for each rank.
            assert!(other.bytes <= 100 + 200 * size, "{other:?} of {size}");
        }
        let calls: usize = used.iter().map(|used| used.calls).sum();
        longest.insert(size, others.iter().map(|used| used.bytes).max().unwrap());
        println!("{size} ranks: {calls} calls, rank 0 {zero:?}");
    }
    // Four times as many ranks make the list four times as long, no longer.
    for (small, large) in [(4, 16), (16, 64), (64, 256)] {
        assert!(longest[&large] <= longest[&small] * 4 + 100, "{longest:?}");
    }
}
