//! Completion queues: what threads take from them, and when.

use std::sync::Arc;
use std::time::Duration;

use super::idle;
use super::job::{TIMEOUT, play_over, reliable};
use super::sums::{LONG, LongPublications, PLACES, Place, SHORT, Sum};
use crate::context::{Completion, CompletionKind, Completions, Context, HasRequest, Request};
use crate::error::ErrorKind;
use crate::testing::loopback::{Network, NodeStatus};

struct Own(Request);

impl HasRequest for Own {
    fn request(&self) -> &Request {
        &self.0
    }
}

fn queue_of(context: &Arc<Context>) -> Completions {
    Completions::by(context.device().clock()).unwrap()
}

/// A request that is attached, with its tag.
fn attached(queue: &Completions, sum: Sum, context: &Arc<Context>, data: &mut [i64]) -> Arc<Own> {
    let own = Arc::new(Own(sum.request(context, data)));
    queue.attach(own.clone(), sum.tag).unwrap();
    own
}

fn take(queue: &Completions) -> u64 {
    let Completion { user, kind, result } = queue.wait(None).unwrap().unwrap();
    assert!(kind == CompletionKind::Request && result.unwrap().is_none());
    user
}

/// Started in different orders, twice, on one context or two; their functions are called by who waits.
#[test]
fn every_end_is_taken_once() {
    const COUNT: usize = 6;
    for (place, contexts) in PLACES.into_iter().flat_map(|place| [(place, 1), (place, 2)]) {
        for (algorithm, by_function) in place.algorithms().iter().flat_map(|one| [(*one, false), (*one, true)]) {
            let _long = LongPublications::begin();
            let network = Network::new(1, reliable());
            let all = place.contexts(&network, 3, contexts);
            let ended = play_over(&network, &all[0], |network, context| {
                let (rank, queue) = (context.rank(), queue_of(context));
                let mut data: Vec<Vec<i64>> = (1..=COUNT).map(|n| vec![1; 1 + 137 * n]).collect();
                let requests = (0..).zip(&mut data).map(|(tag, data)| {
                    let sum = Sum { algorithm, by_function, tag, in_order: false };
                    attached(&queue, sum, &all[tag as usize % contexts][rank], data)
                });
                let requests: Vec<_> = requests.collect();
                for _ in 0..2 {
                    let began = network.now();
                    (0..COUNT).for_each(|n| requests[(n + rank) % COUNT].0.start().unwrap());
                    let mut taken: Vec<_> = (0..COUNT).map(|_| take(&queue)).collect();
                    taken.sort_unstable();
                    assert_eq!(taken, (0..COUNT as u64).collect::<Vec<_>>(), "{place:?}, {algorithm}");
                    assert!(network.now() - began < LONG, "{place:?}, {algorithm}, {contexts} contexts");
                    assert!(requests.iter().all(|own| !own.0.progressed().is_active));
                }
                assert!(queue.wait(Some(Duration::ZERO)).unwrap().is_none());
                assert_eq!(queue.count(), 0);
                queue.close().unwrap();
                drop(requests);
                assert!(data.iter().flatten().all(|sum| *sum == 9));
            });
            assert!(ended.iter().all(Option::is_some));
        }
    }
}

#[test]
fn a_wait_in_vain_takes_its_time_and_breaks_nothing() {
    for place in PLACES {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            let queue = queue_of(context);
            let mut data = [1; 100];
            let sum = Sum { algorithm: place.algorithms()[0], by_function: false, tag: 3, in_order: false };
            let own = attached(&queue, sum, context, &mut data);
            if context.rank() == 1 {
                idle(network, 2 * LONG);
            }
            own.0.start().unwrap();
            if context.rank() == 0 {
                for time in [Duration::ZERO, SHORT, LONG] {
                    let began = network.now();
                    assert!(queue.wait(Some(time)).unwrap().is_none());
                    assert_eq!(network.now() - began, time, "{place:?}");
                    assert!(own.0.progressed().is_active && context.broken().is_none());
                }
                assert!(queue.close().unwrap_err().message().contains("1 request is active"));
            }
            assert_eq!(take(&queue), 3);
            queue.close().unwrap();
            drop(own);
            assert_eq!(data, [2; 100]);
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

#[test]
fn the_timeout_of_a_call_is_an_entry() {
    for place in PLACES {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        play_over(&network, &all[0], |network, context| {
            if context.rank() == 1 {
                return idle(network, 3 * TIMEOUT);
            }
            let (queue, mut data) = (queue_of(context), [1; 100]);
            let sum = Sum { algorithm: place.algorithms()[0], by_function: false, tag: 7, in_order: false };
            let own = attached(&queue, sum, context, &mut data);
            own.0.start().unwrap();
            let began = network.now();
            assert!(queue.wait(Some(TIMEOUT / 2)).unwrap().is_none());
            let Completion { user, result, .. } = queue.wait(None).unwrap().unwrap();
            let error = result.unwrap_err();
            assert_eq!((user, error.kind(), error.details().rank), (7, ErrorKind::Timeout, Some(1)), "{error}");
            assert!((TIMEOUT..TIMEOUT + LONG).contains(&(network.now() - began)), "{place:?}");
            assert!(own.0.start().unwrap_err().message().contains("the context is broken"));
            assert!(queue.wait(Some(Duration::ZERO)).unwrap().is_none(), "a start that fails has no entry");
            queue.close().unwrap();
        });
    }
}

#[test]
fn a_rank_that_dies_is_named_by_the_entries() {
    let network = Network::new(1, reliable());
    let all = Place::Apart.contexts(&network, 3, 1);
    let ended = play_over(&network, &all[0], |network, context| {
        let (queue, mut data) = (queue_of(context), [[1; 1000], [1; 1000]]);
        if context.rank() == 2 {
            network.fail_after(2, 100, NodeStatus::Crashed);
        }
        let sum = |tag| Sum { algorithm: "ring", by_function: false, tag, in_order: false };
        let [one, other] = &mut data;
        let requests = [attached(&queue, sum(0), context, one), attached(&queue, sum(1), context, other)];
        requests.iter().for_each(|own| own.0.start().unwrap());
        let began = network.now();
        for _ in 0..2 {
            let error = queue.wait(None).unwrap().unwrap().result.unwrap_err();
            assert_eq!(error.details().rank, Some(2), "{error}");
        }
        assert!(network.now() - began < LONG);
        queue.close().unwrap();
    });
    assert!(ended[..2].iter().all(Option::is_some));
}
