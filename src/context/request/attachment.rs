//! Requests that a completion queue reports: their ends are taken from there, in place of waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Request;
use super::body::Body;
use super::state::{ATTACH, SET_CALLBACK, State};
use crate::context::Context;
use crate::context::queued::{Callback, CompletionKind, Queue, Queued};
use crate::engine::completion_queue::{After, Looks};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Rank;

/// Who has a request.
pub trait HasRequest: Send + Sync {
    /// The request.
    fn request(&self) -> &Request;
}

/// A request in a queue.
struct Attached {
    own: Arc<dyn HasRequest>,
    callback: Option<Callback>,
    /// What else lasts as long as that.
    _kept: Option<Box<dyn Send + Sync>>,
}

impl Queued for Attached {
    fn kind(&self) -> CompletionKind {
        CompletionKind::Request
    }

    fn end_in(&self, queue: &Arc<Queue>, number: u32) -> Option<Result<Option<(Rank, usize)>>> {
        self.own.request().end_in(queue, number).map(|ended| ended.map(|()| None))
    }

    fn leave_queue(&self) {
        self.own.request().leave_queue();
    }

    fn callback(&self) -> Option<&Callback> {
        self.callback.as_ref()
    }
}

/// Where the ends of a request are reported.
#[derive(Default)]
pub(super) struct Attachment {
    place: Mutex<Option<(Arc<Queue>, u32)>>,
    calls_back: AtomicBool,
}

impl Attachment {
    fn get(&self) -> Option<(Arc<Queue>, u32)> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, place: Option<(Arc<Queue>, u32)>) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }

    /// Whether a callback is called with the ends, which the program does not take from the queue itself.
    pub fn calls_back(&self) -> bool {
        self.calls_back.load(Ordering::Relaxed)
    }
}

impl Request {
    /// Has `queue` report the end of the call that was started, and of all calls that this request starts. `own` is who
    /// has this request.
    pub(in crate::context) fn attach(&self, own: Arc<dyn HasRequest>, queue: &Arc<Queue>, user: u64) -> Result<()> {
        self.attach_to(queue, user, Attached { own, callback: None, _kept: None }, ATTACH)
    }

    /// Has `callback` called at the end of each call, in place of an entry for the program: the request is attached to
    /// `queue`, that of the device's callbacks. `kept` is dropped when `callback` is.
    pub(in crate::context) fn call_back(
        &self,
        own: Arc<dyn HasRequest>,
        queue: &Arc<Queue>,
        callback: Callback,
        kept: Option<Box<dyn Send + Sync>>,
    ) -> Result<()> {
        self.attach_to(queue, 0, Attached { own, callback: Some(callback), _kept: kept }, SET_CALLBACK)
    }

    fn attach_to(&self, queue: &Arc<Queue>, user: u64, attached: Attached, doing: &str) -> Result<()> {
        let states = [State::Inactive, State::Active, State::Complete];
        let from = states.into_iter().find(|state| self.state.occupy(*state).is_ok());
        let from = from.ok_or_else(|| self.refuse_now(doing))?;
        let (context, calls_back) = (self.context(), attached.callback.is_some());
        let Some(number) = queue.insert(Arc::new(attached), context, user, !matches!(from, State::Inactive)) else {
            self.state.leave(from);
            return Err(Error::new(ErrorKind::Closed, "the queue is closed"));
        };
        self.attachment.set(Some((queue.clone(), number)));
        self.attachment.calls_back.store(calls_back, Ordering::Relaxed);
        match from {
            State::Active => self.leave_queued(queue, number, false),
            State::Complete => self.leave_queued(queue, number, true),
            _ => self.state.leave(State::Attached),
        }
        Ok(())
    }

    /// Starts the call of an inactive request that is attached, and that this thread has made busy.
    pub(super) fn start_attached(&self) -> Result<()> {
        let Some((queue, number)) = self.begin_in_queue() else { return self.begin(None) };
        match self.begin_any(None) {
            Ok(has_ended) => {
                self.leave_queued(&queue, number, has_ended);
                Ok(())
            }
            Err(error) => {
                let stays = queue.end(number);
                self.state.leave(if stays { State::Attached } else { State::Retired });
                Err(error)
            }
        }
    }

    /// The queue of an attached request, and its number there.
    pub(super) fn place(&self) -> Option<(Arc<Queue>, u32)> {
        self.attachment.get()
    }

    /// The queue of an attached request, and the number there of the call that this thread starts. `None` if the queue
    /// is closed, so that the request is attached no more.
    pub(super) fn begin_in_queue(&self) -> Option<(Arc<Queue>, u32)> {
        let place = self.attachment.get().filter(|(queue, number)| queue.begin(*number));
        if place.is_none() {
            self.attachment.set(None);
        }
        place
    }

    /// The call is in progress, or has ended, and the queue has it from now on.
    pub(super) fn leave_queued(&self, queue: &Arc<Queue>, number: u32, has_ended: bool) {
        let looks = (!has_ended).then(|| {
            self.enter(queue.clone(), number as usize);
            let Body { context, .. } = &*self.body;
            let now = queue.now();
            let is_quiet = context.shared_work(&self.body.binding()).is_some();
            Looks::new(self.body.deadline().unwrap_or(now), now, is_quiet)
        });
        self.state.leave(if has_ended { State::QueuedComplete } else { State::Queued });
        if self.attachment.calls_back() {
            self.context().engine().leave_to_watch();
        }
        finish(self.context(), queue.started(number, looks));
    }

    /// The result of the call, if it has ended: then the request is inactive. For a thread that holds it in `queue`, as
    /// this `number`.
    fn end_in(&self, queue: &Arc<Queue>, number: u32) -> Option<Result<()>> {
        if let Ok(false) = self.is_complete() {
            self.enter(queue.clone(), number as usize);
            finish(self.context(), queue.put_back(number));
            return None;
        }
        let result = self.complete_run(None).map(drop);
        // SAFETY: the context keeps the memory that its ranks share.
        unsafe { self.claim.release() };
        let stays = queue.end(number);
        self.state.leave(if stays { State::Attached } else { State::Retired });
        Some(result)
    }

    /// Ends the attachment, if the request is inactive; if it is active, with its end.
    pub(super) fn retire_attached(&self) -> Result<()> {
        let state = self.state.get();
        let place = self.attachment.get().filter(|_| state.is_attached());
        let (queue, number) = place.ok_or_else(|| self.refuse(state, "free"))?;
        // If it has ended meanwhile, nothing is left to be done.
        let _ = self.state.occupy(State::Attached).map(|()| self.state.leave(State::Retired));
        queue.detach(number);
        Ok(())
    }

    /// Ends the attachment of a request that is inactive: its queue is closed.
    fn leave_queue(&self) {
        if self.state.occupy(State::Attached).is_ok() {
            self.attachment.set(None);
            self.state.leave(State::Inactive);
        }
    }

    pub(super) fn refuse_now(&self, doing: &str) -> Error {
        self.refuse(self.state.get(), doing)
    }
}

/// Does what is left to be done after a change of a queue with calls of `context`.
fn finish(context: &Context, after: After<Context>) {
    after.wake();
    after.remind_at.into_iter().for_each(|at| context.engine().remind_at(at));
}
