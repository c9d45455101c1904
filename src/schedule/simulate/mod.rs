//! Simulates the schedules of all ranks on a network model: how long would they take?
//!
//! A discrete-event simulation of the model in [`cost`](super::cost). A message is sent as soon as its dependencies are
//! done and its link is free. A link carries one message at a time in each direction, for `bytes / bandwidth`; the
//! message arrives `latency` after that. Each pair of ranks on one host has its own link. A host's ranks share its
//! network card, which is one outgoing and one incoming link. Segments that wait for the outgoing link are served
//! round-robin by receiver. A message that arrives before its receive is ready waits at the receiver and delays no
//! other message. A rank reduces one segment at a time; copies cost nothing. Times are integers in picoseconds, and
//! simultaneous events have a fixed order: the same schedules give the same result on every machine.
//!
//! A rank publishes and fetches one step at a time, and reduces at other times, with the CPU times of
//! [`cost::SharedMemory`](super::cost::SharedMemory).
//!
//! Between hosts, every message takes `overhead` of a rank's CPU time before it is sent and after it has arrived; the
//! rank processes messages and reductions in the order of their requests. There is at least `gap` between two messages
//! in the same direction. A message's `latency` includes both ranks' CPU time.

mod machine;
mod memory;
mod program;
mod queue;
#[cfg(test)]
mod tests;
mod wires;

use super::Schedule;
use super::cost::{Access, Network, SharedMemory};
use crate::error::{Error, Result};
use crate::types::Rank;

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The network model, including the reduction speed.
    pub network: Network,
    /// The host of each rank: numbers less than the number of ranks. Empty: derived from the network's `per_host` and
    /// `consecutive`.
    pub hosts: &'a [u32],
    /// The last-level cache of each rank of one host; see [`Shape::domains`](crate::collective::Shape::domains). Empty:
    /// ranks of a host share one.
    pub domains: &'a [u32],
    /// A row-major matrix of bytes per second from each sender to each receiver; 0 for no link. Each pair then has its
    /// own link in each direction with the latency of `network.remote`; messages take no CPU time, and hosts are
    /// ignored. Empty: the network's links.
    pub links: &'a [f64],
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Maximum segment size in bytes.
    pub segment_bytes: usize,
    /// Maximum memory in bytes for the compiled schedules.
    pub memory: usize,
    /// Ranks whose activities are recorded.
    pub trace: &'a [Rank],
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Seconds until the last rank has finished.
    pub seconds: f64,
    /// Seconds until each rank has finished.
    pub finished: Vec<f64>,
    /// The longest chain of dependent messages; the segments of a message count as one.
    pub steps: usize,
    /// Number of segments sent by all ranks together.
    pub messages: u64,
    /// Bytes sent by each rank.
    pub sent: Vec<u64>,
    /// Bytes reduced by each rank.
    pub reduced: Vec<u64>,
    /// Fraction of the time, 0 to 1, for which the busiest link was in use.
    pub link_use: f64,
    /// Maximum size of scratch memory of any rank in bytes.
    pub scratch_bytes: usize,
    /// The activities of the requested ranks, in no particular order.
    pub trace: Vec<Trace>,
}

/// An activity of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activity {
    /// A segment is being sent, or the rank uses CPU time for that.
    Send,
    /// A segment is being received, or the rank uses CPU time for that.
    Receive,
    /// A segment is being reduced.
    Reduce,
}

/// The processing of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Trace {
    /// The rank.
    pub rank: Rank,
    /// The activity.
    pub activity: Activity,
    /// The other rank of a message.
    pub peer: Option<Rank>,
    /// Picoseconds from the start.
    pub begin: u64,
    /// Picoseconds from the start.
    pub end: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl<'a> Options<'a> {
    /// Default parameters for `network`: segments of 1 MiB, elements of 4 bytes, 4 GiB of memory.
    pub const fn new(network: Network) -> Self {
        Self {
            network,
            hosts: &[],
            domains: &[],
            links: &[],
            element_bytes: 4,
            segment_bytes: 1 << 20,
            memory: 4 << 30,
            trace: &[],
        }
    }

    fn check(&self, ranks: usize) -> Result<()> {
        let Network { local, remote, gamma, overhead, gap, memory, .. } = self.network;
        if ranks == 0 {
            return Err(refuse("there are no ranks to simulate".into()));
        }
        let times = [("α", local.latency), ("α", remote.latency), ("γ", gamma), ("o", overhead), ("g", gap)];
        let SharedMemory { near, far, call, copy, read, .. } = memory;
        let access = [near, far].map(|Access { signal, fetch, copy }| [signal, fetch, copy]).concat();
        let shared = access.into_iter().chain([call, copy, read]).map(|time| ("a time of shared memory", time));
        let times = times.into_iter().chain(shared);
        for (what, seconds) in times {
            if !(0.0..=1e6).contains(&seconds) {
                return Err(refuse(format!("{what} is {seconds} s; it must be 0 to 10⁶ s")));
            }
        }
        if 2.0 * overhead > remote.latency {
            let alpha = remote.latency;
            return Err(refuse(format!(
                "o is {overhead} s, at both ends; that is more than α, {alpha} s, of which it is a part"
            )));
        }
        let fine = |bandwidth: f64| (1e-3..=1e18).contains(&bandwidth);
        if let Some(bandwidth) = [local.bandwidth, remote.bandwidth].into_iter().find(|&bandwidth| !fine(bandwidth)) {
            return Err(refuse(format!("a bandwidth is {bandwidth} B/s; it must be 10⁻³ to 10¹⁸ B/s")));
        }
        if !self.domains.is_empty() && self.domains.len() != ranks {
            return Err(refuse(format!("{} domains are given for {ranks} ranks", self.domains.len())));
        }
        if !self.links.is_empty() && self.links.len() != ranks * ranks {
            return Err(refuse(format!("{} links are given; {ranks} ranks have {}", self.links.len(), ranks * ranks)));
        }
        if let Some(bandwidth) = self.links.iter().find(|&&bandwidth| bandwidth != 0.0 && !fine(bandwidth)) {
            return Err(refuse(format!("a link has {bandwidth} B/s; it must have 0 or 10⁻³ to 10¹⁸ B/s")));
        }
        if self.element_bytes == 0 {
            return Err(refuse("elements have 0 bytes".into()));
        }
        Ok(())
    }
}

/// Simulates the schedules that `generate` returns for ranks 0 to `ranks - 1`. `generate` is called from several
/// threads concurrently.
///
/// Time and memory grow with the number of segments sent by all ranks together, except for symmetric schedules; see
/// `docs/tool.md`.
pub fn simulate(
    ranks: usize,
    generate: &(dyn Fn(Rank) -> Result<Schedule> + Sync),
    options: &Options<'_>,
) -> Result<Simulation> {
    options.check(ranks)?;
    let hosts = wires::hosts(ranks, options)?;
    let programs = program::compile(ranks, generate, options)?;
    let bytes = |elements: u64| elements.saturating_mul(options.element_bytes as u64);
    check_duration(&programs, options)?;
    let period = wires::period(&programs, &hosts, options);
    let net = wires::Net::new(&programs, &hosts, period, options)?;
    let mut machine = machine::Machine::new(&programs, period, net, options)?;
    machine.run()?;
    let last = machine.finished.iter().copied().max().unwrap_or(0);
    let trace = options.trace.iter().flat_map(|&rank| {
        let turn = move |of: Rank| (of + rank - rank % period) % ranks;
        let own = machine.trace.iter().filter(move |work| work.rank == rank % period);
        own.map(move |work| Trace { rank, peer: work.peer.map(turn), ..*work })
    });
    Ok(Simulation {
        seconds: seconds(last),
        finished: (0..ranks).map(|rank| seconds(machine.finished[rank % period])).collect(),
        steps: machine.longest_chain(),
        messages: machine.segments * (ranks / period) as u64,
        sent: sent(&programs).into_iter().map(bytes).collect(),
        reduced: programs.iter().map(|program| bytes(program.reduced)).collect(),
        link_use: if last == 0 { 0.0 } else { machine.busiest() as f64 / last as f64 },
        scratch_bytes: programs.iter().map(|program| bytes(program.scratch as u64)).max().unwrap_or(0) as usize,
        trace: trace.collect(),
    })
}

/// The elements that each rank sends, or that are fetched from it.
fn sent(programs: &[program::Program]) -> Vec<u64> {
    let mut sent: Vec<u64> = programs.iter().map(|program| program.sent).collect();
    for program in programs {
        program.fetched_from.iter().zip(&program.fetched).for_each(|(&from, count)| sent[from as usize] += count);
    }
    sent
}

/// Refuses simulations whose duration in picoseconds might overflow.
fn check_duration(programs: &[program::Program], options: &Options<'_>) -> Result<()> {
    let Network { local, remote, gamma, overhead, gap, memory, .. } = options.network;
    let slowest = options.links.iter().copied().filter(|&bandwidth| bandwidth > 0.0);
    let slowest = slowest.fold(local.bandwidth.min(remote.bandwidth), f64::min);
    let SharedMemory { near, far, call, copy, read, .. } = memory;
    let access = near.signal.max(far.signal) + near.fetch.max(far.fetch) + call;
    let latency = local.latency.max(remote.latency) + 2.0 * overhead.max(gap) + access;
    let byte = copy.max(near.copy).max(far.copy).max(read);
    // An upper bound: nothing overlaps, both ends' network cards count, and each segment is rounded.
    let longest: f64 = programs
        .iter()
        .map(|program| {
            let (sent, reduced) = (program.sent as f64, program.reduced as f64);
            let published = program.structure.publications.iter().map(|&step| u64::from(program.lens[step as usize]));
            let moved = program.fetched.iter().copied().chain(published).sum::<u64>() as f64;
            let segments =
                program.structure.len() as f64 + sent * options.element_bytes as f64 / options.segment_bytes as f64;
            segments * (latency + 1e-11)
                + options.element_bytes as f64 * (2.0 * sent / slowest + reduced * gamma + moved * byte)
        })
        .sum();
    match longest < 9e6 {
        true => Ok(()),
        false => Err(refuse(format!("the simulated time might be {longest:.0} s; the maximum is 9·10⁶ s"))),
    }
}

fn picoseconds(seconds: f64) -> u64 {
    (seconds * 1e12).round() as u64
}

fn seconds(picoseconds: u64) -> f64 {
    picoseconds as f64 * 1e-12
}

fn refuse(message: String) -> Error {
    Error::invalid(format!("simulation: {message}"))
}
