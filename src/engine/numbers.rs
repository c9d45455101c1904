//! Numbers the collectives on each tag, so that a message tells which of them it belongs to.
//!
//! A tag is used by one collective at a time, in the same order on all ranks, so ranks that make the same calls count alike,
//! whatever their threads do with other tags. A count must never be forgotten: a rank that began again would be taken for one
//! that has skipped calls. Programs that use each tag once, or a range of tags in turn, cost no memory: adjacent tags that were
//! used equally often are one entry. Where there are too many entries all the same, further tags are not counted; their number
//! is 0, which goes with every number.

use std::collections::BTreeMap;

use crate::wire::fingerprint::next_number;

/// Tags that are looked up at once.
const RECENT: usize = 64;

/// Entries for the others; some 20 bytes each.
const MOST: usize = 1 << 16;

/// How often each tag was used.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Tag and number, at the tag's remainder. The number is 0 where the tag is not counted.
    recent: [(u32, u32); RECENT],
    /// First tag to last tag and number.
    others: BTreeMap<u32, (u32, u32)>,
    /// Whether some numbers found no place.
    lost: bool,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { recent: [(0, 0); RECENT], others: BTreeMap::new(), lost: false }
    }
}

impl Numbers {
    /// The number of the next collective on `tag`: 1 for the first. 0 where it is not counted.
    #[inline]
    pub fn next(&mut self, tag: u32) -> u32 {
        let place = &mut self.recent[tag as usize % RECENT];
        if place.0 != tag || place.1 == 0 {
            return self.fetch(tag);
        }
        place.1 = next_number(place.1);
        place.1
    }

    #[cold]
    fn fetch(&mut self, tag: u32) -> u32 {
        let number = match self.take(tag) {
            Some(number) => next_number(number),
            None => u32::from(!self.lost),
        };
        let (other, its) = std::mem::replace(&mut self.recent[tag as usize % RECENT], (tag, number));
        // What was not counted, or is this very tag, has no number to keep.
        if its != 0 {
            self.put(other, its);
        }
        number
    }

    /// Removes the number of `tag`.
    fn take(&mut self, tag: u32) -> Option<u32> {
        let (&first, entry) = self.others.range_mut(..=tag).next_back()?;
        let (last, number) = *entry;
        if last < tag {
            return None;
        }
        if first < tag {
            entry.0 = tag - 1;
        } else {
            self.others.remove(&first);
        }
        if tag < last {
            self.insert(tag + 1, last, number);
        }
        Some(number)
    }

    /// Remembers the number of `tag`, which has none.
    fn put(&mut self, tag: u32, number: u32) {
        let behind = tag.checked_add(1).and_then(|next| self.others.get(&next)).filter(|entry| entry.1 == number);
        let last = behind.map_or(tag, |entry| entry.0);
        if last > tag {
            self.others.remove(&(tag + 1));
        }
        let before = self.others.range_mut(..tag).next_back();
        match before.filter(|(_, entry)| entry.0 + 1 == tag && entry.1 == number) {
            Some((_, entry)) => entry.0 = last,
            None => self.insert(tag, last, number),
        }
    }

    fn insert(&mut self, first: u32, last: u32, number: u32) {
        if self.others.len() < MOST {
            self.others.insert(first, (last, number));
        } else {
            self.lost = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fingerprint::MAX_NUMBER;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn every_tag_is_counted(tags in proptest::collection::vec(prop_oneof![0u32..300, (0u32..8).prop_map(|n| u32::MAX - n), any::<u32>()], 0..2000)) {
            let (mut numbers, mut known) = (Numbers::default(), HashMap::new());
            for tag in tags {
                let count = known.entry(tag).or_insert(0u32);
                *count += 1;
                prop_assert_eq!(numbers.next(tag), *count, "tag {}", tag);
            }
        }
    }

    #[test]
    fn tags_in_turn_need_no_memory() {
        let mut numbers = Numbers::default();
        for round in 1..=3 {
            for tag in 0..100_000 {
                assert_eq!(numbers.next(tag), round);
                assert!(numbers.others.len() <= 3, "tag {tag}: {:?}", numbers.others);
            }
        }
        for tag in (u32::MAX - 1000)..=u32::MAX {
            assert_eq!(numbers.next(tag), 1);
        }
        assert!(numbers.others.len() <= 4, "{:?}", numbers.others);
    }

    #[test]
    fn beyond_the_most_entries_no_more_tags_are_counted_and_those_known_still_are() {
        let mut numbers = Numbers::default();
        let tag = |index: usize| 7 * index as u32;
        let all = MOST + 10 * RECENT;
        for index in 0..all {
            numbers.next(tag(index));
        }
        assert!(numbers.lost && numbers.others.len() == MOST);
        for round in 2..4 {
            for index in 0..MOST {
                assert_eq!(numbers.next(tag(index)), round, "{index}");
            }
        }
        assert_eq!((numbers.next(3), numbers.next(3)), (0, 0), "it may be one that was forgotten");
        // The middle of a long entry splits it.
        let mut numbers = Numbers { others: BTreeMap::from([(0, (u32::MAX, 5))]), ..Numbers::default() };
        for index in 0..2 * MOST as u32 {
            assert!(matches!(numbers.next(2 * index), 0 | 6));
            assert!(numbers.others.len() <= MOST);
        }
        assert!(numbers.lost);
    }

    #[test]
    fn numbers_skip_zero_when_they_wrap() {
        let mut numbers = Numbers { recent: [(3, MAX_NUMBER); RECENT], ..Numbers::default() };
        assert_eq!((numbers.next(3), numbers.next(3)), (1, 2));
        numbers.put(70, MAX_NUMBER);
        assert_eq!(numbers.next(70), 1);
    }
}
