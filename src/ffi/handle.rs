//! Handles: the opaque pointers that C callers hold.
//!
//! Behind each is a [`Block`] with a word that says of which kind it is, so that a handle of another kind is refused, and
//! (as far as freed memory can be asked) a destroyed one too. The handle is the pointer of an `Arc`, and each call holds
//! another: what a running call uses, the block itself included, outlives the handle.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::pointer::Out;
use crate::error::{Error, Result};

/// An opaque type of the header.
pub(super) trait Handle: Sized {
    /// What the handle stands for.
    type Inner: Send + Sync;
    /// Unlike any other handle's.
    const TAG: u64;
    /// The type's name in C.
    const NAME: &'static str;
}

/// What a destroyed handle's word says until its memory is used again.
const DESTROYED: u64 = u64::from_ne_bytes(*b"gone    ");

/// The tag stands first in every kind of block, so that it can be read before the kind is known.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Block<T> {
    tag: AtomicU64,
    inner: T,
}

impl<T> Deref for Block<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

/// Puts a new handle on `inner` into `out`.
pub(super) fn create<H: Handle>(inner: H::Inner, out: Out<*mut H>) {
    let block = Block { tag: AtomicU64::new(H::TAG), inner };
    out.set(Arc::into_raw(Arc::new(block)).cast_mut().cast());
}

/// What `handle` stands for; `what` is the parameter's name.
///
/// # Safety
/// `handle` is NULL, or points to readable memory that no other thread is destroying.
pub(super) unsafe fn get<H: Handle>(handle: *const H, what: &str) -> Result<Arc<Block<H::Inner>>> {
    let block: *const Block<H::Inner> = handle.cast();
    check::<H>(block, what)?;
    // SAFETY: not NULL and aligned; the caller vouches for the memory. The tag is an atomic in every kind of block.
    let tag = unsafe { &(*block).tag }.load(Ordering::Relaxed);
    if tag != H::TAG {
        return Err(wrong::<H>(what));
    }
    // SAFETY: the tag says that this is a live block of this kind, made by `create`, whose own count is not taken yet.
    Ok(unsafe {
        Arc::increment_strong_count(block);
        Arc::from_raw(block)
    })
}

/// Ends `handle` and returns what it stood for; `None` for NULL.
///
/// # Safety
/// As for [`get`].
pub(super) unsafe fn take<H: Handle>(handle: *mut H, what: &str) -> Result<Option<Arc<Block<H::Inner>>>> {
    let block: *mut Block<H::Inner> = handle.cast();
    if block.is_null() {
        return Ok(None);
    }
    check::<H>(block, what)?;
    // SAFETY: as in `get`.
    let tag = unsafe { &(*block).tag };
    if tag.compare_exchange(H::TAG, DESTROYED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Err(wrong::<H>(what));
    }
    // SAFETY: the tag said that this is a live block of this kind, made by `create`; having changed it, we alone take the
    // handle's own count.
    Ok(Some(unsafe { Arc::from_raw(block) }))
}

fn check<H: Handle>(block: *const Block<H::Inner>, what: &str) -> Result<()> {
    if block.is_null() {
        return Err(Error::invalid(format!("{what} is NULL")));
    }
    if block.is_aligned() { Ok(()) } else { Err(wrong::<H>(what)) }
}

fn wrong<H: Handle>(what: &str) -> Error {
    Error::invalid(format!("{what} is not a live {}: another kind of handle, or destroyed", H::NAME))
}

/// Drops what a taken handle stood for, after the calls in other threads that still use it have returned. `hasten` is
/// called until then, to end their waits.
pub(super) fn drop_last<T>(mut inner: Arc<T>, hasten: impl Fn(&T)) {
    const PAUSE: Duration = Duration::from_micros(100);
    loop {
        inner = match Arc::try_unwrap(inner) {
            Ok(_) => return,
            Err(inner) => inner,
        };
        hasten(&inner);
        std::thread::sleep(PAUSE);
    }
}
