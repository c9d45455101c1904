//! The choice of the ports that a device uses.

use std::collections::HashMap;
use std::sync::Arc;

use super::handles::{DeviceContext, ProtectionDomain};
use super::library::Library;
use super::memory::MAX_RAILS;
use super::options::{self, HcaList, Options};
use super::port::{self, LinkLayer, Listing, Port};
use super::rail::Rail;
use super::sysfs::System;
use crate::error::{Error, ErrorKind, Result, first_few};
use crate::sys::numa::Nearness;

/// The maximum number of ports that are taken. More share a CPU's memory bandwidth, and each takes queue pairs for
/// every peer, and a key in every record on the wire.
const MAX_PORTS: usize = MAX_RAILS;

/// The ports that [`select`] takes on this host, opened. Fails with `Unsupported` if there is no device, with
/// `InvalidArgument` if the options name what does not exist, and with `Io` if ports are down; messages say what was
/// found.
pub fn choose(library: &Arc<Library>, options: &Options) -> Result<Vec<Arc<Rail>>> {
    let near = Nearness::here().map_err(|error| Error::io("cannot tell which NUMA node is near", &error))?;
    choose_with(library, options, &System::default(), &near)
}

/// Like [`choose`], on a host that `system` describes, for a thread at `near`.
pub(super) fn choose_with(
    library: &Arc<Library>,
    options: &Options,
    system: &System,
    near: &Nearness,
) -> Result<Vec<Arc<Rail>>> {
    let (listing, contexts) = port::list_with(library, system)?;
    let mut domains = HashMap::new();
    let opened = |at: usize| {
        let port = &listing.ports[at];
        let failed = |error| Error::io(format_args!("cannot use {}", port.name()), &error);
        let domain = match domains.get(&port.device) {
            Some(domain) => Arc::clone(domain),
            None => {
                let domain = ProtectionDomain::new(Arc::<DeviceContext>::clone(&contexts[at])).map_err(failed)?;
                domains.insert(port.device.clone(), domain.clone());
                domain
            }
        };
        rail(port, domain, options.gid_index).map(Arc::new)
    };
    select(&listing, options, near)?.into_iter().map(opened).collect()
}

fn rail(port: &Port, domain: Arc<ProtectionDomain>, gid_index: Option<u8>) -> Result<Rail> {
    let gid = port.gid(gid_index)?;
    Ok(Rail {
        name: port.name(),
        domain,
        port: port.number,
        link_layer: port.link_layer,
        lid: port.lid,
        gid: gid.address.octets(),
        gid_type: gid.kind,
        gid_index: gid.index,
        mtu: port.mtu,
        max_message: port.max_message,
        speed: port.speed,
        max_requests: port.limits.requests,
        max_completions: port.limits.completions,
        max_reads: port.limits.reads,
    })
}

/// What is used, for a reader: `mlx5_0:1 (RoCE, 100000 Mbit/s, GID 3: ::ffff:10.0.0.1)`.
pub fn summary(rail: &Rail) -> String {
    let Rail { name, link_layer, lid, gid, gid_index, speed, .. } = rail;
    let address = match link_layer {
        LinkLayer::InfiniBand => format!("LID {lid}"),
        LinkLayer::Ethernet => format!("GID {gid_index}: {}", std::net::Ipv6Addr::from(*gid)),
    };
    format!("{name} ({}, {speed} Mbit/s, {address})", link_layer.name())
}

/// The indices of the ports to use, the best first.
///
/// If the options name at most four ports, they are those, in the order of the names; names that stand for several
/// ports stand for the active ones. Otherwise they are, among those named, or those that a list does not exclude, the
/// fastest active ports of the cards nearest to the calling thread, at most four. They are of one kind: InfiniBand, if
/// it is not slower than RoCE.
pub fn select(listing: &Listing, options: &Options, near: &Nearness) -> Result<Vec<usize>> {
    let ports = &listing.ports;
    let list = options.hca.as_deref().map(|text| HcaList::parse(options::HCA, text)).transpose()?;
    match &list {
        Some(list) if !list.excludes => {
            let named = named(listing, list, options)?;
            if named.len() > MAX_PORTS { automatic(listing, &named, near) } else { Ok(named) }
        }
        _ => {
            let excluded = |port: &Port| {
                let items = list.iter().flat_map(|list| &list.items);
                items.into_iter().any(|item| item.matches(&port.device, port.number, None))
            };
            let may = |port: &Port| options.port.is_none_or(|number| number == port.number) && !excluded(port);
            let allowed: Vec<_> = (0..ports.len()).filter(|&at| may(&ports[at])).collect();
            if allowed.is_empty() && !ports.is_empty() {
                return Err(Error::invalid(format!("the options allow none of this host's ports: {}", names(listing))));
            }
            automatic(listing, &allowed, near)
        }
    }
}

/// The ports for which the items of `list` stand.
fn named(listing: &Listing, list: &HcaList, options: &Options) -> Result<Vec<usize>> {
    let ports = &listing.ports;
    let mut chosen = Vec::new();
    for item in &list.items {
        let matches = |port: &Port| item.matches(&port.device, port.number, options.port);
        let matching: Vec<_> = (0..ports.len()).filter(|&at| matches(&ports[at])).collect();
        if matching.is_empty() {
            let port = options.port.map(|port| format!(" with port {port}")).unwrap_or_default();
            let text = format!("no port of this host is called {item}{port}; it has {}", names(listing));
            return Err(Error::invalid(text));
        }
        let before = chosen.len();
        let mut known = false;
        for at in matching.iter().copied().filter(|&at| ports[at].fault().is_none()) {
            known |= chosen.contains(&at);
            if !chosen.contains(&at) {
                chosen.push(at);
            }
        }
        if chosen.len() == before && !known {
            return Err(unusable(listing, &matching, &format!("{item} cannot be used")));
        }
    }
    Ok(chosen)
}

/// The best of the ports `allowed`.
fn automatic(listing: &Listing, allowed: &[usize], near: &Nearness) -> Result<Vec<usize>> {
    let port = |at: usize| &listing.ports[at];
    let mut usable: Vec<_> = allowed.iter().copied().filter(|&at| port(at).fault().is_none()).collect();
    // Speed decides first, which is the same for all ranks of a host, so that they choose one kind of ports.
    let kind = |at: usize| (port(at).speed, port(at).link_layer == LinkLayer::InfiniBand);
    let Some(best) = usable.iter().map(|&at| kind(at)).max() else {
        return Err(unusable(listing, allowed, "no InfiniBand or RoCE port of this host can be used"));
    };
    usable.retain(|&at| kind(at) == best);
    let distance = |at: usize| near.distance(port(at).numa_node);
    let nearest = usable.iter().map(|&at| distance(at)).min();
    usable.retain(|&at| Some(distance(at)) == nearest);
    usable.truncate(MAX_PORTS);
    Ok(usable)
}

/// The ports and the devices that could not be asked, for messages.
fn names(listing: &Listing) -> String {
    let ports = listing.ports.iter().map(Port::name);
    let broken = listing.broken.iter().map(|(name, why)| format!("{name} ({why})"));
    let all: Vec<_> = ports.chain(broken).collect();
    if all.is_empty() { "none".into() } else { first_few(all.iter(), 16, ", ") }
}

/// `what`, and why for each port `at` and each device that could not be asked.
fn unusable(listing: &Listing, at: &[usize], what: &str) -> Error {
    let reason = |port: &Port| {
        let why = port.fault().unwrap_or_default();
        format!("{} ({}): {why}", port.name(), port.link_layer.name())
    };
    let ports = at.iter().map(|&at| reason(&listing.ports[at]));
    let broken = listing.broken.iter().map(|(name, why)| format!("{name}: {why}"));
    let all: Vec<_> = ports.chain(broken).collect();
    Error::new(ErrorKind::Io, format!("{what}: {}", first_few(all.iter(), 8, "; ")))
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
