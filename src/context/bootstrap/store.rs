//! Exchanges contents over a store.
//!
//! In each round every rank writes its content to the store, in the first round as a [claim], which it reads back. Rank
//! 0 collects the contents and writes the list as one value. Last, rank 0 writes its tuning. So each rank makes six
//! requests, eight if there is a third round, and rank 0 two or three large ones, whatever the number of ranks.
//!
//! A rank that fails writes its error in place of its content, and rank 0 in place of the list, so that no rank waits
//! for it.

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::record;
use crate::context::Context;
use crate::context::claim::{self, Claims, SEPARATE};
use crate::context::exchange::{Exchange, Limit};
use crate::error::{Error, ErrorKind, Result, after};
use crate::net::address::Address;
use crate::rendezvous::Store;
use crate::reserve::try_reserve;
use crate::tuner::Tuner;
use crate::types::Rank;
use crate::version::VERSION_BYTES;

/// One exchange between all ranks.
pub(super) struct Round {
    /// Prefix of the keys of contents; the rank follows, or its handle (see [`OverStore::members`]).
    key: &'static str,
    /// Key of the list.
    list: &'static str,
    /// What ranks without content have not done, for errors.
    missing: &'static str,
    /// The round after it, if there may be one.
    next: Option<&'static Round>,
}

/// How long a rank waits for the store before it checks whether its context was closed: at first, and at most.
const FIRST_TURN: Duration = Duration::from_millis(100);
const LAST_TURN: Duration = Duration::from_millis(800);
/// The shortest wait. Some stores wait without limit if their timeout is zero.
const MIN_TURN: Duration = Duration::from_millis(1);

/// A store that returns later than this after a timeout is considered not to answer. After that, it may take as long
/// for all that it is asked about missing ranks.
const LATE: Duration = Duration::from_millis(500);

/// Most keys in one request.
const BATCH: usize = 4096;

/// Most missing ranks in an error.
const MISSING_SHOWN: usize = 16;

const HOSTS: Round = Round { key: "host", list: "hosts", missing: "have not arrived", next: Some(&ADDRESSES) };
const ADDRESSES: Round =
    Round { key: "address", list: "addresses", missing: "have not published their addresses", next: Some(&MEMORY) };
const MEMORY: Round =
    Round { key: "memory", list: "shared-memory", missing: "have not said whether they share memory", next: None };

/// In place of the first two, where all know each other.
pub(super) const RENEWED: Round =
    Round { key: "renewed", list: "all-renewed", missing: "have not arrived", next: Some(&MEMORY) };

/// The key of what the member with this `handle` writes in [`RENEWED`].
pub(super) fn named_key(handle: &str) -> String {
    format!("{}/{handle}", RENEWED.key)
}

/// Key of rank 0's tuning.
const TUNING: &str = "tuning";

/// Prefix of the keys of refusals that do not fit into claims; the rank follows.
const LONG_REFUSAL: &str = "refusal";

/// Prefix of an error in place of a content, of a list, or of the tuning; the number of the error's kind follows, and
/// what [`record::of_error`] returns. None of these begins with it.
const REFUSAL: &[u8] = b"\0refused: ";

/// An exchange over `store`.
pub(in crate::context) struct OverStore<'a> {
    pub context: &'a Context,
    pub store: &'a dyn Store,
    pub limit: Limit,
    /// The handles of all ranks, where all know each other: then ranks whose lists differ do not write to one key.
    members: &'a [&'a str],
    /// Rank 0: see [`Exchange::earlier`].
    earlier: Option<&'a Tuner>,
    /// Other ranks have been told of a failure, know it themselves, or are not to be told.
    failed: Cell<bool>,
    /// Why the exchange has ended, if it has.
    ended: &'a dyn Fn() -> Option<Error>,
}

impl Exchange for OverStore<'_> {
    fn server(&self) -> Option<SocketAddr> {
        self.store.server()
    }

    fn earlier(&self) -> Option<&Tuner> {
        self.earlier
    }

    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>> {
        let own = own.inspect_err(|error| self.refuse(&HOSTS, error))?;
        // A process that has no claim to this rank says nothing: the other ranks may be those of another, working job.
        let listed = self.claim_rank(&own).and_then(|list| self.context.parse(&list, &own));
        listed.inspect_err(|_| self.failed.set(true))
    }

    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        self.publish(&ADDRESSES, own, false)
    }

    fn memory(&self, own: Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.publish(&MEMORY, own, false).map(|(_, list)| list)
    }

    fn broadcast(&self, own: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let timeout = self.limit.timeout;
        if let Some(own) = own {
            return self.store.set_within(TUNING, &own, self.left()).map(|()| own);
        }
        let tuning = self.wait_for(|wait| self.store.get(TUNING, wait)).map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                error.context(format_args!("{}, rank 0 has not published its tuning", after(timeout))).with_rank(0)
            }
            _ => error,
        })?;
        self.refused(0, &tuning).map_or(Ok(tuning), Err)
    }
}

impl<'a> OverStore<'a> {
    pub fn new(context: &'a Context, store: &'a dyn Store, limit: Limit) -> Self {
        let (members, earlier, failed) = (&[], None, Cell::new(false));
        Self { context, store, limit, members, earlier, failed, ended: &|| None }
    }

    /// This exchange, between the members with these handles. `earlier`: see [`Exchange::earlier`].
    pub fn of_members(self, members: &'a [&'a str], earlier: Option<&'a Tuner>) -> Self {
        Self { members, earlier, ..self }
    }

    /// This exchange, which ends at any moment with the error that `ended` returns.
    pub fn ending(self, ended: &'a dyn Fn() -> Option<Error>) -> Self {
        Self { ended, ..self }
    }

    fn rank_key(&self, round: &Round, rank: usize) -> String {
        if round.list == RENEWED.list { named_key(self.members[rank]) } else { format!("{}/{rank}", round.key) }
    }

    fn rank_keys(&self, round: &Round, ranks: Range<usize>) -> Vec<String> {
        ranks.map(|rank| self.rank_key(round, rank)).collect()
    }

    fn now(&self) -> Instant {
        self.context.engine().now()
    }

    fn left(&self) -> Duration {
        self.limit.left(self.now())
    }

    /// Publishes `error` where the other ranks wait for what this rank gives in `round`, unless another failure came
    /// before it. The error to report is `error`, even if the store does not answer either.
    pub(super) fn refuse(&self, round: &Round, error: &Error) {
        if self.failed.replace(true) {
            return;
        }
        let (kind, told) = record::of_error(error);
        let refusal = [REFUSAL, &[kind], &told].concat();
        let tell = |key: &str| drop(self.store.set_within(key, &refusal, self.left()));
        match self.context.rank {
            0 => {
                tell(round.list);
                if round.list == MEMORY.list {
                    // If no rank has memory to share, there is no such round, and the others wait for this.
                    tell(TUNING);
                }
            }
            rank if round.list == HOSTS.list => drop(self.claim_refusal(rank, refusal)),
            rank => tell(&self.rank_key(round, rank)),
        }
    }

    /// Claims this rank, with `refusal` in place of its content. It is as long as the others', so the text may be cut
    /// off: then all of it is at another key, first, since rank 0 looks for it as soon as it has the claim.
    fn claim_refusal(&self, rank: Rank, mut refusal: Vec<u8>) -> Result<()> {
        let bytes = self.context.content(0)?.len();
        if refusal.len() > bytes {
            // The claim says the most important, even if the store does not take this.
            let _ = self.store.set_within(&format!("{LONG_REFUSAL}/{rank}"), &refusal, self.left());
        }
        refusal.resize(bytes, 0);
        let claim = claim::make(self.context.versions.own().1, self.context.size, &refusal)?;
        claim::put(self.store, &self.rank_key(&HOSTS, rank), &claim, self.left())
    }

    /// The error that `rank` has published as `value`, if it has.
    fn refused(&self, rank: Rank, value: &[u8]) -> Option<Error> {
        let (kind, told) = value.strip_prefix(REFUSAL)?.split_first()?;
        Some(record::to_error(rank, self.context.size, *kind, told))
    }

    /// The whole of a refusal of `rank` of which its claim has `cut`; `None` if that may be all, or the store does not
    /// have it.
    fn whole_refusal(&self, rank: Rank, cut: &[u8]) -> Option<Vec<u8>> {
        if !cut.starts_with(REFUSAL) || cut.ends_with(&[0]) {
            return None;
        }
        let whole = self.store.get(&format!("{LONG_REFUSAL}/{rank}"), LATE.min(self.left())).ok()?;
        whole.starts_with(cut).then_some(whole)
    }

    /// The first round: claims this rank, with the content `own`. Returns the contents of all ranks in their order.
    fn claim_rank(&self, own: &[u8]) -> Result<Vec<u8>> {
        let (store, rank) = (self.store, self.context.rank);
        let key = self.rank_key(&HOSTS, rank);
        let claim = claim::make(self.context.versions.own().1, self.context.size, own)?;
        claim::put(store, &key, &claim, self.left())?;
        let value = self.wait_for(|wait| store.get(&key, wait))?;
        let claims = Claims::read(rank, &value, claim.len(), self.context.versions.own())?;
        if !claims.is_led_by(&claim) {
            return Err(claims.claimed_twice(&claim));
        }
        // An earlier context of this process that has ended may have left a claim, but no list.
        let earlier = rank == 0
            && claims
                .earlier_contents()
                .any(|content| !Address::is_same_context(&content[VERSION_BYTES..], &own[VERSION_BYTES..]));
        if earlier && store.wait(&[HOSTS.list], Duration::ZERO).is_ok() {
            let text = format!("an earlier context of this process has met others there; {SEPARATE}");
            return Err(Error::new(ErrorKind::Mismatch, text));
        }
        // Rank 0 finds out about the other ranks' by itself.
        claims.content().inspect_err(|error| {
            if rank == 0 {
                self.refuse(&HOSTS, error)
            }
        })?;
        self.exchange(&HOSTS, |rank, value| {
            let claims = Claims::read(rank, value, claim.len(), self.context.versions.own())?;
            claims.is_of_the_same_job(&claim).and_then(|()| claims.content())
        })
    }

    /// One round: writes `own`, unless it `is_written`, or the error for which this rank fails. Returns `own`, and the
    /// contents of all ranks in their order.
    pub(super) fn publish(&self, round: &Round, own: Result<Vec<u8>>, is_written: bool) -> Result<(Vec<u8>, Vec<u8>)> {
        let own = own.inspect_err(|error| self.refuse(round, error))?;
        let key = self.rank_key(round, self.context.rank);
        let written = if is_written { Ok(()) } else { self.store.set_within(&key, &own, self.left()) };
        let list = written.and_then(|()| self.exchange(round, |_, value| Ok(value)));
        list.inspect_err(|_| self.failed.set(true)).map(|list| (own, list))
    }

    /// One round, after this rank has written its content: returns the list that rank 0 makes of all contents.
    /// `content` returns that in the value of a rank.
    fn exchange(&self, round: &Round, content: impl for<'v> Fn(Rank, &'v [u8]) -> Result<&'v [u8]>) -> Result<Vec<u8>> {
        let (store, size) = (self.store, self.context.size);
        let missing = |e: Error| {
            if e.kind().is_intended() {
                // The others have this rank's content, or wait for the list.
                let round = if self.context.rank == 0 { Some(round) } else { round.next };
                let told = match e.kind() {
                    ErrorKind::Closed => Error::new(ErrorKind::ConnectionLost, e.message()),
                    _ => e.clone(),
                };
                round.inspect(|round| self.refuse(round, &told));
            }
            self.name_missing(round, e)
        };
        if self.context.rank != 0 {
            let list = self.wait_for(|wait| store.get(round.list, wait)).map_err(missing)?;
            return self.refused(0, &list).map_or(Ok(list), Err);
        }
        let mut values = Vec::new();
        for first in (0..size).step_by(BATCH) {
            let keys = self.rank_keys(round, first..(first + BATCH).min(size));
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let more = self.wait_for(|wait| store.multi_get(&keys, wait)).map_err(missing)?;
            try_reserve(&mut values, more.len(), "what all ranks have published")?;
            values.extend(more);
        }
        let contents = values.iter().enumerate().map(|(rank, value)| {
            let content = content(rank, value)?;
            let whole = if round.list == HOSTS.list { self.whole_refusal(rank, content) } else { None };
            self.refused(rank, whole.as_deref().unwrap_or(content)).map_or(Ok(content), Err)
        });
        let list = contents.collect::<Result<Vec<_>>>().map(|contents| contents.concat());
        let list = list.inspect_err(|error| self.refuse(round, error))?;
        let left = self.left();
        if round.list == HOSTS.list {
            store.set_and_settle_claims(round.list, &list, left)?;
        } else {
            store.set_within(round.list, &list, left)?;
        }
        Ok(list)
    }

    /// Waits for the store in short turns, so that it notices if the context is closed. A turn that times out is
    /// repeated, since the store may recover; other errors are returned.
    fn wait_for<T>(&self, wait: impl Fn(Duration) -> Result<T>) -> Result<T> {
        let began = self.now();
        let mut turn = FIRST_TURN;
        loop {
            match wait(turn.min(self.left()).max(MIN_TURN)) {
                Ok(value) => return Ok(value),
                // Not repeated after the deadline: a store that does not answer may end a turn late.
                Err(e) if e.kind() == ErrorKind::Timeout && self.now() < self.limit.deadline => {}
                // The store's error contains only the time of the last turn.
                Err(e) => {
                    return Err(e.context(format_args!(
                        "failed after {:.3} s",
                        self.now().duration_since(began).as_secs_f64()
                    )));
                }
            }
            if let Some(error) = self.context.broken().or_else(self.ended) {
                return Err(error);
            }
            turn = (turn * 2).min(LAST_TURN);
        }
    }

    /// Adds the ranks without content to a timeout.
    fn name_missing(&self, round: &Round, error: Error) -> Error {
        if error.kind() != ErrorKind::Timeout {
            return error;
        }
        let Some((missing, all)) = self.find_missing(round) else { return error };
        if missing.is_empty() {
            return error.context(format_args!("rank 0 has not published the list of {}", round.list)).with_rank(0);
        }
        let (least, more) = if all { ("", "") } else { ("at least ", ", ...") };
        let (count, size, what) = (missing.len(), self.context.size, round.missing);
        let ranks = missing.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let obstacle = self.store.obstacle().map(|obstacle| format!("; {obstacle}")).unwrap_or_default();
        let after = after(self.limit.timeout);
        let message = format!("{after}, {least}{count} of {size} ranks {what}: {ranks}{more}{obstacle}");
        Error::new(ErrorKind::Timeout, message).with_rank(missing[0])
    }

    /// The first ranks without content, and whether these are all; `None` if the store does not answer at once, or
    /// cannot be asked without waiting. All ranks ask at the same moment, so one request asks for many keys, and fewer
    /// only if one is missing.
    fn find_missing(&self, round: &Round) -> Option<(Vec<usize>, bool)> {
        let (rank, size) = (self.context.rank, self.context.size);
        let began = self.now();
        let in_time = || self.now().duration_since(began) < LATE;
        let all_present = |ranks: Range<usize>| {
            let keys = self.rank_keys(round, ranks);
            match self.store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), Duration::ZERO) {
                Ok(()) => Some(true),
                Err(e) if e.kind() == ErrorKind::Timeout && in_time() => Some(false),
                Err(_) => None,
            }
        };
        // This rank's content is there; if the store does not confirm this, its other answers mean nothing.
        let is_late = began.saturating_duration_since(self.limit.deadline) >= LATE;
        if is_late || all_present(rank..rank + 1) != Some(true) {
            return None;
        }
        let mut missing = Vec::new();
        let mut unknown = vec![(0_usize, size)];
        while let Some((first, mut end)) = unknown.pop() {
            if missing.len() == MISSING_SHOWN {
                return Some((missing, false));
            }
            if end - first > BATCH {
                unknown.push((first + BATCH, end));
                end = first + BATCH;
            }
            let middle = first.midpoint(end);
            match all_present(first..end) {
                Some(true) => {}
                Some(false) if end - first == 1 => missing.push(first),
                Some(false) => unknown.extend([(middle, end), (first, middle)]),
                None => return (!missing.is_empty()).then_some((missing, false)),
            }
        }
        Some((missing, true))
    }
}
