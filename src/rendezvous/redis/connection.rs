//! One connection to a Redis server: blocking, one request at a time, with a deadline for each.
//!
//! The `redis` crate encodes commands and parses replies. Its connection is not used: it would install rustls' crypto
//! provider for the whole process, and its timeouts restart with every byte.

use std::io::{self, ErrorKind as IoErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use ::redis::{Parser, Pipeline, ServerErrorKind, Value, pipe};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::SockRef;

use super::super::support::Deadline;
use super::RedisOptions;
use crate::error::{ErrorKind, in_words};
use crate::net::handshake::BadCertificate;
use crate::reserve::{SMALL_BYTES, check_room};
use crate::sys::{self, AsRaw, OwnedSocket};

/// Time for one attempt to connect, so that an address that drops packets leaves time for the next one; also the
/// longest time without progress in a reply, after which a new connection is tried.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest part of a server's error text that is shown.
const SHOWN_BYTES: usize = 300;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// Refused, closed, broken, no reply, or a temporary error: another attempt may succeed.
    Lost(String),
    /// Another attempt would fail in the same way.
    Final(ErrorKind, String),
}

/// Address, user and TLS configuration.
pub(super) struct Target {
    pub(super) options: RedisOptions,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

/// A socket with a deadline, `limit`.
struct Timed {
    socket: OwnedSocket,
    limit: Deadline,
}

impl Timed {
    fn left(&self) -> Duration {
        self.limit.remaining().clamp(Duration::from_millis(1), ATTEMPT_TIMEOUT)
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let fd = self.socket.raw();
        sys::call_when_ready(fd, sys::READ, || self.left(), || sys::receive(fd, &mut [IoSliceMut::new(buffer)]))
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.socket.raw();
        sys::call_when_ready(fd, sys::WRITE, || self.left(), || sys::send(fd, &[IoSlice::new(bytes)]))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

/// Reads for the parser and stores the error, which the parser does not return.
struct Source<'a> {
    stream: &'a mut Stream,
    /// Bytes of this reply so far.
    bytes: usize,
    fault: Option<Fault>,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The parser collects the reply in memory that grows to twice its length, and then copies its values.
        if self.bytes > SMALL_BYTES
            && let Err(error) = check_room(self.bytes.saturating_mul(3), "the server's reply")
        {
            self.fault = Some(Fault::Final(error.kind(), error.message().to_owned()));
            return Err(IoErrorKind::OutOfMemory.into());
        }
        let result = match self.stream {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        };
        result.inspect(|count| self.bytes += count).map_err(|error| {
            let kind = error.kind();
            self.fault = Some(error.into());
            kind.into()
        })
    }
}

pub(super) struct Connection {
    stream: Stream,
    parser: Parser,
}

impl Connection {
    /// The server's address.
    pub(super) fn server(&self) -> Option<SocketAddr> {
        let timed = match &self.stream {
            Stream::Plain(timed) => timed,
            Stream::Tls(stream) => stream.get_ref(),
        };
        SockRef::from(&timed.socket).peer_addr().ok()?.as_socket()
    }

    /// Connects, authenticates, selects the database and sends `setup` in the same request; its replies are returned
    /// too.
    pub(super) fn open(target: &Target, setup: &Pipeline, limit: &Deadline) -> Result<(Self, Vec<Value>), Fault> {
        let options = &target.options;
        let timed = Timed { socket: connect(&options.host, options.port, limit)?, limit: *limit };
        let stream = match &target.tls {
            None => Stream::Plain(timed),
            Some(config) => {
                let wrong = |why: String| Fault::Final(ErrorKind::InvalidArgument, why);
                let name = ServerName::try_from(options.host.clone())
                    .map_err(|_| wrong(format!("{:?} is no name that a certificate could have", options.host)))?;
                let client = ClientConnection::new(config.clone(), name).map_err(|error| wrong(error.to_string()))?;
                Stream::Tls(Box::new(StreamOwned::new(client, timed)))
            }
        };
        let mut connection = Self { stream, parser: Parser::new() };
        let mut commands = pipe();
        if let Some(password) = &options.password {
            commands.cmd("AUTH");
            if let Some(username) = &options.username {
                commands.arg(username);
            }
            commands.arg(password);
        }
        if options.database != 0 {
            commands.cmd("SELECT").arg(options.database);
        }
        commands.cmd("PING");
        let own = commands.len();
        for command in setup.cmd_iter() {
            commands.add_command(command.clone());
        }

        let mut replies = connection.exchange(&commands, limit).map_err(|fault| hide(fault, options))?;
        let setup_replies = replies.split_off(own);
        for (command, reply) in commands.cmd_iter().zip(&replies) {
            check_hello(command, reply, options)?;
        }
        Ok((connection, setup_replies))
    }

    /// Sends `commands` together and returns one reply for each. After an error the connection must not be used again.
    pub(super) fn exchange(&mut self, commands: &Pipeline, limit: &Deadline) -> Result<Vec<Value>, Fault> {
        let request = commands.get_packed_pipeline();
        let sent = match &mut self.stream {
            Stream::Plain(stream) => {
                stream.limit = *limit;
                stream.write_all(&request)
            }
            Stream::Tls(stream) => {
                stream.sock.limit = *limit;
                stream.write_all(&request).and_then(|()| stream.flush())
            }
        };
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            let mut source = Source { stream: &mut self.stream, bytes: 0, fault: None };
            let Err(error) = self.parser.parse_value(&mut source).map(|reply| replies.push(reply)) else { continue };
            // A server that refuses a client sends the reason and then closes the connection: report the reason.
            let reason = replies.iter().find_map(|reply| match reply {
                Value::ServerError(error) => Some(reason(error)),
                _ => None,
            });
            return Err(match (reason, source.fault, sent) {
                (Some(reason), ..) => Fault::Lost(format!("it says {reason:?}, and hangs up")),
                (None, Some(fault), _) => fault,
                (None, None, Err(error)) => error.into(),
                (None, None, Ok(())) if error.is_io_error() => Fault::Lost("it hung up".to_owned()),
                (None, None, Ok(())) => {
                    let other = match self.stream {
                        Stream::Plain(_) => " without TLS (with TLS it is rediss://)",
                        Stream::Tls(_) => "",
                    };
                    Fault::Final(ErrorKind::Mismatch, format!("what listens there is not a Redis server{other}"))
                }
            });
        }
        Ok(replies)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        if sys::socket::lacks_descriptors(&error) {
            return Self::Final(
                ErrorKind::ResourceExhausted,
                format!("no socket for a connection: {}", in_words(&error)),
            );
        }
        match error.kind() {
            // The deadline of this socket.
            IoErrorKind::WouldBlock => Self::Lost("it does not answer".to_owned()),
            // The peer's bytes are not TLS, or its certificate is not trusted.
            IoErrorKind::InvalidData => {
                let of_time = match error.get_ref().and_then(|error| error.downcast_ref()) {
                    Some(rustls::Error::InvalidCertificate(error)) => BadCertificate::of_time(error),
                    _ => None,
                };
                let why = of_time.map_or_else(|| error.to_string(), |why| format!("its certificate {why}"));
                Self::Final(ErrorKind::Mismatch, format!("TLS: {why}"))
            }
            _ => Self::Lost(error.to_string()),
        }
    }
}

/// Tries each address of `host` once. Resolves the name each time: it may become resolvable only later.
fn connect(host: &str, port: u16, limit: &Deadline) -> Result<OwnedSocket, Fault> {
    let mut result = Err(Fault::Lost("the host has no address".to_owned()));
    for address in (host, port).to_socket_addrs()? {
        let time = limit.remaining().clamp(Duration::from_millis(1), ATTEMPT_TIMEOUT);
        match sys::connect::connect(address, time) {
            Ok(socket) => {
                socket.set_tcp_nodelay(true)?;
                return Ok(socket.into());
            }
            Err(error) if sys::connect::lacks_ports(&error, address) => {
                result = Err(Fault::Lost(sys::connect::ports_in_words(&error)));
            }
            Err(error) => result = Err(error.into()),
        }
    }
    result
}

/// Checks the reply to a command of the connection's setup.
fn check_hello(command: &::redis::Cmd, reply: &Value, options: &RedisOptions) -> Result<(), Fault> {
    let name = match command.args_iter().next() {
        Some(::redis::Arg::Simple(name)) => name,
        _ => b"",
    };
    let Value::ServerError(error) = reply else {
        let pong = matches!(reply, Value::SimpleString(text) if text == "PONG");
        let good = if name == b"PING" { pong } else { *reply == Value::Okay };
        let what = "what listens there does not answer as a Redis server does";
        return if good { Ok(()) } else { Err(Fault::Final(ErrorKind::Mismatch, what.to_owned())) };
    };
    let refused = match (name, error.code()) {
        (_, _) if is_passing(error) => return Err(hide(Fault::Lost(reason(error)), options)),
        (b"AUTH", _) => "the server does not take this user and password".to_owned(),
        (_, "NOAUTH") => "the server wants a password".to_owned(),
        (b"SELECT", _) => format!("the server does not let this user have database {}", options.database),
        _ => "the server does not let this user in".to_owned(),
    };
    let fault = Fault::Final(ErrorKind::InvalidArgument, format!("{refused}: {}", reason(error)));
    Err(hide(fault, options))
}

/// Removes the password from the fault's text: some servers quote it when they do not know a command.
fn hide(fault: Fault, options: &RedisOptions) -> Fault {
    let Some(password) = options.password.as_deref().filter(|password| !password.is_empty()) else { return fault };
    match fault {
        Fault::Lost(text) => Fault::Lost(text.replace(password, "***")),
        Fault::Final(kind, text) => Fault::Final(kind, text.replace(password, "***")),
    }
}

/// The text of a server's error, truncated if it is long.
pub(super) fn reason(error: &::redis::ServerError) -> String {
    let details = error.details().unwrap_or_default();
    let text = format!("{} {details}", error.code());
    text[..text.floor_char_boundary(SHOWN_BYTES)].trim().to_owned()
}

/// Whether the error is temporary: the server is loading its data, failing over, or full.
pub(super) fn is_passing(error: &::redis::ServerError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, TryAgain};
    matches!(error.kind(), Some(BusyLoading | TryAgain | MasterDown | ClusterDown))
        || error.code() == "BUSY"
        || error.details().is_some_and(|details| details.contains("max number of clients"))
}
