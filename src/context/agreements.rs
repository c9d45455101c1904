//! Agreement of the ranks on who is left, on a context in any state.
//!
//! It has links of its own, which are made when the first rank needs them, to a second identity of each context that
//! follows from the first. So it works though the context is broken, aborted, or in the middle of a call, and a link
//! that ends says that a rank is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::agreement::{Decision, Vote};
use crate::context::exchange::Limit;
use crate::context::recorder::Dumps;
use crate::context::{Context, ContextOptions, Shared, digest};
use crate::engine::{Engine, Spin};
use crate::error::{Error, ErrorKind, Result, after, first_few};
use crate::messaging::Messenger;
use crate::net::address::Address;
use crate::secret::JobToken;
use crate::transport::{BackgroundProgress, Device};
use crate::types::Rank;

/// The operation that errors name.
const AGREE: &str = "agree";

/// How many lost ranks an error names.
const RANKS_SHOWN: usize = 8;

/// What the ranks that are left have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The bits that all have passed.
    pub flags: u64,
    /// The ranks that are lost, in ascending order.
    pub lost: Vec<Rank>,
    /// Whether these are more than when the ranks agreed last.
    pub has_grown: bool,
}

/// By what the ranks of a context agree: an engine of its own, which is made when a rank agrees or a peer connects.
pub(super) struct Agreements {
    rank: Rank,
    size: usize,
    token: JobToken,
    /// That of the second identity, with the sockets that were known when the context was made.
    address: Address,
    state: Mutex<State>,
    /// Whether a thread is in a call.
    is_busy: AtomicBool,
    device: Arc<dyn Device>,
}

#[derive(Default)]
struct State {
    /// Dropped before `expected`.
    opened: Option<Arc<Shared>>,
    /// Has the device tell of the first peer that connects.
    expected: Option<Box<dyn Send>>,
    /// The addresses of the second identities of all ranks, once the context is connected.
    peers: Vec<Address>,
    /// The ranks that were lost when they agreed last.
    lost: Vec<Rank>,
    closed: Option<Error>,
}

impl Agreements {
    /// Those of `rank` of `size`, whose context has this `address` and these `options`.
    pub fn new(
        device: &Arc<dyn Device>,
        (rank, size): (Rank, usize),
        address: &Address,
        options: &ContextOptions,
    ) -> Result<Arc<Self>> {
        let (token, address) = (options.token.clone().unwrap_or_else(JobToken::none), address.for_agreements());
        let (state, is_busy) = (Mutex::default(), AtomicBool::new(false));
        let made = Arc::new(Self { rank, size, token, address, state, is_busy, device: device.clone() });
        let told: Arc<dyn BackgroundProgress> = made.clone();
        made.state().expected = Some(device.clone().expect(&made.token, &made.address, Arc::downgrade(&told))?);
        Ok(made)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine for agreements, which is made if there is none.
    fn open(&self) -> Result<Arc<Shared>> {
        let mut state = self.state();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        if let Some(opened) = &state.opened {
            return Ok(opened.clone());
        }
        let connections = self.device.clone().expected_connections(&self.token, &self.address)?;
        let messenger = Messenger::new(self.rank, self.size, connections, self.device.log());
        // Nothing is worth polling for: the others may come much later.
        let spin = Spin::of(Duration::ZERO);
        let engine = Engine::new(messenger, self.device.clock(), digest::explain, spin)?;
        engine.lock().serve_agreements(self.rank, self.size);
        let dumps = Dumps::new(self.rank, self.size, self.device.transport(), None);
        let opened = Shared::new(engine, &self.device, dumps)?;
        self.introduce(&opened, &state.peers)?;
        state.opened = Some(opened.clone());
        Ok(opened)
    }

    /// Gives `opened` the addresses of all ranks, as far as they are known.
    fn introduce(&self, opened: &Shared, peers: &[Address]) -> Result<()> {
        let mut guard = opened.engine.lock();
        if let Some(own) = peers.get(self.rank) {
            guard.messenger.connections_mut().set_sockets(own.sockets.clone());
        }
        for (rank, address) in peers.iter().enumerate() {
            guard.messenger.set_peer(rank, &address.serialize())?;
        }
        opened.engine.leave(guard);
        Ok(())
    }

    /// Sets the `addresses` of the contexts of all ranks.
    pub fn set_peers(&self, addresses: &[Address]) -> Result<()> {
        let mut state = self.state();
        state.peers = addresses.iter().map(Address::for_agreements).collect();
        state.opened.as_ref().map_or(Ok(()), |opened| self.introduce(opened, &state.peers))
    }

    /// No agreement comes about any more.
    pub fn close(&self, error: &Error) {
        let mut state = self.state();
        state.closed.get_or_insert_with(|| error.clone());
        let (opened, expected) = (state.opened.clone(), state.expected.take());
        drop((state, expected));
        if let Some(opened) = opened {
            let mut guard = opened.engine.lock();
            guard.break_with(error, None);
            opened.engine.hand_over(guard);
            opened.engine.wake();
        }
    }

    fn agree(&self, vote: Vote, limit: Limit) -> Result<(Decision, bool)> {
        if self.state().closed.is_none() && self.state().peers.is_empty() {
            return Err(Error::new(ErrorKind::InvalidOperation, "the context is not connected: connect it first"));
        }
        let engine = &self.open()?.engine;
        let agreed = engine.agree(engine.lock(), vote, limit.deadline).map_err(|error| match error.kind() {
            ErrorKind::Timeout => error.context(format_args!("timed out {}", after(limit.timeout))),
            _ => error,
        })?;
        self.state().lost.clone_from(&agreed.0.lost);
        Ok(agreed)
    }

    /// Whether a thread waits for an agreement.
    #[cfg(test)]
    pub fn is_awaited(&self) -> bool {
        self.state().opened.as_ref().is_some_and(|opened| opened.engine.is_polled())
    }
}

impl BackgroundProgress for Agreements {
    fn drive(&self) {}

    fn tick(&self) {}

    /// A peer has connected before this rank has agreed. If this fails, the peer waits until it does.
    fn arrived(&self) {
        let _ = self.open();
    }
}

impl Context {
    /// Agrees with the ranks that are left: on the bits that the `flags` of all have, on the ranks that are lost, and
    /// on whether these are more than the last time. Collective, on a context in any state but closed, and independent
    /// of what else goes on there. All ranks that are left get the same, however many end meanwhile. A rank is lost if
    /// its process has ended, its context is closed, or a connection to it has broken; it fails then, as it cannot take
    /// part.
    ///
    /// If not all have come within `timeout`, this fails with `Timeout`. The vote counts all the same: the next call
    /// goes on with this agreement, and with the flags that were given first.
    pub fn agree(&self, flags: u64, timeout: Option<Duration>) -> Result<Agreed> {
        let (deadline, timeout_used) = self.deadline(timeout);
        let limit = Limit { deadline, timeout: timeout_used, by_default: false };
        let agreed = self.agree_on(Vote { flags, record: Vec::new() }, limit).and_then(|agreed| {
            match agreed.0.records.iter().find(|(_, record)| !record.is_empty()) {
                None => Ok(agreed),
                Some((rank, _)) => {
                    let text = format!("rank {rank} does not agree only: it shrinks the context");
                    Err(Error::new(ErrorKind::Mismatch, text).with_rank(*rank))
                }
            }
        });
        let (Decision { flags, lost, .. }, has_grown) =
            agreed.map_err(|error| self.disagreed(&error, timeout, limit, AGREE))?;
        Ok(Agreed { flags, lost, has_grown })
    }

    /// The error that says that the ranks `lost` are lost.
    pub fn loss(&self, lost: &[Rank]) -> Error {
        let (which, verb) = if lost.len() == 1 { ("rank", "is") } else { ("ranks", "are") };
        let text = format!("{}: {which} {} {verb} lost", self.own(), first_few(lost.iter(), RANKS_SHOWN, ", "));
        let error = Error::new(ErrorKind::ConnectionLost, text).during(AGREE);
        lost.first().into_iter().fold(error, |error, rank| error.with_rank(*rank))
    }

    /// The ranks that were lost when the ranks agreed last, in ascending order.
    pub fn lost_ranks(&self) -> Vec<Rank> {
        self.agreements.as_ref().map_or(Vec::new(), |agreements| agreements.state().lost.clone())
    }

    /// The error of `operation`, which needed an agreement.
    pub(super) fn disagreed(
        &self,
        error: &Error,
        own_timeout: Option<Duration>,
        limit: Limit,
        operation: &'static str,
    ) -> Error {
        let error = error.context(format_args!("{}: cannot {operation}", self.own()));
        self.amended(own_timeout, limit.deadline, error.during(operation))
    }

    /// Agrees by a vote.
    pub(super) fn agree_on(&self, vote: Vote, limit: Limit) -> Result<(Decision, bool)> {
        self.check_process()?;
        let Some(agreements) = &self.agreements else {
            if let Some(error) = self.broken().filter(|error| error.kind() == ErrorKind::Closed) {
                return Err(error);
            }
            let Vote { flags, record } = vote;
            return Ok((Decision { flags, lost: Vec::new(), records: vec![(self.rank, record)] }, false));
        };
        if agreements.is_busy.swap(true, Ordering::Acquire) {
            return Err(Error::new(ErrorKind::InvalidOperation, "another thread agrees, or shrinks the context"));
        }
        let agreed = agreements.agree(vote, limit);
        agreements.is_busy.store(false, Ordering::Release);
        agreed
    }
}
