//! Selects the addresses of this host on which a device listens.
//!
//! If the options name addresses or interfaces, they are selected when the device is created. Otherwise they are
//! selected when a context connects, because the addresses of the store and of the other ranks are known then: loopback
//! if all ranks are on this host, else the addresses from which this host reaches them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use super::address::Address;
use super::interface::{self, Interface};
use super::pattern::{Item, Patterns};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::connect::{is_own, source};

/// The environment variable with the interfaces for devices whose options name none.
pub const INTERFACES: &str = "GLOO_RS_SOCKET_IFNAME";

/// Number of other ranks' addresses that are tried to find an own address of their family.
const MAX_OTHERS: usize = 16;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The address; its port is 0.
    pub address: SocketAddr,
    /// The interface with this address, if any.
    pub interface: Option<String>,
    /// The reason for the choice: `it reaches the store at 10.0.0.1`.
    pub why: String,
}

/// What a device's options select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The options select these addresses: at least one, at most one of each family, the preferred one first.
    Named(Vec<Chosen>),
    /// Selected when a context connects, among the interfaces that the list allows.
    Free(Option<Patterns>),
}

impl Choice {
    /// Makes the selection for a list of interfaces and a host name, as a device's options have them. If both are
    /// absent, the list is the value of the environment variable [`INTERFACES`].
    ///
    /// Fails with `InvalidArgument` and a list of the interfaces if nothing matches; with `Io` if there is a list of
    /// interfaces, and the system does not tell which it has. Resolves host names by the system's resolver, which may
    /// block.
    pub fn make(interfaces: Option<&str>, hostname: Option<&str>) -> Result<Self> {
        let neither = interfaces.is_none() && hostname.is_none();
        let variable = std::env::var_os(INTERFACES).filter(|value| neither && !value.is_empty());
        let variable = variable.map(|value| value.to_string_lossy().into_owned());
        let choice = match (interfaces.or(variable.as_deref()), hostname) {
            (None, None) => Ok(Self::Free(None)),
            (list, _) => match (interface::interfaces(), list, hostname) {
                // Another time, the system may tell.
                (Err(error), None, Some(host)) if error.kind() != ErrorKind::ResourceExhausted => {
                    named_unlisted(host, &lookup, &is_own)
                }
                (all, ..) => all.and_then(|all| named(list, hostname, &all, &lookup)),
            },
        };
        choice.map_err(|e| {
            if variable.is_some() { e.context(format_args!("environment variable {INTERFACES}")) } else { e }
        })
    }
}

/// [`Choice::make`] without system calls; `lookup` is the resolver.
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
            let addresses = resolve(host, lookup)?;
            let owned: Vec<_> = addresses.iter().filter_map(|address| own(*address, &allowed)).collect();
            if owned.is_empty() {
                let resolved = ips(&addresses);
                let owner = list.map_or("this host".to_owned(), |list| format!("no interface of {list:?}"));
                let has = if list.is_some() { "has" } else { "does not have" };
                return Err(Error::invalid(format!(
                    "{host:?} resolves to {resolved}, which {owner} {has}; there are {}",
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

/// Like [`named`], for a host name alone, where the system does not tell which interfaces it has: in a sandbox.
/// `is_own` says of an address whether it is one of this host.
fn named_unlisted(
    host: &str,
    lookup: &dyn Fn(&str) -> io::Result<Vec<SocketAddr>>,
    is_own: &dyn Fn(SocketAddr) -> io::Result<bool>,
) -> Result<Choice> {
    let addresses = resolve(host, lookup)?;
    let owned = owned(&addresses, is_own)?;
    if owned.is_empty() {
        return Err(Error::invalid(format!("{host:?} resolves to {}, which this host does not have", ips(&addresses))));
    }
    let why = format!("the device's host name is {host:?}");
    Ok(Choice::Named(best(owned).into_iter().map(|c| c.chosen(&why)).collect()))
}

/// Returns the ones of `addresses` that are of this host.
fn owned(addresses: &[SocketAddr], is_own: &dyn Fn(SocketAddr) -> io::Result<bool>) -> Result<Vec<Candidate>> {
    let mut owned = Vec::new();
    for address in addresses {
        let failed = |error| Error::io(format_args!("cannot tell whether {} is of this host", address.ip()), &error);
        if is_own(*address).map_err(failed)? {
            owned.push(Candidate::of(*address));
        }
    }
    Ok(owned)
}

fn resolve(host: &str, lookup: &dyn Fn(&str) -> io::Result<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>> {
    lookup(host).map_err(|error| {
        let failed = Error::io(format_args!("cannot resolve the device's host name {host:?}"), &error);
        // A lack of descriptors or memory is the process's; any other failure is the fault of the name.
        if failed.kind() == ErrorKind::ResourceExhausted { failed } else { Error::invalid(failed.message()) }
    })
}

fn ips(addresses: &[SocketAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
    if all.is_empty() { "no address".to_owned() } else { all.join(", ") }
}

/// The addresses that may be used, the preferred ones first: those of interfaces that are up and not excluded.
fn allowed<'a>(interfaces: &'a [Interface], patterns: Option<&Patterns>) -> Vec<(usize, &'a Interface)> {
    let preference = |i: &Interface| patterns.map_or(Some(0), |patterns| patterns.preference(i));
    let mut allowed: Vec<_> =
        interfaces.iter().filter(|i| i.up).filter_map(|i| preference(i).map(|preference| (preference, i))).collect();
    allowed.sort_by_key(|(preference, _)| *preference);
    allowed
}

/// An address that may be selected.
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
    /// An address whose interface is not known.
    fn of(address: SocketAddr) -> Self {
        Self { preference: 0, address, interface: None }
    }

    fn chosen(self, why: &str) -> Chosen {
        Chosen { address: self.address, interface: self.interface, why: why.to_owned() }
    }
}

/// The best candidate, followed by the best of the other family: in order of preference, others before loopback, IPv4
/// before IPv6. Loopback is not combined with other addresses. Link-local addresses, which are not valid on another
/// host, are used only if there are no others.
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

/// Finds `address` among `allowed`, with its interface; `None` if it is not there.
fn own(address: SocketAddr, allowed: &[(usize, &Interface)]) -> Option<Candidate> {
    let ip = address.ip().to_canonical();
    let scope = |address: &SocketAddr| if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
    let same_scope = |own: &SocketAddr| scope(&address) == 0 || scope(&address) == scope(own);
    let same = |(_, i): &&(usize, &Interface)| i.address.ip() == ip && same_scope(&i.address);
    if let Some(found) = allowed.iter().find(same) {
        return Some(Candidate { preference: 0, ..Candidate::from(found) });
    }
    // Linux accepts all of 127.0.0.0/8, though the interface lists only 127.0.0.1; Debian maps host names to 127.0.1.1.
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

/// The error if no interface matches the list.
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

/// Finds the source address for a destination.
type Route<'a> = dyn Fn(SocketAddr) -> io::Result<Option<IpAddr>> + 'a;

/// The state of this host when a context connects through a device whose options name nothing, or only exclude
/// interfaces.
pub struct Surroundings<'a> {
    interfaces: Vec<Interface>,
    /// Why the system does not tell which interfaces it has; then there are none in the list, and none are named.
    unlisted: Option<Error>,
    patterns: Option<&'a Patterns>,
    /// Returns the source address that the system would use for a destination.
    route: &'a Route<'a>,
}

impl<'a> Surroundings<'a> {
    /// The current state of the system.
    pub fn here(patterns: Option<&'a Patterns>) -> Result<Self> {
        let (interfaces, unlisted) = match interface::interfaces() {
            Ok(interfaces) => (interfaces, None),
            // Another time, the system may tell.
            Err(error) if error.kind() == ErrorKind::ResourceExhausted => return Err(error),
            Err(error) if patterns.is_none() => (Vec::new(), Some(error)),
            Err(error) => return Err(error),
        };
        Ok(Self { interfaces, unlisted, patterns, route: &source })
    }

    /// The addresses if all ranks are on this host: loopback, if it may be used. One is enough, unless one of
    /// `everyone` has only named addresses of the other family.
    pub fn on_one_host(&self, everyone: &[Address]) -> Result<Vec<Chosen>> {
        let mut found = best(self.loopback()?);
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

    /// The addresses from which this host reaches the store's server. None if the server is on this host, because then
    /// its address does not show how other hosts are reached.
    pub fn towards_store(&self, store: SocketAddr) -> Result<Vec<Chosen>> {
        let mut found: Vec<Chosen> = self.reaching(store, "it reaches the store")?.into_iter().collect();
        self.complete(&mut found);
        Ok(found)
    }

    /// The addresses if ranks are on several hosts: those from which this host reaches the store's server; else those
    /// from which it reaches the ranks on `other` hosts; else those of the default route; else any that is not
    /// loopback.
    pub fn on_several_hosts(
        &self,
        store: Option<SocketAddr>,
        others: &mut dyn Iterator<Item = SocketAddr>,
    ) -> Result<Vec<Chosen>> {
        let mut found = store.map_or(Ok(Vec::new()), |store| self.towards_store(store))?;
        for other in others.take(MAX_OTHERS) {
            if found.iter().all(|c| c.address.is_ipv4() != other.is_ipv4()) {
                found.extend(self.reaching(other, "it reaches another rank's host")?);
            }
        }
        if found.is_empty() {
            // Networks reserved for documentation: no host is there, and nothing is sent.
            let anywhere = ["192.0.2.1:9", "[2001:db8::1]:9"].map(|goal| goal.parse().expect("an address"));
            for goal in anywhere {
                found.extend(self.leaving(goal, "the default route leaves from it")?);
            }
        }
        self.complete(&mut found);
        if found.is_empty() {
            let all = best(self.allowed().iter().map(Candidate::from).collect());
            found.extend(all.into_iter().map(|c| c.chosen("this host has no better one")));
        }
        if let (true, Some(error)) = (found.is_empty(), &self.unlisted) {
            return Err(error.context("this host has no route to other hosts"));
        }
        if found.is_empty() {
            let there = interface::describe(&self.interfaces);
            let hint = self.patterns.map_or(
                "",
                |_| ": the list of interfaces, of the device's options or GLOO_RS_SOCKET_IFNAME, excludes it",
            );
            return Err(Error::invalid(format!("this host has no address to listen on; there are {there}{hint}")));
        }
        Ok(found)
    }

    /// The loopback addresses that may be used.
    fn loopback(&self) -> Result<Vec<Candidate>> {
        if self.unlisted.is_some() {
            let both = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].map(|ip| SocketAddr::new(ip, 0));
            return owned(&both, &is_own);
        }
        let loopback = self.allowed().into_iter().filter(|(_, i)| i.address.ip().is_loopback());
        Ok(loopback.map(|i| Candidate::from(&i)).collect())
    }

    fn allowed(&self) -> Vec<(usize, &Interface)> {
        allowed(&self.interfaces, self.patterns)
    }

    fn reaching(&self, goal: SocketAddr, what: &str) -> Result<Option<Chosen>> {
        // An address of this host may be another host's address as seen from elsewhere.
        let here = goal.ip().is_loopback() || goal.ip().is_unspecified();
        if here { Ok(None) } else { self.leaving(goal, &format!("{what} at {}", goal.ip())) }
    }

    /// The source address for packets to `goal`, if it may be used.
    fn leaving(&self, goal: SocketAddr, why: &str) -> Result<Option<Chosen>> {
        let failed = |error| Error::io(format_args!("cannot find the way to {}", goal.ip()), &error);
        let Some(ip) = (self.route)(goal).map_err(failed)?.filter(|ip| !ip.is_loopback()) else { return Ok(None) };
        if self.unlisted.is_some() {
            // A link-local address is not enough without its interface.
            return Ok((!is_link_local(ip)).then(|| Candidate::of(SocketAddr::new(ip, 0)).chosen(why)));
        }
        let found = self.allowed().into_iter().find(|(_, i)| i.address.ip() == ip);
        Ok(found.map(|found| Candidate::from(&found).chosen(why)))
    }

    /// Adds to a single address the one of the other family on the same interface.
    fn complete(&self, found: &mut Vec<Chosen>) {
        let [Chosen { address, interface: Some(name), .. }] = &found[..] else { return };
        let other = self.allowed().into_iter().find(|(_, i)| {
            i.name == *name && i.address.is_ipv4() != address.is_ipv4() && !is_link_local(i.address.ip())
        });
        let why = format!("it is another address of {name}");
        found.extend(other.map(|other| Candidate::from(&other).chosen(&why)));
    }
}

fn lookup(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((host, 0).to_socket_addrs()?.collect())
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
