//! Executes schedules over any links, and queues the completions of buffers' operations.
//!
//! One lock guards the state of a context. The thread that waits does the work: it polls the links and progresses all
//! operations of the context, its own and those of other threads. Other waiting threads sleep until they are notified.
//! If no thread waits, the device progresses the context; see [`Watch`](crate::transport::Watch).

mod agreements;
mod alone;
pub mod cache;
pub mod completion_queue;
pub mod errors;
pub mod execution;
mod failures;
mod functions;
mod lines;
#[cfg(all(test, loom))]
mod model;
mod numbers;
mod operation;
mod operations;
mod other_calls;
mod oversubscription;
pub mod plan;
pub mod prepared;
mod progress;
pub mod ready;
pub mod recorder;
pub mod requests;
pub mod scratch;
pub mod shared;
mod spin;
mod sync;
// Its threads are not loom's.
#[cfg(all(test, not(loom)))]
mod tests;
mod waiters;

pub use execution::Reduction;
pub use functions::FunctionCall;
pub use prepared::{Binding, Combine, Prepared, UserFunction};
pub use progress::{Engine, Guard};
pub use spin::{Cores, Idle, Spin};
pub use sync::Waker;

use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::agreement::Agreement;
use crate::engine::errors::already_running;
use crate::engine::lines::Lines;
use crate::engine::numbers::Numbers;
use crate::engine::operation::Operation;
use crate::engine::operations::Operations;
use crate::engine::prepared::Identity;
use crate::engine::ready::{OnEnd, OnTime};
use crate::engine::recorder::{Awaited, Link, Recorder, Run};
use crate::engine::requests::Requests;
use crate::engine::scratch::{Kept, Scratch};
use crate::engine::shared::{Line, Progress, Shared};
use crate::engine::waiters::Waiters;
use crate::error::{Error, ErrorKind, Result};
use crate::messaging::{Event, Messenger, Outcome, Token};
use crate::publications::Members;
use crate::transport::Clock;
use crate::wire::fingerprint::fingerprint;

/// Token owners from this number on are buffers, lower ones are executions.
pub(crate) const FIRST_BUFFER: u32 = 0x4000_0000;

/// Once in so many turns, a thread that polls looks whether other ranks make another call than this one.
const DETECTION_TURNS: u64 = 1024;

/// The state of a context, guarded by the engine's lock.
pub struct Core {
    /// Exchanges messages with the peers.
    pub messenger: Messenger,
    /// The time when the clock was last read: when the lock was taken, or a thread found nothing to do.
    pub now: Instant,
    /// The collectives in progress that the engine executes, or for which a thread waits here.
    operations: Operations,
    /// Memory for products of inputs and factors, which no call uses.
    spare_scratch: Vec<Scratch>,
    /// The scratch memory of the context.
    pub kept: Arc<Kept>,
    clock: Arc<dyn Clock>,
    /// The operations of buffers.
    pub requests: Requests,
    /// Threads that wait for calls of this context and of others, and for which no thread polls.
    listeners: Vec<Arc<Waker>>,
    /// Whom to remind, see [`Engine::remind_at`].
    reminded: Vec<Weak<dyn OnTime>>,
    events: Vec<Event>,
    /// The last collectives.
    pub recorder: Arc<Recorder>,
    /// Why no collective can run any more.
    pub broken: Option<Error>,
    /// In place of that, why those have ended that were running then.
    ended_by: Option<Error>,
    /// Describes the call that a digest stands for, for errors.
    pub explain: fn(u64) -> String,
    /// Number of collectives started on this context before it had shared memory, which counts them then.
    pub begun: u64,
    /// Counts the calls of each kind on each tag.
    numbers: Numbers,
    /// Tag and fingerprint of the last call that has ended.
    last: (u64, u64),
    /// The threads that wait on the context.
    pub waiters: Waiters,
    /// An operation has completed for which another thread may wait.
    ended: bool,
    /// Threads that wait for a connection. Connections cause no event, so these threads are notified whenever anything
    /// was moved.
    pub connecting: usize,
    /// Number of calls of `progress`. From it the watch sees at a tick whether a thread has progressed the context
    /// since the last one.
    turns: u64,
    seen_turns: u64,
    /// Whether the last turn took long, and has left more to be done at once.
    long_turn: bool,
    /// Whether messages have come or gone since the watch last looked.
    moved: bool,
    /// Whether the watch is to be armed by a tick only, unless something is left to be done; see [`Engine::hand_over`].
    is_lazy: bool,
    /// The calls that may run at the same time as others of their lines.
    lines: Lines,
    /// Number of runs of which any thread that waits may call the function.
    shared_functions: usize,
    /// The memory that the ranks of this host share, if the ranks of each host do.
    pub shared: Option<Arc<Shared>>,
    /// The agreements of the ranks, if this serves for them alone.
    agreement: Option<Box<Agreement>>,
}

/// What a thread that waits for a run does next.
enum Next {
    /// Returns: the run has completed or failed.
    Return,
    /// Calls a function, by [`Engine::call_function`].
    Call(FunctionCall),
}

impl Core {
    /// Number of collectives started on this context.
    pub fn begun(&self) -> u64 {
        self.shared.as_ref().map_or(self.begun, |shared| shared.begun())
    }

    /// Starts a run of `call`, which is that of `binding`, and returns its index. Fails if another call of its kind
    /// runs on its tag. A comparison of calls fails if any call runs on its tag: ranks that start the same two calls in
    /// different orders would look like ranks that make different calls. The run fails at `deadline` even if it waits
    /// for nobody.
    pub fn start(&mut self, call: Arc<Prepared>, binding: &Binding<'_>, deadline: Option<Instant>) -> Result<u32> {
        if let Some(error) = &self.broken {
            return Err(error.context("the context is broken"));
        }
        self.end_registration();
        let (own, tag, in_order) = (call.kind(), binding.tag, binding.in_order);
        if let Some(other) = self.operations.excluding((own, tag), in_order) {
            return Err(already_running(other, tag, own, self.explain));
        }
        let (number, sequence) = match &self.shared {
            Some(shared) => {
                let claimed = shared.claim((own, tag), in_order, call.digest, call.counted);
                claimed.map_err(|other| already_running(other, tag, own, self.explain))?
            }
            None if call.counted => {
                self.begun += 1;
                (self.numbers.next((own, tag)), self.begun)
            }
            None => (0, 0),
        };
        let id = Identity::new(binding, fingerprint(call.digest, number));
        let mut steps = self.operations.execution();
        if let Err(error) = steps.reset(binding, &id, self.shared.as_ref(), &self.kept) {
            self.operations.reuse(steps);
            self.release(own, tag);
            return Err(error);
        }
        steps.set_deadline(deadline, &self.clock);
        call.counter.count();
        let bytes = call.bytes;
        let mut operation = Operation::new(id, Some((call, steps)));
        operation.in_order = in_order;
        let uses_memory = operation.uses_memory();
        let link = if uses_memory { Link::Both } else { Link::Messages };
        let (fingerprint, created) = (operation.id.fingerprint, self.recorder.now());
        let run = Run { number: sequence, fingerprint, tag, bytes, link, created, ..Run::default() };
        let index = self.operations.insert(operation, run);
        if let Some(shared) = self.shared.as_ref().filter(|_| uses_memory) {
            // Another thread may sleep.
            shared.wait_also_for(Members::MAX);
        }
        if !in_order || self.lines.add((own, tag), index) {
            self.begin_run(index);
        } else {
            self.begin_next();
        }
        Ok(index)
    }

    /// Registers a call that its own thread executes in shared memory, because that thread waits, or the call has
    /// failed. Returns its index; the call ends by [`Core::end`]. If it ends well, its thread records that.
    pub fn register(&mut self, binding: &Binding<'_>, run: Run) -> Result<u32> {
        if let Some(error) = self.ended_by() {
            return Err(error.context("the context is broken"));
        }
        self.end_registration();
        let mut operation = Operation::new(Identity::new(binding, run.fingerprint), None);
        operation.in_order = binding.in_order;
        Ok(self.operations.insert(operation, run))
    }

    /// Posts what the run `index` can send and receive at first.
    #[inline]
    fn begin_run(&mut self, index: u32) {
        self.operations.run_mut(index).started = self.recorder.now();
        self.operations[index].begin(&mut self.messenger);
    }

    /// Ends the registration of a call on shared memory that has ended without the lock.
    #[inline]
    fn end_registration(&mut self) {
        if let Some(index) = self.shared.as_ref().and_then(|shared| shared.take_ended_registration()) {
            self.end(index);
        }
    }

    /// Whether the run `index` has completed or failed.
    pub fn is_over(&self, index: u32) -> bool {
        self.operations[index].is_over()
    }

    /// What the thread that waits for the run `index` must do now, if anything.
    fn next(&mut self, index: u32) -> Option<Next> {
        let operation = &mut self.operations[index];
        if operation.is_over() && !operation.is_reducing() {
            return Some(Next::Return);
        }
        if operation.wants_function() && !operation.is_over() {
            return operation.next_reduction().map(|reduction| Next::Call(FunctionCall::Segment(index, reduction)));
        }
        self.next_function().map(Next::Call)
    }

    /// When the run `index` ends, or if it has, `on_end` is told, in place of another one.
    pub fn tell(&mut self, index: u32, on_end: Arc<dyn OnEnd>) {
        let operation = &mut self.operations[index];
        operation.on_end = Some(on_end);
        self.ended |= operation.note(self.now);
    }

    /// Whether the run `index` has failed.
    pub fn has_failed(&self, index: u32) -> bool {
        self.failure(index).is_some()
    }

    /// Why the run `index` has failed, if it has.
    pub fn failure(&self, index: u32) -> Option<&Error> {
        self.operations[index].failed.as_ref()
    }

    /// The fingerprint and the tag of the run `index`.
    pub fn call(&self, index: u32) -> (u64, u64) {
        let Identity { fingerprint, tag, .. } = self.operations[index].id;
        (fingerprint, tag)
    }

    /// The fingerprint of a call that excludes a new one of this kind on this tag, which is `in_order` or not.
    pub fn running(&mut self, line: Line, in_order: bool) -> Option<u64> {
        self.end_registration();
        let running = self.operations.excluding(line, in_order);
        running.or_else(|| self.shared.as_ref().and_then(|shared| shared.running(line, in_order)))
    }

    /// Whether a call of this kind runs on `tag`.
    pub fn runs(&self, kind: u8, tag: u64) -> bool {
        self.operations.ids().any(|id| (id.kind, id.tag) == (kind, tag))
    }

    /// Ends the run `index`, and returns the error if it has failed. Its memory is not accessed afterwards.
    pub fn end(&mut self, index: u32) -> Option<Error> {
        let mut operation = self.operations.remove(index)?;
        if !operation.is_over() || operation.failed.is_some() {
            self.messenger.cancel(index);
        }
        let run = self.operations.run(index);
        match &operation.failed {
            Some(error) => self.recorder.failed(run, error),
            None if run.number != 0 && operation.is_over() => self.recorder.completed(run),
            // Its own thread executes it.
            None => {}
        }
        let Identity { kind, tag, fingerprint, .. } = operation.id;
        self.last = (tag, fingerprint);
        self.shared_functions -= usize::from(operation.shares_function);
        if let Some(steps) = operation.end() {
            self.operations.reuse(steps);
            self.release(kind, tag);
        }
        if operation.in_order
            && let Some(next) = self.lines.remove((kind, tag), index)
        {
            self.begin_run(next);
            self.dispatch();
        }
        operation.failed
    }

    /// Adds memory of `bytes` to `list`. Returns where it is; `None` if there is not enough.
    pub fn take_scratch(&mut self, bytes: usize, list: &mut Vec<Scratch>) -> Option<*mut u8> {
        let mut memory = self.spare_scratch.pop().unwrap_or_default();
        let is_made = memory.reserve(&self.kept, bytes, 1);
        let pointer = memory.pointer();
        list.push(memory);
        is_made.then_some(pointer)
    }

    /// Keeps the memory of a call that has ended for later calls.
    pub fn return_scratch(&mut self, memory: Vec<Scratch>) {
        self.spare_scratch.extend(memory);
    }

    /// The scratch memory that no call uses, nor has needed all of since the last time.
    fn release_scratch(&mut self) -> Vec<Scratch> {
        let mut released = self.shared.as_ref().map_or(Vec::new(), |shared| shared.release_scratch());
        self.operations.release_scratch(&mut released);
        self.spare_scratch.iter_mut().for_each(|memory| memory.release(&mut released));
        self.spare_scratch.retain(|memory| memory.bytes() > 0);
        released
    }

    /// A call of this kind may start on `tag` again.
    #[inline]
    fn release(&self, kind: u8, tag: u64) {
        if let Some(shared) = &self.shared {
            shared.release((kind, tag));
        }
    }

    /// Number of calls of `progress`.
    #[cfg(test)]
    pub(crate) fn turns(&self) -> u64 {
        self.turns
    }

    /// Says that no thread progresses the context until something wakes it; with `publications`, also what ranks
    /// publish in shared memory. Returns whether the context must be progressed once more before that.
    fn sleep(&mut self, publications: bool) -> bool {
        if let Some(shared) = self.shared.as_ref().filter(|_| publications) {
            shared.sleep(self.operations.awaited());
        }
        self.messenger.connections_mut().sleep(publications)
    }

    /// The call `index`, which its own thread executes, waits for publications of `members`. Look for them once more.
    pub fn wait_in_memory(&mut self, index: u32, members: Members) {
        self.operations[index].awaited = members;
        self.shared.as_ref().inspect(|shared| shared.wait_also_for(members));
    }

    /// Whether something is left to be done: a run that is not over and not in its reduction function, or a started
    /// call on shared memory.
    fn has_runs(&self) -> bool {
        self.operations.any_goes_on() || self.shared.as_ref().is_some_and(|shared| shared.has_started_calls())
    }

    /// Whether a run waits for what a peer does in shared memory.
    fn waits_in_memory(&self) -> bool {
        self.operations.any_waits_in_memory()
    }

    /// Moves data as far as possible without blocking. Returns whether anything was moved.
    pub fn progress(&mut self) -> bool {
        self.turns += 1;
        self.long_turn = false;
        self.end_registration();
        if self.turns.is_multiple_of(DETECTION_TURNS) {
            self.detect_other_calls();
        }
        let moved = self.messenger.progress(self.now, &mut self.events);
        self.moved |= moved;
        self.ended |= moved && self.connecting > 0;
        // An operation that completes in the last flush counts as movement: otherwise the thread that waits for it
        // would sleep.
        let handled = self.dispatch();
        let looked = self.look_in_memory();
        if self.lines.any_waits() && self.begin_next() {
            self.dispatch();
            return true;
        }
        looked | handled | moved
    }

    /// Goes on with the calls and runs of which a peer has done in shared memory what they wait for. Returns whether
    /// there are any.
    fn look_in_memory(&mut self) -> bool {
        let Some(shared) = &self.shared else { return false };
        let mut any = false;
        let others = shared.progress();
        self.long_turn = others == Progress::More;
        for (_, operation) in self.operations.iter_mut().filter(|(_, operation)| operation.waits_in_memory()) {
            any |= operation.look(&mut self.messenger);
            self.ended |= operation.note(self.now);
        }
        self.ended |= shared.take_notice();
        if any {
            self.dispatch();
        }
        any | (others != Progress::None)
    }

    /// `progress`, for threads that do not return soon: no descriptor becomes readable when more of an offered message
    /// can be read.
    pub fn serve(&mut self) {
        while self.progress() && self.messenger.is_reading() {}
    }

    /// Handles events, and sends what was posted in consequence, because no other thread might do it. Returns whether
    /// there was any event.
    fn dispatch(&mut self) -> bool {
        let mut any = false;
        loop {
            any |= !self.events.is_empty();
            let mut events = std::mem::take(&mut self.events);
            for event in events.drain(..) {
                self.handle(event);
            }
            self.events = events;
            self.messenger.flush(&mut self.events);
            if self.events.is_empty() {
                return any;
            }
        }
    }

    fn handle(&mut self, Event { token, outcome }: Event) {
        if token == Token::CONTEXT {
            // Every collective involves every rank, so all that are running fail.
            match outcome {
                Outcome::Failed(error) if error.kind() == ErrorKind::Aborted => self.abort(&error),
                // Who has failed is lost for an agreement, which goes on without it.
                Outcome::Failed(error) if self.agreement.as_ref().is_some_and(|own| !own.is_expelled_by(&error)) => {}
                Outcome::Failed(error) => {
                    self.operations.iter_mut().for_each(|(_, operation)| {
                        operation.failed.get_or_insert_with(|| error.clone());
                        operation.note(self.now);
                    });
                    self.broken.get_or_insert(error);
                    self.close_shared();
                }
                Outcome::Queried { rank, .. } if self.agreement.is_some() => self.reply_in_agreement(rank),
                Outcome::Queried { rank, slot, fingerprint } => {
                    let (doing, instead) = (self.doing(), self.instead_of(fingerprint, slot));
                    let waits = |(index, operation): (u32, &Operation)| {
                        !operation.is_reducing() && self.messenger.diagnosis().waits(index)
                    };
                    let waiting =
                        self.operations.iter().any(waits) || self.only_in_memory().iter().any(|(.., waits)| *waits);
                    self.messenger.reply(rank, &doing, waiting, instead);
                }
                Outcome::Agreement => self.receive_agreement(),
                Outcome::Disconnected { rank } => self.lose(rank),
                _ => {}
            }
            self.ended = true;
            return;
        }
        if token.owner >= FIRST_BUFFER {
            self.requests.ended(token, outcome);
            self.ended = true;
            return;
        }
        let Some((operation, run)) = self.operations.with_run(token.owner) else { return };
        match outcome {
            Outcome::Done { rank, bytes } => {
                run.waited_for = Awaited::from(Some(rank));
                operation.segment_done(token.detail, bytes, &mut self.messenger);
            }
            Outcome::Mismatch { rank, theirs } => self.mismatch(token.owner, rank, theirs),
            Outcome::Failed(error) => operation.message_failed(token.detail, error, &mut self.messenger),
            _ => {}
        }
        self.ended |= self.operations[token.owner].note(self.now);
    }

    /// What the recorder says of the run `index`.
    pub fn recorded(&self, index: u32) -> Run {
        *self.operations.run(index)
    }

    /// The run `index`, whose thread ends it next, has not ended by its deadline, and `error` says why.
    pub fn time_out(&mut self, index: u32, error: &Error) {
        self.operations[index].failed.get_or_insert_with(|| error.clone());
    }
}
