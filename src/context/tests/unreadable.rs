//! Ranks of one host that may not read the memory of each other's processes, as under Yama's default or some
//! containers' seccomp filters: collectives use the memory that they share all the same.

use super::*;
use crate::collective::{Collective, Shape};
use crate::testing::seccomp::forbid;
use crate::testing::tier::Tier;
use crate::types::{DataType, ElementType, ReduceOp};

/// Connected contexts of ranks that share memory, or that use sockets.
fn contexts(size: usize, shared: bool) -> Vec<Arc<Context>> {
    let options = ContextOptions { timeout: Duration::from_secs(60), ..Default::default() };
    std::thread::scope(|scope| {
        let connected = scope.spawn(|| {
            forbid(libc::SYS_process_vm_readv, libc::EPERM);
            agreement::on_this_host(size, shared, options)
        });
        connected.join().unwrap()
    })
}

/// The output of a call of one rank.
fn output(context: &Context, shape: &Shape<'_>, algorithm: Option<&'static str>) -> Vec<u64> {
    let number = |at: usize| (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ context.rank() as u64;
    let input: Vec<u64> = (0..shape.input_len(0)).map(number).collect();
    let mut output: Vec<u64> = (0..shape.output_len(0)).map(number).collect();
    let call = Call {
        inputs: &[input.as_ptr().cast()][..shape.inputs],
        outputs: &[output.as_mut_ptr().cast()][..shape.outputs],
        reduction: Reduction::Op(ReduceOp::Sum),
        algorithm,
        ..Call::new(*shape, DataType::Uint64)
    };
    // SAFETY: the vectors have the lengths of the shape, and live until the call returns.
    unsafe { context.run(&call) }.unwrap();
    output
}

/// All algorithms on shared memory, of publications that are copied as a whole and that are streams, with results as by
/// messages.
#[test]
fn collectives_use_the_memory_that_ranks_share_though_they_may_not_read_each_others() {
    for size in [3, 2, 5].into_iter().take(Tier::from_environment().of(1, 3, 3)) {
        let (here, by_messages) = (contexts(size, true), contexts(size, false));
        std::thread::scope(|scope| {
            for (context, other) in here.iter().zip(&by_messages) {
                scope.spawn(move || {
                    assert!(!context.shared_memory.get().expect("memory is shared").reads());
                    for collective in Collective::ALL {
                        let lists =
                            [Collective::Gatherv, Collective::Scatterv, Collective::Alltoallv, Collective::Allgatherv];
                        if lists.contains(collective) || *collective == Collective::PairwiseExchange {
                            continue;
                        }
                        for in_place in [false, true] {
                            for count in [1, 999, 300_001] {
                                let shape = Shape::new(*collective, context.rank(), size, count);
                                let inputs = if in_place { 0 } else { shape.inputs };
                                let is_root = context.rank() == 0;
                                let outputs = match collective {
                                    Collective::Gather => usize::from(is_root),
                                    Collective::Barrier => 0,
                                    _ => shape.outputs,
                                };
                                let inputs = match collective {
                                    Collective::Broadcast | Collective::Scatter => inputs.min(usize::from(is_root)),
                                    Collective::Gather if !is_root => 1,
                                    Collective::Barrier => 0,
                                    _ => inputs,
                                };
                                let shape = Shape { inputs, outputs, ..shape };
                                if shape.check().is_err() {
                                    continue;
                                }
                                let expected = output(other, &shape, None);
                                let algorithms =
                                    collective.algorithms().iter().filter(|own| own.uses.needs_shared_memory());
                                for algorithm in algorithms {
                                    let got = output(context, &shape, Some(algorithm.name));
                                    let what = (collective, algorithm.name, count, in_place);
                                    assert!(got == expected, "{what:?} on rank {} of {size}", context.rank());
                                }
                            }
                        }
                    }
                });
            }
        });
    }
}

/// More calls at the same time than there is memory for.
#[test]
fn calls_wait_for_memory_that_other_calls_have() {
    const CALLS: usize = 300;
    let contexts = contexts(3, true);
    run(&contexts, |context| {
        let count = |call: usize| if call.is_multiple_of(10) { 20_000 } else { 100 };
        let mut data: Vec<Vec<u64>> =
            (0..CALLS).map(|call| vec![(call + context.rank()) as u64; count(call)]).collect();
        let requests: Vec<_> = data
            .iter_mut()
            .enumerate()
            .map(|(tag, data)| {
                let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), data.len());
                let call = Call {
                    outputs: &[data.as_mut_ptr().cast()],
                    reduction: Reduction::Op(ReduceOp::Sum),
                    tag: tag as u64,
                    ..Call::new(Shape { inputs: 0, ..shape }, DataType::Uint64)
                };
                // SAFETY: the vectors are as long as the shape says, outlive the requests, and are not used while these
                // are active.
                unsafe { context.request(&call) }.unwrap()
            })
            .collect();
        requests.iter().for_each(|request| request.start().unwrap());
        requests.iter().rev().for_each(|request| request.wait().unwrap());
        drop(requests);
        for (call, data) in data.iter().enumerate() {
            assert!(data.iter().all(|sum| *sum == 3 * call as u64 + 3), "call {call}");
        }
    });
}

/// Elements so long that not each publication could have a ring are sent by messages.
#[test]
fn long_elements_are_sent_by_messages() {
    const ELEMENT: usize = 1000;
    run(&contexts(2, true), |context| {
        let mut data = vec![context.rank() as u8; 5000 * ELEMENT];
        let shape = Shape::new(Collective::Broadcast, context.rank(), 2, 5000);
        let call = Call {
            outputs: &[data.as_mut_ptr().cast()],
            dtype: ElementType::Opaque(ELEMENT),
            ..Call::new(Shape { inputs: 0, root: 1, ..shape }, DataType::Uint8)
        };
        // SAFETY: the vector is as long as the shape says.
        unsafe { context.run(&call) }.unwrap();
        assert!(data.iter().all(|byte| *byte == 1));
        // SAFETY: as above.
        let refused = unsafe { context.run(&Call { algorithm: Some("shared_flat"), ..call }) }.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    });
}
