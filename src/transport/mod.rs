//! Transports: how bytes reach another rank.
//!
//! A [`Transport`] belongs to one context and is driven by whoever holds it: nothing in it blocks, locks, or starts threads.
//! Operations are posted, [`Transport::progress`] moves them on, and every operation ends with exactly one [`Event`],
//! unless [`Transport::cancel`] took it back.

pub mod admission;
pub mod frame;
pub mod matching;
pub mod queues;
pub mod slab;
pub mod tcp;

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::reduce::{Kernel, Side};
use crate::types::{Rank, Slot};

/// Told what happens on the side: level (1 warning, 2 notice, 3 detail) and text. May be called from the device's own
/// thread, while locks of the library are held: it must not call the library.
pub type LogCallback = Arc<dyn Fn(u32, &str) + std::marker::Send + Sync>;

/// Who posted an operation. `owner` names what can be cancelled as a whole; `detail` is the owner's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// A collective or a buffer.
    pub owner: u32,
    /// Which of its operations.
    pub detail: u32,
}

/// Owner of the events that concern the whole context: a peer has given it up, asks, or tells.
pub const EVERYONE: u32 = u32::MAX;

/// Keeps the slots of callers' messages and those of collectives apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Space {
    /// Messages of unbound buffers.
    User = 0,
    /// Messages of collectives.
    Collective = 1,
}

/// What a message of a collective is about: a digest of what all ranks must agree on, and the collective's number on its tag,
/// or 0 where that is not counted.
pub const fn check(digest: u32, number: u32) -> u64 {
    (number as u64) << 32 | digest as u64
}

/// The digest of a [`check`].
pub const fn digest(check: u64) -> u32 {
    check as u32
}

/// The number of a [`check`].
pub const fn number(check: u64) -> u32 {
    (check >> 32) as u32
}

/// Whether messages with these checks belong to different calls.
pub const fn differs(a: u64, b: u64) -> bool {
    a != b && (digest(a) != digest(b) || (number(a) != 0 && number(b) != 0))
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    /// Receiver.
    pub to: Rank,
    /// With `slot`: what the receive must name.
    pub space: Space,
    /// With `space`: what the receive must name.
    pub slot: Slot,
    /// Compared with the receive's; see [`Recv::check`].
    pub check: u64,
    /// The bytes; valid until the event or the cancellation.
    pub from: *const u8,
    /// How many.
    pub bytes: usize,
    /// Comes back in the event.
    pub token: Token,
}

/// From whom a receive takes its message.
#[derive(Clone, Debug)]
pub enum Source {
    /// This rank.
    Rank(Rank),
    /// Whichever of these sends first; when several have, they take turns.
    AnyOf(Arc<[Rank]>),
}

/// What to do with received bytes instead of storing them: `into = with op incoming`.
#[derive(Clone, Copy, Debug)]
pub struct ReduceInto {
    /// Combines.
    pub kernel: Kernel,
    /// The local operand, as long as the receive; may be `into`.
    pub with: *const u8,
    /// Which operand the received bytes are.
    pub incoming: Side,
    /// Bytes of one element.
    pub element: usize,
}

/// A message to receive.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Sender.
    pub from: Source,
    /// With `slot`: which message.
    pub space: Space,
    /// With `space`: which message.
    pub slot: Slot,
    /// What the poster believes the message to be about, by [`check`]. A message that [`differs`] is refused.
    pub check: u64,
    /// Where the bytes go; valid until the event or the cancellation.
    pub into: *mut u8,
    /// How many at most.
    pub bytes: usize,
    /// Whether a shorter message is refused.
    pub exact: bool,
    /// Receive-and-reduce.
    pub reduce: Option<ReduceInto>,
    /// Comes back in the event.
    pub token: Token,
}

/// A range of another rank's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Whose.
    pub rank: Rank,
    /// The number that [`Transport::register`] was given there.
    pub region: u32,
    /// First byte.
    pub offset: u64,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Done, with this rank, so many bytes.
    Done {
        /// The peer.
        rank: Rank,
        /// Length of the message.
        bytes: usize,
    },
    /// A bound receive buffer was written: so many bytes at this offset. Not an end: more may come.
    Written {
        /// First byte.
        offset: usize,
        /// Length of the write.
        bytes: usize,
    },
    /// The message that came was about something else: the sender's [`Send::check`].
    Mismatch {
        /// The peer.
        rank: Rank,
        /// Its check.
        theirs: u64,
    },
    /// It cannot be done.
    Failed(Error),
    /// For [`EVERYONE`]: this rank has waited in vain, and wants to be told what this one is doing.
    Asked {
        /// The peer.
        rank: Rank,
        /// The call that it asks for.
        call: Call,
    },
    /// For [`EVERYONE`]: a peer that was asked has told.
    Told,
}

/// Tells calls apart, between ranks that may disagree about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// See [`Recv::check`].
    pub check: u64,
    /// Its tag.
    pub tag: u32,
}

/// What peers have told that were asked why they keep others waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Some have not answered.
    Missing,
    /// All wait in the same call themselves: others know more.
    SameCall,
    /// One does something else, or nothing is to be expected.
    Cause,
}

/// The end of an operation.
#[derive(Clone, Debug)]
pub struct Event {
    /// The poster's.
    pub token: Token,
    /// How it ended.
    pub outcome: Outcome,
}

/// Events that there is room for from the beginning: how many come at once is a matter of chance, and the steady state is to
/// allocate nothing.
pub const EVENTS: usize = 256;

/// Who drives a transport while nobody waits on it.
pub trait Watch: std::marker::Send + Sync {
    /// From now on the watch does.
    fn arm(&self);
    /// From now on the caller does.
    fn disarm(&self);
    /// Whether the watch does.
    fn is_armed(&self) -> bool;
}

/// One context's way to its peers.
///
/// # Safety
/// Whoever posts an operation keeps its memory valid, and untouched where it is written, until the event or `cancel`.
/// Registered and bound memory stays valid until `unregister` and `cancel`.
pub trait Transport: std::marker::Send {
    /// Posts a message.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn send(&mut self, send: Send);

    /// Posts a receive.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn recv(&mut self, recv: Recv);

    /// Writes `bytes` from `from` to the remote range; done when they are there.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn put(&mut self, remote: Remote, from: *const u8, bytes: usize, token: Token);

    /// Reads `bytes` of the remote range to `into`; done when they are here.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn get(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token);

    /// Lets peers `put` to and `get` from this memory under the number `region`, until `unregister`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn register(&mut self, region: u32, memory: *mut u8, bytes: usize);

    /// Ends `register`.
    fn unregister(&mut self, region: u32);

    /// Writes into the buffer that `to` bound to `slot`, at `offset`; done when the bytes have left.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn write(&mut self, to: Rank, slot: Slot, offset: u64, from: *const u8, bytes: usize, token: Token);

    /// Binds memory to `slot` for writes from `from`; each arrival is an `Outcome::Written`. Ends with `cancel`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn bind(&mut self, from: Rank, slot: Slot, memory: *mut u8, bytes: usize, token: Token) -> Result<()>;

    /// Takes back every operation of `owner`: no event for it follows, and its memory is no longer touched.
    fn cancel(&mut self, owner: u32);

    /// Moves what can be moved without waiting; pushes the ends. Whether anything moved.
    fn progress(&mut self, events: &mut Vec<Event>) -> bool;

    /// Sends what was posted, as far as that goes without waiting; pushes the ends.
    fn flush(&mut self, events: &mut Vec<Event>);

    /// Readable whenever `progress` may have something to do.
    fn poll_fd(&self) -> RawFd;

    /// When `progress` must be called even if the descriptor stays silent.
    fn next_timer(&self) -> Option<Instant>;

    /// Messages of this side that have not left.
    fn outgoing(&self) -> usize;

    /// What the operations of `owner` wait for: ranks, addresses, bytes done of bytes wanted.
    fn describe(&self, owner: u32) -> String;

    /// Asks the peers that the operations of `owner`, which are of `call`, wait for what they are doing, where a connection
    /// stands; whether there are any. What they tell becomes part of `describe`.
    fn ask(&mut self, _owner: u32, _call: Call) -> bool {
        false
    }

    /// What has come of that.
    fn told(&self) -> Told {
        Told::Cause
    }

    /// Answers `rank`, which has asked. `same`: the call that it asked for waits here, too.
    fn tell(&mut self, _rank: Rank, _text: &str, _same: bool) {}

    /// Messages of collectives that have come to `slots` and met no receive: sender, [`Send::check`], bytes.
    fn unasked(&self, _slots: Range<Slot>) -> Vec<(Rank, u64, u64)> {
        Vec::new()
    }

    /// How messages call `rank`.
    fn peer_name(&self, rank: Rank) -> String {
        format!("rank {rank}")
    }

    /// What peers must be told to reach this rank.
    fn address(&self) -> Vec<u8>;

    /// What `rank` gave as its address.
    fn set_peer(&mut self, rank: Rank, address: &[u8]) -> Result<()>;

    /// Begins to connect, if that has not begun.
    fn connect(&mut self, rank: Rank);

    /// Whether messages to `rank` can flow; an error once they never will.
    fn is_connected(&self, rank: Rank) -> Result<bool>;

    /// Whether nothing is known of any peer: the context was never connected.
    fn is_isolated(&self) -> bool;

    /// Whether `rank` runs on this host; `None` as long as its address is unknown.
    fn shares_host(&self, rank: Rank) -> Option<bool>;

    /// Ends the connection to `rank`; its operations fail with `error`.
    fn disconnect(&mut self, rank: Rank, error: &Error);

    /// Ends everything; operations fail with `error`. With a `notice`, peers are told its reason.
    fn close(&mut self, error: &Error, notice: Option<&Error>);
}
