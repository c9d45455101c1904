//! The client's end of one connection: blocking, one request at a time.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::super::support::Deadline;
use super::greeting::{self, PROOF_BYTES, SERVER_BYTES, WELCOME};
use super::protocol::{MAGIC, MAX_FRAME_BYTES, VERSION};
use crate::secret::SecretKey;
use crate::sys;

/// Time for one attempt to connect, so that an address that swallows packets leaves time for the next.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// What an attempt has at least, so that whoever asks with no time left has asked once.
const LEAST_TIME: Duration = Duration::from_millis(100);

/// Time in the middle of a request or an answer without a byte moving.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a connection is of no more use.
pub(super) enum Fault {
    /// Refused, closed or broken.
    Lost(io::Error),
    /// The server did not say a word in time.
    Silent,
    /// Nothing on the way to the server answered: its host or the network may come back.
    Unreachable(io::Error),
    /// The server hung up before it had let this client in: it is there, and short of room, or about to end.
    TurnedAway(io::Error),
    /// No descriptor for a connection; nothing is wrong with the server.
    NoDescriptor(io::Error),
    /// The other end is no store, or one of another version.
    Foreign(String),
}

impl Fault {
    /// What an attempt to connect has failed with. There a timeout says nothing about the server: a listener whose queue is full
    /// and a network that is cut leave it unanswered alike.
    pub(super) fn connecting(error: io::Error) -> Self {
        match (error.raw_os_error(), error.kind()) {
            (Some(libc::EMFILE | libc::ENFILE), _) => Self::NoDescriptor(error),
            (Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN), _)
            | (_, ErrorKind::TimedOut) => Self::Unreachable(error),
            _ => Self::Lost(error),
        }
    }

    /// What goes wrong between connecting and the server's welcome.
    fn greeting(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Self::TurnedAway(error),
            _ => error.into(),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        // WouldBlock is our own deadline; TimedOut is the network's, for a host that vanished.
        if error.kind() == ErrorKind::WouldBlock { Self::Silent } else { Self::Lost(error) }
    }
}

pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// The server's random number.
    pub(super) instance: u64,
}

impl Connection {
    /// Connects, exchanges hellos, and proves to each other that both have the token; once.
    pub(super) fn open(address: SocketAddr, key: &SecretKey, deadline: &Deadline) -> Result<Self, Fault> {
        let deadline = &Deadline::after(deadline.remaining().max(LEAST_TIME));
        let time = deadline.remaining().clamp(LEAST_TIME, ATTEMPT_TIMEOUT);
        let stream = TcpStream::connect_timeout(&address, time).map_err(Fault::connecting)?;
        // With no listener, a loopback connection can meet itself when its own port happens to be the one it calls.
        if stream.local_addr()? == stream.peer_addr()? {
            return Err(Fault::Lost(io::Error::from(ErrorKind::ConnectionRefused)));
        }
        prepare(&stream)?;
        let mut connection = Self { stream, instance: 0 };
        connection.instance = connection.greet(address, key, deadline)?;
        Ok(connection)
    }

    /// The handshake; the server's random number.
    fn greet(&self, address: SocketAddr, key: &SecretKey, deadline: &Deadline) -> Result<u64, Fault> {
        let read = |buffer: &mut [u8]| read_by(&self.stream, buffer, deadline).map_err(Fault::greeting);
        let write = |mut bytes: &[u8]| {
            while !bytes.is_empty() {
                bytes = &bytes[write_some(&self.stream, bytes, deadline).map_err(Fault::greeting)?..];
            }
            Ok::<(), Fault>(())
        };
        let client = greeting::client(key, &sys::random()?);
        write(&client)?;

        let mut server = [0; SERVER_BYTES];
        let (magic, version) = server.split_at_mut(8);
        read(magic)?;
        if *magic != MAGIC {
            return Err(Fault::Foreign("what listens there is not a gloo_rs store".to_owned()));
        }
        let (version, rest) = version.split_at_mut(4);
        read(version)?;
        if *version != VERSION.to_le_bytes() {
            let theirs = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
            return Err(Fault::Foreign(format!("the server speaks version {theirs}, and this library {VERSION}")));
        }
        read(rest)?;
        let instance = u64::from_le_bytes(std::array::from_fn(|i| rest[i]));
        match greeting::proof(key, &client, &server) {
            Ok(proof) => write(&proof)?,
            Err(fault) => {
                // No proof at all, so that the server can say what is the matter, too.
                let _ = write(&[0; PROOF_BYTES]);
                return Err(Fault::Foreign(format!("cannot use the server at {address}: {fault}")));
            }
        }
        let mut welcome = [0];
        read(&mut welcome)?;
        if welcome != [WELCOME] {
            return Err(Fault::Foreign(format!("the server at {address} did not welcome this client")));
        }
        Ok(instance)
    }

    /// Sends a request, which has its length in front, and returns the answer's frame without its length. After the request has
    /// left, the answer may take `patience` to begin, and while it leaves, the server as long to take some of it. After an error
    /// the connection is of no more use.
    pub(super) fn exchange(&mut self, request: &[u8], patience: Duration) -> Result<Vec<u8>, Fault> {
        let mut rest = request;
        while !rest.is_empty() {
            rest = &rest[write_some(&self.stream, rest, &Deadline::after(patience.min(STALL_TIMEOUT)))?..];
        }
        let mut length = [0; 4];
        read_by(&self.stream, &mut length, &Deadline::after(patience))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(Fault::Foreign(format!("the server announced an answer of {length} bytes")));
        }
        let mut frame = vec![0; length];
        let mut rest = &mut frame[..];
        while !rest.is_empty() {
            let count = read_some(&self.stream, rest, &Deadline::after(STALL_TIMEOUT))?;
            rest = &mut rest[count..];
        }
        Ok(frame)
    }
}

/// Options of both ends: nothing is held back, and a host that vanished is noticed after about half a minute.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Fills `buffer` before `deadline`; looks at least once, even after it.
fn read_by(stream: &TcpStream, mut buffer: &mut [u8], deadline: &Deadline) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = read_some(stream, buffer, deadline)?;
        buffer = &mut buffer[count..];
    }
    Ok(())
}

fn read_some(stream: &TcpStream, buffer: &mut [u8], deadline: &Deadline) -> io::Result<usize> {
    let fd = stream.as_raw_fd();
    match sys::call_when_ready(
        fd,
        sys::READ,
        || deadline.remaining(),
        || sys::receive(fd, &mut [IoSliceMut::new(buffer)]),
    )? {
        0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
        count => Ok(count),
    }
}

fn write_some(stream: &TcpStream, bytes: &[u8], deadline: &Deadline) -> io::Result<usize> {
    let fd = stream.as_raw_fd();
    sys::call_when_ready(fd, sys::WRITE, || deadline.remaining(), || sys::send(fd, &[IoSlice::new(bytes)]))
}
