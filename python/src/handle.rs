//! Handles of the C ABI, which are destroyed with the objects that own them.

use crate::abi::gloo_rs_status_t;
use crate::error::{Failed, check, detached};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// How often a thread looks for a lock that another one has during a call of the library.
const LOCK_LOOK: Duration = Duration::from_micros(20);

/// Locks what the collector of garbage reads. Only threads that are attached to the interpreter take such a lock, so
/// that no thread does while the collector, which goes over all objects several times, has stopped these.
pub fn lock_attached<'a, T>(py: Python<'_>, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => py.detach(|| std::thread::sleep(LOCK_LOOK)),
        }
    }
}

/// An owned handle, never null.
pub struct Handle<T> {
    pointer: *mut T,
    destroy: unsafe extern "C" fn(*mut T),
}

// SAFETY: all handles are thread-safe, by the header.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// The handle at `pointer`, which the caller owns; none if it is null.
    pub fn of(pointer: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        (!pointer.is_null()).then_some(Self { pointer, destroy })
    }

    /// What `create` makes, without the interpreter's lock.
    pub fn create(
        py: Python<'_>,
        destroy: unsafe extern "C" fn(*mut T),
        create: impl FnOnce(*mut *mut T) -> gloo_rs_status_t,
    ) -> PyResult<Self> {
        let mut pointer = std::ptr::null_mut();
        check(py, detached(py, || create(&mut pointer)))?;
        Ok(Self { pointer, destroy })
    }

    /// What `create` makes. For threads without an interpreter.
    pub fn create_on_thread(
        destroy: unsafe extern "C" fn(*mut T),
        create: impl FnOnce(*mut *mut T) -> gloo_rs_status_t,
    ) -> Result<Self, Failed> {
        let mut pointer = std::ptr::null_mut();
        Failed::check(create(&mut pointer))?;
        Ok(Self { pointer, destroy })
    }

    pub fn get(&self) -> *mut T {
        self.pointer
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: the handle came from the create function of this type; whoever drops it has the only reference.
        unsafe { (self.destroy)(self.pointer) }
    }
}
