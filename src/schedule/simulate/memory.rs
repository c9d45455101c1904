//! Publications in shared memory.

use super::program::{Kind, Program, Step};
use super::{Options, picoseconds, refuse};
use crate::error::Result;
use crate::hash::QuickMap;
use crate::schedule::cost::SharedMemory;

/// What the ranks have published and fetched.
pub(super) struct Memory<'a> {
    costs: SharedMemory,
    domains: &'a [u32],
    gamma: f64,
    element: f64,
    period: usize,
    /// When each publication was made, with the longest chain of messages to it. Keyed by rank and number.
    made: QuickMap<(u32, u32), (u64, u32)>,
    /// The fetches that wait for a publication: rank and step.
    waiting: QuickMap<(u32, u32), Vec<(usize, u32)>>,
    /// The bytes of all that each rank publishes for one rank each, in a call that sends messages; 0 in others.
    for_one: Vec<f64>,
    /// The number of fetches from each rank that are not done.
    unread: Vec<usize>,
    /// The bytes of each rank's largest publication.
    largest: Vec<f64>,
    /// When each rank has seen that the last of its readers was done.
    read: Vec<u64>,
    /// The step of each rank that waits for its readers.
    awaits: Vec<Option<u32>>,
}

/// Whether a rank fetches nothing.
fn is_alone(program: &Program) -> bool {
    program.fetched_from.is_empty()
}

impl<'a> Memory<'a> {
    pub fn new(programs: &[Program], period: usize, options: &Options<'a>) -> Self {
        let (costs, element) = (options.network.memory, options.element_bytes as f64);
        let mut unread = vec![0; period];
        for program in &programs[..period] {
            let fetches = (0..program.structure.len() as u32).map(|index| program.structure.step(index));
            for step in fetches.filter(|step| matches!(step.kind, Kind::Fetch | Kind::FetchReduce)) {
                unread[program.fetched_from[step.peer_index as usize] as usize % period] += 1;
            }
        }
        let publications = |program: &Program| -> Vec<(f64, bool)> {
            let lens =
                program.structure.publications.iter().map(|&step| f64::from(program.lens[step as usize]) * element);
            lens.zip(program.structure.is_for_one.iter().copied()).collect()
        };
        let sends = programs.iter().any(|program| program.sent > 0);
        let for_one = |program: &Program| match sends {
            true => {
                publications(program).into_iter().filter(|(_, is_for_one)| *is_for_one).map(|(bytes, _)| bytes).sum()
            }
            false => 0.0,
        };
        let for_one: Vec<f64> = programs[..period].iter().map(for_one).collect();
        let largest = |(program, for_one): (&Program, &f64)| {
            let lens = publications(program).into_iter().map(|(bytes, _)| bytes);
            lens.fold(*for_one, f64::max)
        };
        let largest: Vec<f64> = programs[..period].iter().zip(&for_one).map(largest).collect();
        // Nothing is awaited where all publications are by value.
        for ((unread, largest), program) in unread.iter_mut().zip(&largest).zip(programs) {
            *unread *= usize::from(!costs.is_by_value(*largest, is_alone(program)));
        }
        Self {
            costs,
            domains: options.domains,
            gamma: options.network.gamma,
            element,
            period,
            for_one,
            made: QuickMap::default(),
            waiting: QuickMap::default(),
            unread,
            largest,
            read: vec![0; period],
            awaits: vec![None; period],
        }
    }

    /// Picoseconds of CPU time for a publication or a fetch of `len` elements by `rank`.
    pub fn duration(&self, programs: &[Program], rank: usize, step: Step, len: u32) -> u64 {
        let bytes = f64::from(len) * self.element;
        let seconds = match step.kind {
            Kind::Publish => {
                let of = self.length(programs, rank, step.channel).max(bytes);
                self.costs.publish(of, is_alone(&programs[rank])) * if of > 0.0 { bytes / of } else { 0.0 }
            }
            kind => {
                let publisher = self.publisher(programs, rank, step);
                let of = self.length(programs, publisher, step.channel);
                let reducing = if kind == Kind::FetchReduce { self.gamma * bytes } else { 0.0 };
                self.costs.fetch(of, bytes, self.is_far(rank, publisher)) + reducing
            }
        };
        picoseconds(seconds)
    }

    /// The length by which is decided how a publication is made. Between hosts, those for one rank each are copies as
    /// long as there is room for all of them.
    fn length(&self, programs: &[Program], rank: usize, number: u32) -> f64 {
        let (program, number) = (&programs[rank], number as usize);
        let own = f64::from(program.lens[program.structure.publications[number] as usize]) * self.element;
        if program.structure.is_for_one[number] { own.max(self.for_one[rank]) } else { own }
    }

    /// When what a fetch reads becomes visible, with the longest chain of messages to it; `None` if it has not been
    /// published. The fetch is then returned by [`Memory::done`].
    pub fn published(
        &mut self,
        programs: &[Program],
        rank: usize,
        step: Step,
        index: u32,
    ) -> Result<Option<(u64, u32)>> {
        let from = self.publisher(programs, rank, step);
        if step.channel as usize >= programs[from].structure.publications.len() {
            let number = step.channel;
            return Err(refuse(format!(
                "rank {rank} fetches publication {number} of rank {from}, which never publishes it"
            )));
        }
        let key = (from as u32, step.channel);
        let known = self.made.get(&key).copied();
        if known.is_none() {
            self.waiting.entry(key).or_default().push((rank, index));
        }
        Ok(known.map(|(time, chain)| (time + self.signal(rank, from), chain)))
    }

    fn is_far(&self, rank: usize, other: usize) -> bool {
        self.domains.get(rank) != self.domains.get(other)
    }

    fn signal(&self, rank: usize, other: usize) -> u64 {
        picoseconds(self.costs.access(self.is_far(rank, other)).signal)
    }

    /// When the readers of `rank` were seen to be done, for its step `index`.
    pub fn readers_done(&mut self, rank: usize, index: u32) -> Option<(u64, u32)> {
        self.awaits[rank] = Some(index);
        (self.unread[rank] == 0).then_some((self.read[rank], 0))
    }

    /// A publication or a fetch is done: returns the steps that waited for it, with the time at which they know.
    pub fn done(
        &mut self,
        programs: &[Program],
        rank: usize,
        step: Step,
        chain: u32,
        now: u64,
    ) -> Vec<(usize, u32, u64)> {
        match step.kind {
            Kind::Publish => {
                let key = (rank as u32, step.channel);
                self.made.insert(key, (now, chain));
                let waiting = self.waiting.remove(&key).unwrap_or_default();
                waiting.into_iter().map(|(reader, index)| (reader, index, now + self.signal(reader, rank))).collect()
            }
            Kind::AwaitReaders => Vec::new(),
            _ => {
                let from = self.publisher(programs, rank, step);
                if self.unread[from] == 0 {
                    return Vec::new();
                }
                self.unread[from] -= 1;
                let notice = self.costs.readers(self.largest[from], self.is_far(rank, from), is_alone(&programs[from]));
                self.read[from] = self.read[from].max(now + picoseconds(notice));
                let last = self.awaits[from].filter(|_| self.unread[from] == 0);
                last.map(|index| (from, index, self.read[from])).into_iter().collect()
            }
        }
    }

    /// The simulated rank from which a step fetches: ranks of one host are simulated together or not at all.
    fn publisher(&self, programs: &[Program], rank: usize, step: Step) -> usize {
        programs[rank].fetched_from[step.peer_index as usize] as usize % self.period
    }
}
