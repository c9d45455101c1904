//! The handshake of connections to and from the peers of one context.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};

use super::{State, TcpConnector};
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::net::handshake::{
    self, ANSWER_BYTES, Answer, CHALLENGE_BYTES, Connecting, Hello, Identity, NO_PROOF, Proven, Reason,
};
use crate::sys;
use crate::transport::tcp::link::Parting;
use crate::transport::{Connector, ConnectorEvent};
use crate::types::Rank;

impl TcpConnector {
    /// Goes on with the handshake to `rank`, whose context is `to`: the answer and the connection's number, once it is over.
    pub(super) fn greet(&mut self, rank: Rank, to: &Identity) -> Result<Option<(Answer, u32)>> {
        let name = self.peer_name(rank);
        let failed = |e: &io::Error| Error::io(format_args!("cannot connect to {name}"), e);
        if matches!(self.way(rank).state, State::Connecting(_)) && !self.say_hello(rank, to).map_err(|e| failed(&e))? {
            return Ok(None);
        }
        let State::Greeting(socket, connector) = &mut self.way(rank).state else { return Ok(None) };
        let fd = socket.as_raw_fd();
        loop {
            let mut bytes = [0; CHALLENGE_BYTES];
            let wanted = connector.wanted();
            let n = match sys::receive(fd, &mut [IoSliceMut::new(&mut bytes[..wanted])]) {
                // Not a refusal: whoever is short of descriptors, or ends, does the same.
                Ok(0) => return Err(Error::new(ErrorKind::Io, format!("{name} closed the connection unanswered"))),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(failed(&e)),
            };
            match connector.take(&bytes[..n]) {
                Ok(Connecting::Waiting) => {}
                Ok(Connecting::Send(proof)) => {
                    sys::send(fd, &[IoSlice::new(&proof)]).map_err(|e| failed(&e))?;
                }
                Ok(Connecting::Done(answer, connection)) => return Ok(Some((answer, connection))),
                Err(fault) => {
                    let _ = sys::send(fd, &[IoSlice::new(&NO_PROOF)]);
                    return Err(Error::new(ErrorKind::Mismatch, format!("cannot connect to {name}: {fault}")));
                }
            }
        }
    }

    /// Sends the hello once the system has connected. Whether it is out.
    fn say_hello(&mut self, rank: Rank, to: &Identity) -> io::Result<bool> {
        let (own, own_rank, key) = (self.handle(), self.rank as u32, handshake::key(&self.token, to));
        let State::Connecting(socket) = &self.way(rank).state else { return Ok(false) };
        let fd = socket.as_raw_fd();
        if let Some(e) = socket2::SockRef::from(socket).take_error()? {
            return Err(e);
        }
        let nonce = sys::random()?;
        let hello = Hello { has_token: key.has_token(), rank: own_rank, to: handshake::handle(to), from: own, nonce };
        let connector = handshake::Connector::new(key, &hello);
        match sys::send(fd, &[IoSlice::new(connector.hello())]) {
            Ok(n) if n == connector.hello().len() => {}
            Ok(_) => return Err(io::Error::other("the system did not take the hello")),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOTCONN)) => return Ok(false),
            Err(e) => return Err(e),
        }
        let _ = self.epoll.modify(fd, sys::READ, rank as u64);
        let way = self.way(rank);
        if let State::Connecting(socket) = std::mem::replace(&mut way.state, State::Idle) {
            way.state = State::Greeting(socket, Box::new(connector));
        }
        Ok(true)
    }

    /// A peer has connected to the device, asked for this context, and proven that it belongs to it. An error is final.
    pub(super) fn accept(&mut self, socket: OwnedFd, proven: &Proven, events: &mut Vec<ConnectorEvent>) -> Result<()> {
        if sys::has_ended(socket.as_raw_fd()) {
            // It waited in the system's queue until the peer gave it up: not the end of a connection.
            return Ok(());
        }
        let rank = proven.rank as usize;
        let stranger = |a: &Address| handshake::handle(&a.identity) != proven.from;
        if rank < self.size
            && let Some(Some(words)) = &self.closed
        {
            let words = [&Answer::Accepted.encode()[..], &words(proven.frames)].concat();
            self.shared.linger(Parting { socket, words });
            return Ok(());
        }
        let answer = if rank >= self.size || rank == self.rank {
            Answer::Refused(Reason::Stranger)
        } else if self.closed.is_some() {
            Answer::Refused(Reason::Over)
        } else if self.peer(rank).is_some_and(stranger) {
            self.log(1, &format!("rank {}: refused a stranger that says it is rank {rank}", self.rank));
            Answer::Refused(Reason::Stranger)
        } else {
            let ours_is_kept = self.rank < rank;
            match self.way(rank).state {
                State::Connecting(_) | State::Greeting(..) if ours_is_kept => Answer::Yield,
                State::Established => Answer::Refused(Reason::Connected),
                State::Over => Answer::Refused(Reason::Over),
                _ => Answer::Accepted,
            }
        };
        // It fits into the buffer of a socket whose peer has just read all that was sent.
        let sent = sys::send(socket.as_raw_fd(), &[IoSlice::new(&answer.encode())]);
        if answer == Answer::Accepted && matches!(sent, Ok(ANSWER_BYTES)) {
            return self.established(rank, socket, &proven.from, proven.frames, events);
        }
        Ok(())
    }
}
