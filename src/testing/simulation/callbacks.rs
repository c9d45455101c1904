//! Callbacks: each end is told once, whatever they do in turn. The coroutine of a rank is the only thread of its pool: it
//! starts the first calls, and all else happens in callbacks.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::job::{TIMEOUT, play_over, reliable};
use super::seeds::{run, seeds};
use super::sums::{LONG, LongPublications, PLACES, Place, Sum};
use crate::context::{Completion, Context, HasRequest, Request, call_back_request, pool_without_threads};
use crate::error::{Error, ErrorKind};
use crate::testing::loopback::{Network, NodeStatus, Random};
use crate::testing::tier::Tier;

struct Own(Request);

impl HasRequest for Own {
    fn request(&self) -> &Request {
        &self.0
    }
}

/// What a callback does before it starts the next call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Nothing,
    /// Waits for a call without a callback, which all ranks have started before.
    Wait,
    /// Aborts the context, on one rank.
    Abort,
    /// Starts the next call in a group, and with another order of waits and starts.
    Group,
    /// Drops the request, and makes another one.
    Renew,
}

/// Calls on one tag, of which each is started by the callback of the one before; the same on all ranks.
#[derive(Clone, Debug)]
struct Chain {
    sum: Sum,
    count: usize,
    acts: Vec<(Act, usize)>,
}

/// A chain on one rank.
struct Link {
    chain: Chain,
    context: Arc<Context>,
    /// Does not move while a call runs.
    data: Mutex<Vec<i64>>,
    own: Mutex<Option<Arc<Own>>>,
    /// Started before, and waited for by callbacks.
    others: Mutex<Vec<(Arc<Own>, Vec<i64>)>>,
    round: AtomicUsize,
    rank: Arc<OfRank>,
}

/// What the chains of a rank share.
struct OfRank {
    rank: usize,
    /// Calls in progress that have a callback.
    active: AtomicUsize,
    /// Ends the pool.
    end: Box<dyn Fn() + Send + Sync>,
    failed: Mutex<Vec<Error>>,
    wrong: Mutex<String>,
}

impl OfRank {
    fn is_wrong(&self, text: &str) {
        self.wrong.lock().unwrap().push_str(&format!("rank {}: {text}\n", self.rank));
    }

    /// One call fewer is in progress.
    fn leave(&self) {
        if self.active.fetch_sub(1, Ordering::Relaxed) == 1 {
            (self.end)();
        }
    }
}

impl Link {
    fn value(&self) -> i64 {
        (10 * self.rank.rank + self.round.load(Ordering::Relaxed)) as i64
    }

    fn make(self: &Arc<Self>) {
        let request = self.chain.sum.request(&self.context, &mut self.data.lock().unwrap());
        let own = Arc::new(Own(request));
        let link = Arc::downgrade(self);
        let callback = move |completion: Completion| {
            // What is freed has no more ends.
            link.upgrade().expect("the chain of a call in progress").ended(completion.result.map(drop));
        };
        call_back_request(own.clone(), Arc::new(callback)).unwrap();
        *self.own.lock().unwrap() = Some(own);
    }

    fn start(self: &Arc<Self>, in_group: bool) {
        let value = self.value();
        self.data.lock().unwrap().fill(value);
        self.rank.active.fetch_add(1, Ordering::Relaxed);
        let own = self.own.lock().unwrap().clone().expect("a request");
        let started = match in_group {
            false => own.0.start(),
            true => {
                let group = self.context.group().unwrap();
                group.start(own).and_then(|()| group.end())
            }
        };
        if let Err(error) = started {
            if self.context.broken().is_none() {
                self.rank.is_wrong(&format!("a start is refused: {error}"));
            }
            self.rank.failed.lock().unwrap().push(error);
            self.rank.leave();
        }
    }

    fn ended(self: &Arc<Self>, result: Result<(), Error>) {
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let size = self.context.size();
        match result {
            Err(error) => self.rank.failed.lock().unwrap().push(error),
            Ok(()) => {
                let expected = (10 * size * (size - 1) / 2 + size * round) as i64;
                if self.data.lock().unwrap().iter().any(|sum| *sum != expected) {
                    self.rank.is_wrong(&format!("round {round} of {:?} has another sum", self.chain));
                }
                if let Some((act, who)) = self.chain.acts.get(round).copied() {
                    self.act(act, who);
                    self.start(act == Act::Group && self.chain.sum.in_order);
                }
            }
        }
        self.rank.leave();
    }

    fn act(self: &Arc<Self>, act: Act, who: usize) {
        match act {
            Act::Wait => {
                let (other, data) = self.others.lock().unwrap().pop().expect("one for each wait");
                if let Err(error) = other.0.wait() {
                    self.rank.failed.lock().unwrap().push(error);
                } else if data.iter().any(|sum| *sum != self.context.size() as i64) {
                    self.rank.is_wrong("a wait in a callback has another sum");
                }
            }
            Act::Abort if who == self.rank.rank => self.context.abort("by a callback").unwrap(),
            Act::Renew if self.context.broken().is_none() => {
                let old = self.own.lock().unwrap().take().expect("a request");
                old.0.retire().unwrap();
                drop(old);
                self.make();
            }
            Act::Nothing | Act::Abort | Act::Group | Act::Renew => {}
        }
    }
}

fn chain(random: &mut Random, place: Place, size: usize, tag: u64) -> Chain {
    let algorithms = place.algorithms();
    let sum = Sum {
        algorithm: algorithms[random.below(algorithms.len())],
        by_function: random.one_in(3),
        tag,
        in_order: random.one_in(2),
    };
    let act = |random: &mut Random| {
        let acts = [Act::Nothing, Act::Nothing, Act::Wait, Act::Group, Act::Renew];
        let act = if random.one_in(40) { Act::Abort } else { acts[random.below(acts.len())] };
        (act, random.below(size))
    };
    let acts = (0..random.below(6)).map(|_| act(random)).collect();
    Chain { sum, count: [1, 100, 1000][random.below(3)], acts }
}

/// The job of one seed.
fn play(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let place = PLACES[random.below(PLACES.len())];
    let (size, _long) = (2 + random.below(3), random.one_in(2).then(LongPublications::begin));
    let network = Network::new(random.bits(), reliable());
    let all = place.contexts(&network, size, 1);
    let chains: Vec<Chain> = (0..1 + random.below(5) as u64).map(|tag| chain(&mut random, place, size, tag)).collect();
    let culprit = (place == Place::Apart && random.one_in(6)).then(|| random.below(size));
    if let Some(culprit) = culprit {
        let status = if random.one_in(2) { NodeStatus::Crashed } else { NodeStatus::Silent };
        network.fail_after(culprit, random.below(4000) as u64, status);
    }
    let aborts = chains.iter().flat_map(|chain| &chain.acts).any(|(act, _)| *act == Act::Abort);
    let wrong = RefCell::new(String::new());
    let ended = play_over(&network, &all[0], |network, context| {
        let began = network.now();
        let pool = pool_without_threads(context);
        let of_pool = pool.clone();
        let rank = Arc::new(OfRank {
            rank: context.rank(),
            active: AtomicUsize::new(1),
            end: Box::new(move || {
                let _ = of_pool.end();
            }),
            failed: Mutex::default(),
            wrong: Mutex::default(),
        });
        let make = |chain: &Chain| {
            let waits = chain.acts.iter().filter(|(act, _)| *act == Act::Wait).count();
            let others = (0..waits).map(|number| {
                let mut data = vec![1; 50];
                let tag = 100 + 10 * chain.sum.tag + number as u64;
                let other = Sum { by_function: false, in_order: true, tag, ..chain.sum }.request(context, &mut data);
                (Arc::new(Own(other)), data)
            });
            let link = Arc::new(Link {
                chain: chain.clone(),
                context: context.clone(),
                data: Mutex::new(vec![0; chain.count]),
                own: Mutex::default(),
                others: Mutex::new(others.collect()),
                round: AtomicUsize::new(0),
                rank: rank.clone(),
            });
            link.make();
            link
        };
        let links: Vec<_> = chains.iter().map(make).collect();
        for link in &links {
            link.others.lock().unwrap().iter().for_each(|(other, _)| drop(other.0.start()));
            link.start(false);
        }
        rank.leave();
        pool.run();
        // What no callback has waited for after a failure.
        for link in &links {
            let others = std::mem::take(&mut *link.others.lock().unwrap());
            others.iter().filter(|(other, _)| other.0.is_active()).for_each(|(other, _)| drop(other.0.wait()));
            if let Some(own) = link.own.lock().unwrap().take() {
                own.0.retire().unwrap();
            }
        }
        let failed = rank.failed.lock().unwrap();
        if rank.active.load(Ordering::Relaxed) > 0 {
            rank.is_wrong("calls are in progress without their callbacks");
        }
        if failed.is_empty() && links.iter().any(|link| link.round.load(Ordering::Relaxed) != link.chain.acts.len() + 1)
        {
            rank.is_wrong("not all calls have ended, or some have twice");
        }
        if let Some(error) = failed.first().filter(|_| culprit.is_none() && !aborts) {
            rank.is_wrong(&format!("a call has failed: {error}"));
        }
        if let Some(error) =
            failed.iter().find(|error| aborts && culprit.is_none() && error.kind() != ErrorKind::Aborted)
        {
            rank.is_wrong(&format!("a call has failed otherwise than by the abort: {error}"));
        }
        let most = if culprit.is_some() { TIMEOUT + LONG } else { LONG };
        if network.now() - began > most {
            rank.is_wrong(&format!("it took {:?}", network.now() - began));
        }
        wrong.borrow_mut().push_str(&rank.wrong.lock().unwrap());
    });
    let missing = (0..size).find(|rank| ended[*rank].is_none() && culprit != Some(*rank));
    missing.into_iter().for_each(|rank| wrong.borrow_mut().push_str(&format!("rank {rank} never ended\n")));
    let wrong = wrong.into_inner();
    if wrong.is_empty() { Ok(()) } else { Err(format!("{size} ranks, {place:?}, {chains:?}: {wrong}")) }
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn random_jobs_of_callbacks() {
    let fixed = Tier::from_environment().of(25, 1000, 20_000);
    run(&seeds(fixed, "", 200), play, "simulation::callbacks", "Write a test of what it has found.");
}
