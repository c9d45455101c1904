//! A driver of CUDA in memory, for simulations of whole jobs and for tests: a table of functions that simulate GPUs. It
//! has no threads and no clock: whenever a function is called, streams may do some of their work, in an order that the
//! seed decides, and they do all that somebody waits for.
//!
//! - Memory of a GPU is at addresses that the host cannot access. Pinned memory cannot be accessed by the host while a
//!   stream has work that writes it, and cannot be written while a stream has work that reads it: a missing
//!   synchronisation ends the process.
//! - Streams do their work in order, and know nothing of each other but by events.
//! - What the manual forbids, or leaves undefined, is noted, and [`Machine::assert_clean`] fails.
//!
//! A machine is that of the thread that has made it. All ranks that are simulated there share it, as threads of a
//! process do. `docs/cuda.md` says what of the driver is simulated.

mod functions;
mod memory;
mod state;
mod streams;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::Arc;

use state::State;

use crate::cuda::driver::Driver;

pub use functions::TABLE;
pub use memory::Kind;
pub use state::Objects;

thread_local! {
    /// The machine of this thread.
    static CURRENT: RefCell<Option<Rc<RefCell<State>>>> = const { RefCell::new(None) };
}

/// Calls `action` with the machine of this thread; `None` if it has none.
fn with<R>(action: impl FnOnce(&mut State) -> R) -> Option<R> {
    let state = CURRENT.with_borrow(Clone::clone)?;
    let result = action(&mut state.borrow_mut());
    Some(result)
}

/// When streams do their work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Not before somebody waits for it.
    Late,
    /// At any call of the driver, or later.
    Any,
}

/// The machine of this thread, until it is dropped: GPUs, and a program that has made their primary contexts.
pub struct Machine(Rc<RefCell<State>>);

impl Machine {
    /// A machine with so many GPUs.
    pub fn new(gpus: usize, seed: u64, pace: Pace) -> Self {
        let state = Rc::new(RefCell::new(State::new(gpus, seed, pace)));
        let before = CURRENT.replace(Some(state.clone()));
        assert!(before.is_none(), "a thread has one machine");
        crate::memory::ask(TABLE.pointer_get_attribute);
        Self(state)
    }

    /// The driver.
    pub fn driver(&self) -> Arc<Driver> {
        Driver::of(TABLE).expect("a driver")
    }

    /// Allocates memory as the program does, with bytes that no test writes, aligned to a page.
    pub fn allocate(&self, kind: Kind, bytes: usize) -> u64 {
        self.0.borrow_mut().allocate(kind, bytes)
    }

    /// Frees it.
    pub fn free(&self, address: u64) {
        let mut state = self.0.borrow_mut();
        assert!(state.free(address), "the program frees what it has allocated");
    }

    /// Pins memory of the host.
    ///
    /// # Safety
    /// The memory is there until [`Machine::free`] is called with it.
    pub unsafe fn register(&self, memory: &mut [u8]) -> u64 {
        self.0.borrow_mut().register(memory)
    }

    /// Writes to memory of any kind, as the program would have before a call.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.0.borrow_mut().write(address, bytes);
    }

    /// Reads memory of any kind. No stream may have work that writes it.
    pub fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        self.0.borrow_mut().read(address, bytes)
    }

    /// Sets the version of CUDA that the driver has.
    pub fn set_version(&self, version: c_int) {
        self.0.borrow_mut().version = version;
    }

    /// From now on, a stream is captured in another thread, with the mode that forbids calls in all threads.
    pub fn capture(&self) {
        self.0.borrow_mut().is_captured = true;
    }

    /// The number of calls of the driver so far that can fail.
    pub fn calls(&self) -> usize {
        self.0.borrow().log.len()
    }

    /// The name of the call with this number.
    pub fn name(&self, call: usize) -> &'static str {
        self.0.borrow().log[call]
    }

    /// The names of all calls since the call with this number.
    pub fn log(&self, from: usize) -> Vec<&'static str> {
        self.0.borrow().log[from..].to_vec()
    }

    /// Lets the call with this number fail with `status`, and do nothing.
    pub fn fail(&self, call: usize, status: c_int) {
        self.0.borrow_mut().failing = Some((call..call + 1, status));
    }

    /// Lets that call and all later ones fail with `status`: the GPU is lost, and streams do nothing more.
    pub fn lose(&self, call: usize, status: c_int) {
        self.0.borrow_mut().failing = Some((call..usize::MAX, status));
    }

    /// What exists of the library's.
    pub fn objects(&self) -> Objects {
        self.0.borrow().objects()
    }

    /// What was done that must not be.
    pub fn misuse(&self) -> Vec<String> {
        self.0.borrow().misuse.clone()
    }

    /// Fails if the library has left an object, or has used a function wrongly.
    pub fn assert_clean(&self) {
        assert_eq!(self.misuse(), [""; 0]);
        assert_eq!(self.objects(), Objects::default());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}
