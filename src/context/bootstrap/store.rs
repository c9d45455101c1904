//! Telling over a store.
//!
//! In each round every rank puts what it tells into the store, first as a [claim], which it reads back; rank 0 collects it
//! and puts the list there as one value. Last, rank 0 puts its tuning there. So each rank makes six requests, and rank 0 two large
//! ones, whatever the number of ranks.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Exchange, Limit};
use crate::context::Context;
use crate::context::claim::{self, Claims, SEPARATE};
use crate::error::{Error, ErrorKind, Result, after};
use crate::net::address::Address;
use crate::rendezvous::Store;

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
/// And at least: where a timeout of zero means to wait for ever, it is never asked with that.
const LEAST_TURN: Duration = Duration::from_millis(1);

/// A store that answers later than this after a wait's end is one that does not answer.
const LATE: Duration = Duration::from_millis(500);

/// Ranks that one request asks the store for at most.
const BATCH: usize = 4096;

/// How many missing ranks a message names.
const MISSING_SHOWN: usize = 16;

const HOSTS: Round = Round { key: "host", list: "hosts", missing: "have not arrived" };
const ADDRESSES: Round = Round { key: "address", list: "addresses", missing: "have not told where they listen" };

/// Where rank 0 publishes its tuning.
const TUNING: &str = "tuning";

/// In front of why rank 0 cannot publish a list, which follows the number of the error's kind. No list begins so.
const REFUSAL: &[u8] = b"\0refused: ";

impl Round {
    fn rank_key(&self, rank: usize) -> String {
        format!("{}/{rank}", self.key)
    }

    fn rank_keys(&self, ranks: Range<usize>) -> Vec<String> {
        ranks.map(|rank| self.rank_key(rank)).collect()
    }
}

/// The ranks of `context` tell each other over `store`.
pub(super) struct OverStore<'a> {
    pub context: &'a Context,
    pub store: &'a dyn Store,
    pub limit: Limit,
}

impl Exchange for OverStore<'_> {
    fn server(&self) -> Option<SocketAddr> {
        self.store.server()
    }

    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>> {
        let own = own.inspect_err(|error| self.refuse(error))?;
        self.context.parse(&self.meet(&own)?, &own)
    }

    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        let own = own?;
        self.store.set_within(&ADDRESSES.rank_key(self.context.rank), &own, self.limit.left())?;
        let list = self.exchange(&ADDRESSES, |told| Ok(told.concat()))?;
        Ok((own, list))
    }

    fn broadcast(&self, own: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let Limit { timeout, .. } = self.limit;
        if let Some(own) = own {
            return self.store.set_within(TUNING, &own, self.limit.left()).map(|()| own);
        }
        self.wait_for(|wait| self.store.get(TUNING, wait)).map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                error.context(format_args!("{}, rank 0 has not told its tuning", after(timeout))).with_rank(0)
            }
            _ => error,
        })
    }
}

impl OverStore<'_> {
    /// Rank 0: tells all why it cannot publish the first list.
    fn refuse(&self, error: &Error) {
        if self.context.rank == 0 {
            let text = [REFUSAL, &[error.kind().number() as u8], error.message().as_bytes()].concat();
            // What is wrong says more than that the store does not answer either.
            let _ = self.store.set_within(HOSTS.list, &text, self.limit.left());
        }
    }

    /// The first round: this rank claims its place, with `own`; what all ranks tell, in their order.
    fn meet(&self, own: &[u8]) -> Result<Vec<u8>> {
        let (store, rank) = (self.store, self.context.rank);
        let (key, claim) = (HOSTS.rank_key(rank), claim::make(self.context.size, own)?);
        claim::put(store, &key, &claim, self.limit.left())?;
        let value = self.wait_for(|wait| store.get(&key, wait))?;
        let claims = Claims::read(rank, &value, claim.len())?;
        if !claims.is_led_by(&claim) {
            // The others are left alone: they may be another job's, which is well.
            return Err(claims.claimed_twice(&claim));
        }
        // A context of this process that is over may have told before, but the list must be yet to come.
        let earlier = rank == 0 && claims.told_before().any(|told| !Address::is_same_context(told, own));
        if earlier && store.wait(&[HOSTS.list], Duration::ZERO).is_ok() {
            let text = format!("an earlier context of this process has met others there; {SEPARATE}");
            return Err(Error::new(ErrorKind::Mismatch, text));
        }
        claims.told().inspect_err(|error| self.refuse(error))?;
        let list = |values: Vec<Vec<u8>>| {
            let told = values.iter().enumerate().map(|(rank, value)| {
                let claims = Claims::read(rank, value, claim.len())?;
                claims.is_of_the_same_job(&claim).and_then(|()| claims.told())
            });
            let told = told.collect::<Result<Vec<_>>>().map(|told| told.concat());
            told.inspect_err(|error| self.refuse(error))
        };
        self.exchange(&HOSTS, list)
    }

    /// One round, in which this rank has told: what rank 0 makes of what all ranks have, in their order, by `list`.
    fn exchange(&self, round: &Round, list: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let (store, size) = (self.store, self.context.size);
        let missing = |e| self.name_missing(round, e);
        if self.context.rank != 0 {
            let list = self.wait_for(|wait| store.get(round.list, wait)).map_err(missing)?;
            return match list.strip_prefix(REFUSAL) {
                None => Ok(list),
                Some(why) => {
                    let (kind, text) = why.split_first().unwrap_or((&0, b""));
                    let kind = ErrorKind::of_number((*kind).into()).unwrap_or(ErrorKind::Mismatch);
                    Err(Error::new(kind, format!("rank 0: {}", String::from_utf8_lossy(text))).with_rank(0))
                }
            };
        }
        let mut values = Vec::new();
        for first in (0..size).step_by(BATCH) {
            let keys = round.rank_keys(first..(first + BATCH).min(size));
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            values.extend(self.wait_for(|wait| store.multi_get(&keys, wait)).map_err(missing)?);
        }
        let list = list(values)?;
        store.set_within(round.list, &list, self.limit.left())?;
        Ok(list)
    }

    /// Waits for the store in turns, to notice that the context is closed meanwhile. A turn that ends without an answer is
    /// no reason to give up, since the store may come back; whatever else fails is.
    fn wait_for<T>(&self, wait: impl Fn(Duration) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let mut turn = FIRST_TURN;
        loop {
            match wait(turn.min(self.limit.left()).max(LEAST_TURN)) {
                Ok(value) => return Ok(value),
                // A store that does not answer may end a turn late: not to ask it again after the deadline.
                Err(e) if e.kind() == ErrorKind::Timeout && Instant::now() < self.limit.deadline => {}
                // The error tells how long the turn took.
                Err(e) => return Err(e.context(format_args!("failed after {:.3} s", began.elapsed().as_secs_f64()))),
            }
            if let Some(error) = self.context.broken() {
                return Err(error);
            }
            turn = (turn * 2).min(LAST_TURN);
        }
    }

    /// Adds the ranks that have not told to a timeout.
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
        let message = format!("{}, {least}{count} of {size} ranks {what}: {ranks}{more}", after(self.limit.timeout));
        Error::new(ErrorKind::Timeout, message).with_rank(missing[0])
    }

    /// The first ranks that have not told, and whether these are all; `None` if the store does not say, at once, or cannot be asked
    /// without waiting. Every rank asks at the same moment: for many keys in one request, and for fewer only where one is missing.
    fn find_missing(&self, round: &Round) -> Option<(Vec<usize>, bool)> {
        let (rank, size) = (self.context.rank, self.context.size);
        let in_time = || Instant::now().saturating_duration_since(self.limit.deadline) < LATE;
        let all_told = |ranks: Range<usize>| {
            let keys = round.rank_keys(ranks);
            match self.store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), Duration::ZERO) {
                Ok(()) => Some(true),
                Err(e) if e.kind() == ErrorKind::Timeout && in_time() => Some(false),
                Err(_) => None,
            }
        };
        // What this rank has told is there; a store that does not say so says nothing about the others either.
        if !in_time() || all_told(rank..rank + 1) != Some(true) {
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
            match all_told(first..end) {
                Some(true) => {}
                Some(false) if end - first == 1 => missing.push(first),
                Some(false) => unknown.extend([(middle, end), (first, middle)]),
                None => return (!missing.is_empty()).then_some((missing, false)),
            }
        }
        Some((missing, true))
    }
}
