//! What a request does, and which calls on it that allows.

use std::sync::atomic::{AtomicU8, Ordering};

/// What calls do that have the ends of a request reported, for errors.
pub(super) const ATTACH: &str = "attach";
pub(in crate::context) const SET_CALLBACK: &str = "set a callback";

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::context) enum State {
    Inactive,
    /// A thread is in a call of `start`, `wait` or `test`.
    Busy,
    /// Started, and not waited for.
    Active,
    /// The request is active, and the call has ended.
    Complete,
    /// Inactive, and a queue will report the ends of its calls.
    Attached,
    /// Active, and a queue will report the end of the call.
    Queued,
    /// Queued, and the call has ended.
    QueuedComplete,
    /// See [`Request::retire`](super::Request::retire).
    Retired,
    /// A group will start it.
    Grouped,
}

impl State {
    const ALL: [Self; 9] = [
        Self::Inactive,
        Self::Busy,
        Self::Active,
        Self::Complete,
        Self::Attached,
        Self::Queued,
        Self::QueuedComplete,
        Self::Retired,
        Self::Grouped,
    ];

    #[cold]
    fn of(value: u8) -> Self {
        Self::ALL.into_iter().find(|state| *state as u8 == value).expect("only states are stored")
    }

    /// Whether the request is active, or a thread is in a call on it.
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Inactive | Self::Attached | Self::Retired)
    }

    /// Whether a queue reports the ends of its calls.
    pub fn is_attached(self) -> bool {
        matches!(self, Self::Attached | Self::Queued | Self::QueuedComplete)
    }

    /// Whether the call that was started has ended, and was not waited for.
    pub fn is_complete(self) -> bool {
        matches!(self, Self::Complete | Self::QueuedComplete)
    }

    /// Whether a call was started that was not waited for, and no thread is in a call on the request.
    pub fn is_started(self) -> bool {
        matches!(self, Self::Active | Self::Queued) || self.is_complete()
    }

    /// Why a request in this state refuses to do this. If it is attached, it may have a callback.
    pub fn why_refused(self, doing: &str, has_callback: bool) -> &'static str {
        let attaches = self.is_attached() && [ATTACH, SET_CALLBACK].contains(&doing);
        match self {
            _ if attaches && has_callback => "the request has a callback already",
            _ if attaches => "the request is attached to a queue already",
            Self::Inactive | Self::Attached => "the request is inactive: start it first",
            Self::Busy => "another thread is in a call on the request",
            Self::Retired => "the request was freed",
            Self::Grouped => "the request is in a group: end the group first",
            Self::Queued | Self::QueuedComplete if has_callback => {
                "the request is active: its callback is called when its call has ended"
            }
            Self::Queued | Self::QueuedComplete => {
                "the request is active, and attached to a queue: take its entry from there first"
            }
            Self::Active | Self::Complete => "the request is active: wait for it first",
        }
    }
}

/// The state of a request, which one thread at a time makes busy.
pub(super) struct AtomicState(AtomicU8);

impl AtomicState {
    /// That of a new request.
    pub fn new() -> Self {
        Self(AtomicU8::new(State::Inactive as u8))
    }

    /// The state.
    pub fn get(&self) -> State {
        State::of(self.0.load(Ordering::Acquire))
    }

    /// Makes the request busy if its state is `allowed`; else returns the state.
    #[inline]
    pub fn occupy(&self, allowed: State) -> Result<(), State> {
        let (from, to) = (allowed as u8, State::Busy as u8);
        self.0.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).map(drop).map_err(State::of)
    }

    /// Ends what [`AtomicState::occupy`] has begun.
    #[inline]
    pub fn leave(&self, state: State) {
        self.0.store(state as u8, Ordering::Release);
    }
}
