//! What the handle of a context stands for, and who uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence, fence};

use super::handle::Block;
use crate::context::{Context, Member};
use crate::error::Result;

/// The object behind a context's handle. Each call on the handle keeps it alive while the call runs.
pub struct ContextHandle {
    pub(super) member: Member,
    pub(super) waits: Waits,
    /// How many signal handlers use it.
    peeks: AtomicUsize,
}

impl ContextHandle {
    pub(super) fn new(member: impl Into<Member>) -> Self {
        Self { member: member.into(), waits: Waits::default(), peeks: AtomicUsize::new(0) }
    }

    /// The present context, unless there is none or it changes. Waits for nothing.
    #[inline(always)] // On the path of small collectives.
    pub(super) fn present(&self) -> Option<&Context> {
        order();
        self.member.peek()
    }

    /// The present context. Fails if there is none. Waits while it changes.
    #[inline]
    pub(super) fn context(&self) -> Result<&Context> {
        order();
        self.member.context()
    }

    /// The context that the handle refers to, with a reference of its own.
    #[inline]
    pub(super) fn shared(&self) -> Result<Arc<Context>> {
        order();
        self.member.shared()
    }

    /// Runs `act`, of a signal handler, on the present context, if there is one.
    pub(super) fn peek<T>(&self, act: impl FnOnce(&Context) -> T) -> Option<T> {
        self.peeks.fetch_add(1, Ordering::SeqCst);
        let done = self.present().map(act);
        self.peeks.fetch_sub(1, Ordering::Release);
        done
    }

    /// How many other calls use the handle, or wait in its pairs, buffers and requests.
    pub(super) fn uses(handle: &Arc<Block<Self>>) -> usize {
        // Each call counts itself, and then takes the context, with `order` in between.
        fence(Ordering::SeqCst);
        let (references, peeks) = (Arc::strong_count(handle), handle.peeks.load(Ordering::Relaxed));
        // What those have done that have ended is seen, and so is that the handle was destroyed, if `references` says
        // so.
        fence(Ordering::Acquire);
        let own = if handle.is_live() { 2 } else { 1 };
        references - own + peeks + handle.waits.count()
    }
}

/// Has others see that this call uses the handle before it takes the context. On x86-64 the addition to the count of
/// references has done that.
#[inline(always)]
fn order() {
    if cfg!(all(target_arch = "x86_64", not(miri))) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Counts the calls that wait in the pairs, buffers and requests of one context.
#[derive(Clone, Default)]
pub struct Waits(Arc<AtomicUsize>);

impl Waits {
    /// Runs `wait` and counts it.
    pub(super) fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        wait()
    }

    /// Counts a wait until the result is dropped.
    #[inline]
    pub(super) fn enter(&self) -> Entered<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Entered(&self.0)
    }

    /// How many calls wait.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// A wait that is counted.
pub(super) struct Entered<'a>(&'a AtomicUsize);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
