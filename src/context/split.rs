//! Splits a connected context.

use std::collections::HashMap;
use std::sync::Arc;

use crate::context::bootstrap::BYTES_PER_RANK;
use crate::context::exchange::Limit;
use crate::context::rounds::Exclusion;
use crate::context::setup::TAG;
use crate::context::tuning::topology;
use crate::context::{Context, ContextOptions, connections};
use crate::error::{Details, Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::reserve::check_room;
use crate::transport::{Connections, Sharing};
use crate::tuner::Tuner;
use crate::types::Rank;

/// Offsets in a rank's content: its color (8 bytes, little-endian; -1 for none), its key (4), and its address, if it
/// has a color.
const KEY_AT: usize = 8;
const ADDRESS_AT: usize = KEY_AT + 4;

/// The operation that errors name.
const SPLIT: &str = "split";

/// A rank of the new context.
struct Member {
    key: i32,
    /// Its rank in the parent.
    rank: Rank,
    address: Address,
}

/// Parses the contents of all ranks: the ranks of each color, in their order in the new context.
fn parts(contents: &[u8], each: usize) -> Result<HashMap<i64, Vec<Member>>> {
    let mut parts = HashMap::<i64, Vec<Member>>::new();
    for (rank, content) in contents.chunks_exact(each).enumerate() {
        let color = i64::from_le_bytes(std::array::from_fn(|i| content[i]));
        if color < 0 {
            continue;
        }
        let key = i32::from_le_bytes(std::array::from_fn(|i| content[KEY_AT + i]));
        let address = Address::deserialize(&content[ADDRESS_AT..])
            .map_err(|e| e.context(format_args!("the address published by rank {rank}")).with_rank(rank))?;
        parts.entry(color).or_default().push(Member { key, rank, address });
    }
    parts.values_mut().for_each(|part| part.sort_by_key(|member| (member.key, member.rank)));
    Ok(parts)
}

/// A context of some ranks of another one, its parent, while it is made.
pub(super) struct Part {
    pub context: Arc<Context>,
    /// The ranks in the parent.
    ranks: Vec<Rank>,
    addresses: Vec<Address>,
    tuner: Tuner,
    /// What this rank can share with the others of its host.
    pub found: Sharing,
}

impl Part {
    /// The context of `ranks` of `parent`, this one among them, which are found at these `addresses`.
    pub fn new(
        parent: &Context,
        connections: Connections,
        options: ContextOptions,
        ranks: Vec<Rank>,
        addresses: Vec<Address>,
    ) -> Result<Self> {
        let rank = ranks.iter().position(|rank| *rank == parent.rank).expect("this rank is one of them");
        let tuner = parent.tuners.current().of_ranks(&ranks, topology(&addresses));
        let (device, overrides) = (parent.device().clone(), parent.tuners.own_overrides.clone());
        let context = Context::over(connections, device, rank, ranks.len(), options, overrides)?;
        context.versions.inherit(&parent.versions, &ranks);
        context.lock()?.messenger.connections_mut().peers_mut().names = ranks.clone();
        let mut part = Self { context, ranks, addresses, tuner, found: Sharing::Nothing };
        let named = |rank: Rank| part.ranks[rank];
        let found = part.context.use_addresses(&part.addresses, &named, part.tuner.constants());
        part.found = found.map_err(|error| part.named(error))?;
        Ok(part)
    }

    /// Connects the context. `found`: what each rank of the parent can share.
    pub fn connect(&self, found: impl Fn(Rank) -> Sharing, limit: Limit) -> Result<()> {
        let Self { context, ranks, addresses, tuner, .. } = self;
        Sharing::check_room(ranks.iter().map(|rank| (*rank, found(*rank))))?;
        let found: Vec<Sharing> = ranks.iter().map(|rank| found(*rank)).collect();
        let shared = context.lock()?.messenger.connections_mut().share_memory(&found);
        shared.map_err(|error| self.named(error))?;
        context.adopt(tuner.inherit(context.options.max_segment_bytes), addresses, &found)?;
        context.connect_fully(limit).map_err(|error| self.named(error))?;
        context.lock()?.messenger.connections_mut().peers_mut().names = Vec::new();
        Ok(())
    }

    /// Errors are about the ranks of the parent, on which the call was made.
    fn named(&self, error: Error) -> Error {
        let details = *error.details();
        let name = |rank: Rank| self.ranks.get(rank).copied().unwrap_or(rank);
        error.about(Details { rank: details.rank.map(name), ..details })
    }
}

impl Context {
    /// Makes a connected context of the ranks that pass the same `color`, ordered by `key`, then by rank. A rank
    /// without a color takes part and gets no context. Collective; two concurrent calls on one context are refused. The
    /// new context has the device, options, timeout and tuning of this one, which may be closed afterwards.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Arc<Context>>> {
        let limit = self.limit();
        self.split_by(color, key, limit).map_err(|e| {
            let e = e.context(format_args!("{}: cannot split a context", self.own()));
            self.amended(None, limit.deadline, e.during(SPLIT))
        })
    }

    fn split_by(&self, color: Option<u32>, key: i32, limit: Limit) -> Result<Option<Arc<Context>>> {
        let _exclusion = Exclusion::begin_setup(self, TAG)?;
        let options = self.options_of_part();
        // Before the exchange, so that other ranks are notified of an error.
        let connections = color.map(|_| self.prepare_split(&options)).transpose();
        let (connections, own) = match connections {
            Ok(connections) => (connections, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let address = match &connections {
            Some(connections) => connections.address().clone(),
            None => Address { sockets: Vec::new(), ..self.lock()?.messenger.connections().address().clone() },
        };
        let number = color.map_or(-1, i64::from).to_le_bytes();
        let own = own.map(|()| [&number[..], &key.to_le_bytes(), &address.serialize()].concat());
        let (own, contents) = self.gather_setup(own, TAG, limit)?;
        if contents.len() != own.len() * self.size {
            return Err(Error::new(
                ErrorKind::Mismatch,
                "the record of a rank is longer or shorter than that of this one: another version?",
            ));
        }
        let mut parts = parts(&contents, own.len())?;
        let (Some(color), Some(connections)) = (color, connections) else {
            // Fails with a rank that cannot make its part.
            self.gather_setup(Ok(vec![Sharing::Nothing.number()]), TAG, limit)?;
            return Ok(None);
        };
        let members = parts.remove(&i64::from(color)).expect("this rank has passed this color");
        let ranks: Vec<Rank> = members.iter().map(|member| member.rank).collect();
        let addresses: Vec<Address> = members.into_iter().map(|member| member.address).collect();
        let made = Part::new(self, connections, options, ranks, addresses);
        let own = made.as_ref().map(|part| vec![part.found.number()]).map_err(Error::clone);
        let found = Sharing::parse(&self.gather_setup(own, TAG, limit)?.1, self.size)?;
        let part = made?;
        part.connect(|rank| found[rank], limit)?;
        Ok(Some(part.context))
    }

    /// The options of a context of ranks of this one.
    pub(super) fn options_of_part(&self) -> ContextOptions {
        ContextOptions {
            timeout: self.timeout(),
            timeout_by_default: self.timeout.is_default(),
            ..self.options.clone()
        }
    }

    /// The connections of a new context, listening at an address that all ranks of this one can reach.
    pub(super) fn prepare_split(&self, options: &ContextOptions) -> Result<Connections> {
        check_room(self.size.saturating_mul(BYTES_PER_RANK), format_args!("a context of up to {} ranks", self.size))?;
        let sockets = self.device().listen(None, &self.everyone()?, self.rank)?;
        let mut connections = connections(self.device(), options)?;
        connections.set_sockets(sockets);
        Ok(connections)
    }
}
