//! Which thread of a pool calls the next callback, while others are in theirs.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::engine::completion_queue::{CompletionQueue, Pool, Work};

type Queue = CompletionQueue<u32, Job>;

/// Time passes only where a thread pauses, at once. No other sleep ends by itself.
struct Pauses {
    began: Instant,
    passed_ns: AtomicU64,
}

impl Clock for Pauses {
    fn now(&self) -> Instant {
        self.began + Duration::from_nanos(self.passed_ns.load(Ordering::Relaxed))
    }

    fn sleep(&self, sources: &[Pollable], until: Instant) -> bool {
        if !sources.is_empty() {
            return Forever(self.began).sleep(sources, until);
        }
        let passed = until.saturating_duration_since(self.began).as_nanos() as u64;
        self.passed_ns.fetch_max(passed, Ordering::Relaxed);
        yield_now();
        false
    }
}

/// What callbacks and functions do, by their numbers.
type Callback = fn(&Seen, u32);

/// What was called.
struct Seen {
    called: Mutex<Vec<u32>>,
    is_called: Condvar,
}

/// The number under which the call of the functions is noted. They may be called again.
const FUNCTIONS: u32 = 100;
/// That of the begin of a callback.
const BEGUN: u32 = 101;

impl Seen {
    fn note(&self, number: u32) {
        self.called.lock().unwrap().push(number);
        self.is_called.notify_all();
    }

    fn has(&self, number: u32) -> bool {
        self.called.lock().unwrap().contains(&number)
    }

    fn wait_for(&self, number: u32) {
        let mut called = self.called.lock().unwrap();
        while !called.contains(&number) {
            called = self.is_called.wait(called).unwrap();
        }
    }
}

/// A pool, whose threads are joined at its end.
struct Called {
    pool: Arc<Pool<u32, Job>>,
    job: Arc<Job>,
    seen: Arc<Seen>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

struct Calls {
    callback: Callback,
    seen: Arc<Seen>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Work<u32, Job> for Calls {
    fn look(&self, queue: &Arc<Queue>, number: u32, call: u32) -> bool {
        queue.end(number);
        (self.callback)(&self.seen, call);
        self.seen.note(call);
        true
    }

    fn call_functions(&self) {
        if !self.seen.has(FUNCTIONS) {
            self.seen.note(FUNCTIONS);
        }
    }

    fn start_thread(&self, pool: &Arc<Pool<u32, Job>>) -> io::Result<()> {
        let pool = pool.clone();
        self.threads.lock().unwrap().push(thread(move || pool.run()));
        Ok(())
    }
}

impl Called {
    fn new(callback: Callback) -> Self {
        let clock = Arc::new(Pauses { began: Instant::now(), passed_ns: AtomicU64::new(0) });
        let seen = Arc::new(Seen { called: Mutex::new(Vec::new()), is_called: Condvar::new() });
        let threads = Arc::new(Mutex::new(Vec::new()));
        let calls = Calls { callback, seen: seen.clone(), threads: threads.clone() };
        let pool = Pool::start(clock, Box::new(calls)).unwrap();
        Self { pool, job: Job::new(), seen, threads }
    }

    /// A call that has ended.
    fn ends(&self, call: u32) {
        let queue = self.pool.queue();
        let number = queue.insert(call, &self.job, 0, true).unwrap();
        queue.started(number, None).wake();
    }

    /// Ends the pool, all of whose threads end then.
    fn join(self, expected: &[u32]) {
        self.pool.end();
        loop {
            let Some(thread) = self.threads.lock().unwrap().pop() else { break };
            thread.join().unwrap();
        }
        let mut called = self.seen.called.lock().unwrap().clone();
        called.sort_unstable();
        assert_eq!(called, expected);
    }
}

#[test]
fn each_end_is_told_once() {
    in_orders_with(PREEMPTIONS - 1, || {
        let called = Called::new(|_, _| {});
        (0..2).for_each(|call| called.ends(call));
        (0..2).for_each(|call| called.seen.wait_for(call));
        called.join(&[0, 1]);
    });
}

#[test]
fn a_callback_waits_for_that_of_the_next_end() {
    in_orders_with(1, || {
        let called = Called::new(|seen, call| {
            if call == 0 {
                seen.wait_for(1);
            }
        });
        (0..2).for_each(|call| called.ends(call));
        called.seen.wait_for(0);
        called.join(&[0, 1]);
    });
}

#[test]
fn a_callback_waits_for_a_function() {
    in_orders_with(1, || {
        let called = Called::new(|seen, _| seen.wait_for(FUNCTIONS));
        called.ends(0);
        called.pool.bell().wake();
        called.seen.wait_for(0);
        called.join(&[0, FUNCTIONS]);
    });
}

#[test]
fn a_pool_ends_while_a_callback_runs() {
    in_orders_with(PREEMPTIONS - 1, || {
        let called = Called::new(|seen, _| seen.note(BEGUN));
        called.ends(0);
        called.seen.wait_for(BEGUN);
        called.join(&[0, BEGUN]);
    });
}
