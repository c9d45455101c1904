//! What becomes of the connections that arrive at a listener: counted, and told to the log without flooding it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::log::{Level, LogCallback};
use crate::net::handshake::Fault;
use crate::sys;

/// How many connections have arrived at a listener since it was created, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStatistics {
    /// Proved that they belong to the job.
    pub accepted: u64,
    /// Spoke another protocol, or this one wrongly.
    pub foreign: u64,
    /// Spoke another version of the protocol.
    pub other_version: u64,
    /// Sought a context that is not here, or no longer.
    pub unknown_context: u64,
    /// Proved nothing: another token, a token on one side only, or a replayed or forged proof.
    pub unproven: u64,
    /// Ended in the middle of the handshake, or before it: port scans, and ranks that found a better connection meanwhile.
    pub incomplete: u64,
    /// Did not finish the handshake in time.
    pub timed_out: u64,
    /// Made room for newer ones while too many were in the handshake.
    pub crowded_out: u64,
}

impl ConnectionStatistics {
    /// All that were not accepted.
    pub fn refused(&self) -> u64 {
        let Self { accepted: _, foreign, other_version, unknown_context, unproven, incomplete, timed_out, crowded_out } =
            self;
        foreign + other_version + unknown_context + unproven + incomplete + timed_out + crowded_out
    }
}

/// Why a connection was dropped that had not proven itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The other side did not keep to the protocol, or proved nothing.
    Fault(Fault),
    /// The connection ended or broke in the middle.
    Incomplete,
    /// It took too long.
    TimedOut,
    /// It made room for a newer one.
    CrowdedOut,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Incomplete => f.write_str("it ended in the middle of the handshake"),
            Self::TimedOut => f.write_str("it did not finish the handshake in time"),
            Self::CrowdedOut => f.write_str("it made room for newer ones: too many were in the handshake"),
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    foreign: AtomicU64,
    other_version: AtomicU64,
    unknown_context: AtomicU64,
    unproven: AtomicU64,
    incomplete: AtomicU64,
    timed_out: AtomicU64,
    crowded_out: AtomicU64,
}

/// Reads the counts from any thread.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Counts>);

impl Counters {
    /// The counts now.
    pub fn statistics(&self) -> ConnectionStatistics {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ConnectionStatistics {
            accepted: read(&self.0.accepted),
            foreign: read(&self.0.foreign),
            other_version: read(&self.0.other_version),
            unknown_context: read(&self.0.unknown_context),
            unproven: read(&self.0.unproven),
            incomplete: read(&self.0.incomplete),
            timed_out: read(&self.0.timed_out),
            crowded_out: read(&self.0.crowded_out),
        }
    }
}

/// Connections to one listener that may be in the handshake at once, however many descriptors there are.
const MAX_GREETINGS: usize = 1024;
/// Of the descriptors that the process may have, they may take this part. The host program, the ranks' own connections and
/// other listeners need the rest.
const PART_OF_DESCRIPTORS: u64 = 8;

/// How many connections to one listener may be in the handshake at once; then one makes room for each new one. The limit on
/// descriptors may change while the program runs, so this is asked for each.
pub fn most_greetings() -> usize {
    most_greetings_of(sys::descriptor_limit())
}

fn most_greetings_of(descriptors: u64) -> usize {
    (descriptors / PART_OF_DESCRIPTORS).clamp(1, MAX_GREETINGS as u64) as usize
}

/// Whose share of the handshakes a connection from `address` counts for: the address's or, of IPv6, that of the network of 64
/// bits, any number of whose addresses one host may have.
pub fn origin(address: Option<SocketAddr>) -> IpAddr {
    match address.map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V6(v6)) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        Some(v4) => v4,
        None => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Which of `greetings`, the oldest first, makes room: one of the origin that has most of them. So whoever comes from one
/// address keeps no place from those at others. Of that origin, the oldest that has not named what it seeks, or else the
/// oldest: an honest rank takes two round trips, so it is among the youngest. Each greeting has its number, its origin, and
/// whether it has named what it seeks.
pub fn who_makes_room(greetings: impl Iterator<Item = (u64, IpAddr, bool)> + Clone) -> Option<u64> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    greetings.clone().for_each(|(_, origin, _)| *counts.entry(origin).or_default() += 1);
    greetings
        .max_by_key(|(number, origin, named)| (counts[origin], !named, Reverse(*number)))
        .map(|(number, ..)| number)
}

/// Time that a connection has for its handshake even while descriptors are short; then it makes room.
pub const FAIR_CHANCE: Duration = Duration::from_millis(500);

/// So many refusals are told one by one in each [`PERIOD`]; the others are only counted.
const SHOWN: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// The listener's side of the counts, and of the log.
pub struct Admissions {
    counters: Counters,
    log: Option<LogCallback>,
    /// What listens, for the log.
    listener: &'static str,
    period_began: Instant,
    shown: u32,
    hidden: u64,
}

impl Admissions {
    /// For one listener.
    pub fn new(listener: &'static str, log: Option<LogCallback>, counters: Counters) -> Self {
        Self { counters, log, listener, period_began: Instant::now(), shown: 0, hidden: 0 }
    }

    /// A connection has proven itself.
    pub fn accepted(&self) {
        self.counters.0.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection from `from` was dropped. `claims` is the rank that it said it was, to a context that is here.
    pub fn refused(&mut self, from: &str, claims: Option<u32>, refusal: Refusal) {
        let counts = &self.counters.0;
        let count = match refusal {
            Refusal::Fault(Fault::Foreign | Fault::Malformed) => &counts.foreign,
            Refusal::Fault(Fault::Version(_)) => &counts.other_version,
            Refusal::Fault(Fault::NoContext) => &counts.unknown_context,
            Refusal::Fault(Fault::OneToken { .. } | Fault::Proof) => &counts.unproven,
            Refusal::Incomplete => &counts.incomplete,
            Refusal::TimedOut => &counts.timed_out,
            Refusal::CrowdedOut => &counts.crowded_out,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if self.log.is_none() || self.shown == SHOWN {
            self.hidden += u64::from(self.log.is_some());
            return;
        }
        self.shown += 1;
        let who = claims.map_or(String::new(), |rank| format!(" that says it is rank {rank}"));
        // Of two ranks that connect to each other at the same time, one gives up its attempt.
        let level = if refusal == Refusal::Incomplete && claims.is_some() { Level::Detail } else { Level::Warning };
        self.log(level, &format!("dropped a connection from {from}{who}: {refusal}"));
    }

    /// Tells the log of something else.
    pub fn log(&self, level: Level, text: &str) {
        if let Some(log) = &self.log {
            log(level, &format!("{}: {text}", self.listener));
        }
    }

    /// When [`Admissions::tick`] has something to say, if it has.
    pub fn next_tick(&self) -> Option<Instant> {
        (self.hidden > 0).then(|| self.period_began + PERIOD)
    }

    /// Sums up what was not told one by one, once a period is over.
    pub fn tick(&mut self, now: Instant) {
        if now < self.period_began + PERIOD {
            return;
        }
        self.period_began = now;
        self.shown = 0;
        let hidden = std::mem::take(&mut self.hidden);
        if hidden > 0 {
            self.log(Level::Warning, &format!("dropped {hidden} more connections in the last {PERIOD:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn handshakes_leave_most_descriptors_alone() {
        let most = [0, 7, 64, 1024, 4096, 8192, 1 << 20, u64::MAX].map(most_greetings_of);
        assert_eq!(most, [1, 1, 8, 128, 512, 1024, 1024, 1024]);
    }

    #[test]
    fn the_origin_with_most_handshakes_makes_room() {
        let at = |text: &str| origin(Some(text.parse().unwrap()));
        assert_eq!(at("10.0.0.1:1"), at("10.0.0.1:2"));
        assert_eq!(at("10.0.0.1:1"), at("[::ffff:10.0.0.1]:1"));
        assert_eq!(at("[2001:db8:1:2::3]:1"), at("[2001:db8:1:2:ffff::]:1"));
        let all = ["10.0.0.1:1", "10.0.0.2:1", "[2001:db8:1:2::3]:1", "[2001:db8:1:3::3]:1"].map(at);
        (1..4).for_each(|i| assert!(!all[..i].contains(&all[i])));

        let of = |greetings: &[(u64, usize, bool)]| {
            who_makes_room(greetings.iter().map(|(number, which, named)| (*number, all[*which], *named)))
        };
        assert_eq!(of(&[]), None);
        // The oldest of a single origin; of equals, the oldest.
        assert_eq!(of(&[(1, 0, false), (2, 0, false)]), Some(1));
        assert_eq!(of(&[(1, 1, false), (2, 0, false)]), Some(1));
        // Who has more, though younger; and of these who has named nothing, though younger.
        assert_eq!(of(&[(1, 1, false), (2, 0, false), (3, 0, false)]), Some(2));
        assert_eq!(of(&[(1, 1, false), (2, 0, true), (3, 0, false)]), Some(3));
        assert_eq!(of(&[(1, 1, false), (2, 0, true), (3, 0, true)]), Some(2));
    }

    #[test]
    fn every_refusal_is_counted_and_a_flood_is_summed_up() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let told = lines.clone();
        let log: LogCallback = Arc::new(move |level, text| told.lock().unwrap().push((level, text.to_owned())));
        let counters = Counters::default();
        let mut admissions = Admissions::new("here", Some(log), counters.clone());
        let faults = [
            Fault::Foreign,
            Fault::Malformed,
            Fault::Version(9),
            Fault::NoContext,
            Fault::OneToken { theirs: true },
            Fault::Proof,
        ];
        faults.into_iter().for_each(|fault| admissions.refused("a", None, Refusal::Fault(fault)));
        admissions.refused("b", Some(3), Refusal::Incomplete);
        for _ in 0..50 {
            admissions.refused("c", None, Refusal::TimedOut);
            admissions.refused("c", None, Refusal::CrowdedOut);
        }
        admissions.accepted();
        let expected = ConnectionStatistics {
            accepted: 1,
            foreign: 2,
            other_version: 1,
            unknown_context: 1,
            unproven: 2,
            incomplete: 1,
            timed_out: 50,
            crowded_out: 50,
        };
        assert_eq!(counters.statistics(), expected);
        assert_eq!(expected.refused(), 107);
        let now = admissions.next_tick().unwrap();
        admissions.tick(now - Duration::from_millis(1));
        assert_eq!(lines.lock().unwrap().len(), SHOWN as usize);
        admissions.tick(now);
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        assert_eq!(
            lines[6],
            (
                Level::Detail,
                "here: dropped a connection from b that says it is rank 3: it ended in the middle of the handshake"
                    .into()
            )
        );
        assert_eq!(lines[SHOWN as usize], (Level::Warning, "here: dropped 97 more connections in the last 10s".into()));
        assert_eq!((lines.len(), admissions.next_tick()), (SHOWN as usize + 1, None));
    }
}
