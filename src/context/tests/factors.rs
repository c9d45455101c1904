//! Factors of inputs: a call with one has the bits of the call without on inputs that were multiplied before.

use super::*;
use crate::collective::{Collective, Shape};
use crate::reduce::Factor;
use crate::testing::reductions::{Random, reference, specials};
use crate::types::{DataType, ReduceOp};
use Collective::*;

const FLOATS: [DataType; 4] = [DataType::Float16, DataType::Bfloat16, DataType::Float32, DataType::Float64];
const COUNT: usize = 300;

/// The input buffers, and the output buffers.
type Buffers = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// Makes the call on `buffers`, of which the outputs are the inputs if there are no others: by a request that is
/// started so many times, or a plain call if that is 0.
fn call(
    context: &Arc<Context>,
    (collective, algorithm, dtype): (Collective, Option<&str>, DataType),
    factor: Option<Factor>,
    (inputs, outputs): &mut Buffers,
    starts: usize,
) -> Result<()> {
    let counts = vec![COUNT / context.size(); context.size()];
    let shape = Shape {
        inputs: inputs.len(),
        outputs: outputs.len(),
        recv_counts: if collective == ReduceScatter { &counts } else { &[] },
        root: 1,
        ..Shape::new(collective, context.rank(), context.size(), COUNT)
    };
    let call = Call {
        inputs: &inputs.iter().map(|input| input.as_ptr()).collect::<Vec<_>>(),
        outputs: &outputs.iter_mut().map(|output| output.as_mut_ptr()).collect::<Vec<_>>(),
        algorithm,
        factor,
        ..Call::new(shape, dtype)
    };
    if starts == 0 {
        // SAFETY: the vectors are at least as long as the shape says, and live until the call returns.
        return unsafe { context.run(&call) };
    }
    // SAFETY: as above.
    let request = unsafe { context.request(&call) }?;
    (0..starts).try_for_each(|_| request.start().and_then(|()| request.wait()))
}

#[test]
fn a_factor_multiplies_each_input_before_it_is_combined() {
    let contexts = group(3);
    run(&contexts, |context| {
        let rank = context.rank();
        let mut random = Random(7 + rank as u64);
        for (round, dtype) in FLOATS.into_iter().cycle().take(8).enumerate() {
            let specials = specials(dtype);
            for (collective, inputs, outputs) in
                [(Allreduce, 2, 2), (Allreduce, 0, 2), (Reduce, 1, 1), (Reduce, 0, 1), (ReduceScatter, 3, 1)]
                    .into_iter()
                    .chain([(ReduceScatter, 0, 1), (Scan, 1, 1), (Scan, 0, 1), (Exscan, 1, 1), (Exscan, 0, 1)])
            {
                // A second start in place would multiply the result of the first.
                let starts = if round < FLOATS.len() { 0 } else { 1 + usize::from(inputs > 0) };
                let algorithms = collective.algorithms().iter();
                let algorithms = algorithms.filter(|a| !a.uses.needs_shared_memory()).map(|a| Some(a.name));
                for algorithm in algorithms.chain([None]) {
                    let mut elements = |n| (0..n).map(|_| random.elements(dtype, &specials, COUNT)).collect();
                    let mut own: Buffers = (elements(inputs), elements(outputs));
                    let by = random.elements(dtype, &specials, 1);
                    let multiplied = |buffers: &[Vec<u8>]| -> Vec<Vec<u8>> {
                        let product = |value: &[u8]| reference(dtype, ReduceOp::Product, value, &by);
                        let one = |buffer: &Vec<u8>| buffer.chunks(dtype.size()).flat_map(product).collect();
                        // Rank 2 has no factor.
                        buffers.iter().map(|buffer| if rank == 2 { buffer.clone() } else { one(buffer) }).collect()
                    };
                    let contributions = if inputs > 0 { &own.0 } else { &own.1 };
                    let mut expected: Buffers = (multiplied(contributions), own.1.clone());
                    let what = (collective, algorithm, dtype);
                    // Without a factor, in place is another call, which some algorithms make in another order.
                    let plain = call(context, what, None, &mut expected, 0);
                    let before = own.clone();
                    let mut element = [0; 8];
                    element[..by.len()].copy_from_slice(&by);
                    let factor = Factor::new(dtype, element).filter(|_| rank != 2);
                    if rank == 2 && inputs == 0 {
                        // This rank's buffer has its input, too, as those of the other ranks, which become inputs.
                        own.0 = own.1.clone();
                    }
                    let result = call(context, what, factor, &mut own, starts);
                    assert_eq!(result.is_ok(), plain.is_ok(), "{what:?}: {result:?}, {plain:?}");
                    if result.is_err() {
                        continue;
                    }
                    let len = if collective == ReduceScatter { COUNT / 3 } else { COUNT } * dtype.size();
                    let has_result = match collective {
                        Reduce => rank == 1,
                        Exscan => rank > 0,
                        _ => true,
                    };
                    if has_result {
                        for (own, expected) in own.1.iter().zip(&expected.1) {
                            assert!(own[..len] == expected[..len], "{what:?}, {inputs} inputs, rank {rank}");
                        }
                    } else {
                        assert_eq!(own.1, before.1, "{what:?}: there is no result");
                    }
                    if inputs > 0 {
                        assert_eq!(own.0, before.0, "{what:?}: inputs are only read");
                    }
                }
            }
        }
    });
}

#[test]
fn a_call_that_is_refused_has_multiplied_nothing() {
    let contexts = group(2);
    run(&contexts, |context| {
        let mut element = [0; 8];
        element[..4].copy_from_slice(&3f32.to_ne_bytes());
        let factor = Factor::new(DataType::Float32, element);
        let mut buffers = (Vec::new(), vec![2f32.to_ne_bytes().repeat(COUNT)]);
        let what = (Allreduce, Some("no such algorithm"), DataType::Float32);
        assert!(call(context, what, factor, &mut buffers, 0).is_err());
        assert_eq!(buffers.1[0], 2f32.to_ne_bytes().repeat(COUNT));
        let what = (Allreduce, None, DataType::Float32);
        call(context, what, factor, &mut buffers, 0).unwrap();
        assert_eq!(buffers.1[0], 12f32.to_ne_bytes().repeat(COUNT));
    });
}
