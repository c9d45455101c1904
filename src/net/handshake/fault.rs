//! What is wrong with the other side of a connection, in words, and what it is told of that.

use std::fmt;
#[cfg(any(feature = "redis", feature = "tls"))]
use std::time::Duration;

use super::{Answer, Reason};
use crate::utc::Utc;
use crate::wire::VERSION;

/// A TLS record with the fatal alert `protocol_version`.
const TLS_ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];
const ONE_TLS: &str = "it uses TLS, and this process does not: GLOO_RS_TRANSPORT, or the option in its place, must be the same on all ranks";

/// What is wrong with the other side's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The other end does not begin like this protocol.
    Foreign,
    /// The other end has this version instead of [`VERSION`].
    Version(u8),
    /// The message has the right magic and version, but is malformed.
    Malformed,
    /// The message names a context that does not exist here.
    NoContext,
    /// One side has a job token and the other none.
    OneToken {
        /// Whether the other side has it.
        theirs: bool,
    },
    /// The other end's proof is invalid.
    Proof,
    /// The other end's certificate is not accepted, and why.
    Certificate(BadCertificate),
    /// The other end does not accept this side's certificate, or its TLS, and why.
    Alert(&'static str),
    /// What else is wrong with the other end's TLS.
    Tls(&'static str),
}

/// Why a certificate is not accepted, in words after its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadCertificate {
    /// The certificate was valid until this time.
    Expired(Utc),
    /// The certificate will be valid from this time on.
    NotYetValid(Utc),
    /// Anything else.
    Otherwise(&'static str),
}

#[cfg(any(feature = "redis", feature = "tls"))]
impl BadCertificate {
    /// What is wrong with the time of a certificate, if `error` says that.
    pub fn of_time(error: &rustls::CertificateError) -> Option<Self> {
        use rustls::CertificateError::{ExpiredContext, NotValidYetContext};
        let utc = |time: &rustls::pki_types::UnixTime| Utc(Duration::from_secs(time.as_secs()));
        match error {
            ExpiredContext { not_after, .. } => Some(Self::Expired(utc(not_after))),
            NotValidYetContext { not_before, .. } => Some(Self::NotYetValid(utc(not_before))),
            _ => None,
        }
    }
}

impl fmt::Display for BadCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(end) => write!(f, "has expired: it was valid until {end}"),
            Self::NotYetValid(begin) => write!(f, "is not valid before {begin}: are the clocks right?"),
            Self::Otherwise(why) => f.write_str(why),
        }
    }
}

impl Fault {
    /// The fault of a side whose first bytes are not of this protocol.
    pub fn foreign(first: &[u8]) -> Self {
        // The types of TLS records that begin a session, or end it.
        match first {
            [0x15 | 0x16] | [0x15 | 0x16, 3, ..] => Self::Tls(ONE_TLS),
            _ => Self::Foreign,
        }
    }

    /// What to send to the connector, if it may understand it: a reason, or an alert of TLS.
    pub fn reply(self) -> Option<Vec<u8>> {
        match self {
            Self::Tls(ONE_TLS) => Some(TLS_ALERT.to_vec()),
            other => other.answer().map(|answer| answer.encode().to_vec()),
        }
    }

    pub(crate) fn answer(self) -> Option<Answer> {
        match self {
            Self::Foreign | Self::Malformed | Self::Certificate(_) | Self::Alert(_) | Self::Tls(_) => None,
            Self::Version(_) => Some(Answer::Refused(Reason::Version)),
            Self::NoContext => Some(Answer::Refused(Reason::NoContext)),
            Self::OneToken { .. } => Some(Answer::Refused(Reason::OneToken)),
            Self::Proof => Some(Answer::Refused(Reason::Proof)),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("it does not speak this protocol"),
            Self::Version(theirs) => {
                write!(f, "it speaks version {theirs} of the protocol, this library version {VERSION}")
            }
            Self::Malformed => f.write_str("its handshake is malformed"),
            Self::NoContext => f.write_str("it seeks a context that is not here"),
            Self::OneToken { theirs: true } => f.write_str(
                "it has a job token and this process has none: GLOO_RS_TOKEN, or the option in its place, must be the \
                 same on all ranks",
            ),
            Self::OneToken { theirs: false } => f.write_str(
                "it has no job token and this process has one: GLOO_RS_TOKEN, or the option in its place, must be the \
                 same on all ranks",
            ),
            Self::Certificate(why) => write!(f, "its certificate {why}"),
            Self::Alert(why) | Self::Tls(why) => f.write_str(why),
            Self::Proof => f.write_str(
                "it did not prove that it belongs to this job: is its job token (GLOO_RS_TOKEN) another one?",
            ),
        }
    }
}
