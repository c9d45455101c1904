//! Agreements of the ranks, whose messages go over links of their own.

use std::time::{Duration, Instant};

use crate::agreement::{Agreement, Decision, Message, Vote};
use crate::engine::Core;
use crate::engine::progress::{Engine, Guard};
use crate::error::{Error, ErrorKind, Result, first_few};
use crate::types::Rank;

/// How long after a timeout this rank waits for the reply of the one that leads.
const REPLY_TIME: Duration = Duration::from_millis(400);

/// How many ranks an error names.
const RANKS_SHOWN: usize = 8;

impl Core {
    /// From now on, this serves for agreements of `rank` with the others of `size`.
    pub fn serve_agreements(&mut self, rank: Rank, size: usize) {
        self.agreement = Some(Box::new(Agreement::new(rank, size)));
        self.messenger.tell_of_ends();
    }

    /// A rank has sent a message of an agreement.
    pub(super) fn receive_agreement(&mut self) {
        let size = self.messenger.connections().peers().size;
        let (Some(agreement), Some((rank, bytes))) = (&mut self.agreement, self.messenger.take_agreement()) else {
            return;
        };
        match Message::decode(&bytes, size) {
            Ok(message) => agreement.receive(rank, message),
            Err(error) => {
                let error = error.context(self.messenger.peer_name(rank)).with_rank(rank);
                self.messenger.expel(rank, &error);
            }
        }
        self.advance_agreement();
    }

    /// The link to `rank` has ended.
    pub(super) fn lose(&mut self, rank: Rank) {
        // When this rank ends the links itself, the others are not lost.
        if let Some(agreement) = self.agreement.as_mut().filter(|_| self.broken.is_none()) {
            agreement.lose(rank);
            self.advance_agreement();
        }
    }

    /// Sends what the agreement has to send, and connects to the ranks for which it waits.
    fn advance_agreement(&mut self) {
        let Some(agreement) = &mut self.agreement else { return };
        let (messages, expelled, awaited) = (agreement.take_messages(), agreement.take_expelled(), agreement.awaited());
        for (rank, message) in messages {
            self.messenger.send_agreement(rank, message.encode());
        }
        for rank in expelled {
            let own = self.messenger.connections().peers().rank;
            let text = format!("rank {rank} is lost: rank {own}, or another one, has lost its connection to it");
            self.messenger.expel(rank, &Error::new(ErrorKind::ConnectionLost, text).with_rank(rank));
        }
        awaited.into_iter().for_each(|rank| self.messenger.connect(rank));
        self.ended = true;
    }

    /// The decision, or why there will be none.
    fn take_decision(&mut self) -> Option<Result<(Decision, bool)>> {
        if let Some(error) = &self.broken {
            return Some(Err(error.clone()));
        }
        self.agreement.as_mut()?.take_decision().map(Ok)
    }

    /// The first of the ranks for which the agreement waits, and the names of all.
    fn describe_agreement(&self) -> (Option<Rank>, String) {
        let awaited = self.agreement.as_ref().map_or(Vec::new(), |agreement| agreement.awaited());
        let name = |rank: &Rank| {
            let state = self.messenger.diagnosis().link_state(*rank, self.now);
            format!("{} ({state})", self.messenger.peer_name(*rank))
        };
        (awaited.first().copied(), first_few(awaited.iter().map(name), RANKS_SHOWN, ", "))
    }

    /// Tells `rank` for which ranks this one waits.
    pub(super) fn reply_in_agreement(&mut self, rank: Rank) {
        let (first, names) = self.describe_agreement();
        let text = match first {
            Some(_) => format!("it says that it waits for {names}"),
            None => "it says that it does not agree".to_owned(),
        };
        self.messenger.reply(rank, &text, first.is_some(), first.map_or(0, |first| first as u64 + 1));
    }

    /// The rank that leads the agreement, if this one waits for it and can query it.
    fn queried_leader(&mut self) -> Option<Rank> {
        let leader = self.agreement.as_ref().filter(|agreement| !agreement.leads())?.awaited().first().copied()?;
        matches!(self.messenger.is_connected(leader), Ok(true)).then(|| {
            self.messenger.query_rank(leader, (0, 0), self.now);
            leader
        })
    }

    /// The error of a wait that has ended. `leader` was queried.
    fn not_agreed(&self, leader: Option<Rank>) -> Error {
        let (first, names) = self.describe_agreement();
        let told = leader.and_then(|leader| self.messenger.diagnosis().reply_of(leader));
        let blamed = told.and_then(|told| Rank::try_from(told).ok()?.checked_sub(1)).or(first);
        let error = Error::new(ErrorKind::Timeout, format!("waiting for {names}"));
        blamed.into_iter().fold(error, Error::with_rank)
    }
}

impl Engine {
    /// Votes, and waits for the decision until `deadline`. Returns it, and whether more ranks are lost than in the one
    /// before. If the wait ends before that, the vote counts all the same, and the next call waits for its decision.
    pub fn agree<'a>(&'a self, mut guard: Guard<'a>, vote: Vote, deadline: Instant) -> Result<(Decision, bool)> {
        if let Some(agreement) = guard.agreement.as_mut() {
            agreement.vote(vote);
        }
        guard.advance_agreement();
        let (guard, decision) = self.wait(guard, deadline, Core::take_decision);
        let (guard, decision) = match decision {
            Some(decision) => (guard, decision),
            None => self.agree_late(guard),
        };
        self.hand_over(guard);
        decision
    }

    /// Asks the rank that leads which votes are missing. Returns the decision, if it has come after all.
    fn agree_late<'a>(&'a self, mut guard: Guard<'a>) -> (Guard<'a>, Result<(Decision, bool)>) {
        let Some(leader) = guard.queried_leader() else {
            let error = guard.not_agreed(None);
            return (guard, Err(error));
        };
        let (guard, decision) = self.wait(guard, self.now() + REPLY_TIME, |core| {
            let decision = core.take_decision();
            let has_replied = core.messenger.diagnosis().reply_of(leader).is_some();
            (decision.is_some() || has_replied).then_some(decision)
        });
        let decision = decision.flatten().unwrap_or_else(|| Err(guard.not_agreed(Some(leader))));
        (guard, decision)
    }
}
