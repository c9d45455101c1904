//! A connection to one peer: its queue pairs, the frames that it sends and receives, the memory that either side has
//! exposed, and its end.
//!
//! The stream goes by the first queue pair. Each side posts receives for frames, and tells the other how many more it
//! has posted (credits) in the headers of its own frames, so that no frame ever finds no receive. One credit is kept
//! for frames that carry nothing but credits, without which two sides that wait for credits would wait for ever.

mod ending;
mod placing;
mod receiving;
mod sending;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ibverbs_sys as ffi;

use super::common::Common;
use super::endpoint::{End, Offer, Peer};
use super::frame::{FRAME_BYTES, Record};
use super::handles::{Capacity, QueuePair};
use super::memory::{Keys, MAX_RAILS, Pages, PoolBuffer, Registered, cannot_register};
use super::queue_pair;
use super::rail::Rail;
use super::status;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::slab::Slab;
use crate::transport::{Interest, Link};
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
    /// With about `requests` in all; a device permits `max` in one queue.
    pub fn of(requests: usize, max: usize) -> Self {
        let depth = (requests / 4).clamp(8, 64).min(max / 2).max(1);
        Self { sends: depth, receives: depth, spare: depth }
    }
}

/// Bytes that requests may contain, so that the device need not fetch them from memory.
const INLINE_BYTES: u32 = 220;
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
    /// The request's number in the queue.
    sequence: u64,
    /// Frames sent up to it, with those of this request.
    frames: u64,
    /// The placement of which it is a part.
    placement: Option<u32>,
}

/// A queue pair, and what is in its send queue.
struct Pair {
    queue_pair: QueuePair,
    /// The number of the queue pair's first packet.
    packet: u32,
    posted: u64,
    retired: u64,
    signals: VecDeque<Signal>,
    /// The maximum number of bytes of a request.
    max_message: usize,
    /// The speed of the slower one of its rail and the peer's.
    speed: u32,
}

/// Part of a placement that was not posted yet.
struct Piece {
    placement: u32,
    /// Whether the piece reads the peer's memory, rather than writing it.
    reads: bool,
    local: u64,
    local_keys: Keys,
    remote: u64,
    remote_keys: [u32; MAX_RAILS],
    bytes: usize,
}

/// A message that is being written, or a put or get.
struct Placement {
    ticket: u32,
    /// Parts that have not completed.
    left: usize,
    /// What the device accesses on this side.
    local: Local,
}

/// The memory of this side of an access to the peer's.
enum Local {
    /// The program's. The ticket finishes with the access.
    Program,
    /// A buffer with a copy of what is written. The ticket of a message has finished; that of a put, of which nothing
    /// else tells the peer, finishes with the access.
    Copy { buffer: PoolBuffer, has_finished: bool },
    /// A buffer for what is read, and where that is copied when it is there; null once it is cancelled.
    Into { buffer: PoolBuffer, memory: *mut u8, bytes: usize },
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
    /// The connection has not ended.
    #[default]
    No,
    /// The peer has ended it, with this close notice.
    Peer(End),
    /// The peer's process has ended, or the connection for close notices broke.
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
    /// The connection over which the queue pairs were connected: sign of life, and way of the close notice.
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
    /// Records wait that are sent even if no bytes are.
    owes_records: bool,
    pieces: VecDeque<Piece>,
    placements: Slab<Placement>,
    /// Parts that have not completed on other rails than the first; frames behind them wait.
    fence: usize,
    finished: VecDeque<u32>,
    /// Memory of the peer for one message each, and its regions.
    theirs: QuickMap<u32, Record>,
    regions: QuickMap<u32, Record>,
    /// Requests that are about to be posted with one call.
    requests: Vec<ffi::ibv_send_wr>,
    parts: Vec<ffi::ibv_sge>,
    // Receiving.
    arrived: VecDeque<(u32, usize, usize)>,
    to_post: Vec<u32>,
    owed: usize,
    received_bytes: u64,
    exposures: QuickMap<u32, Exposure>,
    // The end.
    broken: Option<String>,
    ending: Ending,
    /// Until when it waits for what is missing after it broke or the peer has ended it; set by [`Connection::tick`],
    /// which knows the time.
    grace: Option<Instant>,
    tail: Option<(Vec<u8>, usize)>,
    /// When [`Connection::tick`] last knew that something had come from the peer, and whether something has since.
    heard: Option<Instant>,
    has_heard: bool,
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
        let pages = Pages::new(&common.rails[0], bytes).map_err(|e| cannot_register(bytes, &e))?;
        // SAFETY: the pages are freed after the registration has ended.
        let register = || unsafe { Registered::new(&common.rails[..1], pages.start(), bytes) };
        let registered = match register() {
            // A connection cannot do without its frames, but messages can do without buffers of the pool.
            Err(_) if common.pool.shrink() => register(),
            registered => registered,
        };
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
            owes_records: false,
            pieces: VecDeque::new(),
            placements: Slab::default(),
            fence: 0,
            finished: VecDeque::new(),
            theirs: QuickMap::default(),
            regions: QuickMap::default(),
            requests: Vec::with_capacity(depth.sends + depth.spare),
            parts: Vec::with_capacity(depth.sends + depth.spare),
            arrived: VecDeque::with_capacity(depth.receives),
            to_post: (0..depth.receives as u32).collect(),
            owed: 0,
            received_bytes: 0,
            exposures: QuickMap::default(),
            broken: None,
            ending: Ending::No,
            grace: None,
            tail: None,
            heard: None,
            has_heard: false,
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
            gid: rail.gid,
            gid_type: rail.gid_type,
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
        let mismatch = |text: String| Err(Error::new(ErrorKind::Mismatch, text));
        if offer.frame_bytes as usize != FRAME_BYTES || offer.receives == 0 {
            return mismatch(format!("it posts {} receives of {} bytes", offer.receives, offer.frame_bytes));
        }
        self.pairs.truncate(offer.rails.len());
        for ((pair, rail), peer) in self.pairs.iter_mut().zip(&common.rails).zip(&offer.rails) {
            if rail.gid_type != peer.gid_type {
                let (own, theirs) = (rail.gid_type.name(), peer.gid_type.name());
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

    /// Returns the watched conditions that may be true now.
    pub fn ready(&self, common: &Common) -> Interest {
        let readable = !self.arrived.is_empty() || !self.finished.is_empty() || self.has_ended(common);
        let writable = self.can_send();
        Interest { readable: self.watched.readable && readable, writable: self.watched.writable && writable }
    }

    /// Handles a completion.
    pub fn completed(&mut self, completion: &ffi::ibv_wc, common: &mut Common) {
        let number = completion.wr_id();
        let (kind, rail) = ((number >> KIND_SHIFT) & 3, (number >> RAIL_SHIFT) as usize & 3);
        if let Some((status, vendor)) = completion.error() {
            match status::describe(status) {
                Some(what) => {
                    let port = common.rails.get(rail).map(|rail| rail.describe()).unwrap_or_default();
                    self.fail(&format!("{port}: {what} (status {status}, vendor's code {vendor:#x})"), common);
                }
                // A queue pair that serves the peer's requests can fail although this side has posted none.
                None => self.fail(ending::FLUSHED, common),
            }
            return;
        }
        self.has_heard = true;
        match kind {
            RECEIVE => self.frame_arrived((number & VALUE_MASK) as u32, completion.len(), common),
            _ => self.retire(rail, number & VALUE_MASK, common),
        }
        self.touch(common);
    }
}
