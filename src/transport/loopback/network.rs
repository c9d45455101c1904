//! The state of a simulated network.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::transport::{BackgroundProgress, CloseNotice, Interest};

/// A generator of pseudo-random numbers: xorshift64*, by Marsaglia and Vigna.
pub struct Random(u64);

impl Random {
    /// Of a seed; neighbouring seeds give unlike numbers.
    pub fn new(seed: u64) -> Self {
        // SplitMix64's finalizer.
        let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((x ^ (x >> 31)) | 1)
    }

    /// Any number.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Whether an event of one in `n` happens.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn duration(&mut self, range: &Range<Duration>) -> Duration {
        let nanoseconds = (range.end - range.start).as_nanos().max(1) as usize;
        range.start + Duration::from_nanos(self.below(nanoseconds) as u64)
    }
}

/// How a network treats what is sent.
#[derive(Clone, Debug)]
pub struct LinkModel {
    /// How long a piece is on its way. Pieces of one direction of a link stay in order.
    pub delay: Range<Duration>,
    /// Bytes that a direction of a link holds that the receiver has not taken.
    pub capacity: usize,
    /// Bytes that are sent or received at once, at most; fewer at random.
    pub piece: usize,
    /// Some links read the peer's memory, for messages of more bytes than this.
    pub reads_above: Option<usize>,
}

/// How a node goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// As it should.
    Running,
    /// Its process has ended without a word.
    Crashed,
    /// It says and does nothing any more, and its links stand.
    Silent,
}

/// Bytes under way, and how many of them the receiver has taken.
struct Piece {
    arrives: Instant,
    bytes: Vec<u8>,
    taken: usize,
}

/// One direction of a link.
struct Stream {
    from: usize,
    to: usize,
    pieces: VecDeque<Piece>,
    queued_bytes: usize,
    /// From when on the receiver sees that nothing follows, and whether the sender said so.
    end: Option<(Instant, bool)>,
    /// The receiver has ended the link in good order, and what is sent is thrown away.
    receiver_closed: bool,
    /// The receiver has gone: nothing can be sent.
    receiver_gone: bool,
    /// The receiving side's interest in this direction, and the sending side's in room.
    watched: bool,
    awaits_room: bool,
    /// What the sending side lets the other read, by key.
    registered: HashMap<u32, RegisteredMemory>,
    /// When the receiving side can read on.
    read_ready_at: Option<Instant>,
}

/// Memory that a node lets a peer read.
#[derive(Clone, Copy)]
pub(super) struct RegisteredMemory {
    pub memory: *const u8,
    pub bytes: usize,
}

// SAFETY: who registers the memory vouches for it until it is unregistered or the link has ended, whatever thread reads it.
unsafe impl Send for RegisteredMemory {}

/// What is to happen at a node that its connector must hear of.
#[derive(Clone)]
pub(super) enum PendingEvent {
    /// The link to this node stands.
    Established(usize),
    /// It refuses, for this reason.
    Refused(usize, &'static str),
}

pub(super) struct NodeState {
    pub status: NodeStatus,
    pub context: Option<Weak<dyn BackgroundProgress>>,
    pub pending: Vec<(Instant, PendingEvent)>,
    /// Directions that end here, for links that this node has been told of.
    incoming: Vec<usize>,
    pub closed: Option<Option<CloseNotice>>,
    /// Bytes that it has sent, and after how many it meets its status.
    sent: u64,
    planned_failure: Option<(u64, NodeStatus)>,
}

/// The state of a simulated network; see [`super`].
pub(super) struct State {
    pub now: Instant,
    pub random: Random,
    link_model: LinkModel,
    pub nodes: Vec<NodeState>,
    streams: Vec<Stream>,
}

/// A simulated network. Clones are the same one.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

/// How long a connection to a node that has died is tried.
const PATIENCE: Duration = Duration::from_secs(2);

impl Network {
    /// Without nodes.
    pub fn new(seed: u64, link_model: LinkModel) -> Self {
        let state = State {
            now: Instant::now(),
            random: Random::new(seed),
            link_model,
            nodes: Vec::new(),
            streams: Vec::new(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What time it is.
    pub fn now(&self) -> Instant {
        self.state().now
    }

    /// Lets time pass until `now`.
    pub fn step(&self, now: Instant) {
        let mut state = self.state();
        state.now = state.now.max(now);
    }

    /// A number below `n`, which is not 0.
    pub fn below(&self, n: usize) -> usize {
        self.state().random.below(n)
    }

    /// `node` meets this status now.
    pub fn fail(&self, node: usize, status: NodeStatus) {
        self.state().set_status(node, status);
    }

    /// `node` meets this status as soon as it has sent so many bytes in all, in the middle of a message if need be.
    pub fn fail_after(&self, node: usize, bytes: u64, status: NodeStatus) {
        self.state().nodes[node].planned_failure = Some((bytes, status));
    }

    /// How `node` goes on.
    pub fn status(&self, node: usize) -> NodeStatus {
        self.state().nodes[node].status
    }

    /// Bytes that `node` has sent.
    pub fn sent(&self, node: usize) -> u64 {
        self.state().nodes[node].sent
    }

    /// When something is next to happen at `node`: now or later; `None` if nothing is under way to it.
    pub fn next_event(&self, node: usize) -> Option<Instant> {
        self.state().next_event(node)
    }

    /// Lets `node`'s device do what it does while nobody waits.
    pub fn drive(&self, node: usize) {
        let context = self.state().nodes[node].context.clone();
        if let Some(context) = context.and_then(|context| context.upgrade()) {
            context.arrived();
        }
    }

    /// Bytes under way, and directions of links whose ends have not both been let go.
    pub fn unfinished(&self) -> (usize, usize) {
        let state = self.state();
        let alive = |node: usize| state.nodes[node].status == NodeStatus::Running;
        let open = state
            .streams
            .iter()
            .filter(|s| alive(s.from) && alive(s.to) && !((s.receiver_gone || s.receiver_closed) && s.end.is_some()));
        open.fold((0, 0), |(bytes, streams), stream| (bytes + stream.queued_bytes, streams + 1))
    }
}

impl State {
    pub fn add_node(&mut self) -> usize {
        self.nodes.push(NodeState {
            status: NodeStatus::Running,
            context: None,
            pending: Vec::new(),
            incoming: Vec::new(),
            closed: None,
            sent: 0,
            planned_failure: None,
        });
        self.nodes.len() - 1
    }

    fn delay(&mut self) -> Duration {
        let range = self.link_model.delay.clone();
        self.random.duration(&range)
    }

    fn set_status(&mut self, node: usize, status: NodeStatus) {
        if self.nodes[node].status != NodeStatus::Running || status == NodeStatus::Running {
            return;
        }
        self.nodes[node].status = status;
        if status == NodeStatus::Crashed {
            for index in 0..self.streams.len() {
                if self.streams[index].from == node {
                    self.streams[index].registered.clear();
                    // What was under way arrives, or is lost from some byte on.
                    if self.random.one_in(2) {
                        let keep = self.streams[index].pieces.len();
                        let keep = self.random.below(keep + 1);
                        self.streams[index].pieces.truncate(keep);
                    }
                    self.finish(index, false);
                }
                if self.streams[index].to == node {
                    self.streams[index].receiver_gone = true;
                }
            }
        }
    }

    /// Nothing follows on this direction.
    fn finish(&mut self, index: usize, said: bool) {
        let at = self.now + self.delay();
        let stream = &mut self.streams[index];
        let last = stream.pieces.back().map_or(at, |piece| at.max(piece.arrives));
        stream.end.get_or_insert((last, said));
    }

    fn stream(&mut self, from: usize, to: usize) -> usize {
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
        });
        self.streams.len() - 1
    }

    /// `from` wants a link to `to`.
    pub fn connect(&mut self, from: usize, to: usize) {
        if self.streams.iter().any(|s| (s.from, s.to) == (from, to)) {
            return;
        }
        if self.nodes[from].pending.iter().any(|(_, n)| matches!(n, PendingEvent::Refused(peer, _) if *peer == to)) {
            return;
        }
        let there = self.now + self.delay() + self.delay();
        match self.nodes[to].status {
            NodeStatus::Silent => return,
            NodeStatus::Crashed => {
                let refused = PendingEvent::Refused(to, "the connection is refused");
                return self.nodes[from].pending.push((self.now + PATIENCE, refused));
            }
            NodeStatus::Running => {}
        }
        match self.nodes[to].closed.clone() {
            None => {
                self.stream(from, to);
                self.stream(to, from);
                let back = there + self.delay();
                self.nodes[to].pending.push((there, PendingEvent::Established(from)));
                self.nodes[from].pending.push((back, PendingEvent::Established(to)));
            }
            Some(None) => {
                let refused = PendingEvent::Refused(to, "its context is closed");
                self.nodes[from].pending.push((there, refused));
            }
            Some(Some(words)) => {
                let (out, back) = (self.stream(from, to), self.stream(to, from));
                self.streams[out].receiver_closed = true;
                self.put(back, &words(connection(from, to)));
                self.finish(back, true);
                self.nodes[from].pending.push((there, PendingEvent::Established(to)));
            }
        }
    }

    /// The context on `node` has closed.
    pub fn close(&mut self, node: usize, last_words: Option<CloseNotice>) {
        // Links that it has not been told of.
        for (_, event) in std::mem::take(&mut self.nodes[node].pending) {
            if let PendingEvent::Established(peer) = event {
                let words = last_words.as_ref().map(|words| words(connection(node, peer)));
                self.close_link(node, peer, Some(&words.unwrap_or_default()));
            }
        }
        self.nodes[node].closed = Some(last_words);
    }

    /// `node` has been told that the link to `peer` stands: its events count from now on.
    pub fn open(&mut self, node: usize, peer: usize) {
        let incoming = self.stream(peer, node);
        self.nodes[node].incoming.push(incoming);
    }

    /// Puts bytes on their way, all of them.
    fn put(&mut self, index: usize, bytes: &[u8]) {
        let at = self.now + self.delay();
        let stream = &mut self.streams[index];
        if stream.receiver_closed {
            return;
        }
        let arrives = stream.pieces.back().map_or(at, |last| at.max(last.arrives));
        stream.queued_bytes += bytes.len();
        stream.pieces.push_back(Piece { arrives, bytes: bytes.to_vec(), taken: 0 });
    }

    pub fn send(&mut self, from: usize, to: usize, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        if self.nodes[from].status != NodeStatus::Running {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let index = self.stream(from, to);
        if self.streams[index].receiver_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = self.link_model.capacity.saturating_sub(self.streams[index].queued_bytes);
        let mut most = parts.iter().map(|part| part.len()).sum::<usize>().min(room);
        if most == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if most > 1 && self.random.one_in(2) {
            most = most.min(1 + self.random.below(self.link_model.piece));
        }
        let planned_failure = self.nodes[from].planned_failure;
        let left = planned_failure.map_or(u64::MAX, |(bytes, _)| bytes.saturating_sub(self.nodes[from].sent));
        let n = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        if n > 0 {
            let mut bytes = Vec::with_capacity(n);
            for part in parts {
                bytes.extend_from_slice(&part[..part.len().min(n - bytes.len())]);
            }
            self.put(index, &bytes);
            self.nodes[from].sent += n as u64;
        }
        match planned_failure {
            Some((_, status)) if left <= most as u64 => {
                self.set_status(from, status);
                if n > 0 { Ok(n) } else { Err(io::ErrorKind::WouldBlock.into()) }
            }
            _ => Ok(n),
        }
    }

    pub fn receive(&mut self, from: usize, to: usize, parts: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        if self.nodes[to].status != NodeStatus::Running {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let index = self.stream(from, to);
        let now = self.now;
        let mut most = parts.iter().map(|part| part.len()).sum::<usize>();
        if most > 1 && self.random.one_in(2) {
            most = most.min(1 + self.random.below(self.link_model.piece));
        }
        let stream = &mut self.streams[index];
        let mut n = 0;
        for part in parts.iter_mut() {
            let mut filled = 0;
            while filled < part.len() && n < most {
                let Some(piece) = stream.pieces.front_mut().filter(|piece| piece.arrives <= now) else { break };
                let length = (piece.bytes.len() - piece.taken).min(part.len() - filled).min(most - n);
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
            Some((at, said)) if at <= now && stream.pieces.is_empty() => {
                if said || self.random.one_in(2) {
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

    /// `node` ends its link to `peer`, with these last words if the end is in good order.
    pub fn close_link(&mut self, node: usize, peer: usize, last_words: Option<&[u8]>) {
        let (incoming, outgoing) = (self.stream(peer, node), self.stream(node, peer));
        self.streams[outgoing].registered.clear();
        self.nodes[node].incoming.retain(|index| *index != incoming);
        if self.nodes[node].status != NodeStatus::Running {
            return;
        }
        let stream = &mut self.streams[incoming];
        stream.receiver_closed = last_words.is_some();
        stream.receiver_gone = last_words.is_none();
        stream.queued_bytes = 0;
        stream.pieces.clear();
        if let Some(words) = last_words.filter(|words| !words.is_empty() && !self.streams[outgoing].receiver_gone) {
            self.put(outgoing, words);
        }
        self.finish(outgoing, last_words.is_some());
    }

    /// What the link from `node` to `peer` is ready for.
    fn readiness(&self, node: usize, incoming: usize) -> Interest {
        let stream = &self.streams[incoming];
        let piece = stream.pieces.front().map(|piece| piece.arrives);
        let first = piece.or(stream.end.map(|(at, _)| at));
        let back = self.streams.iter().find(|s| (s.from, s.to) == (node, stream.from));
        let room =
            back.is_some_and(|s| s.awaits_room && (s.receiver_gone || s.queued_bytes < self.link_model.capacity));
        let read_ready_at = stream.read_ready_at.is_some_and(|at| at <= self.now);
        let readable = read_ready_at || stream.watched && first.is_some_and(|at| at <= self.now);
        Interest { readable, writable: room }
    }

    /// From how many bytes on messages between these nodes are read, if they are: on about half of the links of a network where
    /// some are.
    pub fn eager_bytes(&self, node: usize, peer: usize) -> Option<usize> {
        self.link_model.reads_above.filter(|_| !(node ^ peer).is_multiple_of(3))
    }

    /// `node` lets `peer` read this memory. Fails at times.
    pub fn register(&mut self, node: usize, peer: usize, key: u32, memory: RegisteredMemory) -> Result<()> {
        if self.random.one_in(8) {
            return Err(Error::new(ErrorKind::ResourceExhausted, "memory cannot be registered"));
        }
        let index = self.stream(node, peer);
        let before = self.streams[index].registered.insert(key, memory);
        assert!(before.is_none(), "two registrations have the key {key}");
        Ok(())
    }

    /// `node` ends `register`.
    pub fn unregister(&mut self, node: usize, peer: usize, key: u32) {
        let index = self.stream(node, peer);
        assert!(self.streams[index].registered.remove(&key).is_some(), "nothing is registered under the key {key}");
    }

    /// `to` reads what `from` has registered. A node that is silent has memory all the same.
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
        let most = into.len();
        let n = if self.random.one_in(2) { most } else { 1 + self.random.below(most) };
        // SAFETY: it is registered, and long enough.
        unsafe { std::ptr::copy_nonoverlapping(memory.add(offset), into.as_mut_ptr(), n) };
        Ok(n)
    }

    /// The links of `node` that are ready, in any order.
    pub fn ready(&mut self, node: usize) -> Vec<(usize, Interest)> {
        let mut ready: Vec<(usize, Interest)> = Vec::new();
        for index in self.nodes[node].incoming.clone() {
            let of = self.readiness(node, index);
            // Told once: whoever waits for it reads on, and nobody may wait any more.
            self.streams[index].read_ready_at.take_if(|at| *at <= self.now);
            if of.readable || of.writable {
                let at = self.random.below(ready.len() + 1);
                ready.insert(at, (self.streams[index].from, of));
            }
        }
        ready
    }

    fn next_event(&self, node: usize) -> Option<Instant> {
        let this = &self.nodes[node];
        if this.status != NodeStatus::Running {
            return None;
        }
        let pending = this.pending.iter().map(|(at, _)| *at);
        let links = this.incoming.iter().filter_map(|&index| {
            let (stream, of) = (&self.streams[index], self.readiness(node, index));
            if of.readable || of.writable {
                return Some(self.now);
            }
            let piece = stream.pieces.front().map(|piece| piece.arrives);
            let bytes = piece.or(stream.end.map(|(at, _)| at)).filter(|_| stream.watched);
            [bytes, stream.read_ready_at].into_iter().flatten().min()
        });
        pending.chain(links).min().map(|at| at.max(self.now))
    }
}

/// The number of the connection between two nodes.
pub(super) fn connection(a: usize, b: usize) -> u32 {
    (a.min(b) as u32) << 16 | a.max(b) as u32
}
