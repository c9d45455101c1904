//! Several requests that were started: in which order ranks wait for them, and how.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::idle;
use super::job::{TIMEOUT, play_over, reliable};
use super::seeds::{run, seeds};
use super::sums::{LONG, LongPublications, PLACES, Place, SHORT, Sum, while_a_rank_dies};
use crate::context::{Context, Request, wait_for_several};
use crate::error::{Error, ErrorKind, Result};
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::{Network, Random};
use crate::testing::tier::Tier;

/// Waits for several requests: the numbers of those that have ended, in this order, and whether it was in time.
fn wait_for(requests: &[Option<&Request>], time: Option<Duration>, all: bool) -> Result<(Vec<usize>, bool)> {
    let (mut ended, mut failed) = (Vec::new(), None);
    let in_time = wait_for_several(requests, time, |number, result| {
        ended.push(number);
        failed = failed.take().or(result.err());
        !all
    })?;
    failed.map_or(Ok((ended, in_time)), Err)
}

/// Two ranks start two requests with functions of the caller, and wait for them in opposite orders.
fn wait_in_opposite_orders(place: Place, algorithm: &'static str, contexts: usize, waits_for_both: bool) {
    let _long = LongPublications::begin();
    let network = Network::new(1, reliable());
    let all = place.contexts(&network, 2, contexts);
    let ended = play_over(&network, &all[0], |network, context| {
        let (rank, began) = (context.rank(), network.now());
        let mut data = [vec![1 + rank as i64; 1000], vec![10 * (1 + rank as i64); 1000]];
        let [one, other] = &mut data;
        let request = |context: usize, tag, data: &mut Vec<i64>| {
            Sum { algorithm, by_function: true, tag, in_order: false }.request(&all[context][rank], data)
        };
        let requests = [request(0, 1, one), request(contexts - 1, 2, other)];
        requests.iter().for_each(|request| request.start().unwrap());
        let order = [&requests[rank], &requests[1 - rank]];
        let what = |error: Error| format!("{place:?}, {algorithm}, {contexts} contexts: {error}");
        if waits_for_both {
            wait_for(&order.map(Some), None, true).map_err(what).unwrap();
        } else {
            order.iter().for_each(|request| request.wait().map_err(what).unwrap());
        }
        assert!(network.now() - began < LONG);
        drop(requests);
        assert!(data[0].iter().all(|sum| *sum == 3) && data[1].iter().all(|sum| *sum == 30));
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn who_waits_for_one_request_calls_the_functions_of_others() {
    for place in PLACES {
        for algorithm in place.algorithms() {
            wait_in_opposite_orders(place, algorithm, 1, false);
        }
    }
}

#[test]
fn who_waits_for_requests_of_two_contexts_calls_the_functions_of_both() {
    for (place, contexts) in PLACES.into_iter().flat_map(|place| [(place, 1), (place, 2)]) {
        for algorithm in place.algorithms() {
            wait_in_opposite_orders(place, algorithm, contexts, true);
        }
    }
}

/// The limit of the above: a wait for one request calls functions of its context only.
#[test]
fn who_waits_on_one_context_calls_no_functions_of_another() {
    let network = Network::new(1, reliable());
    let all = Place::Apart.contexts(&network, 2, 2);
    let ended = play_over(&network, &all[0], |_, context| {
        let rank = context.rank();
        let mut data = [[1; 100], [2; 100]];
        let [one, other] = &mut data;
        // Each rank combines a half of the elements.
        let sum = Sum { algorithm: "halving_doubling", by_function: true, tag: 0, in_order: false };
        let requests = [sum.request(&all[0][rank], one), sum.request(&all[1][rank], other)];
        requests.iter().for_each(|request| request.start().unwrap());
        let error = requests[rank].wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::ConnectionLost), "{error}");
        all.iter().for_each(|contexts| contexts[rank].close());
        let _ = requests[1 - rank].wait();
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn a_wait_that_ends_early_breaks_nothing() {
    for place in PLACES {
        let _long = LongPublications::begin();
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            for (algorithm, by_function) in place.algorithms().iter().flat_map(|one| [(*one, false), (*one, true)]) {
                let mut data = vec![context.rank() as i64; 1000];
                let request = Sum { algorithm, by_function, tag: 0, in_order: false }.request(context, &mut data);
                if context.rank() == 1 {
                    idle(network, 2 * LONG);
                }
                request.start().unwrap();
                if context.rank() == 0 {
                    for time in [Duration::ZERO, SHORT, LONG] {
                        let began = network.now();
                        assert!(!request.wait_for(time).unwrap());
                        assert_eq!(network.now() - began, time);
                        let known = request.progressed();
                        assert!(known.is_active && !known.has_ended && known.ended.is_none() && known.failed.is_none());
                    }
                }
                assert!(request.wait_for(2 * LONG).unwrap(), "{place:?}, {algorithm}");
                let known = request.progressed();
                assert!(!known.is_active && known.started >= Some(known.made) && known.ended >= known.started);
                drop(request);
                assert_eq!(data, [1; 1000]);
            }
            assert!(context.broken().is_none());
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

#[test]
fn the_timeout_of_the_call_ends_a_longer_wait_and_breaks_the_context() {
    for place in PLACES {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        play_over(&network, &all[0], |network, context| {
            if context.rank() == 1 {
                return idle(network, 3 * TIMEOUT);
            }
            let mut data = [1];
            let sum = Sum { algorithm: place.algorithms()[0], by_function: false, tag: 0, in_order: false };
            let request = sum.request(context, &mut data);
            request.start().unwrap();
            let began = network.now();
            assert!(!request.wait_for(TIMEOUT / 2).unwrap());
            assert!(!wait_for(&[Some(&request)], Some(TIMEOUT / 4), false).unwrap().1);
            let error = wait_for(&[Some(&request)], Some(2 * TIMEOUT), false).unwrap_err();
            assert_eq!((error.kind(), error.details().rank), (ErrorKind::Timeout, Some(1)), "{error}");
            assert!((TIMEOUT..TIMEOUT + LONG).contains(&(network.now() - began)), "{place:?}");
            let known = request.progressed();
            assert_eq!(known.failed.map(|failed| failed.kind()), Some(ErrorKind::Timeout));
            assert!(request.start().unwrap_err().message().contains("the context is broken"));
        });
    }
}

#[test]
fn a_rank_that_dies_is_named_by_a_wait_for_several() {
    while_a_rank_dies(|_, context, [one, other]| {
        let sum = |tag| Sum { algorithm: "ring", by_function: false, tag, in_order: false };
        let requests = [sum(0).request(context, one), sum(1).request(context, other)];
        requests.iter().for_each(|request| request.start().unwrap());
        let error = wait_for(&[Some(&requests[0]), None, Some(&requests[1])], None, true).unwrap_err();
        assert_eq!(error.details().rank, Some(2), "{error}");
        assert!(requests.iter().all(|request| !request.progressed().is_active));
    });
}

#[test]
fn calls_on_one_tag_run_beside_each_other_in_the_order_of_their_starts() {
    const COUNT: usize = 20;
    for place in PLACES {
        for (algorithm, by_function) in place.algorithms().iter().flat_map(|one| [(*one, false), (*one, true)]) {
            let _long = LongPublications::begin();
            let network = Network::new(1, reliable());
            let all = place.contexts(&network, 3, 1);
            let ended = play_over(&network, &all[0], |network, context| {
                let mut data: Vec<Vec<i64>> = (1..=COUNT).map(|n| vec![n as i64; 1 + 37 * n]).collect();
                let sum = Sum { algorithm, by_function, tag: 4, in_order: true };
                let requests: Vec<_> = data.iter_mut().map(|data| sum.request(context, data)).collect();
                requests.iter().for_each(|request| request.start().unwrap());
                let plain = Sum { in_order: false, ..sum }.request(context, &mut [0; 3]);
                assert!(plain.start().unwrap_err().message().contains("is running on this context already"));
                if context.rank() == 1 {
                    idle(network, LONG);
                }
                // The last one first.
                requests.iter().rev().for_each(|request| request.wait().unwrap());
                drop(requests);
                for (data, n) in data.iter().zip(1..) {
                    assert!(data.iter().all(|sum| *sum == 3 * n), "{place:?}, {algorithm}, {n}");
                }
            });
            assert!(ended.iter().all(Option::is_some));
        }
    }
}

#[test]
fn starts_in_different_orders_on_one_tag_are_a_mismatch() {
    for place in PLACES {
        for (algorithm, waits_for_both) in place.algorithms().iter().flat_map(|one| [(*one, false), (*one, true)]) {
            let network = Network::new(1, reliable());
            let all = place.contexts(&network, 2, 1);
            let ended = play_over(&network, &all[0], |network, context| {
                let (mut short, mut long) = (vec![1; 5], vec![2; 700]);
                let sum = Sum { algorithm, by_function: false, tag: 0, in_order: true };
                let mut requests = [sum.request(context, &mut short), sum.request(context, &mut long)];
                if context.rank() == 1 {
                    requests.reverse();
                }
                requests.iter().for_each(|request| request.start().unwrap());
                let began = network.now();
                let result = match waits_for_both {
                    true => wait_for(&[Some(&requests[0]), Some(&requests[1])], None, true).map(drop),
                    false => requests.iter().try_for_each(|request| request.wait()),
                };
                let error = result.unwrap_err();
                assert!(network.now() - began < LONG, "{place:?}, {algorithm}, {waits_for_both}: {error}");
                context.close();
                requests.iter().for_each(|request| drop(request.wait()));
                error.kind()
            });
            let kinds: Vec<_> = ended.into_iter().map(Option::unwrap).collect();
            assert!(kinds.contains(&ErrorKind::Mismatch), "{place:?}, {algorithm}, {waits_for_both}: {kinds:?}");
        }
    }
}

/// What a rank does to have its requests end.
#[derive(Clone, Copy, Debug)]
enum Way {
    Wait,
    WaitFor,
    Test,
    Any,
    All,
}

const WAYS: [Way; 5] = [Way::Wait, Way::WaitFor, Way::Test, Way::Any, Way::All];

/// Runs the job of one seed: ranks start random sums, and wait for them in different orders and ways; the error
/// describes what is wrong.
fn play(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let place = PLACES[random.below(PLACES.len())];
    let (size, contexts) = (2 + random.below(5), 1 + random.below(2));
    let _long = random.one_in(2).then(LongPublications::begin);
    let network = Network::new(random.bits(), reliable());
    let all = place.contexts(&network, size, contexts);
    // A wait for requests of one context calls no functions of another.
    let by_function_on = if random.one_in(3) { contexts } else { 1 };
    let waits_for_all_only = contexts > 1 && by_function_on > 1;
    let rounds: Vec<Vec<(usize, Sum, usize)>> = (0..1 + random.below(3))
        .map(|_| {
            let count = 1 + [3, 12][random.below(2)];
            let one = |number: usize| {
                let context = random.below(contexts);
                let algorithms = place.algorithms();
                let in_order = random.one_in(2);
                // Those that are not in order have tags of their own.
                let tag = if in_order { random.below(2) as u64 } else { 10 + number as u64 };
                let by_function = context < by_function_on && random.one_in(2);
                let sum = Sum { algorithm: algorithms[random.below(algorithms.len())], by_function, tag, in_order };
                let most = if random.one_in(8) { EAGER_BYTES / 8 + 100 } else { [3, 100, 1000][random.below(3)] };
                (context, sum, 1 + random.below(most))
            };
            (0..count).map(one).collect()
        })
        .collect();
    let seeds: Vec<u64> = (0..size).map(|_| random.bits()).collect();
    let wrong = RefCell::new(String::new());
    let ended = play_over(&network, &all[0], |network, context| {
        let (rank, mut random) = (context.rank(), Random::new(seeds[context.rank()]));
        for (round, sums) in rounds.iter().enumerate() {
            let result = play_round(network, &mut random, sums, &all, rank, waits_for_all_only);
            if let Err(text) = result {
                wrong.borrow_mut().push_str(&format!("rank {rank}, round {round} of {place:?}, {sums:?}: {text}\n"));
                all.iter().for_each(|contexts| contexts[rank].close());
                return;
            }
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

fn play_round(
    network: &Network,
    random: &mut Random,
    sums: &[(usize, Sum, usize)],
    contexts: &[Vec<Arc<Context>>],
    rank: usize,
    waits_for_all_only: bool,
) -> Result<(), String> {
    let size = contexts[0].len() as i64;
    let mut data: Vec<Vec<i64>> =
        sums.iter().enumerate().map(|(number, (.., count))| vec![(rank * 100 + number) as i64; *count]).collect();
    let prepared: Vec<Request> = sums
        .iter()
        .zip(&mut data)
        .map(|((context, sum, _), data)| sum.request(&contexts[*context][rank], data))
        .collect();
    let requests = &prepared;
    // A random order that keeps those on one tag of one context in theirs.
    let mut order: Vec<usize> = (0..sums.len()).collect();
    for _ in 0..3 * sums.len() {
        let at = random.below(sums.len());
        let [a, b] = [at, (at + 1) % sums.len()];
        let line = |at: usize| (sums[order[at]].0, sums[order[at]].1.tag);
        if b > a && line(a) != line(b) {
            order.swap(a, b);
        }
    }
    let mut active: Vec<usize> = Vec::new();
    let mut to_start = order.into_iter();
    let text = |error: Error| error.to_string();
    let began = network.now();
    loop {
        if active.is_empty() || random.one_in(2) {
            match to_start.next() {
                Some(number) => {
                    requests[number].start().map_err(text)?;
                    active.push(number);
                    if random.one_in(3) {
                        idle(network, random.duration(&(Duration::ZERO..Duration::from_micros(40))));
                    }
                    continue;
                }
                None if active.is_empty() => break,
                None => {}
            }
        }
        let at = random.below(active.len());
        let may_block = to_start.len() == 0;
        let way = WAYS[random.below(WAYS.len())];
        // With requests to start of which others need it, a rank must not wait without end.
        let way = match way {
            Way::Wait | Way::All if !may_block => Way::WaitFor,
            Way::Wait | Way::WaitFor if waits_for_all_only && may_block => Way::Any,
            way => way,
        };
        let time =
            (!may_block || random.one_in(2)).then(|| random.duration(&(Duration::ZERO..Duration::from_micros(60))));
        match way {
            Way::Wait => {
                requests[active[at]].wait().map_err(text)?;
                active.swap_remove(at);
            }
            Way::WaitFor => {
                if requests[active[at]].wait_for(time.unwrap_or(SHORT)).map_err(text)? {
                    active.swap_remove(at);
                }
            }
            Way::Test => {
                if requests[active[at]].test().map_err(text)? {
                    active.swap_remove(at);
                } else {
                    idle(network, Duration::from_micros(10));
                }
            }
            Way::Any | Way::All => {
                let takes_all = waits_for_all_only || matches!(way, Way::All);
                let chosen: Vec<usize> = active.iter().copied().filter(|_| takes_all || random.one_in(2)).collect();
                let given: Vec<_> = chosen.iter().map(|number| Some(&requests[*number])).collect();
                let (done, in_time) = wait_for(&given, time, matches!(way, Way::All)).map_err(text)?;
                if time.is_none() && !in_time || in_time && done.is_empty() && !given.is_empty() {
                    return Err(format!("{way:?} of {chosen:?} for {time:?}: {done:?}, {in_time}"));
                }
                active.retain(|number| !done.iter().any(|at| chosen[*at] == *number));
            }
        }
        if network.now() - began > LONG {
            return Err(format!("{active:?} are active after {:?}", network.now() - began));
        }
    }
    drop(prepared);
    for (number, data) in data.iter().enumerate() {
        let expected = 100 * size * (size - 1) / 2 + size * number as i64;
        if data.iter().any(|sum| *sum != expected) {
            return Err(format!("sum {number} is {:?}, not {expected}", &data[..data.len().min(5)]));
        }
    }
    Ok(())
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn random_jobs_of_started_requests() {
    let fixed = Tier::from_environment().of(25, 400, 20_000);
    run(&seeds(fixed, "", 200), play, "simulation::started", "Write a test of what it has found.");
}
