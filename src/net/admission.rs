//! Counts the connections that arrive at a listener, and logs the dropped ones at a limited rate.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::in_words;
use crate::log::{Level, LogCallback};
use crate::net::handshake::Fault;
use crate::sys;

/// Numbers of connections that have arrived at a listener since it was created, by their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStatistics {
    /// Proved that they belong to the job.
    pub accepted: u64,
    /// Used another protocol, or violated this one, or that of TLS.
    pub foreign: u64,
    /// Used another version of the protocol.
    pub other_version: u64,
    /// Named a context that does not exist here, or no longer.
    pub unknown_context: u64,
    /// Failed to authenticate: another token, a token on one side only, a replayed or forged proof, or a certificate
    /// that one side does not accept.
    pub unproven: u64,
    /// Ended before or during the handshake: port scans, ranks that used another connection to the same peer instead,
    /// and what this process could not serve for lack of memory or descriptors.
    pub incomplete: u64,
    /// Did not finish the handshake in time.
    pub timed_out: u64,
    /// Dropped in favour of newer ones while too many were in the handshake.
    pub crowded_out: u64,
}

impl ConnectionStatistics {
    /// All that were dropped.
    pub fn refused(&self) -> u64 {
        let Self { accepted: _, foreign, other_version, unknown_context, unproven, incomplete, timed_out, crowded_out } =
            self;
        foreign + other_version + unknown_context + unproven + incomplete + timed_out + crowded_out
    }
}

/// Why an unauthenticated connection was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The other side violated the protocol, or failed to authenticate.
    Fault(Fault),
    /// The connection ended or broke during the handshake.
    Incomplete,
    /// The handshake took too long.
    TimedOut,
    /// Dropped in favour of a newer connection.
    CrowdedOut,
    /// The process could not serve the connection, by the system's error of this number; 0 if it has none.
    Unserved(i32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Incomplete => f.write_str("it ended in the middle of the handshake"),
            Self::TimedOut => f.write_str("it did not finish the handshake in time"),
            Self::CrowdedOut => f.write_str("it made room for newer ones: too many were in the handshake"),
            Self::Unserved(0) => f.write_str("this process could not serve it"),
            Self::Unserved(number) => {
                let error = std::io::Error::from_raw_os_error(*number);
                write!(f, "this process could not serve it: {}", in_words(&error))
            }
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

/// Gives any thread access to the counts.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Counts>);

impl Counters {
    /// The current counts.
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

/// The maximum number of connections to one listener in the handshake at the same time, whatever the descriptor limit.
const MAX_HANDSHAKES: usize = 1024;
/// Handshakes may use the process's descriptor limit divided by this. The program, the ranks' own connections and other
/// listeners need the other descriptors.
const PART_OF_DESCRIPTORS: u64 = 8;

/// The most connections to one listener that may be in the handshake at the same time; beyond that, one is dropped for
/// each new one. Computed for each connection, since the descriptor limit may change while the program runs.
pub fn max_handshakes() -> usize {
    max_handshakes_for(sys::descriptor_limit())
}

fn max_handshakes_for(descriptors: u64) -> usize {
    (descriptors / PART_OF_DESCRIPTORS).clamp(1, MAX_HANDSHAKES as u64) as usize
}

/// The origin by which connections are counted: the address, or for IPv6 its network of 64 bits, since one host may
/// have any number of its addresses.
pub fn origin(address: Option<SocketAddr>) -> IpAddr {
    match address.map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V6(v6)) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        Some(v4) => v4,
        None => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Which of `handshakes`, ordered from the oldest, is dropped to make room: one of the origin that has most of them, so
/// that one address cannot use up the room of others. Among those of that origin, it is the oldest that has not named a
/// context or store yet, or else the oldest: a rank needs only two round trips, so it is among the youngest. Each item
/// has its number, its origin, and whether it has named what it seeks.
pub fn connection_to_drop(handshakes: impl Iterator<Item = (u64, IpAddr, bool)> + Clone) -> Option<u64> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    handshakes.clone().for_each(|(_, origin, _)| *counts.entry(origin).or_default() += 1);
    handshakes
        .max_by_key(|(number, origin, named)| (counts[origin], !named, Reverse(*number)))
        .map(|(number, ..)| number)
}

/// Minimum time that a connection gets for its handshake while descriptors are short; after it, it may be dropped.
pub const MIN_HANDSHAKE_TIME: Duration = Duration::from_millis(500);

/// Number of dropped connections that are logged one by one in each [`LOG_PERIOD`]; further ones are only counted.
const LOGGED_PER_PERIOD: u32 = 10;
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Updates the counts and writes to the log, for one listener.
pub struct Admissions {
    counters: Counters,
    log: Option<LogCallback>,
    /// Name of the listener in the log.
    listener: &'static str,
    period_began: Instant,
    shown: u32,
    hidden: u64,
}

impl Admissions {
    /// `listener` is its name in the log.
    pub fn new(listener: &'static str, log: Option<LogCallback>, counters: Counters) -> Self {
        Self { counters, log, listener, period_began: Instant::now(), shown: 0, hidden: 0 }
    }

    /// Counts a connection that has been authenticated.
    pub fn accepted(&self) {
        self.counters.0.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts and logs a connection from `from` that was dropped. `claims` is the rank that it claimed for a context
    /// that exists here.
    pub fn refused(&mut self, from: &str, claims: Option<u32>, refusal: Refusal) {
        let counts = &self.counters.0;
        let count = match refusal {
            Refusal::Fault(Fault::Foreign | Fault::Malformed | Fault::Tls(_)) => &counts.foreign,
            Refusal::Fault(Fault::Version(_)) => &counts.other_version,
            Refusal::Fault(Fault::NoContext) => &counts.unknown_context,
            Refusal::Fault(Fault::OneToken { .. } | Fault::Proof | Fault::Certificate(_) | Fault::Alert(_)) => {
                &counts.unproven
            }
            Refusal::Incomplete | Refusal::Unserved(_) => &counts.incomplete,
            Refusal::TimedOut => &counts.timed_out,
            Refusal::CrowdedOut => &counts.crowded_out,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if self.log.is_none() || self.shown == LOGGED_PER_PERIOD {
            self.hidden += u64::from(self.log.is_some());
            return;
        }
        self.shown += 1;
        let who = claims.map_or(String::new(), |rank| format!(" that says it is rank {rank}"));
        // If two ranks connect to each other at the same time, one of them drops its attempt.
        let level = if refusal == Refusal::Incomplete && claims.is_some() { Level::Detail } else { Level::Warning };
        self.log(level, &format!("dropped a connection from {from}{who}: {refusal}"));
    }

    /// Logs another message.
    pub fn log(&self, level: Level, text: &str) {
        if let Some(log) = &self.log {
            log(level, &format!("{}: {text}", self.listener));
        }
    }

    /// When [`Admissions::tick`] must be called, if at all.
    pub fn next_tick(&self) -> Option<Instant> {
        (self.hidden > 0).then(|| self.period_began + LOG_PERIOD)
    }

    /// Logs the number of connections that were not logged one by one, once a period is over.
    pub fn tick(&mut self, now: Instant) {
        if now < self.period_began + LOG_PERIOD {
            return;
        }
        self.period_began = now;
        self.shown = 0;
        let hidden = std::mem::take(&mut self.hidden);
        if hidden > 0 {
            self.log(Level::Warning, &format!("dropped {hidden} more connections in the last {LOG_PERIOD:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn handshakes_use_a_fraction_of_the_descriptors() {
        let max = [0, 7, 64, 1024, 4096, 8192, 1 << 20, u64::MAX].map(max_handshakes_for);
        assert_eq!(max, [1, 1, 8, 128, 512, 1024, 1024, 1024]);
    }

    #[test]
    fn a_connection_of_the_origin_with_most_handshakes_is_dropped() {
        let at = |text: &str| origin(Some(text.parse().unwrap()));
        assert_eq!(at("10.0.0.1:1"), at("10.0.0.1:2"));
        assert_eq!(at("10.0.0.1:1"), at("[::ffff:10.0.0.1]:1"));
        assert_eq!(at("[2001:db8:1:2::3]:1"), at("[2001:db8:1:2:ffff::]:1"));
        let all = ["10.0.0.1:1", "10.0.0.2:1", "[2001:db8:1:2::3]:1", "[2001:db8:1:3::3]:1"].map(at);
        (1..4).for_each(|i| assert!(!all[..i].contains(&all[i])));

        let of = |handshakes: &[(u64, usize, bool)]| {
            connection_to_drop(handshakes.iter().map(|(number, which, named)| (*number, all[*which], *named)))
        };
        assert_eq!(of(&[]), None);
        // With a single origin, the oldest; of equal ones, the oldest.
        assert_eq!(of(&[(1, 0, false), (2, 0, false)]), Some(1));
        assert_eq!(of(&[(1, 1, false), (2, 0, false)]), Some(1));
        // The origin with most connections, though younger; and of these the one that has named nothing, though
        // younger.
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
        admissions.refused("b", None, Refusal::Unserved(0));
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
            incomplete: 2,
            timed_out: 50,
            crowded_out: 50,
        };
        assert_eq!(counters.statistics(), expected);
        assert_eq!(expected.refused(), 108);
        let now = admissions.next_tick().unwrap();
        admissions.tick(now - Duration::from_millis(1));
        assert_eq!(lines.lock().unwrap().len(), LOGGED_PER_PERIOD as usize);
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
        assert_eq!(
            lines[LOGGED_PER_PERIOD as usize],
            (Level::Warning, "here: dropped 98 more connections in the last 10s".into())
        );
        assert_eq!((lines.len(), admissions.next_tick()), (LOGGED_PER_PERIOD as usize + 1, None));
    }
}
