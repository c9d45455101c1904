//! Groups of starts: requests and messages that begin together, or not at all.
//!
//! A group only notes what is to begin. Its end holds the engine's lock while it looks whether all can begin, and while
//! it begins them, so no peer learns of a group that is refused.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::context::Context;
use crate::context::fused::{Fused, together};
use crate::context::operation::Operation;
use crate::context::request::{HasRequest, Joined, Times};
use crate::context::rounds::{Exclusion, admit_all};
use crate::context::run::Run;
use crate::context::unbound_buffer::{HasBuffer, Message};
use crate::engine::Guard;
use crate::engine::shared::Line;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Rank, Slot};

/// Starts of requests and messages of one context. Thread-safe. Dropped before its end, it begins nothing.
pub struct Group {
    context: Arc<Context>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    starts: Starts,
    /// The most bytes of a call that joins several; 0 if none does.
    max_fused_bytes: usize,
    /// Why a start was refused: then none begins.
    refused: Option<Error>,
    has_ended: bool,
}

/// In the order in which they were named.
#[derive(Default)]
struct Starts {
    requests: Vec<(Arc<dyn HasRequest>, Joined)>,
    /// A buffer may be destroyed before the end of the group.
    messages: Vec<(Weak<dyn HasBuffer>, Message<'static>)>,
}

impl Context {
    /// An empty group. The context must be connected when the group ends.
    pub fn group(self: &Arc<Self>) -> Result<Group> {
        self.check_process()?;
        Ok(Group { context: self.clone(), state: Mutex::default() })
    }
}

impl Group {
    /// The context of what it starts.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Runs `name`, which names a start. If that fails, the end of the group does.
    pub fn naming<R>(&self, name: impl FnOnce() -> Result<R>) -> Result<R> {
        name().inspect_err(|error| {
            self.state().refused.get_or_insert_with(|| error.clone());
        })
    }

    /// Adds the start of an inactive request of this context, which may run beside others of its collective and tag. It
    /// takes part in no other call until the group has ended.
    pub fn start(&self, own: Arc<dyn HasRequest>) -> Result<()> {
        let mut state = self.open()?;
        let request = own.request();
        if !Arc::ptr_eq(request.context(), &self.context) {
            return Err(other_context("request"));
        }
        let joined = request.join()?;
        state.starts.requests.push((own, joined));
        Ok(())
    }

    /// At the end, allreduces that follow each other on one tag are executed as one of at most `max_bytes`, where that gives
    /// the same bits. The same on all ranks, as the allreduces of the group are then.
    pub fn fuse(&self, max_bytes: usize) -> Result<()> {
        self.open()?.max_fused_bytes = max_bytes;
        Ok(())
    }

    /// Adds a send, see [`UnboundBuffer::send`](super::UnboundBuffer::send).
    pub fn send(&self, own: &Arc<dyn HasBuffer>, to: Rank, slot: Slot, offset: usize, bytes: usize) -> Result<()> {
        self.add(own, own.buffer().message_to(to, slot, offset, bytes)?)
    }

    /// Adds a receive, see [`UnboundBuffer::recv`](super::UnboundBuffer::recv).
    pub fn recv(&self, own: &Arc<dyn HasBuffer>, from: &[Rank], slot: Slot, offset: usize, bytes: usize) -> Result<()> {
        self.add(own, own.buffer().message_from(from, slot, offset, bytes)?)
    }

    fn add(&self, own: &Arc<dyn HasBuffer>, message: Message<'_>) -> Result<()> {
        let mut state = self.open()?;
        if !Arc::ptr_eq(own.buffer().context(), &self.context) {
            return Err(other_context("buffer"));
        }
        state.starts.messages.push((Arc::downgrade(own), message.into_owned()));
        Ok(())
    }

    /// Begins all that was named, and waits for nobody but, with `check_calls`, for the groups of the other ranks. If
    /// it fails, nothing has begun, and the requests are inactive; or memory has run out, and the context is broken.
    pub fn end(&self) -> Result<()> {
        let mut state = self.open()?;
        state.has_ended = true;
        let (mut starts, refused) = (std::mem::take(&mut state.starts), state.refused.take());
        let max_fused_bytes = state.max_fused_bytes;
        drop(state);
        // One order for all ranks with the same group, whatever order they have named them in: comparisons of calls
        // need it, and so do more long calls than have shared memory at a time. Those of one line keep theirs.
        starts.requests.sort_by_key(|(own, _)| own.request().line());
        match refused {
            None => starts.begin(&self.context, max_fused_bytes),
            Some(error) => {
                starts.give_up();
                Err(error.context("a start of this group was refused, so none has begun"))
            }
        }
    }

    fn open(&self) -> Result<MutexGuard<'_, State>> {
        self.context.check_process()?;
        let state = self.state();
        if state.has_ended {
            return Err(Error::new(ErrorKind::InvalidOperation, "the group has ended"));
        }
        Ok(state)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Without its lock, which another thread may have had when a child was forked.
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).starts.give_up();
    }
}

#[cold]
fn other_context(what: &str) -> Error {
    Error::invalid(format!("the {what} is of another context than the group"))
}

#[cold]
fn gone(what: &str, how: &str) -> Error {
    let text = format!("a {what} of this group was {how}, so none of its starts has begun");
    Error::new(ErrorKind::InvalidOperation, text)
}

fn give_up(requests: &[(Arc<dyn HasRequest>, Joined)]) {
    let entered = requests.iter().filter(|(own, _)| own.request().enter_group());
    entered.for_each(|(own, joined)| own.request().leave_group(*joined));
}

impl Starts {
    /// The requests are what they were before they joined the group.
    fn give_up(&self) {
        give_up(&self.requests);
    }

    fn begin(&self, context: &Arc<Context>, max_fused_bytes: usize) -> Result<()> {
        let entered = self.requests.iter().take_while(|(own, _)| own.request().enter_group()).count();
        let (entered, others) = self.requests.split_at(entered);
        let begun = if others.is_empty() {
            self.begin_entered(context, max_fused_bytes)
        } else {
            Err(gone("request", "freed"))
        };
        if begun.is_err() {
            entered.iter().for_each(|(own, joined)| own.request().leave_group(*joined));
            give_up(others);
        }
        begun
    }

    fn begin_entered(&self, context: &Arc<Context>, max_fused_bytes: usize) -> Result<()> {
        let buffers = self.messages.iter().map(|(own, _)| own.upgrade());
        let buffers = buffers.collect::<Option<Vec<_>>>().ok_or_else(|| gone("buffer", "destroyed"))?;
        self.requests.iter().try_for_each(|(own, _)| own.request().stage())?;
        let units = self.units(context, max_fused_bytes)?;
        let now = context.engine().now();
        let mut runs: Vec<Run<'_>> = units.iter().map(|unit| unit.run_from(now)).collect();
        let compared = compare_all(context, &mut runs)?;
        let admitted = admit_all(&runs)?;
        let (mut guard, lines) = reserve(context, &runs)?;
        let mut begun = Vec::with_capacity(self.requests.len());
        for (run, unit) in runs.iter().zip(&units) {
            match unit.begin_in(&mut guard, run, &mut begun) {
                Ok(()) => {}
                Err(error) => {
                    guard.end_reservation(&lines);
                    let error = run.refused(guard, &error);
                    drop((admitted, compared));
                    self.end_early(begun);
                    return Err(error);
                }
            }
        }
        let messages = buffers.iter().zip(&self.messages);
        let after: Vec<_> =
            messages.filter_map(|(own, (_, message))| own.buffer().post_counted(&mut guard, message)).collect();
        guard.end_reservation(&lines);
        context.engine().leave(guard);
        drop((admitted, compared));
        after.iter().for_each(|after| after.wake());
        begun.into_iter().zip(&self.requests).for_each(|((operation, times), (own, joined))| {
            own.request().activate(operation, times, *joined);
        });
        Ok(())
    }

    /// The calls that are executed.
    fn units(&self, context: &Arc<Context>, max_fused_bytes: usize) -> Result<Vec<Unit<'_>>> {
        if max_fused_bytes == 0 {
            return Ok(self
                .requests
                .iter()
                .map(|own| Unit { requests: std::slice::from_ref(own), fused: None })
                .collect());
        }
        let part = |(own, _): &(Arc<dyn HasRequest>, Joined)| {
            let text = "a group that fuses takes no allreduces of several inputs or outputs";
            own.request().part().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, text))
        };
        let parts = self.requests.iter().map(part).collect::<Result<Vec<_>>>()?;
        let unit = |range: Range<usize>| {
            // SAFETY: by the contract of `Context::request`, the inputs are valid from the end of the group on.
            let fused = (range.len() > 1).then(|| unsafe { Fused::new(context, &parts[range.clone()]) });
            Ok(Unit { requests: &self.requests[range], fused: fused.transpose()? })
        };
        together(context, &parts, max_fused_bytes).into_iter().map(unit).collect()
    }

    /// Ends what has begun on a context that is broken since.
    #[cold]
    fn end_early(&self, begun: Vec<(Operation, Times)>) {
        for ((operation, times), (own, _)) in begun.into_iter().zip(&self.requests) {
            own.request().end_early(operation, times);
        }
    }
}

/// A call that is executed, for one request or for several.
struct Unit<'a> {
    requests: &'a [(Arc<dyn HasRequest>, Joined)],
    fused: Option<Arc<Fused>>,
}

impl Unit<'_> {
    fn run_from(&self, now: Instant) -> Run<'_> {
        match &self.fused {
            Some(fused) => fused.run_from(now),
            None => self.requests[0].0.request().run_from(now),
        }
    }

    /// Begins `run`, and adds to `begun` what each request has of it.
    fn begin_in(&self, guard: &mut Guard<'_>, run: &Run<'_>, begun: &mut Vec<(Operation, Times)>) -> Result<()> {
        let Some(fused) = &self.fused else {
            begun.push((self.requests[0].0.request().begin_in(guard, run)?, Times::of(run)));
            return Ok(());
        };
        fused.begin(guard, run)?;
        let mut at = 0;
        for (own, _) in self.requests {
            own.request().has_begun(run);
            begun.push((Operation::Fused(fused.clone(), at), Times::of(run)));
            at += own.request().bytes();
        }
        fused.tell(guard);
        Ok(())
    }
}

/// The lock, if all of these calls can begin: until [`Core::end_reservation`](crate::engine::Core::end_reservation) of
/// the returned lines, nothing excludes them.
fn reserve<'a>(context: &'a Context, runs: &[Run<'_>]) -> Result<(Guard<'a>, Vec<(Line, u64)>)> {
    let mut guard = context.lock()?;
    let lines: Vec<_> = runs.iter().map(|run| ((run.binding.call.kind(), run.binding.tag), run.call.digest)).collect();
    let unconnected = context.unconnected(&guard).map(|error| (0, error));
    let refused = unconnected.or_else(|| guard.reserve(&lines).err());
    match refused {
        None => Ok((guard, lines)),
        Some((at, error)) => Err(match runs.get(at) {
            Some(run) => run.refused(guard, &error),
            None => error.context(context.own()),
        }),
    }
}

/// Compares the calls of a group on `context`, if its options ask for it: they are in the order of their tags. What is
/// returned excludes other operations on the tags of these calls until they have begun.
fn compare_all<'a>(context: &'a Context, runs: &mut [Run<'_>]) -> Result<Vec<(u64, Exclusion<'a>)>> {
    let mut exclusions = Vec::new();
    if !context.compares_calls() {
        return Ok(exclusions);
    }
    for run in runs {
        let last = exclusions.last().map(|(tag, _)| *tag);
        if last == Some(run.binding.tag) {
            run.is_round = true;
        } else if let Some(exclusion) = Exclusion::begin(context, run)? {
            exclusions.push((run.binding.tag, exclusion));
        }
        run.compare()?;
    }
    Ok(exclusions)
}
