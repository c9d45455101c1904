//! How a context fails, closes or is aborted, and how a run does.

use crate::engine::Core;
use crate::error::{Error, ErrorKind};

impl Core {
    /// Fails all operations with `error`, after an error that leaves the context in an undefined state. Peers are sent
    /// `notice`.
    pub fn break_with(&mut self, error: &Error, notice: Option<&Error>) {
        if self.broken.is_none() {
            self.broken = Some(error.clone());
        }
        self.close_shared();
        self.fail_all(error);
        self.messenger.close(error, notice);
        self.dispatch();
    }

    /// Ends all operations with `error`, that of an abort, and has peers do the same. A later abort, and one of a
    /// context that this process has closed, changes nothing.
    pub fn abort(&mut self, error: &Error) {
        let earlier = self.broken.take();
        if let Some(ended) = earlier.as_ref().filter(|earlier| earlier.kind().is_intended()) {
            self.broken = Some(ended.clone());
            return;
        }
        let error =
            earlier.map_or_else(|| error.clone(), |earlier| error.and(format_args!("; before that: {earlier}")));
        self.break_with(&error, Some(&error));
        self.ended = true;
    }

    /// Whether something of the program is in progress: a collective, a message, or a connection.
    pub fn is_busy(&mut self) -> bool {
        self.end_registration();
        let is_running = || self.operations.iter().any(|(_, operation)| !operation.is_over());
        self.connecting > 0 || self.requests.are_under_way() || is_running() || !self.only_in_memory().is_empty()
    }

    /// Why what was running has ended, if the context is broken.
    pub fn ended_by(&self) -> Option<&Error> {
        self.ended_by.as_ref().or(self.broken.as_ref())
    }

    /// What is called from now on fails with `error`, in place of the one with which all that ran has ended.
    pub fn outdate(&mut self, error: &Error) {
        let ended_by = self.broken.replace(error.clone());
        self.ended_by = self.ended_by.take().or(ended_by);
        self.messenger.outdate(error);
    }

    /// Whether the context was aborted.
    pub fn is_aborted(&self) -> bool {
        self.broken.as_ref().is_some_and(|broken| broken.kind() == ErrorKind::Aborted)
    }

    /// Fails all runs that are not over. If the program has ended the context, the error says what each waited for.
    fn fail_all(&mut self, error: &Error) {
        for (index, operation) in self.operations.iter_mut().filter(|(_, operation)| !operation.is_over()) {
            let waits = match error.kind() {
                kind if kind.is_intended() => self.messenger.diagnosis().describe(index, self.now),
                _ => String::new(),
            };
            let waited = || error.and(format_args!("; it waited {waits}"));
            operation.failed = Some(if waits.is_empty() { error.clone() } else { waited() });
            self.ended |= operation.note(self.now);
        }
    }

    pub(super) fn close_shared(&self) {
        if let Some(shared) = &self.shared {
            shared.close();
        }
    }

    /// The run `index` fails with `error`.
    pub fn fail(&mut self, index: u32, error: Error) {
        let operation = &mut self.operations[index];
        operation.failed.get_or_insert(error);
        self.ended |= operation.note(self.now);
    }
}
