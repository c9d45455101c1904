//! Numbers the calls of each kind on each tag. A message carries the number of its call.
//!
//! The calls of one kind on one tag run one at a time, in the same order on all ranks, so ranks that make the same
//! calls assign the same numbers, whatever their threads do with other kinds and tags. A count must never be dropped,
//! because peers could not distinguish a rank that restarts a count from one that has skipped calls. Adjacent tags with
//! the same count share an entry, so programs that use each tag once, or a range of tags in turn, use little memory.
//! When the table is full, further tags are not counted: their number is 0, which matches every number in messages.
//! Calls on shared memory are refused without one.

use std::collections::BTreeMap;

use crate::wire::fingerprint::{MAX_NUMBER, next_number};

/// Lines in the direct-mapped cache.
pub(super) const RECENT_LINES: usize = 64;

/// Entries for other lines, at most; about 30 bytes each.
pub(super) const MAX_RANGES: usize = 1 << 16;

/// What is counted: a [kind](crate::wire::fingerprint::kind), which is not 0, and a tag.
pub type Line = (u8, u64);

/// The cache position of a line. The collectives on one tag have different positions, and so have a few collectives on
/// as many tags as a program has threads.
const fn position((kind, tag): Line) -> usize {
    (tag as usize).wrapping_add(kind as usize * 11) % RECENT_LINES
}

/// The number of calls on each line.
#[derive(Debug)]
pub(super) struct Numbers {
    /// The cache: each line and its number, at its position. The number is 0 if the line is not counted.
    recent: [(Line, u32); RECENT_LINES],
    /// From a kind and a first tag to the last tag of the range and its number.
    others: BTreeMap<Line, (u64, u32)>,
    /// Whether a number was dropped because `others` was full.
    dropped: bool,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { recent: [((0, 0), 0); RECENT_LINES], others: BTreeMap::new(), dropped: false }
    }
}

impl Numbers {
    /// The number of the next call on `line`, starting at 1; 0 if the line is not counted.
    #[inline(always)] // On the path of small collectives.
    pub fn next(&mut self, line: Line) -> u32 {
        let recent = &mut self.recent[position(line)];
        if recent.0 != line || recent.1.wrapping_sub(1) >= MAX_NUMBER - 1 {
            return self.fetch(line);
        }
        recent.1 += 1;
        recent.1
    }

    /// The number of the last call on `line`; 0 if there was none, or the line is not counted.
    pub fn last(&self, line: Line) -> u32 {
        let (recent, number) = self.recent[position(line)];
        if recent == line {
            return number;
        }
        let (kind, tag) = line;
        let before = self.others.range((kind, 0)..=line).next_back();
        before.filter(|(_, (last, _))| *last >= tag).map_or(0, |(_, (_, number))| *number)
    }

    #[cold]
    fn fetch(&mut self, line: Line) -> u32 {
        let recent = &mut self.recent[position(line)];
        if *recent == (line, MAX_NUMBER) {
            recent.1 = next_number(MAX_NUMBER);
            return recent.1;
        }
        let number = match self.take(line) {
            Some(number) => next_number(number),
            None => u32::from(!self.dropped),
        };
        let (replaced, last) = std::mem::replace(&mut self.recent[position(line)], (line, number));
        // The replaced entry has no number if it was not counted or empty.
        if last != 0 {
            self.put(replaced, last);
        }
        number
    }

    /// Removes the number of `line`.
    fn take(&mut self, line: Line) -> Option<u32> {
        let (kind, tag) = line;
        let (&first, entry) = self.others.range_mut((kind, 0)..=line).next_back()?;
        let (last, number) = *entry;
        if last < tag {
            return None;
        }
        if first < line {
            entry.0 = tag - 1;
        } else {
            self.others.remove(&first);
        }
        if tag < last {
            self.insert((kind, tag + 1), last, number);
        }
        Some(number)
    }

    /// Stores the number of `line`, which has none.
    fn put(&mut self, line: Line, number: u32) {
        let (kind, tag) = line;
        let next = tag.checked_add(1).map(|next| (kind, next));
        let behind = next.filter(|next| self.others.get(next).is_some_and(|entry| entry.1 == number));
        let last = behind.and_then(|next| self.others.remove(&next)).map_or(tag, |entry| entry.0);
        let before = self.others.range_mut((kind, 0)..line).next_back();
        match before.filter(|(_, entry)| entry.0 + 1 == tag && entry.1 == number) {
            Some((_, entry)) => entry.0 = last,
            None => self.insert(line, last, number),
        }
    }

    fn insert(&mut self, first: Line, last: u64, number: u32) {
        if self.others.len() < MAX_RANGES {
            self.others.insert(first, (last, number));
        } else {
            self.dropped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tier::Tier;
    use crate::wire::fingerprint::MAX_NUMBER;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(Tier::from_environment().of(40, 256, 256)))]
        #[test]
        fn every_line_is_counted(
            lines in proptest::collection::vec(
                (1..4u8, prop_oneof![0u64..300, (0u64..8).prop_map(|n| u64::MAX - n), any::<u64>()]),
                0..2000,
            )
        ) {
            let (mut numbers, mut known) = (Numbers::default(), HashMap::new());
            for line in lines {
                let count = known.entry(line).or_insert(0u32);
                *count += 1;
                prop_assert_eq!(numbers.last(line), *count - 1, "{:?}", line);
                prop_assert_eq!(numbers.next(line), *count, "{:?}", line);
            }
        }
    }

    #[test]
    fn collectives_on_the_same_few_tags_have_places_of_their_own() {
        let places = |kinds: std::ops::Range<u8>, tags: std::ops::Range<u64>| {
            let lines: Vec<Line> = kinds.flat_map(|kind| tags.clone().map(move |tag| (kind, tag))).collect();
            (lines.iter().map(|line| position(*line)).collect::<HashSet<_>>().len(), lines.len())
        };
        for (kinds, tags) in [(1..20, 0..1), (1..17, 0..2), (1..5, 0..11)] {
            let (places, lines) = places(kinds, tags);
            assert_eq!(places, lines);
        }
    }

    #[test]
    fn tags_in_turn_need_no_memory() {
        let mut numbers = Numbers::default();
        for round in 1..=3 {
            for tag in 0..100_000 {
                assert_eq!(numbers.next((1, tag)), round);
                assert!(numbers.others.len() <= 3, "tag {tag}: {:?}", numbers.others);
            }
        }
        for tag in (u64::MAX - 1000)..=u64::MAX {
            assert_eq!(numbers.next((1, tag)), 1);
        }
        assert!(numbers.others.len() <= 4, "{:?}", numbers.others);
    }

    #[test]
    fn beyond_the_most_entries_no_more_tags_are_counted_and_those_known_still_are() {
        let mut numbers = Numbers::default();
        let line = |index: usize| (1, 7 * index as u64);
        let all = MAX_RANGES + 10 * RECENT_LINES;
        for index in 0..all {
            numbers.next(line(index));
        }
        assert!(numbers.dropped && numbers.others.len() == MAX_RANGES);
        for round in 2..4 {
            for index in 0..MAX_RANGES {
                assert_eq!(numbers.next(line(index)), round, "{index}");
            }
        }
        assert_eq!((numbers.next((1, 3)), numbers.next((1, 3))), (0, 0), "it may be one that was forgotten");
        // Removing a tag in the middle of a range splits it.
        let mut numbers = Numbers { others: BTreeMap::from([((1, 0), (u64::MAX, 5))]), ..Numbers::default() };
        for index in 0..2 * MAX_RANGES as u64 {
            assert!(matches!(numbers.next((1, 2 * index)), 0 | 6));
            assert!(numbers.others.len() <= MAX_RANGES);
        }
        assert!(numbers.dropped);
    }

    #[test]
    fn numbers_skip_zero_when_they_wrap() {
        let mut numbers = Numbers { recent: [((1, 3), MAX_NUMBER); RECENT_LINES], ..Numbers::default() };
        assert_eq!((numbers.next((1, 3)), numbers.next((1, 3))), (1, 2));
        numbers.put((1, 70), MAX_NUMBER);
        assert_eq!(numbers.next((1, 70)), 1);
    }
}
