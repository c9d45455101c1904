//! Collectives on buffers in the memory of GPUs, by the simulated driver: every collective, with buffers in all kinds
//! of memory; and what happens when calls of the driver fail.

mod case;

use std::sync::Arc;
use std::time::Duration;

use super::calls::collectives;
use super::job::{contexts, play_over, reliable};
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, ContextOptions};
use crate::cuda::driver::number::ERROR_OUT_OF_MEMORY;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::reduce::Factor;
use crate::testing::cuda::driver::{Kind, Machine, Objects, Pace};
use crate::testing::loopback::Network;
use crate::testing::reductions::Random;
use crate::testing::tier::Tier;
use crate::types::{DataType, ReduceOp};
use case::{Case, Numbers, Place};

/// A job of `size` ranks with the machine's GPUs. Its contexts are gone when this returns.
fn job(machine: &Machine, size: usize, program: impl Fn(&Arc<Context>) -> Result<()>) -> Vec<Result<()>> {
    let network = Network::new(1, reliable());
    let options = ContextOptions { timeout: Duration::from_secs(10), agrees: false, ..ContextOptions::default() };
    let contexts = contexts(&network, size, &options);
    contexts.iter().for_each(|context| context.set_driver(machine.driver()));
    let ended = play_over(&network, &contexts, |_, context| program(context));
    ended.into_iter().map(|ended| ended.expect("it has ended")).collect()
}

fn any_place(random: &mut Random, gpus: usize) -> Place {
    let gpu = random.below(gpus);
    match random.below(10) {
        0 => Place::Host,
        1 => Place::Driver(Kind::Managed(gpu)),
        2 => Place::Driver(Kind::Pinned),
        3 => Place::Driver(Kind::Pool(gpu)),
        _ => Place::Driver(Kind::Device(gpu)),
    }
}

#[test]
fn every_collective_takes_buffers_in_any_memory() {
    let cases = Tier::from_environment().of(6, 40, 400);
    for size in 1..=3 {
        for collective in collectives(size) {
            for number in 0..cases {
                let mut random = Random((size * 1000 + number) as u64 ^ (collective as u64) << 40);
                let gpus = 1 + number % 2;
                let pace = if random.below(2) == 0 { Pace::Late } else { Pace::Any };
                let machine = Machine::new(gpus, random.next(), pace);
                let case = Case::random(&mut random, collective, size);
                let random = std::cell::RefCell::new(random);
                let place = || any_place(&mut random.borrow_mut(), gpus);
                for (rank, result) in
                    job(&machine, size, |context| (0..2).try_for_each(|_| case.run(&machine, context, place)))
                        .into_iter()
                        .enumerate()
                {
                    result.unwrap_or_else(|error| panic!("{}: {error}", case.text(rank)));
                }
                machine.assert_clean();
            }
        }
    }
}

/// Two inputs and two outputs on each of two GPUs, and one of each on the host.
fn several(in_place: bool, op: ReduceOp) -> Case {
    Case {
        in_place,
        op,
        several: 5,
        count: 9,
        by_request: false,
        ..Case::random(&mut Random(5), Collective::Allreduce, 2)
    }
}

fn in_turn() -> impl Fn() -> Place {
    let next = std::cell::Cell::new(0);
    move || {
        let number = next.replace(next.get() + 1);
        [0, 1, 0, 1].map(|gpu| Place::Driver(Kind::Device(gpu))).get(number % 5).copied().unwrap_or(Place::Host)
    }
}

/// The buffers of a GPU are reduced there, so one crosses to the host and one comes back.
#[test]
fn buffers_of_one_gpu_are_reduced_there() {
    let copies_and_launches = |in_place, op| {
        let machine = Machine::new(2, 3, Pace::Any);
        let case = several(in_place, op);
        job(&machine, 2, |context| case.run(&machine, context, in_turn())).into_iter().for_each(Result::unwrap);
        machine.assert_clean();
        let log = machine.log(0);
        ["cuMemcpyAsync", "cuLaunchKernel", "cuMemHostAlloc"]
            .map(|name| log.iter().filter(|called| **called == name).count() / 2)
    };
    // For each of two GPUs: the result to one output, and from there to the other.
    assert_eq!(copies_and_launches(false, ReduceOp::Sum), [4, 2, 4]);
    assert_eq!(copies_and_launches(true, ReduceOp::Sum), [4, 2, 2]);
    // An average depends on the number of inputs.
    assert_eq!(copies_and_launches(false, ReduceOp::Average), [8, 0, 6]);
}

#[test]
fn more_inputs_than_a_kernel_takes_are_reduced_by_several() {
    let machine = Machine::new(1, 3, Pace::Any);
    let case = Case { several: 17, ..several(false, ReduceOp::Sum) };
    let place = || Place::Driver(Kind::Device(0));
    job(&machine, 2, |context| case.run(&machine, context, place)).into_iter().for_each(Result::unwrap);
    machine.assert_clean();
    let launches = machine.log(0).iter().filter(|name| **name == "cuLaunchKernel").count();
    assert_eq!(launches, 2 * 3, "8, 7 and 2 inputs");
}

#[test]
fn without_kernels_every_input_is_copied() {
    let machine = Machine::new(2, 3, Pace::Any);
    machine.set_version(11040);
    let case = several(false, ReduceOp::Sum);
    job(&machine, 2, |context| case.run(&machine, context, in_turn())).into_iter().for_each(Result::unwrap);
    machine.assert_clean();
    assert!(!machine.log(0).contains(&"cuModuleLoadData"));
}

/// The output is a part of the input, as NCCL has it.
#[test]
fn a_block_of_the_input_may_be_the_output() {
    for kind in [Some(Kind::Device(0)), None] {
        let machine = Machine::new(1, 3, Pace::Any);
        let results = job(&machine, 2, |context| {
            let rank = context.rank();
            let place = kind.map_or(Place::Host, Place::Driver);
            let input = Numbers::new(&machine, place, vec![1, 2, 3, 10 * rank as i64]);
            let counts = [2; 2];
            let shape = Shape { recv_counts: &counts, ..Shape::new(Collective::ReduceScatter, rank, 2, 0) };
            let pointer = std::ptr::with_exposed_provenance_mut::<u8>(input.address as usize);
            let outputs = [pointer.wrapping_add(16 * rank)];
            let inputs = [pointer.cast_const()];
            let call =
                Call { inputs: &inputs, outputs: &outputs, own_block: true, ..Call::new(shape, DataType::Int64) };
            // SAFETY: the buffer lives until the call has ended.
            unsafe { context.run(&call) }?;
            assert_eq!(input.content(&machine), [[2, 4, 3, 0], [1, 2, 6, 10]][rank]);
            input.free(&machine);
            Ok(())
        });
        results.into_iter().for_each(Result::unwrap);
        machine.assert_clean();
    }
}

/// Each input is multiplied, and rounded, before it is added to others; buffers of GPUs in pinned memory.
#[test]
fn a_factor_multiplies_buffers_wherever_they_are() {
    let bits = |values: [f64; 3]| values.map(|value| value.to_bits() as i64).to_vec();
    let device = Place::Driver(Kind::Device(0));
    for (places, in_place) in [([device, device], false), ([device, Place::Host], false), ([device, device], true)] {
        let machine = Machine::new(1, 3, Pace::Any);
        let results = job(&machine, 2, |context| {
            let rank = context.rank();
            let inputs = places.map(|place| Numbers::new(&machine, place, bits([0.1, 0.7, rank as f64])));
            let output = Numbers::new(&machine, device, bits([-1.0; 3]));
            let pointer = |numbers: &Numbers| std::ptr::with_exposed_provenance_mut::<u8>(numbers.address as usize);
            let own: Vec<*mut u8> = inputs.iter().map(pointer).collect();
            let from: Vec<*const u8> = own.iter().map(|pointer| pointer.cast_const()).collect();
            let into = [pointer(&output)];
            let call = Call {
                inputs: if in_place { &[] } else { &from },
                outputs: if in_place { &own } else { &into },
                factor: Factor::new(DataType::Float64, [0.1f64, 3.0][rank].to_ne_bytes()),
                algorithm: Some("ring"),
                ..Call::new(Shape::new(Collective::Allreduce, rank, 2, 3), DataType::Float64)
            };
            let shape = Shape { inputs: call.inputs.len(), outputs: call.outputs.len(), ..call.shape };
            // SAFETY: the buffers live until the call has ended.
            unsafe { context.run(&Call { shape, ..call }) }?;
            let sum = |value: [f64; 2]| {
                let (a, b) = (value[0] * 0.1, value[1] * 3.0);
                (a + a) + (b + b)
            };
            let expected = bits([sum([0.1; 2]), sum([0.7; 2]), sum([0.0, 1.0])]);
            if in_place {
                inputs.iter().for_each(|input| assert_eq!(input.content(&machine), expected));
            } else {
                assert_eq!(output.content(&machine), expected);
                inputs.iter().for_each(|input| assert_eq!(input.content(&machine), bits([0.1, 0.7, rank as f64])));
            }
            inputs.iter().chain([&output]).for_each(|numbers| numbers.free(&machine));
            Ok(())
        });
        results.into_iter().for_each(Result::unwrap);
        machine.assert_clean();
        assert!(!machine.log(0).contains(&"cuLaunchKernel"), "a GPU adds up what is not multiplied yet");
    }
}

#[test]
fn blocks_in_the_memory_of_a_gpu_are_refused_and_the_context_stays_usable() {
    let machine = Machine::new(1, 3, Pace::Any);
    let results = job(&machine, 2, |context| {
        let places = [Place::Host, Place::Driver(Kind::Device(0))];
        let numbers = places.map(|place| Numbers::new(&machine, place, vec![5]));
        let own = [7i64];
        let outputs = numbers.each_ref().map(|block| std::ptr::with_exposed_provenance_mut(block.address as usize));
        let shape = Shape { blocks: true, ..Shape::new(Collective::Allgather, context.rank(), 2, 1) };
        let inputs = [own.as_ptr().cast()];
        let call = Call { inputs: &inputs, outputs: &outputs, ..Call::new(shape, DataType::Int64) };
        // SAFETY: the buffers live until the call has ended.
        let error = unsafe { context.run(&call) }.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("output 1 (0x") && error.message().contains("of a GPU"), "{error}");
        assert!(context.broken().is_none(), "{error}");
        numbers.iter().for_each(|block| block.free(&machine));
        Ok(())
    });
    results.into_iter().for_each(Result::unwrap);
    machine.assert_clean();
}

#[test]
fn a_wrong_kind_of_memory_is_refused_and_the_context_stays_usable() {
    let refused = |place: Place, memory| {
        let machine = Machine::new(2, 3, Pace::Any);
        let case = Case { memory, several: 1, ..several(false, ReduceOp::Sum) };
        let results = job(&machine, 1, |context| {
            let case = Case { size: 1, root: 0, counts: vec![1], ..case_of(&case) };
            let error = case.run(&machine, context, || place).expect_err("it is refused");
            assert!(context.broken().is_none(), "{error}");
            Err(error)
        });
        machine.assert_clean();
        results.into_iter().next().unwrap().unwrap_err()
    };
    let error = refused(Place::Driver(Kind::Other(1)), Memory::Auto);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().starts_with("input 0 (0x"), "{error}");
    assert!(error.message().contains("a context of GPU 1 that is not the primary one"), "{error}");
    let error = refused(Place::Host, Memory::Device);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().ends_with("): it is not memory of a GPU"), "{error}");
}

fn case_of(case: &Case) -> Case {
    Case { counts: case.counts.clone(), ..*case }
}

/// What a job of two ranks does in which calls of the driver fail: kernels, copies in both directions, a request.
fn program(machine: &Machine, context: &Arc<Context>) -> Result<()> {
    // By a barrier, a rank hears of the other's failure at once, and of one in the last call.
    let barrier = || {
        let shape = Shape::new(Collective::Barrier, context.rank(), 2, 0);
        // SAFETY: a barrier has no buffers.
        unsafe { context.run(&Call::new(Shape { inputs: 0, outputs: 0, ..shape }, DataType::Uint8)) }
    };
    barrier()?;
    several(false, ReduceOp::Sum).run(machine, context, in_turn())?;
    Case { by_request: true, ..several(true, ReduceOp::Sum) }.run(machine, context, in_turn())?;
    barrier()
}

/// Whether an error tells of a failed call: in this rank or, by its words, in another.
fn tells(error: &Error, name: &str) -> bool {
    error.message().contains(&format!("{name} returns CUDA_ERROR_OUT_OF_MEMORY (2)"))
        || name == "cuPointerGetAttribute" && error.message().contains("cuPointerGetAttribute, asked for 0x")
}

#[test]
fn a_call_of_the_driver_that_fails_is_named_on_all_ranks_and_leaves_nothing() {
    let names = {
        let machine = Machine::new(2, 1, Pace::Any);
        job(&machine, 2, |context| program(&machine, context)).into_iter().for_each(Result::unwrap);
        machine.assert_clean();
        machine.log(0)
    };
    let step = Tier::from_environment().of(3, 1, 1);
    let mut failed = std::collections::BTreeSet::new();
    for (call, name) in names.iter().enumerate().step_by(step) {
        for pace in [Pace::Any, Pace::Late] {
            let machine = Machine::new(2, 1, pace);
            machine.fail(call, ERROR_OUT_OF_MEMORY);
            let ended = std::cell::Cell::new(0);
            let results = job(&machine, 2, |context| {
                let result = program(&machine, context);
                ended.set(machine.calls());
                let stays_broken = result.is_err() == context.broken().is_some();
                assert!(stays_broken, "call {call}, {name}: {result:?}, {:?}", context.broken());
                result
            });
            assert_eq!(machine.misuse(), [""; 0], "call {call}, {name}");
            assert_eq!(machine.name(call), *name);
            if call >= ended.get() {
                // When contexts are dropped, nobody can be told.
                results.into_iter().for_each(Result::unwrap);
                continue;
            }
            failed.insert(*name);
            for (rank, result) in results.into_iter().enumerate() {
                let error = result.expect_err(&format!("call {call}, {name}: rank {rank} fails"));
                assert!(tells(&error, name), "call {call}, {name}, rank {rank}: {error}");
                assert!(error.message().contains("allreduce"), "{error}");
            }
            // What undoes something has not done it.
            let is_undoing = ["Pop", "Exchange"].iter().any(|undoing| name.contains(undoing));
            assert!(is_undoing || machine.objects() == Objects::default(), "{name}: {:?}", machine.objects());
        }
    }
    assert!(failed.len() > 12, "{failed:?}");
}

/// Once a GPU is lost, every call of the driver fails, and no memory that it might access is used again.
#[test]
fn a_lost_gpu_ends_the_job_with_an_error() {
    let calls = {
        let machine = Machine::new(2, 1, Pace::Any);
        job(&machine, 2, |context| {
            let result = program(&machine, context);
            Err(result.err().unwrap_or_else(|| Error::new(ErrorKind::Internal, machine.calls().to_string())))
        })
    };
    let of = |result: &Result<()>| result.as_ref().unwrap_err().message().parse::<usize>().expect("a number");
    let calls = calls.iter().map(of).min().unwrap();
    let step = Tier::from_environment().of(7, 2, 1);
    for call in (0..calls).step_by(step) {
        let machine = Machine::new(2, 1, Pace::Any);
        machine.lose(call, ERROR_OUT_OF_MEMORY);
        let results = job(&machine, 2, |context| program(&machine, context));
        assert_eq!(machine.misuse(), [""; 0], "call {call}");
        let name = machine.name(call);
        assert!(results.iter().all(Result::is_err), "call {call}, {name}: {results:?}");
        assert!(results.iter().any(|result| tells(result.as_ref().unwrap_err(), name)), "call {call}, {name}");
    }
}
