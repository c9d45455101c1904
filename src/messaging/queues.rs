//! First-in-first-out queues, one for each order of messages. A queue that is empty takes no memory, and queues that are filled
//! again need no new one.

use std::collections::hash_map::Entry;

use crate::hash::QuickMap;
use crate::slab::Slab;
use crate::types::{Rank, Slot, Space};

/// No link.
const NIL: u32 = u32::MAX;
/// No rank.
const ANY: u32 = u32::MAX;

/// One order of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    rank: u32,
    space: Space,
    slot: Slot,
}

impl Key {
    /// Messages between this process and `rank`.
    pub fn new(rank: Rank, space: Space, slot: Slot) -> Self {
        Self { rank: rank as u32, space, slot }
    }

    /// Messages from whichever rank comes first.
    pub fn any(space: Space, slot: Slot) -> Self {
        Self { rank: ANY, space, slot }
    }

    /// The key of all ranks on this slot, where receives may name several ranks; collectives have no such receives.
    pub fn of_any_rank(&self) -> Option<Self> {
        self.space.is_user().then(|| Self::any(self.space, self.slot))
    }

    /// The other process.
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
    /// Whether every queue is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Appends.
    pub fn push(&mut self, key: Key, value: T) {
        let link = self.links.insert((value, NIL));
        match self.ends.entry(key) {
            Entry::Occupied(mut ends) => self.links[std::mem::replace(&mut ends.get_mut().1, link)].1 = link,
            Entry::Vacant(none) => drop(none.insert((link, link))),
        }
    }

    /// The first.
    pub fn front(&self, key: Key) -> Option<T> {
        self.ends.get(&key).map(|(head, _)| self.links[*head].0)
    }

    /// Takes the first.
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

    /// Takes `value` out of the middle; whether it was there.
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
