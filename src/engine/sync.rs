//! What threads meet at: the system's, or, compiled for `cfg(loom)`, what loom runs through every order of events with.

#[cfg(not(all(test, loom)))]
pub use std::{
    sync::atomic::{AtomicBool, AtomicUsize},
    sync::{Condvar, Mutex, MutexGuard},
};

#[cfg(not(all(test, loom)))]
pub use crate::sys::Waker;

#[cfg(all(test, loom))]
pub use loom::{
    sync::atomic::{AtomicBool, AtomicUsize},
    sync::{Condvar, Mutex, MutexGuard},
};

#[cfg(all(test, loom))]
pub use super::model::Waker;
