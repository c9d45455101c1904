//! The ports that are used, and their attributes: options, and the environment variables in their place.

use std::fmt;
use std::ops::RangeInclusive;

use super::rail::PathOptions;
use crate::error::{Error, Result};

/// Environment variables in the place of the fields of [`Options`].
pub const HCA: &str = "GLOO_RS_IB_HCA";
/// See [`HCA`].
pub const PORT: &str = "GLOO_RS_IB_PORT";
/// See [`HCA`].
pub const GID_INDEX: &str = "GLOO_RS_IB_GID_INDEX";
/// See [`HCA`].
pub const TRAFFIC_CLASS: &str = "GLOO_RS_IB_TRAFFIC_CLASS";
/// See [`HCA`].
pub const TIMEOUT: &str = "GLOO_RS_IB_TIMEOUT";
/// See [`HCA`].
pub const RETRY_COUNT: &str = "GLOO_RS_IB_RETRY_COUNT";

/// Numbers of ports.
pub const PORTS: RangeInclusive<i64> = 1..=255;
/// Indices of GIDs, and traffic classes.
pub const BYTES: RangeInclusive<i64> = 0..=255;
/// Timeouts, as powers of two.
pub const TIMEOUTS: RangeInclusive<i64> = 0..=31;
/// Numbers of retries; the field has three bits.
pub const RETRIES: RangeInclusive<i64> = 0..=7;

/// 1.1 s for an acknowledgement, as UCX has it (`UCX_RC_TIMEOUT`); NCCL waits 4.3 s (`NCCL_IB_TIMEOUT=20`). With seven
/// retries a peer whose host or cable is gone is noticed after 9 s; a process that ends closes its TCP connection,
/// which is noticed at once.
const DEFAULT_TIMEOUT: u8 = 18;
/// NCCL and UCX retry as often (`NCCL_IB_RETRY_CNT`, `UCX_RC_RETRY_COUNT`).
const DEFAULT_RETRIES: u8 = 7;

/// Options of a device with this transport; what is `None` is as the environment says, else a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The ports, as [`HcaList`] parses them; the default is [`super::choice::select`]'s.
    pub hca: Option<String>,
    /// The number of the ports for which `hca` does not give one; any.
    pub port: Option<u8>,
    /// The index of the GID in each port's table; the default is [`super::port::Port::gid`]'s.
    pub gid_index: Option<u8>,
    /// The traffic class of packets; 0.
    pub traffic_class: Option<u8>,
    /// How long a packet waits for its acknowledgement: 4.096 µs × 2^timeout, 0 is for ever; 18.
    pub timeout: Option<u8>,
    /// How often a packet is sent again; 7.
    pub retry_count: Option<u8>,
}

impl Options {
    /// Returns these options, and what the environment says where they say nothing. Fails with `InvalidArgument`, and
    /// names the variable or option.
    pub fn or_environment(self) -> Result<Self> {
        self.or(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Like [`Options::or_environment`], with the values of variables from `value`.
    fn or(mut self, value: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let value = |name: &str| value(name).filter(|text| !text.is_empty());
        let number = |option: Option<u8>, name: &str, range| match (option, value(name)) {
            (None, Some(text)) => parse(name, &text, range).map(Some),
            (given, _) => Ok(given),
        };
        self.port = number(self.port, PORT, PORTS)?;
        self.gid_index = number(self.gid_index, GID_INDEX, BYTES)?;
        self.traffic_class = number(self.traffic_class, TRAFFIC_CLASS, BYTES)?;
        self.timeout = number(self.timeout, TIMEOUT, TIMEOUTS)?;
        self.retry_count = number(self.retry_count, RETRY_COUNT, RETRIES)?;
        match &self.hca {
            Some(list) => drop(HcaList::parse("hca", list)?),
            None => {
                self.hca = value(HCA);
                self.hca.as_ref().map(|list| HcaList::parse(HCA, list)).transpose()?;
            }
        }
        Ok(self)
    }

    /// The attributes of connections.
    pub fn path(&self) -> PathOptions {
        PathOptions {
            traffic_class: self.traffic_class.unwrap_or(0),
            timeout: self.timeout.unwrap_or(DEFAULT_TIMEOUT),
            retry_count: self.retry_count.unwrap_or(DEFAULT_RETRIES),
        }
    }
}

/// `value` of `name`, if it is in `range`, which is one of this module's.
pub fn in_range(name: &str, value: i64, range: RangeInclusive<i64>) -> Result<u8> {
    let wrong = || Error::invalid(format!("{name} is {value}; it must be {} to {}", range.start(), range.end()));
    u8::try_from(value).ok().filter(|_| range.contains(&value)).ok_or_else(wrong)
}

fn parse(name: &str, text: &str, range: RangeInclusive<i64>) -> Result<u8> {
    let (first, last) = (range.start(), range.end());
    let wrong = || Error::invalid(format!("{name} is {text:?}; it must be a number from {first} to {last}"));
    text.trim().parse::<i64>().ok().and_then(|value| in_range(name, value, range.clone()).ok()).ok_or_else(wrong)
}

/// A list of network cards as NCCL takes it: names separated by commas, each with or without `:port`. A name stands for
/// all devices whose names begin so, unless a `=` before the list makes it exact. A `^` before that excludes all items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaList {
    /// The items, in the order of the text.
    pub items: Vec<Item>,
    /// Whether the list excludes its items.
    pub excludes: bool,
}

/// An item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    name: String,
    port: Option<u8>,
    exact: bool,
}

impl HcaList {
    /// Parses the list that `source` has given. Fails with `InvalidArgument` and names the invalid item.
    pub fn parse(source: &str, text: &str) -> Result<Self> {
        let list = text.trim();
        let (excludes, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
        let (exact, list) = list.strip_prefix('=').map_or((false, list), |rest| (true, rest));
        let item = |item: &str| {
            Item::parse(item.trim(), exact).map_err(|why| {
                Error::invalid(format!(
                    "{source} is {text:?}: {why}; the list is written as mlx5_0:1,mlx5_1, with = before it for exact \
                     names, or with ^ for all but those"
                ))
            })
        };
        Ok(Self { items: list.split(',').map(item).collect::<Result<_>>()?, excludes })
    }
}

impl Item {
    fn parse(text: &str, exact: bool) -> Result<Self, String> {
        let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
        if name.is_empty() {
            return Err(if text.is_empty() { "an item is empty".into() } else { format!("{text:?} has no name") });
        }
        if name.contains(['^', '=']) {
            return Err(format!("in {text:?} a ^ or = is inside the list"));
        }
        let number = |port: &str| port.parse::<u8>().ok().filter(|port| *port > 0);
        let port = port.map(|port| number(port).ok_or_else(|| format!("{text:?}: ports are numbered 1 to 255")));
        Ok(Self { name: name.to_owned(), port: port.transpose()?, exact })
    }

    /// Whether it stands for this port. `default` is the number for items that give none.
    pub fn matches(&self, device: &str, port: u8, default: Option<u8>) -> bool {
        let named = if self.exact { device == self.name } else { device.starts_with(&self.name) };
        named && self.port.or(default).is_none_or(|wanted| wanted == port)
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = if self.exact { "=" } else { "" };
        match self.port {
            Some(port) => write!(f, "{exact}{}:{port}", self.name),
            None => write!(f, "{exact}{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_come_before_the_environment_and_that_before_defaults() {
        let environment = |name: &str| {
            let values = [(PORT, "2"), (GID_INDEX, "3"), (TRAFFIC_CLASS, "106"), (TIMEOUT, ""), (RETRY_COUNT, "0")];
            values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        let given = Options { gid_index: Some(0), timeout: Some(14), ..Options::default() };
        let options = given.or(environment).unwrap();
        assert_eq!((options.port, options.gid_index, &options.hca), (Some(2), Some(0), &None));
        assert_eq!(options.path(), PathOptions { traffic_class: 106, timeout: 14, retry_count: 0 });
        let defaults = PathOptions { traffic_class: 0, timeout: 18, retry_count: 7 };
        assert_eq!(Options::default().or(|_| None).unwrap().path(), defaults);
    }

    #[test]
    fn errors_name_the_variable_and_its_value() {
        for (variable, text, part) in [
            (PORT, "0", "from 1 to 255"),
            (GID_INDEX, "256", "from 0 to 255"),
            (TRAFFIC_CLASS, "-1", "from 0 to 255"),
            (TIMEOUT, "32", "from 0 to 31"),
            (RETRY_COUNT, "8", "from 0 to 7"),
            (RETRY_COUNT, "many", "from 0 to 7"),
            (HCA, "mlx5_0,,mlx5_1", "an item is empty"),
        ] {
            let error = Options::default().or(|name| (name == variable).then(|| text.to_owned())).unwrap_err();
            let message = error.message();
            assert!(message.starts_with(&format!("{variable} is {text:?}")) && message.contains(part), "{message}");
        }
        let error = Options { hca: Some(":1".into()), ..Options::default() }.or(|_| None).unwrap_err();
        assert!(error.message().starts_with("hca is \":1\": \":1\" has no name"), "{error}");
    }

    #[test]
    fn names_match_by_their_beginning_unless_the_list_is_exact() {
        let matching = |text: &str, default| {
            let list = HcaList::parse(HCA, text).unwrap();
            let ports = [("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rxe0", 1)];
            let of = |(device, port): &(&str, u8)| list.items.iter().any(|item| item.matches(device, *port, default));
            (list.excludes, ports.iter().map(of).collect::<Vec<_>>())
        };
        assert_eq!(matching("mlx5_1", None), (false, vec![true, true, true, false]));
        assert_eq!(matching("=mlx5_1", None), (false, vec![true, true, false, false]));
        assert_eq!(matching("=mlx5_1:2, rxe0", None), (false, vec![false, true, false, true]));
        assert_eq!(matching("mlx5_1:2,mlx5_10", Some(1)), (false, vec![false, true, true, false]));
        assert_eq!(matching("^mlx5", None), (true, vec![true, true, true, false]));
        assert_eq!(matching("^=mlx5_10", None), (true, vec![false, false, true, false]));
    }

    #[test]
    fn invalid_lists_name_the_item() {
        for (text, part) in [
            ("^", "an item is empty"),
            ("mlx5_0:0", "\"mlx5_0:0\": ports are numbered 1 to 255"),
            ("mlx5_0:x", "\"mlx5_0:x\": ports"),
            ("mlx5_0:256", "ports"),
            ("mlx5_0,^mlx5_1", "in \"^mlx5_1\" a ^ or = is inside the list"),
            ("mlx5_0,=mlx5_1", "inside the list"),
        ] {
            let error = HcaList::parse(HCA, text).unwrap_err();
            assert!(error.message().contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text: String, name: String) {
            if let Ok(list) = HcaList::parse(HCA, &text) {
                list.items.iter().for_each(|item| _ = item.matches(&name, 1, None));
            }
        }
    }
}
