//! The byte stream of a connection to another process: a socket, or TLS over one.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
#[cfg(feature = "tls")]
use std::sync::Arc;

use super::gate;
use super::handshake::Fault;
#[cfg(feature = "tls")]
use super::tls::{self, Credentials, Session};
#[cfg(not(feature = "tls"))]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::log::LogCallback;
use crate::sys;

/// What carries the bytes of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP alone.
    Tcp,
    /// TLS over TCP; where the options say nothing, the environment does.
    #[cfg(feature = "tls")]
    Tls(tls::Options),
}

/// The environment variable that says `tcp` or `tls`, for devices and stores whose options do not.
pub const TRANSPORT: &str = "GLOO_RS_TRANSPORT";

impl Transport {
    /// The transport with this name, which `source` has given. TLS takes what the environment says.
    pub fn named(name: &str, source: &str) -> Result<Self> {
        match name {
            "tcp" => Ok(Self::Tcp),
            #[cfg(feature = "tls")]
            "tls" => Ok(Self::Tls(tls::Options::default())),
            #[cfg(not(feature = "tls"))]
            "tls" => {
                Err(Error::new(ErrorKind::Unsupported, format!("{source} is tls: this library was built without TLS")))
            }
            other => Err(Error::invalid(format!("{source} is {other:?}; it must be tcp or tls"))),
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
    /// That of `transport`, or of the environment. Reads the files that TLS needs.
    pub fn choose(transport: Option<&Transport>, log: Option<&LogCallback>) -> Result<Self> {
        let variable = std::env::var_os(TRANSPORT).filter(|value| !value.is_empty());
        let transport = match (transport, variable) {
            (Some(transport), _) => transport.clone(),
            (None, None) => Transport::Tcp,
            (None, Some(name)) => Transport::named(&name.to_string_lossy(), TRANSPORT)?,
        };
        let _ = log;
        match transport {
            Transport::Tcp => Ok(Self::Plain),
            #[cfg(feature = "tls")]
            Transport::Tls(options) => Ok(Self::Tls(Credentials::new(options.or_environment(), log.cloned())?)),
        }
    }

    /// Whether streams encrypt what they send.
    pub fn is_encrypted(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// The stream of the side that has connected, or is connecting.
    pub fn connect(&self, socket: OwnedFd) -> io::Result<Stream> {
        match self {
            Self::Plain => Ok(Stream::from(socket)),
            #[cfg(feature = "tls")]
            Self::Tls(credentials) => Ok(Stream { socket, session: Some(Box::new(credentials.connect()?)) }),
        }
    }

    /// The stream of the side that has accepted.
    pub fn accept(&self, socket: OwnedFd) -> io::Result<Stream> {
        match self {
            Self::Plain => Ok(Stream::from(socket)),
            #[cfg(feature = "tls")]
            Self::Tls(credentials) => Ok(Stream { socket, session: Some(Box::new(credentials.accept()?)) }),
        }
    }
}

/// A stream over a non-blocking socket. With TLS, the handshake takes place in [`Stream::receive`] and [`Stream::send`].
pub struct Stream {
    socket: OwnedFd,
    #[cfg(feature = "tls")]
    session: Option<Box<Session>>,
}

impl From<OwnedFd> for Stream {
    fn from(socket: OwnedFd) -> Self {
        Self {
            socket,
            #[cfg(feature = "tls")]
            session: None,
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
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
    /// Fills `parts` from the front without blocking; returns 0 at the end of the stream. Returns fewer bytes than there is room for only
    /// if no more have arrived.
    #[inline]
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let fd = self.socket.as_raw_fd();
        with_session!(self, |session| session.receive(fd, parts), sys::receive(fd, parts))
    }

    /// Takes as many bytes from the front of `parts` as possible without blocking.
    #[inline]
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let fd = self.socket.as_raw_fd();
        with_session!(self, |session| session.send(fd, parts), sys::send(fd, parts))
    }

    /// Sends what was taken and is not in the socket. Returns whether nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        with_session!(self, |session| session.flush(self.socket.as_raw_fd()), Ok(true))
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

    /// The socket, for its options.
    pub fn socket(&self) -> &OwnedFd {
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
