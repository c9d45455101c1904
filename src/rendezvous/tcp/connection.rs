//! The client's end of one connection: blocking, one request at a time.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::super::support::{Deadline, seconds};
use super::frame::MAX_FRAME_BYTES;
use super::handshake::{self, PROOF_BYTES, SERVER_BYTES, WELCOME};
use super::protocol::{MAGIC, Request, VERSION};
use crate::error::{self, Error};
use crate::net::handshake as proofs;
use crate::net::stream::{self, Security, Stream};
use crate::reserve::try_zeros;
use crate::secret::SecretKey;
use crate::sys::{self, AsRaw};

/// Time limit for one attempt to connect, so that an address that drops packets leaves time for the next one.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum time for an attempt, so that a call with timeout zero makes one. A server on another continent, or on a host
/// with much to do, answers within it.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time without progress in the middle of a request or a reply.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a connection cannot be used any more.
pub(super) enum Fault {
    /// Refused, closed or broken.
    Lost(io::Error),
    /// The server did not reply in time.
    Silent,
    /// The server's host does not respond: the host or the network may recover.
    Unreachable(io::Error),
    /// The server closed the connection during the handshake: it runs, and has no room for more connections or is about
    /// to end.
    TurnedAway(io::Error),
    /// This process has no descriptor for a connection; nothing is known about the server.
    NoDescriptor(io::Error),
    /// This host has no local port for a connection; connections that end free one.
    NoPort(io::Error),
    /// The other end is not a store, or has another version.
    Foreign(String),
    /// This process has no memory for the request or the reply.
    NoMemory(Error),
}

impl Fault {
    /// The fault for an error of an attempt to connect. `address`: that of the attempt; `None` if the name was not
    /// resolved. A timeout says nothing about the server: it does not distinguish a listener with a full queue from a
    /// broken network.
    pub(super) fn connecting(error: io::Error, address: Option<SocketAddr>) -> Self {
        match error.kind() {
            _ if address.is_some_and(|address| sys::connect::lacks_ports(&error, address)) => Self::NoPort(error),
            _ if sys::socket::lacks_descriptors(&error) => Self::NoDescriptor(error),
            _ if sys::socket::is_unreachable(&error) => Self::Unreachable(error),
            ErrorKind::TimedOut => Self::Unreachable(error),
            _ => Self::Lost(error),
        }
    }

    /// The fault for an error during the handshake.
    fn in_handshake(error: io::Error) -> Self {
        if let Some(fault) = stream::fault(&error) {
            return Self::Foreign(format!("cannot use the server: {fault}"));
        }
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Self::TurnedAway(error),
            _ => error.into(),
        }
    }

    /// The error of a call on the store at `url` that was doing this, with the server at `address`.
    pub(super) fn explain(self, url: &str, address: SocketAddr, doing: &str, after: Duration) -> Error {
        let after = seconds(after);
        match self {
            Self::NoDescriptor(error) => no_descriptor(url, doing, &error),
            Self::NoPort(error) => Error::new(
                error::ErrorKind::Timeout,
                format!(
                    "{url}: {doing}: no connection to the server; gave up after {after}: {}",
                    sys::connect::ports_in_words(&error)
                ),
            )
            .with_errno(error.raw_os_error()),
            Self::Unreachable(error) | Self::TurnedAway(error) => Error::new(
                error::ErrorKind::Timeout,
                format!("{url}: {doing}: the server at {address} does not answer: {error}; gave up after {after}"),
            )
            .with_errno(error.raw_os_error()),
            Self::Lost(error) => Error::new(
                error::ErrorKind::ConnectionLost,
                format!("{url}: {doing}: lost the server at {address} after {after}: {error}"),
            )
            .with_errno(error.raw_os_error()),
            Self::Silent => Error::new(
                error::ErrorKind::Timeout,
                format!("{url}: {doing}: the server at {address} does not answer; gave up after {after}"),
            ),
            Self::Foreign(what) => Error::new(error::ErrorKind::Mismatch, format!("{url}: {doing}: {what}")),
            Self::NoMemory(error) => error.context(format_args!("{url}: {doing}")),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        // WouldBlock is this call's deadline; TimedOut is TCP's, for a host that stopped responding.
        if error.kind() == ErrorKind::WouldBlock { Self::Silent } else { Self::Lost(error) }
    }
}

pub(super) struct Connection {
    pub(super) stream: Stream,
    /// Random number of the server, by which it is recognized.
    pub(super) instance: u64,
    /// Whether the server takes something back when this connection ends: it is kept as long as the store.
    pub(super) claims: bool,
}

impl Connection {
    /// Connects once and performs the handshake.
    pub(super) fn open(
        address: SocketAddr,
        key: &SecretKey,
        security: &Security,
        deadline: &Deadline,
    ) -> Result<Self, Fault> {
        let deadline = &Deadline::after(deadline.remaining().max(MIN_TIMEOUT));
        let time = deadline.remaining().clamp(MIN_TIMEOUT, ATTEMPT_TIMEOUT);
        let stream = sys::connect::connect(address, time).map_err(|error| Fault::connecting(error, Some(address)))?;
        prepare(&stream)?;
        let stream = security.connect(stream.into())?;
        let mut connection = Self { stream, instance: 0, claims: false };
        connection.instance = connection.handshake(address, key, deadline)?;
        Ok(connection)
    }

    /// Tries each address of `host` once. Resolves the name each time: it may become resolvable only later.
    pub(super) fn open_any(
        host: &str,
        port: u16,
        (key, security): (&SecretKey, &Security),
        deadline: &Deadline,
    ) -> Result<(SocketAddr, Self), Fault> {
        let mut result = Err(Fault::Lost(io::Error::new(ErrorKind::NotFound, "the host has no address")));
        for address in (host, port).to_socket_addrs().map_err(|error| Fault::connecting(error, None))? {
            result = Self::open(address, key, security, deadline).map(|connection| (address, connection));
            if matches!(result, Ok(_) | Err(Fault::NoDescriptor(_))) {
                break;
            }
        }
        result
    }

    /// The handshake; returns the server's random number.
    fn handshake(&mut self, address: SocketAddr, key: &SecretKey, deadline: &Deadline) -> Result<u64, Fault> {
        let read =
            |stream: &mut Stream, buffer: &mut [u8]| read_by(stream, buffer, deadline).map_err(Fault::in_handshake);
        let write = |stream: &mut Stream, mut bytes: &[u8]| {
            while !bytes.is_empty() {
                bytes = &bytes[write_some(stream, bytes, deadline).map_err(Fault::in_handshake)?..];
            }
            Ok::<(), Fault>(())
        };
        let stream = &mut self.stream;
        let client = handshake::client(key, &sys::random()?);
        write(stream, &client)?;

        let mut server = [0; SERVER_BYTES];
        let (magic, version) = server.split_at_mut(8);
        let (first, others) = magic.split_at_mut(1);
        read(stream, first)?;
        if let proofs::Fault::Tls(why) = proofs::Fault::foreign(first) {
            return Err(Fault::Foreign(format!("cannot use the server at {address}: {why}")));
        }
        let key = &key.bound(&stream.binding());
        read(stream, others)?;
        if *magic != MAGIC {
            return Err(Fault::Foreign("what listens there is not a gloo_rs store".to_owned()));
        }
        let (version, rest) = version.split_at_mut(4);
        read(stream, version)?;
        if *version != VERSION.to_le_bytes() {
            let theirs = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
            return Err(Fault::Foreign(format!("the server speaks version {theirs}, and this library {VERSION}")));
        }
        read(stream, rest)?;
        let instance = u64::from_le_bytes(std::array::from_fn(|i| rest[i]));
        match handshake::proof(key, &client, &server) {
            Ok(proof) => write(stream, &proof)?,
            Err(fault) => {
                // Send an empty proof, so that the server can log and count the reason too.
                let _ = write(stream, &[0; PROOF_BYTES]);
                return Err(Fault::Foreign(format!("cannot use the server at {address}: {fault}")));
            }
        }
        let mut welcome = [0];
        read(stream, &mut welcome)?;
        if welcome != [WELCOME] {
            return Err(Fault::Foreign(format!("the server at {address} did not welcome this client")));
        }
        Ok(instance)
    }

    /// Like [`Connection::end`]; the server keeps what was claimed.
    pub(super) fn end_and_keep(mut self) {
        // The socket has room, as below.
        if let Ok(keep) = Request::Keep.encode() {
            let _ = write_some(&mut self.stream, &keep, &Deadline::after(Duration::ZERO));
        }
        self.end();
    }

    /// Ends the connection in an orderly way, which TLS distinguishes from one that was cut; not to be called in a
    /// child by fork, whose parent goes on with the session.
    pub(super) fn end(mut self) {
        self.stream.close();
        // The socket has room, since the server has taken every request.
        let _ = self.stream.flush();
    }

    /// Sends a request, which includes its length, and returns the reply's frame without its length. After the request
    /// has been sent, the reply must begin within `patience`; while it is being sent, the server must read some of it
    /// within that time. After an error the connection must not be used again.
    pub(super) fn exchange(&mut self, request: &[u8], patience: Duration) -> Result<Vec<u8>, Fault> {
        let mut rest = request;
        while !rest.is_empty() {
            rest = &rest[write_some(&mut self.stream, rest, &Deadline::after(patience.min(STALL_TIMEOUT)))?..];
        }
        let mut length = [0; 4];
        read_by(&mut self.stream, &mut length, &Deadline::after(patience))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(Fault::Foreign(format!("the server announced an answer of {length} bytes")));
        }
        let mut frame = try_zeros(length, "the server's reply").map_err(Fault::NoMemory)?;
        let mut rest = &mut frame[..];
        while !rest.is_empty() {
            let count = read_some(&mut self.stream, rest, &Deadline::after(STALL_TIMEOUT))?;
            rest = &mut rest[count..];
        }
        Ok(frame)
    }
}

/// The error of a call that needs another connection, for which there is no descriptor.
pub(super) fn no_descriptor(url: &str, doing: &str, error: &io::Error) -> Error {
    Error::io(format_args!("{url}: {doing}: no socket for a connection to the server"), error)
}

/// Socket options of both ends: no delay, and a host that stopped responding is detected after about half a minute.
pub(super) fn prepare<T>(stream: &T) -> io::Result<()>
where
    for<'a> SockRef<'a>: From<&'a T>,
{
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)).with_retries(3);
    // Where the system lacks a part of this, its default applies.
    let _ = socket.set_tcp_keepalive(&keepalive);
    Ok(())
}

/// Fills `buffer` before `deadline`; tries at least once, even after it.
fn read_by(stream: &mut Stream, mut buffer: &mut [u8], deadline: &Deadline) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = read_some(stream, buffer, deadline)?;
        buffer = &mut buffer[count..];
    }
    Ok(())
}

fn read_some(stream: &mut Stream, buffer: &mut [u8], deadline: &Deadline) -> io::Result<usize> {
    let fd = stream.raw();
    match sys::call_when_ready(
        fd,
        sys::READ,
        || deadline.remaining(),
        || stream.receive(&mut [IoSliceMut::new(buffer)]),
    )? {
        0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
        count => Ok(count),
    }
}

fn write_some(stream: &mut Stream, bytes: &[u8], deadline: &Deadline) -> io::Result<usize> {
    let fd = stream.raw();
    let sent = sys::call_when_ready(fd, sys::WRITE, || deadline.remaining(), || stream.send(&[IoSlice::new(bytes)]))?;
    let mut flush = || if stream.flush()? { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
    sys::call_when_ready(fd, sys::WRITE, || deadline.remaining(), &mut flush).map(|_| sent)
}
