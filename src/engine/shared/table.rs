//! The plain calls that were prepared, by their arguments.

use std::sync::Arc;

use super::quick::{Key, Known};
use crate::engine::plan::Usage;

/// A hash table with open addressing: a call is at the first place from its key's position on that no other call has.
#[derive(Default)]
pub struct Table {
    /// A power of two of places, of which at least half are empty; or none.
    places: Box<[Place]>,
    /// By how much a key's hash is shifted for its position.
    shift: u32,
    usage: Usage,
    /// What was removed, and calls in progress may use.
    removed: Vec<Arc<Known>>,
}

type Place = Option<(Key, Arc<Known>)>;

/// Places of the smallest table that has any.
const FEWEST_PLACES: usize = 64;

impl Table {
    /// The call with these arguments, if it is in the table. Valid until [`Table::set`] is called while no call from the table is
    /// in progress.
    #[inline(always)] // On the path of small collectives.
    pub fn get(&self, key: &Key) -> Option<&Known> {
        let at = position(key, self.shift);
        match self.places.get(at & self.places.len().wrapping_sub(1))? {
            Some((own, known)) if own == key => Some(known),
            Some(_) => self.get_behind(key, at),
            None => None,
        }
    }

    /// The same for a call that is not at its key's position `at`.
    #[inline(never)]
    fn get_behind(&self, key: &Key, mut at: usize) -> Option<&Known> {
        loop {
            at += 1;
            let (own, known) = self.places[at & (self.places.len() - 1)].as_ref()?;
            if own == key {
                return Some(known);
            }
        }
    }

    /// Adds a call, or replaces it. Where the table is full, all others are removed first; where there is no memory, nothing is done.
    /// `idle`: no call from the table is in progress.
    pub fn set(&mut self, key: Key, known: Known, idle: bool) {
        let known = Arc::new(known);
        if self.get(&key).is_none() {
            if self.usage.add(&known.plan) {
                let removed = self.places.iter_mut().filter_map(Option::take).map(|(_, known)| known);
                self.removed.extend(removed);
            }
            if 2 * self.usage.plans() > self.places.len() && !self.grow() {
                return;
            }
        }
        let replaced = self.put(key, known);
        self.removed.extend(replaced);
        if idle {
            self.removed.clear();
        }
    }

    /// Twice as many places. Returns whether there is memory for them.
    fn grow(&mut self) -> bool {
        let number = (2 * self.places.len()).max(FEWEST_PLACES);
        let mut places = Vec::new();
        if places.try_reserve_exact(number).is_err() {
            return false;
        }
        places.resize_with(number, || None);
        let before = std::mem::replace(&mut self.places, places.into_boxed_slice());
        self.shift = u64::BITS - number.trailing_zeros();
        for (key, known) in before.into_iter().flatten() {
            self.put(key, known);
        }
        true
    }

    /// Returns what it replaces.
    fn put(&mut self, key: Key, known: Arc<Known>) -> Option<Arc<Known>> {
        let last = self.places.len() - 1;
        let mut at = position(&key, self.shift);
        while self.places[at & last].as_ref().is_some_and(|(own, _)| *own != key) {
            at += 1;
        }
        self.places[at & last].replace((key, known)).map(|(_, known)| known)
    }
}

#[inline(always)] // On the path of small collectives.
fn position(key: &Key, shift: u32) -> usize {
    key.hash().wrapping_shr(shift) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests;
    use super::*;
    use crate::engine::plan::MAX_CACHED;

    fn key(count: usize) -> Key {
        Key::new(1, (2, 3), 0, count, std::ptr::null(), std::ptr::null()).unwrap()
    }

    fn known(count: usize) -> Known {
        tests::known(Arc::new(tests::plan(0, 2, 1)), count)
    }

    #[test]
    fn as_many_calls_as_may_be_are_found_again() {
        let mut table = Table::default();
        assert!(table.get(&key(1)).is_none());
        // Lengths that are multiples of a power of two have few different bits.
        let lengths = || (0..MAX_CACHED).map(|n| (n % 3 + 1) << (n / 3 % 40) | (n / 120) << 50);
        lengths().for_each(|count| table.set(key(count), known(count), true));
        let number = lengths().collect::<std::collections::HashSet<_>>().len();
        assert!(number > MAX_CACHED / 2, "{number} different lengths");
        for count in lengths() {
            assert_eq!(table.get(&key(count)).map(|known| known.count), Some(count));
        }
        assert!(table.places.len() >= 2 * number && table.places.len() <= 4 * MAX_CACHED);
        assert!(table.removed.is_empty());
    }

    #[test]
    fn a_full_table_takes_another_call_and_keeps_what_is_in_use() {
        let mut table = Table::default();
        (0..MAX_CACHED).for_each(|count| table.set(key(count), known(count), true));
        let first = std::ptr::from_ref(table.get(&key(0)).unwrap());
        table.set(key(MAX_CACHED), known(MAX_CACHED), false);
        assert!(table.get(&key(0)).is_none() && table.get(&key(MAX_CACHED)).is_some());
        assert_eq!(table.removed.len(), MAX_CACHED);
        assert!(table.removed.iter().any(|known| std::ptr::eq(first, &**known)));
        table.set(key(0), known(0), true);
        assert!(table.removed.is_empty() && table.get(&key(0)).is_some());
    }

    #[test]
    fn a_call_that_is_set_again_takes_no_other_place() {
        let mut table = Table::default();
        (0..3 * MAX_CACHED).for_each(|_| table.set(key(5), known(5), true));
        assert_eq!((table.usage.plans(), table.places.len()), (1, FEWEST_PLACES));
    }
}
