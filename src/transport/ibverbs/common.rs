//! What concerns all connections of a context.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handles::CompletionQueue;
use super::memory::{Pool, Registry};
use super::rail::{PathOptions, Rail};
use crate::transport::Counters;

/// After so long without anything from a peer for which a thread waits, a write of no bytes tells whether its device is
/// still there.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How long a connection that broke waits for the peer's close notice, which say why.
pub const GRACE: Duration = Duration::from_millis(500);

/// What concerns all connections of a context.
pub struct Common {
    pub rails: Vec<Arc<Rail>>,
    pub queues: Vec<Arc<CompletionQueue>>,
    pub path: PathOptions,
    pub registry: Registry,
    pub pool: Pool,
    pub counters: Counters,
    /// The time of the last call of the connector that knew it.
    pub now: Option<Instant>,
    /// Connections that the connector must report, unless their conditions are not watched.
    pub touched: Vec<u32>,
    /// Whether a link that is tried without the connector wants it to make progress.
    pub is_due: bool,
    /// Whether a connection has broken, or the peer has ended it, since the connector last looked after them.
    pub is_ending: bool,
}
