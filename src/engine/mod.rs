//! Executes schedules over any links, and keeps the ends of the operations that buffers post.
//!
//! All of a context's state is behind one lock. The thread that waits does the work: it polls the links, and whatever
//! has arrived, for whichever call on this context, is moved on right there. Other waiting threads sleep until they are told.
//! What nobody waits for is left to the device's [`Watch`](crate::transport::Watch).

pub mod execution;
#[cfg(all(test, loom))]
mod model;
mod numbers;
pub mod plan;
mod progress;
pub mod requests;
mod sync;
// Its threads are not loom's.
#[cfg(all(test, not(loom)))]
mod tests;

pub use execution::{Binding, Combine, Reduction, UserFunction};
pub use progress::{Engine, Guard, Spin};

use std::sync::Arc;
use std::time::Instant;

use crate::engine::execution::Execution;
use crate::engine::numbers::Numbers;
use crate::engine::plan::Plan;
use crate::engine::requests::Requests;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::messaging::{Event, Messenger, Outcome, Token};
use crate::slab::Slab;
use crate::types::Rank;
use crate::wire::fingerprint::{COMPARISON, digest, kind, number};

/// Owners from here on are buffers, below are executions.
pub(crate) const FIRST_BUFFER: u32 = 0x4000_0000;

/// Calls that a rank tells of when it is asked what it is doing.
const MAX_TOLD: usize = 2;

/// What the lock guards.
pub struct Core {
    /// The way to the peers.
    pub messenger: Messenger,
    /// What time it was when the clock was last looked at: when the lock was taken, or a thread found nothing to do.
    pub now: Instant,
    /// In boxes, so that they are not copied to and fro.
    executions: Slab<Box<Execution>>,
    // Boxes move between here and the slab; what is in them, which is large, stays.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Execution>>,
    /// The ends of buffers' operations.
    pub requests: Requests,
    events: Vec<Event>,
    /// Why collectives cannot run any more.
    pub broken: Option<Error>,
    /// Says what a call's check means; for errors.
    pub explain: fn(u64) -> String,
    /// Collectives that have begun here.
    pub begun: u64,
    /// And of each kind on each tag.
    numbers: Numbers,
    /// A waiting thread drives the transport.
    polling: bool,
    /// That thread sleeps in the system, having spun so long.
    sleeping: Option<Spin>,
    /// Threads that wait to be told: the one peer that each waits for, if it is one.
    waiting: Vec<Option<Rank>>,
    /// Threads that were told, and need the lock to see it.
    waking: usize,
    /// Something has ended that another thread may wait for.
    ended: bool,
    /// Threads that wait for a connection: no event tells them, so whatever moves does.
    pub connecting: usize,
    /// Counts calls to `progress`, so that the watch sees whether anybody was here.
    turns: u64,
    seen_turns: u64,
    spin: Spin,
    /// Of waits that only concern the pair with that rank.
    pair_spins: QuickMap<Rank, Spin>,
}

/// What the thread that started a run is to do.
pub(crate) enum Next {
    /// Nothing: the run is over, for better or worse.
    Return,
    /// This, by its function.
    Reduce(Reduction),
}

impl Core {
    /// Starts a run of `plan`; its index. Refuses a tag that a run of its kind has; and for a comparison of calls one that any run
    /// has, since two calls at the same time cannot be told from ranks that make different ones.
    pub fn start(&mut self, plan: Arc<Plan>, binding: &Binding<'_>) -> Result<u32> {
        if let Some(error) = &self.broken {
            return Err(error.context("the context is broken"));
        }
        let (own, tag) = (kind(binding.digest), binding.tag);
        if let Some((_, other)) =
            self.executions.iter().find(|(_, e)| e.tag == tag && (e.kind == own || own == COMPARISON))
        {
            return Err(already_running(other, own, self.explain));
        }
        let mut execution = self.spare.pop().unwrap_or_default();
        let number = if binding.counted { self.numbers.next((own, tag)) } else { 0 };
        if let Err(error) = execution.reset(plan, binding, own, number) {
            self.spare.push(execution);
            return Err(error);
        }
        let index = self.executions.insert(execution);
        let execution = &mut self.executions[index];
        execution.set_owner(index);
        execution.begin(&mut self.messenger);
        Ok(index)
    }

    /// Whether the run `index` is over.
    pub fn is_over(&self, index: u32) -> bool {
        self.executions[index].is_over()
    }

    /// For the thread that started the run `index`: what it is to do now, if anything.
    fn next(&mut self, index: u32) -> Option<Next> {
        let execution = &mut self.executions[index];
        if execution.is_over() {
            return Some(Next::Return);
        }
        if execution.wants_function() { execution.next_reduction().map(Next::Reduce) } else { None }
    }

    /// For the same thread: its function has returned `status`.
    fn reduced(&mut self, index: u32, reduction: &Reduction, status: i32) {
        self.executions[index].reduced(reduction, status, &mut self.messenger);
    }

    /// Whether the run `index` cannot go on.
    pub fn has_failed(&self, index: u32) -> bool {
        self.executions[index].failed.is_some()
    }

    /// What messages of the run `index` say that they are about: their fingerprint, and the tag.
    pub fn call(&self, index: u32) -> (u64, u64) {
        let execution = &self.executions[index];
        (execution.fingerprint, execution.tag)
    }

    /// Whether a call of this kind runs on `tag`.
    pub fn runs(&self, kind: u8, tag: u64) -> bool {
        self.executions.iter().any(|(_, e)| (e.kind, e.tag) == (kind, tag))
    }

    /// Ends the run `index`: the error it failed with, if it did. Its memory is no longer touched.
    pub fn end(&mut self, index: u32) -> Option<Error> {
        let over = self.executions[index].is_over() && self.executions[index].failed.is_none();
        if !over {
            self.messenger.cancel(index);
        }
        let mut execution = self.executions.remove(index)?;
        let failed = execution.failed.take();
        self.spare.push(execution);
        failed
    }

    /// Whether a thread waits here, and drives the transport.
    #[cfg(test)]
    pub(crate) fn is_polled(&self) -> bool {
        self.polling
    }

    /// Whether that thread sleeps.
    #[cfg(test)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeping.is_some()
    }

    /// Sets how long waiting threads poll.
    pub fn set_spin(&mut self, spin: Spin) {
        self.spin = spin;
    }

    /// Sets it for waits that only concern the pair with `peer`; `None`: as others.
    pub fn set_pair_spin(&mut self, peer: Rank, spin: Option<Spin>) {
        match spin {
            Some(spin) => drop(self.pair_spins.insert(peer, spin)),
            None => drop(self.pair_spins.remove(&peer)),
        }
    }

    /// How long a thread polls that waits for `peer` only, or for more.
    fn spin(&self, peer: Option<Rank>) -> Spin {
        peer.and_then(|peer| self.pair_spins.get(&peer)).copied().unwrap_or(self.spin)
    }

    /// How long that thread polls, if it is the one that polls: as long as any that waits would.
    fn longest_spin(&self, peer: Option<Rank>) -> Spin {
        self.waiting.iter().map(|peer| self.spin(*peer)).fold(self.spin(peer), Ord::max)
    }

    /// Nothing can be relied on any more: everything ends with `error`, and peers are told `notice`.
    pub fn break_with(&mut self, error: &Error, notice: Option<&Error>) {
        if self.broken.is_none() {
            self.broken = Some(error.clone());
        }
        self.messenger.close(error, notice);
        self.dispatch();
        // Those, too, that wait for no peer now.
        for (_, execution) in self.executions.iter_mut().filter(|(_, execution)| !execution.is_over()) {
            execution.failed = Some(error.clone());
            self.ended = true;
        }
    }

    /// Moves what can be moved without waiting; whether anything was.
    pub fn progress(&mut self) -> bool {
        self.turns += 1;
        let moved = self.messenger.progress(self.now, &mut self.events);
        self.ended |= moved && self.connecting > 0;
        // What the last flush ended moves as well: a thread that was told otherwise would sleep on what it waits for.
        self.dispatch() | moved
    }

    /// The same, for who does not come back at once: no descriptor tells when more of an offered message can be read.
    pub fn serve(&mut self) {
        while self.progress() && self.messenger.is_reading() {}
    }

    /// Hands out what has ended, and sends what was posted in consequence: nobody else might be there to do it. Whether
    /// anything had ended.
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

    /// What is going on here, for a peer that waits for this rank.
    fn doing(&self) -> String {
        let calls = self.executions.iter().take(MAX_TOLD).map(|(index, e)| {
            let (what, waits) = ((self.explain)(digest(e.fingerprint)), self.messenger.describe(index, self.now));
            let waits = if waits.is_empty() { String::new() } else { format!(", waiting {waits}") };
            let waits = if e.reducing { format!(", inside its reduction function{waits}") } else { waits };
            format!("in {what}, {} elements, tag {}{waits}", e.count, e.tag)
        });
        let calls: Vec<String> = calls.collect();
        if calls.is_empty() {
            return format!("it says that it is in no collective, after {} on this context", self.begun);
        }
        format!("it says that it is {}", calls.join(" and "))
    }

    fn handle(&mut self, Event { token, outcome }: Event) {
        if token == Token::CONTEXT {
            // Every collective needs every rank: none that is running can be relied on, whomever it waits for.
            match outcome {
                Outcome::Failed(error) => {
                    self.executions.iter_mut().for_each(|(_, e)| {
                        e.failed.get_or_insert_with(|| error.clone());
                    });
                    self.broken.get_or_insert(error);
                }
                Outcome::Queried { rank } => {
                    let doing = self.doing();
                    let waits = |(index, e): (u32, &Execution)| !e.reducing && self.messenger.waits(index);
                    let held_up = self.executions.iter().map(|(index, e)| (index, &**e)).any(waits);
                    self.messenger.reply(rank, &doing, held_up);
                }
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
        let Some(execution) = self.executions.get_mut(token.owner) else { return };
        match outcome {
            Outcome::Done { bytes, .. } => {
                execution.segment_done(token.detail, bytes, &mut self.messenger);
            }
            Outcome::Mismatch { rank, theirs } => {
                let (peer, tag) = (self.messenger.peer_name(rank), execution.tag);
                let [(own, here), (theirs, what)] = [execution.fingerprint, theirs]
                    .map(|fingerprint| (number(fingerprint), (self.explain)(digest(fingerprint))));
                let text = if own != theirs && own != 0 && theirs != 0 {
                    format!(
                        "{what}, its number {theirs} on tag {tag}, where this rank is in number {own}, {here}: one of them \
                         has made a call that the other has not, or they differed in an earlier one's root or counts"
                    )
                } else if what == here {
                    format!(
                        "{what} there too, but its counts, root, segment size or number of averaged inputs differ from \
                         those here"
                    )
                } else {
                    what
                };
                let text = format!("{peer} is in another collective: {text}");
                // Says more than that the peer is gone, which it may be by now.
                if execution.failed.as_ref().is_none_or(|e| e.kind() == ErrorKind::ConnectionLost) {
                    execution.failed = Some(Error::new(ErrorKind::Mismatch, text).with_rank(rank));
                }
            }
            Outcome::Failed(error) => {
                execution.failed.get_or_insert(error);
            }
            Outcome::Written { .. } | Outcome::Queried { .. } | Outcome::Replied => {}
        }
        self.ended |= execution.is_over() || execution.wants_function();
    }
}

/// The error for a call of a kind that `other` is in the way of.
#[cold]
fn already_running(other: &Execution, own: u8, explain: fn(u64) -> String) -> Error {
    let (what, tag) = (explain(digest(other.fingerprint)), other.tag);
    let why = if own == COMPARISON {
        ", and check_calls does not tell apart calls that run at the same time with one tag"
    } else {
        ""
    };
    Error::new(ErrorKind::InvalidOperation, format!("{what} with tag {tag} is running on this context already{why}"))
}
