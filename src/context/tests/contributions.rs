//! Results of a single contribution, and of different numbers of contributions on each rank.

use super::*;
use crate::collective::{Collective, Shape};
use crate::types::{DataType, ReduceOp};
use Collective::*;

/// Input buffers, and output buffers.
type Buffers = Vec<Vec<u8>>;

/// Calls `collective` on `context` with buffers as long as those of `inputs`; in place if `outputs` is given. Returns
/// the outputs.
fn call(
    context: &Context,
    collective: Collective,
    algorithm: Option<&str>,
    (dtype, reduction): (DataType, Reduction),
    inputs: &[Vec<u8>],
    mut outputs: Buffers,
) -> Result<Buffers> {
    let bytes = inputs.first().unwrap_or_else(|| &outputs[0]).len();
    let (size, count) = (context.size(), bytes / dtype.size());
    let counts = vec![count / size; size];
    let shape = Shape {
        inputs: inputs.len(),
        outputs: outputs.len(),
        average: matches!(reduction, Reduction::Op(ReduceOp::Average)),
        recv_counts: if collective == ReduceScatter { &counts } else { &[] },
        ..Shape::new(collective, context.rank(), size, count)
    };
    let call = Call {
        inputs: &inputs.iter().map(|input| input.as_ptr()).collect::<Vec<_>>(),
        outputs: &outputs.iter_mut().map(|output| output.as_mut_ptr()).collect::<Vec<_>>(),
        algorithm,
        reduction,
        ..Call::new(shape, dtype)
    };
    // SAFETY: the vectors are at least as long as the shape says, and live until the call returns.
    unsafe { context.run(&call) }.map(|()| outputs)
}

/// Elements with the bits `parts`: the inputs, and the expected results of `op` on a single contribution. Each is used
/// as the real and as the imaginary part of complex numbers.
fn elements(dtype: DataType, op: ReduceOp) -> (Vec<u8>, Vec<u8>) {
    use DataType::*;
    // A positive quiet NaN without payload, a negative signalling NaN with payload, then numbers.
    let (width, parts): (usize, Vec<u64>) = match dtype {
        Float16 => (2, vec![0x7E00, 0x7C01, 0xFE55, 0x3C00, 0x8000, 0x7C00, 1]),
        Bfloat16 => (2, vec![0x7FC0, 0x7F81, 0xFFD5, 0x3F80, 0x8000, 0xFF80, 1]),
        Float32 | Complex64 => {
            (4, vec![0x7FC0_0000, 0x7F80_0001, 0xFFC1_2345, 0x3F80_0000, 0x8000_0000, 0x7F80_0000, 1])
        }
        Float64 | Complex128 => {
            let nan = 0x7FF8 << 48;
            (8, vec![nan, (0x7FF0 << 48) + 1, (0xFFF8 << 48) + 77, 0x3FF0 << 48, 1 << 63, 0x7FF0 << 48, 1])
        }
        Bool => (1, vec![1, 2, 255, 128, 0]),
        _ => (dtype.size(), vec![0, 1, 2, 0x80, 0xFF]),
    };
    let arithmetic = matches!(op, ReduceOp::Sum | ReduceOp::Product | ReduceOp::Average);
    let is_float = parts.len() == 7;
    let result = |index: usize| match dtype {
        Bool => u64::from(parts[index] != 0),
        _ if is_float && arithmetic && index < 3 => parts[0],
        _ => parts[index],
    };
    let indices: Vec<usize> = (0..parts.len()).flat_map(|i| [i, i, (i + 3) % parts.len(), i]).collect();
    let bytes = |part: &dyn Fn(usize) -> u64| {
        indices.iter().flat_map(|&i| part(i).to_le_bytes()[..width].to_vec()).collect::<Vec<u8>>()
    };
    (bytes(&|index| parts[index]), bytes(&result))
}

fn supported() -> impl Iterator<Item = (DataType, ReduceOp)> {
    let pairs = DataType::ALL.iter().flat_map(|dtype| ReduceOp::ALL.iter().map(|op| (*dtype, *op)));
    pairs.filter(|(dtype, op)| op.supports(*dtype))
}

#[test]
fn a_lone_contribution_gives_the_bits_that_combining_gives() {
    let contexts = group(1);
    for (dtype, op) in supported() {
        let (own, expected) = elements(dtype, op);
        let by = (dtype, Reduction::Op(op));
        for collective in [Allreduce, Reduce, ReduceScatter, Scan] {
            let what = format!("{} of {dtype} by {op}", collective.name());
            if !collective.reduces_by(op) {
                continue;
            }
            let call =
                |algorithm, inputs, outputs| call(&contexts[0], collective, algorithm, by, inputs, outputs).unwrap();
            let algorithms = collective.algorithms().iter();
            let algorithms = algorithms.filter(|a| !a.uses.needs_shared_memory()).map(|a| Some(a.name));
            for algorithm in algorithms.chain([None]) {
                let outputs = if collective == Allreduce { 3 } else { 1 };
                // Twice, since the second call is prepared.
                for _ in 0..2 {
                    let results = call(algorithm, std::slice::from_ref(&own), vec![vec![9; own.len()]; outputs]);
                    assert_eq!(results, vec![expected.clone(); outputs], "{what}, {algorithm:?}");
                    let results = call(algorithm, &[], vec![own.clone()]);
                    assert_eq!(results, [expected.as_slice()], "{what} in place, {algorithm:?}");
                }
            }
        }
    }
}

#[test]
fn the_first_ranks_of_a_scan_have_what_combining_gives() {
    let contexts = group(3);
    run(&contexts, |context| {
        for (dtype, op) in supported().filter(|(_, op)| *op != ReduceOp::Average) {
            let (own, expected) = elements(dtype, op);
            for (collective, first) in [(Scan, 0), (Exscan, 1)] {
                for in_place in [false, true] {
                    let (inputs, outputs) =
                        if in_place { (vec![], own.clone()) } else { (vec![own.clone()], vec![9; own.len()]) };
                    let results =
                        call(context, collective, None, (dtype, Reduction::Op(op)), &inputs, vec![outputs]).unwrap();
                    if context.rank() == first {
                        assert_eq!(results, [expected.as_slice()], "{} of {dtype} by {op}", collective.name());
                    }
                }
            }
        }
    });
}

/// Rank 1 contributes the identity of the operation.
#[test]
fn one_rank_gets_the_bits_that_two_get() {
    let (one, two) = (group(1), group(2));
    let of_two = std::sync::Mutex::new(Vec::new());
    let by = |dtype| (dtype, Reduction::Op(ReduceOp::Sum));
    run(&two, |context| {
        for &dtype in DataType::ALL {
            let (mut own, _) = elements(dtype, ReduceOp::Sum);
            if context.rank() == 1 {
                // -0.0, in each part.
                let width = match dtype {
                    DataType::Complex64 | DataType::Complex128 => dtype.size() / 2,
                    _ => dtype.size(),
                };
                let is_float = elements(dtype, ReduceOp::Sum).0.len() / width == 28;
                let sign = if is_float { 0x80 } else { 0 };
                own.chunks_exact_mut(width).for_each(|part| {
                    part.fill(0);
                    part[width - 1] = sign;
                });
            }
            let output = vec![9; own.len()];
            let result = call(context, Allreduce, None, by(dtype), &[own], vec![output]).unwrap();
            if context.rank() == 0 {
                of_two.lock().unwrap().push(result);
            }
        }
    });
    for (dtype, result) in DataType::ALL.iter().zip(of_two.into_inner().unwrap()) {
        let (own, _) = elements(*dtype, ReduceOp::Sum);
        let output = vec![9; own.len()];
        assert_eq!(call(&one[0], Allreduce, None, by(*dtype), &[own], vec![output]).unwrap(), result, "{dtype}");
    }
}

unsafe extern "C" fn never(
    _: *mut std::ffi::c_void,
    _: *const std::ffi::c_void,
    _: *const std::ffi::c_void,
    _: usize,
    _: *mut std::ffi::c_void,
) -> i32 {
    1
}

#[test]
fn a_function_of_the_callers_is_not_asked_about_a_lone_contribution() {
    let reduction = Reduction::User { function: never, user: std::ptr::null_mut() };
    for dtype in [DataType::Bool, DataType::Float32] {
        let (own, _) = elements(dtype, ReduceOp::Sum);
        let output = vec![9; own.len()];
        let result =
            call(&group(1)[0], Allreduce, None, (dtype, reduction), std::slice::from_ref(&own), vec![output]).unwrap();
        assert_eq!(result, [own]);
    }
}

const SIZE: usize = 4;

/// A call with 8 float32 and `inputs` buffers of ones on this rank; or in place.
fn ones(context: &Context, collective: Collective, algorithm: &str, op: ReduceOp, inputs: usize) -> Result<Vec<f32>> {
    let ones: Vec<u8> = [1f32; 8].iter().flat_map(|one| one.to_le_bytes()).collect();
    let outputs = usize::from(collective != Reduce || context.rank() == 0);
    let by = (DataType::Float32, Reduction::Op(op));
    let results = call(context, collective, Some(algorithm), by, &vec![ones; inputs], vec![vec![0; 32]; outputs])?;
    let read = |four: &[u8]| f32::from_le_bytes(four.try_into().unwrap());
    Ok(results.iter().flat_map(|result| result.chunks_exact(4).map(read)).collect())
}

/// All algorithms of the collectives with averages.
fn cases() -> impl Iterator<Item = (Collective, &'static str)> {
    let all = [Allreduce, Reduce, ReduceScatter].into_iter();
    let messages = |c: Collective| c.algorithms().iter().filter(|algorithm| !algorithm.uses.needs_shared_memory());
    let named = all.flat_map(move |c| messages(c).map(move |algorithm| (c, algorithm.name)));
    named.chain([(Allreduce, "auto"), (Reduce, "auto"), (ReduceScatter, "auto")]).filter(|(_, name)| *name != "local")
}

/// Elements in a rank's output in [`ones`].
fn gets(context: &Context, collective: Collective) -> usize {
    match collective {
        ReduceScatter => 8 / SIZE,
        Reduce if context.rank() > 0 => 0,
        _ => 8,
    }
}

#[test]
fn sums_may_have_different_numbers_of_contributions_and_averages_may_not() {
    for (collective, algorithm) in cases() {
        let contexts = group(SIZE);
        run(&contexts, |context| {
            let (rank, gets) = (context.rank(), gets(context, collective));
            let what = format!("{} {algorithm} on rank {rank}", collective.name());
            let sums = ones(context, collective, algorithm, ReduceOp::Sum, rank + 1).unwrap();
            assert!(sums[..gets].iter().all(|sum| *sum == 10.0), "{what}: {sums:?}");
            let average = ones(context, collective, algorithm, ReduceOp::Average, 2).unwrap();
            assert!(average[..gets].iter().all(|average| *average == 1.0), "{what}: {average:?}");
        });
        run(&contexts, |context| {
            let (rank, gets) = (context.rank(), gets(context, collective));
            let what = format!("{} {algorithm} on rank {rank}", collective.name());
            match ones(context, collective, algorithm, ReduceOp::Average, if rank == 2 { 3 } else { 2 }) {
                Ok(_) => assert_eq!(gets, 0, "{what}: an average of different numbers of contributions"),
                Err(error) => {
                    // This rank may have failed before its call. Closing notifies ranks that wait for it.
                    context.close();
                    assert!(matches!(error.kind(), ErrorKind::Mismatch | ErrorKind::ConnectionLost), "{what}: {error}");
                }
            }
        });
        let reasons: Vec<_> = contexts.iter().filter_map(|context| context.broken()).collect();
        let tells = |error: &Error| {
            error.kind() == ErrorKind::Mismatch && error.message().contains("or number of averaged inputs differ")
        };
        assert!(reasons.iter().any(tells), "{} {algorithm}: {reasons:#?}", collective.name());
    }
}

#[test]
fn check_calls_names_both_numbers_of_averaged_inputs() {
    let options = ContextOptions { check_calls: Some(true), timeout: Duration::from_secs(20), ..Default::default() };
    let contexts = group_with(SIZE, &options);
    run(&contexts, |context| {
        for (collective, algorithm) in cases() {
            let inputs = if context.rank() == 2 { 3 } else { 2 };
            let error = ones(context, collective, algorithm, ReduceOp::Average, inputs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            let (odd, usual) = error.message().split_once("; ranks 0, 1, 3 call ").unwrap();
            assert!(odd.contains("rank 2 calls ") && odd.contains(" by average, "), "{error}");
            assert!(odd.contains(", 3 inputs, ") && usual.contains(", 2 inputs, "), "{error}");
            let sums = ones(context, collective, algorithm, ReduceOp::Sum, inputs).unwrap();
            assert!(sums[..gets(context, collective)].iter().all(|sum| *sum == 9.0), "{sums:?}");
        }
    });
}
