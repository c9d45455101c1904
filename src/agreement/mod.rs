//! Agreement among the ranks that are left, however many end, and whenever: the same decision on all of them.
//!
//! Each rank votes with flags and a record. The decision has the flags that all votes have, the ranks that are lost,
//! and the records of the others. The rank with the lowest number that is not lost leads: it collects the votes,
//! proposes a decision, decides once all have accepted it, and says so. If it ends, the next one collects the votes
//! anew; a vote contains the proposal that the voter has accepted, and if there is one, the next leader proposes it
//! again. So if any rank has decided, all ranks that are left have accepted its decision, and every later leader
//! proposes the same. This takes four messages in a row, and P - 1 links.
//!
//! It is a commit in two phases with a leader for each attempt, as in Chandra and Toueg, "Unreliable failure detectors
//! for reliable distributed systems" (1996), where the failure detector is perfect: a rank is lost if its link has
//! ended. The agreement of MPI's ULFM has the same contract. Where a link between two living ranks breaks, the rank
//! that others take for lost is told by the end of its links, and decides nothing.
//!
//! This is a state machine without links, clock or threads. [`Agreement::take_messages`] has what is to be sent, and
//! [`Agreement::take_expelled`] whose links are to be ended, after each call.

mod message;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use message::{Content, Decision, Message, Vote};

use crate::error::Error;
use crate::types::Rank;

/// The agreements of one rank, one after the other.
pub struct Agreement {
    rank: Rank,
    size: usize,
    /// The number of the agreement in which this rank has voted last; 0 if it has not voted yet.
    number: u64,
    /// This rank's vote in it.
    own: Vote,
    /// The proposal that this rank has accepted in it.
    accepted: Option<Decision>,
    /// What was decided in it.
    decided: Option<Decision>,
    /// Whether the program has not got its decision yet.
    is_pending: bool,
    /// What was decided in the one before it.
    before: Option<Decision>,
    /// The ranks that are lost.
    lost: BTreeSet<Rank>,
    /// The last vote of each other rank.
    votes: BTreeMap<Rank, Received>,
    /// The ranks that have accepted the proposal of this rank, if it has made one.
    accepting: Option<BTreeSet<Rank>>,
    messages: Vec<(Rank, Message)>,
    expelled: Vec<Rank>,
}

/// A vote of another rank.
struct Received {
    number: u64,
    vote: Vote,
    accepted: Option<Decision>,
}

impl Agreement {
    /// The agreements of `rank` of `size`.
    pub fn new(rank: Rank, size: usize) -> Self {
        Self {
            rank,
            size,
            number: 0,
            own: Vote::default(),
            accepted: None,
            decided: None,
            is_pending: false,
            before: None,
            lost: BTreeSet::new(),
            votes: BTreeMap::new(),
            accepting: None,
            messages: Vec::new(),
            expelled: Vec::new(),
        }
    }

    /// Votes in the next agreement. If the decision of the last one was not taken, this goes on with that, and with the
    /// vote that was given then.
    pub fn vote(&mut self, vote: Vote) {
        if std::mem::replace(&mut self.is_pending, true) {
            return;
        }
        self.before = self.decided.take();
        (self.accepted, self.accepting) = (None, None);
        self.number += 1;
        self.own = vote;
        self.join();
    }

    /// Whether this is the error of a rank that has lost this one.
    pub fn is_expelled_by(&self, error: &Error) -> bool {
        !error.is_reported_by_peer() || error.details().rank == Some(self.rank)
    }

    /// Takes what was decided in the agreement in which this rank has voted last, if it is decided, and whether more
    /// ranks are lost than in the one before.
    pub fn take_decision(&mut self) -> Option<(Decision, bool)> {
        let decision = self.decided.clone().filter(|_| self.is_pending)?;
        self.is_pending = false;
        let before = self.before.as_ref().map_or(0, |before| before.lost.len());
        let has_grown = decision.lost.len() > before;
        Some((decision, has_grown))
    }

    /// Whether this rank leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.leader() == self.rank
    }

    /// The ranks for which this one waits: their links must be made, and their ends be told by [`Agreement::lose`].
    pub fn awaited(&self) -> Vec<Rank> {
        let leader = self.leader();
        if self.number == 0 || self.decided.is_some() {
            return Vec::new();
        }
        if leader != self.rank {
            return vec![leader];
        }
        let has_answered = |rank: &Rank| match &self.accepting {
            Some(accepting) => accepting.contains(rank),
            None => *rank == self.rank || self.vote_of(*rank).is_some(),
        };
        self.left().filter(|rank| !has_answered(rank)).collect()
    }

    /// The link to `rank` has ended.
    pub fn lose(&mut self, rank: Rank) {
        let leader = self.leader();
        if rank == self.rank || rank >= self.size || !self.lost.insert(rank) {
            return;
        }
        self.expelled.push(rank);
        if self.number == 0 {
            return;
        }
        if leader == rank {
            // A rank that has decided also votes: it is the only one left that can know the decision.
            self.join();
        } else if leader == self.rank {
            self.lead();
        }
    }

    /// `from` has sent `message`.
    pub fn receive(&mut self, from: Rank, message: Message) {
        // It may have been on its way when another rank reported the loss.
        if self.lost.contains(&from) {
            return;
        }
        let (number, is_this) = (message.number, message.number == self.number);
        match message.content {
            Content::Vote(vote, lost, accepted) => {
                lost.into_iter().for_each(|rank| self.lose(rank));
                if let Some(decision) = self.decision_of(number).cloned() {
                    return self.send(from, number, Content::Decision(decision));
                }
                if number == self.number + 1 && self.number > 0 && self.decided.is_none() {
                    // It has decided, so it knows what this rank waits for.
                    self.send(from, self.number, Content::Question);
                }
                self.votes.insert(from, Received { number, vote, accepted });
                self.lead();
            }
            Content::Proposal(decision) if is_this => {
                if self.decided.is_none() {
                    self.accepted = Some(decision);
                }
                self.send(from, number, Content::Acceptance);
            }
            Content::Acceptance if is_this => {
                if let Some(accepting) = &mut self.accepting {
                    accepting.insert(from);
                    self.lead();
                }
            }
            Content::Decision(decision) if is_this && self.decided.is_none() => self.decide(decision),
            Content::Question => {
                if let Some(decision) = self.decision_of(number).cloned() {
                    self.send(from, number, Content::Decision(decision));
                }
            }
            Content::Proposal(_) | Content::Acceptance | Content::Decision(_) => {}
        }
    }

    /// The messages that are to be sent, in their order.
    pub fn take_messages(&mut self) -> Vec<(Rank, Message)> {
        std::mem::take(&mut self.messages)
    }

    /// The ranks whose links are to be ended, because this rank or another has lost them.
    pub fn take_expelled(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.expelled)
    }

    /// The rank that leads, as far as this one knows.
    fn leader(&self) -> Rank {
        self.left().next().unwrap_or(self.rank)
    }

    /// The ranks that are not lost, this one among them.
    fn left(&self) -> impl Iterator<Item = Rank> {
        (0..self.size).filter(|rank| !self.lost.contains(rank))
    }

    fn decision_of(&self, number: u64) -> Option<&Decision> {
        match number {
            0 => None,
            number if number == self.number => self.decided.as_ref(),
            number if number + 1 == self.number => self.before.as_ref(),
            _ => None,
        }
    }

    /// The vote of `rank`, another one, in this agreement.
    fn vote_of(&self, rank: Rank) -> Option<&Received> {
        self.votes.get(&rank).filter(|received| received.number == self.number)
    }

    fn send(&mut self, to: Rank, number: u64, content: Content) {
        if !self.lost.contains(&to) {
            self.messages.push((to, Message { number, content }));
        }
    }

    /// Gives this rank's vote to who leads now.
    fn join(&mut self) {
        let leader = self.leader();
        if leader == self.rank {
            return self.lead();
        }
        let (vote, lost) = (self.own.clone(), self.lost.iter().copied().collect());
        self.send(leader, self.number, Content::Vote(vote, lost, self.accepted.clone()));
    }

    /// Does what this rank can do now, if it leads: proposes once all have voted, decides once all have accepted.
    fn lead(&mut self) {
        if !self.leads() || self.number == 0 || self.decided.is_some() {
            return;
        }
        let others: Vec<Rank> = self.left().filter(|rank| *rank != self.rank).collect();
        if self.accepting.is_none() {
            if others.iter().any(|rank| self.vote_of(*rank).is_none()) {
                return;
            }
            let decision = self.proposal(&others);
            self.accepted = Some(decision.clone());
            self.accepting = Some([self.rank].into());
            for rank in &others {
                self.send(*rank, self.number, Content::Proposal(decision.clone()));
            }
        }
        let all_accept = self.accepting.as_ref().is_some_and(|by| others.iter().all(|rank| by.contains(rank)));
        if let Some(decision) = self.accepted.clone().filter(|_| all_accept) {
            self.decide(decision);
        }
    }

    /// What this rank proposes: what an earlier leader has proposed, if any voter has accepted that, else what follows
    /// from the votes of `others` and its own. No two voters can have accepted different proposals: who has accepted
    /// one says so to the next leader, unless it is lost.
    fn proposal(&self, others: &[Rank]) -> Decision {
        let votes: Vec<_> = others.iter().filter_map(|rank| Some((*rank, self.vote_of(*rank)?))).collect();
        let mut accepted = votes.iter().filter_map(|(_, received)| received.accepted.as_ref()).chain(&self.accepted);
        if let Some(decision) = accepted.next() {
            return decision.clone();
        }
        let mut records = vec![(self.rank, self.own.record.clone())];
        records.extend(votes.iter().map(|(rank, received)| (*rank, received.vote.record.clone())));
        Decision {
            flags: votes.iter().fold(self.own.flags, |flags, (_, received)| flags & received.vote.flags),
            lost: self.lost.iter().copied().collect(),
            records,
        }
    }

    fn decide(&mut self, decision: Decision) {
        self.decided = Some(decision.clone());
        decision.lost.iter().for_each(|rank| self.lose(*rank));
        if self.leads() {
            let others: Vec<Rank> = self.left().filter(|rank| *rank != self.rank).collect();
            for rank in others {
                self.send(rank, self.number, Content::Decision(decision.clone()));
            }
        }
    }
}
