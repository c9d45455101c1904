//! TLS over one non-blocking socket, by rustls' unbuffered connections: records are decrypted where they were read, and
//! encrypted into the buffer that is sent.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, Error as TlsError, ServerConfig};

use super::buffer::Buffer;
use super::connection::{Connection, Order, RECORD_BYTES, Step};
use super::exporter::{Binding, Exporter};
use super::sink::{InPlace, Parts, Sink};
use crate::sys::{self, RawSocket};

/// Bytes that are read from the socket at once: the more, the fewer system calls, and the fewer records that end in
/// another read. Only pages that were written take memory.
const READ_BYTES: usize = 128 << 10;
/// The buffer has at least this much room when the socket is read.
const MIN_ROOM_BYTES: usize = 32 << 10;
/// The maximum number of plain bytes that are encrypted before they are sent: with a message's header and what each
/// record adds, one segment of loopback, 65483 bytes. A few bytes more make a second segment, which takes 6 us or more
/// on Zen 3.
const WRITE_BYTES: usize = 63 << 10;
/// What is not longer, as a message of 64 KiB with its header, is encrypted and sent by halves: a peer decrypts the
/// first half while the second one is encrypted.
const SHORT_BYTES: usize = (64 << 10) + 256;
const HALF_BYTES: usize = 32 << 10;
/// The maximum number of bytes that are taken before the handshake is over.
const EARLY_BYTES: usize = RECORD_BYTES;

const CUT: &str =
    "the connection has ended, and the TLS session has not: the peer's process has ended, or the connection was cut";

/// One side of a session. The socket is passed to each call.
pub struct Session {
    tls: Connection,
    exporter: Arc<Exporter>,
    /// What was read from the socket; `begin..end` of it has not been decrypted.
    incoming: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Whether `incoming` has no whole record, except those of a message of the session that has not come as a whole.
    starved: bool,
    /// Whether `incoming` has records of such a message.
    joins: bool,
    /// Whether the last read of this call has taken all that the socket had.
    drained: bool,
    /// Decrypted bytes that were not received.
    plain: Buffer,
    /// Encrypted bytes that the socket has not taken.
    outgoing: Buffer,
    /// What was taken before the handshake was over.
    early: Vec<u8>,
    /// Room for parts that are encrypted as one record.
    gathered: Vec<u8>,
    /// The peer has ended the session.
    ended: bool,
    /// Nothing can be decrypted any more.
    failed: Option<TlsError>,
    /// Nothing can be sent any more. What the peer has sent before can still be received.
    cut: Option<ErrorKind>,
}

impl Session {
    pub(super) fn client(config: &ClientConfig) -> io::Result<Self> {
        // Certificates are verified without a name, and none is sent.
        let name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let exporter = Arc::new(Exporter::default());
        let mut config = config.clone();
        config.key_log = exporter.clone();
        let tls = UnbufferedClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let mut session = Self::new(Connection::Client(tls), exporter);
        session.encode();
        Ok(session)
    }

    pub(super) fn server(config: &ServerConfig) -> io::Result<Self> {
        let exporter = Arc::new(Exporter::default());
        let mut config = config.clone();
        config.key_log = exporter.clone();
        let tls = UnbufferedServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
        Ok(Self::new(Connection::Server(tls), exporter))
    }

    fn new(tls: Connection, exporter: Arc<Exporter>) -> Self {
        Self {
            tls,
            exporter,
            incoming: vec![0; READ_BYTES].into(),
            begin: 0,
            end: 0,
            starved: true,
            joins: false,
            drained: false,
            plain: Buffer::default(),
            outgoing: Buffer::default(),
            early: Vec::new(),
            gathered: Vec::new(),
            ended: false,
            failed: None,
            cut: None,
        }
    }

    /// `None` until the handshake is over.
    pub fn binding(&self) -> Option<Binding> {
        self.exporter.binding(self.tls.state())
    }

    /// Whether [`Session::receive`] may return bytes although nothing has arrived at the socket.
    pub fn has_received(&self) -> bool {
        !self.plain.is_empty() || !self.starved
    }

    /// Whether there are bytes that the socket has not taken.
    pub fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty() && self.cut.is_none()
    }

    /// Fills `parts` from the front, as far as it can without blocking, and returns the number of bytes. Returns 0 at
    /// the end of the session, and fails with [`ErrorKind::UnexpectedEof`] if the connection ends before that, which
    /// anyone on the way can cause.
    pub fn receive(&mut self, socket: RawSocket, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.pass(socket, &mut Parts { parts, index: 0, at: 0 })
    }

    /// Receives like [`Session::receive`], but passes the bytes to `take` where they were decrypted, until it returns
    /// false.
    pub fn receive_in_place(&mut self, socket: RawSocket, take: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<usize> {
        self.pass(socket, &mut InPlace { take, full: false })
    }

    /// Passes on what is decrypted, decrypts what was read, and reads what has arrived, until the sink is full or there
    /// is no more.
    fn pass(&mut self, socket: RawSocket, sink: &mut dyn Sink) -> io::Result<usize> {
        // The answer to a peer's message of the session may not have been sent. An error is found by what is sent next.
        let _ = self.flush(socket);
        self.drained = false;
        let mut passed = 0;
        while !sink.is_full() {
            match self.pass_some(socket, sink) {
                Ok(0) => break,
                Ok(count) => passed += count,
                // The next call finds it again, or that the stream was cut.
                Err(_) if passed > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(passed)
    }

    /// Returns 0 at the end of the session.
    fn pass_some(&mut self, socket: RawSocket, sink: &mut dyn Sink) -> io::Result<usize> {
        loop {
            if !self.plain.is_empty() {
                let count = sink.take(self.plain.rest());
                self.plain.advance(count);
                return Ok(count);
            }
            if let Some(error) = &self.failed {
                return Err(invalid(error));
            }
            if self.ended {
                return Ok(0);
            }
            if !self.starved {
                let count = self.decrypt(sink);
                let _ = self.flush(socket);
                if count > 0 {
                    return Ok(count);
                }
                continue;
            }
            // A small message would else take a second system call, which finds nothing.
            if self.drained {
                return Err(ErrorKind::WouldBlock.into());
            }
            if self.read(socket)? == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, CUT));
            }
        }
    }

    /// Reads from the socket. Returns 0 at its end.
    fn read(&mut self, socket: RawSocket) -> io::Result<usize> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.incoming.len() - self.end < MIN_ROOM_BYTES {
            self.incoming.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        let room = &mut self.incoming[self.end..];
        let wanted = room.len();
        if wanted == 0 {
            // Longer than any record, or message of a handshake, that rustls accepts.
            return Err(invalid(&TlsError::PeerSentOversizedRecord));
        }
        let count = sys::receive(socket, &mut [IoSliceMut::new(room)])?;
        (self.end, self.starved, self.drained) = (self.end + count, count == 0, count < wanted);
        Ok(count)
    }

    /// Decrypts records that were read, until the sink is full or there is none. Returns how many bytes it has taken.
    fn decrypt(&mut self, sink: &mut dyn Sink) -> usize {
        let mut taken = 0;
        while !sink.is_full() && !self.starved {
            match self.step(Order::Rest, sink) {
                Ok(Step::Decrypted(count)) => {
                    taken += count;
                    self.starved = self.begin == self.end;
                }
                Ok(Step::Own) => {}
                Ok(Step::Starved | Step::Done) => {
                    self.starved = true;
                    self.joins = has_record(&self.incoming[self.begin..self.end]);
                }
                Ok(Step::Ended) => self.end(),
                Err(error) => self.fail(error),
            }
        }
        taken
    }

    /// What follows the end of the session is ignored.
    fn end(&mut self) {
        (self.ended, self.starved, self.begin) = (true, true, self.end);
    }

    fn fail(&mut self, error: TlsError) {
        self.failed = Some(error);
        // An alert that says why.
        self.encode();
        (self.starved, self.begin) = (true, self.end);
    }

    /// Encodes what the session itself has to send, and decrypts nothing.
    fn encode(&mut self) {
        while self.tls.state().wants_write() && self.step(Order::Rest, &mut Parts::default()).is_ok() {}
    }

    /// Lets the connection do one thing: bytes that were decrypted go into `sink`, those that it does not take into
    /// `plain`.
    fn step(&mut self, order: Order<'_>, sink: &mut dyn Sink) -> Result<Step, TlsError> {
        let Self { tls, incoming, begin, end, plain, outgoing, joins, .. } = self;
        // A connection that is to encrypt would first decrypt what it sees. It must see records that it has in part:
        // but for these, an order comes only after bytes for the caller, with which no such message begins.
        let hides = !matches!(order, Order::Rest) && !tls.state().is_handshaking() && !*joins;
        let records = &mut incoming[*begin..if hides { *begin } else { *end }];
        let (discard, step) = tls.step(records, order, sink, plain, outgoing);
        *begin += discard;
        step
    }

    /// Takes bytes from the front of `parts`, as many as it can without blocking, and returns their number. Bytes that
    /// the socket has not taken then ([`Session::has_unsent`]) are sent by later calls of any method. During the
    /// handshake, takes few bytes, which follow it.
    pub fn send(&mut self, socket: RawSocket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut taken = 0;
        let max = if total <= SHORT_BYTES { HALF_BYTES } else { WRITE_BYTES };
        while self.flush(socket)? && taken < total {
            let count = self.take(parts, taken, max)?;
            if count == 0 {
                break;
            }
            taken += count;
        }
        if taken > 0 || total == 0 { Ok(taken) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    /// Encrypts about `max` bytes of what follows the first `skip` bytes of `parts`. Returns the number of bytes.
    fn take(&mut self, parts: &[IoSlice<'_>], mut skip: usize, mut max: usize) -> io::Result<usize> {
        let rest = parts.iter().filter_map(|part| {
            let rest = part.get(skip..).filter(|rest| !rest.is_empty());
            skip = skip.saturating_sub(part.len());
            rest
        });
        if self.tls.state().is_handshaking() {
            let room = EARLY_BYTES - self.early.len();
            let before = self.early.len();
            self.early.extend(rest.flatten().take(room));
            return Ok(self.early.len() - before);
        }
        let mut taken = 0;
        let mut gathered = std::mem::take(&mut self.gathered);
        for part in rest {
            if taken + gathered.len() >= max {
                break;
            }
            if gathered.len() + part.len() <= RECORD_BYTES {
                gathered.extend_from_slice(part);
                continue;
            }
            if taken == 0 {
                // A header does not count, or the payload's last record would be short.
                max += gathered.len();
            }
            taken += self.encrypt(&gathered)?;
            taken += self.encrypt(&part[..part.len().min(max - taken)])?;
            gathered.clear();
        }
        taken += self.encrypt(&gathered)?;
        gathered.clear();
        self.gathered = gathered;
        Ok(taken)
    }

    /// Encrypts `bytes`. Returns their number.
    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !bytes.is_empty() {
            self.execute(Order::Encrypt(bytes))?;
        }
        Ok(bytes.len())
    }

    /// Executes an order.
    fn execute(&mut self, order: Order<'_>) -> io::Result<()> {
        loop {
            match self.step(order, &mut Parts::default()) {
                Ok(Step::Done) => return Ok(()),
                Ok(Step::Decrypted(_) | Step::Own) => {}
                Ok(Step::Ended) => self.end(),
                Ok(Step::Starved) => return Err(io::Error::other("the TLS session cannot send now")),
                Err(error) => {
                    let result = invalid(&error);
                    self.fail(error);
                    return Err(result);
                }
            }
        }
    }

    /// Sends what is encrypted. Returns whether the socket has taken all of it.
    pub fn flush(&mut self, socket: RawSocket) -> io::Result<bool> {
        if let Some(kind) = self.cut {
            return Err(kind.into());
        }
        if !self.early.is_empty() && !self.tls.state().is_handshaking() {
            let early = std::mem::take(&mut self.early);
            self.encrypt(&early)?;
        }
        while !self.outgoing.is_empty() {
            match sys::send(socket, &[IoSlice::new(self.outgoing.rest())]) {
                Ok(count) => self.outgoing.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => {
                    self.cut = Some(error.kind());
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// Ends the session: the peer finds the end of the stream after all that was taken. Then nothing is sent any more.
    pub fn close(&mut self) {
        // A session whose handshake is not over just stops, and so does one that cannot encrypt any more.
        let _ = self.execute(Order::Close);
    }
}

/// Whether `bytes` begin with a whole record.
fn has_record(bytes: &[u8]) -> bool {
    matches!(bytes, [_, _, _, high, low, rest @ ..] if rest.len() >= usize::from(u16::from_be_bytes([*high, *low])))
}

fn invalid(error: &TlsError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_record_is_found_by_its_header() {
        let record = [23, 3, 3, 1, 2];
        let whole = [&record[..], &[0; 258]].concat();
        assert!(has_record(&whole) && has_record(&[&whole[..], &record].concat()));
        (0..whole.len()).for_each(|length| assert!(!has_record(&whole[..length]), "{length}"));
    }
}
