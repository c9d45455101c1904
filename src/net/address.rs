//! The address that a rank publishes, so that others can connect to it.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::error::{Error, Result, first_few};
use crate::net::handshake::{self, Identity};
use crate::secret::{JobToken, SecretKey};
use crate::sys::process::Descriptor;
use crate::sys::topology::{Place, affinity, domain};
use crate::types::Rank;
use crate::wire::VERSION;

/// The maximum number of sockets of an address: one of each family.
pub const MAX_SOCKETS: usize = 2;

/// The sockets on which a rank's context listens, its identity, and its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Identity of the context. Processes that know it, and the job's token, may connect.
    pub identity: Identity,
    /// The sockets on which it listens: at most one of each family, the preferred one first.
    pub sockets: Vec<SocketAddr>,
    /// Digest of the host; see [`this_host::host`](super::this_host::host).
    pub host: u64,
    /// Digest of what its addresses belong to; see [`this_host::network`](super::this_host::network).
    pub network: u32,
    /// Digest of the cores on which the process may run; see [`cores`].
    pub cores: u64,
    /// The cache and the socket of these cores.
    pub place: Place,
    /// The memory that ranks of the same host may open; `None` if it shares none.
    pub segment: Option<Descriptor>,
    /// Whether messages use queue pairs of InfiniBand or RoCE, if the peer's do as well.
    pub ibverbs: bool,
    /// How many connections it wants in a link; 0 if that is for the tuner to say.
    pub streams: u8,
}

const SOCKET_BYTES: usize = 16 + 4 + 2;
/// Offset of the sockets.
const SOCKETS_AT: usize = 1 + 16 + 8 + 8 + 8 + 4 + 4 + 1 + 1 + 4;
const ADDRESS_BYTES: usize = SOCKETS_AT + MAX_SOCKETS * SOCKET_BYTES;

impl Address {
    /// The address by which the rank with this one agrees with others on who is left. Its identity follows from this
    /// one's.
    pub fn for_agreements(&self) -> Self {
        let derived = SecretKey::derive(&JobToken::none(), "gloo_rs agreements", &self.identity);
        let proof = derived.prove("identity", &[]);
        let identity = std::array::from_fn(|i| proof[i]);
        Self { identity, segment: None, ibverbs: false, streams: 1, ..self.clone() }
    }

    /// Tells this context, and this membership of it, from others in remote keys. The identity does not follow from it.
    pub fn context_number(&self) -> u32 {
        let [a, b, c, d, ..] = handshake::handle(&self.identity);
        u32::from_le_bytes([a, b, c, d])
    }

    /// Encodes the address for other ranks. The length is constant; an unused socket is all zeros.
    pub fn serialize(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ADDRESS_BYTES);
        out.push(VERSION);
        out.extend_from_slice(&self.identity);
        out.extend_from_slice(&self.host.to_le_bytes());
        out.extend_from_slice(&self.cores.to_le_bytes());
        out.extend_from_slice(&self.place.serialize());
        // No process has the number 0.
        let Descriptor { process, number } = self.segment.unwrap_or(Descriptor { process: 0, number: 0 });
        out.extend_from_slice(&process.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.push(u8::from(self.ibverbs));
        out.push(self.streams);
        out.extend_from_slice(&self.network.to_le_bytes());
        for socket in self.sockets.iter().take(MAX_SOCKETS) {
            let (ip, scope) = match socket {
                SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
                SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
            };
            out.extend_from_slice(&ip.octets());
            out.extend_from_slice(&scope.to_le_bytes());
            out.extend_from_slice(&socket.port().to_le_bytes());
        }
        out.resize(ADDRESS_BYTES, 0);
        out
    }

    /// Decodes the result of `serialize`.
    pub fn deserialize(bytes: &[u8]) -> Result<Self> {
        if bytes.len() != ADDRESS_BYTES || bytes[0] != VERSION {
            return Err(Error::invalid(format!(
                "not an address of a TCP context of version {VERSION}: {} bytes that begin with {:?}",
                bytes.len(),
                bytes.first()
            )));
        }
        let socket = |bytes: &[u8]| {
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..16]).expect("16 bytes"));
            let scope = u32::from_le_bytes(bytes[16..20].try_into().expect("4 bytes"));
            let port = u16::from_le_bytes(bytes[20..22].try_into().expect("2 bytes"));
            match ip.to_ipv4_mapped() {
                Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
                None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
            }
        };
        Ok(Self {
            identity: bytes[1..17].try_into().expect("16 bytes"),
            sockets: bytes[SOCKETS_AT..]
                .chunks_exact(SOCKET_BYTES)
                .map(socket)
                .filter(|s| !s.ip().is_unspecified())
                .collect(),
            host: u64::from_le_bytes(bytes[17..25].try_into().expect("8 bytes")),
            cores: u64::from_le_bytes(bytes[25..33].try_into().expect("8 bytes")),
            place: Place::deserialize(bytes[33..41].try_into().expect("8 bytes")),
            segment: Some(Descriptor {
                process: u32::from_le_bytes(bytes[41..45].try_into().expect("4 bytes")),
                number: u32::from_le_bytes(bytes[45..49].try_into().expect("4 bytes")),
            })
            .filter(|segment| segment.process != 0),
            ibverbs: bytes[49] != 0,
            streams: bytes[50],
            network: u32::from_le_bytes(bytes[51..55].try_into().expect("4 bytes")),
        })
    }

    /// Whether two results of `serialize` belong to the same context.
    pub fn is_same_context(one: &[u8], other: &[u8]) -> bool {
        one.get(..17) == other.get(..17)
    }

    /// The sockets of this rank to which a rank with the address `from` can connect, in this rank's order: on the same
    /// host all, otherwise those that are not loopback and whose family that rank has too.
    pub fn ways_from(&self, from: &Address) -> Vec<SocketAddr> {
        let one_host = self.host == from.host;
        let usable = |address: &Address| -> Vec<SocketAddr> {
            address.sockets.iter().filter(|s| one_host || !s.ip().is_loopback()).copied().collect()
        };
        let theirs = usable(from);
        let mut ways = usable(self);
        ways.retain(|way| one_host || theirs.iter().any(|s| s.is_ipv4() == way.is_ipv4()));
        ways
    }
}

/// The cores on which this process may run: their number in the low 16 bits (fewer if its CPU time is limited), and
/// above it a digest of the set. Launchers bind each rank to its own cores, so the cores of one rank do not give the
/// number of cores of the host.
pub fn cores() -> u64 {
    // If the system does not say, the set is empty, on all ranks.
    let cores = affinity().unwrap_or_default().into_iter().map(u64::from);
    let digest = cores.fold(0xcbf2_9ce4_8422_2325, |h: u64, core| (h ^ core).wrapping_mul(0x0100_0000_01b3));
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    digest << 16 | count.min(0xffff) as u64
}

/// Number of cores on which the ranks at `addresses` may run together; each set of cores is counted once.
pub fn count_cores<'a>(addresses: impl Iterator<Item = &'a Address>) -> usize {
    let mut sets: Vec<u64> = addresses.map(|address| address.cores).collect();
    sets.sort_unstable();
    sets.dedup();
    sets.iter().map(|set| (set & 0xffff) as usize).sum()
}

/// The host of each rank as a number; hosts are numbered in the order of their first ranks.
pub fn number_hosts(addresses: &[Address]) -> Box<[u32]> {
    number(addresses.iter().map(|address| address.host)).into()
}

/// Numbers equal values alike, in the order in which they first appear.
fn number<T: Eq + Hash>(values: impl Iterator<Item = T>) -> Vec<u32> {
    let mut numbers = HashMap::new();
    let number = |value| {
        let next = numbers.len() as u32;
        *numbers.entry(value).or_insert(next)
    };
    values.map(number).collect()
}

/// The last-level cache of each rank of one host, and in the upper 16 bits its socket: equal numbers are one cache.
/// Both are numbered in the order of their first ranks. Caches count only if those of all ranks are known, and sockets
/// as well. Empty if all ranks have the same number, or if there are several hosts.
pub fn number_caches(addresses: &[Address]) -> Vec<u32> {
    let one_host = addresses.windows(2).all(|pair| pair[0].host == pair[1].host);
    if !one_host || addresses.len() > 1 << 16 {
        return Vec::new();
    }
    let of_all = |of: fn(&Place) -> Option<u32>| {
        let known: Option<Vec<u32>> = addresses.iter().map(|address| of(&address.place)).collect();
        known.map_or_else(|| vec![0; addresses.len()], |known| number(known.into_iter()))
    };
    let (caches, sockets) = (of_all(|place| place.cache), of_all(|place| place.socket));
    let numbers: Vec<u32> = caches.iter().zip(&sockets).map(|(cache, socket)| domain(*socket, *cache)).collect();
    if numbers.windows(2).all(|pair| pair[0] == pair[1]) { Vec::new() } else { numbers }
}

/// Whether any host has several of the ranks at `addresses`, all of which have memory to share.
pub fn any_share_memory<'a>(addresses: impl Iterator<Item = &'a Address>) -> bool {
    let mut hosts = HashMap::new();
    for address in addresses {
        let (ranks, share) = hosts.entry(address.host).or_insert((0, true));
        *ranks += 1;
        *share &= address.segment.is_some();
    }
    hosts.values().any(|(ranks, share)| *ranks > 1 && *share)
}

/// The maximum number of ranks that a message names.
const MAX_SHOWN_RANKS: usize = 16;

/// How an interface is named.
pub const BY_NAME: &str = "by the device's options or GLOO_RS_SOCKET_IFNAME";

/// Checks from the addresses whether all these ranks can connect to each other. All ranks get the same
/// result. `named`: the numbers of ranks in errors.
pub fn check(addresses: &[Address], named: &dyn Fn(Rank) -> Rank) -> Result<()> {
    let mut hosts: Vec<u64> = addresses.iter().map(|a| a.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let several = hosts.len() > 1;
    let loopback: Vec<Rank> = (0..addresses.len())
        .filter(|rank| several && addresses[*rank].sockets.iter().all(|s| s.ip().is_loopback()))
        .collect();
    if let Some(first) = loopback.first() {
        let (ranks, listen) = if loopback.len() == 1 { ("rank", "listens") } else { ("ranks", "listen") };
        return Err(Error::invalid(format!(
            "the ranks run on {} hosts, but {ranks} {} {listen} on loopback ({}), where other hosts cannot connect: name an \
             interface or an address that they reach, {BY_NAME}; if a host name was \
             given, see that /etc/hosts does not make it 127.0.0.1 or 127.0.1.1",
            hosts.len(),
            first_few(loopback.iter().map(|rank| named(*rank)), MAX_SHOWN_RANKS, ", "),
            ips(&addresses[*first]),
        )));
    }
    let only = |v4: bool| {
        let usable = |s: &&SocketAddr| !s.ip().is_loopback();
        addresses.iter().position(|a| a.sockets.iter().filter(usable).all(|s| s.is_ipv4() == v4))
    };
    if several && let (Some(a), Some(b)) = (only(true), only(false)) {
        return Err(Error::invalid(format!(
            "rank {} listens on IPv4 only ({}) and rank {} on IPv6 only ({}), so they cannot connect to each other: give \
             their hosts a family in common, or name interfaces that have one, {BY_NAME}",
            named(a),
            ips(&addresses[a]),
            named(b),
            ips(&addresses[b]),
        )));
    }
    check_are_distinct(addresses, named)
}

/// Fails if a rank has only addresses that a rank on another host has as well: bridges of containers and virtual
/// machines often have the same on every host. Whoever connects to it reaches a process of his own host.
fn check_are_distinct(addresses: &[Address], named: &dyn Fn(Rank) -> Rank) -> Result<()> {
    let known = || addresses.iter().enumerate().filter(|(_, address)| address.network != 0);
    let ips_of = |address: &Address| -> Vec<IpAddr> {
        address.sockets.iter().map(SocketAddr::ip).filter(|ip| !ip.is_loopback()).collect()
    };
    // The first rank that has an address, and the first one on another network that has it.
    let mut owners: HashMap<IpAddr, (Rank, Option<Rank>)> = HashMap::new();
    for (rank, address) in known() {
        for ip in ips_of(address) {
            let (first, other) = owners.entry(ip).or_insert((rank, None));
            if addresses[*first].network != address.network {
                other.get_or_insert(rank);
            }
        }
    }
    for (rank, address) in known() {
        let foreign = |ip: &IpAddr| {
            let (first, other) = owners[ip];
            if addresses[first].network != address.network { Some(first) } else { other }
        };
        let others: Option<Vec<Rank>> = ips_of(address).iter().map(foreign).collect();
        if let Some(other) = others.and_then(|others| others.first().copied()) {
            let (first, second) = (named(rank.min(other)), named(rank.max(other)));
            return Err(Error::invalid(format!(
                "rank {first} and rank {second} run on different hosts, but both listen at {}: an address that is the same on several \
                 hosts, as those of bridges are, leads nowhere; name an interface or a network whose addresses differ, {BY_NAME}",
                ips(address)
            )));
        }
    }
    Ok(())
}

fn ips(address: &Address) -> String {
    address.sockets.iter().map(|s| s.ip().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The ranks have the numbers that they have.
    fn same(rank: Rank) -> Rank {
        rank
    }

    proptest! {
        #[test]
        fn addresses_survive_encoding(identity: [u8; 16], v4: Option<u32>, v6: Option<u128>, port: u16, host: u64, segment: Option<u32>, cpus: [Option<u32>; 2]) {
            let v4 = v4.map(|ip| SocketAddr::new(IpAddr::V4((ip | 1).into()), port));
            let v6 = v6.map(|ip| SocketAddr::new(IpAddr::V6((ip | 1 << 127).into()), port));
            let segment = segment.map(|number| Descriptor { process: number | 1, number });
            for sockets in [[v4, v6], [v6, v4]] {
                let sockets = sockets.into_iter().flatten().collect();
                let [cache, socket] = cpus.map(|cpu| cpu.filter(|cpu| *cpu != u32::MAX));
                let place = Place { cache, socket };
                let address = Address { identity, sockets, host, network: !host as u32, cores: host.rotate_left(7), place, segment, ibverbs: host % 2 == 1, streams: port as u8 };
                let bytes = address.serialize();
                prop_assert_eq!(bytes.len(), ADDRESS_BYTES);
                prop_assert_eq!(Address::deserialize(&bytes).unwrap(), address);
            }
        }

        #[test]
        fn any_bytes_are_an_address_or_an_error(bytes: Vec<u8>) {
            let _ = Address::deserialize(&bytes);
        }
    }

    fn address(host: u64, sockets: &[&str]) -> Address {
        let socket = |ip: &&str| SocketAddr::new(ip.parse().unwrap(), 7);
        Address {
            identity: [0; 16],
            sockets: sockets.iter().map(socket).collect(),
            host,
            network: host as u32,
            cores: 1,
            place: Place::default(),
            segment: None,
            ibverbs: false,
            streams: 1,
        }
    }

    #[test]
    fn only_sockets_of_a_common_family_are_used_and_loopback_only_on_one_host() {
        let both = address(1, &["fd00::1", "10.0.0.1"]);
        for (to, from, expected) in [
            (&both, address(2, &["10.0.0.2", "fd00::2"]), &["fd00::1", "10.0.0.1"][..]),
            (&both, address(2, &["10.0.0.2"]), &["10.0.0.1"]),
            (&both, address(2, &["10.0.0.2", "::1"]), &["10.0.0.1"]),
            (&both, address(1, &["127.0.0.1", "::1"]), &["fd00::1", "10.0.0.1"]),
            (&address(1, &["127.0.0.1", "fd00::1"]), address(2, &["10.0.0.2", "fd00::2"]), &["fd00::1"]),
            (&address(1, &["127.0.0.1"]), address(1, &["10.0.0.1"]), &["127.0.0.1"]),
            (&address(1, &["127.0.0.1"]), address(1, &["::1"]), &["127.0.0.1"]),
            (&address(1, &["10.0.0.1"]), address(2, &["fd00::2"]), &[]),
        ] {
            let ways: Vec<String> = to.ways_from(&from).iter().map(|s| s.ip().to_string()).collect();
            assert_eq!(ways, expected, "{to:?} from {from:?}");
        }
    }

    #[test]
    fn hosts_are_numbered_in_the_order_of_ranks() {
        let addresses = [9, 3, 9, 0, 3].map(|host| address(host, &[]));
        assert_eq!(*number_hosts(&addresses), [0, 1, 0, 2, 1]);
        assert!(number_hosts(&[]).is_empty());
    }

    #[test]
    fn caches_are_numbered_if_there_are_several_and_all_are_known() {
        let on = |host: u64, cache: Option<u32>, socket: Option<u32>| Address {
            place: Place { cache, socket },
            ..address(host, &[])
        };
        let here = |cache: u32, socket: u32| on(1, Some(cache), Some(socket));
        assert_eq!(
            number_caches(&[here(8, 8), here(0, 0), here(8, 8), here(4, 0)]),
            [0, domain(1, 1), 0, domain(1, 2)]
        );
        assert_eq!(number_caches(&[here(4, 4), here(4, 4)]), []);
        let unbound = on(1, None, Some(4));
        assert_eq!(
            number_caches(&[here(0, 0), unbound.clone(), here(4, 4)]),
            [0, domain(1, 0), domain(1, 0)],
            "sockets only"
        );
        assert_eq!(number_caches(&[here(4, 4), unbound]), []);
        assert_eq!(number_caches(&[on(1, Some(0), None), here(4, 0)]), [0, 1], "caches only");
        assert_eq!(number_caches(&[here(0, 0), on(2, Some(4), Some(4))]), [], "two hosts");
        assert_eq!(number_caches(&[]), []);
    }

    #[test]
    fn cores_that_ranks_share_count_once() {
        let on = |cores: &[u64]| {
            let addresses: Vec<_> = cores.iter().map(|&cores| Address { cores, ..address(1, &[]) }).collect();
            count_cores(addresses.iter())
        };
        // Unbound on four cores; bound to one each; to two each, two by two.
        assert_eq!(on(&[7 << 16 | 4; 3]), 4);
        assert_eq!(on(&[1 << 16 | 1, 2 << 16 | 1, 3 << 16 | 1]), 3);
        assert_eq!(on(&[1 << 16 | 2, 2 << 16 | 2, 1 << 16 | 2, 2 << 16 | 2]), 4);
        assert_eq!((cores() & 0xffff) as usize, std::thread::available_parallelism().unwrap().get());
    }

    #[test]
    fn memory_is_shared_on_a_host_if_all_its_ranks_can() {
        let shares = |ranks: &[(u64, bool)]| {
            let segment = |has: bool| has.then_some(Descriptor { process: 1, number: 2 });
            let rank = |(host, has): &(u64, bool)| Address { segment: segment(*has), ..address(*host, &[]) };
            any_share_memory(ranks.iter().map(rank).collect::<Vec<_>>().iter())
        };
        assert!(shares(&[(1, true), (2, false), (1, true)]));
        assert!(!shares(&[(1, true), (2, true)]));
        assert!(!shares(&[(1, true), (1, true), (1, false)]));
        assert!(shares(&[(1, true), (2, true), (1, false), (2, true)]));
    }

    #[test]
    fn an_address_of_several_hosts_is_refused_unless_there_is_another() {
        let (bridge, own) = ("172.17.0.1", ["10.0.0.1", "10.0.0.2"]);
        let text = check(&[address(1, &[bridge]), address(1, &[bridge]), address(2, &[bridge])], &same).unwrap_err();
        for part in ["rank 0 and rank 2 run on different hosts", bridge, "GLOO_RS_SOCKET_IFNAME"] {
            assert!(text.message().contains(part), "{text}");
        }
        // The one that has another address reaches only itself at the bridge's.
        let (lone, two) = (address(1, &[bridge]), address(2, &["fd00::2", bridge]));
        for addresses in [[lone.clone(), two.clone()], [two, lone]] {
            let text = check(&addresses, &same).unwrap_err();
            let expected = format!("rank 0 and rank 1 run on different hosts, but both listen at {bridge}: ");
            assert!(text.message().starts_with(&expected), "{text}");
        }
        check(&[address(1, &[bridge, "fd00::1"]), address(2, &["fd00::2", bridge])], &same).unwrap();
        check(&[address(1, &[own[0]]), address(2, &[own[1]]), address(1, &[own[0]])], &same).unwrap();
        // Containers on one host's network, which have names of their own; and hosts that hide what they are.
        for network in [7, 0] {
            let on = |host| Address { network, ..address(host, &[own[0]]) };
            check(&[on(1), on(2)], &same).unwrap();
        }
    }

    #[test]
    fn ranks_have_the_numbers_of_the_context_of_the_call() {
        let text = |addresses: &[Address]| check(addresses, &|rank| rank + 4).unwrap_err().message().to_owned();
        let loopback = text(&[address(1, &["10.0.0.1"]), address(2, &["127.0.0.1"])]);
        assert!(loopback.contains("rank 5 listens on loopback"), "{loopback}");
        let families = text(&[address(1, &["10.0.0.1"]), address(2, &["fd00::2"])]);
        assert!(families.contains("rank 4 listens on IPv4") && families.contains("rank 5 on IPv6"), "{families}");
        let bridges = text(&[address(1, &["172.17.0.1"]), address(2, &["172.17.0.1"])]);
        assert!(bridges.contains("rank 4 and rank 5 run on different hosts"), "{bridges}");
    }

    #[test]
    fn ranks_that_cannot_connect_are_named() {
        let refused = |addresses: &[Address]| check(addresses, &same).unwrap_err().message().to_owned();
        check(&[address(1, &["127.0.0.1"]), address(1, &["10.0.0.1"]), address(1, &["::1"])], &same).unwrap();
        check(&[address(1, &["10.0.0.1"]), address(2, &["10.0.0.2", "fd00::2"]), address(3, &["10.0.0.3"])], &same)
            .unwrap();
        check(&[address(1, &["10.0.0.1", "::1"]), address(2, &["10.0.0.2"])], &same).unwrap();
        let text = refused(&[address(1, &["10.0.0.1"]), address(2, &["127.0.0.1", "::1"]), address(2, &["10.0.0.2"])]);
        assert!(text.contains("on 2 hosts, but rank 1 listens on loopback (127.0.0.1, ::1)"), "{text}");
        let text = refused(&[address(1, &["127.0.1.1"]), address(2, &["127.0.1.1"])]);
        assert!(text.contains("but ranks 0, 1 listen on loopback (127.0.1.1)"), "{text}");
        let text =
            refused(&[address(1, &["10.0.0.1", "fd00::1"]), address(2, &["fd00::2"]), address(3, &["10.0.0.3"])]);
        assert!(text.contains("rank 2 listens on IPv4 only (10.0.0.3) and rank 1 on IPv6 only (fd00::2)"), "{text}");
        let text = refused(&[address(1, &["10.0.0.1", "::1"]), address(2, &["fd00::2"])]);
        assert!(text.contains("rank 0 listens on IPv4 only") && text.contains("rank 1 on IPv6 only"), "{text}");
        let many: Vec<Address> = (0..40).map(|rank| address(rank, &["127.0.0.1"])).collect();
        assert!(refused(&many).contains("14, 15 and 24 more listen on loopback"));
    }
}
