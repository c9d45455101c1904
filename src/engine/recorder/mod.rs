//! The flight recorder: the last collectives of a context, to be read after a failure.
//!
//! A call has a place in a ring, by its number, and writes there when it ends. It writes without a lock, since others
//! may end at the same time: the number is written last, and whoever reads it before and after the rest has what was
//! written together. Calls in progress are known to the engine, and are not in the ring.

pub mod counters;
mod json;
pub mod snapshot;
mod ticks;

pub use counters::{CallCounter, Counters};
pub use json::About;
pub use snapshot::Snapshot;
pub use ticks::Scale;

use std::alloc::{Layout, alloc_zeroed};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::reserve::exhausted;
use crate::transport::Clock;
use crate::types::Rank;
use ticks::Ticks;

/// Number of collectives that are kept, a power of two.
pub const ENTRIES: usize = 2048;

/// The words of an entry, 64 bytes: number, fingerprint, tag, bytes, when it was made, was started and has ended, and
/// the [`Outcome`]. The times before the end, and the outcome, count only with [`HAS_OUTCOME`].
type Entry = [AtomicU64; 8];

/// The last collectives of a context.
pub struct Recorder {
    entries: Box<[Entry; ENTRIES]>,
    ticks: Ticks,
    /// The number of calls.
    pub counters: Counters,
}

/// What moves the data of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Link {
    /// Memory that all ranks share.
    #[default]
    SharedMemory = 0,
    /// Messages.
    Messages = 1,
    /// Memory that the ranks of a host share, and messages between hosts.
    Both = 2,
}

impl Link {
    fn of(number: u64) -> Self {
        match number as u8 {
            1 => Self::Messages,
            2 => Self::Both,
            _ => Self::SharedMemory,
        }
    }

    /// Its name in records and counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared_memory",
            Self::Messages => "messages",
            Self::Both => "both",
        }
    }
}

/// What is known of a call while it is in progress. Times are [ticks](Recorder::now), 0 if they were not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Its number among the collectives of the context, from 1; 0 if it is not recorded.
    pub number: u64,
    /// What ranks compare; see [`crate::wire::fingerprint`].
    pub fingerprint: u64,
    /// The collective's tag.
    pub tag: u64,
    /// Bytes of the call on this rank.
    pub bytes: usize,
    /// What moves its data.
    pub link: Link,
    /// When it was made.
    pub created: u64,
    /// When its first step began.
    pub started: u64,
    /// The rank for which it waited last.
    pub waited_for: Awaited,
}

/// A rank for which a call waits, or none, in one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Awaited(pub u32);

impl From<Option<Rank>> for Awaited {
    fn from(rank: Option<Rank>) -> Self {
        Self(rank.map_or(0, |rank| rank as u32 + 1))
    }
}

impl Awaited {
    /// The rank.
    pub fn rank(self) -> Option<Rank> {
        self.0.checked_sub(1).map(|rank| rank as Rank)
    }
}

/// How a call has ended, and its link: 8 bits for the link, 8 for the error's number, or 0 if it has ended well, and
/// the upper 32 for whom it has waited. 0 is that of a call in shared memory that has ended well, and has not waited.
#[derive(Clone, Copy)]
struct Outcome(u64);

/// Set in the bytes of an entry that has an outcome, and the times before the end.
const HAS_OUTCOME: u64 = 1 << 63;

impl Outcome {
    fn new(link: Link, error: u32, waited_for: Awaited) -> Self {
        Self(link as u64 | u64::from(error) << 8 | u64::from(waited_for.0) << 32)
    }

    fn error(self) -> Option<ErrorKind> {
        ErrorKind::of_number((self.0 >> 8) as u32 & 0xff)
    }
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What it was.
    pub run: Run,
    /// When it has ended.
    pub at: u64,
    /// Why it has failed, if it has.
    pub error: Option<ErrorKind>,
}

impl Recorder {
    /// An empty one, whose times are those of `clock`, which shows `now`.
    pub fn new(clock: Arc<dyn Clock>, now: Instant) -> Result<Self> {
        let layout = Layout::new::<[Entry; ENTRIES]>();
        // Zeros, whose pages the system gives when they are written.
        // SAFETY: the layout is not empty.
        let zeros = unsafe { alloc_zeroed(layout) }.cast::<[Entry; ENTRIES]>();
        if zeros.is_null() {
            return Err(exhausted(layout.size(), "the record of a context's last collectives"));
        }
        // SAFETY: zeros are valid entries, and the memory is of the layout with which the box frees it.
        let entries = unsafe { Box::from_raw(zeros) };
        Ok(Self { entries, ticks: Ticks::new(clock, now), counters: Counters::default() })
    }

    /// What ticks are in nanoseconds, as known by now.
    pub fn scale(&self) -> Scale {
        self.ticks.scale()
    }

    /// The present time, in ticks: never 0.
    #[inline(always)] // On the path of small collectives.
    pub fn now(&self) -> u64 {
        self.ticks.now()
    }

    /// A call has ended well, whose number is not 0.
    pub fn completed(&self, run: &Run) {
        self.write(run, 0);
    }

    /// A call has failed.
    #[cold]
    pub fn failed(&self, run: &Run, error: &Error) {
        let waited_for = Awaited::from(error.details().rank);
        let waited_for = if waited_for == Awaited::default() { run.waited_for } else { waited_for };
        if run.number != 0 {
            // A failure may be found in several places.
            let known = read(place(&self.entries, run.number)).filter(|known| known.error.is_some());
            if known.is_none_or(|known| known.run.number != run.number) {
                self.counters.failed(run.fingerprint, run.link);
            }
            self.write(&Run { waited_for, ..*run }, error.kind().number());
        }
    }

    /// Writes the entry of a call.
    fn write(&self, run: &Run, error: u32) {
        let call = [run.number, run.fingerprint, run.tag, run.bytes as u64];
        let outcome = Outcome::new(run.link, error, run.waited_for).0;
        write(place(&self.entries, run.number), call, Some([run.created, run.started, outcome]), || self.now());
    }

    /// The calls that have ended, in the order of their numbers.
    pub fn ended(&self) -> Vec<Ended> {
        let mut ended: Vec<Ended> = self.entries.iter().filter_map(read).collect();
        ended.sort_unstable_by_key(|ended| ended.run.number);
        ended
    }
}

#[inline(always)] // On the path of small collectives.
fn place(entries: &[Entry; ENTRIES], number: u64) -> &Entry {
    &entries[number as usize % ENTRIES]
}

/// Writes the entry of a call that ends `now`: its number, fingerprint, tag and bytes; and when it was made and started,
/// and its [`Outcome`], unless it has ended well in shared memory and nobody has read these times. If two calls whose
/// numbers are a multiple of [`ENTRIES`] apart end in the same moment, what is left may be a mixture of both.
#[inline(always)] // On the path of small collectives.
fn write(entry: &Entry, call: [u64; 4], rest: Option<[u64; 3]>, now: impl FnOnce() -> u64) {
    let [number, fingerprint, tag, bytes, created, started, ended, outcome] = entry;
    number.store(0, Ordering::Relaxed);
    // A reader that sees one of the stores below also sees the number 0 or the final one, and so never takes fields of
    // two calls for one call.
    fence(Ordering::Release);
    fingerprint.store(call[1], Ordering::Relaxed);
    tag.store(call[2], Ordering::Relaxed);
    bytes.store(call[3] | rest.map_or(0, |_| HAS_OUTCOME), Ordering::Relaxed);
    if let Some(rest) = rest {
        created.store(rest[0], Ordering::Relaxed);
        started.store(rest[1], Ordering::Relaxed);
        outcome.store(rest[2], Ordering::Relaxed);
    }
    ended.store(now(), Ordering::Relaxed);
    number.store(call[0], Ordering::Release);
}

/// The recorder, for calls in shared memory, which end in few steps.
pub struct Writer {
    recorder: Arc<Recorder>,
    /// Those of the recorder, which are found one step earlier here.
    entries: NonNull<[Entry; ENTRIES]>,
}

// SAFETY: the pointer is to what the recorder has, which is shared between threads.
unsafe impl Send for Writer {}
// SAFETY: as above.
unsafe impl Sync for Writer {}

impl Deref for Writer {
    type Target = Recorder;

    fn deref(&self) -> &Recorder {
        &self.recorder
    }
}

impl Writer {
    /// One for `recorder`.
    pub fn new(recorder: Arc<Recorder>) -> Self {
        Self { entries: NonNull::from(&*recorder.entries), recorder }
    }

    /// A call in shared memory has ended well that has not waited, and whose number is not 0: as
    /// [`Recorder::completed`].
    #[inline(always)] // On the path of small collectives.
    pub fn completed_at_once(&self, number: u64, fingerprint: u64, tag: u64, bytes: usize) {
        // SAFETY: the recorder lives as long as this, and its entries do not move.
        let entries = unsafe { self.entries.as_ref() };
        let call = [number, fingerprint, tag, bytes as u64];
        write(place(entries, number), call, None, || self.recorder.now());
    }
}

/// What an entry has, unless it is empty or being written.
fn read(entry: &Entry) -> Option<Ended> {
    let number = entry[0].load(Ordering::Acquire);
    let [_, fingerprint, tag, bytes, created, started, at, outcome] =
        std::array::from_fn(|word| entry[word].load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    if number == 0 || entry[0].load(Ordering::Relaxed) != number {
        return None;
    }
    let (created, started, outcome) = if bytes & HAS_OUTCOME == 0 { (0, 0, 0) } else { (created, started, outcome) };
    let bytes = bytes & !HAS_OUTCOME;
    let (outcome, link) = (Outcome(outcome), Link::of(outcome));
    let waited_for = Awaited((outcome.0 >> 32) as u32);
    let run = Run { number, fingerprint, tag, bytes: bytes as usize, link, created, started, waited_for };
    Some(Ended { run, at, error: outcome.error() })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::transport::SystemClock;

    fn recorder() -> Arc<Recorder> {
        Arc::new(Recorder::new(Arc::new(SystemClock), Instant::now()).unwrap())
    }

    #[test]
    fn what_is_written_is_read() {
        let recorder = recorder();
        let run = |number: u64, link| Run {
            number,
            fingerprint: number << 40 | 9,
            tag: u64::MAX - number,
            bytes: 3 * number as usize,
            link,
            created: 5,
            started: 6,
            waited_for: Awaited::from(Some(4)),
        };
        let runs = [run(1, Link::SharedMemory), run(2, Link::Messages), run(5, Link::Both)];
        let error = Error::new(ErrorKind::ConnectionLost, "").with_rank(8);
        recorder.failed(&runs[2], &error);
        runs[..2].iter().for_each(|run| recorder.completed(run));
        recorder.failed(&Run::default(), &error);
        let ended = recorder.ended();
        let blamed = Run { waited_for: Awaited::from(Some(8)), ..runs[2] };
        assert_eq!(ended.iter().map(|ended| ended.run).collect::<Vec<_>>(), [runs[0], runs[1], blamed]);
        let errors: Vec<_> = ended.iter().map(|ended| ended.error).collect();
        assert_eq!(errors, [None, None, Some(ErrorKind::ConnectionLost)]);
        assert!(ended.iter().all(|ended| ended.at > 0) && ended[2].at <= ended[0].at);
        // In the place of the first one.
        let number = 1 + ENTRIES as u64;
        Writer::new(recorder.clone()).completed_at_once(number, 2, 3, 4);
        let last = recorder.ended().pop().unwrap();
        assert_eq!(last.run, Run { number, fingerprint: 2, tag: 3, bytes: 4, ..Run::default() });
        assert!(last.error.is_none() && last.at >= ended[1].at);
    }

    /// A thread writes entries whose words are all the same into one place, in both ways; none is read that is a
    /// mixture.
    #[test]
    fn an_entry_that_is_being_written_is_not_read() {
        let (recorder, rounds) = (&recorder(), if cfg!(miri) { 20 } else { 20_000 });
        let run =
            |number: u64| Run { number, fingerprint: number, tag: number, bytes: number as usize, ..Run::default() };
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let writer = Writer::new(recorder.clone());
                for number in (1..=rounds).map(|round| round * ENTRIES as u64) {
                    let Run { fingerprint, tag, bytes, .. } = run(number);
                    match number / ENTRIES as u64 % 2 {
                        0 => recorder.completed(&run(number)),
                        _ => writer.completed_at_once(number, fingerprint, tag, bytes),
                    }
                }
            });
            let mut last = 0;
            while !writer.is_finished() {
                for Ended { run: found, .. } in recorder.ended() {
                    assert_eq!(found, run(found.number));
                    assert!(found.number >= last);
                    last = found.number;
                }
            }
        });
        assert_eq!(recorder.ended().len(), 1);
    }
}
