//! The ports at which this process may listen.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};

use super::gate;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;

/// The environment variable with the range of ports, `20000-20100`, for all that listens at a port that nobody has
/// named.
pub const PORT_RANGE: &str = "GLOO_RS_PORT_RANGE";

/// A range of ports, and who has given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
    source: &'static str,
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}-{}", self.source, self.first, self.last)
    }
}

impl PortRange {
    /// The range that `option`, called `port_range`, or else the environment gives; `None` if neither does.
    pub fn choose(option: Option<&str>) -> Result<Option<Self>> {
        Ok(match option {
            Some(text) => Some(Self::parse("port_range", text)?),
            None => Self::of_variable(std::env::var_os(PORT_RANGE))?,
        })
    }

    /// The range in the value of [`PORT_RANGE`]; `None` if it is empty or not set.
    pub fn of_variable(value: Option<OsString>) -> Result<Option<Self>> {
        value
            .filter(|value| !value.is_empty())
            .map(|value| Self::parse(PORT_RANGE, &value.to_string_lossy()))
            .transpose()
    }

    /// Parses `20000-20100`, both ends included, or `20000`.
    fn parse(source: &'static str, text: &str) -> Result<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        match (port(first), port(last)) {
            (Some(first), Some(last)) if 0 < first && first <= last => Ok(Self { first, last, source }),
            _ => Err(Error::invalid(format!(
                "{source} is {text:?}; it must be a range of ports from 1 to 65535, such as 20000-20100"
            ))),
        }
    }

    /// All ports, from the one at `start` (modulo their number) on.
    pub fn ports_from(&self, start: usize) -> impl Iterator<Item = u16> + use<> {
        let (first, count) = (self.first, usize::from(self.last - self.first) + 1);
        (0..count).map(move |index| first + ((start % count + index) % count) as u16)
    }
}

/// Whether `error`, of listening at a port, leaves hope for another port: another process has this one, or it is not
/// for this user.
pub fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

/// Listens as [`gate::listen`] does. If the port of `address` is 0: at the first free one of `range`, or where the
/// system chooses.
///
/// Where the range has none, the error is that of the last port, and its text names the range and the last address.
pub fn listen(mut address: SocketAddr, both: bool, range: Option<&PortRange>) -> io::Result<TcpListener> {
    let Some(range) = range.filter(|_| address.port() == 0) else { return gate::listen(address, both) };
    let mut taken = None;
    for port in range.ports_from(0) {
        address.set_port(port);
        match gate::listen(address, both) {
            Err(error) if is_taken(&error) => taken = Some(error),
            result => return result,
        }
    }
    let error = taken.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
    Err(io::Error::new(error.kind(), NoneFree { range: range.clone(), last: address, error }))
}

/// No port of a range is free.
#[derive(Debug)]
struct NoneFree {
    range: PortRange,
    last: SocketAddr,
    error: io::Error,
}

impl fmt::Display for NoneFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, last, error } = self;
        write!(f, "no port of {range} is free; the last one tried was {last}: {error}")
    }
}

impl std::error::Error for NoneFree {}

/// The error of listening at `port`, which is 0 if a range or the system was to give one.
pub fn cannot_listen(doing: impl fmt::Display, port: u16, error: &io::Error) -> Error {
    if let Some(none) = error.get_ref().and_then(|inner| inner.downcast_ref::<NoneFree>()) {
        let text = format!(
            "{doing}: {none}; let it have more ports, for each device of each rank on this host one, and one for rank 0's store"
        );
        return Error::new(ErrorKind::ResourceExhausted, text).with_errno(none.error.raw_os_error());
    }
    if port == 0 && error.kind() == io::ErrorKind::AddrInUse {
        let text = format!("{doing}: {}", sys::connect::ports_in_words(error));
        return Error::new(ErrorKind::ResourceExhausted, text).with_errno(error.raw_os_error());
    }
    Error::io(doing, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loopback address that no other test uses.
    const HERE: [u8; 4] = [127, 83, 16, 1];

    #[test]
    fn ranges_are_two_ports_or_one() {
        let range = |text: &str| PortRange::of_variable(Some(text.into())).unwrap().unwrap();
        assert_eq!(range("20000-20100"), PortRange { first: 20000, last: 20100, source: PORT_RANGE });
        assert_eq!(range("20000"), PortRange { first: 20000, last: 20000, source: PORT_RANGE });
        assert_eq!(range("1-65535").ports_from(65534).take(2).collect::<Vec<_>>(), [65535, 1]);
        assert_eq!(PortRange::of_variable(Some("".into())).unwrap(), None);
        for text in ["0", "0-5", "5-4", "5-", "-5", "5-65536", "+5-6", "5 - 6", "a", "1-2-3", "5,6"] {
            for (error, name) in [
                (PortRange::of_variable(Some(text.into())).unwrap_err(), PORT_RANGE),
                (PortRange::choose(Some(text)).unwrap_err(), "port_range"),
            ] {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(error.message().starts_with(&format!("{name} is {text:?}; ")), "{error}");
            }
        }
    }

    #[test]
    fn a_listener_gets_a_free_port_of_the_range_and_else_an_error_names_the_range() {
        let range = PortRange::parse(PORT_RANGE, "20000-20002").unwrap();
        let listen = |port| listen(SocketAddr::from((HERE, port)), false, Some(&range));
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let taken = listen(20001).unwrap();
        let others = [listen(0).unwrap(), listen(0).unwrap()];
        assert_eq!(others.each_ref().map(port), [20000, 20002]);
        let error = cannot_listen("cannot listen", 0, &listen(0).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        for part in ["GLOO_RS_PORT_RANGE=20000-20002", "127.83.16.1:20002", "in use"] {
            assert!(error.message().contains(part), "{error}");
        }
        drop(taken);
        assert_eq!(port(&listen(0).unwrap()), 20001);
        // A port that is named need not be in the range.
        assert_eq!(port(&listen(20005).unwrap()), 20005);
    }
}
