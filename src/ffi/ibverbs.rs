//! The transport `ibverbs`: its options, and the ports of this host.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use super::guard::guard;
use super::options::{self, Options};
use super::pointer;
use super::status::gloo_rs_status_t;
use crate::error::{Error, Result};
use crate::net::stream::Transport;

/// The value of a number in gloo_rs_ibverbs_options_t that is not given: the environment variable says it, else the
/// library.
pub const GLOO_RS_IBVERBS_DEFAULT: i32 = -1;

/// The ports that a device with the transport `ibverbs` uses, and attributes of its connections. What is NULL or
/// GLOO_RS_IBVERBS_DEFAULT is taken from the environment: GLOO_RS_IB_HCA, GLOO_RS_IB_PORT, GLOO_RS_IB_GID_INDEX,
/// GLOO_RS_IB_TRAFFIC_CLASS, GLOO_RS_IB_TIMEOUT and GLOO_RS_IB_RETRY_COUNT. Initialise with
/// gloo_rs_ibverbs_options_init: zero is a value of most numbers, not their default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_ibverbs_options_t {
    /// sizeof(gloo_rs_ibverbs_options_t).
    pub struct_size: usize,
    /// The ports, in order of preference, as `mlx5_0:1,mlx5_1`: each name stands for all devices whose names begin so,
    /// with `=` before the list for that device only; `^` before the list excludes its items. By default, and of more
    /// than four that are named, the fastest active ports of the cards nearest to the calling thread's NUMA node, at
    /// most four. Copied.
    pub hca: *const c_char,
    /// The port's number, from 1 on, where `hca` gives none. By default any.
    pub port: i32,
    /// The index of the GID in each port's table, 0 to 255. By default 0 with InfiniBand, and with RoCE that of an IPv4
    /// address of version 2, if there is one.
    pub gid_index: i32,
    /// The traffic class of packets, 0 to 255; with RoCE, the upper six bits are the DSCP. By default 0.
    pub traffic_class: i32,
    /// How long a packet waits for its acknowledgement: 4.096 us * 2^timeout, 1 to 31; 0 is for ever. By default 18,
    /// which is 1.1 s.
    pub timeout: i32,
    /// How often a packet is sent again before the connection breaks, 0 to 7. By default 7.
    pub retry_count: i32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), a usize first, a pointer, and integers only.
unsafe impl Options for gloo_rs_ibverbs_options_t {
    const NAME: &'static str = "gloo_rs_ibverbs_options_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {
        let default = GLOO_RS_IBVERBS_DEFAULT;
        (self.port, self.gid_index, self.traffic_class) = (default, default, default);
        (self.timeout, self.retry_count) = (default, default);
    }
}

/// Sets `*options` to defaults. `struct_size` is sizeof(gloo_rs_ibverbs_options_t); at most that many bytes are
/// written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_ibverbs_options_init(options: *mut gloo_rs_ibverbs_options_t, struct_size: usize) {
    // SAFETY: the header demands that `options` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(options, struct_size) }
}

/// Whether a port carries packets.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_ibverbs_state_t {
    /// No cable, or the other end is off.
    GLOO_RS_IBVERBS_DOWN = 0,
    /// The port has a link; with InfiniBand, no subnet manager has configured it.
    GLOO_RS_IBVERBS_INITIALIZING = 1,
    /// A subnet manager is configuring it.
    GLOO_RS_IBVERBS_ARMED = 2,
    /// The port carries packets.
    GLOO_RS_IBVERBS_ACTIVE = 3,
}

/// To what a port belongs.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_ibverbs_link_layer_t {
    /// InfiniBand.
    GLOO_RS_IBVERBS_INFINIBAND = 0,
    /// Ethernet.
    GLOO_RS_IBVERBS_ROCE = 1,
}

/// What a GID is for.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_ibverbs_gid_type_t {
    /// InfiniBand.
    GLOO_RS_IBVERBS_GID_IB = 0,
    /// RoCE version 1: Ethernet frames, within a broadcast domain.
    GLOO_RS_IBVERBS_GID_ROCE_V1 = 1,
    /// RoCE version 2: UDP packets.
    GLOO_RS_IBVERBS_GID_ROCE_V2 = 2,
}

/// By what a device accesses the memory of GPUs.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum gloo_rs_ibverbs_gpu_t {
    /// The device cannot access GPU memory, as far as is known.
    GLOO_RS_IBVERBS_GPU_NONE = 0,
    /// By a module of the kernel, nvidia_peermem or nv_peer_mem.
    GLOO_RS_IBVERBS_GPU_PEER_MEMORY = 1,
    /// By dma-buf. Concluded from the kernel and the drivers, not tried.
    GLOO_RS_IBVERBS_GPU_DMA_BUF = 2,
}

/// A port of an InfiniBand or RoCE device. Texts end with NUL; longer ones are cut. Initialise with
/// gloo_rs_ibverbs_port_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_ibverbs_port_t {
    /// sizeof(gloo_rs_ibverbs_port_t).
    pub struct_size: usize,
    /// The device's name, such as `mlx5_0`.
    pub device: [c_char; 64],
    /// The device's address on the PCI bus, such as `0000:3b:00.0`; empty if it has none.
    pub pci: [c_char; 32],
    /// Why the library cannot use the port, such as `its state is down`; empty if it can.
    pub fault: [c_char; 160],
    /// How `gpu` is known.
    pub gpu_why: [c_char; 160],
    /// The port's number, from 1 on.
    pub port: u32,
    /// The port's state.
    pub state: MaybeUninit<gloo_rs_ibverbs_state_t>,
    /// InfiniBand or RoCE.
    pub link_layer: MaybeUninit<gloo_rs_ibverbs_link_layer_t>,
    /// The port's local identifier; 0 with RoCE.
    pub lid: u32,
    /// Bytes of the longest packet.
    pub mtu: u32,
    /// Mbit/s, such as 100000; 0 if unknown.
    pub speed_mbps: u32,
    /// The device's NUMA node; -1 if unknown.
    pub numa_node: i32,
    /// By what the device accesses the memory of GPUs.
    pub gpu: MaybeUninit<gloo_rs_ibverbs_gpu_t>,
    /// Bytes of the longest message.
    pub max_message_bytes: u64,
    /// The maximum number of work requests in a queue.
    pub max_requests: u32,
    /// The maximum number of completions in a completion queue.
    pub max_completions: u32,
    /// Most RDMA reads of a queue pair at one time, of this port's memory.
    pub max_reads_as_target: u32,
    /// Most RDMA reads of a queue pair at one time, of the peer's memory.
    pub max_reads_as_initiator: u32,
    /// Entries of its table of GIDs that are not empty; gloo_rs_ibverbs_gids lists them.
    pub gids: u32,
    /// The index of the GID that is used unless an index is given; -1 if there is none.
    pub gid_index: i32,
}

// SAFETY: repr(C), a usize first, and integers, arrays of them, and enumerations that may have any number.
unsafe impl Options for gloo_rs_ibverbs_port_t {
    const NAME: &'static str = "gloo_rs_ibverbs_port_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// An address of a port. Texts end with NUL. Initialise with gloo_rs_ibverbs_gid_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_ibverbs_gid_t {
    /// sizeof(gloo_rs_ibverbs_gid_t).
    pub struct_size: usize,
    /// The address as text, in the form of IPv6: `fe80::1`, `::ffff:10.0.0.1`.
    pub address: [c_char; 48],
    /// With RoCE: the network interface that has it, such as `eth0`; empty if unknown.
    pub interface_name: [c_char; 64],
    /// The GID's bytes.
    pub raw: [u8; 16],
    /// The GID's index in the port's table.
    pub index: u32,
    /// What it is for.
    pub kind: MaybeUninit<gloo_rs_ibverbs_gid_type_t>,
}

// SAFETY: repr(C), a usize first, and integers, arrays of them, and an enumeration that may have any number.
unsafe impl Options for gloo_rs_ibverbs_gid_t {
    const NAME: &'static str = "gloo_rs_ibverbs_gid_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {}
}

/// Sets `port->struct_size`, and all else to 0. `struct_size` is sizeof(gloo_rs_ibverbs_port_t); at most that many
/// bytes are written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_ibverbs_port_init(port: *mut gloo_rs_ibverbs_port_t, struct_size: usize) {
    // SAFETY: the header demands that `port` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(port, struct_size) }
}

/// Sets `gid->struct_size`, and all else to 0. `struct_size` is sizeof(gloo_rs_ibverbs_gid_t); at most that many bytes
/// are written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_ibverbs_gid_init(gid: *mut gloo_rs_ibverbs_gid_t, struct_size: usize) {
    // SAFETY: the header demands that `gid` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(gid, struct_size) }
}

/// Lists the ports of this host's InfiniBand and RoCE devices, ordered by name and number, whether they can be used or
/// not. `ports` is an array of `capacity` structs, each initialised with gloo_rs_ibverbs_port_init. `*count` is set to
/// the number of ports, also if `capacity` is too small, which fails with GLOO_RS_ERROR_INVALID_ARGUMENT; `ports` may
/// be NULL to learn it. Devices that this process may not open are left out. Fails with GLOO_RS_ERROR_UNSUPPORTED if
/// there is no device, if libibverbs cannot be loaded, or if this build has no `ibverbs`; the message says which.
/// Thread-safe.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_ibverbs_devices(
    ports: *mut gloo_rs_ibverbs_port_t,
    capacity: usize,
    count: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_ibverbs_devices", || {
        pointer::check(count, "count")?;
        let found = host::ports()?;
        // SAFETY: the header demands that `count` is valid for a write, and `ports` is NULL or an array of so many
        // structs.
        unsafe { options::fill_list(ports, capacity, count, "ports", &found) }
    })
}

/// Lists the GIDs of a port, `device` as gloo_rs_ibverbs_devices gives its name. `gids`, `capacity` and `count` as
/// there, with gloo_rs_ibverbs_gid_init. Fails with GLOO_RS_ERROR_NOT_FOUND if there is no such port, else as
/// gloo_rs_ibverbs_devices. Thread-safe.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_ibverbs_gids(
    device: *const c_char,
    port: u32,
    gids: *mut gloo_rs_ibverbs_gid_t,
    capacity: usize,
    count: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_ibverbs_gids", || {
        pointer::check(count, "count")?;
        // SAFETY: the header demands that `device` is NULL or a string.
        let found = host::gids(unsafe { pointer::text(device, "device") }?, port)?;
        // SAFETY: the header demands that `count` is valid for a write, and `gids` is NULL or an array of so many
        // structs.
        unsafe { options::fill_list(gids, capacity, count, "gids", &found) }
    })
}

/// The transport of a device whose options name `named`: `options` that are not NULL imply `ibverbs`.
pub(super) fn transport(
    named: Option<Transport>,
    options: *const gloo_rs_ibverbs_options_t,
) -> Result<Option<Transport>> {
    match named {
        named if options.is_null() => Ok(named),
        Some(other) if other.name() != "ibverbs" => {
            Err(Error::invalid(format!("ibverbs is set, but transport is {}, which does not use it", other.name())))
        }
        _ => Transport::named("ibverbs", "transport").map(Some),
    }
}

#[cfg(all(feature = "ibverbs", target_os = "linux"))]
pub(super) use host::options;

/// What this host has.
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
mod host {
    use std::ops::RangeInclusive;

    use super::gloo_rs_ibverbs_gid_type_t::*;
    use super::gloo_rs_ibverbs_gpu_t::*;
    use super::gloo_rs_ibverbs_link_layer_t::*;
    use super::gloo_rs_ibverbs_state_t::*;
    use super::*;
    use crate::error::ErrorKind;
    use crate::ffi::enumeration::from_number;
    use crate::transport::ibverbs::Options;
    use crate::transport::ibverbs::library::Library;
    use crate::transport::ibverbs::options::{self as ranges, in_range};
    use crate::transport::ibverbs::port::LinkLayer;
    use crate::transport::ibverbs::port::{self, Gid, GidType, Port, State};
    use crate::transport::ibverbs::sysfs::GpuAccess;

    /// The options of C; `None` for NULL.
    ///
    /// # Safety
    /// `pointer` is NULL or valid for reads of its `struct_size` bytes, with a string or NULL.
    pub(in crate::ffi) unsafe fn options(pointer: *const gloo_rs_ibverbs_options_t) -> Result<Option<Options>> {
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: by the contract.
        let given = unsafe { super::options::read(pointer) }?;
        if given.reserved != 0 {
            return Err(Error::invalid(format!("ibverbs->reserved is {}; it must be 0", given.reserved)));
        }
        // SAFETY: by the contract.
        let hca = unsafe { pointer::optional_text(given.hca, "ibverbs->hca") }?;
        let number = |name: &str, value: i32, range: RangeInclusive<i64>| match value {
            GLOO_RS_IBVERBS_DEFAULT => Ok(None),
            value => in_range(&format!("ibverbs->{name}"), value.into(), range).map(Some),
        };
        Ok(Some(Options {
            hca: hca.filter(|list| !list.is_empty()).map(str::to_owned),
            port: number("port", given.port, ranges::PORTS)?,
            gid_index: number("gid_index", given.gid_index, ranges::BYTES)?,
            traffic_class: number("traffic_class", given.traffic_class, ranges::BYTES)?,
            timeout: number("timeout", given.timeout, ranges::TIMEOUTS)?,
            retry_count: number("retry_count", given.retry_count, ranges::RETRIES)?,
        }))
    }

    /// All ports.
    pub fn ports() -> Result<Vec<gloo_rs_ibverbs_port_t>> {
        Ok(port::list(&Library::load()?)?.ports.iter().map(to_c).collect())
    }

    /// The GIDs of a port.
    pub fn gids(device: &str, number: u32) -> Result<Vec<gloo_rs_ibverbs_gid_t>> {
        let listing = port::list(&Library::load()?)?;
        let found = listing.ports.iter().find(|port| port.device == device && u32::from(port.number) == number);
        let missing = || Error::new(ErrorKind::NotFound, format!("this host has no port {device}:{number}"));
        Ok(found.ok_or_else(missing)?.gids.iter().map(gid_to_c).collect())
    }

    /// Returns as much of `text` as `N` characters have room for, with a NUL behind it.
    pub(in crate::ffi) fn characters<const N: usize>(text: &str) -> [c_char; N] {
        let max = text.floor_char_boundary(N - 1);
        let mut characters = [0; N];
        characters.iter_mut().zip(text[..max].bytes()).for_each(|(to, byte)| *to = byte as c_char);
        characters
    }

    fn to_c(port: &Port) -> gloo_rs_ibverbs_port_t {
        let saturated = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        gloo_rs_ibverbs_port_t {
            struct_size: 0,
            device: characters(&port.device),
            pci: characters(port.pci.as_deref().unwrap_or_default()),
            fault: characters(&port.fault().unwrap_or_default()),
            gpu_why: characters(&port.gpu_direct.why),
            port: port.number.into(),
            state: from_number(match port.state {
                State::Down => GLOO_RS_IBVERBS_DOWN as u32,
                State::Initializing => GLOO_RS_IBVERBS_INITIALIZING as u32,
                State::Armed => GLOO_RS_IBVERBS_ARMED as u32,
                State::Active => GLOO_RS_IBVERBS_ACTIVE as u32,
            }),
            link_layer: MaybeUninit::new(match port.link_layer {
                LinkLayer::InfiniBand => GLOO_RS_IBVERBS_INFINIBAND,
                LinkLayer::Ethernet => GLOO_RS_IBVERBS_ROCE,
            }),
            lid: port.lid.into(),
            mtu: port.mtu_bytes(),
            speed_mbps: port.speed,
            numa_node: port.numa_node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1),
            gpu: MaybeUninit::new(match port.gpu_direct.by {
                GpuAccess::Nothing => GLOO_RS_IBVERBS_GPU_NONE,
                GpuAccess::PeerMemory => GLOO_RS_IBVERBS_GPU_PEER_MEMORY,
                GpuAccess::DmaBuf => GLOO_RS_IBVERBS_GPU_DMA_BUF,
            }),
            max_message_bytes: port.max_message as u64,
            max_requests: saturated(port.limits.requests),
            max_completions: saturated(port.limits.completions),
            max_reads_as_target: port.limits.reads[0].into(),
            max_reads_as_initiator: port.limits.reads[1].into(),
            gids: saturated(port.gids.len()),
            gid_index: port.gid(None).map_or(-1, |gid| gid.index.into()),
        }
    }

    fn gid_to_c(gid: &Gid) -> gloo_rs_ibverbs_gid_t {
        gloo_rs_ibverbs_gid_t {
            struct_size: 0,
            address: characters(&gid.address.to_string()),
            interface_name: characters(gid.interface.as_deref().unwrap_or_default()),
            raw: gid.address.octets(),
            index: gid.index.into(),
            kind: MaybeUninit::new(match gid.kind {
                GidType::InfiniBand => GLOO_RS_IBVERBS_GID_IB,
                GidType::RoceV1 => GLOO_RS_IBVERBS_GID_ROCE_V1,
                GidType::RoceV2 => GLOO_RS_IBVERBS_GID_ROCE_V2,
            }),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn long_texts_are_cut_at_a_character() {
            let text = |characters: &[c_char]| {
                let bytes: Vec<_> = characters.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
                String::from_utf8(bytes).unwrap()
            };
            assert_eq!(text(&characters::<8>("mlx5_0")), "mlx5_0");
            assert_eq!(text(&characters::<4>("mlx5_0")), "mlx");
            assert_eq!(text(&characters::<4>("mlé")), "ml");
        }

        #[test]
        fn zero_is_no_default_and_numbers_out_of_range_are_refused() {
            let mut given = MaybeUninit::<gloo_rs_ibverbs_options_t>::uninit();
            // SAFETY: valid for writes of its size, which initialises it.
            let mut given = unsafe {
                gloo_rs_ibverbs_options_init(given.as_mut_ptr(), size_of::<gloo_rs_ibverbs_options_t>());
                given.assume_init()
            };
            // SAFETY: the struct is valid for reads, and its string NULL.
            let read = |given: &gloo_rs_ibverbs_options_t| unsafe { options(given) };
            assert_eq!(read(&given).unwrap(), Some(Options::default()));
            (given.gid_index, given.traffic_class) = (0, 0);
            let zeros = Options { gid_index: Some(0), traffic_class: Some(0), ..Options::default() };
            assert_eq!(read(&given).unwrap(), Some(zeros));
            given.port = 0;
            assert_eq!(read(&given).unwrap_err().message(), "ibverbs->port is 0; it must be 1 to 255");
            given.port = 1;
            given.retry_count = 8;
            assert_eq!(read(&given).unwrap_err().message(), "ibverbs->retry_count is 8; it must be 0 to 7");
        }
    }
}

/// A build without the transport does not know the host's ports.
#[cfg(not(all(feature = "ibverbs", target_os = "linux")))]
mod host {
    use super::*;

    pub fn ports() -> Result<Vec<gloo_rs_ibverbs_port_t>> {
        Err(Error::new(crate::error::ErrorKind::Unsupported, crate::net::stream::WITHOUT_IBVERBS))
    }

    pub fn gids(_: &str, _: u32) -> Result<Vec<gloo_rs_ibverbs_gid_t>> {
        ports().map(|_| Vec::new())
    }
}
