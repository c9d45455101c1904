//! Lists of interfaces as users write them: `eth0,ib*`, `^lo,docker*`, `10.0.0.0/8`.

use std::fmt;
use std::net::IpAddr;

use super::interface::Interface;
use crate::error::{Error, Result};

/// A list of interfaces or addresses: those to use, the preferred ones first, or those not to use.
///
/// Items are separated by commas. Each is an interface's name, in which `*` stands for any characters; an IP address;
/// or a network such as `10.0.0.0/8` or `fd00::/8`. A `^` before the list excludes all its items.
#[derive(Clone, PartialEq, Eq)]
pub struct Patterns {
    items: Vec<Item>,
    excludes: bool,
    text: String,
}

/// One item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A name, which may contain `*`.
    Name(String),
    /// A network: an address and the length of its prefix in bits.
    Network(IpAddr, u32),
}

impl Patterns {
    /// Parses a list. Fails with `InvalidArgument` and names the invalid item.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::invalid(format!("{text:?} is not a list of interfaces: {why}"));
        let list = text.trim();
        let (excludes, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
        let items = list.split(',').map(|item| Item::parse(item.trim()).map_err(wrong)).collect::<Result<_>>()?;
        Ok(Self { items, excludes, text: text.to_owned() })
    }

    /// Whether the list excludes its items.
    pub fn excludes(&self) -> bool {
        self.excludes
    }

    /// The items, in the order of the text.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Rank of `interface` (with its one address) in the order of preference, 0 first. `None` if it may not be used.
    pub fn preference(&self, interface: &Interface) -> Option<usize> {
        let preference = self.items.iter().position(|item| item.matches(interface));
        if self.excludes { preference.is_none().then_some(0) } else { preference }
    }
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?}"),
            Self::Network(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

impl Item {
    fn parse(item: &str) -> Result<Self, String> {
        if item.is_empty() {
            return Err("an item is empty".to_owned());
        }
        if item.starts_with('^') {
            return Err(format!(
                "in {item:?} a ^ is inside the list; only a ^ before the list has a meaning: it excludes all items"
            ));
        }
        let (address, bits) = item.split_once('/').map_or((item, None), |(address, bits)| (address, Some(bits)));
        let Ok(address) = address.parse::<IpAddr>() else {
            if bits.is_some() {
                return Err(format!("{item:?} is not a network, as 10.0.0.0/8 or fd00::/8"));
            }
            return Ok(Self::Name(item.to_owned()));
        };
        let max = if address.is_ipv4() { 32 } else { 128 };
        match bits.map_or(Ok(max), str::parse) {
            Ok(bits) if bits <= max => Ok(Self::Network(address, bits)),
            _ => Err(format!("{item:?} is not a network: its length is a number from 0 to {max}")),
        }
    }

    /// Whether the item matches `interface`, with its one address.
    pub fn matches(&self, interface: &Interface) -> bool {
        match self {
            Self::Name(pattern) => glob(pattern.as_bytes(), interface.name.as_bytes()),
            Self::Network(network, bits) => match (network, interface.address.ip()) {
                (IpAddr::V4(network), IpAddr::V4(address)) => {
                    let differing = network.to_bits() ^ address.to_bits();
                    differing.checked_shr(32 - bits).unwrap_or(0) == 0
                }
                (IpAddr::V6(network), IpAddr::V6(address)) => {
                    let differing = network.to_bits() ^ address.to_bits();
                    differing.checked_shr(128 - bits).unwrap_or(0) == 0
                }
                _ => false,
            },
        }
    }
}

/// Whether `text` matches `pattern`, in which each `*` stands for any number of bytes.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    // Where to continue if the shortest match of the last star turns out to be too short.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, t) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::SocketAddr;

    fn interface(name: &str, address: &str) -> Interface {
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        Interface { name: name.to_owned(), address, up: true, loopback: false, speed_mbps: None }
    }

    fn preference(patterns: &str, name: &str, address: &str) -> Option<usize> {
        Patterns::parse(patterns).unwrap().preference(&interface(name, address))
    }

    #[test]
    fn names_match_completely_unless_a_star_stands_for_the_rest() {
        for (pattern, name, matches) in [
            ("eth0", "eth0", true),
            ("eth", "eth0", false),
            ("eth0", "eth01", false),
            ("eth*", "eth0", true),
            ("eth*", "eth", true),
            ("*", "eth0", true),
            ("*0", "eth00", true),
            ("e*h*1", "eth0.h1", true),
            ("e*h*1", "eth0.h12", false),
            ("**", "x", true),
            ("ETH0", "eth0", false),
        ] {
            assert_eq!(preference(pattern, name, "10.0.0.1").is_some(), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn networks_mean_addresses() {
        for (pattern, address, matches) in [
            ("10.0.0.0/8", "10.200.3.4", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/31", "10.0.0.1", true),
            ("10.0.0.0/31", "10.0.0.2", false),
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.6", false),
            ("0.0.0.0/0", "192.0.2.9", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::/0", "fe80::1", true),
            ("::/0", "10.0.0.1", false),
        ] {
            assert_eq!(preference(pattern, "eth0", address).is_some(), matches, "{pattern} {address}");
        }
    }

    #[test]
    fn earlier_items_are_preferred_and_an_excluding_list_leaves_the_rest() {
        assert_eq!(preference("ib0, eth*", "ib0", "10.0.0.1"), Some(0));
        assert_eq!(preference("ib0, eth*", "eth1", "10.0.0.1"), Some(1));
        assert_eq!(preference("ib0, eth*", "lo", "127.0.0.1"), None);
        assert_eq!(preference("^lo,docker*", "lo", "127.0.0.1"), None);
        assert_eq!(preference("^lo,docker*", "docker0", "172.17.0.1"), None);
        assert_eq!(preference("^lo,docker*", "eth0", "10.0.0.1"), Some(0));
        assert_eq!(preference("^172.16.0.0/12", "eth0", "172.17.0.1"), None);
    }

    #[test]
    fn errors_name_the_invalid_item() {
        for (text, part) in [
            ("", "empty"),
            ("eth0,,ib0", "empty"),
            ("^", "empty"),
            ("eth0,^ib0", "\"^ib0\""),
            ("^^eth0", "\"^eth0\""),
            ("10.0.0.0/33", "0 to 32"),
            ("fd00::/129", "0 to 128"),
            ("10.0.0.0/", "0 to 32"),
            ("10.0.0.0/-1", "0 to 32"),
            ("eth0/8", "not a network"),
        ] {
            let error = Patterns::parse(text).unwrap_err();
            assert!(
                error.message().contains(part) && error.message().contains(&format!("{text:?}")),
                "{text}: {error}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text: String, name: String) {
            if let Ok(patterns) = Patterns::parse(&text) {
                patterns.preference(&interface(&name, "fd00::1"));
            }
        }

        #[test]
        fn a_pattern_made_of_a_name_matches_it(name in "[a-c]{0,8}", cut in 0usize..9, length in 0usize..9) {
            let from = cut.min(name.len());
            let to = (from + length).min(name.len());
            let pattern = format!("{}*{}", &name[..from], &name[to..]);
            prop_assert!(glob(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
