//! The GPUs of a context, and the work that its calls give them.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::{Driver, number};
use super::gpu::{Gpu, Mark, Task};
use super::pinned::{Pinned, Pool};
use crate::error::{Error, Result};

/// The GPUs that a context has used.
pub struct Gpus {
    driver: Arc<Driver>,
    known: Mutex<Vec<Arc<Gpu>>>,
    pool: Arc<Pool>,
}

/// A task of a GPU.
pub struct Work {
    /// Who does it.
    pub gpu: Arc<Gpu>,
    /// What is done.
    pub task: Task,
    /// What it is for, in errors: `copying input 0 of 40 bytes`.
    pub what: String,
}

impl Gpus {
    /// The GPUs of this driver.
    pub fn new(driver: Arc<Driver>) -> Self {
        Self { driver, known: Mutex::default(), pool: Arc::default() }
    }

    /// The GPU in whose memory `pointer` is.
    pub fn of(&self, pointer: u64) -> Result<Arc<Gpu>> {
        let mut ordinal: c_int = 0;
        // SAFETY: this attribute is an `int`.
        if !unsafe { self.driver.attribute(pointer, number::POINTER_ATTRIBUTE_DEVICE_ORDINAL, &mut ordinal) }? {
            return Err(Error::invalid("it is not memory of a GPU"));
        }
        let gpu = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            match known.iter().find(|gpu| gpu.ordinal() == ordinal) {
                Some(gpu) => gpu.clone(),
                None => {
                    let gpu = Arc::new(Gpu::open(&self.driver, ordinal)?);
                    known.push(gpu.clone());
                    gpu
                }
            }
        };
        gpu.check_context(pointer)?;
        Ok(gpu)
    }

    /// Pinned memory, which all GPUs can access at its address.
    pub fn pinned(&self, gpu: &Arc<Gpu>, bytes: usize) -> Result<Pinned> {
        self.pool.take(gpu, bytes)
    }

    /// Does all work, and returns when it is done: that of one GPU in its order, that of several at the same time.
    /// After a failure no GPU accesses the memory any more, or else pinned memory is not used again.
    ///
    /// # Safety
    /// The memory of the tasks is there, and nobody else accesses it in a conflicting way, until this returns.
    pub unsafe fn run(&self, works: &[Work]) -> Result<()> {
        // SAFETY: by the contract.
        let result = unsafe { enqueue_all(works) }.and_then(|marks| marks.iter().try_for_each(Mark::wait));
        if result.is_err() {
            for gpu in gpus(works) {
                if gpu.synchronize().is_err() {
                    self.pool.abandon();
                }
            }
        }
        result
    }
}

/// The GPUs with work, each once.
fn gpus(works: &[Work]) -> impl Iterator<Item = &Arc<Gpu>> {
    let is_first = |at: usize| !works[..at].iter().any(|work| Arc::ptr_eq(&work.gpu, &works[at].gpu));
    works.iter().enumerate().filter(move |(at, _)| is_first(*at)).map(|(_, work)| &work.gpu)
}

/// Enqueues all work; returns a mark behind that of each GPU.
///
/// # Safety
/// The memory of the tasks is there, and nobody else accesses it in a conflicting way, until all marks are reached.
unsafe fn enqueue_all(works: &[Work]) -> Result<Vec<Mark<'_>>> {
    let enqueue = |gpu: &'_ Arc<Gpu>| {
        for work in works.iter().filter(|work| Arc::ptr_eq(&work.gpu, gpu)) {
            // SAFETY: by the contract.
            unsafe { gpu.enqueue(&work.task) }.map_err(|error| error.context(&work.what))?;
        }
        Ok(())
    };
    let mut marks = Vec::new();
    for gpu in gpus(works) {
        marks.push(gpu.within(|| enqueue(gpu).and_then(|()| gpu.record()))?);
    }
    Ok(marks)
}
