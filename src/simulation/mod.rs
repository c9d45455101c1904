//! Whole jobs in simulation: real contexts, one for each rank, over [links in memory](crate::transport::loopback) and under
//! virtual time, in one thread. Each rank is a coroutine that sleeps where a thread would sleep in the system. What happens is
//! a function of one seed.

mod arrivals;
mod calls;
mod disagreement;
mod exhaustive;
mod job;
mod messages;
mod seeds;
mod timeouts;

use std::cell::Cell;
use std::time::{Duration, Instant};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::context::Context;
use crate::transport::loopback::{Network, NodeStatus};

/// Events of one job, at most; more would be a loop without progress.
const MAX_EVENTS: usize = 2_000_000;

thread_local! {
    /// The coroutine that runs.
    static CURRENT: Cell<*const Yielder<(), Instant>> = const { Cell::new(std::ptr::null()) };
}

/// Suspends the rank that runs, until then or until something happens at its node.
pub fn sleep(until: Instant) {
    let yielder = CURRENT.get();
    assert!(!yielder.is_null(), "nobody but a simulated rank waits in a simulation");
    // SAFETY: the pointer is set while the coroutine runs that the yielder is of, on this very stack.
    unsafe { (*yielder).suspend(until) };
    CURRENT.set(yielder);
}

/// Lets this time pass for the rank that runs, whose context makes progress meanwhile.
pub fn idle(network: &Network, context: &Context, time: Duration) {
    let until = network.now() + time;
    idle_until(network, context, until, || false);
}

/// Likewise, until `met` or `until`; whether it was met.
pub fn idle_until(network: &Network, context: &Context, until: Instant, mut met: impl FnMut() -> bool) -> bool {
    while network.now() < until {
        if met() {
            return true;
        }
        sleep(until);
        context.lock().expect("the lock").progress();
    }
    met()
}

/// A rank's program.
pub type Body<'a> = Box<dyn FnOnce() + 'a>;

struct Rank<'a> {
    coroutine: Option<Coroutine<(), Instant, (), DefaultStack>>,
    /// Until when it sleeps; `None` once it has ended.
    sleeps: Option<Instant>,
    body: std::marker::PhantomData<&'a ()>,
}

impl<'a> Rank<'a> {
    fn new(body: Body<'a>, now: Instant) -> Self {
        // SAFETY: the coroutine is dropped with `self`, which the body outlives; its lifetime is hidden from the
        // coroutine's type only.
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

/// Runs the ranks' programs, one for each node of `network`, until they have all ended and nothing is under way. A node that
/// dies takes its rank along; one that falls silent keeps it where it is. Before the memory of such a rank goes, `lost` is
/// called for it: a process that is killed runs no destructors, and nothing may look at that memory any more.
pub fn run<'a>(network: &Network, bodies: Vec<Body<'a>>, lost: impl Fn(usize)) {
    let mut ranks: Vec<Rank<'a>> = bodies.into_iter().map(|body| Rank::new(body, network.now())).collect();
    for _ in 0..MAX_EVENTS {
        let mut next: Option<(Instant, usize)> = None;
        let size = ranks.len();
        let first = network.below(size);
        for node in (0..size).map(|i| (first + i) % size) {
            match network.status(node) {
                NodeStatus::Running => {}
                NodeStatus::Silent => continue,
                NodeStatus::Crashed => {
                    if ranks[node].coroutine.is_some() {
                        lost(node);
                        ranks[node].coroutine = None;
                    }
                    continue;
                }
            }
            let at = [ranks[node].sleeps, network.next_event(node)].into_iter().flatten().min();
            if let Some(at) = at.filter(|at| next.is_none_or(|(first, _)| *at < first)) {
                next = Some((at, node));
            }
        }
        let Some((at, node)) = next else {
            (0..size).filter(|node| ranks[*node].coroutine.is_some()).for_each(lost);
            return;
        };
        network.step(at);
        if ranks[node].coroutine.is_some() {
            ranks[node].resume();
        } else {
            network.drive(node);
        }
    }
    panic!("no end after {MAX_EVENTS} events");
}
