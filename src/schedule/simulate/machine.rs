//! The event loop.
//!
//! A step is processed in segments, exactly as in the engine (`src/engine/execution.rs`): a segment starts when all its
//! dependencies have progressed far enough and, for a receive, when it has arrived. The finished elements of a step are
//! always a prefix. A wire and a rank process requests in order of arrival.

use std::collections::VecDeque;

use super::memory::Memory;
use super::program::{Kind, Program, STATE_BYTES};
use super::queue::Queue;
use super::wires::{Net, Waiting};
use super::{Activity, Options, Trace, picoseconds, refuse};
use crate::error::Result;

/// Maximum number of segments of a reducing receive in progress at the same time, as in the engine.
const WINDOW: u32 = 8;

/// The progress of a step in elements.
#[derive(Clone, Copy, Default)]
struct State {
    /// Elements of a receive that have arrived; elements of a send for which the rank's CPU time is done.
    arrived: u32,
    begun: u32,
    done: u32,
    /// Number of messages in the longest chain that ends with this step.
    chain: u32,
}

const _: () = assert!(size_of::<State>() == STATE_BYTES);

/// The kind of an event. An event is packed into a word: the kind in the upper 3 bits, a bit for the last segment of a
/// step, the rank in 28 bits, the step in 32.
#[derive(Clone, Copy, PartialEq)]
enum EventKind {
    /// The first byte of a segment reaches the receiver's network card.
    ReachesCard,
    /// A segment has arrived.
    Arrived,
    /// A segment has been sent.
    Sent,
    /// A segment has been reduced.
    Reduced,
    /// The sender's CPU time for a segment is over.
    CpuDone,
    /// A segment from another host has arrived and waits for the receiver's CPU.
    AwaitsCpu,
    /// What a step on shared memory waits for has happened.
    Signalled,
}

/// Directions of messages, for [`Machine::use_cpu`].
const OUT: usize = 0;
const IN: usize = 1;

const LAST: u64 = 1 << 60;
const MAX_RANKS: usize = 1 << 28;

pub(super) struct Machine<'a> {
    programs: &'a [Program],
    /// Number of ranks that are simulated; see [`super::wires::period`].
    period: usize,
    net: Net,
    queue: Queue,
    memory: Memory<'a>,
    now: u64,
    /// The states of all steps, rank by rank.
    states: Vec<State>,
    /// The index of each rank's first state.
    first: Vec<usize>,
    /// When each rank's CPU is free.
    busy: Vec<u64>,
    /// When each rank may send to, and receive from, other hosts again.
    ports: Vec<[u64; 2]>,
    /// When each rank's last activity so far ends.
    pub finished: Vec<u64>,
    /// Steps that may be able to proceed, in the engine's order.
    work: VecDeque<u32>,
    element: u64,
    segment: u32,
    /// Picoseconds to reduce one byte.
    gamma: f64,
    /// Picoseconds of CPU time per message, and minimum picoseconds between two messages.
    overhead: u64,
    gap: u64,
    /// Whether each rank's activities are recorded.
    traced: Vec<bool>,
    pub trace: Vec<Trace>,
    pub segments: u64,
}

impl<'a> Machine<'a> {
    pub fn new(programs: &'a [Program], period: usize, net: Net, options: &Options<'a>) -> Result<Self> {
        if programs.len() > MAX_RANKS {
            return Err(refuse(format!("{} ranks; at most {MAX_RANKS} can be simulated", programs.len())));
        }
        let mut first = Vec::with_capacity(period);
        let mut steps = 0;
        for program in &programs[..period] {
            first.push(steps);
            steps += program.structure.len();
        }
        let mut traced = vec![false; period];
        options.trace.iter().filter(|&&rank| rank < programs.len()).for_each(|rank| traced[rank % period] = true);
        let segment = (options.segment_bytes / options.element_bytes).max(1);
        Ok(Self {
            programs,
            period,
            net,
            queue: Queue::new(),
            memory: Memory::new(programs, period, options),
            now: 0,
            states: vec![State::default(); steps],
            first,
            busy: vec![0; period],
            ports: vec![[0; 2]; period],
            finished: vec![0; period],
            work: VecDeque::new(),
            element: options.element_bytes as u64,
            segment: u32::try_from(segment).unwrap_or(u32::MAX),
            gamma: options.network.gamma * 1e12,
            overhead: picoseconds(options.network.overhead),
            gap: picoseconds(options.network.gap),
            traced,
            trace: Vec::new(),
            segments: 0,
        })
    }

    pub fn run(&mut self) -> Result<()> {
        for rank in 0..self.period {
            // Receives start when data arrives.
            let structure = &self.programs[rank].structure;
            let begins = |&index: &u32| !matches!(structure.step(index).kind, Kind::Recv | Kind::RecvReduce);
            self.work.extend((0..structure.len() as u32).filter(begins));
            self.advance(rank)?;
        }
        while let Some((time, word)) = self.queue.pop() {
            self.now = time;
            let (rank, index) = ((word >> 32) as usize & (MAX_RANKS - 1), word as u32);
            let at = self.first[rank] + index as usize;
            let len = self.programs[rank].lens[index as usize];
            match unpack(word) {
                EventKind::ReachesCard => {
                    self.reaches(rank, index, word & LAST != 0);
                    continue;
                }
                EventKind::CpuDone => {
                    let state = &mut self.states[at];
                    let begun = state.arrived;
                    state.arrived = len.min(begun.saturating_add(self.segment));
                    let end = state.arrived;
                    self.enqueue(Waiting { rank: rank as u32, index, begun, end });
                    continue;
                }
                EventKind::AwaitsCpu => {
                    let program = &self.programs[rank];
                    let sender = program.from[program.structure.step(index).peer_index as usize];
                    let count = if word & LAST == 0 { self.segment } else { (len - 1) % self.segment + 1 };
                    let time = self.use_cpu(rank, IN, sender, count);
                    self.queue.push(time, pack(EventKind::Arrived, rank, index));
                    continue;
                }
                EventKind::Arrived => {
                    let state = &mut self.states[at];
                    state.arrived = len.min(state.arrived.saturating_add(self.segment));
                    self.work.push_back(index);
                }
                EventKind::Signalled => self.work.push_back(index),
                event @ (EventKind::Sent | EventKind::Reduced) => {
                    let state = &mut self.states[at];
                    let count = match self.programs[rank].structure.step(index).kind.is_shared() {
                        true => len,
                        false => self.segment.min(len - state.done),
                    };
                    self.done(rank, index, count);
                    if event == EventKind::Sent {
                        self.serve(self.net.route(rank, self.programs[rank].structure.step(index).peer_index).wire);
                    }
                }
            }
            self.advance(rank)?;
        }
        self.check_all_done()
    }

    /// Starts all segments of `rank` that can start.
    fn advance(&mut self, rank: usize) -> Result<()> {
        while let Some(index) = self.work.pop_front() {
            while self.begin(rank, index)? {}
        }
        Ok(())
    }

    /// Starts the next segment of a step if its dependencies permit; returns whether it did.
    fn begin(&mut self, rank: usize, index: u32) -> Result<bool> {
        let program = &self.programs[rank];
        let step = *program.structure.step(index);
        let len = program.lens[index as usize];
        let first = self.first[rank];
        let State { arrived, begun, done, .. } = self.states[first + index as usize];
        if begun == len {
            return Ok(false);
        }
        let end = if step.kind.is_shared() { len } else { len.min(begun.saturating_add(self.segment)) };
        let receives = matches!(step.kind, Kind::Recv | Kind::RecvReduce);
        if receives && (arrived < end || begun - done >= WINDOW.saturating_mul(self.segment)) {
            return Ok(false);
        }
        let mut chain = 0;
        let after = program.structure.after(index);
        for (&other, &shift) in program.structure.after[after.clone()].iter().zip(&program.shifts[after]) {
            let need = i64::from(end).saturating_add(shift).clamp(0, i64::from(program.lens[other as usize]));
            let other = &self.states[first + other as usize];
            if i64::from(other.done) < need {
                return Ok(false);
            }
            if need > 0 {
                chain = chain.max(other.chain);
            }
        }
        if step.kind.is_shared() {
            let Some(published) = self.awaited(rank, index)? else { return Ok(false) };
            chain = chain.max(published);
        }
        let counts = receives || matches!(step.kind, Kind::Send | Kind::Fetch | Kind::FetchReduce);
        let state = &mut self.states[first + index as usize];
        state.begun = end;
        state.chain = state.chain.max(chain + u32::from(counts));
        let count = end - begun;
        match step.kind {
            Kind::Send => self.send(rank, index, begun, end)?,
            Kind::RecvReduce | Kind::Reduce if self.gamma > 0.0 => {
                let duration = (f64::from(count) * self.element as f64 * self.gamma).round() as u64;
                let begin = self.busy[rank].max(self.now);
                self.busy[rank] = begin + duration;
                self.queue.push(begin + duration, pack(EventKind::Reduced, rank, index));
                self.note(Activity::Reduce, rank, None, (begin, begin + duration), count);
            }
            Kind::Publish | Kind::Fetch | Kind::FetchReduce => {
                let duration = self.memory.duration(self.programs, rank, step, len);
                let begin = self.busy[rank].max(self.now);
                self.busy[rank] = begin + duration;
                self.queue.push(begin + duration, pack(EventKind::Reduced, rank, index));
                if step.kind != Kind::Publish {
                    let from = self.programs[rank].fetched_from[step.peer_index as usize];
                    self.note(Activity::Receive, rank, Some(from), (begin, begin + duration), count);
                }
            }
            _ => self.done(rank, index, count),
        }
        Ok(true)
    }

    /// The longest chain of messages to what a step on shared memory waits for, if that has happened. Otherwise the
    /// step is tried again then.
    fn awaited(&mut self, rank: usize, index: u32) -> Result<Option<u32>> {
        let step = *self.programs[rank].structure.step(index);
        let since = match step.kind {
            Kind::Publish => return Ok(Some(0)),
            Kind::AwaitReaders => self.memory.readers_done(rank, index),
            _ => self.memory.published(self.programs, rank, step, index)?,
        };
        let Some((time, chain)) = since else { return Ok(None) };
        if time > self.now {
            self.queue.push(time, pack(EventKind::Signalled, rank, index));
            return Ok(None);
        }
        Ok(Some(chain))
    }

    /// Marks `count` more elements of a step as finished.
    fn done(&mut self, rank: usize, index: u32, count: u32) {
        let state = &mut self.states[self.first[rank] + index as usize];
        state.done += count;
        if state.done < state.begun.max(state.arrived) {
            // The window has room again.
            self.work.push_back(index);
        }
        let chain = state.chain;
        self.finished[rank] = self.finished[rank].max(self.now);
        self.work.extend(self.programs[rank].structure.before(index));
        let step = *self.programs[rank].structure.step(index);
        if step.kind.is_shared() {
            for (waiting, index, time) in self.memory.done(self.programs, rank, step, chain, self.now) {
                self.queue.push(time, pack(EventKind::Signalled, waiting, index));
            }
        }
    }

    /// Sends the elements from `begun` to `end` as soon as possible.
    fn send(&mut self, rank: usize, index: u32, begun: u32, end: u32) -> Result<()> {
        let program = &self.programs[rank];
        let step = program.structure.step(index);
        let route = *self.net.route(rank, step.peer_index);
        let to = route.to as usize % self.period;
        let receiver = &self.programs[to];
        let (len, at) = (program.lens[index as usize], self.first[rank] + index as usize);
        let Some(&receive) = receiver.structure.receives(route.peer_index).get(step.channel as usize) else {
            let text =
                format!("rank {rank} sends message {} to rank {}, which never receives it", step.channel, route.to);
            return Err(refuse(text));
        };
        if receiver.lens[receive as usize] != len {
            return Err(refuse(format!(
                "message {} from rank {rank} to rank {}: {len} elements sent, {} received",
                step.channel, route.to, receiver.lens[receive as usize]
            )));
        }
        self.segments += 1;
        let (chain, receiver_state) = (self.states[at].chain, self.first[to] + receive as usize);
        self.states[receiver_state].chain = self.states[receiver_state].chain.max(chain);
        if route.costs {
            let time = self.use_cpu(rank, OUT, route.to, end - begun);
            self.queue.push(time, pack(EventKind::CpuDone, rank, index));
        } else {
            self.enqueue(Waiting { rank: rank as u32, index, begun, end });
        }
        Ok(())
    }

    /// Accounts for the CPU time of a message that is sent or received. Returns when it is over.
    fn use_cpu(&mut self, rank: usize, direction: usize, peer: u32, count: u32) -> u64 {
        let begin = self.busy[rank].max(self.now);
        let done = begin + self.overhead;
        self.busy[rank] = done;
        self.note([Activity::Send, Activity::Receive][direction], rank, Some(peer), (begin, done), count);
        let time = done.max(self.ports[rank][direction]);
        self.ports[rank][direction] = time + self.gap;
        time
    }

    /// Queues a segment for its wire, or sends it at once if the wire has no queue.
    fn enqueue(&mut self, waiting: Waiting) {
        let Waiting { rank, index, begun, end } = waiting;
        let (rank, structure) = (rank as usize, &self.programs[rank as usize].structure);
        let peer_index = structure.step(index).peer_index;
        match self.net.wait(peer_index, waiting, u64::from(end - begun) * self.element) {
            Some(true) => self.serve(self.net.route(rank, peer_index).wire),
            Some(false) => {}
            None => {
                let left = self.leave(waiting);
                if structure.before(index).is_empty() {
                    // No step waits for it.
                    self.states[self.first[rank] + index as usize].done = end;
                    self.finished[rank] = self.finished[rank].max(left);
                } else {
                    self.queue.push(left, pack(EventKind::Sent, rank, index));
                }
            }
        }
    }

    /// Sends the next segment in the queue of a wire.
    fn serve(&mut self, wire: u32) {
        if let Some(waiting) = self.net.next(wire) {
            let left = self.leave(waiting);
            self.queue.push(left, pack(EventKind::Sent, waiting.rank as usize, waiting.index));
        }
    }

    /// Sends a segment. Returns when its last byte has been sent.
    fn leave(&mut self, Waiting { rank, index, begun, end }: Waiting) -> u64 {
        let (rank, program) = (rank as usize, &self.programs[rank as usize]);
        let step = program.structure.step(index);
        let route = *self.net.route(rank, step.peer_index);
        let to = route.to as usize % self.period;
        let receive = self.programs[to].structure.receives(route.peer_index)[step.channel as usize];
        let wire = &mut self.net.wires[route.wire as usize];
        let (begin, left) = wire.take(self.now, u64::from(end - begun) * self.element);
        self.note(Activity::Send, rank, Some(route.to), (begin, left), end - begun);
        let last = if end == program.lens[index as usize] { LAST } else { 0 };
        if !route.shared {
            let sender = self.shifted_sender(rank, to, route.to);
            self.note(Activity::Receive, to, Some(sender), (begin + route.latency, left + route.latency), end - begun);
            let event = if route.costs { EventKind::AwaitsCpu } else { EventKind::Arrived };
            self.queue.push(left + route.latency, pack(event, to, receive) | last);
        } else {
            self.queue.push(begin + route.latency, pack(EventKind::ReachesCard, to, receive) | last);
        }
        left
    }

    /// Occupies the receiver's network card for a segment.
    fn reaches(&mut self, rank: usize, index: u32, last: bool) {
        let program = &self.programs[rank];
        let len = program.lens[index as usize];
        let count = if last { (len - 1) % self.segment + 1 } else { self.segment };
        let sender = program.from[program.structure.step(index).peer_index as usize];
        let card = self.net.card(rank);
        let (begin, end) = self.net.wires[card].take(self.now, u64::from(count) * self.element);
        self.note(Activity::Receive, rank, Some(sender), (begin, end), count);
        let event = if self.overhead > 0 || self.gap > 0 { EventKind::AwaitsCpu } else { EventKind::Arrived };
        self.queue.push(end, pack(event, rank, index) | if last { LAST } else { 0 });
    }

    /// The rank that corresponds to `rank` for the simulated `receiver`, which represents rank `to`.
    fn shifted_sender(&self, rank: usize, receiver: usize, to: u32) -> u32 {
        ((rank + self.programs.len() + receiver - to as usize) % self.programs.len()) as u32
    }

    fn note(&mut self, activity: Activity, rank: usize, peer: Option<u32>, (begin, end): (u64, u64), count: u32) {
        if self.traced[rank] {
            let bytes = u64::from(count) * self.element;
            let peer = peer.map(|peer| peer as usize);
            self.trace.push(Trace { rank, activity, peer, begin, end, bytes });
        }
    }

    fn check_all_done(&self) -> Result<()> {
        for (rank, program) in self.programs[..self.period].iter().enumerate() {
            for (index, &len) in program.lens.iter().enumerate() {
                let State { arrived, done, .. } = self.states[self.first[rank] + index];
                if done < len {
                    let step = program.structure.step(index as u32);
                    let arrived = match step.kind {
                        Kind::Recv | Kind::RecvReduce => format!(
                            ": of message {} from rank {}, {arrived} elements of {len} arrived",
                            step.channel, program.from[step.peer_index as usize]
                        ),
                        _ => String::new(),
                    };
                    return Err(refuse(format!("rank {rank} never finishes step {index}{arrived}")));
                }
            }
        }
        Ok(())
    }

    /// The length of the longest chain of dependent messages.
    pub fn longest_chain(&self) -> usize {
        self.states.iter().map(|state| state.chain).max().unwrap_or(0) as usize
    }

    /// The longest time for which a single wire was in use.
    pub fn busiest(&self) -> u64 {
        self.net.wires.iter().map(|wire| wire.busy).max().unwrap_or(0)
    }
}

fn pack(event: EventKind, rank: usize, index: u32) -> u64 {
    (event as u64) << 61 | (rank as u64) << 32 | u64::from(index)
}

fn unpack(word: u64) -> EventKind {
    match word >> 61 {
        0 => EventKind::ReachesCard,
        1 => EventKind::Arrived,
        2 => EventKind::Sent,
        3 => EventKind::Reduced,
        4 => EventKind::CpuDone,
        5 => EventKind::AwaitsCpu,
        _ => EventKind::Signalled,
    }
}
