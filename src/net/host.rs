//! Texts that name a host.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Why no resolver could find a host by `text`: a text with a port, a scheme, brackets or spaces is a mistake of who
/// wrote it, and no wait mends it. A name that only this resolver does not know is not refused. The reason does not
/// quote the text.
pub fn check(text: &str) -> Result<(), &'static str> {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    let is_ipv6 = address.parse::<Ipv6Addr>().is_ok() && zone != Some("");
    let foreign = |c: char| c.is_whitespace() || c.is_control() || c.is_ascii() && !is_of_a_name(c);
    let numbers = || address.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    match text {
        "" => Err("there is no host"),
        _ if is_ipv6 && !zone.is_some_and(|zone| zone.contains(foreign)) => Ok(()),
        _ if text.contains("://") => Err("a host stands without a scheme such as tcp://"),
        _ if text.contains('/') => Err("there is a slash in the host"),
        _ if text.contains('@') => Err("a host stands without a user"),
        _ if text.contains(['[', ']']) => {
            Err("there are brackets; an IPv6 address stands here without them, and nothing else in them")
        }
        _ if has_port(text) => Err("there is a port behind it, and the host stands here alone"),
        _ if text.contains(':') => Err("there is a colon in it, and it is not an IPv6 address"),
        _ if text.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            Err("there is a space or a control character in it")
        }
        _ if text.contains(foreign) => Err("there is a character in it that no name of a host has"),
        _ if numbers() && text.split('.').count() >= 4 && text.parse::<Ipv4Addr>().is_err() => {
            Err("it is not an IPv4 address: four numbers from 0 to 255, without leading zeros")
        }
        _ => Ok(()),
    }
}

/// `text` without the brackets that a URL needs around an IPv6 address.
pub fn without_brackets(text: &str) -> &str {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inside.filter(|inside| inside.contains(':') && check(inside).is_ok()).unwrap_or(text)
}

/// Whether an ASCII character is of a host's name; underscores are in names that some sites use.
fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')
}

fn has_port(text: &str) -> bool {
    text.split_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_hosts() {
        for host in [
            "node0",
            "gpu-07.cluster.example.org",
            "under_score",
            "localhost.",
            "10.0.0.1",
            "127.1",
            "2130706433",
            "::1",
            "fd00::17",
            "::ffff:10.0.0.1",
            "fe80::1%eth0",
            "rechner-ü",
            "1.2.3.4.in-addr.example",
            "10.0.0.1x",
        ] {
            assert_eq!(check(host), Ok(()), "{host}");
        }
    }

    #[test]
    fn what_cannot_be_a_host_is_refused_with_the_reason() {
        for (host, part) in [
            ("", "no host"),
            ("[::1]", "brackets"),
            ("[node0]", "brackets"),
            ("::1]", "brackets"),
            ("node0:29500", "port"),
            ("10.0.0.1:29500", "port"),
            ("[::1]:29500", "brackets"),
            ("tcp://node0", "scheme"),
            ("tcp://node0:29500", "scheme"),
            ("node0/", "slash"),
            ("me@node0", "user"),
            (" node0", "space"),
            ("node0\n", "space"),
            ("node 0", "space"),
            ("node\0", "control"),
            ("node0,node1", "character"),
            ("$MASTER", "character"),
            ("node[0-3]", "brackets"),
            ("fe80::1%", "colon"),
            ("fe80::1%eth 0", "colon"),
            ("node%eth0", "character"),
            ("1:2:3", "colon"),
            (":80", "colon"),
            ("10.0.0.256", "four numbers"),
            ("10.0.0.01", "four numbers"),
            ("10.0.0.1.2", "four numbers"),
        ] {
            let why = check(host).expect_err(host);
            assert!(why.contains(part), "{host:?}: {why}");
        }
    }

    #[test]
    fn only_brackets_around_an_ipv6_address_are_taken_off() {
        for (text, host) in [("[::1]", "::1"), ("[fe80::1%eth0]", "fe80::1%eth0"), ("::1", "::1"), ("node0", "node0")] {
            assert_eq!(without_brackets(text), host);
        }
        for text in ["[node0]", "[10.0.0.1]", "[::1", "::1]", "[]", "[[::1]]", "[1:2]"] {
            assert_eq!(without_brackets(text), text);
        }
    }
}
