//! Exchanges addresses over a connected context of the same ranks, whose hosts and tuning are known.

use crate::context::Context;
use crate::context::exchange::{Exchange, Limit};
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::tuner::Tuner;

/// An exchange over `parent`, with `tag`.
pub struct OverContext<'a> {
    pub context: &'a Context,
    pub parent: &'a Context,
    pub tag: u64,
    pub limit: Limit,
}

impl Exchange for OverContext<'_> {
    fn agreed(&self) -> Option<Tuner> {
        Some(self.parent.tuners.current().inherit(self.context.options.max_segment_bytes))
    }

    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>> {
        own.and_then(|_| self.parent.everyone())
    }

    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        self.gather(own)
    }

    fn waits_for_all(&self) -> bool {
        true
    }

    fn memory(&self, own: Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.gather(own).map(|(_, list)| list)
    }

    fn broadcast(&self, _: Option<Vec<u8>>) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::Internal, "a context's tuning is known"))
    }
}

impl OverContext<'_> {
    fn gather(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        self.parent.gather_setup(own, self.tag, self.limit)
    }
}

impl Context {
    /// The addresses of all ranks.
    pub(crate) fn everyone(&self) -> Result<Vec<Address>> {
        let known = self.lock()?.messenger.addresses();
        known.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "that context is not connected to all its ranks"))
    }
}
