//! Threads that the program lends to a context.

use std::time::Duration;

use crate::context::Context;
use crate::engine::Idle;
use crate::error::{Error, Result};

impl Context {
    /// Does the work of all operations of the context for this time, as a thread that waits for one does: progresses
    /// them, and calls the functions of calls that were started. Without a time, until the context is broken or closed,
    /// which ends it at once with the reason.
    pub fn progress_for(&self, time: Option<Duration>) -> Result<()> {
        self.check_process()?;
        let (engine, mut idle) = (self.engine(), Idle::default());
        let (until, _) = self.deadline(Some(time.unwrap_or(Duration::MAX)));
        let _stay = engine.stay();
        loop {
            let (mut guard, found) = engine.wait_for(engine.lock(), None, &mut idle, until, |core| {
                let broken = core.broken.clone().map(Err);
                broken.or_else(|| core.next_function().map(Ok))
            });
            let is_over = match found {
                None => Some(Ok(())),
                Some(Err(error)) => Some(Err(self.lent_in_vain(error))),
                Some(Ok(function)) => {
                    guard = engine.call_function(guard, function);
                    idle = Idle::default();
                    (engine.now() >= until).then_some(Ok(()))
                }
            };
            engine.hand_over(guard);
            if let Some(result) = is_over {
                return result;
            }
        }
    }

    #[cold]
    fn lent_in_vain(&self, error: Error) -> Error {
        self.versions.added_to(error.context("the context is broken").context(self.own()).during("progress"))
    }
}
