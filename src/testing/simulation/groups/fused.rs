//! Groups that fuse: the bits of calls that are executed alone, in fewer calls; and what goes wrong with them.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::{Own, group_of, sum};
use crate::collective::{Collective, Order, Shape};
use crate::context::{Call, Completions, Context, Reduction, wait_for_several};
use crate::error::{Error, ErrorKind, Result};
use crate::testing::loopback::{Network, NodeStatus, Random};
use crate::testing::simulation::idle;
use crate::testing::simulation::job::{Job, TIMEOUT, contexts, play_over, reliable};
use crate::testing::simulation::seeds::{run, seeds};
use crate::testing::simulation::sums::{LONG, PLACES, Place, SHORT};
use crate::testing::tier::Tier;
use crate::types::{DataType, ReduceOp};

/// An allreduce of numbers whose sum depends on the order.
#[derive(Clone, Copy, Debug)]
struct Reduced {
    algorithm: Option<&'static str>,
    op: ReduceOp,
    order: Order,
    in_place: bool,
    count: usize,
    tag: u64,
}

impl Reduced {
    fn random(random: &mut Random) -> Self {
        let algorithms =
            [Some("recursive_doubling"), Some("tree"), Some("hierarchical_direct"), None, Some("ring_chunked")];
        // Exact sums are not joined, and others are.
        let order = [Order::Any, Order::Any, Order::Any, Order::Ranks, Order::Reproducible][random.below(5)];
        Self {
            algorithm: if order == Order::Any { algorithms[random.below(5)] } else { Some("reduce_broadcast") },
            op: [ReduceOp::Sum, ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max][random.below(4)],
            order,
            in_place: random.one_in(2),
            count: [0, 1, 3, 200][random.below(4)] + random.below(3),
            tag: random.below(2) as u64,
        }
    }

    fn request(self, context: &Arc<Context>, input: &[f32], output: &mut [f32]) -> Arc<Own> {
        let Self { algorithm, op, order, in_place, count, tag } = self;
        let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), count);
        let shape = Shape { inputs: usize::from(!in_place), order, average: op == ReduceOp::Average, ..shape };
        let call = Call {
            algorithm,
            reduction: Reduction::Op(op),
            inputs: if in_place { &[] } else { &[input.as_ptr().cast()] },
            outputs: &[output.as_mut_ptr().cast()],
            tag,
            ..Call::new(shape, DataType::Float32)
        };
        if in_place {
            output.copy_from_slice(input);
        }
        context.check(&call, None).unwrap();
        // SAFETY: the callers' arrays are as long as the shape says, outlive the request, and are not used while it is
        // active.
        Arc::new(Own(unsafe { context.request_checked(&call, None, None, true) }.unwrap()))
    }
}

/// Numbers of which a sum in another order has other bits.
fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| (random.below(2000) as f32 - 1000.0) * 10f32.powi(random.below(12) as i32 - 6)).collect()
}

/// Number of collectives that the context has begun.
fn begun(context: &Context) -> u64 {
    context.lock().unwrap().begun()
}

/// A group that fuses.
fn fusing(context: &Arc<Context>, starts: &[Arc<Own>], max_bytes: usize) -> Result<()> {
    let group = group_of(context, starts);
    group.fuse(max_bytes).unwrap();
    group.end()
}

/// Waits for all requests, in one of several ways. Returns how each has ended.
fn wait_in_some_way(random: &mut Random, context: &Context, requests: &[Arc<Own>]) -> Vec<Result<()>> {
    let mut ended: Vec<Option<Result<()>>> = requests.iter().map(|_| None).collect();
    match random.below(3) {
        0 => {
            let all: Vec<_> = requests.iter().map(|own| Some(&own.0)).collect();
            let in_time = wait_for_several(&all, None, |number, result| {
                ended[number] = Some(result);
                false
            });
            assert!(in_time.unwrap());
        }
        1 => {
            // Attached while they run.
            let queue = Completions::by(context.device().clock()).unwrap();
            requests.iter().zip(0..).for_each(|(own, user)| queue.attach(own.clone(), user).unwrap());
            for _ in requests {
                let completion = queue.wait(None).unwrap().unwrap();
                ended[completion.user as usize] = Some(completion.result.map(drop));
            }
            queue.close().unwrap();
        }
        _ => {
            while let Some(number) = (0..requests.len())
                .filter(|number| ended[*number].is_none())
                .nth(random.below(ended.iter().filter(|ended| ended.is_none()).count().max(1)))
            {
                let request = &requests[number].0;
                let result = match random.below(3) {
                    0 => request.wait().map(|()| true),
                    1 => request.wait_for(random.duration(&(Duration::ZERO..Duration::from_micros(30)))),
                    _ => request.test(),
                };
                match result {
                    Ok(false) => {}
                    result => ended[number] = Some(result.map(drop)),
                }
            }
        }
    }
    ended.into_iter().map(Option::unwrap).collect()
}

/// The job of one seed: each rank executes the same groups of calls on two contexts, of which one fuses.
fn play(seed: u64) -> std::result::Result<(), String> {
    let mut random = Random::new(seed);
    let place = if random.one_in(5) { PLACES[1 + random.below(2)] } else { Place::Apart };
    let size = 2 + random.below(4);
    let network = Network::new(random.bits(), reliable());
    let all = place.contexts(&network, size, 2);
    let count = 1 + random.below(12);
    let like = Reduced::random(&mut random);
    let mut call = |_| {
        let other = Reduced::random(&mut random);
        // Most follow one that is like them.
        if random.one_in(4) { other } else { Reduced { count: other.count, in_place: other.in_place, ..like } }
    };
    let calls: Vec<Reduced> = (0..count).map(&mut call).collect();
    let max_bytes = [1, 900, 1 << 20][random.below(3)];
    let culprit = random.one_in(4).then(|| random.below(size));
    if let Some(culprit) = culprit {
        let status = if random.one_in(2) { NodeStatus::Crashed } else { NodeStatus::Silent };
        network.fail_after(culprit, random.below(4000) as u64, status);
    }
    let seed = random.bits();
    let wrong = RefCell::new(String::new());
    let ended = play_over(&network, &all[0], |network, context| {
        let rank = context.rank();
        let mut random = Random::new(seed + rank as u64);
        let inputs: Vec<Vec<f32>> = calls.iter().map(|call| numbers(&mut random, call.count)).collect();
        let mut results = Vec::new();
        for (fuses, contexts) in [(true, &all[0]), (false, &all[1])] {
            let context = &contexts[rank];
            let mut outputs: Vec<Vec<f32>> = calls.iter().map(|call| vec![0.0; call.count]).collect();
            let made = calls.iter().zip(&inputs).zip(&mut outputs);
            let requests: Vec<_> = made.map(|((call, input), output)| call.request(context, input, output)).collect();
            let began = network.now();
            let ended = fusing(context, &requests, if fuses { max_bytes } else { 0 });
            assert!(network.now() == began, "the end of a group has waited");
            let ended = match ended {
                Ok(()) => wait_in_some_way(&mut random, context, &requests),
                Err(error) => vec![Err(error)],
            };
            assert!(network.now() - began < 2 * TIMEOUT, "took {:?}", network.now() - began);
            assert!(requests.iter().all(|own| !own.0.is_active()));
            drop(requests);
            let failed = ended.into_iter().find_map(Result::err);
            assert_eq!(context.broken().is_some(), failed.is_some());
            match failed {
                Some(error) if culprit.is_none() => {
                    wrong.borrow_mut().push_str(&format!("rank {rank}: {error}\n"));
                }
                Some(_) => return,
                None => results.push(outputs),
            }
        }
        let bits = |outputs: &Vec<Vec<f32>>| outputs.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        if culprit.is_none() && (results.len() < 2 || bits(&results[0]) != bits(&results[1])) {
            wrong.borrow_mut().push_str(&format!("rank {rank} of {size}, {place:?}: other bits, {calls:?}\n"));
        }
    });
    if culprit.is_none() {
        let missing = ended.iter().position(Option::is_none);
        missing.into_iter().for_each(|rank| wrong.borrow_mut().push_str(&format!("rank {rank} never ended\n")));
        for context in all.iter().flatten() {
            if let Some(left) = context.lock().expect("the lock").messenger.remaining_state() {
                wrong.borrow_mut().push_str(&format!("rank {}: {left}\n", context.rank()));
            }
        }
    }
    let wrong = wrong.into_inner();
    if wrong.is_empty() { Ok(()) } else { Err(format!("{calls:?}, at most {max_bytes}: {wrong}")) }
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn random_jobs_of_groups_that_fuse() {
    let fixed = Tier::from_environment().of(25, 500, 20_000);
    run(&seeds(fixed, "", 200), play, "simulation::groups::fused", "Write a test of what it has found.");
}

const SUM: Reduced = Reduced {
    algorithm: Some("recursive_doubling"),
    op: ReduceOp::Sum,
    order: Order::Any,
    in_place: true,
    count: 10,
    tag: 0,
};

#[test]
fn calls_that_follow_each_other_are_one() {
    const BYTES: usize = SUM.count * size_of::<f32>();
    let (other_op, other_tag) = (Reduced { op: ReduceOp::Max, ..SUM }, Reduced { tag: 1, ..SUM });
    let (ring, none) = (Reduced { algorithm: Some("ring_chunked"), ..SUM }, Reduced { count: 0, ..SUM });
    let in_order = Reduced { order: Order::Ranks, algorithm: Some("reduce_broadcast"), ..SUM };
    let cases: [(&[Reduced], usize, u64); 9] = [
        (&[SUM; 5], 5 * BYTES, 1),
        (&[SUM; 5], 5 * BYTES - 1, 2),
        (&[SUM; 5], 2 * BYTES, 3),
        (&[SUM; 5], BYTES, 5),
        (&[SUM, other_op, SUM, SUM], 1 << 20, 3),
        (&[SUM, other_tag, SUM, other_tag], 1 << 20, 2),
        (&[SUM, none, none, SUM], 1 << 20, 1),
        (&[in_order; 3], 1 << 20, 1),
        // Which rank adds first depends on the position.
        (&[ring; 3], 1 << 20, 3),
    ];
    for (place, (calls, max_bytes, expected)) in PLACES.into_iter().flat_map(|place| cases.map(|case| (place, case))) {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 3, 1);
        let ended = play_over(&network, &all[0], |_, context| {
            let mut outputs = vec![vec![0.0; SUM.count]; calls.len()];
            let inputs: Vec<Vec<f32>> =
                (0..calls.len()).map(|n| vec![(n + context.rank()) as f32; SUM.count]).collect();
            let made = calls.iter().zip(&inputs).zip(&mut outputs);
            let requests: Vec<_> =
                made.map(|((c, i), o)| c.request(context, &i[..c.count], &mut o[..c.count])).collect();
            let before = begun(context);
            fusing(context, &requests, max_bytes).unwrap();
            // Calls on memory that all ranks share are begun elsewhere.
            if place == Place::Apart {
                assert_eq!(begun(context) - before, expected, "{calls:?}, at most {max_bytes}");
            }
            requests.iter().rev().for_each(|own| own.0.wait().unwrap());
            // They are what they were.
            fusing(context, &requests, 0).unwrap();
            requests.iter().for_each(|own| own.0.wait().unwrap());
        });
        assert!(ended.iter().all(Option::is_some), "{place:?}, {calls:?}");
    }
}

fn of_sums<R>(context: &Arc<Context>, count: usize, with: impl FnOnce(Vec<Arc<Own>>) -> R) -> R {
    let mut data = vec![[1i64; 10]; count];
    let requests = data.iter_mut().map(|data| Arc::new(Own(sum("tree", 0).request(context, data)))).collect();
    with(requests)
}

#[test]
fn ranks_that_fuse_other_calls_are_told() {
    // What each of two ranks joins: all, two, or none.
    for limits in [[1000, 0], [1000, 160], [160, 0]] {
        let network = Network::new(1, reliable());
        let all = Place::Apart.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |_, context| {
            of_sums(context, 4, |requests| {
                fusing(context, &requests, limits[context.rank()]).unwrap();
                requests.iter().map(|own| own.0.wait().unwrap_err()).next().unwrap()
            })
        });
        let errors: Vec<Error> = ended.into_iter().map(Option::unwrap).collect();
        assert!(errors.iter().any(|error| error.kind() == ErrorKind::Mismatch), "{limits:?}: {errors:?}");
        assert!(errors.iter().any(|error| error.message().contains("fused")), "{limits:?}: {errors:?}");
    }
    // Where calls are compared, none begins, and the contexts stay usable.
    let network = Network::new(1, reliable());
    let all = contexts(&network, 2, &Job::options(true));
    let ended = play_over(&network, &all, |_, context| {
        of_sums(context, 2, |requests| {
            let error = fusing(context, &requests, if context.rank() == 0 { 1000 } else { 0 }).unwrap_err();
            assert!(error.message().contains("ranks disagree about this call"), "{error}");
            assert!(context.broken().is_none());
            fusing(context, &requests, 1000).unwrap();
            requests.iter().for_each(|own| own.0.wait().unwrap());
        });
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn one_timeout_ends_all() {
    let network = Network::new(1, reliable());
    let all = Place::Apart.contexts(&network, 2, 1);
    play_over(&network, &all[0], |network, context| {
        if context.rank() == 1 {
            return idle(network, 3 * TIMEOUT);
        }
        of_sums(context, 3, |requests| {
            let began = network.now();
            fusing(context, &requests, 1000).unwrap();
            for time in [Duration::ZERO, SHORT, LONG] {
                let before = network.now();
                assert!(!requests[1].0.wait_for(time).unwrap() && !requests[2].0.test().unwrap());
                assert_eq!(network.now() - before, time);
            }
            let queue = Completions::by(context.device().clock()).unwrap();
            queue.attach(requests[2].clone(), 7).unwrap();
            for own in &requests[..2] {
                let error = own.0.wait().unwrap_err();
                assert_eq!((error.kind(), error.details().rank), (ErrorKind::Timeout, Some(1)), "{error}");
                assert!(error.message().contains("3 allreduces of a group that are fused"), "{error}");
            }
            let error = queue.wait(Some(SHORT)).unwrap().unwrap().result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            queue.close().unwrap();
            assert!((TIMEOUT..TIMEOUT + LONG).contains(&(network.now() - began)));
        });
    });
}

/// A request that is dropped breaks the context; the others fail, and what they share leaves nothing behind.
#[test]
fn a_dropped_request_fails_those_with_which_it_is_fused() {
    for kept in 0..=2 {
        let network = Network::new(1, reliable());
        let all = Place::Apart.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            if context.rank() == 1 {
                return idle(network, LONG);
            }
            of_sums(context, 3, |mut requests| {
                fusing(context, &requests, 1000).unwrap();
                requests.truncate(kept);
                assert!(context.broken().is_some());
                for own in &requests {
                    assert_eq!(own.0.wait().unwrap_err().kind(), ErrorKind::Closed);
                }
            });
            let mut guard = context.lock().unwrap();
            assert!((0..=u8::MAX).all(|kind| guard.running((kind, 0), false).is_none()));
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

#[test]
fn several_inputs_or_outputs_are_refused() {
    let network = Network::new(1, reliable());
    let all = Place::Apart.contexts(&network, 2, 1);
    play_over(&network, &all[0], |_, context| {
        let mut data = [[1f32; 4]; 2];
        let outputs = data.each_mut().map(|data| data.as_mut_ptr().cast());
        let shape = Shape::new(Collective::Allreduce, context.rank(), 2, 4);
        let call = Call { outputs: &outputs, ..Call::new(Shape { inputs: 0, outputs: 2, ..shape }, DataType::Float32) };
        // SAFETY: the arrays are as long as the shape says, and the request never starts.
        let own = Arc::new(Own(unsafe { context.request_checked(&call, None, None, true) }.unwrap()));
        let error = fusing(context, std::slice::from_ref(&own), 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOperation);
        assert!(error.message().contains("takes no allreduces of several inputs or outputs"), "{error}");
        assert!(!own.0.is_active() && context.broken().is_none());
    });
}
