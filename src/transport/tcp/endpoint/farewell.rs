//! The last words on a connection, and questions to a peer that keeps us waiting.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use super::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::sys;
use crate::transport::frame::{Header, Kind, MAX_TEXT_BYTES};
use crate::transport::tcp::connection::{Parting, Peer};
use crate::transport::tcp::handshake::{Answer, Proven};
use crate::transport::{Call, Told};
use crate::types::Rank;

/// Peers that are asked at once.
const ASKED: usize = 3;

/// The longest beginning of `text` that a frame may carry.
fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// The frame that ends a connection: that we give up, with a `notice`, or else that we are done.
fn last_words(notice: Option<&Error>, identity: u32) -> Vec<u8> {
    let (kind, text) = notice.map_or((Kind::Goodbye, &[][..]), |e| (Kind::Abort, clip(e.reason())));
    let disagree = notice.is_some_and(|e| e.kind() == ErrorKind::Mismatch);
    let header = Header { check: u64::from(disagree), ..Header::new(kind, 0, text.len() as u64) };
    [&header.encode(identity), text].concat()
}

impl Endpoint {
    /// Tells a peer that this is the end: that we give up, with a `notice`, or else that we are done. What its socket does
    /// not take without waiting is left to the device.
    pub(super) fn say_goodbye(&mut self, rank: Rank, notice: Option<&Error>) {
        self.flush_to(rank);
        let (epoll, identity) = (self.epoll.clone(), self.peer(rank).identity);
        let Some(peer) = self.peers.get_mut(rank).filter(|p| p.is_established()) else { return };
        // A message that is half out is finished first, or the peer could not read what follows.
        let mut words = peer.rest_of_begun();
        if let Some(words) = &mut words {
            words.extend_from_slice(&last_words(notice, identity));
        }
        let Some(socket) = peer.socket.take() else { return };
        let _ = epoll.remove(socket.as_raw_fd());
        let mut parting = Parting { socket, words: words.unwrap_or_default() };
        parting.speak();
        self.retired.push(parting);
    }

    /// Ends a connection that failed with `error`. A peer that did what no peer may do hears what it was: `lose` alone would
    /// look to it as if this process had ended. Its socket is kept, unread, until the context has a device to leave it to.
    pub(super) fn cut_off(&mut self, rank: Rank, error: Error) {
        if error.kind() == ErrorKind::Mismatch && !error.is_told() {
            self.say_goodbye(rank, Some(&error));
        }
        self.lose(rank, error);
    }

    /// A peer wants to connect to what has given up: it hears why.
    pub(super) fn tell_latecomer(&mut self, socket: OwnedFd, peer: &Proven, notice: &Error) {
        let mut words = Answer::Accepted.encode().to_vec();
        words.extend_from_slice(&last_words(Some(notice), peer.frames));
        let mut parting = Parting { socket, words };
        parting.speak();
        self.retired.push(parting);
    }

    /// Connections that were ended in good order: for [`crate::transport::tcp::device::Device::linger`].
    pub fn take_retired(&mut self) -> Vec<Parting> {
        std::mem::take(&mut self.retired)
    }

    /// See [`crate::transport::Transport::ask`].
    pub(super) fn ask_awaited(&mut self, owner: u32, call: Call) -> bool {
        let mut ranks: Vec<Rank> = self.waits(owner).into_keys().map(|(_, rank)| rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.retain(|rank| self.peers.get(*rank).is_some_and(Peer::is_established));
        ranks.truncate(ASKED);
        let header = Header { check: call.check, ..Header::new(Kind::Ask, u64::from(call.tag), 0) };
        for rank in &ranks {
            let peer = self.peer(*rank);
            peer.asked = Some(Instant::now());
            peer.told = None;
            peer.push_control(&header);
            self.mark_dirty(*rank);
        }
        self.asked = ranks;
        !self.asked.is_empty()
    }

    /// See [`crate::transport::Transport::told`].
    pub(super) fn what_was_told(&self) -> Told {
        let asked = self.asked.iter().filter_map(|rank| self.peers.get(*rank).filter(|p| p.is_established()));
        let (mut same, mut other) = (false, false);
        for peer in asked {
            match peer.told {
                // It may be the one that hangs, however late others are.
                None => return Told::Missing,
                Some((_, true)) => same = true,
                Some((_, false)) => other = true,
            }
        }
        if same && !other { Told::SameCall } else { Told::Cause }
    }

    /// See [`crate::transport::Transport::tell`].
    pub(super) fn tell_peer(&mut self, rank: Rank, text: &str, same: bool) {
        let owned = clip(text).to_vec();
        let header = Header { offset: u64::from(same), ..Header::new(Kind::Tell, 0, owned.len() as u64) };
        let Some(peer) = self.peers.get_mut(rank).filter(|p| p.is_established()) else { return };
        self.outgoing += 1;
        peer.push_owned(&header, owned);
        self.mark_dirty(rank);
    }
}

impl Parting {
    /// Says what the socket takes without waiting; then that nothing follows. Whether all is said.
    pub fn speak(&mut self) -> bool {
        while !self.words.is_empty() {
            match sys::send(self.socket.as_raw_fd(), &[IoSlice::new(&self.words)]) {
                Ok(n) => drop(self.words.drain(..n)),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
                Err(_) => self.words.clear(),
            }
        }
        let _ = socket2::SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write);
        true
    }
}
