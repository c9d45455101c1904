//! Simulation of whole jobs in one thread: real contexts, one per rank, over [in-memory
//! links](crate::testing::loopback) under virtual time. Each rank is a coroutine that is suspended where a thread
//! would sleep. Everything that happens is a function of one seed.

mod abort;
mod agreements;
mod callbacks;
mod calls;
mod changes;
mod concurrent;
#[cfg(all(target_os = "linux", not(any(miri, loom))))]
mod cuda;
mod disagreement;
mod exhaustive;
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
mod fabric;
mod groups;
mod job;
mod lent;
mod membership;
mod messages;
mod orders;
mod queues;
mod reconfigure;
mod recorder;
mod requests;
mod seeds;
mod shared;
mod split;
mod started;
mod store;
mod sums;
mod timeouts;
mod unexpected;

use std::cell::Cell;
use std::time::{Duration, Instant};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::testing::loopback::{Network, NodeStatus};

/// Maximum number of events of a job; more indicate a loop without progress.
const MAX_EVENTS: usize = 2_000_000;

thread_local! {
    /// The running coroutine.
    static CURRENT: Cell<*const Yielder<(), Instant>> = const { Cell::new(std::ptr::null()) };
}

/// Suspends the running rank until `until`, or until an event at its node.
pub fn sleep(until: Instant) {
    let yielder = CURRENT.get();
    assert!(!yielder.is_null(), "only a simulated rank may wait in a simulation");
    // SAFETY: `CURRENT` is set only while the coroutine to which the yielder belongs is running, and this code runs on
    // its stack.
    unsafe { (*yielder).suspend(until) };
    CURRENT.set(yielder);
}

/// Lets the running rank sleep for `time`. Its context makes progress as far as the device sees to it.
pub fn idle(network: &Network, time: Duration) {
    let until = network.now() + time;
    idle_until(network, until, || false);
}

/// Like [`idle`], until `met` returns true or until `until`. Returns whether the condition was met.
pub fn idle_until(network: &Network, until: Instant, mut met: impl FnMut() -> bool) -> bool {
    while network.now() < until {
        if met() {
            return true;
        }
        sleep(until);
    }
    met()
}

/// The program of a rank.
pub type Body<'a> = Box<dyn FnOnce() + 'a>;

struct Rank<'a> {
    coroutine: Option<Coroutine<(), Instant, (), DefaultStack>>,
    /// The time until which it sleeps; `None` after its end.
    sleeps: Option<Instant>,
    body: std::marker::PhantomData<&'a ()>,
}

impl<'a> Rank<'a> {
    fn new(body: Body<'a>, now: Instant) -> Self {
        // SAFETY: `Rank<'a>` owns the coroutine and cannot outlive `'a`, so the body is not used after `'a`. Only the
        // lifetime is changed.
        let body: Body<'static> = unsafe { std::mem::transmute(body) };
        let stack = DefaultStack::new(256 << 10).expect("a stack");
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), Instant>, ()| {
            CURRENT.set(yielder);
            body();
        });
        Self { coroutine: Some(coroutine), sleeps: Some(now), body: std::marker::PhantomData }
    }

    fn resume(&mut self) {
        let Some(coroutine) = &mut self.coroutine else { return };
        self.sleeps = match coroutine.resume(()) {
            CoroutineResult::Yield(until) => Some(until),
            CoroutineResult::Return(()) => {
                self.coroutine = None;
                None
            }
        };
        CURRENT.set(std::ptr::null());
    }
}

/// Runs the ranks' programs, one per process of `network`, until all have ended and nothing is in transit. The first
/// node of a process has the number of its rank. The rank of a process that crashes is dropped; that of a silent one
/// stays suspended. `lost` is called before the memory of such a rank is freed: a killed process runs no destructors,
/// and nothing may access that memory afterwards.
pub fn run<'a>(network: &Network, bodies: Vec<Body<'a>>, lost: impl Fn(usize)) {
    let mut ranks: Vec<Rank<'a>> = bodies.into_iter().map(|body| Rank::new(body, network.now())).collect();
    for _ in 0..MAX_EVENTS {
        let mut next: Option<(Instant, usize)> = None;
        let nodes = network.nodes();
        let first = network.below(nodes);
        for node in (0..nodes).map(|i| (first + i) % nodes) {
            let rank = network.process(node);
            match network.status(node) {
                NodeStatus::Running => {}
                NodeStatus::Silent => continue,
                NodeStatus::Crashed => {
                    if ranks[rank].coroutine.is_some() {
                        lost(rank);
                        ranks[rank].coroutine = None;
                    }
                    continue;
                }
            }
            let sleeps = ranks[rank].sleeps.filter(|_| node == rank);
            let at = [sleeps, network.next_turn(node)].into_iter().flatten().min();
            if let Some(at) = at.filter(|at| next.is_none_or(|(first, _)| *at < first)) {
                next = Some((at, node));
            }
        }
        let Some((at, node)) = next else {
            (0..ranks.len()).filter(|rank| ranks[*rank].coroutine.is_some()).for_each(lost);
            return;
        };
        network.step(at);
        network.drive(node);
        let rank = network.process(node);
        if ranks[rank].coroutine.is_some() {
            ranks[rank].resume();
        }
    }
    panic!("the job has not ended after {MAX_EVENTS} events");
}
