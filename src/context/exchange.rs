//! What the ranks of a context exchange to connect, whatever the way, and until when.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::tuner::Tuner;

/// How the ranks of a context exchange what they need to connect. Every rank calls the methods in this order. Other
/// ranks are notified of a failure where possible, so the second round is called even after a failure.
pub(super) trait Exchange {
    /// The address of the server that all ranks use, if there is one.
    fn server(&self) -> Option<SocketAddr> {
        None
    }

    /// The sockets at which this rank listens, if it is not to choose them.
    fn sockets(&self) -> Option<Vec<SocketAddr>> {
        None
    }

    /// Rank 0: the tuning of its earlier context. Only what it lacks is measured.
    fn earlier(&self) -> Option<&Tuner> {
        None
    }

    /// The tuning, if all ranks know it already.
    fn agreed(&self) -> Option<Tuner> {
        None
    }

    /// The first round: returns the provisional addresses of all ranks. `own` is this rank's content, or the error for
    /// which it fails.
    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>>;

    /// The second round: returns this rank's content, and the contents of all ranks in their order.
    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)>;

    /// Whether a rank waits in a round until all others take part in it. Then all rounds are made, with the error in
    /// place of the content of a rank that has failed.
    fn waits_for_all(&self) -> bool {
        false
    }

    /// The third round: returns the contents of all ranks in their order.
    fn memory(&self, own: Result<Vec<u8>>) -> Result<Vec<u8>>;

    /// Last: returns `own` of rank 0, which is the only one that passes it.
    fn broadcast(&self, own: Option<Vec<u8>>) -> Result<Vec<u8>>;
}

/// The deadline of connecting, and the timeout from which it was computed.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub deadline: Instant,
    pub timeout: Duration,
    /// Whether nobody has chosen the timeout.
    pub by_default: bool,
}

impl Limit {
    /// The time from `now` until the deadline; zero after it.
    pub fn left(&self, now: Instant) -> Duration {
        self.deadline.saturating_duration_since(now)
    }
}

/// The error of a context that has met other ranks before.
pub(super) fn other_ranks() -> Error {
    let text = "the ranks are not those of this context's first attempt to connect: make a new context";
    Error::new(ErrorKind::InvalidOperation, text)
}
