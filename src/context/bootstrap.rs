//! How the ranks of a context find each other.
//!
//! In two rounds: first every rank claims its place and tells which host it is on and from where that reaches the store; then,
//! knowing where the others are, it listens, and tells at which addresses. In each round every rank puts what it tells into the
//! store, first as a [claim], which it reads back; rank 0 collects it and puts the list there as one value. Last,
//! rank 0 publishes what algorithms are chosen by (see [`tuning`]). So each rank makes six requests, and rank 0
//! two large ones, whatever the number of ranks.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::collective::{Collective, Constants, Shape};
use crate::context::claim::{self, Claims, SEPARATE};
use crate::context::tuning::{self, Links};
use crate::context::{Call, Connect, Context};
use crate::engine::Spin;
use crate::error::{Error, ErrorKind, Result, try_zeros};
use crate::net::address::{self, Address};
use crate::rendezvous::Store;
use crate::tuner::Tuner;
use crate::tuner::source::Source;
use crate::types::DataType;

/// What every rank tells every other one over the store.
struct Round {
    /// With the rank behind it: where a rank tells.
    key: &'static str,
    /// Where all can be read.
    list: &'static str,
    /// What ranks have not done that have not told.
    missing: &'static str,
}

/// How long a rank waits for the store before it looks whether its context was closed: at first, and at most.
const FIRST_TURN: Duration = Duration::from_millis(100);
const LAST_TURN: Duration = Duration::from_millis(800);

/// A store that answers later than this after a wait's end is one that does not answer.
const LATE: Duration = Duration::from_millis(500);

/// Ranks that one request asks the store for at most.
const BATCH: usize = 4096;

/// How many missing ranks a message names.
const MISSING_SHOWN: usize = 16;

const HOSTS: Round = Round { key: "host", list: "hosts", missing: "have not arrived" };
const ADDRESSES: Round = Round { key: "address", list: "addresses", missing: "have not told where they listen" };

/// In front of what is wrong, where rank 0 cannot publish a list: with what it was given, or with what lies in the store. No list
/// begins so.
const REFUSAL: &[u8] = b"\0refused: ";
const CONTESTED: &[u8] = b"\0contested: ";

impl Round {
    fn rank_key(&self, rank: usize) -> String {
        format!("{}/{rank}", self.key)
    }

    fn rank_keys(&self, ranks: Range<usize>) -> Vec<String> {
        ranks.map(|rank| self.rank_key(rank)).collect()
    }
}

impl Context {
    /// Finds the other ranks over `store`. Collective: every rank calls it, with a store (or prefix) of this context's own.
    pub fn connect(&self, store: &dyn Store) -> Result<()> {
        let (deadline, timeout) = self.deadline(None);
        let failed = |e: Error| e.context(format_args!("{}: cannot connect over {}", self.own(), store.describe()));
        let connect = || {
            self.check_open()?;
            // First, so that nobody waits for a rank 0 that cannot go on.
            let source = self.source(store, deadline)?;
            let prospect = self.device().prospect(store.server())?;
            let own = self.tell(prospect)?;
            let everyone = self.parse(&self.meet(store, &own, deadline, timeout)?, &own)?;
            let own = self.tell(self.device().listen(store.server(), &everyone, self.rank)?)?;
            let wants = source.as_ref().map_or(0, tuning::wants);
            store.set_within(&ADDRESSES.rank_key(self.rank), &own, left(deadline))?;
            let list = |told: Vec<Vec<u8>>| Ok([told.concat(), vec![wants]].concat());
            let mut list = self.exchange(store, &ADDRESSES, list, deadline, timeout)?;
            let wants = list.pop().unwrap_or(0);
            let addresses = self.set_peers(&list, &own)?;
            self.agree(store, source, Links::wanted(wants, &addresses), &addresses, deadline, timeout)?;
            self.connect_fully(deadline, timeout)
        };
        connect().map_err(failed)
    }

    /// Refuses what would connect a context that is closed, or broken otherwise.
    pub(super) fn check_open(&self) -> Result<()> {
        let why = self.lock()?.broken.clone();
        why.map_or(Ok(()), |why| Err(Error::new(ErrorKind::InvalidOperation, why.message())))
    }

    /// Makes sure that this rank listens, though nothing is known of the others.
    pub(super) fn listen_somewhere(&self) -> Result<()> {
        if self.lock()?.messenger.sockets().is_empty() {
            self.tell(self.device().listen_somewhere()?)?;
        }
        Ok(())
    }

    /// What this rank tells the others when it is, or may be, found at `sockets`.
    fn tell(&self, sockets: Vec<SocketAddr>) -> Result<Vec<u8>> {
        let mut guard = self.lock()?;
        guard.messenger.set_sockets(sockets);
        Ok(guard.messenger.address())
    }

    /// Rank 0: what it goes by in tuning. What is wrong with that, all ranks hear at once.
    fn source(&self, store: &dyn Store, deadline: Instant) -> Result<Option<Source>> {
        if self.rank != 0 {
            return Ok(None);
        }
        let source = match &self.options.tuning {
            Some(text) => Source::read(text).map_err(|error| error.context("the context's options")),
            None => Source::from_environment(),
        };
        source.map(Some).inspect_err(|error| {
            let text = [REFUSAL, error.message().as_bytes()].concat();
            // What is wrong says more than that the store does not answer either.
            let _ = store.set_within(HOSTS.list, &text, left(deadline));
        })
    }

    /// The first round: this rank claims its place, with `own`; what all ranks tell, in their order.
    fn meet(&self, store: &dyn Store, own: &[u8], deadline: Instant, timeout: Duration) -> Result<Vec<u8>> {
        let (key, claim) = (HOSTS.rank_key(self.rank), claim::make(self.size, own)?);
        claim::put(store, &key, &claim, left(deadline))?;
        let value = self.wait_for(deadline, |wait| store.get(&key, wait))?;
        let claims = Claims::read(self.rank, &value, claim.len())?;
        if !claims.is_led_by(&claim) {
            // The others are left alone: they may be another job's, which is well.
            return Err(claims.claimed_twice(&claim));
        }
        // A context of this process that is over may have told before, but the list must be yet to come.
        let earlier = self.rank == 0 && claims.told_before().any(|told| !Address::is_same_context(told, own));
        if earlier && store.wait(&[HOSTS.list], Duration::ZERO).is_ok() {
            let text = format!("an earlier context of this process has met others there; {SEPARATE}");
            return Err(Error::new(ErrorKind::Mismatch, text));
        }
        let contested = |error: Error| {
            if self.rank == 0 {
                let text = [CONTESTED, error.message().as_bytes()].concat();
                // What is wrong says more than that the store does not answer either.
                let _ = store.set_within(HOSTS.list, &text, left(deadline));
            }
            error
        };
        claims.told().map_err(contested)?;
        let list = |values: Vec<Vec<u8>>| {
            let told = values.iter().enumerate().map(|(rank, value)| {
                let claims = Claims::read(rank, value, claim.len())?;
                claims.is_of_the_same_job(&claim).and_then(|()| claims.told())
            });
            told.collect::<Result<Vec<_>>>().map(|told| told.concat()).map_err(contested)
        };
        self.exchange(store, &HOSTS, list, deadline, timeout)
    }

    /// One round, in which this rank has told: what rank 0 makes of what all ranks have, in their order, by `list`.
    fn exchange(
        &self,
        store: &dyn Store,
        round: &Round,
        list: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>>,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Vec<u8>> {
        let missing = |e| self.name_missing(store, round, e, deadline, timeout);
        if self.rank != 0 {
            let list = self.wait_for(deadline, |wait| store.get(round.list, wait)).map_err(missing)?;
            for (mark, kind) in [(REFUSAL, ErrorKind::InvalidArgument), (CONTESTED, ErrorKind::Mismatch)] {
                if let Some(why) = list.strip_prefix(mark) {
                    return Err(Error::new(kind, format!("rank 0: {}", String::from_utf8_lossy(why))));
                }
            }
            return Ok(list);
        }
        let mut values = Vec::new();
        for first in (0..self.size).step_by(BATCH) {
            let keys = round.rank_keys(first..self.size.min(first + BATCH));
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            values.extend(self.wait_for(deadline, |wait| store.multi_get(&keys, wait)).map_err(missing)?);
        }
        let list = list(values)?;
        store.set_within(round.list, &list, left(deadline))?;
        Ok(list)
    }

    /// Finds the other ranks over a connected context of the same ranks, with `tag`. Collective.
    pub fn connect_from(&self, parent: &Context, tag: u32) -> Result<()> {
        if (parent.rank, parent.size) != (self.rank, self.size) {
            return Err(Error::invalid(format!(
                "rank {} of {} cannot connect out of a context in which it is rank {} of {}",
                self.rank, self.size, parent.rank, parent.size
            )));
        }
        let (deadline, timeout) = self.deadline(None);
        let failed = |e: Error| e.context(format_args!("{}: cannot connect out of a context", self.own()));
        self.check_open().map_err(failed)?;
        // Where the ranks are, the parent's addresses tell. Without them it is not connected, and its call says so.
        let everyone = parent.lock()?.messenger.addresses();
        let sockets = everyone.map_or(Ok(Vec::new()), |everyone| self.device().listen(None, &everyone, self.rank));
        let own = self.tell(sockets.map_err(failed)?)?;
        let mut list = try_zeros(own.len().saturating_mul(self.size), "the addresses of all ranks")?;
        let shape = Shape::new(Collective::Allgather, self.rank, self.size, own.len());
        let call = Call {
            inputs: &[own.as_ptr()],
            outputs: &[list.as_mut_ptr()],
            tag,
            timeout: Some(left(deadline)),
            ..Call::new(shape, DataType::Uint8)
        };
        // SAFETY: the buffers are as long as the shape says and live until the call returns.
        unsafe { parent.run(&call) }.map_err(|e| e.context("cannot connect out of a context"))?;
        let addresses = self.set_peers(&list, &own).map_err(failed)?;
        self.adopt(parent.tuner().inherit(self.options.max_segment_bytes), &addresses).map_err(failed)?;
        self.connect_fully(deadline, timeout).map_err(failed)
    }

    /// Waits for the store in turns, to notice that the context is closed meanwhile. A turn that ends without an answer is
    /// no reason to give up, since the store may come back; whatever else fails is.
    pub(super) fn wait_for<T>(&self, deadline: Instant, wait: impl Fn(Duration) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let mut turn = FIRST_TURN;
        loop {
            match wait(turn.min(left(deadline))) {
                Ok(value) => return Ok(value),
                // A store that does not answer may end a turn late: not to ask it again after the deadline.
                Err(e) if e.kind() == ErrorKind::Timeout && Instant::now() < deadline => {}
                // The error tells how long the turn took.
                Err(e) => return Err(e.context(format_args!("failed after {:.3} s", began.elapsed().as_secs_f64()))),
            }
            if let Some(error) = self.broken() {
                return Err(error);
            }
            turn = (turn * 2).min(LAST_TURN);
        }
    }

    /// Adds the ranks that have not told to a timeout.
    fn name_missing(
        &self,
        store: &dyn Store,
        round: &Round,
        error: Error,
        deadline: Instant,
        timeout: Duration,
    ) -> Error {
        if error.kind() != ErrorKind::Timeout {
            return error;
        }
        let Some((missing, all)) = self.find_missing(store, round, deadline) else { return error };
        if missing.is_empty() {
            return error.context(format_args!("rank 0 has not published the list of {}", round.list));
        }
        let (least, more) = if all { ("", "") } else { ("at least ", ", ...") };
        let (count, size, what) = (missing.len(), self.size, round.missing);
        let ranks = missing.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let message = format!("after {timeout:?}, {least}{count} of {size} ranks {what}: {ranks}{more}");
        Error::new(ErrorKind::Timeout, message)
    }

    /// The first ranks that have not told, and whether these are all; `None` if the store does not say, at once. Every rank
    /// asks at the same moment: for many keys in one request, and for fewer only where one is missing.
    fn find_missing(&self, store: &dyn Store, round: &Round, deadline: Instant) -> Option<(Vec<usize>, bool)> {
        let in_time = || Instant::now().saturating_duration_since(deadline) < LATE;
        let all_told = |ranks: Range<usize>| {
            let keys = round.rank_keys(ranks);
            match store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), Duration::ZERO) {
                Ok(()) => Some(true),
                Err(e) if e.kind() == ErrorKind::Timeout && in_time() => Some(false),
                Err(_) => None,
            }
        };
        // What this rank has told is there; a store that does not say so says nothing about the others either.
        if !in_time() || all_told(self.rank..self.rank + 1) != Some(true) {
            return None;
        }
        let mut missing = Vec::new();
        let mut unknown = vec![(0_usize, self.size)];
        while let Some((first, mut end)) = unknown.pop() {
            if missing.len() == MISSING_SHOWN {
                return Some((missing, false));
            }
            if end - first > BATCH {
                unknown.push((first + BATCH, end));
                end = first + BATCH;
            }
            let middle = first.midpoint(end);
            match all_told(first..end) {
                Some(true) => {}
                Some(false) if end - first == 1 => missing.push(first),
                Some(false) => unknown.extend([(middle, end), (first, middle)]),
                None => return (!missing.is_empty()).then_some((missing, false)),
            }
        }
        Some((missing, true))
    }

    /// What all ranks have told; `own` is what this one has.
    fn parse(&self, list: &[u8], own: &[u8]) -> Result<Vec<Address>> {
        let length = own.len();
        if list.len() != length * self.size {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("the addresses of {} ranks are not {} bytes long: another size?", self.size, list.len()),
            ));
        }
        if list[self.rank * length..][..length] != *own {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("the address published for rank {} is another process's: {SEPARATE}", self.rank),
            ));
        }
        let address = |(rank, bytes)| {
            Address::deserialize(bytes).map_err(|e| e.context(format_args!("what rank {rank} tells of itself")))
        };
        list.chunks_exact(length).enumerate().map(address).collect()
    }

    /// Where everyone is.
    fn set_peers(&self, list: &[u8], own: &[u8]) -> Result<Vec<Address>> {
        let addresses = self.parse(list, own)?;
        address::check(&addresses)?;
        let _ = self.hosts.set(address::number_hosts(&addresses));
        let mut guard = self.lock()?;
        for (rank, address) in list.chunks_exact(own.len()).enumerate() {
            guard.messenger.set_peer(rank, address)?;
        }
        guard.set_spin(self.spin(&addresses, &Constants::BUILT_IN));
        self.engine().leave(guard);
        Ok(addresses)
    }

    /// Goes by `tuner` from now on. What was agreed on first stays.
    pub(super) fn adopt(&self, tuner: Tuner, addresses: &[Address]) -> Result<()> {
        self.lock()?.set_spin(self.spin(addresses, tuner.constants()));
        let _ = self.agreed.set(tuner);
        Ok(())
    }

    /// How long a waiting thread polls before it sleeps.
    fn spin(&self, addresses: &[Address], constants: &Constants) -> Spin {
        let here = || addresses.iter().filter(|address| address.host == addresses[self.rank].host);
        let shares = here().count() > address::count_cores(here());
        Spin::For(duration(if shares { constants.spin_shared_us } else { constants.spin_us }))
    }

    /// Makes the connections that the options want now.
    fn connect_fully(&self, deadline: Instant, timeout: Duration) -> Result<()> {
        if self.options.connect == Connect::Full {
            for rank in 0..self.size {
                self.lock()?.messenger.connect(rank);
            }
            for rank in (0..self.size).filter(|rank| *rank != self.rank) {
                self.await_connection(rank, deadline, timeout)?;
            }
        }
        Ok(())
    }
}

/// So many µs.
pub(super) fn duration(us: f64) -> Duration {
    Duration::from_secs_f64(us * 1e-6)
}

pub(super) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
