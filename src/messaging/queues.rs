//! First-in-first-out queues by key. An empty queue takes no memory, and refilling queues does not allocate.

use std::collections::hash_map::Entry;

use crate::hash::QuickMap;
use crate::slab::Slab;
use crate::types::{Rank, Slot, Space};

/// Marks the end of a list.
const NIL: u32 = u32::MAX;
/// The rank in keys for receives from any of several ranks.
const ANY: u32 = u32::MAX;

/// Identifies an ordered sequence of messages: peer, space and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    rank: u32,
    space: Space,
    slot: Slot,
}

impl Key {
    /// Messages between this rank and `rank`.
    pub fn new(rank: Rank, space: Space, slot: Slot) -> Self {
        Self { rank: rank as u32, space, slot }
    }

    /// Receives from any of several ranks.
    pub fn any(space: Space, slot: Slot) -> Self {
        Self { rank: ANY, space, slot }
    }

    /// The key for receives from any of several ranks on this slot; `None` for collectives, which have no such
    /// receives.
    pub fn of_any_rank(&self) -> Option<Self> {
        self.space.is_user().then(|| Self::any(self.space, self.slot))
    }

    /// The peer.
    pub fn rank(&self) -> Rank {
        self.rank as usize
    }

    /// The space of the slot.
    pub fn space(&self) -> Space {
        self.space
    }

    /// The slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

/// First-in-first-out queues by key, which share their storage.
#[derive(Debug, Default)]
pub struct Queues<T> {
    ends: QuickMap<Key, (u32, u32)>,
    links: Slab<(T, u32)>,
}

impl<T: Copy + PartialEq> Queues<T> {
    /// Whether all queues are empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Appends a value.
    pub fn push(&mut self, key: Key, value: T) {
        let link = self.links.insert((value, NIL));
        match self.ends.entry(key) {
            Entry::Occupied(mut ends) => self.links[std::mem::replace(&mut ends.get_mut().1, link)].1 = link,
            Entry::Vacant(none) => drop(none.insert((link, link))),
        }
    }

    /// Inserts a value before the others.
    pub fn push_front(&mut self, key: Key, value: T) {
        let link = self.links.insert((value, NIL));
        let (head, tail) = self.ends.get(&key).copied().unwrap_or((NIL, link));
        self.links[link].1 = head;
        self.ends.insert(key, (link, tail));
    }

    /// The keys of queues that are not empty.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.ends.keys()
    }

    /// The first value.
    pub fn front(&self, key: Key) -> Option<T> {
        self.ends.get(&key).map(|(head, _)| self.links[*head].0)
    }

    /// Removes and returns the first value.
    pub fn pop(&mut self, key: Key) -> Option<T> {
        let (head, tail) = *self.ends.get(&key)?;
        let (value, next) = self.links.remove(head).expect("linked");
        if next == NIL {
            self.ends.remove(&key);
        } else {
            self.ends.insert(key, (next, tail));
        }
        Some(value)
    }

    /// The values of one queue, from the front.
    pub fn iter(&self, key: Key) -> impl Iterator<Item = T> + '_ {
        let mut link = self.ends.get(&key).map_or(NIL, |(head, _)| *head);
        std::iter::from_fn(move || {
            let (value, next) = *self.links.get(link)?;
            link = next;
            Some(value)
        })
    }

    /// Removes `value`; returns whether it was found.
    pub fn remove(&mut self, key: Key, value: T) -> bool {
        let Some((head, tail)) = self.ends.get(&key).copied() else { return false };
        let (mut before, mut link) = (NIL, head);
        while link != NIL {
            let (current, next) = self.links[link];
            if current == value {
                self.links.remove(link);
                if before != NIL {
                    self.links[before].1 = next;
                }
                let ends = (if before == NIL { next } else { head }, if next == NIL { before } else { tail });
                if ends.0 == NIL {
                    self.ends.remove(&key);
                } else {
                    self.ends.insert(key, ends);
                }
                return true;
            }
            (before, link) = (link, next);
        }
        false
    }
}
