//! Contexts out of parts of contexts, and what becomes of them when a rank is lost.

use std::sync::Arc;
use std::time::Duration;

use super::job::{TIMEOUT, play_on};
use crate::collective::{Collective, Shape};
use crate::context::{Call, Connect, Context, ContextOptions};
use crate::error::{ErrorKind, Result};
use crate::testing::loopback::{LinkModel, Network, NodeStatus, Random};
use crate::testing::tier::Tier;
use crate::tuner::Tuner;
use crate::tuner::file::Tuning;
use crate::tuner::model::Topology;
use crate::types::{DataType, Rank};

pub fn link_model() -> LinkModel {
    LinkModel {
        delay: Duration::from_micros(1)..Duration::from_micros(50),
        capacity: 100_000,
        piece: 5000,
        reads_above: None,
        places_above: None,
    }
}

fn options(connect: Connect) -> ContextOptions {
    ContextOptions { timeout: TIMEOUT, check_calls: Some(false), connect, agrees: false, ..Default::default() }
}

/// Makes the threads of `context` and of its parts not poll: time passes only where a rank sleeps.
pub fn never_poll(context: &Context) {
    let constants = [("spin_us", 0.0), ("spin_shared_us", 0.0), ("spin_alone_us", 0.0)].into();
    let tuning = Tuning { constants, ..Tuning::default() };
    let tuner = Tuner::new(tuning, Default::default(), Topology::one_host(context.size(), 1), 1 << 20);
    context.adopt(tuner, &context.everyone().unwrap(), &[]).unwrap();
}

/// `own` of all ranks, in their order.
pub fn gather(context: &Context, own: u64) -> Result<Vec<u64>> {
    let mut all = vec![0u64; context.size()];
    let call = Call {
        inputs: &[(&raw const own).cast()],
        outputs: &[all.as_mut_ptr().cast()],
        ..Call::new(Shape::new(Collective::Allgather, context.rank(), context.size(), 1), DataType::Uint64)
    };
    // SAFETY: the buffers are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }.map(|()| all)
}

/// What each rank passes, and which ranks are together then, in their order.
struct Parts(Vec<(Option<u32>, i32)>);

impl Parts {
    fn random(random: &mut Random, size: usize) -> Self {
        let (colors, keys) = (1 + random.below(4), 1 + random.below(size + 2));
        let mut one = || {
            let color = Some((random.below(colors) * 0x7fff_ffff / 3) as u32).filter(|_| !random.one_in(5));
            (color, random.below(keys) as i32 - keys as i32 / 2)
        };
        Self((0..size).map(|_| one()).collect())
    }

    fn together(&self, rank: Rank) -> Vec<u64> {
        let mut ranks: Vec<usize> = (0..self.0.len()).filter(|other| self.0[*other].0 == self.0[rank].0).collect();
        ranks.sort_by_key(|rank| self.0[*rank].1);
        ranks.into_iter().map(|rank| rank as u64).collect()
    }

    /// Splits `context`, and sees who is there.
    fn make(&self, context: &Context) -> Option<Arc<Context>> {
        let (rank, (color, key)) = (context.rank(), self.0[context.rank()]);
        let part = context.split(color, key).unwrap();
        assert_eq!(part.is_some(), color.is_some());
        let part = part?;
        let together = self.together(rank);
        assert_eq!((part.size(), together[part.rank()]), (together.len(), rank as u64));
        assert_eq!(gather(&part, rank as u64).unwrap(), together);
        Some(part)
    }
}

fn everyone_ended<T>(ended: Vec<Option<T>>) -> Vec<T> {
    ended.into_iter().enumerate().map(|(rank, result)| result.unwrap_or_else(|| panic!("rank {rank} hangs"))).collect()
}

#[test]
fn ranks_of_one_color_are_together_in_the_order_of_keys_and_ranks() {
    let sizes = [1, 2, 3, 4, 5, 7, 8, 13, 16, 24, 33];
    for (seed, size) in sizes.into_iter().take(Tier::from_environment().of(8, 11, 11)).enumerate() {
        let mut random = Random::new(seed as u64);
        let (one, other) = (Parts::random(&mut random, size), Parts::random(&mut random, size));
        let connect = if seed % 2 == 0 { Connect::Lazy } else { Connect::Full };
        let network = Network::new(seed as u64, link_model());
        everyone_ended(play_on(&network, size, &options(connect), |_, context| {
            never_poll(context);
            let (first, second) = (one.make(context), other.make(context));
            // The parts' parts: by the color in the other split, the last first.
            if let Some(part) = &first {
                let all = gather(part, context.rank() as u64).unwrap();
                let again = Parts(all.iter().map(|rank| (other.0[*rank as usize].0, -(*rank as i32))).collect());
                again.make(part);
            }
            // All are usable beside each other, and a part without the context that it is of.
            assert_eq!(gather(context, 7).unwrap(), vec![7; size]);
            drop(first);
            if let Some(part) = second {
                context.close();
                assert_eq!(gather(&part, 8).unwrap(), vec![8; part.size()]);
            }
        }));
    }
}

/// A rank may be done before the others have all their connections.
#[test]
fn a_rank_that_leaves_once_it_is_connected_has_been_connected() {
    const SIZE: usize = 4;
    for seed in 0..50 {
        let network = Network::new(seed, link_model());
        everyone_ended(play_on(&network, SIZE, &options(Connect::Full), |_, context| {
            never_poll(context);
            let part = context.split(Some(0), 0).unwrap().unwrap();
            never_poll(&part);
            let mut bytes = [part.rank() as u8; 4];
            // SAFETY: the array outlives the buffer.
            let buffer = unsafe { part.unbound_buffer(bytes.as_mut_ptr(), bytes.len()).unwrap() };
            if part.rank() == 0 {
                (1..SIZE).for_each(|to| buffer.send(to, 1, 0, 4).unwrap());
                (1..SIZE).for_each(|_| assert!(buffer.wait_send(None).unwrap().is_some()));
                part.close();
            } else {
                buffer.recv(&[0], 1, 0, 4).unwrap();
                buffer.wait_recv(None).unwrap();
                drop(buffer);
                assert_eq!(bytes, [0; 4]);
            }
        }));
    }
}

#[test]
fn ranks_without_a_color_and_ranks_alone_take_part() {
    let network = Network::new(1, link_model());
    everyone_ended(play_on(&network, 5, &options(Connect::Full), |_, context| {
        never_poll(context);
        assert!(context.split(None, 3).unwrap().is_none());
        let alone = context.split(Some(context.rank() as u32), 0).unwrap().unwrap();
        assert_eq!((alone.rank(), alone.size()), (0, 1));
        assert_eq!(gather(&alone, 9).unwrap(), [9]);
        let parent = gather(context, 1).unwrap();
        assert_eq!(parent, [1; 5]);
    }));
}

#[test]
fn a_rank_that_is_lost_while_contexts_are_split_is_named_by_all_that_miss_it() {
    const SIZE: usize = 5;
    // How much the rank sends, if it is not lost.
    let whole = |failure: Option<(u64, NodeStatus)>| {
        let network = Network::new(3, link_model());
        let ended = play_on(&network, SIZE, &options(Connect::Lazy), |network, context| {
            never_poll(context);
            if let Some((bytes, status)) = failure.filter(|_| context.rank() == 1) {
                network.fail_after(1, bytes, status);
            }
            let began = network.now();
            let result = context.split(Some(0), 0).and_then(|part| {
                let part = part.expect("a color was passed");
                let all = gather(&part, 1);
                part.close();
                all
            });
            if result.is_err() {
                context.close();
            }
            (result, network.now().duration_since(began))
        });
        (ended, network.sent(1))
    };
    let (well, sent) = whole(None);
    assert!(everyone_ended(well).into_iter().all(|(result, _)| result.unwrap() == [1; SIZE]));
    for status in [NodeStatus::Crashed, NodeStatus::Silent] {
        for bytes in (0..sent).step_by(1 + sent as usize / 60) {
            let (ended, _) = whole(Some((bytes, status)));
            for (rank, ended) in ended.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
                let (result, took) = ended.unwrap_or_else(|| panic!("rank {rank} hangs after {bytes} bytes"));
                let Err(error) = result else { continue };
                // In the split, or in the collective behind it.
                assert!(took < 2 * (TIMEOUT + Duration::from_secs(1)), "{took:?}: {error}");
                assert!(error.message().contains("rank 1"), "after {bytes} bytes, rank {rank}: {error}");
                assert_ne!(error.kind(), ErrorKind::Internal);
            }
        }
    }
}
