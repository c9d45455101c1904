//! Starts calls in few steps, and ends those that combine what two ranks have published: persistent requests, and calls
//! in the cache.

use std::ptr::NonNull;
use std::sync::MutexGuard;

use super::calls::Entry;
use super::quick_start::QuickStart;
use super::run::Call;
use super::start::Start;
use super::{Shared, State};
use crate::engine::cache::Key;
use crate::engine::prepared::Prepared;
use crate::publications::{Place, Publication};
use crate::schedule::Buffer;

/// The entry of a call that has begun, and its fingerprint.
type Begun = (NonNull<Entry>, u64);

/// The next operation of a call, and its scratch memory or what takes the place of that.
type Ready = (usize, *mut u8);

impl Call {
    /// Starts the call with these numbers and tag 0, if the cache has it and these buffers can be used. The result
    /// describes the call, and is valid until that has ended. What is done before the first publication is kept short.
    ///
    /// # Safety
    /// The buffers are valid for their lengths until the call has ended.
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn start_cached(
        shared: &Shared,
        key: &Key,
        input: *const u8,
        output: *mut u8,
    ) -> Option<(Self, NonNull<Prepared>)> {
        let state = shared.state();
        let prepared = NonNull::from(state.cache.get(key).filter(|call| call.allows(input, output))?);
        // SAFETY: the cache keeps it alive until no call is in progress.
        let call = unsafe { prepared.as_ref() };
        let quick = call.quick_start.as_ref()?;
        // What is constant takes fewer instructions.
        // SAFETY: by the contract.
        let started = unsafe { Self::start_quick(shared, state, (call, quick), (0, true), input, output) }?;
        Some((started, prepared))
    }

    /// Starts `call`.
    ///
    /// # Safety
    /// See [`Call::start_cached`]; `call` has `quick`, allows the buffers, and is valid until the call has ended.
    #[inline(always)] // As above.
    pub unsafe fn start_prepared(
        shared: &Shared,
        (call, quick): (&Prepared, &QuickStart),
        tag: u64,
        input: *const u8,
        output: *mut u8,
    ) -> Option<Self> {
        // SAFETY: by the contract.
        unsafe { Self::start_quick(shared, shared.state(), (call, quick), (tag, false), input, output) }
    }

    /// Begins a call, and makes what is known to be its first publication, if it has got an entry.
    ///
    /// # Safety
    /// See [`Call::start_prepared`].
    #[inline(always)] // As above.
    unsafe fn start_quick(
        shared: &Shared,
        mut state: MutexGuard<'_, State>,
        (call, quick): (&Prepared, &QuickStart),
        (tag, is_cached): (u64, bool),
        input: *const u8,
        output: *mut u8,
    ) -> Option<Self> {
        let start = Start::quick(call, quick, tag, is_cached);
        let Some(first) = &quick.first else {
            let begun = Self::begin_unpublished(shared, &mut state, (call, quick), tag, is_cached)?;
            Self::new(begun).count_call(call);
            drop(state);
            let (next, scratch) = Self::prepare(shared, begun, call, input, output)?;
            return Some(Self { next, scratch, ..Self::new(begun) });
        };
        let base = if first.input { input.cast_mut() } else { output };
        let publication = (base.wrapping_add(first.offset).cast_const(), first.bytes);
        // SAFETY: the caller guarantees the buffer, which is long enough for what the program publishes.
        let begun = unsafe { start.begin(shared, &mut state, Some(publication)) }.ok()?;
        Self::new(begun).count_call(call);
        drop(state);
        let (entry, fingerprint) = begun;
        // With memory for copies, the publication was made.
        // SAFETY: the call alone uses the workspace until it has ended.
        let is_quick = unsafe { &(*entry.as_ptr()).workspace }.copies;
        let (next, scratch) = match is_quick {
            true => (first.next, base.wrapping_add(first.scratch)),
            false => Self::prepare(shared, begun, call, input, output)?,
        };
        Some(Self { entry, fingerprint, next, scratch, unannounced: is_quick, is_quick, looks: 0, claims: false })
    }

    /// Begins a call whose first publication needs preparation. It makes its own `Start`: one that is passed would be
    /// moved in memory.
    #[inline(never)]
    fn begin_unpublished(
        shared: &Shared,
        state: &mut State,
        (call, quick): (&Prepared, &QuickStart),
        tag: u64,
        is_cached: bool,
    ) -> Option<Begun> {
        // SAFETY: nothing is published.
        unsafe { Start::quick(call, quick, tag, is_cached).begin(shared, state, None) }.ok()
    }

    /// Makes scratch memory for a call that has not published anything.
    #[inline(never)]
    fn prepare(shared: &Shared, begun: Begun, call: &Prepared, input: *const u8, output: *mut u8) -> Option<Ready> {
        let (program, element) = (call.plan.program.as_ref()?, call.element);
        let mut started = Self::new(begun);
        let copy = program.skips_copy(element).filter(|_| started.workspace().copies).map(|span| {
            let base = if let Buffer::Input(_) = span.buffer { input.cast_mut() } else { output };
            base.wrapping_add(span.offset * element)
        });
        if !started.make_scratch(shared, copy, &call.plan, element) {
            started.withdraw(shared);
            return None;
        }
        Some((started.next, started.scratch))
    }

    /// Whether the call is one that [`Call::finish_pair`] may end.
    #[inline(always)] // On the path of small collectives.
    pub fn is_pair(&self, quick: &QuickStart) -> bool {
        self.is_quick && quick.pair.is_some()
    }

    /// Executes the rest of a call that combines two operands after its first publication, if the peer has published
    /// its own. Returns whether the call has ended; if not, it is to be advanced.
    ///
    /// # Safety
    /// `quick` and `output` are those of [`Call::start_cached`] or [`Call::start_prepared`].
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn finish_pair(&mut self, shared: &Shared, quick: &QuickStart, output: *mut u8) -> bool {
        let Some(pair) = quick.pair.as_ref().filter(|_| self.is_quick) else { return false };
        let own = self.workspace();
        match shared.publications.find(&mut own.handle, pair.member, pair.publication) {
            Some(Some(Publication { bytes, place: Place::Here(start) })) if pair.end <= bytes => {
                let (own, peer) = (self.scratch.cast_const(), start.wrapping_add(pair.at));
                let (left, right) = if pair.is_left { (own, peer) } else { (peer, own) };
                // SAFETY: as for other combinations; `end` is that of the operand in the publication, and `scratch` is
                // the other.
                unsafe { (pair.kernel)(output.wrapping_add(pair.into), left, right, pair.count) };
            }
            _ => return false,
        }
        self.end(shared);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{prepared, sum};
    use super::*;
    use crate::transport::shm::HostGroup;

    #[test]
    fn what_a_call_in_progress_may_use_stays_until_it_has_ended() {
        const COUNT: usize = 4;
        let (input, mut output) = ([1f32; COUNT], [0f32; COUNT]);
        let (from, into) = (input.as_ptr().cast::<u8>(), output.as_mut_ptr().cast::<u8>());
        let shared = Shared::in_test(HostGroup::in_process(2).remove(0), Arc::default());
        let plan = sum(0, 2, COUNT).plan;
        let key = Key::new(1, (2, 3), 0, COUNT, from.cast(), into.cast()).unwrap();
        let remember = || shared.remember(&key.into(), Arc::new(prepared(plan.clone(), COUNT)), || true);
        remember();
        // SAFETY: the buffers are valid until the call is withdrawn.
        let (mut call, used) = unsafe { Call::start_cached(&shared, &key, from, into) }.unwrap();
        (0..2).for_each(|_| remember());
        // The test's, the cache's, and two that were replaced.
        assert_eq!(Arc::strong_count(&plan), 4);
        // SAFETY: the call is in progress.
        assert_eq!(unsafe { used.as_ref() }.count, COUNT);
        call.withdraw(&shared);
        remember();
        assert_eq!(Arc::strong_count(&plan), 2);
    }
}
