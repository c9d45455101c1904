//! The processes of this host that the contexts of a device watch: one descriptor for each, however many contexts there
//! are.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::sys::process::Process;

/// What the contexts of one device have of other processes. Thread-safe.
#[derive(Default)]
pub struct Processes(Mutex<HashMap<(u32, usize), Weak<Process>>>);

impl Processes {
    /// The process with this number. `nth`: so many peers of the same context are in it, too, and have been opened
    /// before; a poller can watch a descriptor only once.
    pub(super) fn open(&self, number: u32, nth: usize) -> io::Result<Arc<Process>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The number of a process that has ended may be another's.
        if let Some(process) = all.get(&(number, nth)).and_then(Weak::upgrade).filter(|process| !process.has_ended()) {
            return Ok(process);
        }
        let process = Arc::new(Process::open(number)?);
        all.retain(|_, process| process.strong_count() > 0);
        all.insert((number, nth), Arc::downgrade(&process));
        Ok(process)
    }
}

// Miri knows no descriptors of processes.
#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use super::*;
    use crate::sys::{self, Pollable};
    use std::time::Duration;

    #[test]
    fn a_process_is_opened_once_as_long_as_it_is_watched() {
        let (processes, own) = (Processes::default(), std::process::id());
        let [one, again] = [0, 0].map(|nth| processes.open(own, nth).unwrap());
        assert!(Arc::ptr_eq(&one, &again));
        assert!(!Arc::ptr_eq(&one, &processes.open(own, 1).unwrap()), "a context watches it twice");
        drop((one, again));
        let child = std::process::Command::new("sleep").arg("60").spawn();
        let mut child = child.unwrap();
        let watched = processes.open(child.id(), 0).unwrap();
        assert_eq!(processes.0.lock().unwrap().len(), 1, "those that nobody watches are forgotten");
        child.kill().unwrap();
        assert!(sys::poll(&[Pollable::Socket(watched.raw())], Duration::from_secs(60)));
        // The child's number is not free before this process has waited for it, but a process that has ended is not
        // given out again.
        assert!(!Arc::ptr_eq(&watched, &processes.open(child.id(), 0).unwrap()));
        child.wait().unwrap();
        assert_eq!(processes.open(child.id(), 0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
