//! How the ranks of a context agree on the tuning by which algorithms are selected.
//!
//! Rank 0 determines it from its tuning file, and by measurements with one other rank of its host and one rank of
//! another host. It publishes the result, which all ranks use, including rank 0. From the list of addresses that rank 0
//! publishes, all ranks know whether it measures, so none waits in vain.

use std::time::{Duration, Instant};

use crate::collective::{Collective, Shape};
use crate::context::Context;
use crate::context::exchange::{Exchange, Limit, other_ranks};
use crate::context::measure;
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::{self, Address};
use crate::tuner::file::Tuning;
use crate::tuner::model::Topology;
use crate::tuner::overrides::Overrides;
use crate::tuner::source::Source;
use crate::tuner::{Explanation, Tuner};
use crate::types::{DataType, Rank};

/// How long the other end of a link may take to answer before the link is not measured. Longer in the library's own
/// tests, which run on busy machines and check the measurements.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 1 });

/// The ranks at the other end of the links that rank 0 measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    local: Option<Rank>,
    remote: Option<Rank>,
}

/// The links that are to be measured for `source`, as one byte for the other ranks.
pub(super) fn wants(source: &Source) -> u8 {
    let missing = |known: bool, bit: u8| if source.measures && !known { bit } else { 0 };
    missing(source.tuning.local.is_some(), LOCAL) | missing(source.tuning.remote.is_some(), REMOTE)
}

const LOCAL: u8 = 1;
const REMOTE: u8 = 2;

impl Links {
    /// The links that rank 0 measures for `wants`: to the first other rank of its host, and to the first rank of
    /// another host.
    pub(super) fn wanted(wants: u8, addresses: &[Address]) -> Self {
        let first = |bit: u8, local: bool| {
            let mut others = addresses.iter().enumerate().skip(1);
            let found = others.find(|(_, address)| (address.host == addresses[0].host) == local);
            found.map(|(rank, _)| rank).filter(|_| wants & bit != 0)
        };
        Self { local: first(LOCAL, true), remote: first(REMOTE, false) }
    }
}

/// The distribution of ranks over hosts, equal on all ranks.
pub(crate) fn topology(addresses: &[Address]) -> Topology {
    let hosts = address::number_hosts(addresses).into_vec();
    let count = hosts.iter().max().map_or(0, |last| last + 1);
    let of = |host: u32| addresses.iter().zip(&hosts).filter(move |(_, own)| **own == host).map(|(address, _)| address);
    let cores = (0..count).map(|host| address::count_cores(of(host))).min().unwrap_or(1);
    Topology::without_shared_memory(hosts, cores)
}

impl Context {
    /// The algorithm that `run` selects for `shape` and `dtype` with `auto`.
    pub fn choose(&self, shape: &Shape<'_>, dtype: DataType) -> &'static str {
        // Only the name of an algorithm can be invalid, and none is given.
        self.tuners
            .for_elements(dtype.size())
            .decide(shape, dtype.size(), None)
            .map_or("", |decision| decision.algorithm.name)
    }

    /// The tuning that the ranks agreed on when they connected: constants, measured or from a file, and recorded
    /// choices.
    pub fn tuning(&self) -> &Tuning {
        self.tuners.current().tuning()
    }

    /// The distribution of the ranks over hosts, and whether they share memory, as known to the selection of
    /// algorithms.
    pub fn topology(&self) -> &Topology {
        self.tuners.current().topology()
    }

    /// The algorithm that `run` selects for a call of so many bytes (as the benchmark counts them), and why.
    pub fn explain(&self, collective: Collective, bytes: usize) -> Explanation {
        self.tuners.current().explain(collective, bytes)
    }

    /// Agrees on the tuning with all ranks. Rank 0 passes `source`.
    pub(super) fn agree_on_tuning(
        &self,
        exchange: &dyn Exchange,
        source: Option<Source>,
        links: Links,
        addresses: &[Address],
        limit: Limit,
    ) -> Result<Tuner> {
        // Limited, so that enough time is left for the rest of connecting.
        let now = self.engine().now();
        let until = now + PATIENCE.min(limit.left(now) / 4);
        if source.is_none() && [links.local, links.remote].contains(&Some(self.rank)) {
            measure::answer(self, 0, until);
        }
        let own = source.map(|source| self.publish(source, links, until).into_bytes());
        let text = exchange.broadcast(own)?;
        let tuner = self.published_tuner(&text, addresses)?;
        let is_known = |known: &Tuner| (known.tuning(), known.overrides()) == (tuner.tuning(), tuner.overrides());
        if !self.tuners.agreed().is_none_or(is_known) {
            return Err(other_ranks());
        }
        Ok(tuner)
    }

    /// The tuner of a context of ranks with these `addresses` from what rank 0 has published.
    pub(super) fn published_tuner(&self, text: &[u8], addresses: &[Address]) -> Result<Tuner> {
        let published = |error: Error| error.context("what rank 0 has published as tuning");
        let text = str::from_utf8(text)
            .map_err(|error| published(Error::new(ErrorKind::Mismatch, error.to_string())).with_rank(0))?;
        let (overrides, tuning) = text.split_once('\n').unwrap_or_default();
        let tuning = Tuning::parse(tuning).map_err(published)?;
        let overrides = Overrides::parse(overrides).map_err(published)?;
        Ok(Tuner::new(tuning, overrides, topology(addresses), self.options.max_segment_bytes))
    }

    /// Rank 0: what it publishes if it need not measure, because `earlier` has all that is measured between ranks with
    /// these `addresses`.
    pub(super) fn complete_tuning(&self, earlier: &Tuner, addresses: &[Address]) -> Option<String> {
        let source = self.source(Some(earlier)).ok()??;
        let lacks = Links::wanted(wants(&source), addresses);
        (lacks == Links::default()).then(|| as_text(earlier.overrides(), earlier.tuning()))
    }

    /// Rank 0: measures what `source` lacks. Returns the result as text: the overrides in one line, then a tuning file.
    fn publish(&self, source: Source, links: Links, until: Instant) -> String {
        let Source { mut tuning, measures, .. } = source;
        if measures {
            tuning = tuning.on_this_processor();
        }
        if measures && self.size > 1 {
            // The other ends answer for as long, from when each of them has the addresses.
            let built_in = tuning.constants();
            if let Some(rank) = links.local {
                let measured = measure::link(self, rank, until, built_in.local.bandwidth);
                tuning.local = measured.map(|measured| measured.link);
            }
            if let Some(rank) = links.remote
                && let Some(measured) = measure::link(self, rank, until, built_in.remote.bandwidth)
            {
                tuning.remote = Some(measured.link);
                // In µs, rounded to nanoseconds.
                tuning.constants.entry("overhead_us").or_insert((measured.overhead * 1e9).round() / 1e3);
            }
            tuning.gamma = tuning.gamma.or_else(measure::gamma);
        }
        let overrides = self.tuners.agreed().map_or(&self.tuners.own_overrides, Tuner::overrides);
        as_text(overrides, &tuning)
    }
}

/// What rank 0 publishes: the overrides in one line, then a tuning file.
fn as_text(overrides: &Overrides, tuning: &Tuning) -> String {
    format!("{overrides}\n{}", tuning.to_toml())
}
