//! What is known of the members of a new membership before they connect, if all of them are members of one membership.
//! Then they need no round to find each other, they listen where they do, and nothing is measured.
//!
//! Whether it is so, each member sees from the list of members alone, and writes its new address to the store before it
//! has met anybody. The new rank 0 decides whether these addresses are used, and says so when it claims the change (see
//! [`reconfigure`](crate::context::reconfigure)): a member that does not know the others, because it did not connect
//! when they did, gets what it lacks from there.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::store::{OverStore, RENEWED, named_key};
use crate::context::Context;
use crate::context::exchange::Exchange;
use crate::context::handle::text_of;
use crate::context::tuning::topology;
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::rendezvous::Store;
use crate::tuner::Tuner;
use crate::types::Rank;

/// The members, in the order of their new ranks.
pub(in crate::context) struct Members {
    /// Where they are found in the present membership.
    addresses: Vec<Address>,
    tuner: Tuner,
}

/// The ranks in `present` of the members with these handles, and their addresses there; `None` if not all are known.
pub(in crate::context) fn ranks_in(present: &Context, members: &[&str]) -> Option<(Vec<Rank>, Vec<Address>)> {
    let everyone = present.everyone().ok()?;
    let by_handle: HashMap<String, Rank> =
        everyone.iter().enumerate().map(|(rank, address)| (text_of(&address.identity), rank)).collect();
    let ranks: Vec<Rank> = members.iter().map(|member| by_handle.get(*member).copied()).collect::<Option<_>>()?;
    let addresses = ranks.iter().map(|rank| everyone[*rank].clone()).collect();
    Some((ranks, addresses))
}

/// Writes the address of `own`, a member of a new membership that `context` is for, which listens at these `sockets`.
pub(in crate::context) fn renew(
    context: &Context,
    store: &dyn Store,
    own: &str,
    sockets: Vec<SocketAddr>,
    left: Duration,
) -> Result<()> {
    store.set_within(&named_key(own), &context.set_own_address(sockets, 0)?, left)
}

/// The new rank 0: what the others need to know if all members are those `ranks` of `present`, with these `addresses`.
/// `None` if something must be measured first.
pub(in crate::context) fn describe(
    context: &Context,
    present: &Context,
    (ranks, addresses): &(Vec<Rank>, Vec<Address>),
) -> Option<Vec<u8>> {
    let tuner = present.tuners.agreed()?.of_ranks(ranks, topology(addresses));
    let text = context.complete_tuning(&tuner, addresses)?;
    let mut bytes = addresses.iter().flat_map(Address::serialize).collect::<Vec<u8>>();
    bytes.extend_from_slice(text.as_bytes());
    Some(bytes)
}

impl Members {
    /// What [`describe`] has returned on the new rank 0.
    pub fn parse(context: &Context, bytes: &[u8]) -> Result<Self> {
        let wrong = |error: Error| error.context("what rank 0 of the new membership knows").with_rank(0);
        let each = context.lock()?.messenger.connections().address().serialize().len();
        let Some((addresses, tuning)) = bytes.split_at_checked(each.saturating_mul(context.size)) else {
            let text = format!("{} bytes are not the addresses of {} ranks", bytes.len(), context.size);
            return Err(wrong(Error::new(ErrorKind::Mismatch, text)));
        };
        let addresses = addresses.chunks_exact(each).map(Address::deserialize).collect::<Result<Vec<_>>>();
        let addresses = addresses.map_err(wrong)?;
        let tuner = context.published_tuner(tuning, &addresses)?;
        Ok(Self { addresses, tuner })
    }
}

/// An exchange over a store between such members.
pub(in crate::context) struct OverMembers<'a> {
    pub over: OverStore<'a>,
    pub members: Members,
    /// Whether this rank has written its address.
    pub is_renewed: bool,
}

impl Exchange for OverMembers<'_> {
    fn sockets(&self) -> Option<Vec<SocketAddr>> {
        Some(self.members.addresses[self.over.context.rank].sockets.clone())
    }

    fn agreed(&self) -> Option<Tuner> {
        Some(self.members.tuner.inherit(self.over.context.options.max_segment_bytes))
    }

    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>> {
        own.inspect_err(|error| self.over.refuse(&RENEWED, error))?;
        Ok(self.members.addresses.clone())
    }

    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        self.over.publish(&RENEWED, own, self.is_renewed)
    }

    fn memory(&self, own: Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.over.memory(own)
    }

    fn broadcast(&self, _: Option<Vec<u8>>) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::Internal, "the tuning of the members is known"))
    }
}
