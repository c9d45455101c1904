//! Groups of starts: requests and messages that ranks name in different orders, and groups that are refused.

mod fused;
mod random;

use std::sync::Arc;

use super::idle;
use super::job::{Job, TIMEOUT, contexts, play_over, reliable};
use super::sums::{LONG, LongPublications, PLACES, Place, SHORT, Sum, while_a_rank_dies};
use crate::context::{Completions, Context, Group, HasBuffer, HasRequest, Request, UnboundBuffer};
use crate::error::{ErrorKind, Result};
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::{Network, Random};
use crate::types::Rank;

struct Own(Request);

impl HasRequest for Own {
    fn request(&self) -> &Request {
        &self.0
    }
}

struct OwnBuffer(UnboundBuffer);

impl HasBuffer for OwnBuffer {
    fn buffer(&self) -> &UnboundBuffer {
        &self.0
    }
}

fn sum(algorithm: &'static str, tag: u64) -> Sum {
    Sum { algorithm, by_function: false, tag, in_order: true }
}

fn request(sum: Sum, context: &Arc<Context>, data: &mut [i64]) -> Arc<Own> {
    Arc::new(Own(sum.request(context, data)))
}

fn buffer(context: &Arc<Context>, memory: &mut [u8]) -> Arc<dyn HasBuffer> {
    // SAFETY: the callers' arrays outlive the buffers.
    Arc::new(OwnBuffer(unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()) }.unwrap()))
}

/// A group of these starts.
fn group_of(context: &Arc<Context>, starts: &[Arc<Own>]) -> Group {
    let group = context.group().unwrap();
    starts.iter().for_each(|own| group.start(own.clone()).unwrap());
    group
}

/// Whether the request was never started.
fn is_untouched(own: &Own) -> bool {
    let known = own.0.progressed();
    !known.is_active && known.started.is_none()
}

/// Each rank sends to every other one and receives from it, then the next step: a sender that waits for the end of its
/// message before it receives waits for ever.
fn exchange(context: &Arc<Context>, grouped: bool) -> Result<()> {
    const BYTES: usize = EAGER_BYTES + 1;
    let (rank, size) = (context.rank(), context.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mut forward, mut backward) = (vec![rank as u8; BYTES], vec![100 + rank as u8; BYTES]);
    let (mut first, mut second) = (vec![0; BYTES], vec![0; BYTES]);
    let time = Some(TIMEOUT / 2);
    let sends = [buffer(context, &mut forward), buffer(context, &mut backward)];
    let recvs = [buffer(context, &mut first), buffer(context, &mut second)];
    let peers = [(next, before), (before, next)];
    if grouped {
        let group = context.group()?;
        for (at, (to, from)) in peers.into_iter().enumerate() {
            group.send(&sends[at], to, 7, 0, BYTES)?;
            group.recv(&recvs[at], &[from], 7, 0, BYTES)?;
        }
        group.end()?;
        // In the order in which the blocking form waits.
        for at in 0..2 {
            sends[at].buffer().wait_send(time)?;
            recvs[at].buffer().wait_recv(time)?;
        }
    } else {
        for (at, (to, from)) in peers.into_iter().enumerate() {
            sends[at].buffer().send(to, 7, 0, BYTES)?;
            sends[at].buffer().wait_send(time)?;
            recvs[at].buffer().recv(&[from], 7, 0, BYTES)?;
            recvs[at].buffer().wait_recv(time)?;
        }
    }
    drop((sends, recvs));
    assert!(first.iter().all(|byte| *byte == before as u8) && second.iter().all(|byte| *byte == 100 + next as u8));
    Ok(())
}

#[test]
fn exchanges_that_deadlock_without_a_group_end_in_one() {
    for (place, size) in PLACES.into_iter().flat_map(|place| [(place, 2), (place, 3), (place, 4)]) {
        for grouped in [true, false] {
            let network = Network::new(1, reliable());
            let all = place.contexts(&network, size, 1);
            let ended = play_over(&network, &all[0], |network, context| {
                let began = network.now();
                (exchange(context, grouped).map_err(|error| error.kind()), network.now() - began)
            });
            for (result, took) in ended.into_iter().map(Option::unwrap) {
                match grouped {
                    true => assert!(result.is_ok() && took < LONG, "{place:?}, {size} ranks: {result:?}, {took:?}"),
                    false => assert_eq!(result, Err(ErrorKind::Timeout), "{place:?}, {size} ranks"),
                }
            }
        }
    }
}

/// A stage receives activations from the stage before, and gradients from that behind, in the steady state of a
/// pipeline with as many micro-batches: in each step it sends both and receives both, in an order of its own.
#[test]
fn stages_of_a_pipeline_exchange_in_orders_of_their_own() {
    const STEPS: u64 = 6;
    const BYTES: usize = EAGER_BYTES + 100;
    for (place, size) in PLACES.into_iter().flat_map(|place| [(place, 2), (place, 4)]) {
        let network = Network::new(2, reliable());
        let all = place.contexts(&network, size, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            let (rank, began, mut random) = (context.rank(), network.now(), Random::new(7 + context.rank() as u64));
            let mut memory = vec![vec![0; BYTES]; 4];
            let [ahead, back, from_before, from_behind] = &mut memory[..] else { unreachable!() };
            let buffers = [ahead, back, from_before, from_behind].map(|memory| buffer(context, memory));
            for step in 0..STEPS {
                let behind = (rank + 1 < size).then_some(rank + 1);
                let before = rank.checked_sub(1);
                let mut order: Vec<(usize, bool, Rank)> = Vec::new();
                behind.into_iter().for_each(|peer| order.extend([(0, true, peer), (3, false, peer)]));
                before.into_iter().for_each(|peer| order.extend([(1, true, peer), (2, false, peer)]));
                for at in (1..order.len()).rev() {
                    order.swap(at, random.below(at + 1));
                }
                let group = context.group().unwrap();
                for (at, sends, peer) in &order {
                    match sends {
                        true => group.send(&buffers[*at], *peer, step % 2, 0, BYTES).unwrap(),
                        false => group.recv(&buffers[*at], &[*peer], step % 2, 0, BYTES).unwrap(),
                    }
                }
                group.end().unwrap();
                for (at, sends, peer) in order {
                    match sends {
                        true => assert_eq!(buffers[at].buffer().wait_send(None).unwrap(), Some(peer)),
                        false => assert_eq!(buffers[at].buffer().wait_recv(None).unwrap(), Some((peer, BYTES))),
                    }
                }
            }
            assert!(network.now() - began < LONG, "{place:?}");
        });
        assert!(ended.iter().all(Option::is_some), "{place:?}, {size} ranks");
    }
}

#[test]
fn nothing_begins_before_the_end_of_a_group() {
    for place in PLACES {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            let (mut data, mut memory) = ([1; 10], [context.rank() as u8; 10]);
            let own = request(sum(place.algorithms()[0], 0), context, &mut data);
            let (other, buffer) = (1 - context.rank(), buffer(context, &mut memory));
            if context.rank() == 0 {
                let group = group_of(context, std::slice::from_ref(&own));
                group.send(&buffer, other, 3, 0, 10).unwrap();
                for refused in [own.0.start(), own.0.wait(), own.0.test().map(drop), group.start(own.clone())] {
                    let error = refused.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidOperation);
                    assert!(error.message().contains("the request is in a group: end the group first"), "{error}");
                }
                idle(network, LONG);
                group.end().unwrap();
                assert!(group.end().unwrap_err().message().contains("the group has ended"));
                assert!(group.start(own.clone()).unwrap_err().message().contains("the group has ended"));
                own.0.wait().unwrap();
                assert_eq!(buffer.buffer().wait_send(None).unwrap(), Some(1));
            } else {
                own.0.start().unwrap();
                buffer.buffer().recv(&[0], 3, 0, 10).unwrap();
                assert!(!own.0.wait_for(LONG / 2).unwrap());
                assert_eq!(buffer.buffer().wait_recv(Some(SHORT)).unwrap_err().kind(), ErrorKind::Timeout);
                own.0.wait().unwrap();
                assert_eq!(buffer.buffer().wait_recv(None).unwrap(), Some((0, 10)));
            }
            drop((own, buffer));
            assert!(data == [2; 10] && memory == [0; 10]);
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

/// Neither the first start nor the messages of a group begin whose last start is refused: the ranks have made the same
/// number of calls afterwards.
#[test]
fn of_a_group_that_is_refused_nothing_begins() {
    for place in PLACES {
        for algorithm in place.algorithms() {
            let network = Network::new(1, reliable());
            let all = place.contexts(&network, 2, 1);
            let ended = play_over(&network, &all[0], |network, context| {
                let (mut one, mut other, mut third) = ([1; 100], [10; 100], [100; 100]);
                let (mut memory, rank) = ([context.rank() as u8; 10], context.rank());
                let requests =
                    [request(sum(algorithm, 0), context, &mut one), request(sum(algorithm, 1), context, &mut other)];
                let buffer = buffer(context, &mut memory);
                // A call that is not in order excludes the second start as long as it runs.
                let plain = Sum { in_order: false, ..sum(algorithm, 1) }.request(context, &mut third);
                if rank == 0 {
                    plain.start().unwrap();
                    let group = group_of(context, &requests);
                    group.send(&buffer, 1, 5, 0, 10).unwrap();
                    let error = group.end().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidOperation);
                    assert!(error.message().contains("is running on this context already"), "{error}");
                    assert!(requests.iter().all(|own| is_untouched(own)) && context.broken().is_none());
                    let waits = buffer.buffer().wait_send(Some(LONG));
                    assert!(waits.unwrap_err().message().contains("waiting for something to be posted"));
                } else {
                    buffer.buffer().recv(&[0], 5, 0, 10).unwrap();
                    idle(network, 2 * LONG);
                    let came = buffer.buffer().wait_recv(Some(SHORT));
                    assert_eq!(came.unwrap_err().kind(), ErrorKind::Timeout, "{place:?}: a message was sent");
                    plain.start().unwrap();
                }
                plain.wait().unwrap();
                let group = group_of(context, &requests);
                if rank == 0 {
                    group.send(&buffer, 1, 5, 0, 10).unwrap();
                }
                group.end().unwrap();
                requests.iter().for_each(|own| own.0.wait().unwrap());
                match rank {
                    0 => drop(buffer.buffer().wait_send(None).unwrap()),
                    _ => assert_eq!(buffer.buffer().wait_recv(None).unwrap(), Some((0, 10))),
                }
                // Nothing is reserved any more.
                plain.start().unwrap();
                plain.wait().unwrap();
                drop((requests, plain, buffer));
                assert!(one == [2; 100] && other == [20; 100] && third == [400; 100] && memory == [0; 10]);
            });
            assert!(ended.iter().all(Option::is_some), "{place:?}, {algorithm}");
        }
    }
}

#[test]
fn a_refused_name_refuses_the_group() {
    let network = Network::new(1, reliable());
    let all = Place::Apart.contexts(&network, 2, 2);
    play_over(&network, &all[0], |_, context| {
        let (mut data, mut memory) = ([[1; 10]; 3], [0; 10]);
        let [one, other, third] = &mut data;
        let own = request(sum("ring", 0), context, one);
        let elsewhere = request(sum("ring", 0), &all[1][context.rank()], other);
        let alone = request(Sum { in_order: false, ..sum("ring", 2) }, context, third);
        let buffer = buffer(context, &mut memory);
        type Name<'a> = Box<dyn Fn(&Group) -> Result<()> + 'a>;
        let names: [(Name<'_>, &str); 6] = [
            (Box::new(|group| group.start(elsewhere.clone())), "the request is of another context"),
            (Box::new(|group| group.start(alone.clone())), "a group takes requests of"),
            (Box::new(|group| group.start(own.clone())), "the request is in a group"),
            (Box::new(|group| group.send(&buffer, 2, 0, 0, 10)), "there is no rank 2"),
            (Box::new(|group| group.recv(&buffer, &[], 0, 0, 10)), "at least one rank"),
            (Box::new(|group| group.send(&buffer, 1, 0, 1, 10)), "10 bytes at offset 1 are not inside a buffer"),
        ];
        for (name, why) in names {
            let group = group_of(context, std::slice::from_ref(&own));
            let error = group.naming(|| name(&group)).unwrap_err();
            assert!(error.message().contains(why), "{error}");
            let refused = group.end().unwrap_err();
            assert_eq!(refused.kind(), error.kind());
            assert!(refused.message().contains("a start of this group was refused") && refused.message().contains(why));
            assert!(is_untouched(&own) && context.broken().is_none());
        }
        let group = group_of(context, std::slice::from_ref(&own));
        group.recv(&buffer, &[0], 0, 0, 10).unwrap();
        drop(buffer);
        assert!(group.end().unwrap_err().message().contains("a buffer of this group was destroyed"));
        assert!(is_untouched(&own));
        let mut data = [1; 10];
        let freed = request(sum("ring", 1), context, &mut data);
        let group = group_of(context, &[own.clone(), freed.clone()]);
        freed.0.retire().unwrap();
        assert!(group.end().unwrap_err().message().contains("a request of this group was freed"));
        assert!(is_untouched(&own) && freed.0.start().unwrap_err().message().contains("the request was freed"));
        // A group that is given up.
        drop(group_of(context, std::slice::from_ref(&own)));
        group_of(context, std::slice::from_ref(&own)).end().unwrap();
        own.0.wait().unwrap();
    });
}

#[test]
fn a_group_on_a_broken_context_is_refused_with_the_reason() {
    for place in PLACES {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        play_over(&network, &all[0], |network, context| {
            let mut data = [1; 10];
            let own = request(sum(place.algorithms()[0], 0), context, &mut data);
            let group = group_of(context, std::slice::from_ref(&own));
            // The other rank has a group, too.
            idle(network, SHORT);
            context.abort("for the test").unwrap();
            let error = group.end().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
            assert!(error.message().contains("the context is broken") && is_untouched(&own), "{error}");
            let _ = context.group().unwrap().end().unwrap_err();
        });
    }
}

/// The second call of a group needs more memory than there is.
#[test]
fn a_group_for_which_there_is_no_memory_breaks_its_context() {
    for place in PLACES {
        // This one needs scratch memory.
        let algorithm = if place == Place::Apart { "ring" } else { "shared_flat" };
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            let mut data = [1; 10];
            let own = request(sum(algorithm, 0), context, &mut data);
            // SAFETY: nothing of it is accessed, since the call does not begin.
            let huge = unsafe { std::slice::from_raw_parts_mut(std::ptr::dangling_mut::<i64>(), 1 << 58) };
            let second = request(sum(algorithm, 1), context, huge);
            // The other rank has its requests, too.
            idle(network, SHORT);
            let began = network.now();
            let error = if context.rank() == 0 {
                let error = group_of(context, &[own.clone(), second.clone()]).end().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
                error
            } else {
                own.0.start().and_then(|()| own.0.wait()).unwrap_err()
            };
            assert!(network.now() - began < LONG && context.broken().is_some(), "{place:?}: {error}");
            assert!(!own.0.is_active() && !second.0.is_active());
            let mut guard = context.lock().unwrap();
            let running = (0..=u8::MAX).find_map(|kind| guard.running((kind, 0), false));
            assert!(running.is_none(), "{place:?}: what had begun has not ended");
        });
        assert!(ended.iter().all(Option::is_some), "{place:?}");
    }
}

#[test]
fn groups_of_attached_requests_and_buffers_give_entries() {
    for place in PLACES {
        let network = Network::new(1, reliable());
        let all = place.contexts(&network, 2, 1);
        let ended = play_over(&network, &all[0], |network, context| {
            let queue = Completions::by(context.device().clock()).unwrap();
            let (mut data, mut memory, mut other) = ([1; 100], [context.rank() as u8; 10], [9; 10]);
            let own = request(sum(place.algorithms()[0], 4), context, &mut data);
            queue.attach(own.clone(), 1).unwrap();
            let buffers = [buffer(context, &mut memory), buffer(context, &mut other)];
            (2..).zip(&buffers).for_each(|(user, own)| queue.attach_buffer(own.buffer(), user).unwrap());
            let peer = 1 - context.rank();
            for round in 0..3 {
                let group = group_of(context, std::slice::from_ref(&own));
                group.send(&buffers[0], peer, round, 0, 10).unwrap();
                group.recv(&buffers[1], &[peer], round, 0, 10).unwrap();
                assert_eq!(queue.count(), 0);
                if round == 1 {
                    // One that is given up has no entries.
                    drop(group);
                    continue;
                }
                group.end().unwrap();
                assert_eq!(queue.count(), 3, "the request, sends, and receives");
                let mut users: Vec<_> = (0..3).map(|_| queue.wait(None).unwrap().unwrap()).collect();
                users.sort_by_key(|completion| completion.user);
                for (completion, user) in users.into_iter().zip(1..) {
                    assert_eq!(completion.user, user);
                    assert_eq!(completion.result.unwrap(), (user > 1).then_some((peer, 10)));
                }
                assert_eq!(queue.count(), 0);
            }
            let began = network.now();
            assert!(queue.wait(Some(SHORT)).unwrap().is_none() && network.now() - began == SHORT);
            // Closed before the group ends, the queue has no entry for it: a wait has.
            let group = group_of(context, std::slice::from_ref(&own));
            queue.close().unwrap();
            group.end().unwrap();
            own.0.wait().unwrap();
            drop((own, buffers));
            assert!(data == [8; 100] && other == [peer as u8; 10]);
        });
        assert!(ended.iter().all(Option::is_some), "{place:?}");
    }
}

#[test]
fn groups_in_different_orders_are_compared_where_calls_are() {
    let network = Network::new(1, reliable());
    let all = contexts(&network, 3, &Job::options(true));
    let ended = play_over(&network, &all, |_, context| {
        let mut data = vec![vec![1; 10]; 4];
        let requests: Vec<_> = data.iter_mut().zip([0, 1, 1, 2]).map(|(data, tag)| (tag, data)).collect();
        let requests: Vec<_> =
            requests.into_iter().map(|(tag, data)| request(sum("ring", tag), context, data)).collect();
        // Those of tag 1 in one order.
        let order = [[0, 1, 2, 3], [3, 1, 0, 2], [1, 2, 3, 0]][context.rank()];
        group_of(context, &order.map(|at| requests[at].clone())).end().unwrap();
        requests.iter().for_each(|own| own.0.wait().unwrap());
        // Where they differ, none begins, and the contexts stay usable.
        let mut short = vec![1; 5 + context.rank()];
        let odd = request(sum("ring", 1), context, &mut short);
        let error = group_of(context, &[requests[0].clone(), odd.clone()]).end().unwrap_err();
        assert!(error.message().contains("ranks disagree about this call"), "{error}");
        assert!(!odd.0.is_active() && !requests[0].0.is_active() && context.broken().is_none());
        group_of(context, &[requests[0].clone()]).end().unwrap();
        requests[0].0.wait().unwrap();
        drop((requests, odd));
        assert!(data[0] == [9; 10] && data[3] == [3; 10]);
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn a_rank_that_dies_is_named_by_the_requests_of_a_group() {
    while_a_rank_dies(|network, context, [one, other]| {
        let requests = [request(sum("ring", 0), context, one), request(sum("ring", 1), context, other)];
        let began = network.now();
        group_of(context, &requests).end().unwrap();
        assert_eq!(network.now(), began, "the end of a group waits for nobody");
        for own in &requests {
            let error = own.0.wait().unwrap_err();
            assert_eq!(error.details().rank, Some(2), "{error}");
        }
    });
}

/// More calls than can have shared memory at a time get it in the order of their starts.
#[test]
fn many_long_calls_that_ranks_name_in_opposite_orders_end() {
    const COUNT: usize = 30;
    for place in PLACES {
        for algorithm in place.algorithms() {
            let _long = LongPublications::begin();
            let network = Network::new(1, reliable());
            let all = place.contexts(&network, 3, 1);
            let ended = play_over(&network, &all[0], |network, context| {
                let mut data: Vec<Vec<i64>> = (1..=COUNT).map(|n| vec![n as i64; 1000]).collect();
                let named = data.iter_mut().zip(0..).map(|(data, tag)| request(sum(algorithm, tag), context, data));
                let mut requests: Vec<_> = named.collect();
                if context.rank() == 1 {
                    requests.reverse();
                }
                let began = network.now();
                group_of(context, &requests).end().unwrap();
                requests.iter().for_each(|own| own.0.wait().unwrap());
                assert!(network.now() - began < LONG, "{place:?}, {algorithm}");
                drop(requests);
                assert!((1..).zip(&data).all(|(n, data)| data.iter().all(|sum| *sum == 3 * n)));
            });
            assert!(ended.iter().all(Option::is_some), "{place:?}, {algorithm}");
        }
    }
}
