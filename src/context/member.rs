//! A process that is a member of one group of ranks after another.

use std::collections::BTreeSet;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::exchange::Limit;
use super::handle::{arrange, text_of};
use super::reconfigure::{Change, Outcome};
use super::timeout::deadline_of;
use super::{Context, ContextOptions};
use crate::error::{Error, ErrorKind, Result, after};
use crate::net::handshake::Identity;
use crate::rendezvous::Store;
use crate::sys;
use crate::transport::Device;

/// The operation that errors name.
const RECONFIGURE: &str = "reconfigure";

/// How long a change waits, when it is committed, for the calls of other threads that it has ended.
const ENDING_TIME: Duration = Duration::from_secs(1);
/// How long between two looks.
const ENDING_LOOK: Duration = Duration::from_micros(50);

/// What stays while the contexts come and go: what the handle of a context refers to in C. Thread-safe.
pub struct Member {
    device: Arc<dyn Device>,
    /// Those of the first context of a process that has none yet.
    options: ContextOptions,
    /// Stands for this process while it has no context.
    identity: Identity,
    /// That of `state.present`; null without, and while it changes.
    context: AtomicPtr<Context>,
    state: Mutex<State>,
    /// Held while memory is allocated or freed, and while a change takes over what was allocated.
    allocating: Mutex<()>,
    /// Held while the context changes.
    changing: Mutex<()>,
    /// How many calls wait for that.
    parked: AtomicUsize,
    is_reconfigured: AtomicBool,
}

#[derive(Default)]
struct State {
    present: Option<Arc<Context>>,
    /// That of a change in progress.
    coming: Option<Arc<Context>>,
    /// Earlier ones, which calls that began before a change may still use.
    former: Vec<Arc<Context>>,
    /// Closed without a context.
    closed: Option<Error>,
    /// Ids of changes of which this process does not know the outcome.
    doubtful: BTreeSet<i64>,
}

/// Ends a change in progress.
struct Reconfiguring<'a>(&'a Member);

impl Drop for Reconfiguring<'_> {
    fn drop(&mut self) {
        self.0.state().coming = None;
        self.0.is_reconfigured.store(false, Ordering::Release);
    }
}

impl From<Arc<Context>> for Member {
    fn from(context: Arc<Context>) -> Self {
        let (device, options) = (context.device().clone(), context.options.clone());
        let member = Self::empty(device, options, Identity::default());
        member.context.store(Arc::as_ptr(&context).cast_mut(), Ordering::Relaxed);
        member.state().present = Some(context);
        member
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn without_members() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the context has no members: reconfigure it first")
}

impl Member {
    /// A process without a context, until it is reconfigured.
    pub fn without_context(device: Arc<dyn Device>, options: &ContextOptions) -> Result<Self> {
        let options = options.with_environment(device.as_ref())?;
        let identity = sys::random().map_err(|error| Error::io("cannot get random bytes", &error))?;
        Ok(Self::empty(device, options, identity))
    }

    fn empty(device: Arc<dyn Device>, options: ContextOptions, identity: Identity) -> Self {
        let (context, parked) = (AtomicPtr::new(null_mut()), AtomicUsize::new(0));
        let (state, allocating, changing) = (Mutex::default(), Mutex::default(), Mutex::default());
        let is_reconfigured = AtomicBool::new(false);
        Self { device, options, identity, context, state, allocating, changing, parked, is_reconfigured }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The present context. Fails if there is none. Waits while it changes.
    #[inline]
    pub fn context(&self) -> Result<&Context> {
        match self.peek() {
            Some(context) => Ok(context),
            None => self.await_change(),
        }
    }

    /// The present context, unless there is none or it changes. Waits for nothing.
    #[inline(always)] // On the path of small collectives.
    pub fn peek(&self) -> Option<&Context> {
        // SAFETY: it is the context of an `Arc` in `state`, which `adopt` alone takes out, when nobody uses it.
        unsafe { self.context.load(Ordering::SeqCst).as_ref() }
    }

    /// [`Member::context`], with a reference of its own.
    #[inline]
    pub fn shared(&self) -> Result<Arc<Context>> {
        let context: *const Context = self.context()?;
        // SAFETY: it is from `Arc::as_ptr`, and `adopt` leaves the reference in `state` alone while this one is made.
        Ok(unsafe {
            Arc::increment_strong_count(context);
            Arc::from_raw(context)
        })
    }

    #[cold]
    fn await_change(&self) -> Result<&Context> {
        self.parked.fetch_add(1, Ordering::SeqCst);
        drop(lock(&self.changing));
        self.parked.fetch_sub(1, Ordering::SeqCst);
        self.peek().ok_or_else(without_members)
    }

    /// The device of the contexts.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The present context, and the one of a change in progress.
    fn contexts(&self) -> (Option<Arc<Context>>, Option<Arc<Context>>) {
        let state = self.state();
        (state.present.clone(), state.coming.clone())
    }

    /// Names this process and its present membership. Each membership has another.
    pub fn handle(&self) -> Result<String> {
        match self.contexts().0 {
            Some(present) => Ok(text_of(&present.lock()?.messenger.connections().address().identity)),
            None => Ok(text_of(&self.identity)),
        }
    }

    /// Why nothing can run on the present context any more, if so.
    pub fn broken(&self) -> Option<Error> {
        let state = self.state();
        match &state.present {
            Some(present) => present.broken(),
            None => state.closed.clone(),
        }
    }

    /// [`Context::abort`], and of a change in progress.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let (present, coming) = self.contexts();
        if present.is_none() && coming.is_none() {
            return Err(without_members());
        }
        coming.into_iter().chain(present).try_for_each(|context| context.abort(reason))
    }

    /// Closes the present context, and that of a change in progress, for good.
    pub fn close(&self) {
        let mut state = self.state();
        let closed = || Error::new(ErrorKind::Closed, "this process has closed the context");
        state.closed.get_or_insert_with(closed);
        let contexts = (state.present.clone(), state.coming.clone());
        drop(state);
        contexts.1.into_iter().chain(contexts.0).for_each(|context| context.close());
    }

    /// [`Context::alloc`]. The memory stays when the membership changes.
    pub fn alloc(&self, bytes: usize) -> Result<NonNull<u8>> {
        let _allocating = lock(&self.allocating);
        self.contexts().0.ok_or_else(without_members)?.alloc(bytes)
    }

    /// [`Context::dealloc`].
    ///
    /// # Safety
    /// That of [`Context::dealloc`].
    pub unsafe fn dealloc(&self, memory: *mut u8) -> Result<()> {
        let _allocating = lock(&self.allocating);
        // SAFETY: by the contract.
        unsafe { self.contexts().0.ok_or_else(without_members)?.dealloc(memory) }
    }

    /// Makes this process a member of the group with these `handles`, each that of a process: its ranks are their
    /// positions if they are `ordered`, and else those of the sorted handles. Collective: all members pass the same,
    /// and the same `id`, which no other change over this store has had. `store` is the part of it for this id.
    ///
    /// First, what runs on the present context ends with `Aborted`. If this succeeds, all members have the new
    /// membership, and the present context ends. If it fails, none has; the present context is as it was, or aborted if
    /// something ran. Only if this member cannot find out what the others know is its present context broken.
    ///
    /// # Safety
    /// `uses` returns how many uses of this member there are beside this call: of its context by reference, and calls
    /// of [`Member::context`] and [`Member::shared`] from before they begin, in the order of `SeqCst` fences on both
    /// sides.
    pub unsafe fn reconfigure(
        &self,
        store: &dyn Store,
        id: i64,
        handles: &[&str],
        ordered: bool,
        timeout: Option<Duration>,
        uses: &dyn Fn() -> usize,
    ) -> Result<()> {
        let store_name = store.describe();
        // SAFETY: by the contract.
        let changed = unsafe { self.change(store, id, handles, ordered, timeout, uses) };
        changed.map_err(|error| {
            let error = match error.kind() {
                ErrorKind::InvalidArgument => return error,
                // It is the store that is lost.
                ErrorKind::ConnectionLost if error.details().rank.is_none() => {
                    Error::new(ErrorKind::Io, error.message()).about(*error.details())
                }
                _ => error,
            };
            error.context(format_args!("cannot reconfigure by the id {id} over {store_name}")).during(RECONFIGURE)
        })
    }

    /// # Safety
    /// See [`Member::reconfigure`].
    unsafe fn change(
        &self,
        store: &dyn Store,
        id: i64,
        handles: &[&str],
        ordered: bool,
        timeout: Option<Duration>,
        uses: &dyn Fn() -> usize,
    ) -> Result<()> {
        if self.is_reconfigured.swap(true, Ordering::Acquire) {
            return Err(Error::new(ErrorKind::InvalidOperation, "another thread reconfigures this context"));
        }
        let _reconfiguring = Reconfiguring(self);
        let (members, rank) = arrange(&self.handle()?, handles, ordered)?;
        let present = self.contexts().0;
        let options = present.as_ref().map_or_else(|| self.options.clone(), |present| present.options_of_part());
        let timeout = timeout.unwrap_or(options.timeout);
        let now = self.device.clock().now();
        let deadline = deadline_of(now, timeout);
        let coming = Context::new(self.device.clone(), rank, members.len(), &options)?;
        {
            let mut state = self.state();
            if let Some(closed) = &state.closed {
                return Err(closed.clone());
            }
            if state.doubtful.contains(&id) {
                let text =
                    format!("this process has used the id {id} before, and does not know whether it was committed");
                return Err(Error::new(ErrorKind::Mismatch, text));
            }
            state.coming = Some(coming.clone());
        }
        if let Some(present) = &present {
            present.end_calls("it reconfigures the context")?;
        }
        let limit = Limit { deadline, timeout, by_default: false };
        let change = Change { context: &coming, present: present.as_deref(), store, id, members: &members, limit };
        match change.run() {
            Outcome::Committed(_) => {
                // SAFETY: by the contract.
                unsafe { self.adopt(coming.clone(), uses) };
                // It may have been aborted or closed meanwhile.
                coming.broken().filter(|error| error.kind().is_intended()).map_or(Ok(()), Err)
            }
            Outcome::Failed(error) => Err(error),
            Outcome::Unknown(error) => {
                self.state().doubtful.insert(id);
                let text = format!("{}, it is not known whether the new membership was committed", after(timeout));
                let kind = if error.kind() == ErrorKind::Timeout { ErrorKind::Timeout } else { ErrorKind::Io };
                let error = Error::new(kind, format!("{text}: {error}"));
                present.into_iter().for_each(|present| present.give_up(&error));
                Err(error)
            }
        }
    }

    /// Replaces the present context, which ends. Calls that begin meanwhile wait.
    ///
    /// # Safety
    /// See [`Member::reconfigure`].
    unsafe fn adopt(&self, coming: Arc<Context>, uses: &dyn Fn() -> usize) {
        let changing = lock(&self.changing);
        self.context.store(null_mut(), Ordering::SeqCst);
        let allocating = lock(&self.allocating);
        let mut state = self.state();
        let former = state.present.replace(coming.clone());
        state.coming = None;
        drop(state);
        former.iter().for_each(|former| coming.inherit_allocations(former));
        drop(allocating);
        if let Some(former) = former {
            former.end_membership();
            // Calls that this has ended say so; those that come later say that they are of an earlier membership.
            let until = Instant::now() + ENDING_TIME;
            let is_used = || {
                // First: those that wait are among the uses.
                let parked = self.parked.load(Ordering::SeqCst);
                uses() > parked
            };
            while is_used() && Instant::now() < until {
                std::thread::sleep(ENDING_LOOK);
            }
            former.outdate();
            let mut all = std::mem::take(&mut self.state().former);
            all.push(former);
            if is_used() {
                self.state().former = all;
            }
        }
        self.context.store(Arc::as_ptr(&coming).cast_mut(), Ordering::SeqCst);
        drop(changing);
    }
}

impl Context {
    /// Aborts the context if something of the program is in progress there.
    fn end_calls(&self, why: &str) -> Result<()> {
        let mut guard = self.lock()?;
        if guard.is_busy() {
            let text = format!("rank {} has ended its operations: {why}", self.rank);
            guard.abort(&Error::new(ErrorKind::Aborted, text).with_rank(self.rank));
        }
        self.finish_closing(guard);
        Ok(())
    }

    /// Ends what runs on the context, on all ranks, because this one has another membership.
    fn end_membership(&self) {
        let text = format!("rank {} has reconfigured its context: this membership has ended", self.rank);
        let error = Error::new(ErrorKind::Aborted, text).with_rank(self.rank);
        if let Ok(mut guard) = self.lock() {
            guard.abort(&error);
            self.finish_closing(guard);
        }
        self.agreements.iter().for_each(|agreements| agreements.close(&error));
    }

    /// Later calls fail because they are of an earlier membership.
    fn outdate(&self) {
        let text = "this is of an earlier membership of the context, which was reconfigured: make a new one";
        if let Ok(mut guard) = self.lock() {
            guard.outdate(&Error::new(ErrorKind::InvalidOperation, text));
        }
    }

    /// Breaks the context with `error`.
    pub(super) fn give_up(&self, error: &Error) {
        if let Ok(mut guard) = self.lock() {
            guard.break_with(error, Some(error));
            self.finish_closing(guard);
        }
    }

    /// Takes over the memory that was allocated on `former`.
    fn inherit_allocations(&self, former: &Context) {
        let memory = self.allocations.take_over(&former.allocations);
        if let Ok(mut guard) = self.lock() {
            for (start, bytes) in memory {
                guard.messenger.connections_mut().retain_memory(start, bytes);
            }
        }
    }
}
