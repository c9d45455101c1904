//! The schedules of all ranks in compact form: identical parts of thousands of ranks are stored once.
//!
//! The peers of a rank are numbered in the order of its first send to them, and of its first receive from them. With
//! these numbers instead of ranks, the steps of all ranks of a ring, and of most ranks of a tree, are identical.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Options, refuse};
use crate::error::Result;
use crate::hash::{QuickHasher, QuickMap};
use crate::schedule::{Action, Dependency, Readers, Schedule};
use crate::types::Rank;

/// The operation of a step, as far as its duration depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Send,
    Recv,
    RecvReduce,
    Reduce,
    /// Copies and divisions, which are assumed to cost nothing.
    Free,
    Publish,
    Fetch,
    FetchReduce,
    AwaitReaders,
}

impl Kind {
    /// Whether the step is on shared memory, which is executed whole.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Publish | Self::Fetch | Self::FetchReduce | Self::AwaitReaders)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub kind: Kind,
    /// The peer's number among those sent to, received from, or fetched from.
    pub peer_index: u32,
    /// The number of the message among those to or from that peer; the number of the publication.
    pub channel: u32,
    /// Index of its first dependency in [`Structure::after`]; the next step's first is the end.
    after: u32,
    /// Index of its first dependent in [`Structure::before`]; the next step's first is the end.
    before: u32,
}

/// The steps and their dependencies, without lengths and ranks.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Structure {
    /// The steps, and a sentinel at the end.
    steps: Vec<Step>,
    /// The steps on which each step depends.
    pub after: Vec<u32>,
    /// The steps that depend on each step.
    before: Vec<u32>,
    /// The index in `receives` of the first receive from each peer number, and a sentinel at the end.
    first_receive: Vec<u32>,
    /// The receives from each peer, in order.
    receives: Vec<u32>,
    /// The publications, in order.
    pub publications: Vec<u32>,
    /// Whether each publication is for one rank.
    pub is_for_one: Vec<bool>,
}

/// The schedule of one rank.
#[derive(Debug)]
pub(super) struct Program {
    pub structure: Arc<Structure>,
    /// The length of each step in elements.
    pub lens: Arc<Vec<u32>>,
    /// The shift of each entry of [`Structure::after`].
    pub shifts: Arc<Vec<i64>>,
    /// Ranks sent to, by peer number.
    pub to: Vec<u32>,
    /// Ranks received from, by peer number.
    pub from: Vec<u32>,
    /// Ranks fetched from, by peer number, and the elements fetched from each.
    pub fetched_from: Vec<u32>,
    pub fetched: Vec<u64>,
    pub scratch: usize,
    pub sent: u64,
    pub reduced: u64,
}

impl Program {
    /// Whether the two differ only in the ranks of their peers.
    pub fn like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.structure, &other.structure)
            && Arc::ptr_eq(&self.lens, &other.lens)
            && Arc::ptr_eq(&self.shifts, &other.shifts)
    }
}

impl Structure {
    pub fn len(&self) -> usize {
        self.steps.len() - 1
    }

    pub fn step(&self, index: u32) -> &Step {
        &self.steps[index as usize]
    }

    /// The range of a step's dependencies in `after` and in the shifts.
    pub fn after(&self, index: u32) -> std::ops::Range<usize> {
        self.steps[index as usize].after as usize..self.steps[index as usize + 1].after as usize
    }

    /// The steps that depend on `index`.
    pub fn before(&self, index: u32) -> &[u32] {
        &self.before[self.steps[index as usize].before as usize..self.steps[index as usize + 1].before as usize]
    }

    /// The receives from peer number `peer_index`.
    pub fn receives(&self, peer_index: u32) -> &[u32] {
        let peer_index = peer_index as usize;
        &self.receives[self.first_receive[peer_index] as usize..self.first_receive[peer_index + 1] as usize]
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.steps[..])
            + size_of::<u32>()
                * (self.after.len()
                    + self.before.len()
                    + self.first_receive.len()
                    + self.receives.len()
                    + self.publications.len())
            + self.is_for_one.len()
    }
}

/// Number of ranks that justify the start of another thread.
const RANKS_PER_THREAD: usize = 64;

/// Generates and compiles the schedules of all ranks, on all cores if there are many ranks.
pub(super) fn compile(
    ranks: usize,
    generate: &(dyn Fn(Rank) -> Result<Schedule> + Sync),
    options: &Options<'_>,
) -> Result<Vec<Program>> {
    let shared = Shared {
        ranks,
        limit: options.memory as u64,
        used: AtomicU64::new(0),
        structures: Mutex::default(),
        lens: Mutex::default(),
        shifts: Mutex::default(),
    };
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Vec<(Rank, Result<Program>)> {
        let mut compiler = Compiler::default();
        let mut done = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let rank = next.fetch_add(1, Ordering::Relaxed);
            if rank >= ranks {
                break;
            }
            let schedule = generate(rank).map(in_turn);
            let program = schedule.and_then(|schedule| compiler.compile(rank, &schedule, &shared));
            failed.fetch_or(program.is_err(), Ordering::Relaxed);
            done.push((rank, program));
        }
        done
    };
    // Few ranks get no further threads: the work would be done before another thread has started.
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(ranks.div_ceil(RANKS_PER_THREAD));
    let mut programs: Vec<_> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others = others.into_iter().map(|other| other.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        own.into_iter().chain(others.flatten()).collect()
    });
    programs.sort_unstable_by_key(|(rank, _)| *rank);
    programs.into_iter().map(|(_, program)| program).collect()
}

/// A schedule without messages is executed by one thread, step by step.
fn in_turn(mut schedule: Schedule) -> Schedule {
    let steps = &mut schedule.steps;
    if steps.iter().all(|step| step.action.source().is_none() && step.action.destination().is_none()) {
        for later in 1..steps.len() {
            let earlier = steps[later - 1].action.elements();
            steps[later].after.push(Dependency { step: later as u32 - 1, shift: earlier as isize });
        }
    }
    schedule
}

/// Parts that several ranks share, keyed by hash.
type Interned<T> = Mutex<QuickMap<u64, Vec<Arc<T>>>>;

struct Shared {
    ranks: usize,
    /// The maximum memory in bytes, and the memory used so far.
    limit: u64,
    used: AtomicU64,
    structures: Interned<Structure>,
    lens: Interned<Vec<u32>>,
    shifts: Interned<Vec<i64>>,
}

/// Bytes per step that a simulation needs.
pub(super) const STATE_BYTES: usize = 16;

impl Shared {
    /// Adds `bytes` to the memory used; fails if that exceeds the limit.
    fn take(&self, bytes: usize) -> Result<()> {
        let used = self.used.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if used > self.limit {
            return Err(self.too_much());
        }
        Ok(())
    }

    fn too_much(&self) -> crate::error::Error {
        refuse(format!(
            "the schedules of {} ranks need more than the {} MiB of memory allowed for them; simulate fewer ranks, or an \
             algorithm with fewer steps",
            self.ranks,
            self.limit >> 20
        ))
    }

    /// The shared copy of `part`; if it is new, it takes `bytes`. `last` is what this thread used before.
    fn intern<T: Eq + Hash>(
        &self,
        interned: &Interned<T>,
        last: &mut Option<Arc<T>>,
        part: T,
        bytes: usize,
    ) -> Result<Arc<T>> {
        if let Some(last) = last.as_ref().filter(|last| ***last == part) {
            return Ok(last.clone());
        }
        let mut hasher = QuickHasher::default();
        part.hash(&mut hasher);
        let mut interned = interned.lock().unwrap_or_else(PoisonError::into_inner);
        let same = interned.entry(hasher.finish()).or_default();
        let found = match same.iter().find(|other| ***other == part) {
            Some(found) => found.clone(),
            None => {
                self.take(bytes)?;
                same.push(Arc::new(part));
                same[same.len() - 1].clone()
            }
        };
        *last = Some(found.clone());
        Ok(found)
    }
}

/// The state of one compiling thread.
#[derive(Default)]
struct Compiler {
    structure: Option<Arc<Structure>>,
    lens: Option<Arc<Vec<u32>>>,
    shifts: Option<Arc<Vec<i64>>>,
}

/// Numbers peers in order of first use.
#[derive(Default)]
struct Peers {
    ranks: Vec<u32>,
    numbers: QuickMap<u32, u32>,
    last: Option<(u32, u32)>,
}

impl Peers {
    fn number(&mut self, rank: u32) -> u32 {
        match self.last {
            Some((last, number)) if last == rank => number,
            _ => {
                let number = *self.numbers.entry(rank).or_insert_with(|| {
                    self.ranks.push(rank);
                    self.ranks.len() as u32 - 1
                });
                self.last = Some((rank, number));
                number
            }
        }
    }
}

impl Compiler {
    fn compile(&mut self, rank: Rank, schedule: &Schedule, shared: &Shared) -> Result<Program> {
        let count = schedule.steps.len();
        // If there are many steps, all ranks have about the same number.
        if rank == 0 && (count as u64).saturating_mul((STATE_BYTES * shared.ranks) as u64) > shared.limit {
            return Err(shared.too_much());
        }
        let too_long = |index: usize, what: &str| refuse(format!("rank {rank}, step {index}: {what}"));
        let (mut to, mut from, mut fetched_from) = (Peers::default(), Peers::default(), Peers::default());
        let (mut publications, mut is_for_one, mut fetched) = (Vec::new(), Vec::new(), Vec::new());
        let mut steps = Vec::with_capacity(count + 1);
        let mut lens = Vec::with_capacity(count);
        let mut after = Vec::with_capacity(2 * count);
        let mut shifts = Vec::with_capacity(2 * count);
        let mut dependents = vec![0u32; count + 1];
        let mut incoming = Vec::new();
        let (mut sent, mut reduced) = (0, 0);
        for (index, step) in schedule.steps.iter().enumerate() {
            let len = step.action.progress();
            let kind = match step.action {
                Action::Send { .. } => Kind::Send,
                Action::Recv { .. } => Kind::Recv,
                Action::RecvReduce { .. } => Kind::RecvReduce,
                Action::Reduce { .. } => Kind::Reduce,
                Action::Copy { .. } | Action::Divide { .. } => Kind::Free,
                Action::Publish { .. } => Kind::Publish,
                Action::Fetch { .. } => Kind::Fetch,
                Action::FetchReduce { .. } => Kind::FetchReduce,
                Action::AwaitReaders => Kind::AwaitReaders,
            };
            let publication = step.action.publication();
            let peer = step.action.destination().or(step.action.source()).or(publication.map(|(from, ..)| from));
            if let Some(peer) = peer.filter(|&peer| peer >= shared.ranks || peer == rank) {
                return Err(too_long(index, &format!("rank {peer} is not a valid peer")));
            }
            let peer_index = match (step.action.destination(), step.action.source()) {
                (Some(rank), _) => {
                    sent += len as u64;
                    to.number(rank as u32)
                }
                (_, Some(rank)) => {
                    let peer_index = from.number(rank as u32);
                    incoming.push((peer_index, index as u32));
                    peer_index
                }
                _ => publication.map_or(0, |(from, ..)| {
                    let peer_index = fetched_from.number(from as u32);
                    fetched.resize(fetched_from.ranks.len(), 0);
                    fetched[peer_index as usize] += step.action.elements() as u64;
                    peer_index
                }),
            };
            let channel = publication.map_or(step.channel, |(_, number, _)| number);
            if let Action::Publish { to, .. } = step.action {
                publications.push(index as u32);
                is_for_one.push(matches!(to, Readers::One(_)));
            }
            if matches!(kind, Kind::RecvReduce | Kind::Reduce | Kind::FetchReduce) {
                reduced += len as u64;
            }
            let len = u32::try_from(len)
                .map_err(|_| too_long(index, &format!("{len} elements; at most {} can be simulated", u32::MAX)))?;
            steps.push(Step { kind, peer_index, channel, after: after.len() as u32, before: 0 });
            lens.push(len);
            for dependency in &step.after {
                after.push(dependency.step);
                shifts.push(dependency.shift as i64);
                dependents[dependency.step as usize] += 1;
            }
        }
        steps.push(Step { kind: Kind::Free, peer_index: 0, channel: 0, after: after.len() as u32, before: 0 });
        let before = invert(&mut steps, &after, dependents);
        let (first_receive, receives) = by_peer_index(&incoming, from.ranks.len());
        shared.take(STATE_BYTES * count + size_of::<Program>() + 24 * to.ranks.len() + 8 * from.ranks.len())?;
        shared.take(12 * fetched.len())?;
        let structure = Structure { steps, after, before, first_receive, receives, publications, is_for_one };
        let bytes = structure.bytes();
        let lens_bytes = size_of_val(&lens[..]);
        let shifts_bytes = size_of_val(&shifts[..]);
        Ok(Program {
            structure: shared.intern(&shared.structures, &mut self.structure, structure, bytes)?,
            lens: shared.intern(&shared.lens, &mut self.lens, lens, lens_bytes)?,
            shifts: shared.intern(&shared.shifts, &mut self.shifts, shifts, shifts_bytes)?,
            to: to.ranks,
            from: from.ranks,
            fetched_from: fetched_from.ranks,
            fetched,
            scratch: schedule.scratch,
            sent,
            reduced,
        })
    }
}

/// Returns the steps that depend on each step; `dependents` has their numbers.
fn invert(steps: &mut [Step], after: &[u32], mut dependents: Vec<u32>) -> Vec<u32> {
    let mut next = 0;
    for (step, dependents) in steps.iter_mut().zip(&mut dependents) {
        step.before = next;
        next += std::mem::replace(dependents, next);
    }
    let mut before = vec![0; after.len()];
    for index in 0..steps.len() - 1 {
        for &earlier in &after[steps[index].after as usize..steps[index + 1].after as usize] {
            let next_index = &mut dependents[earlier as usize];
            before[*next_index as usize] = index as u32;
            *next_index += 1;
        }
    }
    before
}

/// The receives grouped by peer number, in order.
fn by_peer_index(incoming: &[(u32, u32)], peers: usize) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0; peers + 1];
    for &(peer_index, _) in incoming {
        first[peer_index as usize + 1] += 1;
    }
    for peer_index in 0..peers {
        first[peer_index + 1] += first[peer_index];
    }
    let mut next = first.clone();
    let mut receives = vec![0; incoming.len()];
    for &(peer_index, step) in incoming {
        let next_index = &mut next[peer_index as usize];
        receives[*next_index as usize] = step;
        *next_index += 1;
    }
    (first, receives)
}
