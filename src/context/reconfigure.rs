//! How processes get a new membership while they live: the agreement behind [`Member::reconfigure`].
//!
//! The members of the new membership meet over a store, under the id of the change. Each makes a context of it beside
//! the one that it has. All have the same outcome, which is written once:
//!
//! 1. The new rank 0 claims the id: it appends the list of members to `claim`, whose first entry counts. So an id is
//!    used once, and the others find out if their lists differ.
//! 2. All connect the new context: over the store as any other, or in fewer rounds if the claim says what is
//!    known of them, because all are members of one present membership.
//! 3. Each of the others says at `ready/RANK` that it is connected. Such members that share memory say there what they
//!    have found of it, as they would in a round before, and the outcome has the list.
//! 4. When all have, rank 0 appends to `outcome` that the change is committed. A member that fails, or whose time is
//!    up, appends its error there. The first entry counts, so whoever reads it knows what all know.
//! 5. The new context takes the place of the old one, or is dropped.
//!
//! Only rank 0 commits, and only when all are ready: a member that is not, and a rank 0 that has not tried to, know
//! without the store that nothing is committed. Any other that cannot read the outcome belongs to no membership.
//!
//! [`Member::reconfigure`]: super::Member::reconfigure

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::bootstrap::members::{self, Members, OverMembers};
use super::bootstrap::record;
use super::bootstrap::store::OverStore;
use super::exchange::{Exchange, Limit};
use super::{Connect, Context};
use crate::error::{Error, ErrorKind, Result, after, first_few};
use crate::net::address::Address;
use crate::rendezvous::Store;
use crate::sys;
use crate::transport::Sharing;
use crate::tuner::Tuner;
use crate::types::Rank;

/// What a reconfigure leaves for the outcome, of its whole time.
const OUTCOME_SHARE: u32 = 4;
/// The longest time that a reconfigure leaves for the outcome.
const MAX_OUTCOME_TIME: Duration = Duration::from_secs(4);

/// How long a member waits for the store before it looks whether the change has ended otherwise.
const TURN: Duration = Duration::from_millis(200);
/// The shortest wait. Some stores wait without limit if their timeout is zero.
const MIN_TURN: Duration = Duration::from_millis(1);
/// The pause before a store that has failed is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// How many ranks an error names.
const RANKS_SHOWN: usize = 16;

const CLAIM: &str = "claim";
const READY: &str = "ready";
const OUTCOME: &str = "outcome";

/// In place of the kind of an error: the change is committed.
const COMMITTED: u8 = 0;

/// Random bytes at the beginning of a claim, which tell apart two claims of one process. The list of members follows.
const CLAIM_ID_BYTES: usize = 16;
/// Follows the list of members in a claim. The rest is what rank 0 tells the others, or nothing.
const END_OF_LIST: u8 = b'\n';

/// What has become of a change.
pub(super) enum Outcome {
    /// With what all have found of the memory that they share, if they were asked.
    Committed(Vec<u8>),
    /// Nothing has changed, for any member.
    Failed(Error),
    /// This member does not know.
    Unknown(Error),
}

/// A change that this process takes part in.
pub(super) struct Change<'a> {
    /// The context of the new membership, which is not connected.
    pub context: &'a Context,
    /// That of the present membership, if there is one.
    pub present: Option<&'a Context>,
    /// The part of the store for this id.
    pub store: &'a dyn Store,
    pub id: i64,
    /// The handles of the members, in the order of their ranks.
    pub members: &'a [&'a str],
    pub limit: Limit,
}

/// An entry of a list that grows by appending, before its length.
fn entry(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_le_bytes()[..], content].concat()
}

/// The first entry of such a list.
fn first_entry(list: &[u8]) -> Option<&[u8]> {
    let (length, rest) = list.split_first_chunk()?;
    rest.get(..u32::from_le_bytes(*length) as usize)
}

impl Change<'_> {
    /// Takes part until the outcome is known, or the time is up.
    pub fn run(&self) -> Outcome {
        // Without a word to the others: the change may be another one, which works.
        let (told, is_renewed) = match self.meet() {
            Ok(met) => met,
            Err(error) => return Outcome::Failed(error),
        };
        let (connected, outcome) = self.connect(&told, is_renewed);
        match (connected, outcome) {
            (Ok(()), None) => self.conclude(&[]),
            (Err(error), Some(Outcome::Committed(found))) => {
                self.context.give_up(&error);
                Outcome::Committed(found)
            }
            (_, Some(outcome)) => outcome,
            (Err(error), None) => {
                // The others need not wait for this one. If the store does not take it, they do.
                let left = self.left().max(MIN_TURN);
                let _ = self.append(OUTCOME, &self.failure(&error), left.min(TURN));
                Outcome::Failed(error)
            }
        }
    }

    fn rank(&self) -> Rank {
        self.context.rank
    }

    fn now(&self) -> Instant {
        self.context.engine().now()
    }

    fn left(&self) -> Duration {
        self.limit.left(self.now())
    }

    /// The time for the outcome.
    fn reserve(&self) -> Duration {
        (self.limit.timeout / OUTCOME_SHARE).min(MAX_OUTCOME_TIME)
    }

    /// Until when this member waits for what must be there before it is ready, and until when for the outcome.
    fn until(&self, part_of_reserve: u32) -> Instant {
        self.limit.deadline.checked_sub(self.reserve() / part_of_reserve).unwrap_or(self.limit.deadline)
    }

    /// Why this member cannot go on: the program has closed or aborted the context, or the change has failed.
    fn ended(&self) -> Option<Error> {
        self.context.broken().or_else(|| {
            let list = self.store.get(OUTCOME, MIN_TURN).ok()?;
            match self.read_outcome(&list) {
                Outcome::Failed(error) => Some(error),
                _ => None,
            }
        })
    }

    /// Waits in turns until `until`, as long as nothing ends the change. `late` says what has not come.
    fn wait<T>(&self, until: Instant, wait: impl Fn(Duration) -> Result<T>, late: impl FnOnce() -> Error) -> Result<T> {
        loop {
            let left = until.saturating_duration_since(self.now());
            match wait(left.clamp(MIN_TURN, TURN)) {
                Err(error) if error.kind() == ErrorKind::Timeout => {}
                result => return result,
            }
            if let Some(error) = self.ended() {
                return Err(error);
            }
            if self.now() >= until {
                return Err(late());
            }
        }
    }

    fn late(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Timeout, format!("{}, {what}", after(self.limit.timeout)))
    }

    /// Appends an entry to a list. A store that cannot append takes the first alone.
    fn append(&self, key: &str, entry: &[u8], timeout: Duration) -> Result<()> {
        match self.store.append_within(key, entry, timeout) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                match self.store.add(&format!("{key}/entries"), 1)? {
                    1 => self.store.set_within(key, entry, timeout),
                    _ => Ok(()),
                }
            }
            result => result,
        }
    }

    /// Meets the others. Returns what rank 0 knows of them, and whether this member has written its address.
    fn meet(&self) -> Result<(Vec<u8>, bool)> {
        let present = self.present.and_then(|present| Some((present, members::ranks_in(present, self.members)?)));
        if let Some((_, (_, addresses))) = &present {
            let (own, sockets) = (self.members[self.rank()], addresses[self.rank()].sockets.clone());
            members::renew(self.context, self.store, own, sockets, self.left())?;
        }
        let is_renewed = present.is_some();
        let told = if self.rank() == 0 {
            // Connections to all are made before the change is committed, in the rounds of any context.
            let present = present.filter(|_| self.context.options.connect == Connect::Lazy);
            let told = present.and_then(|(present, found)| members::describe(self.context, present, &found));
            self.claim(told.as_deref().unwrap_or_default())?;
            told.unwrap_or_default()
        } else {
            self.follow_claim()?
        };
        Ok((told, is_renewed))
    }

    /// Rank 0 claims the id. The others are `told` this besides. Fails if the id was used.
    fn claim(&self, told: &[u8]) -> Result<()> {
        let own: [u8; CLAIM_ID_BYTES] = sys::random().map_err(|error| Error::io("cannot get random bytes", &error))?;
        let claim = entry(&[&own[..], self.members.join(",").as_bytes(), &[END_OF_LIST], told].concat());
        self.append(CLAIM, &claim, self.left())?;
        let claims = self.store.get(CLAIM, self.left().max(MIN_TURN))?;
        let is_own = first_entry(&claims).is_some_and(|first| first.starts_with(&own));
        if is_own { Ok(()) } else { Err(self.used()) }
    }

    /// Another rank waits until rank 0 has claimed the id. Returns what it tells. Fails if the id was used, or is that
    /// of other members.
    fn follow_claim(&self) -> Result<Vec<u8>> {
        let late = || self.late("rank 0 of the new membership has not come").with_rank(0);
        let get = |turn| self.store.get(CLAIM, turn);
        let claims = self.wait(self.until(1), get, late)?;
        let claim = first_entry(&claims).and_then(|first| first.get(CLAIM_ID_BYTES..)).unwrap_or_default();
        let end = claim.iter().position(|byte| *byte == END_OF_LIST).unwrap_or(claim.len());
        let (theirs, told) = (&claim[..end], claim.get(end + 1..).unwrap_or_default());
        if theirs != self.members.join(",").as_bytes() {
            let others = theirs.split(|byte| *byte == b',').count();
            let (id, own) = (self.id, self.members.len());
            let text = format!(
                "the id {id} is that of another change, to {others} members; this one has {own}: all members pass the \
                 same list and order, and each change has an id of its own"
            );
            return Err(Error::new(ErrorKind::Mismatch, text).with_rank(0));
        }
        match self.store.wait(&[OUTCOME], Duration::ZERO) {
            Ok(()) => Err(self.ended().unwrap_or_else(|| self.used())),
            // Some stores cannot look without waiting.
            Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unsupported) => Ok(told.to_vec()),
            Err(error) => Err(error),
        }
    }

    fn used(&self) -> Error {
        let text = format!("the id {} was used before: each change has an id of its own", self.id);
        Error::new(ErrorKind::Mismatch, text)
    }

    /// Connects the context; rank 0 has `told` this. Also returns the outcome if that has come with it.
    fn connect(&self, told: &[u8], is_renewed: bool) -> (Result<()>, Option<Outcome>) {
        let until = self.until(1);
        let limit = Limit { deadline: until, ..self.limit };
        let ended = || self.ended();
        let earlier = self.present.and_then(|present| present.tuners.agreed());
        let over = OverStore::new(self.context, self.store, limit).ending(&ended).of_members(self.members, earlier);
        if told.is_empty() {
            return (self.context.bootstrap(&over, limit), None);
        }
        let over_members = match Members::parse(self.context, told) {
            Ok(members) => OverMembers { over, members, is_renewed },
            Err(error) => return (Err(error), None),
        };
        let exchange = Committing { over_members, change: self, outcome: RefCell::default() };
        (self.context.bootstrap(&exchange, limit), exchange.outcome.into_inner())
    }

    /// Says that this member is ready, with what it has `found` of the memory that ranks share, and waits for the
    /// outcome.
    fn conclude(&self, found: &[u8]) -> Outcome {
        if self.rank() == 0 { self.decide(found) } else { self.follow(found) }
    }

    /// Rank 0: commits once all are ready.
    fn decide(&self, found: &[u8]) -> Outcome {
        let keys: Vec<String> = (1..self.members.len()).map(ready).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let all_ready = |turn| if keys.is_empty() { Ok(Vec::new()) } else { self.store.multi_get(&keys, turn) };
        let others = self.wait(self.until(2), all_ready, || self.not_ready());
        let found = others.map(|others| [found, &others.concat()[..]].concat()).and_then(|found| {
            if !found.is_empty() {
                Sharing::check_room(Sharing::parse(&found, self.members.len())?.into_iter().enumerate())?;
            }
            Ok(found)
        });
        match found {
            Ok(found) => self.settle(&entry(&[&[COMMITTED], &found[..]].concat())),
            Err(error) => {
                let left = self.left().max(MIN_TURN);
                let _ = self.append(OUTCOME, &self.failure(&error), left);
                Outcome::Failed(error)
            }
        }
    }

    fn not_ready(&self) -> Error {
        let is_missing = |rank: &Rank| self.store.wait(&[&ready(*rank)], MIN_TURN).is_err();
        let missing: Vec<Rank> = (1..self.members.len()).filter(is_missing).take(RANKS_SHOWN).collect();
        let which = first_few(missing.iter(), RANKS_SHOWN, ", ");
        let error = self.late(format_args!("these ranks of the new membership are not connected: {which}"));
        missing.first().into_iter().fold(error, |error, rank| error.with_rank(*rank))
    }

    /// Another rank: says that it is ready, and waits for the outcome.
    fn follow(&self, found: &[u8]) -> Outcome {
        let until = self.until(2);
        let left = until.saturating_duration_since(self.now()).max(MIN_TURN);
        let late = || self.late("rank 0 of the new membership has not said whether all are connected").with_rank(0);
        let outcome = self.store.set_within(&ready(self.rank()), found, left).and_then(|()| {
            let get = |turn| self.store.get(OUTCOME, turn);
            self.wait(until, get, late)
        });
        match outcome {
            Ok(list) => self.read_outcome(&list),
            Err(error) => self.settle(&self.failure(&error)),
        }
    }

    /// Appends `own` to the outcome, and reads which was the first. Asks a store that fails until the time is up.
    fn settle(&self, own: &[u8]) -> Outcome {
        loop {
            let left = self.left().max(MIN_TURN);
            let appended = self.append(OUTCOME, own, left);
            match appended.and_then(|()| self.store.get(OUTCOME, left)) {
                Ok(list) => return self.read_outcome(&list),
                Err(error) if self.left().is_zero() => return Outcome::Unknown(error),
                Err(_) => {
                    let until = self.now() + PAUSE.min(self.left());
                    self.context.device().clock().sleep(&[], until);
                }
            }
        }
    }

    /// The entry of a member that fails: its rank (4 bytes), and [`record::of_error`].
    fn failure(&self, error: &Error) -> Vec<u8> {
        let (kind, told) = record::of_error(error);
        entry(&[&[kind], &(self.rank() as u32).to_le_bytes()[..], &told].concat())
    }

    fn read_outcome(&self, list: &[u8]) -> Outcome {
        match first_entry(list).and_then(<[u8]>::split_first) {
            Some((&COMMITTED, found)) => Outcome::Committed(found.to_vec()),
            Some((kind, told)) => {
                let (rank, told) = told.split_at(told.len().min(size_of::<u32>()));
                let rank = rank.try_into().map_or(0, u32::from_le_bytes) as Rank;
                Outcome::Failed(record::to_error(rank, self.members.len(), *kind, told))
            }
            None => Outcome::Unknown(Error::new(ErrorKind::Mismatch, "what the store has as outcome is none")),
        }
    }
}

/// The exchange of such members, for whom the round about memory is the last one: who has opened that of the others is
/// connected.
struct Committing<'a> {
    over_members: OverMembers<'a>,
    change: &'a Change<'a>,
    outcome: RefCell<Option<Outcome>>,
}

impl Exchange for Committing<'_> {
    fn sockets(&self) -> Option<Vec<SocketAddr>> {
        self.over_members.sockets()
    }

    fn agreed(&self) -> Option<Tuner> {
        self.over_members.agreed()
    }

    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>> {
        self.over_members.provisional_addresses(own)
    }

    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        self.over_members.addresses(own)
    }

    fn memory(&self, own: Result<Vec<u8>>) -> Result<Vec<u8>> {
        let outcome = self.change.conclude(&own?);
        let found = match &outcome {
            Outcome::Committed(found) => Ok(found.clone()),
            Outcome::Failed(error) | Outcome::Unknown(error) => Err(error.clone()),
        };
        self.outcome.replace(Some(outcome));
        found
    }

    fn broadcast(&self, own: Option<Vec<u8>>) -> Result<Vec<u8>> {
        self.over_members.broadcast(own)
    }
}

fn ready(rank: Rank) -> String {
    format!("{READY}/{rank}")
}
