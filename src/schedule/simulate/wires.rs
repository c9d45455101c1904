//! Assignment of ranks to hosts, and the wires between them.

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

/// A resource that transfers one message at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Picoseconds per byte.
    pub byte: f64,
    /// When it becomes free.
    pub free: u64,
    /// Total time in use.
    pub busy: u64,
}

/// The route of messages from one rank to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub to: u32,
    /// The sender's number among the receiver's peers.
    pub peer_index: u32,
    /// The outgoing wire.
    pub wire: u32,
    /// Whether messages of other hosts may compete for the receiver's network card.
    pub shared: bool,
    /// Picoseconds for the first byte, excluding the ranks' CPU time.
    pub latency: u64,
    /// Whether messages take CPU time.
    pub costs: bool,
    /// The virtual start time of this route's next segment in its card's queue.
    turn: u64,
}

/// A segment to be sent: the sending rank and step, and the range of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiting {
    pub rank: u32,
    pub index: u32,
    pub begun: u32,
    pub end: u32,
}

/// The queue of an outgoing network card with several routes. Each route gets the same share of the bandwidth
/// (start-time fair queueing: Goyal, Vin and Cheng 1996), as TCP connections do; segments of one route stay in order.
#[derive(Debug, Default)]
struct CardQueue {
    /// Ordered by virtual start time, then by arrival.
    waiting: BinaryHeap<Reverse<(u64, u64, Waiting)>>,
    arrivals: u64,
    /// The virtual start time of the segment served last.
    turn: u64,
    serving: bool,
}

/// The wires, and each rank's routes.
pub(super) struct Net {
    pub wires: Vec<Wire>,
    routes: Vec<Route>,
    /// The index of each rank's first route. Routes are in the order of peer numbers.
    first: Vec<usize>,
    /// The wire of each rank for messages from other hosts.
    cards: Vec<u32>,
    /// The queue of each outgoing card that has several routes.
    queues: Vec<Option<CardQueue>>,
}

impl Net {
    /// The wire by which messages from other hosts reach `rank`.
    pub fn card(&self, rank: usize) -> usize {
        self.cards[rank] as usize
    }

    pub fn route(&self, rank: usize, peer_index: u32) -> &Route {
        &self.routes[self.first[rank] + peer_index as usize]
    }

    /// The routes of the ranks below `period`; the other ranks correspond to these, see [`period`].
    pub fn new(programs: &[Program], hosts: &[u32], period: usize, options: &Options<'_>) -> Result<Self> {
        let ranks = programs.len();
        let mut net =
            Self { wires: Vec::new(), routes: Vec::new(), first: Vec::new(), cards: Vec::new(), queues: Vec::new() };
        let byte = |bandwidth: f64| 1e12 / bandwidth;
        let cards = if options.links.is_empty() { hosts.iter().max().map_or(0, |&host| host + 1) } else { 0 };
        // The outgoing cards, the incoming cards, then the links between pairs.
        net.wires.resize(2 * cards as usize, Wire::new(byte(options.network.remote.bandwidth)));
        let sole_senders = sole_senders(programs, hosts, cards as usize);
        let numbers: Vec<_> = programs[..period].iter().map(|program| sorted(&program.from)).collect();
        for (rank, program) in programs[..period].iter().enumerate() {
            net.first.push(net.routes.len());
            net.cards.push(cards + hosts[rank]);
            for &to in &program.to {
                // The receiver corresponds to a rank below `period`; shift the sender by the same distance.
                let like = to as usize % period;
                let sender = (rank + ranks + like - to as usize) % ranks;
                let senders = &numbers[like];
                let Ok(place) = senders.binary_search_by_key(&(sender as u32), |&(rank, _)| rank) else {
                    return Err(refuse(format!("rank {rank} sends to rank {to}, which never receives from it")));
                };
                let mut route = Route {
                    to,
                    peer_index: senders[place].1,
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
                    route.latency = picoseconds(options.network.remote.latency);
                    net.wires.push(Wire::new(byte(bandwidth)));
                } else if hosts[rank] == hosts[to as usize] {
                    route.latency = picoseconds(options.network.local.latency);
                    net.wires.push(Wire::new(byte(options.network.local.bandwidth)));
                } else {
                    let Network { remote, overhead, gap, .. } = options.network;
                    route.latency =
                        picoseconds(remote.latency) - 2 * picoseconds(overhead).min(picoseconds(remote.latency) / 2);
                    route.costs = overhead > 0.0 || gap > 0.0;
                    route.wire = hosts[rank];
                    // If only one host sends to a card, its messages never compete there.
                    route.shared = sole_senders[hosts[to as usize] as usize] == SEVERAL;
                }
                net.routes.push(route);
            }
        }
        let mut users = vec![0; cards as usize];
        net.routes.iter().filter(|route| route.wire < cards).for_each(|route| users[route.wire as usize] += 1);
        net.queues = users.into_iter().map(|users: usize| (users > 1).then(CardQueue::default)).collect();
        Ok(net)
    }

    /// Queues a segment of `bytes` if its wire has a queue (else `None`). Returns whether the wire is idle, so that
    /// [`Net::next`] must be called.
    pub fn wait(&mut self, peer_index: u32, waiting: Waiting, bytes: u64) -> Option<bool> {
        let route = &mut self.routes[self.first[waiting.rank as usize] + peer_index as usize];
        let queue = self.queues.get_mut(route.wire as usize)?.as_mut()?;
        let turn = route.turn.max(queue.turn);
        route.turn = turn + bytes;
        queue.waiting.push(Reverse((turn, queue.arrivals, waiting)));
        queue.arrivals += 1;
        Some(!queue.serving)
    }

    /// The next segment in the queue of a wire, if any.
    pub fn next(&mut self, wire: u32) -> Option<Waiting> {
        let queue = self.queues.get_mut(wire as usize)?.as_mut()?;
        let next = queue.waiting.pop();
        queue.serving = next.is_some();
        let Reverse((turn, _, waiting)) = next?;
        queue.turn = turn;
        Some(waiting)
    }
}

impl Wire {
    fn new(byte: f64) -> Self {
        Self { byte, free: 0, busy: 0 }
    }

    /// Occupies the wire for a message of `bytes` as soon as it is free, but not before `time`. Returns the start and
    /// the end.
    pub fn take(&mut self, time: u64, bytes: u64) -> (u64, u64) {
        let duration = (bytes as f64 * self.byte).round() as u64;
        let begin = self.free.max(time);
        self.free = begin + duration;
        self.busy += duration;
        (begin, self.free)
    }
}

/// Returns for each host the other host that sends to it, if there is only one.
fn sole_senders(programs: &[Program], hosts: &[u32], cards: usize) -> Vec<u32> {
    let mut sole_senders = vec![NONE; cards];
    for (program, &host) in programs.iter().zip(hosts).filter(|(_, host)| (**host as usize) < cards) {
        let sender = &mut sole_senders[host as usize];
        for from in program.from.iter().map(|&rank| hosts[rank as usize]).filter(|&from| from != host) {
            if *sender != from {
                *sender = if *sender == NONE { from } else { SEVERAL };
            }
        }
    }
    sole_senders
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
        return Err(refuse(format!(
            "host number {host} is out of range; with {ranks} ranks it must be less than {ranks}"
        )));
    }
    Ok(options.hosts.to_vec())
}

/// The number of ranks after which the pattern repeats: rank `r + period` has the same schedule as rank `r`, with peers
/// and host shifted by the same distance. Both then do the same at the same times, so only the first `period` ranks
/// need to be simulated. If there is no such symmetry: the number of ranks.
pub(super) fn period(programs: &[Program], hosts: &[u32], options: &Options<'_>) -> usize {
    let ranks = programs.len();
    let period = hosts.iter().filter(|&&host| host == hosts[0]).count();
    let regular = ranks.is_multiple_of(period)
        && options.domains.is_empty()
        && options.links.is_empty()
        && hosts.iter().enumerate().all(|(rank, &host)| host as usize == rank / period);
    let turned = |own: &[u32], other: &[u32], by: usize| {
        own.len() == other.len() && own.iter().zip(other).all(|(&a, &b)| a as usize == (b as usize + by) % ranks)
    };
    let alike = |(rank, own): (usize, &Program)| {
        let other = &programs[rank % period];
        own.like(other)
            && turned(&own.to, &other.to, rank - rank % period)
            && turned(&own.from, &other.from, rank - rank % period)
            && turned(&own.fetched_from, &other.fetched_from, rank - rank % period)
    };
    if regular && programs.iter().enumerate().all(alike) { period } else { ranks }
}
