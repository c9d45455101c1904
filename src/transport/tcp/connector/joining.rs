//! Links of several connections, until they have all of them. One side makes the connections, the others once the peer
//! has accepted the first.

use std::time::Instant;

use super::handshake::{Agreed, Step, answers};
use super::{Attempt, State, TcpConnector, number};
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::net::handshake::{Answer, Handle, MAX_STREAMS, Part, Proven, Reason};
use crate::net::stream::Stream;
use crate::sys::{self, AsRaw, Registration};
use crate::transport::{ConnectorEvent, Peers};
use crate::types::Rank;

/// A link of several connections, some of which are missing. Its messages wait until there are all.
pub(super) struct Joining {
    /// The identity that the peer has proven.
    pub theirs: Handle,
    /// The number of the link, on which the first connection has agreed.
    pub connection: u32,
    pub first: (Registration, Stream),
    /// The others, in their order.
    others: Vec<Other>,
    /// Whether this rank makes them; else the peer does.
    pub ours: bool,
    /// Whether messages wait for the link.
    needed: bool,
}

/// One of the connections of a link but the first.
enum Other {
    /// The peer has not made it yet.
    Missing,
    /// This rank makes the connection.
    Connecting(Attempt),
    /// The connection is there.
    Joined(Option<Registration>, Stream),
}

impl Joining {
    /// How many connections there are, and how many there will be.
    pub fn progress(&self) -> (usize, usize) {
        let there = self.others.iter().filter(|other| matches!(other, Other::Joined(..))).count();
        (1 + there, 1 + self.others.len())
    }
}

impl TcpConnector {
    /// Makes the other connections of a link whose first one the peer has accepted. An error is final.
    pub(super) fn connect_others(
        &mut self,
        peers: &Peers,
        rank: Rank,
        theirs: Handle,
        Agreed { connection, streams }: Agreed,
        first: (Registration, Stream),
        now: Instant,
    ) -> Result<()> {
        let opened = match self.target(peers, rank) {
            Some(at) => (1..usize::from(streams)).map(|index| self.open(peers, rank, index, at)).collect(),
            None => Ok(Vec::new()),
        };
        match opened {
            Ok(attempts) => {
                let others = attempts.into_iter().map(Other::Connecting).collect();
                let joining = Joining { theirs, connection, first, others, ours: true, needed: true };
                self.set_state(rank, State::Joining(Box::new(joining)));
                Ok(())
            }
            Err(e) => {
                let error = self.cannot_connect(peers, rank, &e);
                self.retry_later(peers, rank, error, now)
            }
        }
    }

    /// Waits for the other connections of a link whose first one has been accepted. An error is final.
    pub(super) fn await_others(&mut self, rank: Rank, stream: Stream, proven: &Proven) -> Result<()> {
        let failed = |e| Error::io("cannot watch a connection", &e);
        let registration = self.poller.add(&stream, sys::READ, number(rank, 0)).map_err(failed)?;
        let others = (1..proven.part.streams).map(|_| Other::Missing).collect();
        let needed = match &self.entry(rank).state {
            State::Idle => false,
            State::Joining(joining) => joining.needed,
            _ => true,
        };
        let (theirs, connection, first) = (proven.from, proven.frames, (registration, stream));
        let joining = Joining { theirs, connection, first, others, ours: false, needed };
        self.set_state(rank, State::Joining(Box::new(joining)));
        Ok(())
    }

    /// Handles a further connection of a link. An error is final.
    pub(super) fn accept_other(
        &mut self,
        peers: &Peers,
        mut stream: Stream,
        proven: &Proven,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        let (rank, Part { streams, index, first }) = (proven.rank as usize, proven.part);
        let index = usize::from(index);
        if rank < peers.size
            && let State::Joining(joining) = &mut self.entry(rank).state
            && !joining.ours
            && (joining.connection, joining.theirs, 1 + joining.others.len()) == (first, proven.from, streams.into())
            && matches!(joining.others[index - 1], Other::Missing)
        {
            if answers(&mut stream, Answer::Accepted)
                && let State::Joining(mut joining) = std::mem::replace(&mut self.entry(rank).state, State::Idle)
            {
                joining.others[index - 1] = Other::Joined(None, stream);
                return self.complete(peers, rank, joining, events);
            }
            return Ok(());
        }
        // The link of this connection has failed meanwhile. The peer learns that, and begins anew.
        answers(&mut stream, Answer::Refused(Reason::Closed));
        Ok(())
    }

    /// Goes on with the connection at `index` of a link. If one fails, all are given up, and the next attempt finds out
    /// why. An error is final.
    pub(super) fn join(
        &mut self,
        peers: &Peers,
        rank: Rank,
        index: usize,
        mut joining: Box<Joining>,
        now: Instant,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        let fails = |connector: &mut Self, joining: Box<Joining>, text: &str| {
            if joining.needed {
                let text = format!("{} {text}", connector.peer_name(peers, rank));
                return connector.retry_later(peers, rank, Error::new(ErrorKind::Io, text), now);
            }
            connector.set_state(rank, State::Idle);
            Ok(())
        };
        if index == 0 {
            if sys::has_ended(joining.first.1.raw()) {
                return fails(self, joining, "closed the connection before the link had all of its connections");
            }
            if !joining.ours {
                // A peer that waits for this rank's answers sends nothing but the notice that its context is closed.
                let (registration, stream) = joining.first;
                let first = vec![(Some(registration), stream)];
                return self.established(peers, rank, first, &joining.theirs, joining.connection, events);
            }
        }
        let part = Part { streams: 1 + joining.others.len() as u8, index: index as u8, first: joining.connection };
        let other = index.checked_sub(1).and_then(|at| joining.others.get_mut(at));
        match other.map(|other| (std::mem::replace(other, Other::Missing), other)) {
            Some((Other::Connecting(attempt), other)) => match self.shake_hands(peers, rank, attempt, part) {
                Ok(Step::Pending(attempt)) => *other = Other::Connecting(attempt),
                Ok(Step::Answered(Answer::Accepted, _, (registration, stream))) => {
                    *other = Other::Joined(Some(registration), stream);
                }
                Ok(Step::Answered(..)) => return fails(self, joining, "refused a further connection of the link"),
                Err(error) => return self.retry_later(peers, rank, error, now),
            },
            Some((Other::Joined(_, stream), _)) if sys::has_ended(stream.raw()) => {
                return fails(self, joining, "closed a connection before the link had all of them");
            }
            Some((before, other)) => *other = before,
            None => {}
        }
        self.complete(peers, rank, joining, events)
    }

    /// Creates the link if it has all of its connections. An error is final.
    fn complete(
        &mut self,
        peers: &Peers,
        rank: Rank,
        joining: Box<Joining>,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        if !joining.others.iter().all(|other| matches!(other, Other::Joined(..))) {
            self.set_state(rank, State::Joining(joining));
            return Ok(());
        }
        let Joining { theirs, connection, first: (registration, stream), others, .. } = *joining;
        let others = others.into_iter().filter_map(|other| match other {
            Other::Joined(registration, stream) => Some((registration, stream)),
            _ => None,
        });
        let all = std::iter::once((Some(registration), stream)).chain(others).collect();
        self.established(peers, rank, all, &theirs, connection, events)
    }

    /// How many connections a link to `rank` has.
    pub(super) fn streams_to(&self, peers: &Peers, rank: Rank) -> u8 {
        let wanted = |address: &Address| if address.streams == 0 { peers.streams } else { address.streams };
        let theirs = peers.get(rank).map_or(1, wanted);
        theirs.min(wanted(&peers.own)).clamp(1, MAX_STREAMS)
    }
}
