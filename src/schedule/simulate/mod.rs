//! Plays the schedules of all ranks on a model of a network: how long would it take?
//!
//! The model is that of [`cost`](super::cost), event by event. A message leaves as soon as what it depends on is done and its
//! link is free; a link carries one message at a time, each way on its own, for `bytes / bandwidth`; the message arrives
//! `latency` later than it left. Ranks on one host have a link for each pair of them. A host's ranks share its network card,
//! which is one link outwards and one inwards; what waits for it outwards goes by turns, a segment for each receiver. A message
//! that the receiver is not ready for waits there and is in nobody's way. A rank reduces one segment at a time; copies cost
//! nothing. Times are whole picoseconds, and what happens at one time
//! happens in a fixed order: the same schedules give the same result everywhere.
//!
//! Between hosts a rank is busy for `overhead` before each message leaves it and after each has come, in the order in which they,
//! and its reductions, ask for it; and there is at least `gap` from one message to the next, each way. A message's `latency`
//! includes both ranks' time for it.

mod machine;
mod program;
mod queue;
#[cfg(test)]
mod tests;
mod wires;

use super::Schedule;
use super::cost::Network;
use crate::error::{Error, Result};
use crate::types::Rank;

/// What the schedules are played on.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The links, and how fast ranks reduce.
    pub network: Network,
    /// The host of each rank: numbers below the number of ranks. Empty: as the network's `per_host` and `consecutive` say.
    pub hosts: &'a [u32],
    /// Bytes per second from rank to rank, a row for each sender; 0 for no link. Each pair then has a link of its own each way,
    /// with the latency of `network.remote`, messages cost ranks no time of their own, and hosts are of no importance. Empty: as
    /// the network says.
    pub links: &'a [f64],
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Bytes of the pieces in which steps are worked through.
    pub segment_bytes: usize,
    /// Bytes that the compiled schedules may take.
    pub memory: usize,
    /// Ranks whose doings are to be written down.
    pub trace: &'a [Rank],
}

/// How it went.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Seconds until the last rank has finished.
    pub seconds: f64,
    /// Seconds until each rank has finished.
    pub finished: Vec<f64>,
    /// The longest chain of messages each of which had to wait for the one before; a message's segments count as one.
    pub steps: usize,
    /// Segments sent by all ranks together.
    pub messages: u64,
    /// Bytes sent by each rank.
    pub sent: Vec<u64>,
    /// Bytes reduced by each rank.
    pub reduced: Vec<u64>,
    /// The part of the time for which the busiest link was in use, 0 to 1.
    pub link_use: f64,
    /// Bytes of scratch memory of the rank that needs the most.
    pub scratch_bytes: usize,
    /// What the ranks asked for did, in no particular order.
    pub trace: Vec<Trace>,
}

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activity {
    /// A segment is on its way out, or the rank is busy with that.
    Send,
    /// A segment is coming in, or the rank is busy with that.
    Receive,
    /// A segment is being reduced.
    Reduce,
}

/// One segment of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Trace {
    /// Whose.
    pub rank: Rank,
    /// What is done with it.
    pub activity: Activity,
    /// To or from whom.
    pub peer: Option<Rank>,
    /// Picoseconds from the start.
    pub begin: u64,
    /// Picoseconds from the start.
    pub end: u64,
    /// How much.
    pub bytes: u64,
}

impl<'a> Options<'a> {
    /// `network`, segments of 1 MiB, elements of 4 bytes, 4 GiB of memory.
    pub const fn new(network: Network) -> Self {
        Self { network, hosts: &[], links: &[], element_bytes: 4, segment_bytes: 1 << 20, memory: 4 << 30, trace: &[] }
    }

    fn check(&self, ranks: usize) -> Result<()> {
        let Network { local, remote, gamma, overhead, gap, .. } = self.network;
        if ranks == 0 {
            return Err(refuse("there are no ranks to simulate".into()));
        }
        let times = [("α", local.latency), ("α", remote.latency), ("γ", gamma), ("o", overhead), ("g", gap)];
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

/// Plays the schedules that `generate` writes for ranks 0 to `ranks - 1`. It is called from several threads at once.
///
/// Time and memory grow with the number of segments that all ranks together send, unless the ranks are all alike: see
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
        sent: programs.iter().map(|program| bytes(program.sent)).collect(),
        reduced: programs.iter().map(|program| bytes(program.reduced)).collect(),
        link_use: if last == 0 { 0.0 } else { machine.busiest() as f64 / last as f64 },
        scratch_bytes: programs.iter().map(|program| bytes(program.scratch as u64)).max().unwrap_or(0) as usize,
        trace: trace.collect(),
    })
}

/// Refuses what would last so long that its picoseconds might not fit.
fn check_duration(programs: &[program::Program], options: &Options<'_>) -> Result<()> {
    let Network { local, remote, gamma, overhead, gap, .. } = options.network;
    let slowest = options.links.iter().copied().filter(|&bandwidth| bandwidth > 0.0);
    let slowest = slowest.fold(local.bandwidth.min(remote.bandwidth), f64::min);
    let latency = local.latency.max(remote.latency) + 2.0 * overhead.max(gap);
    // As if nothing happened at the same time. Both ends' cards count, and each segment is rounded.
    let longest: f64 = programs
        .iter()
        .map(|program| {
            let (sent, reduced) = (program.sent as f64, program.reduced as f64);
            let segments =
                program.structure.len() as f64 + sent * options.element_bytes as f64 / options.segment_bytes as f64;
            segments * (latency + 1e-11) + options.element_bytes as f64 * (2.0 * sent / slowest + reduced * gamma)
        })
        .sum();
    match longest < 9e6 {
        true => Ok(()),
        false => Err(refuse(format!("this might last {longest:.0} s; the simulator's clock ends after 9·10⁶ s"))),
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
