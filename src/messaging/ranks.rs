//! A map from ranks to entries.

use std::collections::BTreeMap;

use crate::types::Rank;

/// Number of ranks in the vector and in each further block.
const NEAR_RANKS: usize = 1024;

/// Entries by rank. Memory depends on the number of entries, not on the number of ranks.
pub struct ByRank<T> {
    /// Entries of the first [`NEAR_RANKS`] ranks, up to the last that has one. Most contexts use no others, so a lookup
    /// takes one comparison.
    near: Vec<Option<Box<T>>>,
    /// Entries of other ranks, in blocks of [`NEAR_RANKS`].
    far: BTreeMap<usize, Box<[Option<Box<T>>]>>,
}

impl<T> Default for ByRank<T> {
    fn default() -> Self {
        Self { near: Vec::new(), far: BTreeMap::new() }
    }
}

impl<T> ByRank<T> {
    /// The entry of `rank`.
    #[inline]
    pub fn get(&self, rank: Rank) -> Option<&T> {
        match self.near.get(rank) {
            Some(place) => place.as_deref(),
            None => self.far.get(&(rank / NEAR_RANKS))?[rank % NEAR_RANKS].as_deref(),
        }
    }

    /// The entry of `rank`.
    #[inline]
    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut T> {
        self.place(rank)?.as_deref_mut()
    }

    /// The place for the entry of `rank`, if it exists.
    #[inline]
    fn place(&mut self, rank: Rank) -> Option<&mut Option<Box<T>>> {
        match self.near.get_mut(rank) {
            Some(place) => Some(place),
            None => Some(&mut self.far.get_mut(&(rank / NEAR_RANKS))?[rank % NEAR_RANKS]),
        }
    }

    /// The entry of `rank`, which is created if there is none.
    #[inline]
    pub fn get_or_insert_with(&mut self, rank: Rank, make: impl FnOnce() -> T) -> &mut T {
        if self.near.get(rank).is_none_or(Option::is_none) {
            self.make_place(rank);
        }
        self.place(rank).expect("just made").get_or_insert_with(|| Box::new(make()))
    }

    /// Creates the place for the entry of `rank`, if it does not exist.
    #[cold]
    fn make_place(&mut self, rank: Rank) {
        if rank >= NEAR_RANKS {
            self.far.entry(rank / NEAR_RANKS).or_insert_with(|| (0..NEAR_RANKS).map(|_| None).collect());
        } else if rank >= self.near.len() {
            self.near.resize_with(rank + 1, || None);
        }
    }

    /// Removes the entry of `rank`. Its place stays, for [`ByRank::put_back`].
    #[inline]
    pub fn take(&mut self, rank: Rank) -> Option<Box<T>> {
        self.place(rank)?.take()
    }

    /// Puts back an entry that `take` has returned.
    #[inline]
    pub fn put_back(&mut self, rank: Rank, entry: Box<T>) {
        if let Some(place) = self.place(rank) {
            *place = Some(entry);
        }
    }

    /// All entries, in the order of ranks.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &T)> {
        let near = self.near.iter().enumerate();
        let far = self.far.iter().flat_map(|(block, places)| (block * NEAR_RANKS..).zip(places.iter()));
        near.chain(far).filter_map(|(rank, place)| Some((rank, place.as_deref()?)))
    }

    /// All entries.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Rank, &mut T)> {
        let near = self.near.iter_mut().enumerate();
        let far = self.far.iter_mut().flat_map(|(block, places)| (block * NEAR_RANKS..).zip(places.iter_mut()));
        near.chain(far).filter_map(|(rank, place)| Some((rank, place.as_deref_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes, and little of it is unsafe")]
    fn entries_are_found_wherever_their_ranks_are() {
        let ranks = [
            0,
            1,
            NEAR_RANKS - 1,
            NEAR_RANKS,
            NEAR_RANKS + 1,
            2 * NEAR_RANKS - 1,
            5 * NEAR_RANKS,
            i32::MAX as usize - 1,
        ];
        for first in 0..ranks.len() {
            let mut entries = ByRank::default();
            for i in 0..ranks.len() {
                let rank = ranks[(first + i) % ranks.len()];
                assert!(entries.get(rank).is_none() && entries.get_mut(rank).is_none() && entries.take(rank).is_none());
                assert_eq!(*entries.get_or_insert_with(rank, || rank), rank);
                assert_eq!(*entries.get_or_insert_with(rank, || 7), rank);
                assert_eq!(entries.get(rank), Some(&rank));
            }
            assert_eq!(entries.iter().map(|(rank, entry)| (rank, *entry)).collect::<Vec<_>>(), ranks.map(|r| (r, r)));
            entries.iter_mut().for_each(|(_, entry)| *entry += 1);
            for rank in ranks {
                let entry = entries.take(rank).unwrap();
                assert!(*entry == rank + 1 && entries.get(rank).is_none());
                entries.put_back(rank, entry);
                assert_eq!(entries.get_mut(rank).copied(), Some(rank + 1));
            }
            assert!(entries.iter().map(|(rank, entry)| (rank, *entry)).eq(ranks.map(|rank| (rank, rank + 1))));
        }
    }
}
