//! The network interfaces of this host, in messages.

use std::fmt::Write as _;

pub use crate::sys::interfaces::{Interface, exists};

use crate::error::{Error, Result};
use crate::sys;

/// Every IPv4 and IPv6 address of this host, in the system's order.
pub fn interfaces() -> Result<Vec<Interface>> {
    sys::interfaces::list().map_err(|error| Error::io("cannot list the network interfaces", &error))
}

/// The interfaces for messages: `lo (127.0.0.1, ::1), eth0 (10.0.0.2; down)`.
pub fn describe(interfaces: &[Interface]) -> String {
    let mut text = String::new();
    let mut seen: Vec<&str> = Vec::new();
    for interface in interfaces {
        if seen.contains(&interface.name.as_str()) {
            continue;
        }
        seen.push(&interface.name);
        let of_it = interfaces.iter().filter(|other| other.name == interface.name);
        let addresses: Vec<_> = of_it.map(|other| other.address.ip().to_string()).collect();
        let separator = if text.is_empty() { "" } else { ", " };
        let down = if interface.up { "" } else { "; down" };
        let _ = write!(text, "{separator}{} ({}{down})", interface.name, addresses.join(", "));
    }
    if text.is_empty() { "no interfaces with addresses".to_owned() } else { text }
}
