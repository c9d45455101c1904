//! A plain call of a collective: finds or prepares it, executes it, and returns when it has ended.

use std::sync::Arc;
use std::time::Instant;

use crate::context::Context;
use crate::context::call::Call;
use crate::context::rounds::Exclusion;
use crate::context::run::Run;
use crate::engine::Prepared;
use crate::engine::cache::CallKey;
use crate::engine::plan;
use crate::error::{Error, Result};

impl Context {
    /// Runs a collective, and returns when this rank's part is done.
    ///
    /// An invalid call is refused before anything is sent. A call that fails later leaves the ranks in undefined
    /// states, so the context is broken from then on: connected peers are notified, and every later collective on it
    /// fails; see [`Context::broken`].
    ///
    /// # Safety
    /// Every pointer of `call` is valid for the elements that the shape says ([`crate::collective::Shape::input_len`],
    /// [`crate::collective::Shape::output_len`]) until this returns. Outputs overlap no other buffer.
    pub unsafe fn run(&self, call: &Call<'_>) -> Result<()> {
        let key = self.key_of(call);
        let cached = self.check(call, key.as_ref())?;
        // SAFETY: the caller guarantees the pointers, and `check` has accepted this call.
        unsafe { self.run_checked(call, key.as_ref(), cached) }
    }

    /// Checks the shape, see [`crate::collective::Shape::check`]. Returns an equal call that was prepared before, if the
    /// cache has one by `key`.
    pub(crate) fn check(&self, call: &Call<'_>, key: Option<&CallKey<'_>>) -> Result<Option<Arc<Prepared>>> {
        let cached = key.and_then(|key| self.cached(key));
        if cached.is_none() {
            call.shape.check()?;
            plan::check_size(&call.shape)?;
        }
        Ok(cached)
    }

    /// [`Context::run`] for a call that `check` has accepted; `cached` is what that returned.
    ///
    /// # Safety
    /// See [`Context::run`]; `check` has accepted this very call.
    pub(crate) unsafe fn run_checked(
        &self,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
    ) -> Result<()> {
        call.check_buffers()?;
        if self.is_staged(call)? {
            // SAFETY: by the contract.
            return unsafe { self.run_staged(call, key, cached) };
        }
        // SAFETY: by the contract.
        unsafe { self.run_on_host(call, key, cached) }
    }

    /// [`Context::run_checked`] for a call on buffers of the library.
    ///
    /// # Safety
    /// See [`Context::run_checked`].
    #[cold]
    unsafe fn run_staged(
        &self,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
    ) -> Result<()> {
        let staging = self.stage(call)?;
        let failed = |error: Error| self.fail_staged(&self.text_of(call), &error);
        // SAFETY: by the contract, the buffers are valid until this returns.
        unsafe { staging.copy_in() }.map_err(failed)?;
        let on_host = staging.call(call);
        // SAFETY: the buffers of the library are there until this returns, and the caller guarantees the others.
        unsafe {
            if on_host.shape == call.shape {
                self.run_on_host(&on_host, key, cached)?;
            } else {
                // With another number of buffers it is another call.
                let key = self.key_of(&on_host);
                let cached = self.check(&on_host, key.as_ref())?;
                self.run_on_host(&on_host, key.as_ref(), cached)?;
            }
        }
        // SAFETY: as above; the call has ended.
        unsafe { staging.copy_out() }.map_err(failed)?;
        self.unstage(staging);
        Ok(())
    }

    /// [`Context::run_checked`] for a call that the host makes as it is.
    ///
    /// # Safety
    /// See [`Context::run_checked`].
    #[inline]
    unsafe fn run_on_host(
        &self,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
    ) -> Result<()> {
        let started = self.engine().now();
        let prepared = match cached {
            Some(prepared) => {
                let binding = call.binding(&prepared);
                // SAFETY: the caller guarantees the pointers.
                let ended = unsafe { self.run_quick(&binding, call.timeout) };
                ended.unwrap_or_else(|| self.run_of(binding, call.timeout, started).execute(&prepared))?;
                prepared
            }
            None => self.prepare_and_run(call, key, started)?,
        };
        // SAFETY: the caller guarantees that the outputs are valid for their lengths in the shape, which `check` has
        // accepted.
        unsafe { prepared.settle(call.outputs) };
        Ok(())
    }

    /// Runs a call that is not in the cache. Returns the call.
    fn prepare_and_run(&self, call: &Call<'_>, key: Option<&CallKey<'_>>, started: Instant) -> Result<Arc<Prepared>> {
        let (tuner, selected) = (self.tuners.current(), self.select(call)?);
        let mut run = self.run_of(call.binding(&selected), call.timeout, started);
        let _exclusion = Exclusion::begin(self, &mut run)?;
        if self.compares_calls() {
            run.compare()?;
        }
        let (plan, is_round) = (run.plan()?, run.is_round);
        let prepared = self.planned(selected, plan, key, tuner)?;
        let run = self.run_of(call.binding(&prepared), call.timeout, started);
        Run { is_round, ..run }.execute(&prepared)?;
        Ok(prepared)
    }
}
