//! The threads that wait on a context: one of them polls the links, or sleeps in the system; the others sleep until
//! they are notified.

use crate::engine::spin::Spin;
use crate::hash::QuickMap;
use crate::types::Rank;

/// The threads that wait on a context, and how long each polls.
pub struct Waiters {
    /// Whether a waiting thread polls the links.
    pub polling: bool,
    /// Set while the polling thread sleeps in the system: how long it polled before.
    pub sleeping: Option<Spin>,
    /// One entry for each waiting thread that does not poll: the only peer that it waits for, if there is only one.
    waiting: Vec<Option<Rank>>,
    /// Threads that were notified and have not taken the lock since.
    waking: usize,
    spin: Spin,
    /// Overrides `spin` for waits that involve only this peer.
    pair_spins: QuickMap<Rank, Spin>,
}

impl Waiters {
    /// None; those that come poll for `spin`.
    pub fn new(spin: Spin) -> Self {
        Self { polling: false, sleeping: None, waiting: Vec::new(), waking: 0, spin, pair_spins: QuickMap::default() }
    }

    /// Sets how long waiting threads poll.
    pub fn set_spin(&mut self, spin: Spin) {
        self.spin = spin;
    }

    /// Sets how long waits that involve only `peer` poll; `None`: as long as others.
    pub fn set_pair_spin(&mut self, peer: Rank, spin: Option<Spin>) {
        match spin {
            Some(spin) => drop(self.pair_spins.insert(peer, spin)),
            None => drop(self.pair_spins.remove(&peer)),
        }
    }

    /// How long a thread polls that waits only for `peer`, or for several if `None`.
    pub fn spin(&self, peer: Option<Rank>) -> Spin {
        peer.and_then(|peer| self.pair_spins.get(&peer)).copied().unwrap_or(self.spin)
    }

    /// How long the only thread that waits on the context, for `peer`, polls; `None` if there are others.
    pub fn spin_alone(&self, peer: Option<Rank>) -> Option<Spin> {
        (!self.polling && self.waiting.is_empty()).then(|| self.spin(peer))
    }

    /// How long the polling thread polls, which itself waits for `peer`: the longest time of all waiting threads.
    pub fn longest_spin(&self, peer: Option<Rank>) -> Spin {
        self.waiting.iter().map(|peer| self.spin(*peer)).fold(self.spin(peer), Ord::max)
    }

    /// Whether threads wait that do not poll.
    pub fn any_sleeps(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether threads were notified that have not taken the lock since.
    pub fn any_wakes(&self) -> bool {
        self.waking > 0
    }

    /// A thread that does not poll begins to wait.
    pub fn add(&mut self, peer: Option<Rank>) {
        self.waiting.push(peer);
    }

    /// A thread that [`Waiters::add`] has added has the lock again.
    pub fn remove(&mut self, peer: Option<Rank>) {
        let own = self.waiting.iter().position(|other| *other == peer).expect("added before");
        self.waiting.swap_remove(own);
        self.waking = self.waking.saturating_sub(1);
    }

    /// All that do not poll are about to be notified.
    pub fn wake_all(&mut self) {
        self.waking = self.waiting.len();
    }

    /// The peers for which threads wait that do not poll.
    #[cfg(test)]
    pub(crate) fn peers(&self) -> &[Option<Rank>] {
        &self.waiting
    }
}
