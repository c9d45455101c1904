//! The byte stream of a connection to another process: a socket, or TLS over one.

use std::io::{self, IoSlice, IoSliceMut};
#[cfg(feature = "tls")]
use std::sync::Arc;

use super::gate;
use super::handshake::Fault;
#[cfg(feature = "tls")]
use super::tls::{self, Credentials, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::log::LogCallback;
use crate::sys::{self, AsRaw, OwnedSocket, PollerKind};

/// What carries the bytes of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    windows,
    allow(clippy::large_enum_variant, reason = "a path has a word more there; a device has one of these")
)]
pub enum Transport {
    /// TCP alone.
    Tcp,
    /// TCP alone; contexts find the sockets that are ready by libuv.
    #[cfg(feature = "uv")]
    Uv,
    /// TLS over TCP; where the options say nothing, the environment does.
    #[cfg(feature = "tls")]
    Tls(tls::Options),
    /// InfiniBand or RoCE between devices, set up over TCP; stores use TCP alone.
    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    Ibverbs,
    /// TCP alone, by the given poller.
    #[cfg(test)]
    By(PollerKind),
}

/// The environment variable that names a transport, `tcp`, `uv`, `tls` or `ibverbs`, for devices and stores whose
/// options do not.
pub const TRANSPORT: &str = "GLOO_RS_TRANSPORT";

/// Why a build has no `ibverbs`, if it has none.
pub const WITHOUT_IBVERBS: &str = if cfg!(target_os = "linux") {
    "this library was built without verbs (cargo feature ibverbs)"
} else {
    "InfiniBand and RoCE are supported on Linux only"
};

impl Transport {
    /// The transport with this name, which `source` has given. TLS takes what the environment says.
    pub fn named(name: &str, source: &str) -> Result<Self> {
        match name {
            "tcp" => Ok(Self::Tcp),
            #[cfg(feature = "uv")]
            "uv" => Ok(Self::Uv),
            #[cfg(feature = "tls")]
            "tls" => Ok(Self::Tls(tls::Options::default())),
            #[cfg(all(feature = "ibverbs", target_os = "linux"))]
            "ibverbs" => Ok(Self::Ibverbs),
            other => Err(Self::absent(other, source)),
        }
    }

    /// The error for a name that this build has no transport for.
    #[cold]
    fn absent(name: &str, source: &str) -> Error {
        let why = match name {
            "uv" => "this library was built without libuv",
            "tls" => "this library was built without TLS",
            "ibverbs" => WITHOUT_IBVERBS,
            _ => return Error::invalid(format!("{source} is {name:?}; it must be tcp, uv, tls or ibverbs")),
        };
        Error::new(ErrorKind::Unsupported, format!("{source} is {name}: {why}"))
    }

    /// `option`, or what the environment names, or TCP.
    pub fn choose(option: Option<&Self>) -> Result<Self> {
        let variable = std::env::var_os(TRANSPORT).filter(|value| !value.is_empty());
        match (option, variable) {
            (Some(transport), _) => Ok(transport.clone()),
            (None, None) => Ok(Self::Tcp),
            (None, Some(name)) => Self::named(&name.to_string_lossy(), TRANSPORT),
        }
    }

    /// Returns the transport's name, as [`Transport::named`] takes it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            #[cfg(feature = "uv")]
            Self::Uv => "uv",
            #[cfg(feature = "tls")]
            Self::Tls(_) => "tls",
            #[cfg(all(feature = "ibverbs", target_os = "linux"))]
            Self::Ibverbs => "ibverbs",
            #[cfg(test)]
            Self::By(_) => "tcp",
        }
    }

    /// Whether its links may have several connections. Those of `ibverbs` have one for each port, and the socket only
    /// tells that a peer is there.
    pub fn has_streams(&self) -> bool {
        self.name() != "ibverbs"
    }

    /// Whether it encrypts.
    pub fn is_encrypted(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
            _ => false,
        }
    }

    /// By what contexts wait for their sockets.
    pub fn poller(&self) -> PollerKind {
        match self {
            #[cfg(feature = "uv")]
            Self::Uv => PollerKind::Uv,
            #[cfg(test)]
            Self::By(kind) => *kind,
            _ => PollerKind::SYSTEM,
        }
    }
}

/// How streams are made out of sockets.
#[derive(Clone, Default)]
pub enum Security {
    /// The socket itself.
    #[default]
    Plain,
    /// TLS with these credentials.
    #[cfg(feature = "tls")]
    Tls(Arc<Credentials>),
}

impl Security {
    /// Returns the security of `transport`. Reads the files that TLS needs.
    pub fn of(transport: &Transport, log: Option<&LogCallback>) -> Result<Self> {
        let _ = log;
        match transport {
            #[cfg(feature = "tls")]
            Transport::Tls(options) => Ok(Self::Tls(Credentials::new(options.clone().or_environment(), log.cloned())?)),
            _ => Ok(Self::Plain),
        }
    }

    /// Whether streams encrypt what they send.
    pub fn is_encrypted(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// The stream of the side that has connected, or is connecting.
    pub fn connect(&self, socket: OwnedSocket) -> io::Result<Stream> {
        match self {
            Self::Plain => Ok(Stream::from(socket)),
            #[cfg(feature = "tls")]
            Self::Tls(credentials) => Ok(Stream { socket, session: Some(Box::new(credentials.connect()?)) }),
        }
    }

    /// The stream of the side that has accepted.
    pub fn accept(&self, socket: OwnedSocket) -> io::Result<Stream> {
        match self {
            Self::Plain => Ok(Stream::from(socket)),
            #[cfg(feature = "tls")]
            Self::Tls(credentials) => Ok(Stream { socket, session: Some(Box::new(credentials.accept()?)) }),
        }
    }
}

/// A stream over a non-blocking socket. With TLS, the handshake takes place in [`Stream::receive`] and
/// [`Stream::send`].
pub struct Stream {
    socket: OwnedSocket,
    #[cfg(feature = "tls")]
    session: Option<Box<Session>>,
}

impl From<OwnedSocket> for Stream {
    fn from(socket: OwnedSocket) -> Self {
        Self {
            socket,
            #[cfg(feature = "tls")]
            session: None,
        }
    }
}

#[cfg(unix)]
impl std::os::fd::AsRawFd for Stream {
    fn as_raw_fd(&self) -> sys::RawSocket {
        self.socket.raw()
    }
}

#[cfg(windows)]
impl std::os::windows::io::AsRawSocket for Stream {
    fn as_raw_socket(&self) -> sys::RawSocket {
        self.socket.raw()
    }
}

/// Calls `$tls` with the session, if there is one, else evaluates `$plain`.
macro_rules! with_session {
    ($stream:expr, |$session:ident| $tls:expr, $plain:expr) => {{
        #[cfg(feature = "tls")]
        if let Some($session) = &mut $stream.session {
            return $tls;
        }
        $plain
    }};
}

impl Stream {
    /// Fills `parts` from the front without blocking; returns 0 at the end of the stream. Returns fewer bytes than
    /// there is room for only if no more have arrived.
    #[inline]
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let fd = self.socket.raw();
        with_session!(self, |session| session.receive(fd, parts), sys::receive(fd, parts))
    }

    /// Receives like [`Stream::receive`], but passes the bytes to `take` where they were decrypted, until it returns
    /// false. `None` without TLS.
    #[inline]
    pub fn receive_in_place(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> Option<io::Result<usize>> {
        let fd = self.socket.raw();
        with_session!(self, |session| Some(session.receive_in_place(fd, take)), {
            let _ = (fd, take);
            None
        })
    }

    /// Takes as many bytes from the front of `parts` as possible without blocking.
    #[inline]
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let fd = self.socket.raw();
        with_session!(self, |session| session.send(fd, parts), sys::send(fd, parts))
    }

    /// Sends what was taken and is not in the socket. Returns whether nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        with_session!(self, |session| session.flush(self.socket.raw()), Ok(true))
    }

    /// No more is sent: the peer will find the end of the stream once all is flushed.
    pub fn close(&mut self) {
        with_session!(self, |session| session.close(), ())
    }

    /// Whether [`Stream::receive`] may return bytes although nothing arrives at the socket.
    #[inline]
    pub fn has_received(&mut self) -> bool {
        with_session!(self, |session| session.has_received(), false)
    }

    /// Whether bytes that were taken are not in the socket.
    #[inline]
    pub fn has_unsent(&mut self) -> bool {
        with_session!(self, |session| session.has_unsent(), false)
    }

    /// What proofs of the token must cover; empty without TLS.
    pub fn binding(&mut self) -> Vec<u8> {
        with_session!(self, |session| session.binding().map(Vec::from).unwrap_or_default(), Vec::new())
    }

    /// The socket and the session, which another thread may use; itself without TLS.
    #[cfg(feature = "tls")]
    pub fn into_session(self) -> std::result::Result<(OwnedSocket, Box<Session>), Self> {
        match self {
            Self { socket, session: Some(session) } => Ok((socket, session)),
            plain => Err(plain),
        }
    }

    /// The socket, for its options.
    pub fn socket(&self) -> &OwnedSocket {
        &self.socket
    }
}

impl gate::Stream for Stream {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Stream::receive(self, &mut [IoSliceMut::new(into)])
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Stream::send(self, &[IoSlice::new(bytes)])
    }

    fn binding(&mut self) -> Vec<u8> {
        Stream::binding(self)
    }

    fn fault(error: &io::Error) -> Option<Fault> {
        fault(error)
    }
}

/// What the other side is accused of, if `error` says that.
pub fn fault(error: &io::Error) -> Option<Fault> {
    #[cfg(feature = "tls")]
    return tls::fault(error);
    #[cfg(not(feature = "tls"))]
    {
        let _ = error;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_have_names_and_errors_say_which_there_are() {
        let built = [
            ("tcp", true),
            ("uv", cfg!(feature = "uv")),
            ("tls", cfg!(feature = "tls")),
            ("ibverbs", cfg!(all(feature = "ibverbs", target_os = "linux"))),
        ];
        for (name, built) in built {
            match Transport::named(name, TRANSPORT) {
                Ok(transport) => assert!(built && transport.name() == name),
                Err(error) => {
                    assert!(!built && error.kind() == ErrorKind::Unsupported, "{error}");
                    assert!(error.message().starts_with(&format!("GLOO_RS_TRANSPORT is {name}: ")), "{error}");
                }
            }
        }
        let error = Transport::named("udp", "transport").unwrap_err();
        assert_eq!(error.message(), "transport is \"udp\"; it must be tcp, uv, tls or ibverbs");
    }

    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    #[test]
    fn stores_use_sockets_alone_with_ibverbs() {
        let security = Security::of(&Transport::Ibverbs, None).unwrap();
        assert!(!security.is_encrypted() && Transport::Ibverbs.poller() == PollerKind::SYSTEM);
    }
}
