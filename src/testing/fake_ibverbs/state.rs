//! The tables of a fabric: nodes, their devices, and what is made of these.

pub mod objects;
pub mod packets;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::ops::Range;
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;

use super::{Alive, Counts, DeviceModel, PortModel, Status};
use crate::testing::loopback::{NodeStatus, Random};
use objects::{EventCount, Pointer, WorkCompletion};
use packets::{Event, Pair};

/// The number of an object; for a memory region, its local key.
pub type Id = u32;

/// A device of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub node: usize,
    pub device: usize,
}

pub struct Device {
    pub model: DeviceModel,
    pub removed: bool,
    /// The number of the next queue pair. Devices number theirs alike, as real ones do.
    next_number: u32,
}

pub struct Node {
    pub status: NodeStatus,
    pub devices: Vec<Device>,
    pub counts: Counts,
    /// Send requests posted so far, and the statuses with which some of them fail.
    pub posted: u64,
    pub planned: BTreeMap<u64, Status>,
    /// After how many of them the node fails, with its status then.
    pub planned_failure: Option<(u64, NodeStatus)>,
    pub registered: u64,
    pub max_registered: u64,
}

pub struct Context {
    pub place: Place,
    pub events: VecDeque<AsyncEvent>,
    pub count: EventCount,
}

#[derive(Clone, Copy)]
pub struct AsyncEvent {
    pub kind: ffi::ibv_event_type,
    pub of: Element,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy)]
pub enum Element {
    Port(u8),
    Queue(Pointer<ffi::ibv_cq>),
    Pair(Pointer<ffi::ibv_qp>),
}

pub struct Region {
    pub place: Place,
    pub domain: Id,
    pub address: u64,
    pub bytes: u64,
    pub access: u32,
    /// The memory may be gone: the node has crashed.
    pub gone: bool,
}

pub struct Channel {
    pub context: Id,
    /// Queues that have had an event.
    pub events: VecDeque<Id>,
    pub count: EventCount,
}

pub struct Completion {
    pub pair: Id,
    pub receive: bool,
    /// The request's number in its queue; the places of this one and of all before are free once the completion is
    /// polled.
    pub sequence: u64,
    /// The message asked for the receiver's attention, or it failed.
    pub solicited: bool,
    pub content: WorkCompletion,
}

/// The completions for which a queue has been armed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    Solicited,
    Any,
}

pub struct Queue {
    pub context: Id,
    pub raw: Pointer<ffi::ibv_cq>,
    pub user: Pointer<std::ffi::c_void>,
    pub channel: Option<Id>,
    pub capacity: usize,
    pub entries: VecDeque<Completion>,
    pub armed: Option<Armed>,
    pub broken: bool,
    /// Events that were taken and not acknowledged.
    pub unacknowledged: u32,
}

/// The state of a fabric.
pub struct State {
    /// The time of the event that is handled.
    pub now: Instant,
    pub random: Random,
    pub delay: Range<Duration>,
    pub nodes: BTreeMap<usize, Node>,
    pub contexts: BTreeMap<Id, Context>,
    /// The context of each protection domain.
    pub domains: BTreeMap<Id, Id>,
    pub regions: BTreeMap<Id, Region>,
    pub channels: BTreeMap<Id, Channel>,
    pub queues: BTreeMap<Id, Queue>,
    pub pairs: BTreeMap<Id, Pair>,
    pub numbers: BTreeMap<(Place, u32), Id>,
    /// What is due when; the second number keeps the order.
    pub events: BTreeMap<(Instant, u64), Event>,
    pub next_event: u64,
    /// Nodes and times for which the network must wake them.
    pub wakes: Vec<(usize, Instant)>,
    pub failures_seen: u64,
    /// A node that fails now.
    pub failing: Option<(usize, NodeStatus)>,
    pub rnr: u64,
    pub misuse: Vec<String>,
    next_id: Id,
}

impl State {
    pub fn new(now: Instant, seed: u64, delay: Range<Duration>) -> Self {
        Self {
            now,
            random: Random::new(seed),
            delay,
            nodes: BTreeMap::new(),
            contexts: BTreeMap::new(),
            domains: BTreeMap::new(),
            regions: BTreeMap::new(),
            channels: BTreeMap::new(),
            queues: BTreeMap::new(),
            pairs: BTreeMap::new(),
            numbers: BTreeMap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            wakes: Vec::new(),
            failures_seen: 0,
            failing: None,
            rnr: 0,
            misuse: Vec::new(),
            next_id: 0,
        }
    }

    /// A new number. It is even, so that the odd ones are remote keys.
    pub fn new_id(&mut self) -> Id {
        self.next_id += 2 * (1 + self.random.below(50) as Id);
        self.next_id
    }

    pub fn add_node(&mut self, number: usize, devices: Vec<DeviceModel>) {
        let device = |model| Device { model, removed: false, next_number: 0x11 };
        let node = Node {
            status: NodeStatus::Running,
            devices: devices.into_iter().map(device).collect(),
            counts: Counts::default(),
            posted: 0,
            planned: BTreeMap::new(),
            planned_failure: None,
            registered: 0,
            max_registered: u64::MAX,
        };
        assert!(self.nodes.insert(number, node).is_none(), "the node {number} exists");
    }

    pub fn node(&mut self, number: usize) -> &mut Node {
        self.nodes.get_mut(&number).unwrap_or_else(|| panic!("there is no node {number}"))
    }

    pub fn device(&self, place: Place) -> &Device {
        &self.nodes[&place.node].devices[place.device]
    }

    pub fn device_mut(&mut self, place: Place) -> &mut Device {
        &mut self.node(place.node).devices[place.device]
    }

    /// A port by its number.
    pub fn port(&self, place: Place, number: u8) -> Option<&PortModel> {
        self.device(place).model.ports.get(usize::from(number).checked_sub(1)?)
    }

    pub fn place(&self, context: Id) -> Place {
        self.contexts[&context].place
    }

    /// Fails with `EIO` if the device is gone, or the node's process is.
    pub fn check(&self, context: Id) -> Result<Place, c_int> {
        let place = self.place(context);
        let works = !self.device(place).removed && self.nodes[&place.node].status == NodeStatus::Running;
        if works { Ok(place) } else { Err(libc::EIO) }
    }

    pub fn take_number(&mut self, place: Place) -> u32 {
        let device = self.device_mut(place);
        device.next_number += 1;
        device.next_number
    }

    pub fn alive(&self, node: usize) -> Alive {
        let of = |context: &Id| self.place(*context).node == node;
        let regions = self.regions.values().filter(|region| region.place.node == node);
        Alive {
            contexts: self.contexts.values().filter(|context| context.place.node == node).count(),
            domains: self.domains.values().filter(|context| of(context)).count(),
            regions: regions.clone().count(),
            registered_bytes: regions.map(|region| region.bytes).sum(),
            channels: self.channels.values().filter(|channel| of(&channel.context)).count(),
            queues: self.queues.values().filter(|queue| of(&queue.context)).count(),
            pairs: self.pairs.values().filter(|pair| pair.place.node == node).count(),
        }
    }

    /// Closes a device; what was made of it should be gone.
    pub fn close(&mut self, id: Id) -> Result<(), c_int> {
        let users = [
            self.domains.values().filter(|context| **context == id).count(),
            self.queues.values().filter(|queue| queue.context == id).count(),
            self.channels.values().filter(|channel| channel.context == id).count(),
        ];
        self.refuse_if(users.iter().sum::<usize>() > 0, "a device is closed before what was made of it")?;
        self.contexts.remove(&id);
        Ok(())
    }

    /// Destroys a protection domain.
    pub fn deallocate(&mut self, id: Id) -> Result<(), c_int> {
        let used = self.regions.values().any(|region| region.domain == id)
            || self.pairs.values().any(|pair| pair.domain == id);
        self.refuse_if(used, "a protection domain is destroyed before what was made of it")?;
        self.domains.remove(&id);
        Ok(())
    }

    /// Notes wrong use, and fails with `EBUSY`.
    pub fn refuse_if(&mut self, used: bool, what: &str) -> Result<(), c_int> {
        if !used {
            return Ok(());
        }
        self.misuse.push(what.to_owned());
        Err(libc::EBUSY)
    }

    /// Registers memory; returns the number.
    pub fn register(&mut self, domain: Id, address: u64, bytes: u64, access: u32) -> Result<Id, c_int> {
        let context = self.domains[&domain];
        let place = self.check(context)?;
        let known = (ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ffi::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING)
            .0;
        let writes = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let lacks_local = access & writes != 0 && access & ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 == 0;
        if bytes == 0 || access & !known != 0 || lacks_local {
            return Err(libc::EINVAL);
        }
        let max = self.device(place).model.max_regions;
        let there = self.regions.values().filter(|region| region.place == place).count();
        let node = self.node(place.node);
        if there >= max || node.registered + bytes > node.max_registered {
            return Err(libc::ENOMEM);
        }
        node.registered += bytes;
        node.counts.registrations += 1;
        node.counts.registered_bytes += bytes;
        let id = self.new_id();
        self.regions.insert(id, Region { place, domain, address, bytes, access, gone: false });
        Ok(id)
    }

    /// Ends a registration.
    pub fn deregister(&mut self, id: Id) -> Result<(), c_int> {
        let region = self.regions.remove(&id).expect("the region exists");
        self.node(region.place.node).registered -= region.bytes;
        Ok(())
    }

    /// The checked attributes of a new completion queue.
    pub fn check_queue(&self, context: Id, entries: c_int, vector: c_int) -> Result<usize, c_int> {
        let place = self.check(context)?;
        let max = self.device(place).model.max_completions;
        let good = entries >= 1 && entries as u32 <= max && vector == 0;
        if good { Ok(entries as usize) } else { Err(libc::EINVAL) }
    }

    /// Destroys a completion queue.
    pub fn destroy_queue(&mut self, id: Id) -> Result<(), c_int> {
        let used = self.pairs.values().any(|pair| pair.send_queue == id || pair.receive_queue == id);
        self.refuse_if(used, "a completion queue is destroyed before its queue pairs")?;
        // The real function would wait for ever.
        let open = self.queues[&id].unacknowledged > 0;
        self.refuse_if(open, "a completion queue is destroyed while events of it are not acknowledged")?;
        let queue = self.queues.remove(&id).expect("the queue exists");
        if let Some(channel) = queue.channel.and_then(|channel| self.channels.get_mut(&channel)) {
            let before = channel.events.len();
            channel.events.retain(|queue| *queue != id);
            for _ in channel.events.len()..before {
                objects::take(channel.count.descriptor());
            }
        }
        Ok(())
    }

    /// Destroys a channel.
    pub fn destroy_channel(&mut self, id: Id) -> Result<(), c_int> {
        let used = self.queues.values().any(|queue| queue.channel == Some(id));
        self.refuse_if(used, "a completion channel is destroyed before its queues")?;
        self.channels.remove(&id);
        Ok(())
    }

    /// Adds a completion at a random place behind those of the same queue of its pair.
    pub fn complete(&mut self, id: Id, completion: Completion) {
        let Some(queue) = self.queues.get_mut(&id).filter(|queue| !queue.broken) else { return };
        if queue.entries.len() >= queue.capacity {
            return self.overflow(id);
        }
        let (pair, receive) = (completion.pair, completion.receive);
        let last = queue.entries.iter().rposition(|entry| (entry.pair, entry.receive) == (pair, receive));
        let first = last.map_or(0, |last| last + 1);
        let at = first + self.random.below(queue.entries.len() - first + 1);
        let wanted = match queue.armed {
            None => false,
            Some(Armed::Solicited) => completion.solicited,
            Some(Armed::Any) => true,
        };
        queue.entries.insert(at, completion);
        if wanted {
            queue.armed = None;
            if let Some(channel) = queue.channel.and_then(|channel| self.channels.get_mut(&channel)) {
                channel.events.push_back(id);
                channel.count.add();
            }
        }
    }

    /// A completion queue is full: it breaks, and all queue pairs that use it.
    fn overflow(&mut self, id: Id) {
        let queue = self.queues.get_mut(&id).expect("the queue exists");
        queue.broken = true;
        let (context, raw) = (queue.context, queue.raw);
        self.tell(context, AsyncEvent { kind: ffi::IBV_EVENT_CQ_ERR, of: Element::Queue(raw) });
        let uses = |pair: &Pair| pair.send_queue == id || pair.receive_queue == id;
        let pairs: Vec<Id> = self.pairs.iter().filter(|(_, pair)| uses(pair)).map(|(id, _)| *id).collect();
        pairs.into_iter().for_each(|pair| self.fail_pair(pair));
    }

    /// Takes completions, and frees the places of their requests. `None` if the queue is broken.
    pub fn poll(&mut self, id: Id, max: usize) -> Option<Vec<WorkCompletion>> {
        let context = self.queues[&id].context;
        let place = self.place(context);
        if self.device(place).removed || self.queues[&id].broken {
            return None;
        }
        let queue = self.queues.get_mut(&id).expect("the queue exists");
        let taken: Vec<Completion> = queue.entries.drain(..max.min(queue.entries.len())).collect();
        self.node(place.node).counts.completions += taken.len() as u64;
        for completion in &taken {
            if let Some(pair) = self.pairs.get_mut(&completion.pair) {
                let retired = if completion.receive { &mut pair.received.retired } else { &mut pair.sent.retired };
                *retired = (*retired).max(completion.sequence + 1);
            }
        }
        Some(taken.into_iter().map(|completion| completion.content).collect())
    }

    /// Adds an asynchronous event of an open device.
    pub fn tell(&mut self, context: Id, event: AsyncEvent) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back(event);
            context.count.add();
        }
    }

    /// Like [`State::tell`], to all who have opened the device.
    fn tell_all(&mut self, place: Place, event: AsyncEvent) {
        let at = |context: &&Id| self.contexts[*context].place == place;
        let contexts: Vec<Id> = self.contexts.keys().filter(at).copied().collect();
        contexts.into_iter().for_each(|context| self.tell(context, event));
        self.wake(place.node, self.now);
    }

    pub fn set_port(&mut self, node: usize, device: usize, port: u8, up: bool) {
        let place = Place { node, device };
        self.device_mut(place).model.ports[usize::from(port) - 1].up = up;
        let kind = if up { ffi::IBV_EVENT_PORT_ACTIVE } else { ffi::IBV_EVENT_PORT_ERR };
        self.tell_all(place, AsyncEvent { kind, of: Element::Port(port) });
    }

    pub fn remove_device(&mut self, node: usize, device: usize) {
        let place = Place { node, device };
        self.device_mut(place).removed = true;
        for region in self.regions.values_mut().filter(|region| region.place == place) {
            region.gone = true;
        }
        self.fail_pairs(|pair| pair.place == place);
        self.tell_all(place, AsyncEvent { kind: ffi::IBV_EVENT_DEVICE_FATAL, of: Element::Port(0) });
    }

    /// Moves queue pairs that nobody reaches any more to the error state.
    fn fail_pairs(&mut self, which: impl Fn(&Pair) -> bool) {
        let pairs: Vec<Id> = self.pairs.iter().filter(|(_, pair)| which(pair)).map(|(id, _)| *id).collect();
        for pair in pairs {
            self.pairs.get_mut(&pair).expect("the pair exists").unreachable = true;
            self.fail_pair(pair);
        }
    }

    /// A crashed node's queue pairs are destroyed, and its memory is not accessed any more; a silent one's devices work
    /// on.
    pub fn set_status(&mut self, node: usize, status: NodeStatus) {
        let before = std::mem::replace(&mut self.node(node).status, status);
        if status != NodeStatus::Crashed || before == NodeStatus::Crashed {
            return;
        }
        for region in self.regions.values_mut().filter(|region| region.place.node == node) {
            region.gone = true;
        }
        self.lose_packets(node);
        self.fail_pairs(|pair| pair.place.node == node);
    }

    /// Lets the network wake `node` at `at`; if its process does not run any more, all others, so that time goes on for
    /// them.
    pub fn wake(&mut self, node: usize, at: Instant) {
        let runs = |node: &Node| node.status == NodeStatus::Running;
        if self.nodes.get(&node).is_some_and(runs) {
            self.wakes.push((node, at));
        } else {
            let others = self.nodes.iter().filter(|(_, node)| runs(node)).map(|(node, _)| (*node, at));
            self.wakes.extend(others);
        }
    }
}
