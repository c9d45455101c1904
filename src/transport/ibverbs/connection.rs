//! A connection to one peer: its queue pairs, the frames that it sends and receives, the memory that either side has exposed, and its end.
//!
//! The stream goes by the first queue pair. Each side posts receives for frames, and tells the other how many more it has posted
//! (credits) in the headers of its own frames, so that no frame ever finds no receive. One credit is kept for frames that carry nothing but
//! credits, without which two sides that wait for credits would wait for ever.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use ibverbs_sys as ffi;

use super::endpoint::{End, Offer, Peer};
use super::frame::{self, FRAME_BYTES, HEADER_BYTES, Header, MAX_RECORDS, Record, RecordKind};
use super::handles::{Capacity, QueuePair};
use super::memory::{Keys, Pages, PoolBuffer, Registered, cannot_register};
use super::queue_pair;
use super::rail::Rail;
use super::shared::{Common, GRACE};
use super::status;
use crate::error::{Error, Result};
use crate::hash::QuickMap;
use crate::transport::{Interest, LastWords, Link};
use crate::types::Rank;

/// Sizes of a connection's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Frames that are sent and not acknowledged.
    pub sends: usize,
    /// Posted receives.
    pub receives: usize,
    /// Other work requests in the send queue.
    pub spare: usize,
}

impl Depth {
    /// With about `requests` in all; a device permits `most` in one queue.
    pub fn of(requests: usize, most: usize) -> Self {
        let depth = (requests / 4).clamp(8, 64).min(most / 2).max(1);
        Self { sends: depth, receives: depth, spare: depth }
    }
}

/// Bytes that requests may contain, so that the device need not fetch them from memory.
const INLINE_BYTES: u32 = 220;
/// From this length on, a message is divided among the rails.
const STRIPED_BYTES: usize = 256 << 10;
/// Divided messages are cut at multiples of this.
const STRIPE_ALIGNMENT: usize = 4096;

/// Most bytes of the peer's last words: the rest of a message, and a text.
const MAX_END_BYTES: usize = 8 << 20;

/// The kinds of a work request, in its number.
const SEND: u64 = 0;
const RECEIVE: u64 = 1;
const KIND_SHIFT: u32 = 30;
const RAIL_SHIFT: u32 = 28;
const VALUE_MASK: u64 = (1 << RAIL_SHIFT) - 1;

/// The number of a work request: its connection, kind, rail, and a value.
fn request_number(connection: u32, kind: u64, rail: usize, value: u64) -> u64 {
    u64::from(connection) << 32 | kind << KIND_SHIFT | (rail as u64) << RAIL_SHIFT | value & VALUE_MASK
}

/// A request in a send queue that causes a completion. Requests that do not are over when a later one is.
struct Signal {
    /// Its number in the queue.
    sequence: u64,
    /// Frames sent up to it, with those of this request.
    frames: u64,
    /// The placement of which it is a part.
    placement: Option<u32>,
}

/// A queue pair, and what is in its send queue.
struct Pair {
    queue_pair: QueuePair,
    /// Its first packet's number.
    packet: u32,
    posted: u64,
    retired: u64,
    signals: VecDeque<Signal>,
    /// Most bytes of a request.
    max_message: usize,
    /// Of its rail and the peer's.
    speed: u32,
}

/// Part of a placement that was not posted yet.
struct Piece {
    placement: u32,
    local: u64,
    local_keys: Keys,
    remote: u64,
    remote_keys: [u32; super::memory::MAX_RAILS],
    bytes: usize,
}

/// A message that is being written.
struct Placement {
    ticket: u32,
    /// Parts that have not completed.
    left: usize,
    /// The buffer from which it is written; without, it is written from the program's memory, and its ticket is open.
    buffer: Option<PoolBuffer>,
}

/// Memory that is exposed to the peer for one message.
enum Exposure {
    /// The program's.
    Direct,
    /// A buffer of the pool.
    Buffer(PoolBuffer, usize),
}

/// Posted receives and frames being sent, in memory that is registered with the first rail.
struct Frames {
    // First, so that it is deregistered before it is freed.
    registered: Registered,
    pages: Pages,
}

/// How the connection has ended, or is ending.
#[derive(Default)]
enum Ending {
    /// It has not.
    #[default]
    No,
    /// The peer has ended it, with these last words.
    Peer(End),
    /// The peer's process has ended, or the connection for last words broke.
    Gone,
}

/// A connection to a peer.
pub struct Connection {
    id: u32,
    /// The peer.
    pub rank: Rank,
    // Destroyed before the memory.
    pairs: Vec<Pair>,
    frames: Frames,
    depth: Depth,
    /// The connection over which the queue pairs were connected: sign of life, and way of the last words.
    inner: Option<Box<dyn Link>>,
    inner_bytes: Vec<u8>,
    /// What the context waits for.
    pub watched: Interest,
    /// The connector has it in its list.
    is_touched: bool,
    // Sending.
    credits: usize,
    frames_sent: u64,
    frames_retired: u64,
    /// Frames posted since the last one that causes a completion.
    unsignaled: usize,
    sent_bytes: u64,
    records: Vec<Record>,
    pieces: VecDeque<Piece>,
    placements: crate::slab::Slab<Placement>,
    /// Parts that have not completed on other rails than the first; frames behind them wait.
    fence: usize,
    finished: VecDeque<u32>,
    theirs: QuickMap<u32, Record>,
    /// Requests that are about to be posted with one call.
    requests: Vec<ffi::ibv_send_wr>,
    parts: Vec<ffi::ibv_sge>,
    // Receiving.
    arrived: VecDeque<(u32, usize, usize)>,
    to_post: Vec<u32>,
    owed: usize,
    received_bytes: u64,
    exposures: QuickMap<u32, Exposure>,
    /// Buffers into which the peer may still write although their message is not wanted any more.
    abandoned: Vec<PoolBuffer>,
    // The end.
    broken: Option<String>,
    ending: Ending,
    /// Until when it waits for what is missing after it broke or the peer has ended it; set by [`Connection::tick`], which knows the time.
    grace: Option<Instant>,
    tail: Option<(Vec<u8>, usize)>,
    /// When anything last arrived.
    pub heard: Instant,
}

// SAFETY: the requests' pointers are set and used within one call only, and the rest is owned.
unsafe impl Send for Connection {}

impl Connection {
    /// A connection whose queue pairs can be connected: one for each rail, with receives posted.
    pub fn new(common: &mut Common, id: u32, rank: Rank, depth: Depth) -> Result<Self> {
        let failed =
            |what: &str, rail: &Rail, e: &io::Error| Error::io(format_args!("cannot {what} on {}", rail.name), e);
        let mut pairs = Vec::with_capacity(common.rails.len());
        for (rail, queue) in common.rails.iter().zip(&common.queues) {
            let capacity = Capacity {
                sends: (depth.sends + depth.spare) as u32,
                receives: depth.receives as u32,
                inline: INLINE_BYTES,
            };
            let queue_pair =
                QueuePair::new(&rail.domain, queue, capacity).map_err(|e| failed("create a queue pair", rail, &e))?;
            queue_pair::initialise(&queue_pair, rail).map_err(|e| failed("initialise a queue pair", rail, &e))?;
            let [a, b, c, ..]: [u8; 4] = crate::sys::random().map_err(|e| failed("connect a queue pair", rail, &e))?;
            let packet = u32::from_le_bytes([a, b, c, 0]);
            pairs.push(Pair {
                queue_pair,
                packet,
                posted: 0,
                retired: 0,
                signals: VecDeque::with_capacity(depth.sends + depth.spare),
                max_message: rail.max_message,
                speed: rail.speed,
            });
        }
        let bytes = (depth.sends + depth.receives) * FRAME_BYTES;
        let pages = Pages::new(bytes).map_err(|e| cannot_register(bytes, &e))?;
        // SAFETY: the pages are freed after the registration has ended.
        let registered = unsafe { Registered::new(&common.rails[..1], pages.start(), bytes) };
        let registered = registered.map_err(|e| cannot_register(bytes, &e))?;
        common.counters.registrations += 1;
        let mut connection = Self {
            id,
            rank,
            pairs,
            frames: Frames { registered, pages },
            depth,
            inner: None,
            inner_bytes: Vec::new(),
            watched: Interest { readable: true, writable: false },
            is_touched: false,
            credits: 0,
            frames_sent: 0,
            frames_retired: 0,
            unsignaled: 0,
            sent_bytes: 0,
            records: Vec::new(),
            pieces: VecDeque::new(),
            placements: crate::slab::Slab::default(),
            fence: 0,
            finished: VecDeque::new(),
            theirs: QuickMap::default(),
            requests: Vec::with_capacity(depth.sends + depth.spare),
            parts: Vec::with_capacity(depth.sends + depth.spare),
            arrived: VecDeque::with_capacity(depth.receives),
            to_post: (0..depth.receives as u32).collect(),
            owed: 0,
            received_bytes: 0,
            exposures: QuickMap::default(),
            abandoned: Vec::new(),
            broken: None,
            ending: Ending::No,
            grace: None,
            tail: None,
            heard: common.now,
        };
        connection.post_receives(common).map_err(|e| failed("post receives", &common.rails[0], &e))?;
        connection.owed = 0;
        Ok(connection)
    }

    /// What the peer needs to connect its queue pairs to these.
    pub fn offer(&self, rails: &[Arc<Rail>]) -> Offer {
        let pairs = self.pairs.iter().zip(rails).map(|(pair, rail)| Peer {
            number: pair.queue_pair.number,
            packet: pair.packet,
            max_message: rail.max_message.min(u32::MAX as usize) as u32,
            speed: rail.speed,
            lid: rail.lid,
            mtu: rail.mtu as u8,
            link_layer: rail.link_layer,
            gid: rail.gid,
        });
        Offer {
            rails: pairs.collect(),
            receives: self.depth.receives as u32,
            frame_bytes: FRAME_BYTES as u32,
            reads: rails.iter().map(|rail| rail.max_reads[0].into()).min().unwrap_or(0),
            reason: String::new(),
        }
    }

    /// Connects the queue pairs to the peer's. Rails that the peer does not have are not used.
    pub fn connect(&mut self, offer: &Offer, common: &Common) -> Result<()> {
        let mismatch = |text: String| Err(Error::new(crate::error::ErrorKind::Mismatch, text));
        if offer.frame_bytes as usize != FRAME_BYTES || offer.receives == 0 {
            return mismatch(format!("it posts {} receives of {} bytes", offer.receives, offer.frame_bytes));
        }
        self.pairs.truncate(offer.rails.len());
        for ((pair, rail), peer) in self.pairs.iter_mut().zip(&common.rails).zip(&offer.rails) {
            if rail.link_layer != peer.link_layer {
                let (own, theirs) = (rail.link_layer.name(), peer.link_layer.name());
                return mismatch(format!("{} here is {own}, its port there {theirs}", rail.name));
            }
            let reads = [rail.max_reads[0], rail.max_reads[1].min(offer.reads.min(255) as u8)];
            queue_pair::connect(&pair.queue_pair, rail, peer, pair.packet, &common.path, reads).map_err(|e| {
                let there = std::net::Ipv6Addr::from(peer.gid);
                Error::io(
                    format_args!("cannot connect a queue pair of {} to GID {there}, LID {}", rail.name, peer.lid),
                    &e,
                )
            })?;
            pair.max_message = rail.max_message.min(peer.max_message as usize);
            pair.speed = rail.speed.min(peer.speed).max(1);
        }
        self.credits = offer.receives as usize;
        Ok(())
    }

    /// From now on `inner` is the sign of life.
    pub fn establish(&mut self, inner: Box<dyn Link>) {
        self.inner = Some(inner);
    }

    fn frame(&self, index: usize) -> *mut u8 {
        // SAFETY: there are so many frames.
        unsafe { self.frames.pages.start().add(index * FRAME_BYTES) }
    }

    /// The frame of the posted receive with this number: the receives' frames come first.
    fn received(&self, index: u32, bytes: usize) -> &[u8] {
        // SAFETY: the receive has completed, so nothing writes to its frame until it is posted again.
        unsafe { std::slice::from_raw_parts(self.frame(index as usize), bytes.min(FRAME_BYTES)) }
    }

    /// Posts the receives in `to_post` again.
    fn post_receives(&mut self, common: &mut Common) -> io::Result<()> {
        let key = self.frames.registered.keys.local[0];
        let mut parts = [ffi::ibv_sge::default(); 64];
        let mut requests = [ffi::ibv_recv_wr::default(); 64];
        while !self.to_post.is_empty() {
            let count = self.to_post.len().min(requests.len());
            let first = self.to_post.len() - count;
            for (at, index) in self.to_post.drain(first..).enumerate() {
                // SAFETY: there are so many frames.
                let address = unsafe { self.frames.pages.start().add(index as usize * FRAME_BYTES) };
                parts[at] = ffi::ibv_sge { addr: address as u64, length: FRAME_BYTES as u32, lkey: key };
                requests[at] = ffi::ibv_recv_wr {
                    wr_id: request_number(self.id, RECEIVE, 0, index.into()),
                    next: std::ptr::null_mut(),
                    sg_list: &mut parts[at],
                    num_sge: 1,
                };
            }
            let next: *mut ffi::ibv_recv_wr = requests.as_mut_ptr();
            for at in 1..count {
                // SAFETY: `at` is inside the array.
                requests[at - 1].next = unsafe { next.add(at) };
            }
            // SAFETY: the frames live longer than the queue pair, and are read only once their receive has completed.
            unsafe { self.pairs[0].queue_pair.post_receive(&mut requests[0])? };
            common.counters.receives += count as u64;
            self.owed += count;
        }
        Ok(())
    }

    /// The receive with this number has been read, and is posted again before long.
    fn release(&mut self, index: u32, common: &mut Common) {
        self.to_post.push(index);
        if self.to_post.len() >= (self.depth.receives / 4).max(1) && self.broken.is_none() {
            if let Err(error) = self.post_receives(common) {
                self.fail(&format!("cannot post receives: {error}"), common);
            }
        }
    }

    /// Makes the connector report this connection.
    pub fn touch(&mut self, common: &mut Common) {
        if !std::mem::replace(&mut self.is_touched, true) {
            common.touched.push(self.id);
        }
    }

    /// The connector has taken it out of its list. Returns which conditions may be true now.
    pub fn untouch(&mut self, common: &Common) -> Interest {
        self.is_touched = false;
        self.ready(common)
    }

    /// Which watched conditions may be true now.
    pub fn ready(&self, common: &Common) -> Interest {
        let readable = !self.arrived.is_empty() || !self.finished.is_empty() || self.has_ended(common);
        let writable = self.can_send();
        Interest { readable: self.watched.readable && readable, writable: self.watched.writable && writable }
    }

    /// Whether [`Connection::receive`] has something to say about the end.
    fn has_ended(&self, common: &Common) -> bool {
        let waits = self.grace.is_none_or(|until| common.now < until);
        match &self.ending {
            Ending::No => self.broken.is_some() && !waits,
            Ending::Gone => true,
            Ending::Peer(end) => end.total == self.received_bytes || self.broken.is_some() || !waits,
        }
    }

    /// Whether it is broken, or the peer has ended it, so that [`Connection::tick`] must be called.
    pub fn is_ending(&self) -> bool {
        self.broken.is_some() || !matches!(self.ending, Ending::No)
    }

    /// Time has passed. Returns when to call this again, if the connection waits for what is missing at its end.
    pub fn tick(&mut self, common: &mut Common) -> Option<Instant> {
        if !self.is_ending() {
            return None;
        }
        let until = *self.grace.get_or_insert(common.now + GRACE);
        if self.has_ended(common) {
            self.touch(common);
            return None;
        }
        Some(until)
    }

    /// Handles a completion.
    pub fn completed(&mut self, completion: &ffi::ibv_wc, common: &mut Common) {
        let number = completion.wr_id();
        let (kind, rail) = ((number >> KIND_SHIFT) & 3, (number >> RAIL_SHIFT) as usize & 3);
        if let Some((status, vendor)) = completion.error() {
            if let Some(what) = status::describe(status) {
                let port = common.rails.get(rail).map(|rail| rail.describe()).unwrap_or_default();
                self.fail(&format!("{port}: {what} (status {status}, vendor's code {vendor:#x})"), common);
            }
            return;
        }
        self.heard = common.now;
        match kind {
            RECEIVE => self.frame_arrived((number & VALUE_MASK) as u32, completion.len(), common),
            _ => self.retire(rail, number & VALUE_MASK, common),
        }
        self.touch(common);
    }

    fn frame_arrived(&mut self, index: u32, bytes: usize, common: &mut Common) {
        let Some(header) = Header::decode(self.received(index, bytes)) else {
            return self.fail("the peer sent a malformed frame", common);
        };
        for number in 0..header.records.into() {
            let Some(record) = frame::record(self.received(index, bytes), number) else {
                return self.fail("the peer sent a malformed record", common);
            };
            self.theirs.insert(record.key, record);
        }
        self.credits += usize::from(header.credits);
        if header.stream_at() < bytes {
            self.arrived.push_back((index, header.stream_at(), bytes));
        } else {
            self.release(index, common);
        }
    }

    /// The request that causes a completion with this value, and all before it, are over.
    fn retire(&mut self, rail: usize, value: u64, common: &mut Common) {
        let Some(pair) = self.pairs.get_mut(rail) else { return };
        let Some(signal) = pair.signals.pop_front() else { return };
        debug_assert_eq!(signal.sequence & VALUE_MASK, value);
        pair.retired = signal.sequence + 1;
        if rail == 0 {
            self.frames_retired = self.frames_retired.max(signal.frames);
        } else {
            self.fence -= 1;
        }
        let Some(index) = signal.placement else { return };
        let placement = &mut self.placements[index];
        placement.left -= 1;
        if placement.left == 0
            && let Some(placement) = self.placements.remove(index)
        {
            match placement.buffer {
                Some(buffer) => common.pool.give_back(buffer),
                None => self.finished.push_back(placement.ticket),
            }
        }
    }

    /// Whether a frame could be sent.
    fn can_send(&self) -> bool {
        self.broken.is_none()
            && self.credits > 1
            && self.fence == 0
            && self.frames_sent - self.frames_retired < self.depth.sends as u64
            && self.room(0) > 0
    }

    /// Requests for which the send queue of this rail has room.
    fn room(&self, rail: usize) -> usize {
        let pair = &self.pairs[rail];
        self.depth.sends + self.depth.spare - (pair.posted - pair.retired) as usize
    }

    /// Takes bytes from the front of `parts`; see [`Link::send`]. All that waits is posted with one call for each rail.
    pub fn send(&mut self, parts: &[IoSlice<'_>], common: &mut Common) -> io::Result<usize> {
        if self.broken.is_some() {
            // The reason comes by `receive`, perhaps in the peer's last words.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.queue_pieces(common);
        let mut rest = Rest { parts, part: 0, at: 0 };
        let mut taken = 0;
        while self.pieces.is_empty() && self.can_send_more() {
            let Some(bytes) = self.queue_frame(&mut rest, common) else { break };
            taken += bytes;
        }
        self.post(0, common);
        self.sent_bytes += taken as u64;
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// [`Connection::can_send`], with requests that are about to be posted.
    fn can_send_more(&self) -> bool {
        self.can_send() && self.room(0) > self.requests.len()
    }

    /// Queues a frame with the next bytes of `rest`; `None` if there are none.
    fn queue_frame(&mut self, rest: &mut Rest<'_, '_>, common: &mut Common) -> Option<usize> {
        if rest.is_empty() {
            return None;
        }
        let records = self.records.len().min(MAX_RECORDS);
        let index = self.depth.receives + (self.frames_sent % self.depth.sends as u64) as usize;
        // SAFETY: the frame is not being sent, since fewer than all are; it has this length.
        let frame = unsafe { std::slice::from_raw_parts_mut(self.frame(index), FRAME_BYTES) };
        let header = Header { records: records as u16, credits: self.owed as u16 };
        frame[..HEADER_BYTES].copy_from_slice(&header.encode());
        let places = frame[HEADER_BYTES..header.stream_at()].chunks_exact_mut(frame::RECORD_BYTES);
        for (place, record) in places.zip(self.records.drain(..records)) {
            place.copy_from_slice(&record.encode());
        }
        let taken = rest.copy_to(&mut frame[header.stream_at()..]);
        self.owed = 0;
        self.queue_send(index, header.stream_at() + taken, common);
        Some(taken)
    }

    /// Queues the send of a frame.
    fn queue_send(&mut self, index: usize, bytes: usize, common: &mut Common) {
        self.frames_sent += 1;
        self.credits -= 1;
        self.unsignaled += 1;
        let signaled = self.unsignaled >= (self.depth.sends / 4).max(1);
        let mut flags = 0;
        if signaled {
            self.unsignaled = 0;
            flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if bytes <= self.pairs[0].queue_pair.inline {
            flags |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let local = (self.frame(index) as u64, self.frames.registered.keys.local[0]);
        let mut request = self.request(0, ffi::ibv_wr_opcode::IBV_WR_SEND, flags);
        if signaled {
            self.signal(0, &mut request, None);
        }
        common.counters.sends += 1;
        common.counters.sent_bytes += bytes as u64;
        self.push(request, local, bytes);
    }

    fn request(&self, rail: usize, opcode: ffi::ibv_wr_opcode::Type, flags: u32) -> ffi::ibv_send_wr {
        // SAFETY: zero is a valid value of all fields.
        let mut request: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
        (request.opcode, request.send_flags) = (opcode, flags);
        request.wr_id = request_number(self.id, SEND, rail, 0);
        request
    }

    /// Notes that `request`, which is pushed next, causes a completion.
    fn signal(&mut self, rail: usize, request: &mut ffi::ibv_send_wr, placement: Option<u32>) {
        let queued = if rail == 0 { self.requests.len() } else { 0 };
        let pair = &mut self.pairs[rail];
        let sequence = pair.posted + queued as u64;
        request.wr_id = request_number(self.id, SEND, rail, sequence);
        pair.signals.push_back(Signal { sequence, frames: self.frames_sent, placement });
    }

    fn push(&mut self, mut request: ffi::ibv_send_wr, (address, key): (u64, u32), bytes: usize) {
        self.parts.push(ffi::ibv_sge { addr: address, length: bytes as u32, lkey: key });
        request.num_sge = i32::from(bytes > 0);
        self.requests.push(request);
    }

    /// Posts the queued requests to the send queue of `rail`, with one call.
    fn post(&mut self, rail: usize, common: &mut Common) {
        if self.requests.is_empty() {
            return;
        }
        let (first, first_part) = (self.requests.as_mut_ptr(), self.parts.as_mut_ptr());
        let count = self.requests.len();
        for (index, request) in self.requests.iter_mut().enumerate() {
            // SAFETY: there is a part for each request, and `next` of the last stays null.
            unsafe {
                request.sg_list = first_part.add(index);
                request.next = if index + 1 < count { first.add(index + 1) } else { std::ptr::null_mut() };
            }
        }
        let pair = &mut self.pairs[rail];
        // SAFETY: frames and buffers live longer than the queue pair; the program's memory is valid until its ticket is finished or
        // cancelled, which ends the access.
        let result = unsafe { pair.queue_pair.post_send(&mut self.requests[0]) };
        pair.posted += count as u64;
        self.requests.clear();
        self.parts.clear();
        common.counters.doorbells += 1;
        if let Err(error) = result {
            let name = common.rails[rail].describe();
            self.fail(&format!("{name}: cannot post a work request: {error}"), common);
        }
    }

    /// Queues parts of placements on the first rail, and posts those on other rails.
    fn queue_pieces(&mut self, common: &mut Common) {
        while let Some(piece) = self.pieces.front() {
            let rails = if self.pairs.len() > 1 && piece.bytes >= STRIPED_BYTES { self.pairs.len() } else { 1 };
            // A completion for each part; the first rail's requests are posted with the frames behind them.
            let fits = |rail: usize| self.room(rail) > if rail == 0 { self.requests.len() } else { 0 };
            if !(0..rails).all(fits) {
                return;
            }
            let piece = self.pieces.pop_front().expect("looked at above");
            let speeds: u64 = self.pairs[..rails].iter().map(|pair| u64::from(pair.speed)).sum();
            let mut at = 0;
            for rail in (0..rails).rev() {
                let share = (piece.bytes as u64 * u64::from(self.pairs[rail].speed) / speeds) as usize;
                let share = if rail == 0 { piece.bytes - at } else { share - share % STRIPE_ALIGNMENT };
                if share == 0 {
                    continue;
                }
                self.placements[piece.placement].left += 1;
                let mut request =
                    self.request(rail, ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, ffi::ibv_send_flags::IBV_SEND_SIGNALED.0);
                request.wr.rdma.remote_addr = piece.remote + at as u64;
                request.wr.rdma.rkey = piece.remote_keys[rail];
                let local = (piece.local + at as u64, piece.local_keys.local[rail]);
                at += share;
                common.counters.writes += 1;
                common.counters.written_bytes += share as u64;
                if rail == 0 {
                    self.signal(0, &mut request, Some(piece.placement));
                    self.push(request, local, share);
                } else {
                    self.post_alone(rail, request, local, share, piece.placement, common);
                }
            }
            // The part that stood for this one.
            self.placements[piece.placement].left -= 1;
        }
    }

    /// Posts one request to another rail than the first.
    fn post_alone(
        &mut self,
        rail: usize,
        mut request: ffi::ibv_send_wr,
        local: (u64, u32),
        bytes: usize,
        placement: u32,
        common: &mut Common,
    ) {
        let (requests, parts) = (std::mem::take(&mut self.requests), std::mem::take(&mut self.parts));
        self.signal(rail, &mut request, Some(placement));
        self.fence += 1;
        self.push(request, local, bytes);
        self.post(rail, common);
        (self.requests, self.parts) = (requests, parts);
    }

    /// Posts what has waited for room.
    pub fn go_on(&mut self, common: &mut Common) {
        if self.broken.is_some() {
            return;
        }
        if !self.pieces.is_empty() {
            self.queue_pieces(common);
            self.post(0, common);
        }
        // So many that the peer may be waiting for them.
        if self.owed >= (self.depth.receives / 2).max(1)
            && self.credits > 0
            && self.room(0) > 0
            && self.frames_sent - self.frames_retired < self.depth.sends as u64
        {
            let index = self.depth.receives + (self.frames_sent % self.depth.sends as u64) as usize;
            let header = Header { records: 0, credits: std::mem::take(&mut self.owed) as u16 };
            // SAFETY: as in `queue_frame`.
            unsafe { std::ptr::copy_nonoverlapping(header.encode().as_ptr(), self.frame(index), HEADER_BYTES) };
            self.queue_send(index, HEADER_BYTES, common);
            self.post(0, common);
        }
    }

    /// Fills `parts` from the front with bytes that have arrived; see [`Link::receive`].
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>], common: &mut Common) -> io::Result<usize> {
        let mut got = 0;
        let mut parts = parts.iter_mut().map(|part| &mut part[..]).filter(|part| !part.is_empty());
        let mut into: &mut [u8] = parts.next().unwrap_or_default();
        while let Some((index, start, end)) = self.arrived.front().copied() {
            if into.is_empty() {
                match parts.next() {
                    Some(next) => into = next,
                    None => break,
                }
            }
            let n = into.len().min(end - start);
            into[..n].copy_from_slice(&self.received(index, end)[start..start + n]);
            into = &mut into[n..];
            got += n;
            if start + n == end {
                self.arrived.pop_front();
                self.release(index, common);
            } else {
                self.arrived[0].1 = start + n;
            }
        }
        self.received_bytes += got as u64;
        self.go_on(common);
        if got > 0 {
            return Ok(got);
        }
        self.receive_end(into, common)
    }

    /// What follows the bytes that have arrived, if the connection has ended.
    fn receive_end(&mut self, into: &mut [u8], common: &Common) -> io::Result<usize> {
        if let Some((bytes, done)) = &mut self.tail {
            let n = into.len().min(bytes.len() - *done);
            into[..n].copy_from_slice(&bytes[*done..*done + n]);
            *done += n;
            return Ok(n);
        }
        if !self.has_ended(common) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match std::mem::replace(&mut self.ending, Ending::Gone) {
            Ending::Peer(end) if end.total == self.received_bytes => {
                self.tail = Some(([end.rest, end.notice].concat(), 0));
                self.receive_end(into, common)
            }
            Ending::Peer(end) => Err(io::Error::other(LastWords(end.notice))),
            _ => match &self.broken {
                Some(text) => Err(io::Error::new(io::ErrorKind::ConnectionReset, text.clone())),
                None => Ok(0),
            },
        }
    }

    /// Looks for the peer's last words, or for the end of its process.
    pub fn look(&mut self, common: &mut Common) {
        let Some(inner) = &mut self.inner else { return };
        let mut bytes = [0; 1024];
        let ended = loop {
            match inner.receive(&mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) => break End::decode(&self.inner_bytes).ok_or(None),
                Ok(_) if self.inner_bytes.len() > MAX_END_BYTES => break Err(Some(io::ErrorKind::InvalidData.into())),
                Ok(n) => self.inner_bytes.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) => break Err(Some(e)),
            }
        };
        let _ = inner.watch(Interest::default());
        common.is_ending = true;
        if !matches!(self.ending, Ending::No) {
            return;
        }
        self.ending = match ended {
            Ok(end) => Ending::Peer(end),
            Err(error) => {
                if let Some(error) = error {
                    self.broken.get_or_insert_with(|| error.to_string());
                }
                Ending::Gone
            }
        };
        self.touch(common);
    }

    /// The connection is unusable.
    pub fn fail(&mut self, why: &str, common: &mut Common) {
        self.broken.get_or_insert_with(|| why.to_owned());
        common.is_ending = true;
        self.touch(common);
    }

    /// Exposes memory for one message; see [`crate::transport::Placement::expose`].
    pub fn expose(&mut self, key: u32, into: Option<*mut u8>, bytes: usize, common: &mut Common) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let direct = into.and_then(|into| Some((into as u64, common.registry.keys(into, bytes)?)));
        let (exposure, address, keys) = match direct {
            Some((address, keys)) => (Exposure::Direct, address, keys),
            None => {
                let Some(buffer) = common.pool.take(bytes) else { return false };
                (Exposure::Buffer(buffer, bytes), buffer.memory.as_ptr() as u64, buffer.keys)
            }
        };
        self.exposures.insert(key, exposure);
        self.records.push(Record { key, kind: RecordKind::Message, address, bytes: bytes as u64, keys: keys.remote });
        true
    }

    /// Where the message is that was placed under `key`, and its length, if it is not where it should go.
    pub fn placed(&self, key: u32) -> Option<(NonNull<u8>, usize)> {
        match self.exposures.get(&key)? {
            Exposure::Direct => None,
            Exposure::Buffer(buffer, bytes) => Some((buffer.memory, *bytes)),
        }
    }

    /// Ends an exposure. If its message has not come, the peer may still write: then the connection is given up, unless that does no harm.
    pub fn withdraw(&mut self, key: u32, arrived: bool, common: &mut Common) {
        match self.exposures.remove(&key) {
            Some(Exposure::Buffer(buffer, _)) if arrived => common.pool.give_back(buffer),
            Some(Exposure::Buffer(buffer, _)) => self.abandoned.push(buffer),
            Some(Exposure::Direct) if !arrived => {
                self.kill("a receive was cancelled for which the peer may still write", common)
            }
            _ => {}
        }
    }

    /// Starts to write a message to what the peer has exposed; see [`crate::transport::Placement::place`].
    pub fn place(&mut self, key: u32, from: *const u8, bytes: usize, ticket: u32, common: &mut Common) -> bool {
        let remote = self.theirs.remove(&key).filter(|record| record.bytes == bytes as u64);
        let Some(remote) = remote.filter(|_| self.broken.is_none()) else { return false };
        let (local, keys, buffer) = match common.registry.keys(from, bytes) {
            Some(keys) => (from as u64, keys, None),
            None => {
                let Some(buffer) = common.pool.take(bytes) else { return false };
                // SAFETY: the caller guarantees that `from` is valid; the buffer is as long.
                unsafe { std::ptr::copy_nonoverlapping(from, buffer.memory.as_ptr(), bytes) };
                self.finished.push_back(ticket);
                self.touch(common);
                (buffer.memory.as_ptr() as u64, buffer.keys, Some(buffer))
            }
        };
        let longest = self.pairs.iter().map(|pair| pair.max_message).min().unwrap_or(bytes);
        let parts = bytes.div_ceil(longest);
        let placement = self.placements.insert(Placement { ticket, left: parts, buffer });
        for at in (0..bytes).step_by(longest) {
            self.pieces.push_back(Piece {
                placement,
                local: local + at as u64,
                local_keys: keys,
                remote: remote.address + at as u64,
                remote_keys: remote.keys,
                bytes: longest.min(bytes - at),
            });
        }
        true
    }

    /// Takes the ticket of a placement whose memory is not accessed any more.
    pub fn take_finished(&mut self) -> Option<u32> {
        self.finished.pop_front()
    }

    /// The memory of this placement is not accessed any more when this returns.
    pub fn cancel(&mut self, ticket: u32, common: &mut Common) {
        self.finished.retain(|finished| *finished != ticket);
        if self.placements.iter().any(|(_, placement)| placement.ticket == ticket && placement.buffer.is_none()) {
            self.kill("a send was cancelled while it was being written", common);
        }
    }

    /// Destroys the queue pairs, so that memory is not accessed any more.
    fn kill(&mut self, why: &str, common: &mut Common) {
        self.fail(why, common);
        self.pairs.clear();
        self.pieces.clear();
        self.give_back_buffers(common);
    }

    fn give_back_buffers(&mut self, common: &mut Common) {
        let indices: Vec<u32> = self.placements.iter().map(|(index, _)| index).collect();
        let placements = indices.into_iter().filter_map(|index| self.placements.remove(index)?.buffer);
        let exposures = self.exposures.drain().filter_map(|(_, exposure)| match exposure {
            Exposure::Buffer(buffer, _) => Some(buffer),
            Exposure::Direct => None,
        });
        placements.chain(exposures).chain(self.abandoned.drain(..)).for_each(|buffer| common.pool.give_back(buffer));
    }

    /// Goes on to send what an ended link has taken. Returns whether the peer has all of it, or cannot have it any more.
    pub fn drain(&mut self, common: &mut Common) -> bool {
        self.go_on(common);
        if self.unsignaled > 0 && self.pieces.is_empty() {
            self.probe(common);
        }
        let over = |pair: &Pair| pair.posted == pair.retired;
        self.broken.is_some() || self.pieces.is_empty() && self.pairs.iter().all(over)
    }

    /// Ends the connection: the peer gets what was sent, then these bytes. Returns the connection for last words, and the words, which the
    /// caller sends by it; and whether this must be kept until it is drained.
    pub fn end(
        &mut self,
        rest: Vec<u8>,
        notice: Vec<u8>,
        common: &mut Common,
    ) -> (Option<Box<dyn Link>>, Vec<u8>, bool) {
        self.watched = Interest::default();
        let end = End { total: self.sent_bytes, rest, notice };
        // The program gets its memory back now.
        let direct = self.exposures.values().any(|exposure| matches!(exposure, Exposure::Direct))
            || self.placements.iter().any(|(_, placement)| placement.buffer.is_none());
        if direct {
            self.kill("the link has ended", common);
        }
        (self.inner.take(), end.encode(), !self.drain(common))
    }

    /// Posts a write of no bytes: its completion tells that all before it is over, and that the peer's device is there.
    pub fn probe(&mut self, common: &mut Common) {
        if self.broken.is_some() || self.room(0) == 0 {
            return;
        }
        self.unsignaled = 0;
        let mut request =
            self.request(0, ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, ffi::ibv_send_flags::IBV_SEND_SIGNALED.0);
        self.signal(0, &mut request, None);
        self.push(request, (0, 0), 0);
        common.counters.writes += 1;
        self.post(0, common);
    }

    /// Gives back what belongs to all connections, after the queue pairs have been destroyed.
    pub fn close(mut self, common: &mut Common) {
        self.pairs.clear();
        self.give_back_buffers(common);
    }
}

/// What is left of a list of slices.
struct Rest<'a, 'b> {
    parts: &'a [IoSlice<'b>],
    part: usize,
    at: usize,
}

impl Rest<'_, '_> {
    fn is_empty(&mut self) -> bool {
        while self.parts.get(self.part).is_some_and(|part| self.at == part.len()) {
            (self.part, self.at) = (self.part + 1, 0);
        }
        self.part == self.parts.len()
    }

    /// Copies as much as fits, and returns how much that is.
    fn copy_to(&mut self, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() && !self.is_empty() {
            let part = &self.parts[self.part][self.at..];
            let n = part.len().min(into.len() - done);
            into[done..done + n].copy_from_slice(&part[..n]);
            done += n;
            self.at += n;
        }
        done
    }
}
