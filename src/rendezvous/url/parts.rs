//! The parts of a store's URL: host, port and options.

use crate::net::host;

/// The options of a URL: the part after the question mark.
pub struct Query<'a>(Option<&'a str>);

impl<'a> Query<'a> {
    /// Splits at the question mark: the part before it, and the options.
    pub fn split(text: &'a str) -> (&'a str, Self) {
        match text.split_once('?') {
            Some((address, query)) => (address, Self(Some(query))),
            None => (text, Self(None)),
        }
    }

    /// Names and values of the options; a missing value is empty.
    pub fn pairs(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let parts = self.0.into_iter().flat_map(|query| query.split('&'));
        parts.map(|part| part.split_once('=').unwrap_or((part, "")))
    }

    /// The error text for an unknown option `name`, where the options in `known` exist.
    pub fn unknown(&self, name: &str, known: &[&str]) -> String {
        match known {
            [] => format!("there is {name:?} behind a question mark, and this kind of store has no options"),
            known => format!("the option {name:?} is not known; there are {}", known.join(", ")),
        }
    }
}

/// Splits `host:port` or `[v6]:port`.
pub fn host_and_port(text: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:").ok_or("an address in brackets needs ]:port behind it")?,
        None => text.rsplit_once(':').ok_or("there is no port, as in tcp://host:port")?,
    };
    match (text.starts_with('['), host.contains(':')) {
        (false, true) => return Err("an IPv6 address stands in brackets, as in [::1]:29500"),
        (true, false) if !host.is_empty() => return Err("only an IPv6 address stands in brackets"),
        _ => host::check(host)?,
    }
    match port.parse() {
        Ok(number) if !port.starts_with('+') => Ok((host, number)),
        _ => Err("the port is not a number from 0 to 65535"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        assert_eq!(host_and_port("a.b:80"), Ok(("a.b", 80)));
        assert_eq!(host_and_port("[fe80::1%eth0]:65535"), Ok(("fe80::1%eth0", 65535)));
        assert_eq!(host_and_port("127.0.0.1:0"), Ok(("127.0.0.1", 0)));
    }
}
