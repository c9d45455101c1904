//! Agreements of the ranks, whose messages go over links of their own.

use std::time::Instant;

use crate::agreement::{Agreement, Decision, Message, Vote};
use crate::engine::progress::{Engine, Guard};
use crate::engine::{Core, Idle};
use crate::error::{Error, ErrorKind, Result, first_few};
use crate::types::Rank;

/// How many ranks an error names.
const RANKS_SHOWN: usize = 8;

impl Core {
    /// From now on, this serves for agreements of `rank` with the others of `size`.
    pub fn serve_agreements(&mut self, rank: Rank, size: usize) {
        self.agreement = Some(Box::new(Agreement::new(rank, size)));
        self.messenger.tell_of_ends();
    }

    /// `rank` has sent a message of an agreement.
    pub(super) fn receive_agreement(&mut self, rank: Rank, bytes: &[u8]) {
        let size = self.messenger.connections().peers().size;
        let Some(agreement) = &mut self.agreement else { return };
        match Message::decode(bytes, size) {
            Ok(message) => agreement.receive(rank, message),
            Err(error) => {
                let error = error.context(self.messenger.peer_name(rank)).with_rank(rank);
                self.messenger.expel(rank, &error);
            }
        }
        self.go_on_with_agreement();
    }

    /// The link to `rank` has ended.
    pub(super) fn lose(&mut self, rank: Rank) {
        // When this rank ends the links itself, the others are not lost.
        if let Some(agreement) = self.agreement.as_mut().filter(|_| self.broken.is_none()) {
            agreement.lose(rank);
            self.go_on_with_agreement();
        }
    }

    /// Sends what the agreement has to send, and connects to the ranks for which it waits.
    fn go_on_with_agreement(&mut self) {
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

    /// Names the ranks for which the agreement waits.
    fn describe_agreement(&self) -> (Option<Rank>, String) {
        let awaited = self.agreement.as_ref().map_or(Vec::new(), |agreement| agreement.awaited());
        let name = |rank: &Rank| {
            let state = self.messenger.diagnosis().link_state(*rank, self.now);
            format!("{} ({state})", self.messenger.peer_name(*rank))
        };
        (awaited.first().copied(), first_few(awaited.iter().map(name), RANKS_SHOWN, ", "))
    }
}

impl Engine {
    /// Votes, and waits for the decision until `deadline`. Returns it, and whether more ranks are lost than in the one
    /// before. If the wait ends before that, the vote counts all the same, and the next call waits for its decision.
    pub fn agree<'a>(&'a self, mut guard: Guard<'a>, vote: Vote, deadline: Instant) -> Result<(Decision, bool)> {
        if let Some(agreement) = guard.agreement.as_mut() {
            agreement.vote(vote);
        }
        guard.go_on_with_agreement();
        let (guard, decision) = self.wait_for(guard, None, &mut Idle::default(), deadline, Core::take_decision);
        let decision = decision.unwrap_or_else(|| {
            let (rank, ranks) = guard.describe_agreement();
            let error = Error::new(ErrorKind::Timeout, format!("waiting for the votes of {ranks}"));
            Err(rank.into_iter().fold(error, Error::with_rank))
        });
        self.hand_over(guard);
        decision
    }
}
