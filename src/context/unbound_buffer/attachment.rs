//! Buffers that a completion queue reports: the ends of their operations are taken from there, in place of waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{UnboundBuffer, doing};
use crate::context::Context;
use crate::context::queued::{Callback, CompletionKind, Queue, Queued};
use crate::engine::completion_queue::After;
use crate::engine::ready::{Ends, Entry};
use crate::engine::requests::{Ended, Side};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Rank;

/// The queue of a buffer, and the numbers of its sides there.
type Place = Option<(Arc<Queue>, [u32; 2])>;

const HAS_QUEUE: &str = "the buffer is attached to a queue";
const HAS_CALLBACK: &str = "the buffer has a callback";

/// Where the ends of a buffer are reported.
#[derive(Clone, Default)]
pub(super) struct Attachment {
    place: Arc<Mutex<Place>>,
    /// Whether a callback is called with the ends, which the program does not take from the queue itself.
    calls_back: Arc<AtomicBool>,
}

impl Attachment {
    /// An operation of one side is about to be posted by the thread that has the engine's lock. What is returned is to
    /// be done without locks.
    pub fn count(&self, side: Side) -> Option<After<Context>> {
        let (queue, numbers) = self.place().clone()?;
        Some(queue.begin_another(numbers[side as usize], 1))
    }

    /// Refuses waits while it is attached.
    pub fn check(&self) -> Result<()> {
        if self.place().is_none() {
            return Ok(());
        }
        let text = match self.what() {
            HAS_CALLBACK => format!("{HAS_CALLBACK}, which is called instead"),
            _ => format!("{HAS_QUEUE}: take its entries from there"),
        };
        Err(Error::new(ErrorKind::InvalidOperation, text))
    }

    fn refuse(&self) -> Error {
        Error::new(ErrorKind::InvalidOperation, format!("{} already", self.what()))
    }

    fn what(&self) -> &'static str {
        if self.calls_back.load(Ordering::Relaxed) { HAS_CALLBACK } else { HAS_QUEUE }
    }

    /// Ends it. Returns the queue, and the numbers of the sides there.
    pub fn take(&self) -> Place {
        self.place().take()
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sends, puts and gets of an attached buffer, or its receives.
struct BufferSide {
    context: Arc<Context>,
    owner: u32,
    bytes: usize,
    side: Side,
    attachment: Attachment,
    callback: Option<Callback>,
}

impl UnboundBuffer {
    /// Has `queue` report each end of an operation from now on, those included that no wait has reported.
    pub(in crate::context) fn attach(&self, queue: &Arc<Queue>, user: u64) -> Result<()> {
        self.attach_to(queue, user, None)
    }

    /// Has `callback` called at each end of an operation, in place of an entry for the program: the buffer is attached
    /// to `queue`, that of the device's callbacks.
    pub(in crate::context) fn call_back(&self, queue: &Arc<Queue>, callback: Callback) -> Result<()> {
        self.attach_to(queue, 0, Some(callback))
    }

    fn attach_to(&self, queue: &Arc<Queue>, user: u64, callback: Option<Callback>) -> Result<()> {
        self.context.check_process()?;
        if self.attachment.place().is_some() {
            return Err(self.attachment.refuse());
        }
        let side = |side| {
            let (context, attachment, callback) = (self.context.clone(), self.attachment.clone(), callback.clone());
            let own = BufferSide { context, owner: self.owner, bytes: self.bytes, side, attachment, callback };
            let number = queue.insert_several(Arc::new(own), &self.context, user);
            number.ok_or_else(|| Error::new(ErrorKind::Closed, "the queue is closed"))
        };
        let numbers = [side(Side::Send)?, side(Side::Recv)?];
        // With the lock: what is posted before is counted here, and what is posted later where it is posted.
        let mut guard = self.context.lock()?;
        if self.attachment.place().is_some() {
            drop(guard);
            numbers.into_iter().for_each(|number| queue.remove(number));
            return Err(self.attachment.refuse());
        }
        *self.attachment.place() = Some((queue.clone(), numbers));
        self.attachment.calls_back.store(callback.is_some(), Ordering::Relaxed);
        let counted = [(Side::Send, numbers[0]), (Side::Recv, numbers[1])].map(|(side, number)| {
            let entry = Entry { ends: queue.clone(), number: number as usize };
            let (under_way, ended) = guard.requests.attach(self.owner, side, Some(entry));
            (queue.begin_another(number, under_way + ended), number, ended)
        });
        drop(guard);
        for (after, number, ended) in counted {
            after.wake();
            if ended > 0 {
                queue.add(number as usize);
                self.context.engine().wake();
            }
        }
        Ok(())
    }
}

impl Queued for BufferSide {
    fn kind(&self) -> CompletionKind {
        if self.side == Side::Recv { CompletionKind::Recv } else { CompletionKind::Send }
    }

    fn end_in(&self, queue: &Arc<Queue>, number: u32) -> Option<Result<Option<(Rank, usize)>>> {
        let (ended, more) = self.context.engine().lock().requests.take_attached(self.owner, self.side, number as usize);
        queue.taken(number, ended.is_some(), more);
        let during =
            |error: Error| error.context(doing(&self.context, self.side, self.bytes)).during(self.side.operation());
        match ended? {
            Ended::Message(rank, bytes) => Some(Ok(Some((rank, bytes)))),
            Ended::Failed(error) => Some(Err(self.context.versions.added_to(during(error)))),
            Ended::Written { .. } | Ended::Aborted => None,
        }
    }

    fn callback(&self) -> Option<&Callback> {
        self.callback.as_ref()
    }

    fn leave_queue(&self) {
        self.context.engine().lock().requests.attach(self.owner, self.side, None);
        drop(self.attachment.take());
    }
}
