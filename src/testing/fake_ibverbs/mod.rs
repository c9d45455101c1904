//! A provider of verbs in memory, for simulations of whole jobs and for tests: a [`Library`] whose functions simulate
//! devices, queue pairs, completion queues and memory regions.
//!
//! A [`Fabric`] has nodes, one per process, each with its devices. Time is that of a loopback [`Network`], or another
//! clock. The fabric does what is due whenever one of its functions is called; what happens is a function of its seed,
//! the calls, and their times. Queue pairs obey the InfiniBand specification for reliable connections; where that
//! leaves freedom, the fabric is unkind: data is read as late as permitted, completions of different queues come in any
//! order, those of failed requests have random opcodes, and those of destroyed queue pairs may still come.
//!
//! Failures are scripted: requests can fail, ports go down, devices vanish, registration be limited or slow, and nodes
//! crash or become silent.

mod functions;
mod node;
mod state;
mod tests;
mod transitions;

use std::cell::RefCell;
use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;

use crate::testing::loopback::{Network, NodeStatus};
use crate::transport::ibverbs::handles::{self, DeviceContext, ProtectionDomain};
use crate::transport::ibverbs::library::Library;
use crate::transport::ibverbs::port::{GidType, LinkLayer};
use crate::transport::ibverbs::rail::Rail;
pub use node::{LeftBehind, fabric_node};
use state::State;

/// A status of a completion: a constant of [`ffi::ibv_wc_status`].
pub type Status = ffi::ibv_wc_status::Type;

/// A device of a node, with its limits.
#[derive(Clone, Debug)]
pub struct DeviceModel {
    /// The device's name, such as `mlx5_0`.
    pub name: String,
    /// The device's ports, of which the first has number 1.
    pub ports: Vec<PortModel>,
    /// The maximum number of work requests in a queue.
    pub max_requests: u32,
    /// The maximum number of completions in a completion queue.
    pub max_completions: u32,
    /// The maximum number of memory regions.
    pub max_regions: usize,
    /// The maximum number of queue pairs.
    pub max_pairs: usize,
    /// The maximum number of pieces of memory of a work request.
    pub max_pieces: u32,
    /// The maximum number of inline bytes of a send request.
    pub max_inline: u32,
    /// Most RDMA reads of a queue pair at one time, as target and as initiator.
    pub max_reads: [u8; 2],
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct PortModel {
    /// InfiniBand or RoCE.
    pub link_layer: LinkLayer,
    /// Only ports with the same number reach each other.
    pub subnet: u32,
    /// Whether it carries packets.
    pub up: bool,
    /// The local identifier; 0 with RoCE.
    pub lid: u16,
    /// The table of GIDs with their types, `IBV_GID_TYPE_IB` and so on; `None` is an empty entry.
    pub gids: Vec<Option<([u8; 16], ffi::ibv_gid_type)>>,
    /// The longest packet, as verbs number it: 1 is 256 bytes, 5 is 4096.
    pub mtu: u32,
    /// Bytes of the longest message.
    pub max_message: u32,
    /// Lanes, as verbs number them: 2 is four lanes.
    pub width: u8,
    /// Speed of a lane, as verbs number it: 32 is 25 Gbit/s.
    pub speed: u8,
}

impl DeviceModel {
    /// An InfiniBand device with one port of 100 Gbit/s, whose longest message has 100,000 bytes. Its addresses are
    /// `lid`, and a GID that contains it.
    pub fn infiniband(name: &str, lid: u16) -> Self {
        let port = PortModel {
            link_layer: LinkLayer::InfiniBand,
            subnet: 0,
            up: true,
            lid,
            gids: vec![Some((gid([0xfe, 0x80], lid), ffi::IBV_GID_TYPE_IB)), None],
            mtu: ffi::IBV_MTU_4096,
            max_message: 100_000,
            width: 2,
            speed: 32,
        };
        Self::with_port(name, port)
    }

    /// Like [`DeviceModel::infiniband`], with RoCE; `host` is part of its GIDs: link-local, of version 1 and 2, and a
    /// global one of version 2.
    pub fn roce(name: &str, host: u16) -> Self {
        let (local, global) = (gid([0xfe, 0x80], host), gid([0xfd, 0x00], host));
        let gids = [
            (local, ffi::IBV_GID_TYPE_ROCE_V1),
            (local, ffi::IBV_GID_TYPE_ROCE_V2),
            (global, ffi::IBV_GID_TYPE_ROCE_V2),
        ];
        let port = PortModel {
            link_layer: LinkLayer::Ethernet,
            subnet: 0,
            up: true,
            lid: 0,
            gids: gids.into_iter().map(Some).chain([None]).collect(),
            mtu: ffi::IBV_MTU_1024,
            max_message: 100_000,
            width: 2,
            speed: 32,
        };
        Self::with_port(name, port)
    }

    fn with_port(name: &str, port: PortModel) -> Self {
        Self {
            name: name.to_owned(),
            ports: vec![port],
            max_requests: 4096,
            max_completions: 65536,
            max_regions: 4096,
            max_pairs: 4096,
            max_pieces: 4,
            max_inline: 220,
            max_reads: [16, 16],
        }
    }
}

/// A GID with this prefix that contains `host`.
fn gid(prefix: [u8; 2], host: u16) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&prefix);
    gid[8] = 2;
    gid[14..].copy_from_slice(&host.to_be_bytes());
    gid
}

/// What a node has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sends, without and with immediate data.
    pub sends: [u64; 2],
    /// RDMA writes, without and with immediate data.
    pub writes: [u64; 2],
    /// RDMA reads.
    pub reads: u64,
    /// Receive requests.
    pub receives: u64,
    /// Calls that posted send requests, and receive requests.
    pub doorbells: [u64; 2],
    /// Bytes of send requests.
    pub bytes: u64,
    /// Completions that were polled.
    pub completions: u64,
    /// Memory regions registered, and their bytes.
    pub registrations: u64,
    /// Bytes of all registrations so far.
    pub registered_bytes: u64,
}

/// Objects of a node that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Open devices.
    pub contexts: usize,
    /// Protection domains.
    pub domains: usize,
    /// Memory regions.
    pub regions: usize,
    /// The bytes of the regions.
    pub registered_bytes: u64,
    /// Completion channels.
    pub channels: usize,
    /// Completion queues.
    pub queues: usize,
    /// Queue pairs.
    pub pairs: usize,
}

/// Where the fabric's time comes from.
enum Time {
    Of(Network),
    By(Box<dyn Fn() -> Instant + Send + Sync>),
}

type RegistrationHook = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// A fabric, shared by its handles and by all objects made of it.
pub struct Shared {
    time: Time,
    state: Mutex<State>,
    registration: Mutex<Option<RegistrationHook>>,
}

impl Shared {
    /// Calls `action` with the state, after everything that is due has happened.
    fn call<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        let now = match &self.time {
            Time::Of(network) => network.now(),
            Time::By(now) => now(),
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Time::Of(network) = &self.time {
            follow(&mut state, network);
        }
        state.run_until(now);
        let result = action(&mut state);
        let (wakes, failing) = (std::mem::take(&mut state.wakes), state.failing.take());
        if let (Time::By(_), Some((node, status))) = (&self.time, failing) {
            state.set_status(node, status);
        }
        drop(state);
        if let Time::Of(network) = &self.time {
            failing.into_iter().for_each(|(node, status)| network.fail(node, status));
            let nodes = network.nodes();
            wakes.into_iter().filter(|(node, _)| *node < nodes).for_each(|(node, at)| network.wake_at(node, at));
        }
        result
    }
}

/// Gives the nodes the status that they have on `network`.
fn follow(state: &mut State, network: &Network) {
    let failures = network.failures();
    if std::mem::replace(&mut state.failures_seen, failures) == failures {
        return;
    }
    let nodes: Vec<usize> = state.nodes.keys().copied().filter(|node| *node < network.nodes()).collect();
    for node in nodes {
        state.set_status(node, network.status(node));
    }
}

thread_local! {
    /// The fabric and the node whose devices a thread sees.
    static CURRENT: RefCell<Option<(Arc<Shared>, usize)>> = const { RefCell::new(None) };
}

/// A simulated fabric. Clones share it.
#[derive(Clone)]
pub struct Fabric(Arc<Shared>);

impl Fabric {
    /// A fabric beside `network`, by its time. The fabric's node with a number belongs to the process whose first node
    /// there has it, and shares its status. Each step of a packet takes a time in `delay`.
    pub fn beside(network: &Network, seed: u64, delay: Range<Duration>) -> Self {
        Self::new(Time::Of(network.clone()), State::new(network.now(), seed, delay))
    }

    /// A fabric with this clock.
    pub fn with_clock(now: impl Fn() -> Instant + Send + Sync + 'static, seed: u64, delay: Range<Duration>) -> Self {
        let state = State::new(now(), seed, delay);
        Self::new(Time::By(Box::new(now)), state)
    }

    fn new(time: Time, state: State) -> Self {
        Self(Arc::new(Shared { time, state: Mutex::new(state), registration: Mutex::new(None) }))
    }

    /// The table of the fake's functions. The devices it lists are those of [`Fabric::on`].
    pub fn library() -> Arc<Library> {
        Library::of(functions::TABLE)
    }

    /// Adds a node with its devices.
    pub fn add_node(&self, node: usize, devices: Vec<DeviceModel>) {
        self.0.call(|state| state.add_node(node, devices));
    }

    /// Calls `action`; meanwhile this thread sees the devices of `node`.
    pub fn on<R>(&self, node: usize, action: impl FnOnce() -> R) -> R {
        let before = CURRENT.replace(Some((self.0.clone(), node)));
        let result = action();
        CURRENT.set(before);
        result
    }

    /// Opens the devices of `node`, and makes a rail of each port that is up: with its last GID, which for RoCE is one
    /// of version 2.
    pub fn rails(&self, node: usize) -> Vec<Arc<Rail>> {
        self.rails_or_error(node).expect("the devices open")
    }

    /// Like [`Fabric::rails`]; the error is that of a device that does not open.
    pub fn rails_or_error(&self, node: usize) -> io::Result<Vec<Arc<Rail>>> {
        let open = |name: &str, open: &dyn Fn() -> io::Result<Arc<DeviceContext>>| {
            open().map(|device| rails_of(name, &device))
        };
        let rails = self.on(node, || handles::for_each_device(&Self::library(), open))?;
        Ok(rails.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
    }

    /// Lets the send request of `node` after `n` others fail with `status`, and its queue pair with it.
    pub fn fail_request(&self, node: usize, n: u64, status: Status) {
        self.0.call(|state| state.node(node).planned.insert(n, status));
    }

    /// Changes the status of the process of `node` when it has posted `n` send requests.
    pub fn fail_after(&self, node: usize, n: u64, status: NodeStatus) {
        self.0.call(|state| state.node(node).planned_failure = Some((n, status)));
    }

    /// Calls `hook` with node and bytes before each registration; it may advance the time.
    pub fn on_registration(&self, hook: impl Fn(usize, usize) + Send + Sync + 'static) {
        *self.0.registration.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    /// Limits the bytes that `node` may have registered at one time; beyond, registration fails with `ENOMEM`.
    pub fn limit_registered_bytes(&self, node: usize, limit: u64) {
        self.0.call(|state| state.node(node).max_registered = limit);
    }

    /// Takes a port down or up, and tells all who have opened the device. `device` is an index, `port` a number from 1
    /// on.
    pub fn set_port(&self, node: usize, device: usize, port: u8, up: bool) {
        self.0.call(|state| state.set_port(node, device, port, up));
    }

    /// Removes a device, and tells all who have opened it: calls fail with `EIO` from now on.
    pub fn remove_device(&self, node: usize, device: usize) {
        self.0.call(|state| state.remove_device(node, device));
    }

    /// Changes the status of a node of a fabric that is not beside a network; see [`NodeStatus`]. The devices of a
    /// silent node still answer.
    pub fn fail(&self, node: usize, status: NodeStatus) {
        assert!(matches!(self.0.time, Time::By(_)), "the network decides on the status");
        self.0.call(|state| state.set_status(node, status));
    }

    /// What `node` has done.
    pub fn counts(&self, node: usize) -> Counts {
        self.0.call(|state| state.node(node).counts)
    }

    /// The objects that `node` has.
    pub fn alive(&self, node: usize) -> Alive {
        self.0.call(|state| state.alive(node))
    }

    /// Number of messages so far for which the receiver had no receive request.
    pub fn rnr(&self) -> u64 {
        self.0.call(|state| state.rnr)
    }

    /// Fails if a node has an object left, or if functions were used wrongly.
    pub fn assert_clean(&self) {
        let (nodes, misuse): (Vec<usize>, _) =
            self.0.call(|state| (state.nodes.keys().copied().collect(), state.misuse.clone()));
        assert!(misuse.is_empty(), "{misuse:?}");
        for node in nodes {
            assert_eq!(self.alive(node), Alive::default(), "of node {node}");
        }
    }

    /// Does what is due, as every function does.
    pub fn progress(&self) {
        self.0.call(|_| ());
    }

    /// When something is due next.
    pub fn next_event(&self) -> Option<Instant> {
        self.0.call(|state| state.events.keys().next().map(|(at, _)| *at))
    }

    /// Starts a thread that calls [`Fabric::progress`] every 100 µs until the result is dropped, for programs that
    /// sleep until a channel's descriptor is readable.
    pub fn in_background(&self) -> Background {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (fabric, stopped) = (self.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                fabric.progress();
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        Background { stop, thread: Some(thread) }
    }
}

/// A thread that makes progress for a fabric.
pub struct Background {
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread ends");
        }
    }
}

/// The rails of a device.
fn rails_of(name: &str, context: &Arc<DeviceContext>) -> Vec<Arc<Rail>> {
    let limits = context.query().expect("the device's limits");
    let domain = ProtectionDomain::new(context.clone()).expect("a domain");
    let rail = |port: u8| {
        let attributes = context.query_port(port).expect("the port's attributes");
        let entries = 0..attributes.gid_tbl_len as u32;
        let gid = entries.rev().find_map(|index| context.query_gid(port, index).expect("an answer")).expect("a GID");
        let up = attributes.state == ffi::ibv_port_state::IBV_PORT_ACTIVE;
        let ethernet = u32::from(attributes.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET;
        up.then(|| {
            Arc::new(Rail {
                name: format!("{name}:{port}"),
                domain: domain.clone(),
                port,
                link_layer: if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
                lid: attributes.lid,
                // SAFETY: every bit pattern is 16 bytes.
                gid: unsafe { gid.gid.raw },
                gid_type: GidType::of(gid.gid_type).expect("a known type"),
                gid_index: gid.gid_index as u8,
                mtu: attributes.active_mtu,
                max_message: attributes.max_msg_sz as usize,
                speed: 100_000,
                max_requests: limits.max_qp_wr as usize,
                max_completions: limits.max_cqe as usize,
                max_reads: [limits.max_qp_rd_atom as u8, limits.max_qp_init_rd_atom as u8],
            })
        })
    };
    (1..=limits.phys_port_cnt).filter_map(rail).collect()
}

/// Sets `errno`.
fn set_errno(errno: c_int) {
    // SAFETY: the location is the calling thread's.
    unsafe { *libc::__errno_location() = errno };
}
