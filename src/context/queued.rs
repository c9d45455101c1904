//! What completion queues report.

use std::sync::Arc;

use crate::context::Context;
use crate::engine::completion_queue::CompletionQueue;
use crate::error::Result;
use crate::types::Rank;

/// What has ends that a queue reports.
pub trait Queued: Send + Sync {
    /// What they are.
    fn kind(&self) -> CompletionKind;

    /// The result of the next one, if there is one. For a thread that holds this in `queue`, as `number`.
    fn end_in(&self, queue: &Arc<Queue>, number: u32) -> Option<Result<Option<(Rank, usize)>>>;

    /// The queue is closed.
    fn leave_queue(&self);

    /// What is called with each end, in the queue of a device's callbacks.
    fn callback(&self) -> Option<&Callback>;
}

/// A function of the program that is called with an end.
pub type Callback = Arc<dyn Fn(Completion) + Send + Sync>;

/// What a queue has.
pub type Queue = CompletionQueue<Arc<dyn Queued>, Context>;

/// What a thread takes from a queue.
pub struct Completion {
    /// The caller's number.
    pub user: u64,
    /// What has ended.
    pub kind: CompletionKind,
    /// What the wait for it would have returned: of a buffer's operation, its peer and the length of the message.
    pub result: Result<Option<(Rank, usize)>>,
}

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// The call of a request.
    Request,
    /// A send, put or get of a buffer.
    Send,
    /// A receive of a buffer.
    Recv,
}
