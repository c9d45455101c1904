//! The steps on shared memory of a call that also sends messages, which the engine executes in the order of the list, beside its
//! messages. Where one of them must wait for a peer, whoever progresses the context looks for what it needs. Publications that are streams
//! are written on at the same time: whatever the next step waits for, also for messages, peers may wait for them.

use super::program::Program;
use super::run::Start;
use super::{Call, Refused, Shared, Wait, Work};
use crate::engine::execution::too_slow;
use crate::error::Result;
use crate::schedule::weights::Weights;
use crate::schedule::{Action, Readers, Schedule, Step};
use crate::transport::board::Members;
use crate::types::Rank;
use crate::wire::fingerprint::number;

/// The steps on shared memory of a schedule, compiled.
#[derive(Debug)]
pub struct SharedSteps {
    /// One operation for each of them; its ranks are members.
    pub program: Program,
    /// The steps' indices in the schedule.
    steps: Box<[u32]>,
}

impl SharedSteps {
    /// Compiles those of `schedule`, whose reductions have these `weights`, if they compute means, for a rank of a host with the ranks
    /// `members`, in ascending order. `None` if it has none.
    pub fn new(schedule: &Schedule, weights: &[Weights], members: &[Rank]) -> Option<Self> {
        let member = |rank: u32| members.binary_search(&(rank as Rank)).ok().map(|member| member as u32);
        let (mut own, mut steps, mut own_weights) = (Schedule::default(), Vec::new(), Vec::new());
        for (index, step) in schedule.steps.iter().enumerate().filter(|(_, step)| step.action.is_shared()) {
            let action = match step.action {
                Action::Publish { to: Readers::One(rank), from } => {
                    Action::Publish { to: Readers::One(member(rank)?), from }
                }
                Action::Publish { to: Readers::Set(set), from } => {
                    let ranks = (0..u64::BITS).filter(|rank| set >> rank & 1 != 0);
                    let readers = ranks.map(|rank| member(rank).map(|member| member as Rank));
                    Action::Publish { to: Readers::set(readers.collect::<Option<Vec<_>>>()?), from }
                }
                Action::Fetch { from, publication, at, into } => {
                    Action::Fetch { from: member(from)?, publication, at, into }
                }
                Action::FetchReduce { from, publication, at, into, with, incoming } => {
                    Action::FetchReduce { from: member(from)?, publication, at, into, with, incoming }
                }
                other => other,
            };
            own.steps.push(Step { action, channel: step.channel, after: Vec::new() });
            steps.push(index as u32);
            own_weights.extend(weights.get(index));
        }
        let mut program = Program::new(&own, &own_weights, members.len(), false)?;
        // Streams are for ranks that cannot read each other's memory: a rank that waits for messages does not write on meanwhile.
        program.streams = false;
        debug_assert_eq!(program.ops.len(), steps.len(), "one operation for each step");
        Some(Self { program, steps: steps.into() })
    }
}

/// The steps on shared memory of a call in progress. All methods are called with the same work. Ends by [`Part::end`] or
/// [`Part::withdraw`].
pub struct Part {
    call: Call,
    /// What its next step waits for.
    wait: Option<Wait>,
    /// Whether peers may not know of the last steps.
    unannounced: bool,
    /// See [`Part::awaited`].
    awaited: Members,
}

impl Part {
    /// Starts the steps of a call for which [`Shared::claim`] has succeeded.
    pub fn start(work: &Work<'_>, fingerprint: u64) -> std::result::Result<Self, Refused> {
        if work.binding.counted && number(fingerprint) == 0 {
            return Err(Refused::Uncounted);
        }
        Ok(Self { call: Call::join(work, fingerprint)?, wait: None, unannounced: false, awaited: 0 })
    }

    /// The index of the step that is executed next, unless it waits.
    pub fn next(&self, steps: &SharedSteps) -> Option<u32> {
        steps.steps.get(self.call.next).copied().filter(|_| self.wait.is_none())
    }

    /// Executes the next step. Returns whether it is done; otherwise it waits. Fails if `is_late` while it waits for nobody.
    pub fn execute(&mut self, work: &Work<'_>, is_late: impl Fn() -> bool) -> Result<bool> {
        self.wait = self.call.execute_next(work)?;
        while self.wait == Some(Wait::Clock) {
            if is_late() {
                return Err(too_slow());
            }
            self.wait = self.call.execute_next(work)?;
        }
        self.unannounced |= self.wait.is_none();
        Ok(self.wait.is_none())
    }

    /// Lets peers know what this rank has published, and what it does not read any more.
    pub fn announce(&mut self, work: &Work<'_>) {
        if std::mem::take(&mut self.unannounced) {
            self.call.acknowledge_finished(work);
        } else {
            self.call.announce(work);
        }
    }

    /// Whether it waits for peers: the next step, or a stream.
    pub fn waits(&self) -> bool {
        self.wait.is_some() || self.call.is_writing()
    }

    /// The members for which it waits, if others than at the last time, or since [`Part::look`] has found something: that for which the
    /// next step waits, and those that delay streams. If one of these ends, it may be that nobody else waits for it.
    pub fn awaited(&mut self, work: &Work<'_>) -> Option<Members> {
        let of_step = self.wait.and_then(Wait::member).map_or(0, |member| 1 << member);
        let awaited = of_step | self.call.laggards(work);
        (std::mem::replace(&mut self.awaited, awaited) != awaited).then_some(awaited)
    }

    /// Looks for what the next step waits for, which then waits no more, and writes streams on. Looks everywhere, since whoever looked in
    /// vain may sleep. Returns whether anything was found or written.
    pub fn look(&mut self, work: &Work<'_>) -> bool {
        let found = match self.wait {
            Some(wait) => {
                self.call.look_around(work, wait);
                self.call.is_ready(work, wait)
            }
            None => self.call.write_streams(work),
        };
        if found {
            (self.wait, self.awaited) = (None, 0);
        }
        found
    }

    /// The memory that the call keeps aside.
    pub fn scratch(&self) -> *mut u8 {
        self.call.scratch
    }

    /// Ends a call of which all steps are done.
    pub fn end(mut self, shared: &Shared) {
        self.call.end(shared);
    }

    /// Ends a call that fails.
    pub fn withdraw(mut self, shared: &Shared) {
        self.call.withdraw(shared);
    }
}

impl Call {
    /// Starts the steps on shared memory of a call that also sends messages, and for which [`Shared::claim`] has succeeded.
    /// `work` has the program of these steps.
    fn join(work: &Work<'_>, fingerprint: u64) -> std::result::Result<Self, Refused> {
        let Work { shared, plan, binding, .. } = *work;
        let start = Start::new(work);
        let mut call = {
            let state = &mut *shared.state();
            let entry = state.calls.begin(&mut state.desk, start.line).map_err(Refused::Running)?;
            Self::occupy(shared, state, entry, &start, fingerprint, |_| false);
            Self::new((entry, fingerprint))
        };
        if !call.workspace().scratch.reserve(&shared.kept, plan.scratch, binding.element) {
            call.withdraw(shared);
            return Err(Refused::NoMemory);
        }
        call.scratch = call.workspace().scratch.pointer();
        Ok(call)
    }

    /// Executes the next operation, if there is one. Returns what it waits for, or `None` when it is done.
    fn execute_next(&mut self, work: &Work<'_>) -> Result<Option<Wait>> {
        if !self.workspace().seated
            && let Some(wait) = self.sit(work)?
        {
            return Ok(Some(wait));
        }
        work.program.ops.get(self.next).map_or(Ok(None), |op| self.execute(work, op))
    }

    /// Lets peers know what was published, and that this rank does not read any more from those of which it has fetched all.
    fn acknowledge_finished(&mut self, work: &Work<'_>) {
        let (last_fetch, next) = (&work.program.last_fetch, self.next);
        work.shared.board.acknowledge(&mut self.workspace().seat, |member| last_fetch[member] < next);
        work.shared.group.wake_others();
        self.unannounced = false;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::COPIED_BYTES;
    use super::super::program::{MOST_ELEMENT_BYTES, Memory};
    use super::*;
    use crate::collective::{Collective, Shape, Uses};
    use crate::transport::board::CELL_BYTES;

    /// Where no process may read another, every publication is a copy or a stream, and all have room.
    #[test]
    fn each_publication_beside_messages_is_copied_or_has_a_ring() {
        let algorithms =
            || Collective::Allreduce.algorithms().iter().filter(|algorithm| algorithm.uses == Uses::Groups);
        let (mut copied_parts, mut streamed_parts) = (0, 0);
        for (hosts, members) in [(2, 2), (2, 3), (3, 5), (40, 2), (70, 2), (2, 64)] {
            let groups: Vec<u32> = (0..hosts).flat_map(|host| vec![host; members]).collect();
            for (algorithm, rank) in algorithms().flat_map(|algorithm| [0, 1, members].map(|rank| (algorithm, rank))) {
                for (count, element, in_place) in
                    [(COPIED_BYTES, 1, true), (7 * COPIED_BYTES, 8, false), (COPIED_BYTES, MOST_ELEMENT_BYTES, true)]
                {
                    let inputs = usize::from(!in_place);
                    let shape = Shape::new(Collective::Allreduce, rank, groups.len(), count);
                    let shape = Shape { groups: &groups, shared: true, inputs, ..shape };
                    let schedule = (algorithm.generate)(&shape).unwrap();
                    let first = rank / members * members;
                    let here: Vec<Rank> = (first..first + members).collect();
                    let Some(steps) = SharedSteps::new(&schedule, &[], &here) else { continue };
                    let Memory { room, copied, ring } = steps.program.memory(element, false);
                    let lens = || steps.program.published.iter().map(|len| len * element);
                    let taken: usize = lens().map(|bytes| if bytes <= copied { bytes } else { ring }).sum();
                    let is_streamed = lens().any(|bytes| bytes > copied);
                    assert!(taken <= room && room <= CELL_BYTES, "{}: {taken} of {room}", algorithm.name);
                    assert!(ring > 0 || !is_streamed, "{} of {count} elements of {element}", algorithm.name);
                    assert_eq!(steps.program.memory(element, true).ring, 0, "others read it where it is");
                    copied_parts += usize::from(!is_streamed);
                    streamed_parts += usize::from(is_streamed);
                }
            }
        }
        assert!(copied_parts > 20 && streamed_parts > 50, "{copied_parts}, {streamed_parts}");
    }
}
