//! Reproducible calls: the same contributions give the same bits, however many ranks and buffers they come from.

use super::*;
use crate::collective::Order;
use crate::reduce;
use crate::testing::reductions::{Random, specials};
use crate::testing::tier::Tier;
use crate::types::ReduceOp;
use Collective::*;

const CONTRIBUTIONS: usize = 8;
/// Each rank has as many of them in a reduce_scatter.
const COUNT: usize = 8 * 37;
const FLOATS: [DataType; 4] = [DataType::Float32, DataType::Float64, DataType::Complex64, DataType::Complex128];

/// What is contributed: numbers of many magnitudes, and infinities, NaN, zeros of both signs and subnormal numbers.
fn contributions(dtype: DataType) -> Vec<Vec<u8>> {
    let (mut random, specials) = (Random(dtype as u64 + 1), specials(dtype));
    let mut one = |_| {
        let mut elements = random.elements(dtype, &specials, COUNT);
        let is_double = matches!(dtype, DataType::Float64 | DataType::Complex128);
        let part = if is_double { 8 } else { 4 };
        for (index, bytes) in elements.chunks_mut(part).enumerate() {
            // Most are numbers that a sum of some of them rounds.
            if index % 16 != 0 {
                let value = (random.next() as i32 as f64) * [1.0, 1e-9, 1e7, 3e-20][random.below(4)];
                match is_double {
                    true => bytes.copy_from_slice(&value.to_ne_bytes()),
                    false => bytes.copy_from_slice(&(value as f32).to_ne_bytes()),
                }
            }
        }
        elements
    };
    (0..CONTRIBUTIONS).map(|_| one(())).collect()
}

/// The exact sum of `inputs`, or their average.
fn expected(dtype: DataType, op: ReduceOp, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut result = vec![0; inputs[0].len()];
    let pointers: Vec<_> = inputs.iter().map(|input| input.as_ptr()).collect();
    // SAFETY: all have as many elements.
    unsafe {
        reduce::exact(dtype).unwrap()(result.as_mut_ptr(), &pointers, COUNT);
        if op == ReduceOp::Average {
            reduce::divide(dtype).unwrap()(result.as_mut_ptr(), COUNT, inputs.len() as u64);
        }
    }
    result
}

struct Case<'a> {
    collective: Collective,
    algorithm: Option<&'a str>,
    dtype: DataType,
    op: ReduceOp,
    in_place: bool,
    /// Starts a request, in place of a plain call.
    starts: bool,
}

/// Makes the call with this rank's `inputs`. Returns its result, if this rank has one, and where it begins.
fn call(context: &Arc<Context>, case: &Case<'_>, inputs: &[Vec<u8>]) -> Result<Option<(usize, Vec<u8>)>> {
    let (rank, size, root) = (context.rank(), context.size(), context.size() / 2);
    let &Case { collective, algorithm, dtype, op, in_place, starts } = case;
    let (counts, mut buffers) = (vec![COUNT / size; size], inputs.to_vec());
    let mut output = vec![0; inputs[0].len()];
    let outputs: Vec<*mut u8> = match in_place {
        true => buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect(),
        false => vec![output.as_mut_ptr()],
    };
    let block = COUNT / size * dtype.size();
    let mut sources: Vec<_> = inputs.iter().filter(|_| !in_place).map(|input| input.as_ptr()).collect();
    // Some calls have a buffer for each block.
    let blocks = collective == ReduceScatter && starts && sources.len() == 1;
    let contributed = sources.len();
    if blocks {
        sources = (0..size).map(|n| inputs[0][n * block..].as_ptr()).collect();
    }
    let shape = Shape {
        inputs: contributed,
        blocks,
        outputs: outputs.len(),
        average: op == ReduceOp::Average,
        recv_counts: if collective == ReduceScatter { &counts } else { &[] },
        root,
        order: Order::Reproducible,
        ..Shape::new(collective, rank, size, COUNT)
    };
    let call = Call {
        inputs: &sources,
        outputs: &outputs,
        algorithm,
        reduction: Reduction::Op(op),
        // Several segments, whose lengths depend on nothing else.
        max_segment_bytes: Some(512),
        ..Call::new(shape, dtype)
    };
    // SAFETY: the vectors are at least as long as the shape says, and live until the call returns.
    unsafe {
        match starts {
            false => context.run(&call)?,
            true => {
                let request = context.request(&call)?;
                request.start().and_then(|()| request.wait())?;
            }
        }
    }
    for (n, buffer) in buffers.iter().enumerate().skip(usize::from(in_place)) {
        // Each output has the result.
        assert!(if in_place { *buffer == buffers[0] } else { *buffer == inputs[n] });
    }
    let mut result = if in_place { buffers.swap_remove(0) } else { output };
    Ok(match collective {
        ReduceScatter => {
            result.truncate(block);
            Some((rank * block, result))
        }
        Reduce if rank != root => None,
        _ => Some((0, result)),
    })
}

#[test]
fn the_same_contributions_give_the_same_bits() {
    let tier = Tier::from_environment();
    let types = if tier == Tier::Check { &FLOATS[..1] } else { &FLOATS[..] };
    let all: Vec<_> = types.iter().map(|dtype| contributions(*dtype)).collect();
    for (ranks, shared) in [(1, false), (2, true), (4, false), (8, true), (2, false), (4, true), (8, false)] {
        if tier == Tier::Check && (ranks, shared) == (8, false) {
            continue;
        }
        let options = ContextOptions { timeout: Duration::from_secs(20), ..Default::default() };
        let contexts = agreement::on_this_host(ranks, shared, options);
        let mine = CONTRIBUTIONS / ranks;
        run(&contexts, |context| {
            for (&dtype, all) in types.iter().zip(&all) {
                for (op, collective, in_place) in [ReduceOp::Sum, ReduceOp::Average]
                    .into_iter()
                    .flat_map(|op| [Allreduce, Reduce, ReduceScatter].map(|collective| (op, collective)))
                    .flat_map(|(op, collective)| [false, true].map(|in_place| (op, collective, in_place)))
                {
                    if in_place && mine > 1 && collective != Allreduce {
                        continue; // there is one output
                    }
                    let expected = expected(dtype, op, all);
                    let is_eligible = |a: &&crate::collective::Algorithm| {
                        collective.folds(a)
                            && (a.name == "local") <= (ranks == 1)
                            && (!a.uses.needs_shared_memory() || shared && mine == 1 || ranks == 1)
                    };
                    let algorithms = collective.algorithms().iter().filter(is_eligible).map(|a| Some(a.name));
                    for (n, algorithm) in algorithms.chain([None]).enumerate() {
                        let case = Case { collective, algorithm, dtype, op, in_place, starts: n % 2 == 1 };
                        let inputs = &all[context.rank() * mine..][..mine];
                        let result = call(context, &case, inputs).unwrap();
                        if let Some((at, result)) = result {
                            assert!(
                                result == expected[at..at + result.len()],
                                "{collective:?} {algorithm:?} {dtype} {op}, {ranks} ranks, shared: {shared}, {in_place}"
                            );
                        }
                    }
                }
            }
        });
    }
}

/// A GPU would round the sum of its inputs.
#[test]
fn gpus_do_not_add_inputs_of_reproducible_calls() {
    let adds = |own, usual| {
        let shape = Shape { inputs: 2, order: own, ..Shape::new(Allreduce, 0, 2, COUNT) };
        [DataType::Float32, DataType::Int32].map(|dtype| Call::new(shape, dtype).kernel(usual).is_some())
    };
    assert_eq!(adds(Order::Any, Order::Any), [true, true]);
    assert_eq!(adds(Order::Any, Order::Ranks), [true, true]);
    assert_eq!(adds(Order::Any, Order::Reproducible), [false, true]);
    assert_eq!(adds(Order::Reproducible, Order::Any), [false, true]);
}

#[test]
fn what_is_not_reproducible_is_refused() {
    let contexts = agreement::on_this_host(3, true, ContextOptions::default());
    run(&contexts, |context| {
        let usual = Case {
            collective: Allreduce,
            algorithm: None,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            in_place: false,
            starts: false,
        };
        let refused = |case: Case<'_>, inputs: usize, why: &str| {
            let inputs = vec![vec![0; COUNT * case.dtype.size()]; inputs];
            let error = call(context, &case, &inputs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().contains(why), "{error}");
        };
        for dtype in [DataType::Float16, DataType::Bfloat16] {
            refused(Case { dtype, ..usual }, 1, "order is \"reproducible\", but not the sum of ");
            refused(Case { dtype, op: ReduceOp::Average, ..usual }, 1, "but not the average of ");
        }
        refused(Case { op: ReduceOp::Product, ..usual }, 1, "but not the product of float32; reproducible are");
        refused(Case { algorithm: Some("ring"), ..usual }, 1, "allreduce ring is not reproducible; these are: bcube");
        refused(
            Case { algorithm: Some("shared_slices"), ..usual },
            2,
            "allreduce shared_slices is not reproducible with several inputs on a rank; these are: bcube, reduce_broadcast",
        );
        // Their results do not depend on the order.
        for (dtype, op) in [
            (DataType::Float16, ReduceOp::Max),
            (DataType::Float32, ReduceOp::Min),
            (DataType::Int32, ReduceOp::Product),
            (DataType::Bool, ReduceOp::Sum),
        ] {
            for algorithm in [None, Some("ring")] {
                let inputs = [vec![0; COUNT * dtype.size()]];
                call(context, &Case { dtype, op, algorithm, ..usual }, &inputs).unwrap();
            }
        }
    });
}

#[test]
fn ranks_with_different_numbers_of_inputs_are_a_mismatch() {
    let options = ContextOptions { timeout: Duration::from_secs(5), ..Default::default() };
    let contexts = agreement::on_this_host(3, false, options);
    run(&contexts, |context| {
        let case = Case {
            collective: Allreduce,
            algorithm: None,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            in_place: false,
            starts: false,
        };
        let error = call(context, &case, &vec![vec![0; 4 * COUNT]; 1 + context.rank() / 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    });
}
