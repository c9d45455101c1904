//! Which ranks are on which hosts, and the wires between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::program::Program;
use super::{Options, picoseconds, refuse};
use crate::error::Result;
use crate::schedule::cost::Network;

/// No host.
const NONE: u32 = u32::MAX;
/// More than one host.
const SEVERAL: u32 = u32::MAX - 1;

/// What one message at a time passes through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Picoseconds for a byte.
    pub byte: f64,
    /// From when on it is free.
    pub free: u64,
    /// Time for which it was not.
    pub busy: u64,
}

/// From one rank to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub to: u32,
    /// The number that the sender has among the receiver's peers.
    pub slot: u32,
    /// What a message leaves by.
    pub wire: u32,
    /// Whether other messages may be in its way on the receiver's card.
    pub shared: bool,
    /// Picoseconds for the first byte, without what ranks do for the message.
    pub latency: u64,
    /// Whether ranks have something to do for each message.
    pub costs: bool,
    /// Where this way's next segment stands in the line for its card.
    turn: u64,
}

/// A segment that is to be sent: who sends it, by which step, from and to which element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiting {
    pub rank: u32,
    pub index: u32,
    pub begun: u32,
    pub end: u32,
}

/// Those who wait for a card by which there are several ways out. Each way gets the same share (start-time fair queueing: Goyal,
/// Vin and Cheng 1996), as connections do; on one way segments stay in order.
#[derive(Debug, Default)]
struct Line {
    /// By turn, then in the order of coming.
    waiting: BinaryHeap<Reverse<(u64, u64, Waiting)>>,
    came: u64,
    /// The turn of the one served last.
    turn: u64,
    serving: bool,
}

/// The wires, and each rank's ways.
pub(super) struct Net {
    pub wires: Vec<Wire>,
    ways: Vec<Way>,
    /// Where a rank's ways begin; they are in the order of the peers' numbers.
    first: Vec<usize>,
    /// The wire by which messages from other hosts come to each rank.
    cards: Vec<u32>,
    /// Of each card outwards that has several ways.
    lines: Vec<Option<Line>>,
}

impl Net {
    /// What messages to `rank` from other hosts arrive by.
    pub fn card(&self, rank: usize) -> usize {
        self.cards[rank] as usize
    }

    pub fn way(&self, rank: usize, slot: u32) -> &Way {
        &self.ways[self.first[rank] + slot as usize]
    }

    /// The ways of the ranks below `period`, whom the ones after them are like; see [`period`].
    pub fn new(programs: &[Program], hosts: &[u32], period: usize, options: &Options<'_>) -> Result<Self> {
        let ranks = programs.len();
        let mut net =
            Self { wires: Vec::new(), ways: Vec::new(), first: Vec::new(), cards: Vec::new(), lines: Vec::new() };
        let byte = |bandwidth: f64| 1e12 / bandwidth;
        let cards = if options.links.is_empty() { hosts.iter().max().map_or(0, |&host| host + 1) } else { 0 };
        // The cards, outward and inward, then the links of pairs.
        net.wires.resize(2 * cards as usize, Wire::new(byte(options.network.remote.bandwidth)));
        let feeders = feeders(programs, hosts, cards as usize);
        let numbers: Vec<_> = programs[..period].iter().map(|program| sorted(&program.from)).collect();
        for (rank, program) in programs[..period].iter().enumerate() {
            net.first.push(net.ways.len());
            net.cards.push(cards + hosts[rank]);
            for &to in &program.to {
                // The receiver is like a rank below `period`, and this one like one that far from it.
                let like = to as usize % period;
                let sender = (rank + ranks + like - to as usize) % ranks;
                let its = &numbers[like];
                let Ok(place) = its.binary_search_by_key(&(sender as u32), |&(rank, _)| rank) else {
                    return Err(refuse(format!("rank {rank} sends to rank {to}, which never receives from it")));
                };
                let mut way = Way {
                    to,
                    slot: its[place].1,
                    wire: net.wires.len() as u32,
                    shared: false,
                    latency: 0,
                    costs: false,
                    turn: 0,
                };
                if !options.links.is_empty() {
                    let bandwidth = options.links[rank * ranks + to as usize];
                    if bandwidth == 0.0 {
                        return Err(refuse(format!(
                            "rank {rank} sends to rank {to}, but there is no link between them"
                        )));
                    }
                    way.latency = picoseconds(options.network.remote.latency);
                    net.wires.push(Wire::new(byte(bandwidth)));
                } else if hosts[rank] == hosts[to as usize] {
                    way.latency = picoseconds(options.network.local.latency);
                    net.wires.push(Wire::new(byte(options.network.local.bandwidth)));
                } else {
                    let Network { remote, overhead, gap, .. } = options.network;
                    way.latency =
                        picoseconds(remote.latency) - 2 * picoseconds(overhead).min(picoseconds(remote.latency) / 2);
                    way.costs = overhead > 0.0 || gap > 0.0;
                    way.wire = hosts[rank];
                    // What one card sends to one card never meets anything there.
                    way.shared = feeders[hosts[to as usize] as usize] == SEVERAL;
                }
                net.ways.push(way);
            }
        }
        let mut users = vec![0; cards as usize];
        net.ways.iter().filter(|way| way.wire < cards).for_each(|way| users[way.wire as usize] += 1);
        net.lines = users.into_iter().map(|users: usize| (users > 1).then(Line::default)).collect();
        Ok(net)
    }

    /// Puts a segment of `bytes` in line, if there is a line; whether the wire may be asked for the [`Net::next`].
    pub fn wait(&mut self, slot: u32, waiting: Waiting, bytes: u64) -> Option<bool> {
        let way = &mut self.ways[self.first[waiting.rank as usize] + slot as usize];
        let line = self.lines.get_mut(way.wire as usize)?.as_mut()?;
        let turn = way.turn.max(line.turn);
        way.turn = turn + bytes;
        line.waiting.push(Reverse((turn, line.came, waiting)));
        line.came += 1;
        Some(!line.serving)
    }

    /// Who is next on a wire with a line, if anybody is.
    pub fn next(&mut self, wire: u32) -> Option<Waiting> {
        let line = self.lines.get_mut(wire as usize)?.as_mut()?;
        let next = line.waiting.pop();
        line.serving = next.is_some();
        let Reverse((turn, _, waiting)) = next?;
        line.turn = turn;
        Some(waiting)
    }
}

impl Wire {
    fn new(byte: f64) -> Self {
        Self { byte, free: 0, busy: 0 }
    }

    /// Takes a message of `bytes` as soon as it can, but not before `time`: from when until when.
    pub fn take(&mut self, time: u64, bytes: u64) -> (u64, u64) {
        let duration = (bytes as f64 * self.byte).round() as u64;
        let begin = self.free.max(time);
        self.free = begin + duration;
        self.busy += duration;
        (begin, self.free)
    }
}

/// For each host, which other one sends to it, if there is only one.
fn feeders(programs: &[Program], hosts: &[u32], cards: usize) -> Vec<u32> {
    let mut feeders = vec![NONE; cards];
    for (program, &host) in programs.iter().zip(hosts).filter(|(_, host)| (**host as usize) < cards) {
        let feeder = &mut feeders[host as usize];
        for from in program.from.iter().map(|&rank| hosts[rank as usize]).filter(|&from| from != host) {
            if *feeder != from {
                *feeder = if *feeder == NONE { from } else { SEVERAL };
            }
        }
    }
    feeders
}

fn sorted(from: &[u32]) -> Vec<(u32, u32)> {
    let mut numbers: Vec<_> = from.iter().zip(0..).map(|(&rank, number)| (rank, number)).collect();
    numbers.sort_unstable();
    numbers
}

/// The host of each rank.
pub(super) fn hosts(ranks: usize, options: &Options<'_>) -> Result<Vec<u32>> {
    let per_host = options.network.per_host.clamp(1, ranks.max(1));
    if options.hosts.is_empty() {
        let number = ranks.div_ceil(per_host);
        let host = |rank| if options.network.consecutive { rank / per_host } else { rank % number };
        return Ok((0..ranks).map(|rank| host(rank) as u32).collect());
    }
    if options.hosts.len() != ranks {
        return Err(refuse(format!("hosts are given for {} of {ranks} ranks", options.hosts.len())));
    }
    if let Some(host) = options.hosts.iter().find(|&&host| host as usize >= ranks) {
        return Err(refuse(format!("there is a host {host}; with {ranks} ranks hosts have the numbers below {ranks}")));
    }
    Ok(options.hosts.to_vec())
}

/// The number of ranks after which everything repeats itself: rank `r + period` does what rank `r` does, with peers and on a
/// host as much further on. The same things then happen to both at the same times, and only the first need be simulated. As
/// many ranks as there are, if there is no such symmetry.
pub(super) fn period(programs: &[Program], hosts: &[u32], options: &Options<'_>) -> usize {
    let ranks = programs.len();
    let period = hosts.iter().filter(|&&host| host == hosts[0]).count();
    let regular = ranks.is_multiple_of(period)
        && options.links.is_empty()
        && hosts.iter().enumerate().all(|(rank, &host)| host as usize == rank / period);
    let turned = |own: &[u32], its: &[u32], by: usize| {
        own.len() == its.len() && own.iter().zip(its).all(|(&a, &b)| a as usize == (b as usize + by) % ranks)
    };
    let alike = |(rank, own): (usize, &Program)| {
        let its = &programs[rank % period];
        own.like(its)
            && turned(&own.to, &its.to, rank - rank % period)
            && turned(&own.from, &its.from, rank - rank % period)
    };
    if regular && programs.iter().enumerate().all(alike) { period } else { ranks }
}
