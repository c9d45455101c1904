//! The hosts of a job: host files, how ranks are distributed over them, and how to connect to them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::parse::counted;
use gloo_rs::sys::file::{self, Until};

/// The maximum number of bytes of a host file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A host and its number of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The name for ssh: a name, an address, `user@name`.
    pub name: String,
    pub slots: usize,
}

impl Host {
    /// The name by which other hosts know the host.
    pub fn address(&self) -> &str {
        self.name.rsplit_once('@').map_or(&*self.name, |(_, host)| host)
    }

    /// Whether it is this host, by its own name or one that means this host everywhere. `user@name` is another user, if
    /// not another host.
    pub fn is_here(&self) -> bool {
        // Without a name, ssh leads back to this host.
        let own = gloo_rs::sys::host_name().unwrap_or_default();
        let own = String::from_utf8_lossy(&own);
        let short = own.split('.').next().unwrap_or_default();
        !self.name.contains('@') && (self.is_loopback() || [&own, short].contains(&&*self.name))
    }

    /// Whether the name means another host on each host.
    pub fn is_loopback(&self) -> bool {
        ["localhost", "127.0.0.1", "::1"].contains(&self.address())
    }
}

/// How to connect to the hosts of a job.
pub struct Hosts {
    /// Each with its number of ranks, at least 1.
    pub hosts: Vec<(Host, usize)>,
    /// The command that connects to a host, with its arguments.
    pub ssh: Vec<String>,
    /// Path of this program on the hosts.
    pub program: String,
    /// The program's path on this host.
    pub own_program: PathBuf,
    /// The address of rank 0's host, if it is not its name.
    pub master: Option<String>,
    /// Time without data after which the launcher counts as lost on a host, or a host here.
    pub lost_after: Duration,
}

impl Hosts {
    /// The command, with its first arguments, that runs this program on `host`.
    pub fn command(&self, host: &Host) -> Vec<OsString> {
        if host.is_here() {
            vec![self.own_program.clone().into()]
        } else {
            self.ssh.iter().map(OsString::from).collect()
        }
    }
}

/// Parses a file with lines `host`, `host slots=N` or `host:N`; `#` begins a comment. A host without a number has one
/// slot; the slots of a host that is listed several times are added.
///
/// A pipe in its place is read for at most `timeout`.
pub fn read(path: &Path, timeout: Duration) -> Result<Vec<Host>, String> {
    let text = file::read(path, MAX_FILE_BYTES, Until::after(timeout))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&String::from_utf8_lossy(&text)).map_err(|error| format!("{}: {error}", path.display()))
}

/// Parses a list `host[:N],...`, by the same rules.
pub fn parse_list(text: &str) -> Result<Vec<Host>, String> {
    let hosts = text.split(',').map(|host| parse_line(host).map_err(|why| format!("{host:?}: {why}")));
    Ok(united(hosts.collect::<Result<_, _>>()?))
}

/// Adds the slots of a host that is listed several times.
fn united(all: Vec<Host>) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for host in all {
        match hosts.iter_mut().find(|other| other.name == host.name) {
            Some(other) => other.slots += host.slots,
            None => hosts.push(host),
        }
    }
    hosts
}

fn parse(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            hosts.push(parse_line(line).map_err(|why| format!("line {}: {line:?}: {why}", index + 1))?);
        }
    }
    let hosts = united(hosts);
    if hosts.is_empty() { Err("there is no host in it".into()) } else { Ok(hosts) }
}

fn parse_line(line: &str) -> Result<Host, &'static str> {
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    // A name with several colons is an IPv6 address.
    let (name, mut slots) = match first.split_once(':') {
        Some((name, slots)) if !slots.contains(':') => (name, Some(slots)),
        _ => (first, None),
    };
    for word in words {
        match word.strip_prefix("slots=") {
            Some(number) if slots.is_none() => slots = Some(number),
            _ => return Err("behind the host stands slots=N, once"),
        }
    }
    // ssh would take it for an option.
    if name.is_empty() || name.starts_with('-') {
        return Err("it begins with the name of a host");
    }
    let slots = slots.map_or(Some(1), |number| number.parse().ok()).filter(|slots| (1..=1 << 20).contains(slots));
    let slots = slots.ok_or("a number of slots is at least 1")?;
    Ok(Host { name: name.to_owned(), slots })
}

/// How many of `ranks` ranks each host gets: hosts are filled in order. Hosts that get none are left out.
pub fn distribute(hosts: &[Host], ranks: usize) -> Result<Vec<(Host, usize)>, String> {
    let slots: usize = hosts.iter().map(|host| host.slots).sum();
    if ranks > slots {
        return Err(format!("the hosts have {}, and {ranks} ranks are asked for", counted(slots, "slot")));
    }
    let mut left = ranks;
    let placed = hosts.iter().map(|host| {
        let here = host.slots.min(left);
        left -= here;
        (host.clone(), here)
    });
    Ok(placed.filter(|(_, ranks)| *ranks > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: usize) -> Host {
        Host { name: name.into(), slots }
    }

    #[test]
    fn files_of_hosts() {
        let text = "# two racks\nnode0 slots=2\n\n  node1:3 # near\nme@node2\nfe80::1 slots=4\nnode0\n";
        let hosts = parse(text).unwrap();
        assert_eq!(hosts, [host("node0", 3), host("node1", 3), host("me@node2", 1), host("fe80::1", 4)]);
        assert_eq!(hosts[2].address(), "node2");
        for (text, part) in [
            ("", "no host"),
            ("# only\n", "no host"),
            ("a\nnode slots=0", "line 2: \"node slots=0\""),
            ("node slots=x", "at least 1"),
            ("node:", "at least 1"),
            ("node:2 slots=2", "once"),
            ("node max_slots=2", "slots=N"),
            ("-oProxyCommand=x", "name"),
            (":2", "name"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn lists_of_hosts() {
        let list = |text| parse_list(text);
        assert_eq!(
            list("node0:2,node1,me@node2:3,node0,fe80::1"),
            Ok(vec![host("node0", 3), host("node1", 1), host("me@node2", 3), host("fe80::1", 1)])
        );
        for (text, part) in
            [("", "name"), ("a,", "\"\": it begins"), ("a:0", "at least 1"), ("a b", "slots=N"), ("-v", "name")]
        {
            let error = list(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn this_host_is_known_by_its_names() {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let here = |name: &str| host(name, 1).is_here();
        assert!([own.trim(), "localhost", "127.0.0.1", "::1"].into_iter().all(here));
        assert!(!["", "127.0.0.2", "elsewhere.invalid", &format!("me@{}", own.trim())].into_iter().any(here));
        assert!(host("me@localhost", 1).is_loopback());
    }

    #[test]
    fn ranks_fill_hosts_in_order() {
        let hosts = [host("a", 2), host("b", 1), host("c", 4)];
        let counts = |ranks| distribute(&hosts, ranks).unwrap().into_iter().map(|(_, ranks)| ranks).collect::<Vec<_>>();
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(4), [2, 1, 1]);
        assert_eq!(counts(7), [2, 1, 4]);
        assert!(distribute(&hosts, 8).unwrap_err().contains("7 slots, and 8 ranks"));
    }
}
