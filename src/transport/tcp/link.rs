//! TCP connections as a [`Link`].

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use super::buffered::{Buffered, BufferedLink, BufferedLinks};
use super::closing::ClosingLink;
use super::number;
use super::shared::Shared;
use super::streams::{Connection, Streams};
use crate::net::stream::Stream;
use crate::sys::poller::Watched;
use crate::sys::{self, Poller, Registration};
use crate::transport::{Interest, Link};
use crate::types::Rank;

/// A connection to one peer, or several. The connector's poller watches their sockets.
pub struct TcpLink {
    streams: Streams,
    /// One for each connection.
    watches: Box<[Watched]>,
    rank: Rank,
    poller: Poller,
    watched: Interest,
    shared: Arc<Shared>,
    buffered: BufferedLink,
    /// Why the poller does not watch for what is wanted.
    unwatched: Option<io::Error>,
}

impl TcpLink {
    /// A link over streams, whose sockets `poller` watches already, by their registrations, or starts to. If they
    /// encrypt, others than the first one go to threads of their own.
    pub(super) fn new(
        connections: Vec<(Option<Registration>, Stream)>,
        rank: Rank,
        poller: Poller,
        shared: Arc<Shared>,
        buffered_links: Option<Arc<BufferedLinks>>,
    ) -> io::Result<Self> {
        let mut watches = Vec::with_capacity(connections.len());
        let mut streams = Vec::with_capacity(connections.len());
        for (index, (registration, stream)) in connections.into_iter().enumerate() {
            #[cfg(feature = "tls")]
            let stream = match &buffered_links {
                Some(buffered_links) if index > 0 => match stream.into_session() {
                    Ok(session) => {
                        registration.into_iter().for_each(Registration::end);
                        let relayed = shared.relays.hand_over(index, session, rank, buffered_links.clone())?;
                        watches.push(Watched::default());
                        streams.push(Connection::Relayed(relayed));
                        continue;
                    }
                    Err(stream) => stream,
                },
                _ => stream,
            };
            let number = number(rank, index);
            let registration = match registration {
                Some(registration) => registration.set(sys::READ, number).map(|()| registration),
                None => poller.add(&stream, sys::READ, number),
            }?;
            watches.push(Watched::of(registration, sys::READ));
            streams.push(Connection::from(stream));
        }
        let watched = Interest { readable: true, writable: false };
        let buffered = BufferedLink::new(buffered_links, rank);
        let (streams, watches) = (Streams::new(streams.into()), watches.into());
        let mut link = Self { streams, watches, rank, poller, watched, shared, buffered, unwatched: None };
        link.note();
        link.arm()?;
        Ok(link)
    }

    /// Says what the link holds, if that has changed.
    #[inline]
    fn note(&mut self) {
        if self.buffered.may_buffer() {
            let received = self.watched.readable && self.streams.has_received();
            let unsent = (0..self.watches.len()).any(|index| self.streams.has_unsent(index));
            if self.buffered.set(Buffered { received, unsent }) {
                self.unwatched = self.arm().err();
            }
        }
    }

    /// With several connections: lets the poller watch the one whose turn it is. What has arrived on the others cannot
    /// be read yet.
    #[inline]
    fn follow(&mut self) {
        if self.watches.len() > 1 {
            self.unwatched = self.arm().err();
        }
    }

    /// What has come of sending or receiving. A link that is not watched for what is wanted fails: nobody would come
    /// back to it.
    #[inline]
    fn outcome(&mut self, moved: io::Result<usize>) -> io::Result<usize> {
        self.unwatched.take().map_or(moved, Err)
    }

    /// Lets the poller watch for what is wanted now.
    fn arm(&mut self) -> io::Result<()> {
        let bit = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        let (sends_by, receives_by) = (self.streams.sends_by(), self.streams.receives_by());
        for (index, watch) in self.watches.iter_mut().enumerate() {
            let readable = self.watched.readable && index == receives_by;
            let unsent = self.buffered.may_buffer() && self.streams.has_unsent(index);
            let writable = self.watched.writable && index == sends_by || unsent;
            let bits = bit(readable, sys::READ) | bit(writable, sys::WRITE);
            // A connection that another thread serves is not watched: that thread tells `BufferedLinks`.
            if let Some(stream) = self.streams.all()[index].own() {
                watch.set(&self.poller, stream, bits, number(self.rank, index))?;
            }
        }
        Ok(())
    }
}

impl Link for TcpLink {
    #[inline]
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let sent = self.streams.send(parts);
        self.note();
        self.follow();
        self.outcome(sent)
    }

    #[inline]
    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let received = self.streams.receive(parts);
        self.note();
        self.follow();
        self.outcome(received)
    }

    #[inline]
    fn receive_in_place(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> Option<io::Result<usize>> {
        let received = self.streams.receive_in_place(take)?;
        self.note();
        Some(self.outcome(received))
    }

    fn flush(&mut self) {
        // An error is found again by what is sent or received next, and so is one of watching.
        let _ = self.streams.flush();
        self.note();
    }

    fn watch(&mut self, interest: Interest) -> io::Result<()> {
        self.watched = interest;
        self.note();
        self.arm()
    }

    fn end(self: Box<Self>, mut rest: Vec<u8>, close_notice: Vec<u8>) {
        let Self { watches, streams, shared, .. } = *self;
        watches.into_iter().for_each(Watched::end);
        rest.extend(close_notice);
        shared.linger(ClosingLink::new(streams, rest));
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::super::closing::CLOSING_READS;
    use super::*;
    use crate::sys::AsRaw;
    use crate::transport::DrainingLink;

    fn pair() -> [Socket; 2] {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        [one, other].map(|socket| {
            socket.set_nonblocking(true).unwrap();
            socket
        })
    }

    /// The second connection cannot be watched once it is its turn.
    #[test]
    fn a_link_that_cannot_be_watched_fails() {
        let device = super::super::Device::create(&Default::default()).unwrap();
        let poller = Poller::new(sys::PollerKind::Epoll).unwrap();
        let (ours, theirs): (Vec<_>, Vec<_>) =
            [pair(), pair()].into_iter().map(|[ours, theirs]| (ours, theirs)).unzip();
        let second = ours[1].raw();
        let connections = ours.into_iter().map(|socket| (None, Stream::from(sys::OwnedSocket::from(socket)))).collect();
        let mut link = TcpLink::new(connections, 0, poller, device.shared.clone(), None).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the number stays that of an open descriptor, which its owner closes.
        assert_eq!(unsafe { libc::dup2(file.raw(), second) }, second);
        let mut stripe = [0; super::super::STRIPE_BYTES];
        let (mut sent, mut received) = (0, 0);
        let error = loop {
            sent += sys::send(theirs[0].raw(), &[IoSlice::new(&stripe[sent..])]).unwrap_or(0);
            match link.receive(&mut [IoSliceMut::new(&mut stripe[received..])]) {
                Ok(bytes) => received += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => break error,
            }
            assert!(received < stripe.len(), "the link goes on, and nobody watches it");
        };
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
    }

    #[test]
    fn a_peer_that_sends_on_does_not_keep_the_thread_from_its_other_work() {
        let [ours, theirs] = pair();
        theirs.set_send_buffer_size(4 << 20).unwrap();
        let (mut sent, mut left) = (0, 0);
        while let Ok(bytes) = sys::send(theirs.raw(), &[IoSlice::new(&[1; 4096])]) {
            sent += bytes;
        }
        let raw = ours.raw();
        let stream = Stream::from(sys::OwnedSocket::from(ours));
        let mut closing = ClosingLink::new(Streams::new([stream.into()].into()), Vec::new());
        closing.linger();
        while let Ok(bytes) = sys::receive(raw, &mut [IoSliceMut::new(&mut [0; 4096])]) {
            left += bytes;
        }
        assert!(left > 0 && left + CLOSING_READS * 4096 >= sent, "{left} of {sent} bytes are left");
    }
}
