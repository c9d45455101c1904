//! The place of a context among its ranks, which only a reconfigure changes.

use crate::abi::GLOO_RS_ERROR_INVALID_OPERATION;
use crate::collective::Place;
use crate::error::exception_of;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How often a thread that reconfigures a context looks whether the calls that it has aborted have ended.
const LOOK: Duration = Duration::from_micros(100);

/// The place, and who uses it: the buffers of a call have the lengths that its membership needs, and it must not run in
/// another one.
pub struct Places {
    /// The rank, and the size in the upper half; both are -1 without members.
    place: AtomicU64,
    /// Whether a thread reconfigures the context. No call begins meanwhile.
    is_reconfigured: AtomicBool,
    /// How many calls are between the look at the place and their end.
    calls: AtomicUsize,
}

/// A call. The place stays as it is until this is dropped.
pub struct Calling<'a> {
    places: &'a Places,
    pub place: Place,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.places.calls.fetch_sub(1, Ordering::Release);
    }
}

impl Places {
    pub fn new(place: Place) -> Self {
        let places =
            Self { place: AtomicU64::new(0), is_reconfigured: AtomicBool::new(false), calls: AtomicUsize::new(0) };
        places.set(place);
        places
    }

    pub fn get(&self) -> Place {
        let place = self.place.load(Ordering::Relaxed);
        Place { rank: place as i32, size: (place >> 32) as i32 }
    }

    pub fn set(&self, place: Place) {
        self.place.store(u64::from(place.rank as u32) | u64::from(place.size as u32) << 32, Ordering::Relaxed);
    }

    /// Begins a call.
    pub fn call(&self, py: Python<'_>) -> PyResult<Calling<'_>> {
        // In one order with the flag: either this thread sees that, or the one that has set it sees this call.
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut calling = Calling { places: self, place: Place { rank: -1, size: -1 } };
        if self.is_reconfigured.load(Ordering::SeqCst) {
            return Err(refused(py, ""));
        }
        calling.place = self.get();
        Ok(calling)
    }

    /// Begins a reconfigure: no call begins until [`Places::end_change`].
    pub fn begin_change(&self, py: Python<'_>) -> PyResult<()> {
        let is_second = self.is_reconfigured.swap(true, Ordering::SeqCst);
        if is_second { Err(refused(py, "reconfigure")) } else { Ok(()) }
    }

    /// Waits for the calls that had begun before. If there are any, `abort` ends them. For threads without an
    /// interpreter.
    pub fn end_calls(&self, abort: impl FnOnce()) {
        if self.calls.load(Ordering::SeqCst) > 0 {
            abort();
        }
        while self.calls.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(LOOK);
        }
    }

    pub fn end_change(&self) {
        self.is_reconfigured.store(false, Ordering::SeqCst);
    }
}

#[cold]
fn refused(py: Python<'_>, operation: &str) -> PyErr {
    let text = "another thread reconfigures the context".to_owned();
    exception_of(py, GLOO_RS_ERROR_INVALID_OPERATION, operation, text)
}
