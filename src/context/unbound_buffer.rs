//! A buffer for messages to and from any rank.

mod attachment;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::context::{Context, RemoteKey};
use crate::engine::completion_queue::After;
use crate::engine::requests::{Ended, Requests, Side};
use crate::engine::{Guard, Idle};
use crate::error::{Error, ErrorKind, Result, after};
use crate::messaging::{Recv, Remote, Send, Source};
use crate::types::{Rank, Slot, Space};
use attachment::Attachment;

/// A buffer for messages to and from any rank. Thread-safe. Dropping it cancels its receives; sends in progress are
/// completed from a copy.
pub struct UnboundBuffer {
    context: Arc<Context>,
    memory: *mut u8,
    bytes: usize,
    owner: u32,
    region: OnceLock<u32>,
    /// The queue that reports the ends of its operations, if one does.
    attachment: Attachment,
}

// SAFETY: the caller keeps the memory valid until the buffer is dropped, on whichever thread; the context's lock guards
// the rest.
unsafe impl std::marker::Send for UnboundBuffer {}
// SAFETY: as above.
unsafe impl Sync for UnboundBuffer {}

impl Context {
    /// A buffer for messages to and from any rank.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `bytes` until the buffer is dropped.
    pub unsafe fn unbound_buffer(self: &Arc<Self>, ptr: *mut u8, bytes: usize) -> Result<UnboundBuffer> {
        let mut guard = self.lock()?;
        guard.messenger.connections_mut().retain_memory(ptr, bytes);
        let owner = guard.requests.enter();
        drop(guard);
        Ok(UnboundBuffer {
            context: self.clone(),
            memory: ptr,
            bytes,
            owner,
            region: OnceLock::new(),
            attachment: Attachment::default(),
        })
    }
}

/// Who has a buffer.
pub trait HasBuffer: std::marker::Send + Sync {
    /// The buffer.
    fn buffer(&self) -> &UnboundBuffer;
}

/// A send or a receive that was checked, of the buffer that has made it.
pub(super) enum Message<'a> {
    Send { to: Rank, slot: Slot, from: *const u8, bytes: usize },
    Recv { from: Cow<'a, [Rank]>, slot: Slot, into: *mut u8, bytes: usize },
}

// SAFETY: the pointers are into a buffer, which any thread may use.
unsafe impl std::marker::Send for Message<'_> {}

impl Message<'_> {
    /// The message with a list of its own.
    pub fn into_owned(self) -> Message<'static> {
        match self {
            Self::Send { to, slot, from, bytes } => Message::Send { to, slot, from, bytes },
            Self::Recv { from, slot, into, bytes } => {
                Message::Recv { from: Cow::Owned(from.into_owned()), slot, into, bytes }
            }
        }
    }

    fn side(&self) -> Side {
        match self {
            Self::Send { .. } => Side::Send,
            Self::Recv { .. } => Side::Recv,
        }
    }
}

impl UnboundBuffer {
    /// See [`Context::is_inherited`].
    pub fn is_inherited(&self) -> bool {
        self.context.is_inherited()
    }

    #[cfg(test)]
    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<*mut u8> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.memory.wrapping_add(offset)),
            _ => Err(Error::invalid(format!(
                "{bytes} bytes at offset {offset} are not inside a buffer of {} bytes",
                self.bytes
            ))),
        }
    }

    /// Runs `post`, which posts an operation of one side, and counts its end in the queue to which the buffer is
    /// attached: both with the lock, so that [`UnboundBuffer::attach`] counts each operation once.
    fn start(&self, side: Side, post: impl FnOnce(&mut Guard<'_>)) -> Result<()> {
        self.start_in(self.context.lock()?, side, post);
        Ok(())
    }

    /// [`UnboundBuffer::start`] with the lock, which it releases.
    fn start_in(&self, mut guard: Guard<'_>, side: Side, post: impl FnOnce(&mut Guard<'_>)) {
        let after = self.attachment.count(side);
        post(&mut guard);
        self.context.engine().leave(guard);
        after.iter().for_each(|after| after.wake());
    }

    /// The context of its messages.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Starts to send `bytes` at `offset` to `to`.
    pub fn send(&self, to: Rank, slot: Slot, offset: usize, bytes: usize) -> Result<()> {
        let message = self.message_to(to, slot, offset, bytes)?;
        self.start(Side::Send, |guard| self.post(guard, &message))
    }

    /// Starts to receive at most `bytes` at `offset`, from the first of `from` that sends. The list may contain this
    /// rank, and a rank more than once.
    pub fn recv(&self, from: &[Rank], slot: Slot, offset: usize, bytes: usize) -> Result<()> {
        let message = self.message_from(from, slot, offset, bytes)?;
        self.start(Side::Recv, |guard| self.post(guard, &message))
    }

    /// The message that [`UnboundBuffer::send`] sends.
    pub(super) fn message_to(&self, to: Rank, slot: Slot, offset: usize, bytes: usize) -> Result<Message<'_>> {
        self.context.check_rank(to)?;
        Ok(Message::Send { to, slot, from: self.at(offset, bytes)?.cast_const(), bytes })
    }

    /// The message that [`UnboundBuffer::recv`] receives.
    pub(super) fn message_from<'a>(
        &self,
        from: &'a [Rank],
        slot: Slot,
        offset: usize,
        bytes: usize,
    ) -> Result<Message<'a>> {
        from.iter().try_for_each(|rank| self.context.check_rank(*rank))?;
        if from.is_empty() {
            return Err(Error::invalid("a receive needs at least one rank to receive from"));
        }
        Ok(Message::Recv { from: Cow::Borrowed(from), slot, into: self.at(offset, bytes)?, bytes })
    }

    /// Posts a message of this buffer, and counts its end in the queue to which the buffer is attached. What is
    /// returned is to be done without the lock.
    pub(super) fn post_counted(&self, guard: &mut Guard<'_>, message: &Message<'_>) -> Option<After<Context>> {
        let after = self.attachment.count(message.side());
        self.post(guard, message);
        after
    }

    /// Posts a message of this buffer.
    fn post(&self, guard: &mut Guard<'_>, message: &Message<'_>) {
        let space = Space::USER;
        match message {
            Message::Send { to, slot, from, bytes } => {
                let token = guard.requests.begin(self.owner, Side::Send, &[*to]);
                let (to, slot, from, bytes) = (*to, *slot, *from, *bytes);
                // SAFETY: the caller keeps the memory valid until the buffer is dropped, which cancels the operation.
                unsafe {
                    guard.messenger.send(Send { to, space, slot, fingerprint: 0, from, bytes, more: false, token })
                };
            }
            Message::Recv { from, slot, into, bytes } => {
                let token = guard.requests.begin(self.owner, Side::Recv, from);
                let source = match from[..] {
                    [rank] => Source::Rank(rank),
                    _ => Source::AnyOf(from[..].into()),
                };
                let (slot, into, bytes, fingerprint, exact, reduce) = (*slot, *into, *bytes, 0, false, None);
                // SAFETY: the caller keeps the memory valid until the buffer is dropped, which cancels the operation.
                unsafe {
                    guard.messenger.recv(Recv {
                        from: source,
                        space,
                        slot,
                        fingerprint,
                        into,
                        bytes,
                        exact,
                        more: false,
                        reduce,
                        token,
                    })
                };
            }
        }
    }

    fn wait(&self, side: Side, timeout: Option<Duration>) -> Result<Option<(Rank, usize)>> {
        self.context.check_process()?;
        self.attachment.check().map_err(|error| error.during(side.operation()))?;
        let (deadline, within) = self.context.deadline(timeout);
        self.wait_for(side, deadline, within)
            .map_err(|error| self.context.amended(timeout, deadline, error.during(side.operation())))
    }

    fn wait_for(&self, side: Side, deadline: Instant, timeout: Duration) -> Result<Option<(Rank, usize)>> {
        let guard = self.context.lock()?;
        let engine = self.context.engine();
        let peer = guard.requests.peer(self.owner, side);
        let (guard, ended) =
            engine.wait_for(guard, peer, &mut Idle::default(), deadline, |core| core.requests.take(self.owner, side));
        let own = Requests::token(self.owner, side);
        let messenger = &guard.messenger;
        let waits = ended.is_none().then(|| {
            (messenger.diagnosis().describe(self.owner, guard.now), messenger.diagnosis().blame(|token| token == own))
        });
        engine.hand_over(guard);
        let doing = || doing(&self.context, side, self.bytes);
        match ended {
            Some(Ended::Message(rank, bytes)) => Ok(Some((rank, bytes))),
            Some(Ended::Aborted) => Ok(None),
            Some(Ended::Failed(error)) => Err(error.context(doing())),
            Some(Ended::Written { .. }) => Err(Error::new(ErrorKind::Internal, "an unbound buffer was written to")),
            None => {
                let (waits, blame) = waits.unwrap_or_default();
                let waits = if waits.is_empty() { "for something to be posted".into() } else { waits };
                let text = format!("{}: timed out {}, waiting {waits}", doing(), after(timeout));
                Err(Error::new(ErrorKind::Timeout, text).about(blame))
            }
        }
    }

    /// Waits until one more send, put or get has completed. Returns its rank, or `None` if the wait was aborted. After
    /// a timeout the operation continues, and can be waited for again.
    pub fn wait_send(&self, timeout: Option<Duration>) -> Result<Option<Rank>> {
        Ok(self.wait(Side::Send, timeout)?.map(|(rank, _)| rank))
    }

    /// Waits until one more receive has completed. Returns its rank and length, or `None` if the wait was aborted.
    /// After a timeout the operation continues, and can be waited for again.
    pub fn wait_recv(&self, timeout: Option<Duration>) -> Result<Option<(Rank, usize)>> {
        self.wait(Side::Recv, timeout)
    }

    fn abort(&self, side: Side) {
        if let Ok(mut guard) = self.context.lock() {
            guard.requests.abort(self.owner, side);
            drop(guard);
            self.context.engine().wake();
        }
    }

    /// Aborts the current or next `wait_send`.
    pub fn abort_wait_send(&self) {
        self.abort(Side::Send);
    }

    /// Aborts the current or next `wait_recv`.
    pub fn abort_wait_recv(&self) {
        self.abort(Side::Recv);
    }

    /// Fails all current and later waits with `Closed`, before the buffer is dropped.
    pub fn close(&self) {
        self.context.close_buffer(self.owner);
    }

    /// A key with which other ranks can `put` into this buffer and `get` from it until it is dropped.
    pub fn remote_key(&self) -> Result<RemoteKey> {
        let mut guard = self.context.lock()?;
        let id = match self.region.get() {
            Some(id) => *id,
            None => {
                // SAFETY: the caller keeps the memory valid until the buffer is dropped, which unregisters it.
                let id = unsafe { guard.messenger.register(self.memory, self.bytes) }?;
                *self.region.get_or_init(|| id)
            }
        };
        let context = guard.messenger.connections().address().context_number();
        self.context.engine().leave(guard);
        Ok(RemoteKey { rank: self.context.rank, id, bytes: self.bytes, context })
    }

    /// What an access by `key` accesses. Fails if the key is not of this context.
    fn remote(&self, guard: &Guard<'_>, key: &RemoteKey, remote_offset: usize, bytes: usize) -> Result<Remote> {
        let connections = guard.messenger.connections();
        let is_of_another = match key.rank {
            rank if rank == self.context.rank => connections.address().context_number() != key.context,
            rank if rank < self.context.size => {
                connections.peers().context_number(rank).is_some_and(|number| number != key.context)
            }
            _ => true,
        };
        if is_of_another {
            let text = format!(
                "the remote key {key} is of another context, or of an earlier membership of this one: exchange it anew"
            );
            return Err(Error::new(ErrorKind::InvalidOperation, text));
        }
        if remote_offset.checked_add(bytes).is_none_or(|end| end > key.bytes) {
            return Err(Error::invalid(format!(
                "{bytes} bytes at offset {remote_offset} are not inside the buffer of {} bytes of rank {}",
                key.bytes, key.rank
            )));
        }
        Ok(Remote { rank: key.rank, region: key.id, offset: remote_offset as u64 })
    }

    /// Starts to write `bytes` at `offset` into the remote buffer at `remote_offset`; `wait_send` returns when they are
    /// there. `slot` is accepted for compatibility with Gloo, and ignored.
    pub fn put(&self, key: &RemoteKey, slot: Slot, offset: usize, remote_offset: usize, bytes: usize) -> Result<()> {
        let _ = slot;
        let from = self.at(offset, bytes)?;
        let guard = self.context.lock()?;
        let remote = self.remote(&guard, key, remote_offset, bytes)?;
        self.start_in(guard, Side::Send, |guard| {
            let token = guard.requests.begin(self.owner, Side::Send, &[key.rank]);
            // SAFETY: the caller keeps the memory valid until the buffer is dropped, which cancels the operation.
            unsafe { guard.messenger.put(remote, from, bytes, token) };
        });
        Ok(())
    }

    /// Starts to read `bytes` at `remote_offset` of the remote buffer into `offset`; `wait_send` returns when they are
    /// here. `slot` is accepted for compatibility with Gloo, and ignored.
    pub fn get(&self, key: &RemoteKey, slot: Slot, offset: usize, remote_offset: usize, bytes: usize) -> Result<()> {
        let _ = slot;
        let into = self.at(offset, bytes)?;
        let guard = self.context.lock()?;
        let remote = self.remote(&guard, key, remote_offset, bytes)?;
        self.start_in(guard, Side::Send, |guard| {
            let token = guard.requests.begin(self.owner, Side::Send, &[key.rank]);
            // SAFETY: the caller keeps the memory valid until the buffer is dropped, which cancels the operation.
            unsafe { guard.messenger.get(remote, into, bytes, token) };
        });
        Ok(())
    }
}

impl Drop for UnboundBuffer {
    fn drop(&mut self) {
        if let Ok(mut guard) = self.context.lock() {
            if let Some(region) = self.region.get() {
                guard.messenger.unregister(*region);
            }
            guard.messenger.cancel(self.owner);
            guard.messenger.connections_mut().release_memory(self.memory, self.bytes);
            guard.requests.leave(self.owner);
            self.context.engine().leave(guard);
            if let Some((queue, numbers)) = self.attachment.take() {
                numbers.into_iter().for_each(|number| queue.remove(number));
            }
        }
    }
}

/// What a wait for an end of a buffer's operation does, for errors.
fn doing(context: &Context, side: Side, bytes: usize) -> String {
    let what = if side == Side::Send { "send, put or get" } else { "receive" };
    format!("{}: wait for a {what} of a buffer of {bytes} bytes", context.own())
}
