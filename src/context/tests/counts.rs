//! Algorithms that need the counts of all ranks, and ranks that disagree about them.

use std::time::Instant;

use super::*;
use crate::collective::{Collective, Shape};
use crate::error::Result;
use crate::types::DataType;

/// A gatherv to rank 0 by a tree: this rank has `count` elements, the root expects `counts`.
fn gatherv(context: &Context, counts: &[usize], count: usize, timeout: Duration) -> Result<Vec<u32>> {
    let is_root = context.rank() == 0;
    let mine = if is_root { counts[0] } else { count };
    let input: Vec<u32> = vec![context.rank() as u32; mine];
    let mut output = vec![u32::MAX; if is_root { counts.iter().sum() } else { 0 }];
    let call = Call {
        inputs: &[input.as_ptr().cast()],
        outputs: if is_root { &[output.as_mut_ptr().cast()] } else { &[] },
        algorithm: Some("binomial"),
        timeout: Some(timeout),
        ..Call::new(
            Shape {
                recv_counts: if is_root { counts } else { &[] },
                outputs: usize::from(is_root),
                ..Shape::new(Collective::Gatherv, context.rank(), context.size(), count)
            },
            DataType::Uint32,
        )
    };
    // SAFETY: the vectors are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }.map(|()| output)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_root_tells_everyone_the_counts() {
    for size in 1..=6 {
        let counts: Vec<usize> = (0..size).map(|rank| [3, 0, 5][rank % 3]).collect();
        let all: Vec<u32> = counts.iter().enumerate().flat_map(|(rank, n)| vec![rank as u32; *n]).collect();
        run(&group(size), |context| {
            for _ in 0..3 {
                let gathered = gatherv(context, &counts, counts[context.rank()], LONG).unwrap();
                assert_eq!(gathered, if context.rank() == 0 { &all[..] } else { &[] });
            }
        });
    }
}

#[test]
fn a_rank_with_another_count_says_so_and_nobody_waits_for_it() {
    let contexts = group(5);
    run(&contexts, |context| {
        let started = Instant::now();
        let rank = context.rank();
        let result = gatherv(context, &[5; 5], if rank == 3 { 7 } else { 5 }, LONG);
        assert!(started.elapsed() < LONG / 2, "rank {rank} waited");
        let why = "rank 3: gatherv binomial of 7 uint32 (28 bytes), tag 0: this rank sends 7 elements, but the root, \
                   rank 0, expects 5 from it";
        match result {
            Err(error) if rank == 3 => assert_eq!((error.kind(), error.message()), (ErrorKind::Mismatch, why)),
            Err(error) => assert!(error.message().contains(why), "{error}"),
            // A rank that has forwarded its part is done.
            Ok(_) => assert!(rank != 0 && rank != 2 && rank != 3, "rank {rank} is done without rank 3"),
        }
    });
    assert!(contexts[0].broken().is_some() && contexts[3].broken().is_some());
}
