//! The ports of this host's InfiniBand and RoCE devices, and which GID of each peers use.

use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::handles::{self, DeviceContext};
use super::library::Library;
use super::sysfs::{GpuDirect, System, natural};
use crate::error::{Error, ErrorKind, Result, first_few};
use crate::sys::socket::is_exhausted;

/// The largest index that an address of a packet can name.
const MAX_GIDS: u32 = 256;

/// What a network card's port belongs to, which decides how packets find their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: by LID, within a subnet.
    InfiniBand,
    /// RoCE: by GID.
    Ethernet,
}

/// Whether a port carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No cable, or the other end is off.
    Down,
    /// The port has a link; with InfiniBand, no subnet manager has configured it.
    Initializing,
    /// A subnet manager is configuring it.
    Armed,
    /// The port carries packets.
    Active,
}

impl State {
    fn of(number: ffi::ibv_port_state::Type) -> Self {
        match number {
            ffi::ibv_port_state::IBV_PORT_ACTIVE => Self::Active,
            ffi::ibv_port_state::IBV_PORT_INIT => Self::Initializing,
            // An active port that has just lost its link and waits for it.
            ffi::ibv_port_state::IBV_PORT_ARMED | ffi::ibv_port_state::IBV_PORT_ACTIVE_DEFER => Self::Armed,
            _ => Self::Down,
        }
    }

    /// The state's name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Initializing => "initializing",
            Self::Armed => "armed",
            Self::Active => "active",
        }
    }
}

impl LinkLayer {
    /// The link layer's name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "RoCE",
        }
    }
}

/// What an entry of a table of GIDs is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    /// InfiniBand.
    InfiniBand = ffi::IBV_GID_TYPE_IB as isize,
    /// RoCE version 1: Ethernet frames, within a broadcast domain.
    RoceV1 = ffi::IBV_GID_TYPE_ROCE_V1 as isize,
    /// RoCE version 2: UDP packets, which are routed.
    RoceV2 = ffi::IBV_GID_TYPE_ROCE_V2 as isize,
}

impl GidType {
    /// The type with this number.
    pub fn of(number: u32) -> Option<Self> {
        match number {
            ffi::IBV_GID_TYPE_IB => Some(Self::InfiniBand),
            ffi::IBV_GID_TYPE_ROCE_V1 => Some(Self::RoceV1),
            ffi::IBV_GID_TYPE_ROCE_V2 => Some(Self::RoceV2),
            _ => None,
        }
    }

    /// The GID type's name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }

    fn works_on(self, layer: LinkLayer) -> bool {
        (self == Self::InfiniBand) == (layer == LinkLayer::InfiniBand)
    }
}

/// An entry of a port's table of GIDs: an address of the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The GID's index in the table.
    pub index: u8,
    /// The GID's 16 bytes.
    pub address: Ipv6Addr,
    /// What it is for.
    pub kind: GidType,
    /// With RoCE: the network interface that has the address, if known.
    pub interface: Option<String>,
}

impl Gid {
    /// How good it is for RoCE; smaller is better. Version 2 is routed and obeys DSCP, so even its link-local addresses
    /// come before version 1.
    fn preference(&self) -> u8 {
        let by_address = match self.address.to_ipv4_mapped() {
            Some(v4) if !v4.is_link_local() => 0,
            None if !self.address.is_unicast_link_local() => 1,
            _ => 2,
        };
        by_address + if self.kind == GidType::RoceV2 { 0 } else { 3 }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.index, self.address, self.kind.name())
    }
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of work requests in a queue.
    pub requests: usize,
    /// The maximum number of completions in a completion queue.
    pub completions: usize,
    /// Most RDMA reads of a queue pair at one time, as target and as initiator.
    pub reads: [u8; 2],
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device's name, as `mlx5_0`.
    pub device: String,
    /// The port's number, from 1 on.
    pub number: u8,
    /// Whether it carries packets.
    pub state: State,
    /// InfiniBand or RoCE.
    pub link_layer: LinkLayer,
    /// The port's local identifier; 0 with RoCE.
    pub lid: u16,
    /// The longest packet, as verbs number it: 1 is 256 bytes, 5 is 4096.
    pub mtu: u32,
    /// Mbit/s, as the link is called: 100000 for EDR with four lanes. 0 if unknown.
    pub speed: u32,
    /// Bytes of the longest message.
    pub max_message: usize,
    /// Limits of the device.
    pub limits: Limits,
    /// The entries of its table of GIDs that are not empty.
    pub gids: Vec<Gid>,
    /// The device's address on the PCI bus, as `0000:3b:00.0`; `None` if it has none.
    pub pci: Option<String>,
    /// The NUMA node of the device, if the system knows it.
    pub numa_node: Option<u32>,
    /// Whether it can access the memory of GPUs.
    pub gpu_direct: GpuDirect,
    /// Why this library cannot use the device, if so.
    pub unusable: Option<String>,
}

impl Port {
    /// Device and port, as `mlx5_0:1`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.device, self.number)
    }

    /// Bytes of the longest packet.
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu.min(7)
    }

    /// The GID by which peers reach the port: the one at `index`; else, with InfiniBand, the first, and with RoCE the
    /// best: an IPv4 address of RoCE v2, then a global IPv6 address of it, then a link-local one, and then the same of
    /// RoCE v1. Fails with `InvalidArgument` if there is none at `index` or if it cannot work, else with `Unsupported`;
    /// both say what the table has.
    pub fn gid(&self, index: Option<u8>) -> Result<&Gid> {
        let works = |gid: &&Gid| gid.kind.works_on(self.link_layer);
        let Some(index) = index else {
            let best = match self.link_layer {
                LinkLayer::InfiniBand => self.gids.iter().find(|gid| gid.index == 0 && works(gid)),
                LinkLayer::Ethernet => self.gids.iter().filter(works).min_by_key(|gid| (gid.preference(), gid.index)),
            };
            let text = || format!("{} has no GID that peers could use; it has {}", self.name(), self.table());
            return best.ok_or_else(|| Error::new(ErrorKind::Unsupported, text()));
        };
        let found = self.gids.iter().find(|gid| gid.index == index);
        found.filter(works).ok_or_else(|| {
            let what = match found {
                Some(gid) => format!("is {}, which does not work with {}", gid.kind.name(), self.link_layer.name()),
                None => "is empty".to_owned(),
            };
            Error::invalid(format!("the GID with index {index} of {} {what}; it has {}", self.name(), self.table()))
        })
    }

    /// The GIDs, for messages.
    fn table(&self) -> String {
        if self.gids.is_empty() { "none".into() } else { first_few(self.gids.iter(), 8, ", ") }
    }

    /// Why it cannot be used, if so.
    pub fn fault(&self) -> Option<String> {
        if let Some(why) = &self.unusable {
            return Some(why.clone());
        }
        match (self.state, self.link_layer) {
            (State::Active, _) => self.gid(None).err().map(|_| "it has no GID".into()),
            (State::Initializing | State::Armed, LinkLayer::InfiniBand) => {
                Some(format!("its state is {}: no subnet manager has configured it", self.state.name()))
            }
            (state, _) => Some(format!("its state is {}", state.name())),
        }
    }
}

/// All ports of this host.
#[derive(Default)]
pub struct Listing {
    /// Ordered by the devices' names, numbers in them counting as such, and by ports.
    pub ports: Vec<Port>,
    /// Devices that could not be asked, and why.
    pub broken: Vec<(String, String)>,
}

/// All ports of this host. Fails with `Unsupported` if there is no device, and says what is missing. Opens the devices
/// meanwhile.
pub fn list(library: &Arc<Library>) -> Result<Listing> {
    list_with(library, &System::default()).map(|(listing, _)| listing)
}

/// All ports and, in the same order, their open devices; `system` is what describes them beside verbs.
pub(super) fn list_with(library: &Arc<Library>, system: &System) -> Result<(Listing, Vec<Arc<DeviceContext>>)> {
    type Queried = std::io::Result<(Arc<DeviceContext>, Vec<Port>)>;
    let queried = handles::for_each_device(library, |name, open| -> (String, Queried) {
        let ports = open().and_then(|context| ports(name, &context, system).map(|ports| (context, ports)));
        (name.to_owned(), ports)
    });
    let queried = queried.map_err(|error| system.no_list(&error))?;
    if queried.is_empty() {
        return Err(system.no_device());
    }
    let (mut found, mut broken) = (Vec::new(), Vec::new());
    for (name, result) in queried {
        match result {
            Ok((context, ports)) => found.extend(ports.into_iter().map(|port| (port, context.clone()))),
            // Another time, there are more ports.
            Err(error) if is_exhausted(&error) => {
                return Err(Error::io(format_args!("cannot tell which ports {name} has"), &error));
            }
            Err(error) => broken.push((name, crate::error::in_words(&error))),
        }
    }
    found.sort_by_key(|(port, _)| (natural(&port.device), port.number));
    let (ports, contexts) = found.into_iter().unzip();
    Ok((Listing { ports, broken }, contexts))
}

/// The ports of an open device.
fn ports(name: &str, context: &DeviceContext, system: &System) -> std::io::Result<Vec<Port>> {
    let device = context.query()?;
    let positive = |number: i32| usize::try_from(number).unwrap_or(0);
    let byte = |number: i32| u8::try_from(number.max(0)).unwrap_or(u8::MAX);
    let limits = Limits {
        requests: positive(device.max_qp_wr),
        completions: positive(device.max_cqe),
        reads: [byte(device.max_qp_rd_atom), byte(device.max_qp_init_rd_atom)],
    };
    let one = |number: u8| {
        let port = context.query_port(number)?;
        Ok(Port {
            device: name.to_owned(),
            number,
            state: State::of(port.state),
            // Unspecified is what drivers say that know InfiniBand only.
            link_layer: match u32::from(port.link_layer) {
                ffi::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::InfiniBand,
            },
            lid: port.lid,
            mtu: port.active_mtu,
            speed: speed(port.active_width, port.active_speed).max(system.rate(name, number)?),
            max_message: port.max_msg_sz as usize,
            limits,
            gids: gids(name, context, number, port.gid_tbl_len, system)?,
            pci: system.pci(name)?,
            numa_node: system.numa_node(name)?,
            gpu_direct: system.gpu_direct(name)?,
            unusable: system.unusable(name)?,
        })
    };
    (1..=device.phys_port_cnt).map(one).collect()
}

fn gids(name: &str, context: &DeviceContext, port: u8, entries: i32, system: &System) -> std::io::Result<Vec<Gid>> {
    let mut gids = Vec::new();
    for index in 0..u32::try_from(entries).unwrap_or(0).min(MAX_GIDS) {
        let Some(entry) = context.query_gid(port, index)? else { continue };
        // SAFETY: every bit pattern is 16 bytes.
        let address = Ipv6Addr::from(unsafe { entry.gid.raw });
        let interface = system.gid_interface(name, port, index)?;
        let (index, kind) = (u8::try_from(index).ok(), GidType::of(entry.gid_type));
        gids.extend(index.zip(kind).map(|(index, kind)| Gid { index, address, kind, interface }));
    }
    Ok(gids)
}

/// Mbit/s of a link with this width and speed, as ports give them; 0 if either is unknown.
pub(super) fn speed(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    // The speed of a lane: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, by their usual names.
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * lane
}

#[cfg(test)]
#[path = "port_tests.rs"]
pub(super) mod tests;
