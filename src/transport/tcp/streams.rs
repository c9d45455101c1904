//! The connections of a link. With several, the link's bytes go over them in turn, [`STRIPE_BYTES`] at a time, so both
//! sides know where each byte is, and the connections carry nothing else.

#[cfg(all(test, unix))]
mod tests;

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use super::STRIPE_BYTES;
#[cfg(feature = "tls")]
use super::relay::Relayed;
use crate::net::stream::Stream;

/// The maximum number of parts that one call of the system gets of those that a call here is given.
const MAX_PARTS: usize = 16;

/// Where one direction is.
#[derive(Clone, Copy)]
struct Turn {
    /// The connection whose turn it is.
    index: usize,
    /// Bytes until it is the next one's.
    left: usize,
}

impl Turn {
    const FIRST: Self = Self { index: 0, left: STRIPE_BYTES };

    /// Moves bytes until a connection moves fewer than it is asked for. `step` is called with the connection whose turn
    /// it is, of so many, and the cut that leaves what is its to move; it returns how many bytes these are, and how
    /// many it has moved.
    fn moves(
        &mut self,
        connections: usize,
        mut step: impl FnMut(usize, Cut) -> (usize, io::Result<usize>),
    ) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let (wanted, moved) = step(self.index, Cut { skip: done, room: self.left });
            match moved {
                Ok(moved) => {
                    done += moved;
                    self.pass(moved, connections);
                    if moved < wanted || wanted == 0 {
                        return Ok(done);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
        }
    }

    /// Records that `bytes` bytes have passed, and turns to the next of `connections` connections if they end a stripe.
    fn pass(&mut self, bytes: usize, connections: usize) {
        self.left -= bytes;
        if self.left == 0 {
            *self = Self { index: (self.index + 1) % connections, left: STRIPE_BYTES };
        }
    }
}

/// Cuts a list of parts: what is beyond its first bytes, as far as there is room.
struct Cut {
    skip: usize,
    room: usize,
}

impl Cut {
    /// The range of the next part, which has this length.
    fn range(&mut self, length: usize) -> Range<usize> {
        let from = self.skip.min(length);
        let to = from + self.room.min(length - from);
        (self.skip, self.room) = (self.skip - from, self.room - (to - from));
        from..to
    }
}

/// A connection of a link. Its methods are those of [`Stream`].
pub enum Connection {
    /// The thread that makes progress moves its bytes.
    Own(Stream),
    /// Another thread encrypts and decrypts them.
    #[cfg(feature = "tls")]
    Relayed(Relayed),
}

impl From<Stream> for Connection {
    fn from(stream: Stream) -> Self {
        Self::Own(stream)
    }
}

impl Connection {
    /// The socket's stream, unless another thread has it.
    pub fn own(&self) -> Option<&Stream> {
        match self {
            Self::Own(stream) => Some(stream),
            #[cfg(feature = "tls")]
            Self::Relayed(_) => None,
        }
    }

    #[inline]
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Own(stream) => stream.send(parts),
            #[cfg(feature = "tls")]
            Self::Relayed(relayed) => relayed.send(parts),
        }
    }

    #[inline]
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Own(stream) => stream.receive(parts),
            #[cfg(feature = "tls")]
            Self::Relayed(relayed) => relayed.receive(parts),
        }
    }

    /// Whether nothing comes from the peer later but what its socket has now, if that has failed.
    fn is_settled(&self) -> bool {
        match self {
            Self::Own(_) => true,
            #[cfg(feature = "tls")]
            Self::Relayed(relayed) => relayed.is_settled(),
        }
    }

    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Own(stream) => Ok(!stream.has_unsent() || stream.flush()?),
            #[cfg(feature = "tls")]
            Self::Relayed(_) => Ok(true),
        }
    }

    pub fn close(&mut self) {
        match self {
            Self::Own(stream) => stream.close(),
            #[cfg(feature = "tls")]
            Self::Relayed(relayed) => relayed.close(),
        }
    }

    #[inline]
    pub fn has_received(&mut self) -> bool {
        match self {
            Self::Own(stream) => stream.has_received(),
            #[cfg(feature = "tls")]
            Self::Relayed(relayed) => relayed.has_received(),
        }
    }

    pub fn has_unsent(&mut self) -> bool {
        match self {
            Self::Own(stream) => stream.has_unsent(),
            #[cfg(feature = "tls")]
            Self::Relayed(_) => false,
        }
    }
}

/// The connections of a link, at least one.
pub struct Streams {
    all: Box<[Connection]>,
    sending: Turn,
    receiving: Turn,
}

impl Streams {
    /// In the order that both sides know.
    pub fn new(all: Box<[Connection]>) -> Self {
        assert!(!all.is_empty(), "a link without connection");
        Self { all, sending: Turn::FIRST, receiving: Turn::FIRST }
    }

    /// The connections in their order.
    pub fn all(&self) -> &[Connection] {
        &self.all
    }

    /// The position of the connection that the next bytes are sent by.
    pub fn sends_by(&self) -> usize {
        self.sending.index
    }

    /// The position of the connection by which the next bytes come.
    pub fn receives_by(&self) -> usize {
        self.receiving.index
    }

    /// Sends like [`Stream::send`].
    #[inline]
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut *self.all {
            [only] => only.send(parts),
            _ => self.send_in_turn(parts),
        }
    }

    /// Receives like [`Stream::receive`].
    #[inline]
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &mut *self.all {
            [only] => only.receive(parts),
            _ => self.receive_in_turn(parts),
        }
    }

    /// Receives like [`Stream::receive_in_place`]; `None` with several connections, too.
    #[inline]
    pub fn receive_in_place(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> Option<io::Result<usize>> {
        match &mut *self.all {
            [Connection::Own(only)] => only.receive_in_place(take),
            _ => None,
        }
    }

    fn send_in_turn(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let all = &mut self.all;
        let sent = self.sending.moves(all.len(), |index, mut cut| {
            let mut now = [IoSlice::new(&[]); MAX_PARTS];
            let ranges = parts.iter().map(|part| &part[cut.range(part.len())]).filter(|range| !range.is_empty());
            let wanted = now.iter_mut().zip(ranges).fold(0, |wanted, (slot, range)| {
                *slot = IoSlice::new(range);
                wanted + range.len()
            });
            (wanted, if wanted > 0 { all[index].send(&now) } else { Ok(0) })
        });
        // Who gets an error receives what the peer has sent before, which may say why, and nothing later.
        match sent {
            Err(_) if !self.all.iter().all(Connection::is_settled) => Err(io::ErrorKind::WouldBlock.into()),
            sent => sent,
        }
    }

    fn receive_in_turn(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let all = &mut self.all;
        self.receiving.moves(all.len(), |index, mut cut| {
            let mut now: [IoSliceMut<'_>; MAX_PARTS] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let ranges = parts.iter_mut().map(|part| {
                let range = cut.range(part.len());
                &mut part[range]
            });
            let wanted =
                now.iter_mut().zip(ranges.filter(|range| !range.is_empty())).fold(0, |wanted, (slot, range)| {
                    let wanted = wanted + range.len();
                    *slot = IoSliceMut::new(range);
                    wanted
                });
            (wanted, if wanted > 0 { all[index].receive(&mut now) } else { Ok(0) })
        })
    }

    /// Sends what was taken and is not in the sockets. Returns whether nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        let mut all = true;
        for connection in &mut self.all {
            all &= connection.flush()?;
        }
        Ok(all)
    }

    /// No more is sent: the peer will find the ends of all streams once all is flushed.
    pub fn close(&mut self) {
        self.all.iter_mut().for_each(Connection::close);
    }

    /// Whether [`Streams::receive`] may return bytes although nothing arrives at the socket.
    #[inline]
    pub fn has_received(&mut self) -> bool {
        self.all[self.receiving.index].has_received()
    }

    /// Whether the connection at this position has taken bytes that are not in its socket.
    pub fn has_unsent(&mut self, index: usize) -> bool {
        self.all[index].has_unsent()
    }
}
