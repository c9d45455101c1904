//! Random jobs of groups, one for each seed: each rank divides the same starts into groups of its own.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::{Own, buffer, request, sum};
use crate::context::{Context, HasBuffer};
use crate::error::{Error, ErrorKind};
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::{Network, Random};
use crate::testing::simulation::idle;
use crate::testing::simulation::job::{play_over, reliable};
use crate::testing::simulation::seeds::{run, seeds};
use crate::testing::simulation::sums::{LONG, LongPublications, PLACES, Sum};
use crate::testing::tier::Tier;
use crate::types::Rank;

/// A start of a random job.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// Of a sum of so many numbers.
    Sum(Sum, usize),
    /// Of a message between two ranks, on a slot, of so many bytes.
    Message(Rank, Rank, u64, usize),
}

impl PartialEq for Sum {
    fn eq(&self, other: &Self) -> bool {
        (self.algorithm, self.tag) == (other.algorithm, other.tag)
    }
}

impl Start {
    /// Starts of one line keep their order.
    fn line(&self) -> (u64, Rank, Rank) {
        match self {
            Self::Sum(sum, _) => (sum.tag, usize::MAX, 0),
            Self::Message(from, to, slot, _) => (*slot, *from, *to),
        }
    }
}

/// Runs the job of one seed: each rank divides the same starts into groups of its own, in an order of its own.
fn play(seed: u64) -> std::result::Result<(), String> {
    let mut random = Random::new(seed);
    let place = PLACES[random.below(PLACES.len())];
    let (size, _long) = (2 + random.below(3), random.one_in(2).then(LongPublications::begin));
    let network = Network::new(random.bits(), reliable());
    let all = place.contexts(&network, size, 1);
    let algorithms = place.algorithms();
    let count = 3 + random.below(12);
    let start = |_| {
        if random.one_in(2) {
            let sum = Sum { by_function: random.one_in(3), ..sum(algorithms[random.below(4) % algorithms.len()], 0) };
            let most = if random.one_in(8) { EAGER_BYTES / 8 + 100 } else { [3, 100, 1000][random.below(3)] };
            return Start::Sum(Sum { tag: random.below(3) as u64, ..sum }, 1 + random.below(most));
        }
        let from = random.below(size);
        let to = (from + 1 + random.below(size - 1)) % size;
        Start::Message(from, to, random.below(2) as u64, [0, 1, 500, EAGER_BYTES + 1][random.below(4)])
    };
    let starts: Vec<Start> = (0..count).map(start).collect();
    let seeds: Vec<u64> = (0..size).map(|_| random.bits()).collect();
    let wrong = RefCell::new(String::new());
    let ended = play_over(&network, &all[0], |network, context| {
        let rank = context.rank();
        if let Err(text) = play_rank(network, &mut Random::new(seeds[rank]), &starts, context) {
            wrong.borrow_mut().push_str(&format!("rank {rank} of {size}, {place:?}, {starts:?}: {text}\n"));
            context.close();
        }
    });
    let missing = ended.iter().position(Option::is_none);
    missing.into_iter().for_each(|rank| wrong.borrow_mut().push_str(&format!("rank {rank} never ended\n")));
    for context in all.iter().flatten() {
        if let Some(left) = context.lock().expect("the lock").messenger.remaining_state() {
            wrong.borrow_mut().push_str(&format!("rank {}: {left}\n", context.rank()));
        }
    }
    let wrong = wrong.into_inner();
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// The byte of the message with this number.
fn pattern(number: usize) -> u8 {
    3 + 7 * number as u8
}

fn play_rank(
    network: &Network,
    random: &mut Random,
    starts: &[Start],
    context: &Arc<Context>,
) -> std::result::Result<(), String> {
    let (rank, size) = (context.rank(), context.size() as i64);
    let text = |error: Error| error.to_string();
    let mut sums: Vec<Vec<i64>> = Vec::new();
    let mut memory: Vec<Vec<u8>> = Vec::new();
    for (number, start) in starts.iter().enumerate() {
        let (count, bytes) = match start {
            Start::Sum(_, count) => (*count, 0),
            Start::Message(.., bytes) => (0, *bytes),
        };
        sums.push(vec![(100 * rank + number) as i64; count]);
        memory.push(vec![
            if matches!(start, Start::Message(from, ..) if *from == rank) { pattern(number) } else { 0 };
            bytes
        ]);
    }
    let mut requests: Vec<Option<Arc<Own>>> = Vec::new();
    let mut buffers: Vec<Arc<dyn HasBuffer>> = Vec::new();
    for ((start, data), memory) in starts.iter().zip(&mut sums).zip(&mut memory) {
        requests.push(match start {
            Start::Sum(sum, _) => Some(request(*sum, context, data)),
            Start::Message(..) => None,
        });
        buffers.push(buffer(context, memory));
    }
    let is_own = |start: &Start| !matches!(start, Start::Message(from, to, ..) if *from != rank && *to != rank);
    let mut order: Vec<usize> = (0..starts.len()).filter(|number| is_own(&starts[*number])).collect();
    for _ in 0..4 * order.len() {
        let at = random.below(order.len());
        let next = (at + 1) % order.len();
        if next > at && starts[order[at]].line() != starts[order[next]].line() {
            order.swap(at, next);
        }
    }
    let mut rest = &order[..];
    let mut active: Vec<usize> = Vec::new();
    let began = network.now();
    while !rest.is_empty() || !active.is_empty() {
        if !rest.is_empty() && (active.is_empty() || random.one_in(2)) {
            let (group, others) = rest.split_at(1 + random.below(rest.len()));
            rest = others;
            let named = context.group().map_err(text)?;
            for number in group {
                match starts[*number] {
                    Start::Sum(..) => named.start(requests[*number].clone().unwrap()),
                    Start::Message(from, to, slot, bytes) if from == rank => {
                        named.send(&buffers[*number], to, slot, 0, bytes)
                    }
                    Start::Message(from, _, slot, bytes) => named.recv(&buffers[*number], &[from], slot, 0, bytes),
                }
                .map_err(text)?;
            }
            let before = network.now();
            named.end().map_err(text)?;
            if network.now() != before {
                return Err("the end of a group has waited".into());
            }
            active.extend(group);
            if random.one_in(3) {
                idle(network, random.duration(&(Duration::ZERO..Duration::from_micros(40))));
            }
            continue;
        }
        // Others may need what this rank has not started, so it does not wait without end before.
        let at = random.below(active.len());
        let number = active[at];
        let time = if rest.is_empty() { LONG } else { random.duration(&(Duration::ZERO..Duration::from_micros(60))) };
        let is_late = |error: Error| if error.kind() == ErrorKind::Timeout { Ok(false) } else { Err(error) };
        let has_ended = match starts[number] {
            Start::Sum(..) => requests[number].as_ref().unwrap().0.wait_for(time),
            Start::Message(from, ..) if from == rank => {
                buffers[number].buffer().wait_send(Some(time)).map(|_| true).or_else(is_late)
            }
            Start::Message(..) => buffers[number].buffer().wait_recv(Some(time)).map(|_| true).or_else(is_late),
        };
        if has_ended.map_err(text)? {
            active.swap_remove(at);
        }
        if network.now() - began > LONG {
            return Err(format!("{active:?} are active after {:?}", network.now() - began));
        }
    }
    drop((requests, buffers));
    for (number, (data, memory)) in sums.iter().zip(&memory).enumerate() {
        let expected = 100 * size * (size - 1) / 2 + size * number as i64;
        if data.iter().any(|sum| *sum != expected)
            || is_own(&starts[number]) && memory.iter().any(|byte| *byte != pattern(number))
        {
            return Err(format!("start {number} has given {:?}, {:?}", data.first(), memory.first()));
        }
    }
    Ok(())
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn random_jobs_of_groups() {
    let fixed = Tier::from_environment().of(25, 300, 20_000);
    run(&seeds(fixed, "", 200), play, "simulation::groups::random", "Write a test of what it has found.");
}
