//! The client's end of one connection: blocking, one request at a time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::super::support::Deadline;
use super::greeting::{self, PROOF_BYTES, SERVER_BYTES, WELCOME};
use super::protocol::{MAGIC, MAX_FRAME_BYTES, VERSION};
use crate::secret::SecretKey;
use crate::sys;

/// Time for one attempt to connect, so that an address that swallows packets leaves time for the next.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time in the middle of a request or an answer without a byte moving.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a connection is of no more use.
pub(super) enum Fault {
    /// Refused, closed or broken.
    Lost(io::Error),
    /// The server did not say a word in time.
    Silent,
    /// The other end is no store, or one of another version.
    Foreign(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        // The socket's own timer says WouldBlock; TimedOut is the network's, for a host that vanished.
        if error.kind() == ErrorKind::WouldBlock { Self::Silent } else { Self::Lost(error) }
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    /// The server's random number.
    pub(super) instance: u64,
}

impl Connection {
    /// Connects, exchanges hellos, and proves to each other that both have the token; once.
    pub(super) fn open(address: SocketAddr, key: &SecretKey, deadline: &Deadline) -> Result<Self, Fault> {
        let time = deadline.remaining().clamp(Duration::from_millis(1), ATTEMPT_TIMEOUT);
        let mut stream = TcpStream::connect_timeout(&address, time)?;
        // With no listener, a loopback connection can meet itself when its own port happens to be the one it calls.
        if stream.local_addr()? == stream.peer_addr()? {
            return Err(Fault::Lost(io::Error::from(ErrorKind::ConnectionRefused)));
        }
        prepare(&stream)?;
        stream.set_write_timeout(Some(STALL_TIMEOUT))?;
        let client = greeting::client(key, &sys::random()?);
        stream.write_all(&client)?;

        let mut server = [0; SERVER_BYTES];
        let (magic, version) = server.split_at_mut(8);
        read_by(&mut stream, magic, deadline)?;
        if *magic != MAGIC {
            return Err(Fault::Foreign("what listens there is not a gloo_rs store".to_owned()));
        }
        let (version, rest) = version.split_at_mut(4);
        read_by(&mut stream, version, deadline)?;
        if *version != VERSION.to_le_bytes() {
            let theirs = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
            return Err(Fault::Foreign(format!("the server speaks version {theirs}, and this library {VERSION}")));
        }
        read_by(&mut stream, rest, deadline)?;
        let instance = u64::from_le_bytes(std::array::from_fn(|i| rest[i]));
        match greeting::proof(key, &client, &server) {
            Ok(proof) => stream.write_all(&proof)?,
            Err(fault) => {
                // No proof at all, so that the server can say what is the matter, too.
                let _ = stream.write_all(&[0; PROOF_BYTES]);
                return Err(Fault::Foreign(format!("cannot use the server at {address}: {fault}")));
            }
        }
        let mut welcome = [0];
        read_by(&mut stream, &mut welcome, deadline)?;
        if welcome != [WELCOME] {
            return Err(Fault::Foreign(format!("the server at {address} did not welcome this client")));
        }
        Ok(Self { stream, instance })
    }

    /// Sends a request, which has its length in front, and returns the answer's frame without its length. After the request has
    /// left, the answer may take `patience` to begin. After an error the connection is of no more use.
    pub(super) fn exchange(&mut self, request: &[u8], patience: Duration) -> Result<Vec<u8>, Fault> {
        self.stream.write_all(request)?;
        let mut length = [0; 4];
        read_by(&mut self.stream, &mut length, &Deadline::after(patience))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(Fault::Foreign(format!("the server announced an answer of {length} bytes")));
        }
        self.stream.set_read_timeout(Some(STALL_TIMEOUT))?;
        let mut frame = vec![0; length];
        self.stream.read_exact(&mut frame)?;
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
fn read_by(stream: &mut TcpStream, mut buffer: &mut [u8], deadline: &Deadline) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.set_read_timeout(Some(deadline.remaining().max(Duration::from_millis(1))))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
