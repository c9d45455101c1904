//! The steps on shared memory of a schedule that also has messages, compiled.

use super::program::Program;
use crate::schedule::weights::Weights;
use crate::schedule::{Action, Readers, Schedule, Step};
use crate::types::Rank;

/// The steps on shared memory of a schedule, compiled.
#[derive(Debug)]
pub struct SharedSteps {
    /// One operation for each of them; its ranks are members.
    pub program: Program,
    /// The steps' indices in the schedule.
    pub indices: Box<[u32]>,
}

impl SharedSteps {
    /// Compiles those of `schedule`, whose reductions have these `weights`, if they compute means, for a rank of a host
    /// with the ranks `members`, in ascending order. `None` if it has none.
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
        // Streams are for ranks that cannot read each other's memory: a rank that waits for messages does not write on
        // meanwhile.
        program.streams = false;
        debug_assert_eq!(program.ops.len(), steps.len(), "one operation for each step");
        Some(Self { program, indices: steps.into() })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::program::{COPIED_BYTES, MAX_ELEMENT_BYTES, Memory};
    use super::*;
    use crate::collective::{Collective, Shape, Uses};
    use crate::publications::CELL_BYTES;

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
                    [(COPIED_BYTES, 1, true), (7 * COPIED_BYTES, 8, false), (COPIED_BYTES, MAX_ELEMENT_BYTES, true)]
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
