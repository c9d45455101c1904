//! Which addresses of this host a device listens on.
//!
//! What the options name is chosen when the device is made. With nothing named it is chosen when a context connects, since
//! then it is known where the store and the other ranks are: loopback if all are on this host, else the addresses from
//! which this host reaches them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use super::address::Address;
use super::interface::{self, Interface};
use super::pattern::{Item, Patterns};
use crate::error::{Error, Result};

/// The environment variable with the interfaces of devices whose options name none.
pub const INTERFACES: &str = "GLOO_RS_SOCKET_IFNAME";

/// Other ranks' addresses that are tried before one counts as found for their family.
const OTHERS: usize = 16;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The address; its port is 0.
    pub address: SocketAddr,
    /// The interface that has it, if one does.
    pub interface: Option<String>,
    /// Why this one: `it reaches the store at 10.0.0.1`.
    pub why: String,
}

/// What a device's options say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// These addresses: one of each family at most, the preferred first, at least one.
    Named(Vec<Chosen>),
    /// Whichever fits where the ranks are, among the interfaces that the list leaves.
    Free(Option<Patterns>),
}

impl Choice {
    /// The choice for a list of interfaces and a host name, as a device's options have them. If both are absent the
    /// list is that of the environment variable [`INTERFACES`].
    ///
    /// Fails with `InvalidArgument`, and a list of what there is, if nothing fits; with `Io` if the system cannot list its
    /// interfaces. Asks the system's resolver for names, which may take as long as that does.
    pub fn make(interfaces: Option<&str>, hostname: Option<&str>) -> Result<Self> {
        let neither = interfaces.is_none() && hostname.is_none();
        let variable = std::env::var_os(INTERFACES).filter(|value| neither && !value.is_empty());
        let variable = variable.map(|value| value.to_string_lossy().into_owned());
        let choice = named(interfaces.or(variable.as_deref()), hostname, &interface::interfaces()?, &lookup);
        choice.map_err(|e| {
            if variable.is_some() { e.context(format_args!("environment variable {INTERFACES}")) } else { e }
        })
    }
}

/// [`Choice::make`] without the system; `lookup` is the resolver.
fn named(
    list: Option<&str>,
    hostname: Option<&str>,
    interfaces: &[Interface],
    lookup: &dyn Fn(&str) -> io::Result<Vec<SocketAddr>>,
) -> Result<Choice> {
    let patterns = list.map(Patterns::parse).transpose()?;
    let allowed = allowed(interfaces, patterns.as_ref());
    if let Some(patterns) = patterns.as_ref().filter(|_| allowed.is_empty()) {
        return Err(nothing_fits(patterns, interfaces));
    }
    let (candidates, why): (Vec<_>, _) = match (hostname, &patterns) {
        (Some(host), _) => {
            let addresses = lookup(host)
                .map_err(|error| Error::invalid(format!("cannot resolve the device's host name {host:?}: {error}")))?;
            let owned: Vec<_> = addresses.iter().filter_map(|address| own(*address, &allowed)).collect();
            if owned.is_empty() {
                let resolved: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
                let resolved = if resolved.is_empty() { "no address".to_owned() } else { resolved.join(", ") };
                let place = list.map_or("this host".to_owned(), |list| format!("no interface of {list:?}"));
                let has = if list.is_some() { "has" } else { "does not have" };
                return Err(Error::invalid(format!(
                    "{host:?} resolves to {resolved}, which {place} {has}; there are {}",
                    interface::describe(interfaces)
                )));
            }
            (owned, format!("the device's host name is {host:?}"))
        }
        (None, Some(patterns)) if !patterns.excludes() => {
            (allowed.iter().map(Candidate::from).collect(), format!("the device's interfaces are {patterns:?}"))
        }
        (None, _) => return Ok(Choice::Free(patterns)),
    };
    Ok(Choice::Named(best(candidates).into_iter().map(|c| c.chosen(&why)).collect()))
}

/// The addresses that may be used, the preferred first: those of interfaces that are up and not excluded.
fn allowed<'a>(interfaces: &'a [Interface], patterns: Option<&Patterns>) -> Vec<(usize, &'a Interface)> {
    let preference = |i: &Interface| patterns.map_or(Some(0), |patterns| patterns.preference(i));
    let mut allowed: Vec<_> =
        interfaces.iter().filter(|i| i.up).filter_map(|i| preference(i).map(|preference| (preference, i))).collect();
    allowed.sort_by_key(|(preference, _)| *preference);
    allowed
}

/// An address that could be chosen.
#[derive(Clone)]
struct Candidate {
    preference: usize,
    address: SocketAddr,
    interface: Option<String>,
}

impl From<&(usize, &Interface)> for Candidate {
    fn from((preference, interface): &(usize, &Interface)) -> Self {
        Self { preference: *preference, address: interface.address, interface: Some(interface.name.clone()) }
    }
}

impl Candidate {
    fn chosen(self, why: &str) -> Chosen {
        Chosen { address: self.address, interface: self.interface, why: why.to_owned() }
    }
}

/// The best candidate, and behind it the best of the other family: as preferred, others before loopback, IPv4 before IPv6.
/// Loopback and other addresses do not go together; link-local ones, which say nothing on another host, only without others.
fn best(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    if candidates.iter().any(|c| !is_link_local(c.address.ip())) {
        candidates.retain(|c| !is_link_local(c.address.ip()));
    }
    let loopback = |c: &Candidate| c.address.ip().is_loopback();
    let first = candidates.iter().min_by_key(|c| (c.preference, loopback(c), c.address.is_ipv6())).cloned();
    let Some(first) = first else { return Vec::new() };
    let beside = |c: &&Candidate| c.address.is_ipv4() != first.address.is_ipv4() && loopback(c) == loopback(&first);
    let second = candidates.iter().filter(beside).min_by_key(|c| c.preference).cloned();
    std::iter::once(first).chain(second).collect()
}

/// `address` as this host has it, and where; `None` if it is not among `allowed`.
fn own(address: SocketAddr, allowed: &[(usize, &Interface)]) -> Option<Candidate> {
    let ip = address.ip().to_canonical();
    let scope = |address: &SocketAddr| if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
    let same_scope = |own: &SocketAddr| scope(&address) == 0 || scope(&address) == scope(own);
    let same = |(_, i): &&(usize, &Interface)| i.address.ip() == ip && same_scope(&i.address);
    if let Some(found) = allowed.iter().find(same) {
        return Some(Candidate { preference: 0, ..Candidate::from(found) });
    }
    // Linux takes all of 127.0.0.0/8 for its own, though the interface lists only 127.0.0.1; Debian gives hosts 127.0.1.1.
    if !matches!(ip, IpAddr::V4(v4) if v4.is_loopback()) {
        return None;
    }
    let (_, loopback) = allowed.iter().find(|(_, i)| i.loopback && i.address.is_ipv4())?;
    Some(Candidate { preference: 0, address: SocketAddr::new(ip, 0), interface: Some(loopback.name.clone()) })
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Why no interface is in the list.
fn nothing_fits(patterns: &Patterns, interfaces: &[Interface]) -> Error {
    let there = interface::describe(interfaces);
    if patterns.excludes() {
        let text = format!("the list of interfaces {patterns:?} excludes all that are up; there are {there}");
        return Error::invalid(text);
    }
    let faults: Vec<String> = patterns
        .items()
        .iter()
        .map(|item| match item {
            item if interfaces.iter().any(|i| item.matches(i)) => format!("interface {item} is down"),
            Item::Name(name) if name.contains('*') => format!("no interface with an IP address is called {item}"),
            Item::Name(name) if interface::exists(name) => format!("interface {item} has no IP address"),
            Item::Name(_) => format!("interface {item} does not exist"),
            Item::Network(..) => format!("no interface has an address in {item}"),
        })
        .collect();
    Error::invalid(format!("{}; there are {there}", faults.join(", and ")))
}

/// This host, seen when a context connects through a device for which nothing, or only what not to use, is named.
pub struct Surroundings<'a> {
    interfaces: Vec<Interface>,
    patterns: Option<&'a Patterns>,
    /// The address from which the system would send to another one.
    route: &'a dyn Fn(SocketAddr) -> Option<IpAddr>,
}

impl<'a> Surroundings<'a> {
    /// As the system sees it now.
    pub fn here(patterns: Option<&'a Patterns>) -> Result<Self> {
        Ok(Self { interfaces: interface::interfaces()?, patterns, route: &route })
    }

    /// The addresses for a group that is wholly on this host: loopback, if that may be used. One is enough, unless one of
    /// `everyone` has named only addresses of the other family.
    pub fn on_one_host(&self, everyone: &[Address]) -> Result<Vec<Chosen>> {
        let loopback = self.allowed().into_iter().filter(|(_, i)| i.address.ip().is_loopback());
        let mut found = best(loopback.map(|i| Candidate::from(&i)).collect());
        if let [first, _] = &found[..] {
            let same = |s: &SocketAddr| s.is_ipv4() == first.address.is_ipv4();
            if everyone.iter().all(|a| a.sockets.is_empty() || a.sockets.iter().any(same)) {
                found.truncate(1);
            }
        }
        if found.is_empty() {
            return self.on_several_hosts(None, &mut std::iter::empty());
        }
        Ok(found.into_iter().map(|c| c.chosen("all ranks are on this host")).collect())
    }

    /// The addresses that reach the server of the store. None if that is on this host, as seen from here, since then it does
    /// not tell where others are.
    pub fn towards_store(&self, store: SocketAddr) -> Vec<Chosen> {
        let mut found: Vec<Chosen> = self.reaching(store, "it reaches the store").into_iter().collect();
        self.complete(&mut found);
        found
    }

    /// The addresses for a group on several hosts: those that reach the server of the store; or addresses of ranks on
    /// `other` hosts; or what the default route leads to; or just one that is not loopback.
    pub fn on_several_hosts(
        &self,
        store: Option<SocketAddr>,
        others: &mut dyn Iterator<Item = SocketAddr>,
    ) -> Result<Vec<Chosen>> {
        let mut found = store.map(|store| self.towards_store(store)).unwrap_or_default();
        for other in others.take(OTHERS) {
            if found.iter().all(|c| c.address.is_ipv4() != other.is_ipv4()) {
                found.extend(self.reaching(other, "it reaches another rank's host"));
            }
        }
        if found.is_empty() {
            // Networks for documentation: no host is there, and none is asked.
            let anywhere = ["192.0.2.1:9", "[2001:db8::1]:9"].map(|goal| goal.parse().expect("an address"));
            found.extend(anywhere.iter().filter_map(|goal| self.leaving(*goal, "the default route leaves from it")));
        }
        self.complete(&mut found);
        if found.is_empty() {
            let all = best(self.allowed().iter().map(Candidate::from).collect());
            found.extend(all.into_iter().map(|c| c.chosen("this host has no better one")));
        }
        if found.is_empty() {
            let there = interface::describe(&self.interfaces);
            return Err(Error::invalid(format!("this host has no address to listen on; there are {there}")));
        }
        Ok(found)
    }

    fn allowed(&self) -> Vec<(usize, &Interface)> {
        allowed(&self.interfaces, self.patterns)
    }

    fn reaching(&self, goal: SocketAddr, what: &str) -> Option<Chosen> {
        // What is seen as this very host may be anywhere, as others see it.
        let here = goal.ip().is_loopback() || goal.ip().is_unspecified();
        if here { None } else { self.leaving(goal, &format!("{what} at {}", goal.ip())) }
    }

    /// The address from which the system sends to `goal`, if it may be used.
    fn leaving(&self, goal: SocketAddr, why: &str) -> Option<Chosen> {
        let ip = (self.route)(goal).filter(|ip| !ip.is_loopback())?;
        let found = self.allowed().into_iter().find(|(_, i)| i.address.ip() == ip)?;
        Some(Candidate::from(&found).chosen(why))
    }

    /// Adds to a single address that of the other family on the same interface.
    fn complete(&self, found: &mut Vec<Chosen>) {
        let [Chosen { address, interface: Some(name), .. }] = &found[..] else { return };
        let other = self.allowed().into_iter().find(|(_, i)| {
            i.name == *name && i.address.is_ipv4() != address.is_ipv4() && !is_link_local(i.address.ip())
        });
        let why = format!("it is another address of {name}");
        found.extend(other.map(|other| Candidate::from(&other).chosen(&why)));
    }
}

/// Asks the system without sending anything.
fn route(goal: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if goal.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(goal).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn lookup(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((host, 0).to_socket_addrs()?.collect())
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
