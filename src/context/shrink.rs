//! Makes a context of the ranks that are left.

use std::sync::Arc;
use std::time::Duration;

use crate::agreement::{Decision, Vote};
use crate::context::bootstrap::record;
use crate::context::exchange::Limit;
use crate::context::split::Part;
use crate::context::{Connect, Context};
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::transport::Sharing;
use crate::types::Rank;

/// The operation that errors name.
const SHRINK: &str = "shrink";

/// The content of each rank, or the error of one of them.
type Contents = Result<Vec<Vec<u8>>>;

impl Context {
    /// Makes a connected context of the ranks that are left, in their order. Collective, on a context in any state but
    /// closed, which stays as it is. However many ranks end meanwhile, all that are left get a context of the same
    /// ranks, or all get an error. The new context has the device, options, timeout and tuning of this one. A rank
    /// whose call ends with `Timeout` is lost for later agreements.
    pub fn shrink(&self, timeout: Option<Duration>) -> Result<Arc<Context>> {
        let (deadline, used) = self.deadline(timeout);
        let limit = Limit { deadline, timeout: used, by_default: false };
        self.shrink_by(limit).map_err(|error| {
            if error.kind() == ErrorKind::Timeout {
                // The others must not count on what this rank has contributed.
                self.agreements.iter().for_each(|agreements| agreements.close(&error));
            }
            self.disagreed(&error, timeout, limit, SHRINK)
        })
    }

    fn shrink_by(&self, limit: Limit) -> Result<Arc<Context>> {
        let options = self.options_of_part();
        // The ranks that could not all connect.
        let mut tried = None;
        loop {
            let connections = self.prepare_split(&options);
            let own = connections.as_ref().map(|connections| connections.address().serialize());
            let (ranks, contents) = self.gather_of_left(own.map_err(Error::clone), limit)?;
            let contents = contents?;
            let address = |(rank, content): (&Rank, &Vec<u8>)| {
                Address::deserialize(content)
                    .map_err(|e| e.context(format_args!("the address of rank {rank}")).with_rank(*rank))
            };
            let addresses: Result<Vec<Address>> = ranks.iter().zip(&contents).map(address).collect();
            let made = addresses
                .and_then(|addresses| Part::new(self, connections?, options.clone(), ranks.clone(), addresses));
            let own = made.as_ref().map(|part| vec![part.found.number()]).map_err(Error::clone);
            let (left, contents) = self.gather_of_left(own, limit)?;
            if left != ranks {
                // Others have ended meanwhile.
                continue;
            }
            let (contents, part) = (contents?, made?);
            let found = Sharing::parse(&contents.concat(), ranks.len())?;
            let of = |rank: Rank| found[ranks.binary_search(&rank).expect("one of the ranks")];
            let connected = part.connect(of, limit);
            if options.connect == Connect::Full {
                let own = connected.as_ref().map(|()| Vec::new()).map_err(Error::clone);
                let (left, contents) = self.gather_of_left(own, limit)?;
                // One that has agreed that it is connected may have ended since: that is known when they agree again.
                if left != ranks || contents.is_err() && tried.replace(ranks.clone()) != Some(ranks) {
                    continue;
                }
                contents?;
            }
            connected?;
            return Ok(part.context);
        }
    }

    /// Gathers the contents, or errors, of the ranks that are left, by an agreement. Returns these ranks, in ascending
    /// order, and their contents, or the first error.
    fn gather_of_left(&self, own: Result<Vec<u8>>, limit: Limit) -> Result<(Vec<Rank>, Contents)> {
        let record = match &own {
            Ok(content) => [&[0], &content[..]].concat(),
            Err(error) => {
                let (kind, told) = record::of_error(error);
                [&[kind], &told[..]].concat()
            }
        };
        let (Decision { records, .. }, _) = self.agree_on(Vote { flags: 0, record: record.clone() }, limit)?;
        if !records.contains(&(self.rank, record)) {
            let text = "what the ranks have agreed on does not contain what this rank has contributed";
            return Err(Error::new(ErrorKind::Mismatch, text));
        }
        let content = |(rank, record): &(Rank, Vec<u8>)| match record.split_first() {
            Some((0, content)) => Ok(content.to_vec()),
            Some((kind, told)) => Err(record::to_error(*rank, self.size, *kind, told)),
            None => {
                let text = format!("rank {rank} does not shrink the context: it agrees only");
                Err(Error::new(ErrorKind::Mismatch, text).with_rank(*rank))
            }
        };
        Ok((records.iter().map(|(rank, _)| *rank).collect(), own.and(records.iter().map(content).collect())))
    }
}
