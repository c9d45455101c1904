//! Calls of ranks that share memory and have several caches.

use super::*;

/// Groups that a caller passes on one host are its caches.
#[test]
fn ranks_of_several_caches_reduce_as_their_groups_say() {
    // Six ranks in three caches, in two, of which one has most, and in two sockets.
    let all = [[0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 0], [0, 0, 1, domain(1, 0), domain(1, 0), domain(1, 1)]];
    for groups in all.into_iter().skip(Tier::from_environment().of(2, 0, 0)) {
        let contexts = connected(6, false);
        // In an entry, copied, and piece by piece.
        let counts = [(1, 0), (7, 1), (3000, 2), (100_003, 3), (700_001, 4)];
        for (count, tag) in counts.into_iter().take(Tier::from_environment().of(4, 5, 5)) {
            for algorithm in ["shared_hierarchical_flat", "shared_hierarchical_slices"] {
                for (inputs, times) in [(0, 3), (1, 3)] {
                    run(&contexts, |context| {
                        for time in 0..times {
                            let value = |rank: usize, at: usize| ((rank + 1) * (at % 1000 + time)) as i64;
                            let input: Vec<i64> = (0..count).map(|at| value(context.rank(), at)).collect();
                            let mut output = if inputs == 0 { input.clone() } else { vec![0; count] };
                            let (from, into) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
                            let call = call(context, Collective::Allreduce, count, tag);
                            let shape = Shape { inputs, groups: &groups, ..call.shape };
                            let algorithm = Some(algorithm);
                            let call = Call { shape, algorithm, inputs: &from[..inputs], outputs: &into, ..call };
                            // SAFETY: the vectors are as long as the shape says, and live until the call returns.
                            unsafe { context.run(&call) }.unwrap();
                            let wrong = (0..count).find(|at| output[*at] != 21 * (at % 1000 + time) as i64);
                            assert_eq!(wrong, None, "{groups:?}, {algorithm:?}, {count}, rank {}", context.rank());
                        }
                    });
                }
            }
            for root in [0, 3, 5] {
                run(&contexts, |context| {
                    let call = call(context, Collective::Reduce, count, tag);
                    let shape = Shape { root, groups: &groups, ..call.shape };
                    let sum =
                        run_call(context, &Call { shape, algorithm: Some("shared_hierarchical"), ..call }).unwrap();
                    let expected = if context.rank() == root { 21 } else { context.rank() as i64 + 1 };
                    assert!(sum.iter().all(|cell| *cell == expected), "{groups:?}, {count}, root {root}");
                });
            }
        }
        let arrived = AtomicU64::new(0);
        run(&contexts, |context| {
            for time in 1..=50 {
                arrived.fetch_add(1, Ordering::SeqCst);
                let shape = Shape {
                    groups: &groups,
                    outputs: 0,
                    inputs: 0,
                    ..Shape::new(Collective::Barrier, context.rank(), 6, 0)
                };
                let call = Call { algorithm: Some("shared_hierarchical"), ..Call::new(shape, DataType::Int64) };
                // SAFETY: a barrier has no buffers.
                unsafe { context.run(&call) }.unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= 6 * time, "{groups:?}");
            }
        });
    }
}

#[test]
fn ranks_of_several_caches_exchange_blocks_as_their_groups_say() {
    let all = [[0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 0], [0, 0, 1, domain(1, 0), domain(1, 0), domain(1, 1)]];
    for groups in all.into_iter().skip(Tier::from_environment().of(2, 0, 0)) {
        let contexts = connected(6, false);
        // In an entry, copied, and piece by piece; of different lengths, one of which is 0.
        for (unit, tag) in [(1, 0), (7, 1), (3000, 2), (100_003, 3)] {
            let counts = [unit, 2 * unit, 0, unit, 3 * unit, unit];
            let all: usize = counts.iter().sum();
            run(&contexts, |context| {
                let rank = context.rank();
                let value = |of: usize, at: usize| ((of + 1) * (at % 1000 + 1)) as i64;
                let check = |collective, shape: Shape<'_>, input: &[i64], expected: &[i64]| {
                    let mut output = if shape.inputs == 0 { input.to_vec() } else { vec![-1; expected.len()] };
                    let (from, into) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
                    let shape = Shape { groups: &groups, collective, ..shape };
                    let algorithm = Some("shared_hierarchical");
                    let call = Call::new(shape, DataType::Int64);
                    let call = Call { tag, algorithm, inputs: &from[..shape.inputs], outputs: &into, ..call };
                    // SAFETY: the vectors are as long as the shape says, and live until the call returns.
                    unsafe { context.run(&call) }.unwrap();
                    let wrong = expected.iter().zip(&output).position(|(a, b)| a != b);
                    assert_eq!(wrong, None, "{groups:?}, {collective:?} of {unit}, rank {rank}");
                };
                let call = Shape::new(Collective::Allgather, rank, 6, unit);
                let block = |of: usize, count| (0..count).map(move |at| value(of, at));
                let own: Vec<i64> = block(rank, unit).collect();
                check(Collective::Allgather, call, &own, &(0..6).flat_map(|of| block(of, unit)).collect::<Vec<_>>());

                let call = Shape { count: 0, recv_counts: &counts, ..call };
                let own: Vec<i64> = block(rank, counts[rank]).collect();
                let gathered: Vec<i64> = (0..6).flat_map(|of| block(of, counts[of])).collect();
                check(Collective::Allgatherv, call, &own, &gathered);

                let before: usize = counts[..rank].iter().sum();
                let contribution: Vec<i64> = (0..all).map(|at| value(rank, at)).collect();
                let sums: Vec<i64> = (before..before + counts[rank]).map(|at| 21 * value(0, at)).collect();
                for inputs in [0, 1] {
                    check(Collective::ReduceScatter, Shape { inputs, ..call }, &contribution, &sums);
                }
            });
        }
    }
}

/// Streams with readers that read several of them at one pace, or some after others.
#[test]
fn long_buffers_of_ranks_that_read_each_others_end() {
    let contexts = connected(4, false);
    let groups = [0, 0, 0, 1];
    // More than fits into a ring, and more than a piece.
    for count in [400_000, 1_000_003] {
        run(&contexts, |context| {
            let rank = context.rank();
            let of = |collective, algorithm, groups: &[u32]| {
                let call = call(context, collective, count, 0);
                let call = Call { shape: Shape { groups, ..call.shape }, algorithm: Some(algorithm), ..call };
                let cells = run_call(context, &call).unwrap();
                assert!(cells.iter().all(|cell| *cell == cells[0]), "{collective:?} of {count}");
                cells[0]
            };
            let before = (1..=rank as i64).sum::<i64>();
            assert_eq!(of(Collective::Scan, "shared_flat", &[]), before + rank as i64 + 1);
            // What rank 0 gets is not specified: it keeps what it had.
            assert_eq!(of(Collective::Exscan, "shared_flat", &[]), if rank == 0 { 1 } else { before });
            assert_eq!(of(Collective::Allreduce, "shared_hierarchical_flat", &groups), 10);
            assert_eq!(of(Collective::Allreduce, "shared_hierarchical_slices", &groups), 10);
        });
    }
}

#[test]
fn ranks_that_pass_other_caches_are_told_so() {
    let contexts = connected(4, false);
    run(&contexts, |context| {
        let groups = if context.rank() == 3 { [0, 1, 0, 1] } else { [0, 0, 1, 1] };
        let call = call(context, Collective::Allreduce, 5, 0);
        let shape = Shape { groups: &groups, ..call.shape };
        let call = Call { shape, algorithm: Some("shared_hierarchical_flat"), ..call };
        let error = run_call(context, &call).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    });
}
