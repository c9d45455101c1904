use proptest::prelude::*;

use super::*;

fn shape(collective: Collective, rank: usize, inputs: usize, outputs: usize) -> Shape<'static> {
    Shape {
        send_counts: &[2; 4],
        recv_counts: &[2; 4],
        inputs,
        outputs,
        destinations: 1,
        ..Shape::new(collective, rank, 4, 2)
    }
}

/// Checks buffers of float32 at these addresses, which are never followed, as `run` does. In which form the call is.
fn check_at(shape: Shape<'_>, inputs: &[usize], outputs: &[usize]) -> Result<Form> {
    let inputs: Vec<*const u8> = inputs.iter().map(|at| std::ptr::without_provenance(*at)).collect();
    let outputs: Vec<*mut u8> = outputs.iter().map(|at| std::ptr::without_provenance_mut(*at)).collect();
    let mut call = Call { inputs: &inputs, outputs: &outputs, ..Call::new(shape, DataType::Float32) };
    let form = form(&call);
    if form == Form::InPlace {
        (call.inputs, call.shape.inputs) = (&[], 0);
    }
    call.shape.check()?;
    check(&call, form).map(|_| form)
}

fn refused(result: Result<Form>, part: &str) {
    let error = result.unwrap_err();
    assert!(error.message().contains(part), "{error}");
}

#[test]
fn the_same_pointers_mean_in_place_where_there_is_such_a_form() {
    use Collective::*;
    for collective in [Allreduce, Reduce, Alltoall, Scan, Exscan] {
        assert_eq!(check_at(shape(collective, 1, 1, 1), &[64], &[64]).unwrap(), Form::InPlace, "{collective:?}");
        assert_eq!(check_at(shape(collective, 1, 1, 1), &[64], &[256]).unwrap(), Form::OutOfPlace, "{collective:?}");
    }
    assert_eq!(check_at(shape(Allreduce, 1, 2, 2), &[64, 128], &[64, 128]).unwrap(), Form::InPlace);
    assert_eq!(check_at(shape(Broadcast, 0, 1, 2), &[64], &[64, 128]).unwrap(), Form::InPlace);
    // Another order, another number, other lengths, no such form: overlaps.
    refused(check_at(shape(Allreduce, 1, 2, 2), &[64, 128], &[128, 64]), "overlaps");
    refused(check_at(shape(Allreduce, 1, 1, 2), &[64], &[64, 128]), "overlaps");
    refused(check_at(shape(Broadcast, 0, 1, 2), &[128], &[64, 128]), "overlaps");
    refused(check_at(shape(ReduceScatter, 1, 1, 1), &[64], &[64]), "overlaps");
    refused(check_at(shape(Allgather, 1, 1, 1), &[64], &[64]), "overlaps");
    refused(check_at(shape(Alltoallv, 0, 1, 1), &[64], &[64]), "overlaps");
    refused(check_at(shape(PairwiseExchange, 0, 1, 1), &[64], &[64]), "overlaps");
}

/// Blocks are of two floats; each collective is tried on its root where it has one.
#[test]
fn an_input_or_an_output_may_be_the_rank_s_own_block_of_the_other() {
    use Collective::*;
    for rank in 0..4 {
        let (own, next) = (64 + 8 * rank, 64 + 8 * ((rank + 1) % 4));
        for collective in [Allgather, Allgatherv, Gather, Gatherv] {
            let shape = Shape { root: rank, ..shape(collective, rank, 1, 1) };
            assert_eq!(check_at(shape, &[own], &[64]).unwrap(), Form::InPlace, "{collective:?} {rank}");
            refused(check_at(shape, &[next], &[64]), "overlaps");
            refused(check_at(shape, &[own + 4], &[64]), "overlaps");
        }
        for collective in [ReduceScatter, Scatter, Scatterv] {
            let shape = Shape { root: rank, ..shape(collective, rank, 1, 1) };
            assert_eq!(check_at(shape, &[64], &[own]).unwrap(), Form::OwnBlock, "{collective:?} {rank}");
            refused(check_at(shape, &[64], &[next]), "overlaps");
            refused(check_at(shape, &[64], &[own + 4]), "overlaps");
            refused(check_at(shape, &[66], &[own + 2]), "input 0 (0x42) is not aligned");
        }
    }
    let uneven = Shape { recv_counts: &[3, 0, 1, 2], ..shape(Allgatherv, 3, 1, 1) };
    assert_eq!(check_at(uneven, &[64 + 16], &[64]).unwrap(), Form::InPlace);
    refused(check_at(uneven, &[64 + 8], &[64]), "overlaps");
    let uneven = Shape { recv_counts: &[3, 0, 1, 2], ..shape(ReduceScatter, 3, 1, 1) };
    assert_eq!(check_at(uneven, &[64], &[64 + 16]).unwrap(), Form::OwnBlock);
    // The own block may only be that of a single input.
    refused(check_at(shape(ReduceScatter, 0, 2, 1), &[64, 128], &[64]), "overlaps");
    refused(check_at(shape(Allgather, 0, 2, 1), &[64, 128], &[64]), "overlaps");
    // Numbers that overflow name no block.
    let huge = Shape { count: usize::MAX / 2, ..shape(Allgather, 2, 1, 1) };
    assert!(check_at(huge, &[64], &[64]).is_err());
}

#[test]
fn what_is_wrong_is_named() {
    let one = shape(Collective::Allreduce, 1, 1, 1);
    refused(check_at(one, &[0], &[64]), "input 0 is NULL, but its length is 8 bytes");
    refused(check_at(one, &[64], &[0]), "output 0 is NULL, but its length is 8 bytes");
    refused(check_at(one, &[64], &[130]), "output 0 (0x82) is not aligned to the 4 bytes of float32");
    refused(check_at(one, &[64], &[68]), "input 0 (0x40 to 0x48) overlaps output 0 (0x44 to 0x4c)");
    refused(check_at(one, &[64], &[usize::MAX - 3]), "output 0");
    assert_eq!(check_at(one, &[64], &[72]).unwrap(), Form::OutOfPlace, "neighbours are fine");
    let huge = Shape { count: usize::MAX / 4 + 2, ..one };
    refused(check_at(huge, &[64], &[128]), "input");
    let shared = shape(Collective::Allreduce, 1, 2, 1);
    assert_eq!(check_at(shared, &[64, 68], &[128]).unwrap(), Form::OutOfPlace, "inputs may share memory");
}

#[test]
fn buffers_without_elements_may_be_null() {
    let empty = Shape { count: 0, ..shape(Collective::Allreduce, 1, 1, 2) };
    assert_eq!(check_at(empty, &[0], &[0, 3]).unwrap(), Form::OutOfPlace);
    let outputs = [std::ptr::null_mut(), std::ptr::without_provenance_mut(3)];
    let here = &raw const empty;
    let has_null = |input: *const u8, outputs: &[*mut u8]| {
        let call = Call { inputs: &[input], outputs, ..Call::new(empty, DataType::Float32) };
        check(&call, Form::OutOfPlace).unwrap()
    };
    assert!(has_null(here.cast(), &outputs));
    assert!(has_null(std::ptr::null(), &[outputs[1], outputs[1]]));
    assert!(!has_null(here.cast(), &[outputs[1], outputs[1]]));
    let (ins, outs) = without_null(&[std::ptr::null(), here.cast()], &outputs).unwrap();
    assert!(!ins[0].is_null() && ins[0].cast::<u128>().is_aligned());
    assert!(!outs[0].is_null() && outs[0].cast::<u128>().is_aligned());
    assert_eq!((ins[1], outs[1]), (here.cast(), outputs[1]));
}

proptest! {
    #[test]
    fn overlaps_are_found(ranges in prop::collection::vec((0usize..40, 0usize..6, any::<bool>()), 0..8)) {
        let many = ranges.iter().enumerate();
        let many = many.map(|(index, &(start, len, output))| Range { start, end: start + len, output, index });
        let found = check_many(many.collect());
        let overlaps = ranges.iter().enumerate().any(|(i, a)| ranges[..i].iter().any(|b| {
            a.0.max(b.0) < (a.0 + a.1).min(b.0 + b.1) && (a.2 || b.2)
        }));
        prop_assert_eq!(found.is_err(), overlaps, "{:?}", ranges);
    }
}
