//! New contexts out of parts of a connected one.

use std::sync::Arc;

use crate::context::tuning::topology;
use crate::context::{Context, ContextOptions, connector};
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::transport::Connector;
use crate::types::Rank;

/// What a rank tells: its color (8 bytes, little-endian; -1 for none), its key (4), and its address, if it has a color.
const KEY_AT: usize = 8;
const ADDRESS_AT: usize = KEY_AT + 4;

/// What errors call it.
const SPLIT: &str = "split";

/// A rank that becomes one of a new context.
struct Member {
    key: i32,
    /// In the parent.
    rank: Rank,
    address: Address,
}

/// The ranks of `color`, in their order in the new context, out of what all have told.
fn members(told: &[u8], each: usize, color: u32) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    for (rank, told) in told.chunks_exact(each).enumerate() {
        if i64::from_le_bytes(std::array::from_fn(|i| told[i])) != i64::from(color) {
            continue;
        }
        let key = i32::from_le_bytes(std::array::from_fn(|i| told[KEY_AT + i]));
        let address = Address::deserialize(&told[ADDRESS_AT..])
            .map_err(|e| e.context(format_args!("what rank {rank} tells of itself")).with_rank(rank))?;
        members.push(Member { key, rank, address });
    }
    members.sort_by_key(|member| (member.key, member.rank));
    Ok(members)
}

impl Context {
    /// Makes a connected context of the ranks that pass the same `color`, in the order of `key`s, and of their ranks here where these
    /// are equal. A rank without a color takes part and gets none. Collective; two at once on one context are refused. The new context
    /// has this one's device, options and timeout, goes by what this one chooses algorithms by, and needs it no more.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Arc<Context>>> {
        self.split_by(color, key)
            .map_err(|e| e.context(format_args!("{}: cannot split a context", self.own())).during(SPLIT))
    }

    fn split_by(&self, color: Option<u32>, key: i32) -> Result<Option<Arc<Context>>> {
        let limit = self.limit();
        let options = ContextOptions { timeout: self.timeout(), ..self.options.clone() };
        // Before the others are told, so that they hear of what fails.
        let connector = color.map(|_| self.prepare_split(&options)).transpose();
        let (connector, own) = match connector {
            Ok(connector) => (connector, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let address = match &connector {
            Some(connector) => connector.address().clone(),
            None => Address { sockets: Vec::new(), ..self.lock()?.messenger.connector().address().clone() },
        };
        let number = color.map_or(-1, i64::from).to_le_bytes();
        let own = own.map(|()| [&number[..], &key.to_le_bytes(), &address.serialize()].concat());
        let (own, told) = self.gather_setup(own, limit)?;
        let (Some(color), Some(connector)) = (color, connector) else { return Ok(None) };
        if told.len() != own.len() * self.size {
            return Err(Error::new(
                ErrorKind::Mismatch,
                "a rank has told more or less than this one: another version?",
            ));
        }
        let members = members(&told, own.len(), color)?;
        let ranks: Vec<Rank> = members.iter().map(|member| member.rank).collect();
        let addresses: Vec<Address> = members.into_iter().map(|member| member.address).collect();
        let rank = ranks.iter().position(|rank| *rank == self.rank).expect("this rank has told its color");
        let overrides = self.overrides.clone();
        let context = Context::over(connector, self.device().clone(), rank, ranks.len(), options, overrides)?;
        let tuner = self.tuner().of_ranks(&ranks, topology(&addresses));
        context.meet(&addresses, tuner.constants())?;
        context.adopt(tuner, &addresses)?;
        context.connect_fully(limit)?;
        Ok(Some(context))
    }

    /// What makes the links of a new context, which peers find where all ranks of this one reach it.
    fn prepare_split(&self, options: &ContextOptions) -> Result<Box<dyn Connector>> {
        let sockets = self.device().listen(None, &self.everyone()?, self.rank)?;
        let mut connector = connector(self.device(), options)?;
        connector.set_sockets(sockets);
        Ok(connector)
    }
}
