//! The schedules of all ranks as one list of steps over one flat memory, their form checked.

use std::collections::HashMap;
use std::ops::Range;

use super::{Contract, wrong};
use crate::error::Result;
use crate::schedule::{Action, Buffer, Schedule, Side, Span};
use crate::types::Rank;

/// What a step does to each of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Recv,
    RecvReduce(Side),
    Copy,
    Reduce,
    Divide(u32),
}

/// A step with places in the flat memory.
#[derive(Clone, Debug)]
pub(super) struct FlatStep {
    pub rank: Rank,
    pub index: usize,
    pub kind: Kind,
    pub len: usize,
    pub reads: [Option<usize>; 2],
    pub write: Option<usize>,
    /// The other end, for messages: index in [`Program::steps`].
    pub peer: Option<usize>,
    /// What must be finished first: index in [`Program::steps`], shift.
    pub after: Vec<(usize, isize)>,
}

/// A caller's buffer, or a rank's scratch, in the flat memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub rank: Rank,
    pub buffer: Buffer,
    pub start: usize,
    pub len: usize,
}

pub(super) struct Program {
    pub ranks: usize,
    pub steps: Vec<FlatStep>,
    /// By rank: where its steps are.
    pub of_rank: Vec<Range<usize>>,
    pub regions: Vec<Region>,
    /// Elements of the flat memory.
    pub memory: usize,
}

impl Program {
    pub fn new(schedules: &[Schedule], contract: &dyn Contract) -> Result<Self> {
        let mut program =
            Self { ranks: schedules.len(), steps: Vec::new(), of_rank: Vec::new(), regions: Vec::new(), memory: 0 };
        let mut sends = HashMap::new();
        let mut receives = HashMap::new();
        for (rank, schedule) in schedules.iter().enumerate() {
            let regions = program.add_regions(rank, schedule, contract);
            let first = program.steps.len();
            let mut counters = HashMap::new();
            for (index, step) in schedule.steps.iter().enumerate() {
                let place = |what: String| format!("rank {rank}, step {index} ({:?}): {what}", step.action);
                let action = step.action;
                let after = step.after.iter().map(|d| {
                    if d.step as usize >= index {
                        return Err(wrong(place(format!("waits for step {}, which is not before it", d.step))));
                    }
                    Ok((first + d.step as usize, d.shift))
                });
                let end = action.destination().map(|to| (to, true)).or(action.source().map(|from| (from, false)));
                if let Some((peer, outgoing)) = end {
                    if peer >= schedules.len() || peer == rank {
                        return Err(wrong(place(format!("rank {peer} cannot be a peer"))));
                    }
                    let channel = counters.entry((peer, outgoing)).or_insert(0);
                    if step.channel != *channel {
                        return Err(wrong(place(format!("channel {} where {channel} is next", step.channel))));
                    }
                    *channel += 1;
                    let (ends, from, to) =
                        if outgoing { (&mut sends, rank, peer) } else { (&mut receives, peer, rank) };
                    ends.insert((from, to, step.channel), program.steps.len());
                }
                let locate = |span: Span| locate(&regions, span).map_err(|e| wrong(place(e)));
                let step = FlatStep {
                    rank,
                    index,
                    kind: kind(&action),
                    len: action.elements(),
                    reads: [action.reads()[0].map(locate).transpose()?, action.reads()[1].map(locate).transpose()?],
                    write: action.writes().map(locate).transpose()?,
                    peer: None,
                    after: after.collect::<Result<_>>()?,
                };
                check_spans(&action).map_err(|e| wrong(place(e)))?;
                program.steps.push(step);
            }
            program.of_rank.push(first..program.steps.len());
        }
        program.connect(&sends, &receives)?;
        Ok(program)
    }

    fn add_regions(&mut self, rank: Rank, schedule: &Schedule, contract: &dyn Contract) -> HashMap<Buffer, Region> {
        let inputs = (0..).map_while(|i| contract.len(rank, Buffer::Input(i)).map(|len| (Buffer::Input(i), len)));
        let outputs = (0..).map_while(|i| contract.len(rank, Buffer::Output(i)).map(|len| (Buffer::Output(i), len)));
        let mut regions = HashMap::new();
        for (buffer, len) in inputs.chain(outputs).chain([(Buffer::Scratch, schedule.scratch)]) {
            let region = Region { rank, buffer, start: self.memory, len };
            self.memory += len;
            self.regions.push(region);
            regions.insert(buffer, region);
        }
        regions
    }

    /// Makes the two ends of each message know one another.
    fn connect(
        &mut self,
        sends: &HashMap<(Rank, Rank, u32), usize>,
        receives: &HashMap<(Rank, Rank, u32), usize>,
    ) -> Result<()> {
        if let Some((from, to, channel)) = receives.keys().find(|key| !sends.contains_key(key)) {
            return Err(wrong(format!("rank {to} receives message {channel} from rank {from}, which never sends it")));
        }
        for (&(from, to, channel), &send) in sends {
            let Some(&recv) = receives.get(&(from, to, channel)) else {
                return Err(wrong(format!(
                    "rank {from} sends message {channel} to rank {to}, which never receives it"
                )));
            };
            let (sent, received) = (self.steps[send].len, self.steps[recv].len);
            if sent != received {
                return Err(wrong(format!(
                    "message {channel} from rank {from} to rank {to}: {sent} elements sent, {received} received"
                )));
            }
            self.steps[send].peer = Some(recv);
            self.steps[recv].peer = Some(send);
        }
        Ok(())
    }

    /// Names a step in messages.
    pub fn name(&self, step: usize) -> String {
        let FlatStep { rank, index, kind, peer, len, .. } = &self.steps[step];
        let peer = peer.map_or(String::new(), |peer| format!(" with rank {}", self.steps[peer].rank));
        format!("rank {rank}, step {index} ({kind:?}{peer}, {len} elements)")
    }

    /// Names a place of the flat memory in messages.
    pub fn place(&self, address: usize) -> String {
        let at = self.regions.partition_point(|region| region.start + region.len <= address);
        let Region { rank, buffer, start, .. } = self.regions[at];
        format!("rank {rank}, {buffer:?}, element {}", address - start)
    }
}

fn kind(action: &Action) -> Kind {
    match *action {
        Action::Send { .. } => Kind::Send,
        Action::Recv { .. } => Kind::Recv,
        Action::RecvReduce { incoming, .. } => Kind::RecvReduce(incoming),
        Action::Copy { .. } => Kind::Copy,
        Action::Reduce { .. } => Kind::Reduce,
        Action::Divide { by, .. } => Kind::Divide(by),
    }
}

fn locate(regions: &HashMap<Buffer, Region>, span: Span) -> Result<usize, String> {
    let region = regions.get(&span.buffer).ok_or_else(|| format!("there is no {:?}", span.buffer))?;
    match span.offset.checked_add(span.len) {
        Some(end) if end <= region.len => Ok(region.start + span.offset),
        _ => Err(format!("{span:?} ends after the buffer's {} elements", region.len)),
    }
}

/// What the engine relies on within one step.
fn check_spans(action: &Action) -> Result<(), String> {
    let len = action.elements();
    if len == 0 {
        return Err("has no elements".into());
    }
    let Some(into) = action.writes() else { return Ok(()) };
    if matches!(into.buffer, Buffer::Input(_)) {
        return Err("writes an input".into());
    }
    for read in action.reads().into_iter().flatten() {
        if read.len != len {
            return Err(format!("spans of {} and {len} elements", read.len));
        }
        let may_be_same = !matches!(action, Action::Copy { .. });
        if read.overlaps(into) && !(may_be_same && read == into) {
            return Err("reads and writes overlapping spans".into());
        }
    }
    match *action {
        Action::Divide { by: 0, .. } => Err("divides by zero".into()),
        _ => Ok(()),
    }
}
