//! Handles: the opaque pointers that C callers hold.
//!
//! A handle points to a [`Block`], which begins with a tag for the handle's type. So a handle of another type is
//! refused, and also a destroyed one, unless its memory has been reused. The pointer is that of an `Arc`, and each call
//! holds another reference: the objects that a running call uses, including the block, outlive the handle.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::pointer::Out;
use crate::error::{Error, Result};

/// An opaque type of the header.
pub(super) trait Handle: Sized {
    /// The object behind the handle.
    type Inner: Send + Sync;
    /// Unique for each type of handle. Of four bytes, so that it is part of the instruction that compares it.
    const TAG: u32;
    /// The type's name in C.
    const NAME: &'static str;
}

/// The tag of a destroyed handle, until its memory is reused.
const DESTROYED: u32 = u32::from_ne_bytes(*b"gone");

/// The tag is the first field of every type of block, so that it can be read before the type is known.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Block<T> {
    tag: AtomicU32,
    inner: T,
}

impl<T> Block<T> {
    /// Whether its handle was not destroyed. The handle's reference is dropped after that.
    pub(super) fn is_live(&self) -> bool {
        self.tag.load(Ordering::Relaxed) != DESTROYED
    }
}

impl<T> Deref for Block<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

/// Creates a handle for `inner` and stores it in `out`.
pub(super) fn create<H: Handle>(inner: H::Inner, out: Out<*mut H>) {
    give(make::<H>(inner), out);
}

/// What is behind a handle for `inner`.
pub(super) fn make<H: Handle>(inner: H::Inner) -> Arc<Block<H::Inner>> {
    Arc::new(Block { tag: AtomicU32::new(H::TAG), inner })
}

/// Stores the handle of `block`, which [`make`] has made for this type, in `out`.
pub(super) fn give<H: Handle>(block: Arc<Block<H::Inner>>, out: Out<*mut H>) {
    out.set(Arc::into_raw(block).cast_mut().cast());
}

/// Returns the object behind `handle`; `what` is the parameter's name.
///
/// # Safety
/// `handle` is NULL, or points to readable memory that no other thread is destroying.
#[inline]
pub(super) unsafe fn get<H: Handle>(handle: *const H, what: &str) -> Result<Arc<Block<H::Inner>>> {
    let block: *const Block<H::Inner> = handle.cast();
    check::<H>(block, what)?;
    // SAFETY: `block` is aligned and not NULL; by the contract, it is readable. Every kind of block begins with its
    // tag, an atomic.
    let tag = unsafe { &(*block).tag }.load(Ordering::Relaxed);
    if tag != H::TAG {
        return Err(wrong::<H>(what));
    }
    // SAFETY: the tag says that `create` made this block, of this kind, from an `Arc`, and that `take` has not ended
    // the handle, whose reference keeps the block alive; by the contract, no thread ends it now.
    Ok(unsafe {
        Arc::increment_strong_count(block);
        Arc::from_raw(block)
    })
}

/// [`get`] for signal handlers: takes no reference, and allocates nothing. `None` if `handle` is not a live one.
///
/// # Safety
/// The conditions of [`get`] hold. In addition, no other thread destroys the handle while the result is in use.
pub(super) unsafe fn peek<'a, H: Handle>(handle: *const H) -> Option<&'a H::Inner> {
    let block: *const Block<H::Inner> = handle.cast();
    if block.is_null() || !block.is_aligned() {
        return None;
    }
    // SAFETY: as in `get`.
    let is_live = unsafe { &(*block).tag }.load(Ordering::Relaxed) == H::TAG;
    // SAFETY: the tag says that `create` made this block, of this kind, and by the contract, it stays.
    is_live.then(|| unsafe { &(*block).inner })
}

/// Destroys `handle` and returns the object behind it; `None` for NULL.
///
/// # Safety
/// The conditions of [`get`] hold.
pub(super) unsafe fn take<H: Handle>(handle: *mut H, what: &str) -> Result<Option<Arc<Block<H::Inner>>>> {
    let block: *mut Block<H::Inner> = handle.cast();
    if block.is_null() {
        return Ok(None);
    }
    check::<H>(block, what)?;
    // SAFETY: `block` is aligned and not NULL; by the contract, it is readable. Every kind of block begins with its
    // tag, an atomic.
    let tag = unsafe { &(*block).tag };
    if tag.compare_exchange(H::TAG, DESTROYED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Err(wrong::<H>(what));
    }
    // SAFETY: the tag said that `create` made this block, of this kind, from an `Arc`. Only this call changed the tag,
    // so it alone takes the handle's reference.
    Ok(Some(unsafe { Arc::from_raw(block) }))
}

#[inline(always)] // On the path of small collectives.
fn check<H: Handle>(block: *const Block<H::Inner>, what: &str) -> Result<()> {
    if block.is_null() {
        return Err(null(what));
    }
    if block.is_aligned() { Ok(()) } else { Err(wrong::<H>(what)) }
}

#[cold]
fn null(what: &str) -> Error {
    Error::invalid(format!("{what} is NULL"))
}

#[cold]
fn wrong<H: Handle>(what: &str) -> Error {
    Error::invalid(format!("{what} is not a live {}: it is a handle of another type, or was destroyed", H::NAME))
}

/// Waits until the calls in other threads that use the object of a destroyed handle have returned, and drops it. Until
/// then, calls `hasten` repeatedly, to end their waits.
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
