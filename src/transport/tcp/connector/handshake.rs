//! The connection handshake, for both roles.

use std::io::{self, IoSlice, IoSliceMut};

use super::{Attempt, State, TcpConnector, number};
use crate::error::{Error, ErrorKind, Result};
use crate::log::Level;
use crate::net::address::Address;
use crate::net::handshake::{
    self, ANSWER_BYTES, Answer, CHALLENGE_BYTES, Connecting, Fault, Hello, NO_PROOF, Part, Proven, Reason,
};
use crate::net::stream::{self, Stream};
use crate::sys::{self, AsRaw, OwnedSocket, Registration};
use crate::transport::{ConnectorEvent, Peers};
use crate::types::Rank;

/// What has become of an attempt.
pub(super) enum Step {
    /// The handshake goes on.
    Pending(Attempt),
    /// The peer has answered.
    Answered(Answer, Agreed, (Registration, Stream)),
}

/// What both sides know after a handshake.
pub(super) struct Agreed {
    /// The number of the connection.
    pub connection: u32,
    /// How many connections the link has.
    pub streams: u8,
}

impl TcpConnector {
    /// Goes on with a connection to `rank`, whose address is known.
    pub(super) fn shake_hands(&self, peers: &Peers, rank: Rank, attempt: Attempt, part: Part) -> Result<Step> {
        let name = self.peer_name(peers, rank);
        let failed = |e: &io::Error| self.cannot_connect(peers, rank, e);
        let refused = |fault: Fault| Error::new(ErrorKind::Mismatch, format!("cannot connect to {name}: {fault}"));
        let attempt = match attempt {
            Attempt::Opening(registration, socket) => {
                self.send_hello(peers, rank, (registration, socket), part).map_err(|e| failed(&e))?
            }
            handshaking => handshaking,
        };
        let Attempt::Handshaking(registration, mut stream, mut connector) = attempt else {
            return Ok(Step::Pending(attempt));
        };
        if stream.has_unsent() && stream.flush().map_err(|e| failed(&e))? {
            let _ = registration.set(sys::READ, number(rank, usize::from(part.index)));
        }
        loop {
            let mut bytes = [0; CHALLENGE_BYTES];
            let wanted = connector.wanted();
            let received = stream.receive(&mut [IoSliceMut::new(&mut bytes[..wanted])]);
            let n = match received {
                // This is not a refusal: a peer that lacks descriptors, or ends, closes the connection too.
                Ok(0) => {
                    return Err(Error::new(ErrorKind::Io, format!("{name} closed the connection without an answer")));
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Step::Pending(Attempt::Handshaking(registration, stream, connector)));
                }
                Err(e) => {
                    return Err(stream::fault(&e).map_or_else(|| failed(&e), refused));
                }
            };
            connector.bind(|| stream.binding());
            match connector.take(&bytes[..n]) {
                Ok(Connecting::Waiting) => {}
                Ok(Connecting::Send(proof)) => {
                    stream.send(&[IoSlice::new(&proof)]).map_err(|e| failed(&e))?;
                }
                Ok(Connecting::Done(answer, connection)) => {
                    let agreed = Agreed { connection, streams: connector.streams() };
                    return Ok(Step::Answered(answer, agreed, (registration, stream)));
                }
                Err(fault) => {
                    let _ = stream.send(&[IoSlice::new(&NO_PROOF)]);
                    return Err(refused(fault));
                }
            }
        }
    }

    /// Sends the hello once the TCP connection is established.
    fn send_hello(
        &self,
        peers: &Peers,
        rank: Rank,
        (registration, socket): (Registration, OwnedSocket),
        part: Part,
    ) -> io::Result<Attempt> {
        if let Some(e) = socket2::SockRef::from(&socket).take_error()? {
            return Err(e);
        }
        sys::connect::refuse_self_connection(&socket)?;
        if socket2::SockRef::from(&socket).peer_addr().is_err() {
            // The socket is not connected yet.
            return Ok(Attempt::Opening(registration, socket));
        }
        let to = peers.get(rank).map(|address| address.identity).unwrap_or_default();
        let (own_rank, key, nonce) = (peers.rank as u32, handshake::key(&self.token, &to), sys::random()?);
        let (to, from) = (handshake::handle(&to), self.handle());
        let hello = Hello { has_token: key.has_token(), rank: own_rank, to, from, nonce, part };
        let connector = handshake::Connector::new(key, &hello);
        let mut stream = self.shared.security.connect(socket)?;
        if stream.send(&[IoSlice::new(connector.hello())])? < connector.hello().len() {
            return Err(io::Error::other("the kernel did not accept the whole hello"));
        }
        let room = if stream.has_unsent() { sys::WRITE } else { 0 };
        let _ = registration.set(sys::READ | room, number(rank, usize::from(part.index)));
        Ok(Attempt::Handshaking(registration, stream, Box::new(connector)))
    }

    /// Handles an incoming connection that is authenticated for this context. An error is final.
    pub(super) fn accept(
        &mut self,
        peers: &Peers,
        mut stream: Stream,
        proven: &Proven,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        if sys::has_ended(stream.raw()) {
            // The connection waited in the accept queue until the peer abandoned it, alone or with the others of its
            // link: this is not the end of an established connection.
            return Ok(());
        }
        let rank = proven.rank as usize;
        let impostor = |a: &Address| handshake::handle(&a.identity) != proven.from;
        if rank < peers.size
            && let Some(Some(notice)) = &self.closed
        {
            // The peer reads it from the first connection of the link, once it has all of them.
            self.shared.notify(stream, proven.frames, notice);
            return Ok(());
        }
        if proven.part.index > 0 {
            return self.accept_other(peers, stream, proven, events);
        }
        let answer = if rank >= peers.size || rank == peers.rank {
            Answer::Refused(Reason::Stranger)
        } else if self.closed.is_some() {
            Answer::Refused(Reason::Closed)
        } else if peers.get(rank).is_some_and(impostor) {
            self.log(
                Level::Warning,
                &format!("rank {}: refused a connection that falsely claims to be rank {rank}", peers.rank),
            );
            Answer::Refused(Reason::Stranger)
        } else {
            let ours_is_kept = peers.rank < rank;
            match &self.entry(rank).state {
                // The peer has this rank's hello, and may have accepted it. In earlier states it has not, and its own
                // connection is accepted: a firewall may let connections pass in the peer's direction only.
                State::Connecting(Attempt::Handshaking(..)) if ours_is_kept => Answer::Yield,
                // The peer has accepted the first connection of this link, and may not have seen its end.
                State::Joining(joining) if joining.ours => Answer::Yield,
                State::Established => Answer::Refused(Reason::Connected),
                State::Closed => Answer::Refused(Reason::Closed),
                // A link of which connections were missing is replaced, too: the peer has begun anew.
                _ => Answer::Accepted,
            }
        };
        if !answers(&mut stream, answer) {
            return Ok(());
        }
        let Part { streams, .. } = proven.part;
        if streams == 1 {
            return self.established(peers, rank, vec![(None, stream)], &proven.from, proven.frames, events);
        }
        self.await_others(rank, stream, proven)
    }
}

/// Sends the last message of the handshake. Returns whether the peer gets it, unless the connection breaks.
pub(super) fn answers(stream: &mut Stream, answer: Answer) -> bool {
    // The peer has read everything sent so far, so the socket's send buffer has room for the answer.
    matches!(stream.send(&[IoSlice::new(&answer.encode())]), Ok(ANSWER_BYTES)) && answer == Answer::Accepted
}
