//! The schedules of all ranks as one list of steps over one flat memory, after checks of their form.

use std::ops::Range;

use super::tables::Tables;
use super::{Contract, Traffic, wrong};
use crate::error::Result;
use crate::schedule::{Action, Buffer, Schedule, Side, Span};
use crate::types::Rank;

/// The operation of a step on each of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Recv,
    RecvReduce(Side),
    Copy,
    Reduce,
    Divide(u32),
    Publish,
    Fetch,
    FetchReduce(Side),
    AwaitReaders,
}

impl Kind {
    /// Whether the step is executed whole.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Publish | Self::Fetch | Self::FetchReduce(_) | Self::AwaitReaders)
    }
}

/// No address, or no step.
pub(super) const NONE: u32 = u32::MAX;

/// A step with addresses in the flat memory. There are millions of them, so they are small.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlatStep {
    pub rank: u32,
    pub kind: Kind,
    /// [`Action::progress`].
    pub len: u32,
    /// Addresses, or [`NONE`].
    pub reads: [u32; 2],
    pub write: u32,
    /// The other end of a message: index in [`Program::steps`].
    pub peer: u32,
    /// What a fetch reads of another rank's memory.
    pub fetched: u32,
    /// Index of its first dependency in [`Program::dependencies`]; the next step's first is the end.
    after: u32,
}

/// A dependency.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    /// Index in [`Program::steps`].
    pub step: u32,
    pub shift: i32,
}

/// A caller's buffer, or a rank's scratch memory, in the flat memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub rank: Rank,
    pub buffer: Buffer,
    pub start: usize,
    pub len: usize,
}

/// One end of a message whose other end has not been found yet.
#[derive(Clone, Copy)]
struct End {
    peer: u32,
    step: u32,
}

#[derive(Default)]
pub(super) struct Program {
    pub ranks: usize,
    pub steps: Vec<FlatStep>,
    dependencies: Vec<Before>,
    /// The range of each rank's steps.
    pub of_rank: Vec<Range<usize>>,
    pub regions: Vec<Region>,
    /// Size of the flat memory in elements.
    pub memory: usize,
    /// Traffic of each rank.
    pub traffic: Vec<Traffic>,
    /// The messages sent to each receiver, by sender.
    sends: Vec<Vec<End>>,
    /// The messages that each receiver receives, in the order of its steps.
    receives: Vec<Vec<End>>,
    pub tables: Tables,
}

impl Program {
    pub fn new(ranks: usize) -> Self {
        let tables = Tables::new(ranks);
        Self { ranks, sends: vec![Vec::new(); ranks], receives: vec![Vec::new(); ranks], tables, ..Self::default() }
    }

    /// Adds the schedule of the next rank.
    pub fn add(&mut self, schedule: &Schedule, contract: &dyn Contract) -> Result<()> {
        let rank = self.of_rank.len();
        if rank == self.ranks {
            return Err(wrong(format!("more than {} schedules for {0} ranks", self.ranks)));
        }
        let regions = self.regions.len();
        self.add_regions(rank, schedule, contract)?;
        let first = self.steps.len();
        let mut channels = vec![[0; 2]; self.ranks];
        for (index, step) in schedule.steps.iter().enumerate() {
            let action = step.action;
            let error = |what: String| wrong(format!("rank {rank}, step {index} ({action:?}): {what}"));
            self.tables.add(rank, self.steps.len() as u32, step).map_err(error)?;
            let after = self.dependencies.len() as u32;
            for dependency in &step.after {
                if dependency.step as usize >= index {
                    return Err(error(format!("waits for step {}, which is not before it", dependency.step)));
                }
                // Progress and lengths have at most 31 bits, so clamping a shift does not change its meaning.
                let shift = dependency.shift.clamp(i32::MIN as isize, i32::MAX as isize) as i32;
                self.dependencies.push(Before { step: first as u32 + dependency.step, shift });
            }
            if let Some(peer) = action.destination().or(action.source()) {
                let outgoing = action.destination().is_some();
                if peer >= self.ranks || peer == rank {
                    return Err(error(format!("rank {peer} is not a valid peer")));
                }
                let channel = &mut channels[peer][usize::from(outgoing)];
                if step.channel != *channel {
                    return Err(error(format!("channel {} where {channel} is next", step.channel)));
                }
                *channel += 1;
                let (ends, other) =
                    if outgoing { (&mut self.sends[peer], rank) } else { (&mut self.receives[rank], peer) };
                ends.push(End { peer: other as u32, step: self.steps.len() as u32 });
            }
            let locate = |span: Option<Span>| match span {
                Some(span) if span.len > 0 || !action.is_shared() => {
                    locate(&self.regions[regions..], span).map_err(error)
                }
                _ => Ok(NONE),
            };
            let [first_read, second_read] = action.reads();
            let flat = FlatStep {
                rank: rank as u32,
                kind: kind(&action),
                len: 0,
                reads: [locate(first_read)?, locate(second_read)?],
                write: locate(action.writes())?,
                peer: NONE,
                fetched: NONE,
                after,
            };
            check_spans(&action).map_err(error)?;
            self.steps.push(FlatStep { len: action.progress() as u32, ..flat });
        }
        if self.steps.len().max(self.dependencies.len()) >= NONE as usize {
            return Err(wrong("too many steps to verify".into()));
        }
        self.of_rank.push(first..self.steps.len());
        self.traffic.push(Traffic {
            messages: schedule.messages_sent(),
            elements: schedule.elements_sent(),
            scratch: schedule.scratch,
        });
        Ok(())
    }

    fn add_regions(&mut self, rank: Rank, schedule: &Schedule, contract: &dyn Contract) -> Result<()> {
        let inputs = (0..).map_while(|i| contract.len(rank, Buffer::Input(i)).map(|len| (Buffer::Input(i), len)));
        let outputs = (0..).map_while(|i| contract.len(rank, Buffer::Output(i)).map(|len| (Buffer::Output(i), len)));
        for (buffer, len) in inputs.chain(outputs).chain([(Buffer::Scratch, schedule.scratch)]) {
            self.regions.push(Region { rank, buffer, start: self.memory, len });
            self.memory = self.memory.saturating_add(len);
        }
        if self.memory > i32::MAX as usize {
            return Err(wrong(format!("rank {rank}, buffers: too many elements to verify")));
        }
        Ok(())
    }

    /// Matches the two ends of each message, after all ranks have been added.
    pub fn connect(&mut self) -> Result<()> {
        let (all_sent, all_received) = (std::mem::take(&mut self.sends), std::mem::take(&mut self.receives));
        for (to, (sent, mut received)) in all_sent.into_iter().zip(all_received).enumerate() {
            // The n-th send matches the n-th receive; the messages of each rank are already in order.
            received.sort_by_key(|end| end.peer);
            let (mut sent, mut received) = (sent.into_iter().peekable(), received.into_iter().peekable());
            let (mut from, mut message) = (NONE, 0);
            loop {
                let next = match (sent.peek(), received.peek()) {
                    (None, None) => break,
                    (s, r) => s.map_or(NONE, |end| end.peer).min(r.map_or(NONE, |end| end.peer)),
                };
                message = if next == from { message + 1 } else { 0 };
                from = next;
                match (sent.next_if(|end| end.peer == from), received.next_if(|end| end.peer == from)) {
                    (Some(send), Some(recv)) => self.join(send.step, recv.step, message)?,
                    (Some(_), None) => {
                        let what = format!("rank {from} sends message {message} to rank {to}, which never receives it");
                        return Err(wrong(what));
                    }
                    _ => {
                        let what =
                            format!("rank {to} receives message {message} from rank {from}, which never sends it");
                        return Err(wrong(what));
                    }
                }
            }
        }
        Ok(())
    }

    fn join(&mut self, send: u32, recv: u32, message: usize) -> Result<()> {
        let (sender, receiver) = (self.steps[send as usize], self.steps[recv as usize]);
        if sender.len != receiver.len {
            return Err(wrong(format!(
                "message {message} from rank {} to rank {}: {} elements sent, {} received",
                sender.rank, receiver.rank, sender.len, receiver.len
            )));
        }
        self.steps[send as usize].peer = recv;
        self.steps[recv as usize].peer = send;
        Ok(())
    }

    /// The dependencies of step `index`.
    pub fn after(&self, index: usize) -> &[Before] {
        let end = self.steps.get(index + 1).map_or(self.dependencies.len(), |next| next.after as usize);
        &self.dependencies[self.steps[index].after as usize..end]
    }

    /// How many elements `before` must have finished before a step processes its first `progress` elements.
    pub fn required(&self, before: &Before, progress: u32) -> u32 {
        let len = self.steps[before.step as usize].len;
        (i64::from(progress) + i64::from(before.shift)).clamp(0, i64::from(len)) as u32
    }

    /// The start of each buffer in the flat memory.
    pub fn begins(&self) -> impl Iterator<Item = usize> {
        self.regions.iter().map(|region| region.start)
    }

    /// The name of a step in error messages.
    pub fn name(&self, step: usize) -> String {
        let FlatStep { rank, kind, peer, len, .. } = self.steps[step];
        let index = step - self.of_rank[rank as usize].start;
        let peer = self.steps.get(peer as usize).map_or(String::new(), |peer| format!(" with rank {}", peer.rank));
        format!("rank {rank}, step {index} ({kind:?}{peer}, {len} elements)")
    }

    /// The name of an address in error messages.
    pub fn address_name(&self, address: usize) -> String {
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
        Action::Publish { .. } => Kind::Publish,
        Action::Fetch { .. } => Kind::Fetch,
        Action::FetchReduce { incoming, .. } => Kind::FetchReduce(incoming),
        Action::AwaitReaders => Kind::AwaitReaders,
    }
}

fn locate(regions: &[Region], span: Span) -> Result<u32, String> {
    let region = regions.iter().find(|region| region.buffer == span.buffer);
    let region = region.ok_or_else(|| format!("there is no {:?}", span.buffer))?;
    match span.offset.checked_add(span.len) {
        Some(end) if end <= region.len => Ok((region.start + span.offset) as u32),
        _ => Err(format!("{span:?} ends after the buffer's {} elements", region.len)),
    }
}

/// Checks conditions within a step on which the engine relies.
fn check_spans(action: &Action) -> Result<(), String> {
    let len = action.elements();
    if action.progress() == 0 {
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
