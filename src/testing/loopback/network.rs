//! The state of a simulated network.

pub mod placements;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::net::handshake::Identity;
use crate::transport::{BackgroundProgress, Bell, CloseNotice, Interest, ReceivedNotice};
use placements::Placements;

/// A pseudo-random number generator: xorshift64* by Marsaglia and Vigna.
pub struct Random(u64);

impl Random {
    /// Creates a generator; similar seeds give unrelated sequences.
    pub fn new(seed: u64) -> Self {
        // SplitMix64's finalizer.
        let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((x ^ (x >> 31)) | 1)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number less than `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// True with probability 1/`n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A duration in `range`; its start if the range is empty.
    pub fn duration(&mut self, range: &Range<Duration>) -> Duration {
        let nanoseconds = (range.end - range.start).as_nanos().max(1) as usize;
        range.start + Duration::from_nanos(self.below(nanoseconds) as u64)
    }
}

/// Properties of all links of a network.
#[derive(Clone, Debug)]
pub struct LinkModel {
    /// The delay of a piece. The pieces in one direction of a link stay in order.
    pub delay: Range<Duration>,
    /// Maximum number of bytes in one direction of a link that the receiver has not read.
    pub capacity: usize,
    /// Maximum number of bytes per send or receive; the actual number is random.
    pub piece: usize,
    /// Some links can read the peer's memory; they do so for messages longer than this.
    pub reads_above: Option<usize>,
    /// Some links can place messages in the peer's memory; they do so for messages longer than this.
    pub places_above: Option<usize>,
}

/// The status of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// The node works normally.
    Running,
    /// The node's process has ended without closing connections.
    Crashed,
    /// The node does nothing any more, but its links stay open.
    Silent,
}

/// Bytes in transit, and how many of them the receiver has read.
struct Piece {
    /// The piece's position in its stream.
    number: u64,
    arrives: Instant,
    bytes: Vec<u8>,
    taken: usize,
}

/// One direction of a link.
pub(super) struct Stream {
    pub(super) from: usize,
    pub(super) to: usize,
    pieces: VecDeque<Piece>,
    queued_bytes: usize,
    /// When the receiver sees the end of the stream, and whether the end is orderly.
    end: Option<(Instant, bool)>,
    /// The receiver has closed the link in an orderly way; sent bytes are discarded.
    pub(super) receiver_closed: bool,
    /// The receiver is gone; sends fail.
    pub(super) receiver_gone: bool,
    /// The receiver's interest in received bytes, and the sender's interest in room.
    watched: bool,
    awaits_room: bool,
    /// Memory that the sending side has registered for reading, by key.
    registered: HashMap<u32, RegisteredMemory>,
    /// When the receiver's pending memory read can continue.
    read_ready_at: Option<Instant>,
    /// Pieces sent so far.
    pub(super) sent: u64,
    /// Messages that are placed, and the memory for them.
    pub(super) placements: Placements,
    /// Whether the stream has broken, because memory was taken back that was in use. Nothing more is accepted.
    pub(super) broken: bool,
    /// The close notice of a link that had broken.
    close_notice: Option<Vec<u8>>,
}

/// Memory that a node has registered for reading by a peer.
#[derive(Clone, Copy)]
pub(super) struct RegisteredMemory {
    pub memory: *const u8,
    pub bytes: usize,
}

// SAFETY: the caller of `register` guarantees that the memory stays valid for reads, from any thread, until it is
// unregistered or the link ends.
unsafe impl Send for RegisteredMemory {}

impl Stream {
    /// The first time from `at` on at which what is sent now may arrive: not before what was sent earlier.
    pub(super) fn not_before(&self, at: Instant) -> Instant {
        let piece = self.pieces.back().map(|piece| piece.arrives);
        piece.into_iter().chain(self.placements.last_write()).fold(at, Instant::max)
    }

    /// Only the first `sent` pieces arrive.
    pub(super) fn cut(&mut self, sent: u64) {
        self.pieces.retain(|piece| piece.number < sent);
        self.queued_bytes = self.pieces.iter().map(|piece| piece.bytes.len() - piece.taken).sum();
    }
}

/// An event at a node that its connector will report.
#[derive(Clone)]
pub(super) enum PendingEvent {
    /// A connection that was made to this node is established.
    Established(usize),
    /// A connection has come from this node.
    Accepted(usize),
    /// The node refuses connections, with the reason.
    Refused(usize, &'static str),
}

pub(super) struct NodeState {
    /// The first node of the process to which this node belongs. Only the first node's status and sent bytes count.
    process: usize,
    status: NodeStatus,
    pub context: Option<Weak<dyn BackgroundProgress>>,
    /// Whether the device waits for what comes for the context.
    pub armed: Arc<AtomicBool>,
    /// When the device reminds the context.
    pub reminder: Option<Instant>,
    /// When the device has ticked last.
    pub ticked: Instant,
    pub pending: Vec<(Instant, PendingEvent)>,
    /// Whether its connector has no peers yet: what is pending waits.
    pub awaits_peers: bool,
    /// The incoming streams of links that have been reported to this node.
    incoming: Vec<usize>,
    pub closed: Option<Option<CloseNotice>>,
    /// Number of bytes sent so far; and after how many bytes the node fails, with its status then.
    sent: u64,
    planned_failure: Option<(u64, NodeStatus)>,
    /// When something happens at this node that is not of this network.
    wakes: BTreeSet<Instant>,
    /// What ranks of its host ring, if it shares memory with them.
    pub bell: Option<Arc<dyn Bell>>,
    /// What identifies its context.
    pub identity: Identity,
}

impl NodeState {
    /// Whether a rank of its host has rung it.
    fn is_rung(&self) -> bool {
        self.bell.as_ref().is_some_and(|bell| bell.has_rung())
    }
}

/// The state of a simulated network; see [`super`].
pub(super) struct State {
    pub now: Instant,
    pub random: Random,
    link_model: LinkModel,
    pub nodes: Vec<NodeState>,
    pub(super) streams: Vec<Stream>,
    /// Number of changes of a node's status.
    failures: u64,
    /// Whether links break if memory is taken back that is in use.
    pub(super) breaks: bool,
}

/// A simulated network. Clones share it.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

/// How long connections to a crashed node are tried.
const REFUSAL_TIME: Duration = Duration::from_secs(2);

impl Network {
    /// A network without nodes.
    pub fn new(seed: u64, link_model: LinkModel) -> Self {
        let state = State {
            now: Instant::now(),
            random: Random::new(seed),
            link_model,
            nodes: Vec::new(),
            streams: Vec::new(),
            failures: 0,
            breaks: true,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current virtual time.
    pub fn now(&self) -> Instant {
        self.state().now
    }

    /// Advances the time to `now`, unless it is in the past.
    pub fn step(&self, now: Instant) {
        let mut state = self.state();
        state.now = state.now.max(now);
        state.write_due();
    }

    /// From now on no link breaks because memory is taken back that is in use: what is to be written there vanishes,
    /// and what is to be read is written before.
    #[cfg(test)]
    pub fn never_breaks(&self) {
        self.state().breaks = false;
    }

    /// A random number less than `n`, which must not be 0.
    pub fn below(&self, n: usize) -> usize {
        self.state().random.below(n)
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.state().nodes.len()
    }

    /// The first node of the process to which `node` belongs.
    pub fn process(&self, node: usize) -> usize {
        self.state().nodes[node].process
    }

    /// Changes the status of the process of `node` now.
    pub fn fail(&self, node: usize, status: NodeStatus) {
        self.state().set_status(node, status);
    }

    /// Changes the status of the process with the first node `node` as soon as it has sent `bytes` bytes in total,
    /// possibly in the middle of a message.
    pub fn fail_after(&self, node: usize, bytes: u64, status: NodeStatus) {
        self.state().nodes[node].planned_failure = Some((bytes, status));
    }

    /// The status of `node`.
    pub fn status(&self, node: usize) -> NodeStatus {
        self.state().status(node)
    }

    /// Number of messages for which nodes expose memory, or which may still be written there.
    #[cfg(test)]
    pub fn exposed(&self) -> usize {
        self.state().streams.iter().map(|stream| stream.placements.exposed()).sum()
    }

    /// Number of bytes that `node` has sent.
    pub fn sent(&self, node: usize) -> u64 {
        self.state().nodes[node].sent
    }

    /// The time of the next event at `node`, at least the current time; `None` if there is none.
    pub fn next_event(&self, node: usize) -> Option<Instant> {
        self.state().next_event(node)
    }

    /// Tells that something which is not of this network happens at `at` at the process of `node`:
    /// [`Network::next_event`] reports it until [`Network::woken`] is called then.
    pub fn wake_at(&self, node: usize, at: Instant) {
        let mut state = self.state();
        let process = state.nodes[node].process;
        for node in state.nodes.iter_mut().filter(|node| node.process == process) {
            node.wakes.insert(at);
        }
    }

    /// `node` runs now: forgets the times that were given to [`Network::wake_at`] and have passed.
    pub fn woken(&self, node: usize) {
        self.state().woken(node);
    }

    /// Number of changes of a node's status so far.
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Bytes in transit, and number of streams that have not been closed at both ends.
    pub fn unfinished(&self) -> (usize, usize) {
        let state = self.state();
        let alive = |node: usize| state.status(node) == NodeStatus::Running;
        let open = state
            .streams
            .iter()
            .filter(|s| alive(s.from) && alive(s.to) && !((s.receiver_gone || s.receiver_closed) && s.end.is_some()));
        open.fold((0, 0), |(bytes, streams), stream| (bytes + stream.queued_bytes, streams + 1))
    }
}

impl State {
    /// See [`Network::woken`].
    pub(super) fn woken(&mut self, node: usize) {
        let now = self.now;
        self.nodes[node].wakes.retain(|at| *at > now);
    }

    /// Adds a node: to the process with the first node `process`, or to a new process.
    pub fn add_node(&mut self, process: Option<usize>) -> usize {
        self.nodes.push(NodeState {
            process: process.unwrap_or(self.nodes.len()),
            status: NodeStatus::Running,
            context: None,
            armed: Arc::default(),
            reminder: None,
            ticked: self.now,
            pending: Vec::new(),
            awaits_peers: false,
            incoming: Vec::new(),
            closed: None,
            sent: 0,
            planned_failure: None,
            wakes: BTreeSet::new(),
            bell: None,
            identity: Identity::default(),
        });
        self.nodes.len() - 1
    }

    /// The node of the context with this identity.
    pub fn node_of(&self, identity: &Identity) -> usize {
        self.nodes.iter().position(|node| node.identity == *identity).expect("a context of this network")
    }

    pub(super) fn delay(&mut self) -> Duration {
        let range = self.link_model.delay.clone();
        self.random.duration(&range)
    }

    pub(super) fn status(&self, node: usize) -> NodeStatus {
        self.nodes[self.nodes[node].process].status
    }

    fn set_status(&mut self, node: usize, status: NodeStatus) {
        if self.status(node) != NodeStatus::Running || status == NodeStatus::Running {
            return;
        }
        let process = self.nodes[node].process;
        self.write_all(|nodes, stream| nodes[stream.from].process == process);
        self.nodes[process].status = status;
        self.failures += 1;
        if status == NodeStatus::Crashed {
            for index in 0..self.streams.len() {
                if self.nodes[self.streams[index].from].process == process {
                    self.streams[index].registered.clear();
                    // Bytes in transit all arrive, or are lost from a random byte on.
                    if self.random.one_in(2) {
                        let keep = self.streams[index].pieces.len();
                        let keep = self.random.below(keep + 1);
                        self.streams[index].pieces.truncate(keep);
                    }
                    self.finish(index, false);
                }
                if self.nodes[self.streams[index].to].process == process {
                    self.streams[index].receiver_gone = true;
                    self.streams[index].placements = Placements::default();
                }
            }
        }
    }

    /// Ends a stream.
    pub(super) fn finish(&mut self, index: usize, orderly: bool) {
        let at = self.now + self.delay();
        let stream = &mut self.streams[index];
        stream.end.get_or_insert((stream.not_before(at), orderly));
    }

    pub(super) fn stream(&mut self, from: usize, to: usize) -> usize {
        if let Some(index) = self.streams.iter().position(|s| (s.from, s.to) == (from, to)) {
            return index;
        }
        self.streams.push(Stream {
            from,
            to,
            pieces: VecDeque::new(),
            queued_bytes: 0,
            end: None,
            receiver_closed: false,
            receiver_gone: false,
            watched: true,
            awaits_room: false,
            registered: HashMap::new(),
            read_ready_at: None,
            sent: 0,
            placements: Placements::default(),
            broken: false,
            close_notice: None,
        });
        self.streams.len() - 1
    }

    /// Establishes a link from `from` to `to`.
    pub fn connect(&mut self, from: usize, to: usize) {
        if self.status(from) != NodeStatus::Running {
            // Its process runs on until it sleeps.
            return;
        }
        if self.streams.iter().any(|s| (s.from, s.to) == (from, to)) {
            return;
        }
        if self.nodes[from].pending.iter().any(|(_, n)| matches!(n, PendingEvent::Refused(peer, _) if *peer == to)) {
            return;
        }
        let there = self.now + self.delay() + self.delay();
        match self.status(to) {
            NodeStatus::Silent => return,
            NodeStatus::Crashed => {
                let refused = PendingEvent::Refused(to, "the connection is refused");
                return self.nodes[from].pending.push((self.now + REFUSAL_TIME, refused));
            }
            NodeStatus::Running => {}
        }
        match self.nodes[to].closed.clone() {
            None => {
                self.stream(from, to);
                self.stream(to, from);
                let back = there + self.delay();
                self.nodes[to].pending.push((there, PendingEvent::Accepted(from)));
                self.nodes[from].pending.push((back, PendingEvent::Established(to)));
            }
            Some(None) => {
                let refused = PendingEvent::Refused(to, "its context is closed");
                self.nodes[from].pending.push((there, refused));
            }
            Some(Some(notice)) => {
                let (out, back) = (self.stream(from, to), self.stream(to, from));
                self.streams[out].receiver_closed = true;
                self.put(back, &notice(connection(from, to)));
                self.finish(back, true);
                self.nodes[from].pending.push((there, PendingEvent::Established(to)));
            }
        }
    }

    /// The context of `node` has closed.
    pub fn close(&mut self, node: usize, close_notice: CloseNotice, has_failed: bool) {
        // Links that have not been reported to the node.
        for (_, event) in std::mem::take(&mut self.nodes[node].pending) {
            if let PendingEvent::Established(peer) | PendingEvent::Accepted(peer) = event {
                self.close_link(node, peer, Some((Vec::new(), close_notice(connection(node, peer)))));
            }
        }
        self.nodes[node].closed = Some(has_failed.then_some(close_notice));
    }

    /// The link to `peer` has been reported to `node`; its readiness is reported from now on.
    pub fn open(&mut self, node: usize, peer: usize) {
        let incoming = self.stream(peer, node);
        self.nodes[node].incoming.push(incoming);
    }

    /// Sends all of `bytes`, regardless of capacity.
    fn put(&mut self, index: usize, bytes: &[u8]) {
        let at = self.now + self.delay();
        let stream = &mut self.streams[index];
        if stream.receiver_closed {
            return;
        }
        let arrives = stream.not_before(at);
        stream.queued_bytes += bytes.len();
        stream.pieces.push_back(Piece { number: stream.sent, arrives, bytes: bytes.to_vec(), taken: 0 });
        stream.sent += 1;
    }

    pub fn send(&mut self, from: usize, to: usize, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        if self.status(from) != NodeStatus::Running {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let index = self.stream(from, to);
        if self.streams[index].receiver_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.streams[index].broken {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room = self.link_model.capacity.saturating_sub(self.streams[index].queued_bytes);
        let mut max = parts.iter().map(|part| part.len()).sum::<usize>().min(room);
        if max == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if max > 1 && self.random.one_in(2) {
            max = max.min(1 + self.random.below(self.link_model.piece));
        }
        let process = self.nodes[from].process;
        let NodeState { planned_failure, sent, .. } = self.nodes[process];
        let left = planned_failure.map_or(u64::MAX, |(bytes, _)| bytes.saturating_sub(sent));
        let n = max.min(usize::try_from(left).unwrap_or(usize::MAX));
        if n > 0 {
            let mut bytes = Vec::with_capacity(n);
            for part in parts {
                bytes.extend_from_slice(&part[..part.len().min(n - bytes.len())]);
            }
            self.put(index, &bytes);
            self.nodes[process].sent += n as u64;
        }
        match planned_failure {
            Some((_, status)) if left <= max as u64 => {
                self.set_status(from, status);
                if n > 0 { Ok(n) } else { Err(io::ErrorKind::WouldBlock.into()) }
            }
            _ => Ok(n),
        }
    }

    pub fn receive(&mut self, from: usize, to: usize, parts: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        if self.status(to) != NodeStatus::Running {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let index = self.stream(from, to);
        let now = self.now;
        let mut max = parts.iter().map(|part| part.len()).sum::<usize>();
        if max > 1 && self.random.one_in(2) {
            max = max.min(1 + self.random.below(self.link_model.piece));
        }
        let stream = &mut self.streams[index];
        let mut n = 0;
        for part in parts.iter_mut() {
            let mut filled = 0;
            while filled < part.len() && n < max {
                let Some(piece) = stream.pieces.front_mut().filter(|piece| piece.arrives <= now) else { break };
                let length = (piece.bytes.len() - piece.taken).min(part.len() - filled).min(max - n);
                part[filled..filled + length].copy_from_slice(&piece.bytes[piece.taken..piece.taken + length]);
                piece.taken += length;
                filled += length;
                n += length;
                if piece.taken == piece.bytes.len() {
                    stream.pieces.pop_front();
                }
            }
        }
        stream.queued_bytes -= n;
        if n > 0 {
            return Ok(n);
        }
        match stream.end {
            Some((at, orderly)) if at <= now && stream.pieces.is_empty() => {
                if let Some(notice) = stream.close_notice.clone() {
                    Err(io::Error::other(ReceivedNotice(notice)))
                } else if orderly || self.random.one_in(2) {
                    Ok(0)
                } else {
                    Err(io::ErrorKind::ConnectionReset.into())
                }
            }
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub fn watch(&mut self, node: usize, peer: usize, interest: Interest) {
        let (incoming, outgoing) = (self.stream(peer, node), self.stream(node, peer));
        self.streams[incoming].watched = interest.readable;
        self.streams[outgoing].awaits_room = interest.writable;
    }

    /// Ends the link of `node` to `peer`: in an orderly way with the rest of a message and the close notice, which may
    /// be empty, or by dropping it.
    pub fn close_link(&mut self, node: usize, peer: usize, orderly_end: Option<(Vec<u8>, Vec<u8>)>) {
        let (incoming, outgoing) = (self.stream(peer, node), self.stream(node, peer));
        self.streams[outgoing].registered.clear();
        self.streams[incoming].placements.end_exposures(self.now);
        self.nodes[node].incoming.retain(|index| *index != incoming);
        if self.status(node) != NodeStatus::Running {
            return;
        }
        self.end_writes(node, peer);
        let broken = self.streams[outgoing].broken;
        let is_orderly = orderly_end.is_some();
        let last_bytes = match orderly_end {
            Some((_, notice)) if broken => {
                self.streams[outgoing].close_notice = Some(notice);
                None
            }
            end => end.map(|(rest, notice)| [rest, notice].concat()),
        };
        let stream = &mut self.streams[incoming];
        stream.receiver_closed = is_orderly;
        stream.receiver_gone = !is_orderly;
        stream.queued_bytes = 0;
        stream.pieces.clear();
        if let Some(bytes) = last_bytes.filter(|bytes| !bytes.is_empty() && !self.streams[outgoing].receiver_gone) {
            self.put(outgoing, &bytes);
        }
        self.finish(outgoing, is_orderly && !broken);
    }

    /// The conditions that are true for the link that has this incoming stream.
    fn readiness(&self, node: usize, incoming: usize) -> Interest {
        let stream = &self.streams[incoming];
        let piece = stream.pieces.front().map(|piece| piece.arrives);
        let first = piece.or(stream.end.map(|(at, _)| at));
        let back = self.streams.iter().find(|s| (s.from, s.to) == (node, stream.from));
        let has_room = |s: &Stream| s.receiver_gone || !s.broken && s.queued_bytes < self.link_model.capacity;
        let room = back.is_some_and(|s| s.awaits_room && has_room(s));
        let ready = stream.read_ready_at.into_iter().chain(back.and_then(|back| back.placements.next_report())).min();
        let readable =
            ready.is_some_and(|at| at <= self.now) || stream.watched && first.is_some_and(|at| at <= self.now);
        Interest { readable, writable: room }
    }

    /// The message sizes above which messages between these nodes are read or placed, one of them at most. A third of
    /// the links of a network support neither; of the others, half support each, or all if there is only one.
    pub fn eager_bytes(&self, node: usize, peer: usize) -> (Option<usize>, Option<usize>) {
        let LinkModel { reads_above, places_above, .. } = self.link_model;
        match (node ^ peer) % 3 {
            0 => (None, None),
            1 if reads_above.is_some() => (reads_above, None),
            2 if places_above.is_none() => (reads_above, None),
            _ => (None, places_above),
        }
    }

    /// Registers memory of `node` for reading by `peer`. Fails at random.
    pub fn register(&mut self, node: usize, peer: usize, key: u32, memory: RegisteredMemory) -> Result<()> {
        if self.random.one_in(8) {
            return Err(Error::new(ErrorKind::ResourceExhausted, "memory cannot be registered"));
        }
        let index = self.stream(node, peer);
        let before = self.streams[index].registered.insert(key, memory);
        assert!(before.is_none(), "two registrations have the key {key}");
        Ok(())
    }

    /// Ends a registration.
    pub fn unregister(&mut self, node: usize, peer: usize, key: u32) {
        let index = self.stream(node, peer);
        assert!(self.streams[index].registered.remove(&key).is_some(), "nothing is registered under the key {key}");
    }

    /// `to` reads memory that `from` has registered; also if `from` is silent.
    pub fn read(&mut self, from: usize, to: usize, key: u32, offset: usize, into: &mut [u8]) -> io::Result<usize> {
        let index = self.stream(from, to);
        self.streams[index].read_ready_at = None;
        let registered = self.streams[index].registered.get(&key).copied();
        let Some(RegisteredMemory { memory, bytes }) =
            registered.filter(|registered| into.len() <= registered.bytes.saturating_sub(offset))
        else {
            return Err(io::ErrorKind::NotFound.into());
        };
        assert!(offset <= bytes && !into.is_empty());
        if self.random.one_in(4) {
            let at = self.now + self.delay();
            self.streams[index].read_ready_at = Some(at);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let max = into.len();
        let n = if self.random.one_in(2) { max } else { 1 + self.random.below(max) };
        // SAFETY: the memory is registered, so it is valid for reads of `bytes`, and `offset + n <= bytes` was checked;
        // `n <= into.len()`.
        unsafe { std::ptr::copy_nonoverlapping(memory.add(offset), into.as_mut_ptr(), n) };
        Ok(n)
    }

    /// The links of `node` that are ready, in random order.
    pub fn ready(&mut self, node: usize) -> Vec<(usize, Interest)> {
        let mut ready: Vec<(usize, Interest)> = Vec::new();
        for index in self.nodes[node].incoming.clone() {
            let of = self.readiness(node, index);
            // Reported only once: the reader continues then, or may have abandoned the read.
            self.streams[index].read_ready_at.take_if(|at| *at <= self.now);
            let (now, back) = (self.now, self.stream(node, self.streams[index].from));
            self.streams[back].placements.reported(now);
            if of.readable || of.writable {
                let at = self.random.below(ready.len() + 1);
                ready.insert(at, (self.streams[index].from, of));
            }
        }
        ready
    }

    pub(super) fn next_event(&self, node: usize) -> Option<Instant> {
        let this = &self.nodes[node];
        if self.status(node) != NodeStatus::Running {
            return None;
        }
        if this.is_rung() {
            return Some(self.now);
        }
        let pending = this.pending.iter().map(|(at, _)| *at).filter(|_| !this.awaits_peers);
        let links = this.incoming.iter().filter_map(|&index| {
            let (stream, of) = (&self.streams[index], self.readiness(node, index));
            if of.readable || of.writable {
                return Some(self.now);
            }
            let piece = stream.pieces.front().map(|piece| piece.arrives);
            let bytes = piece.or(stream.end.map(|(at, _)| at)).filter(|_| stream.watched);
            let back = self.streams.iter().find(|s| (s.from, s.to) == (node, stream.from));
            let finished = back.and_then(|back| back.placements.next_report());
            [bytes, stream.read_ready_at, finished].into_iter().flatten().min()
        });
        pending.chain(links).chain(this.wakes.first().copied()).min().map(|at| at.max(self.now))
    }
}

/// The number of the connection between two nodes.
pub(super) fn connection(a: usize, b: usize) -> u32 {
    (a.min(b) as u32) << 16 | a.max(b) as u32
}
