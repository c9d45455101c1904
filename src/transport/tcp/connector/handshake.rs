//! The connection handshake, for both roles.

use std::io::{self, IoSlice, IoSliceMut};

use super::{State, TcpConnector};
use crate::error::{Error, ErrorKind, Result};
use crate::log::Level;
use crate::net::address::Address;
use crate::net::handshake::{
    self, ANSWER_BYTES, Answer, CHALLENGE_BYTES, Connecting, Fault, Hello, Identity, NO_PROOF, Proven, Reason,
};
use crate::net::stream::{self, Stream};
use crate::sys::{self, AsRaw};
use crate::transport::{Connector, ConnectorEvent};
use crate::types::Rank;

impl TcpConnector {
    /// Continues the handshake with `rank`, whose context has identity `to`. When it is complete, returns the answer
    /// and the number of the connection.
    pub(super) fn continue_handshake(&mut self, rank: Rank, to: &Identity) -> Result<Option<(Answer, u32)>> {
        let name = self.peer_name(rank);
        let failed = |e: &io::Error| Error::io(format_args!("cannot connect to {name}"), e);
        let refused = |fault: Fault| Error::new(ErrorKind::Mismatch, format!("cannot connect to {name}: {fault}"));
        if matches!(self.entry(rank).state, State::Connecting(..))
            && !self.send_hello(rank, to).map_err(|e| failed(&e))?
        {
            return Ok(None);
        }
        let State::Handshaking(registration, stream, connector) = &mut self.entry(rank).state else { return Ok(None) };
        if stream.has_unsent() && stream.flush().map_err(|e| failed(&e))? {
            let _ = registration.set(sys::READ, rank as u64);
        }
        loop {
            let mut bytes = [0; CHALLENGE_BYTES];
            let wanted = connector.wanted();
            let received = stream.receive(&mut [IoSliceMut::new(&mut bytes[..wanted])]);
            let n = match received {
                // Not a refusal: a peer that lacks descriptors, or ends, does the same.
                Ok(0) => {
                    return Err(Error::new(ErrorKind::Io, format!("{name} closed the connection without an answer")));
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
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
                Ok(Connecting::Done(answer, connection)) => return Ok(Some((answer, connection))),
                Err(fault) => {
                    let _ = stream.send(&[IoSlice::new(&NO_PROOF)]);
                    return Err(refused(fault));
                }
            }
        }
    }

    /// Sends the hello once the TCP connection is established. Returns whether it has been sent.
    fn send_hello(&mut self, rank: Rank, to: &Identity) -> io::Result<bool> {
        let (own, own_rank, key) = (self.handle(), self.rank as u32, handshake::key(&self.token, to));
        let State::Connecting(_, socket) = &self.entry(rank).state else { return Ok(false) };
        if let Some(e) = socket2::SockRef::from(socket).take_error()? {
            return Err(e);
        }
        if sys::is_connected_to_itself(socket) {
            return Err(sys::socket::refused());
        }
        let nonce = sys::random()?;
        let hello = Hello { has_token: key.has_token(), rank: own_rank, to: handshake::handle(to), from: own, nonce };
        let connector = handshake::Connector::new(key, &hello);
        if socket2::SockRef::from(socket).peer_addr().is_err() {
            // Not connected yet.
            return Ok(false);
        }
        let security = self.shared.security.clone();
        let State::Connecting(registration, socket) = std::mem::replace(&mut self.entry(rank).state, State::Idle)
        else {
            return Ok(false);
        };
        let mut stream = security.connect(socket)?;
        if stream.send(&[IoSlice::new(connector.hello())])? < connector.hello().len() {
            return Err(io::Error::other("the kernel did not accept the whole hello"));
        }
        let room = if stream.has_unsent() { sys::WRITE } else { 0 };
        let _ = registration.set(sys::READ | room, rank as u64);
        self.entry(rank).state = State::Handshaking(registration, stream, Box::new(connector));
        Ok(true)
    }

    /// Handles an incoming connection that is authenticated for this context. An error is final.
    pub(super) fn accept(
        &mut self,
        mut stream: Stream,
        proven: &Proven,
        events: &mut Vec<ConnectorEvent>,
    ) -> Result<()> {
        if sys::has_ended(stream.raw()) {
            // The connection waited in the accept queue until the peer abandoned it: this is not the end of an
            // established connection.
            return Ok(());
        }
        let rank = proven.rank as usize;
        let impostor = |a: &Address| handshake::handle(&a.identity) != proven.from;
        if rank < self.size
            && let Some(Some(notice)) = &self.closed
        {
            self.shared.notify(stream, proven.frames, notice);
            return Ok(());
        }
        let answer = if rank >= self.size || rank == self.rank {
            Answer::Refused(Reason::Stranger)
        } else if self.closed.is_some() {
            Answer::Refused(Reason::Closed)
        } else if self.peer(rank).is_some_and(impostor) {
            self.log(
                Level::Warning,
                &format!("rank {}: refused a connection that falsely claims to be rank {rank}", self.rank),
            );
            Answer::Refused(Reason::Stranger)
        } else {
            let ours_is_kept = self.rank < rank;
            match self.entry(rank).state {
                State::Connecting(..) | State::Handshaking(..) if ours_is_kept => Answer::Yield,
                State::Established => Answer::Refused(Reason::Connected),
                State::Closed => Answer::Refused(Reason::Closed),
                _ => Answer::Accepted,
            }
        };
        // The peer has read everything sent so far, so the socket's send buffer has room for the answer.
        let sent = stream.send(&[IoSlice::new(&answer.encode())]);
        if answer == Answer::Accepted && matches!(sent, Ok(ANSWER_BYTES)) {
            return self.established(rank, (None, stream), &proven.from, proven.frames, events);
        }
        Ok(())
    }
}
