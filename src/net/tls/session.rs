//! TLS over one non-blocking socket.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, Error as TlsError, ServerConfig, ServerConnection};

use crate::sys::{self, RawSocket};

/// Bytes that are read from the socket at once: the more, the fewer system calls, and the fewer records that end in another read. Only
/// pages that were written take memory.
const READ_BYTES: usize = 128 << 10;
/// Most bytes that are encrypted before they are sent.
const WRITE_BYTES: usize = 256 << 10;
/// Most parts that are encrypted at once.
const PARTS: usize = 16;

/// Where rustls's text refers to its manual.
const CUT: &str =
    "the connection has ended, and the TLS session has not: the peer's process has ended, or the connection was cut";

/// What both sides of a session know and nobody else does: `tls-exporter` of RFC 9266.
pub type Binding = [u8; 32];

/// One side of a session. The socket is passed to each call.
pub struct Session {
    tls: Connection,
    /// What was read from the socket; `begin..end` of it has not been decrypted.
    incoming: Box<[u8]>,
    begin: usize,
    end: usize,
    /// The last read has taken all that the socket had.
    drained: bool,
    /// Decrypted bytes that were not received.
    decrypted: usize,
    /// The peer has ended the session.
    ended: bool,
    /// Nothing can be decrypted any more.
    failed: Option<TlsError>,
    /// Nothing can be sent any more. What the peer has sent before can still be received.
    cut: Option<ErrorKind>,
}

/// A socket for rustls.
struct Socket(RawSocket);

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sys::send(self.0, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::send(self.0, parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    pub(super) fn client(config: Arc<ClientConfig>) -> io::Result<Self> {
        // Certificates are verified without a name, and none is sent.
        let name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Ok(Self::new(ClientConnection::new(config, name).map_err(io::Error::other)?.into()))
    }

    pub(super) fn server(config: Arc<ServerConfig>) -> io::Result<Self> {
        Ok(Self::new(ServerConnection::new(config).map_err(io::Error::other)?.into()))
    }

    fn new(mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(WRITE_BYTES));
        let incoming = vec![0; READ_BYTES].into_boxed_slice();
        Self { tls, incoming, begin: 0, end: 0, drained: false, decrypted: 0, ended: false, failed: None, cut: None }
    }

    /// `None` until the handshake is over.
    pub fn binding(&self) -> Option<Binding> {
        self.tls.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", Some(b"")).ok()
    }

    /// Whether [`Session::receive`] may return bytes although nothing has arrived at the socket.
    pub fn has_received(&self) -> bool {
        self.decrypted > 0 || self.begin < self.end
    }

    /// Whether there are bytes that the socket has not taken.
    pub fn has_unsent(&self) -> bool {
        self.tls.wants_write() && self.cut.is_none()
    }

    /// Fills `parts` from the front, as far as it can without blocking, and returns the number of bytes. Returns 0 at the end of the
    /// session, and fails with [`ErrorKind::UnexpectedEof`] if the connection ends before that, which anyone on the way can cause.
    pub fn receive(&mut self, socket: RawSocket, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        // The answer to a peer's message of the session may not have been sent. An error is found by what is sent next.
        let _ = self.flush(socket);
        self.drained = false;
        let mut filled = 0;
        for part in parts {
            let mut at = 0;
            while at < part.len() {
                // A small message would else take a second system call, which finds nothing.
                if filled > 0 && self.drained && !self.has_received() {
                    return Ok(filled);
                }
                match self.receive_some(socket, &mut part[at..]) {
                    Ok(0) => return Ok(filled),
                    Ok(n) => (at, filled) = (at + n, filled + n),
                    // The next call finds it again, or that the stream was cut.
                    Err(_) if filled > 0 => return Ok(filled),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(filled)
    }

    fn receive_some(&mut self, socket: RawSocket, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.decrypted > 0 {
                let count = self.tls.reader().read(into)?;
                self.decrypted -= count;
                return Ok(count);
            }
            if self.ended {
                return Ok(0);
            }
            if let Some(error) = &self.failed {
                return Err(invalid(error));
            }
            if self.begin < self.end {
                self.decrypt(socket)?;
                continue;
            }
            (self.begin, self.end) = (0, sys::receive(socket, &mut [IoSliceMut::new(&mut self.incoming)])?);
            self.drained = self.end < self.incoming.len();
            if self.end == 0 {
                self.tls.read_tls(&mut io::empty())?;
                // The end of the session, or an error if there was none.
                return self.tls.reader().read(into).map_err(|error| match error.kind() {
                    ErrorKind::UnexpectedEof => io::Error::new(ErrorKind::UnexpectedEof, CUT),
                    _ => error,
                });
            }
        }
    }

    /// Decrypts some of what was read from the socket.
    fn decrypt(&mut self, socket: RawSocket) -> io::Result<()> {
        let mut rest = &self.incoming[self.begin..self.end];
        self.begin += self.tls.read_tls(&mut rest)?;
        match self.tls.process_new_packets() {
            Ok(state) => {
                self.decrypted = state.plaintext_bytes_to_read();
                self.ended = state.peer_has_closed();
                if self.ended {
                    // What follows is ignored.
                    self.begin = self.end;
                }
                let _ = self.flush(socket);
                Ok(())
            }
            Err(error) => {
                // An alert that says why.
                let _ = self.flush(socket);
                self.failed = Some(error.clone());
                Err(invalid(&error))
            }
        }
    }

    /// Takes bytes from the front of `parts`, as many as it can without blocking, and returns their number. Bytes that the socket has not
    /// taken then ([`Session::has_unsent`]) are sent by later calls of any method. During the handshake, takes few bytes, which
    /// follow it.
    pub fn send(&mut self, socket: RawSocket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        let mut rest = [IoSlice::new(&[]); PARTS];
        let count = parts.len().min(PARTS);
        rest[..count].copy_from_slice(&parts[..count]);
        let mut rest = &mut rest[..count];
        while self.flush(socket)? && !rest.is_empty() {
            let count = self.tls.writer().write_vectored(rest)?;
            if count == 0 {
                break;
            }
            taken += count;
            IoSlice::advance_slices(&mut rest, count);
        }
        let any = taken > 0 || parts.iter().all(|part| part.is_empty());
        if any { Ok(taken) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    /// Sends what is encrypted. Returns whether the socket has taken all of it.
    pub fn flush(&mut self, socket: RawSocket) -> io::Result<bool> {
        if let Some(kind) = self.cut {
            return Err(kind.into());
        }
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Socket(socket)) {
                Ok(_) => {}
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
        self.tls.send_close_notify();
    }
}

fn invalid(error: &TlsError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.clone())
}
