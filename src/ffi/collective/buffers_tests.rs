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

/// Checks buffers of float32 at these addresses, which are never followed. Whether the call is in place.
fn check_at(shape: Shape<'_>, inputs: &[usize], outputs: &[usize]) -> Result<bool> {
    shape.check()?;
    let inputs: Vec<*const u8> = inputs.iter().map(|at| std::ptr::without_provenance(*at)).collect();
    let outputs: Vec<*mut u8> = outputs.iter().map(|at| std::ptr::without_provenance_mut(*at)).collect();
    check(&shape, DataType::Float32, &inputs, &outputs).map(|checked| checked.in_place)
}

fn refused(result: Result<bool>, part: &str) {
    let error = result.unwrap_err();
    assert!(error.message().contains(part), "{error}");
}

#[test]
fn the_same_pointers_mean_in_place_where_there_is_such_a_form() {
    use Collective::*;
    for collective in [Allreduce, Reduce, Alltoall, Scan, Exscan] {
        assert!(check_at(shape(collective, 1, 1, 1), &[64], &[64]).unwrap(), "{collective:?}");
        assert!(!check_at(shape(collective, 1, 1, 1), &[64], &[256]).unwrap(), "{collective:?}");
    }
    assert!(check_at(shape(Allreduce, 1, 2, 2), &[64, 128], &[64, 128]).unwrap());
    assert!(check_at(shape(Broadcast, 0, 1, 2), &[64], &[64, 128]).unwrap());
    // Another order, another number, other lengths, no such form: overlaps.
    refused(check_at(shape(Allreduce, 1, 2, 2), &[64, 128], &[128, 64]), "overlaps");
    refused(check_at(shape(Allreduce, 1, 1, 2), &[64], &[64, 128]), "overlaps");
    refused(check_at(shape(Broadcast, 0, 1, 2), &[128], &[64, 128]), "overlaps");
    refused(check_at(shape(ReduceScatter, 1, 1, 1), &[64], &[64]), "overlaps");
    refused(check_at(shape(Allgather, 0, 1, 1), &[64], &[64]), "overlaps");
    refused(check_at(shape(Alltoallv, 0, 1, 1), &[64], &[64]), "overlaps");
    refused(check_at(shape(PairwiseExchange, 0, 1, 1), &[64], &[64]), "overlaps");
}

#[test]
fn what_is_wrong_is_named() {
    let one = shape(Collective::Allreduce, 1, 1, 1);
    refused(check_at(one, &[0], &[64]), "input 0 is NULL, but has 8 bytes");
    refused(check_at(one, &[64], &[0]), "output 0 is NULL, but has 8 bytes");
    refused(check_at(one, &[64], &[130]), "output 0 (0x82) is not aligned to the 4 bytes of float32");
    refused(check_at(one, &[64], &[68]), "input 0 (0x40 to 0x48) overlaps output 0 (0x44 to 0x4c)");
    refused(check_at(one, &[64], &[usize::MAX - 3]), "output 0");
    assert!(!check_at(one, &[64], &[72]).unwrap(), "neighbours are fine");
    let huge = Shape { count: usize::MAX / 4 + 2, ..one };
    refused(check_at(huge, &[64], &[128]), "input");
    let shared = shape(Collective::Allreduce, 1, 2, 1);
    assert!(!check_at(shared, &[64, 68], &[128]).unwrap(), "inputs may share memory");
}

#[test]
fn buffers_without_elements_may_be_null() {
    let empty = Shape { count: 0, ..shape(Collective::Allreduce, 1, 1, 2) };
    assert!(!check_at(empty, &[0], &[0, 3]).unwrap());
    let outputs = [std::ptr::null_mut(), std::ptr::without_provenance_mut(3)];
    let here = &raw const empty;
    assert!(check(&empty, DataType::Float32, &[here.cast()], &outputs).unwrap().has_null);
    assert!(check(&empty, DataType::Float32, &[std::ptr::null()], &[outputs[1], outputs[1]]).unwrap().has_null);
    assert!(!check(&empty, DataType::Float32, &[here.cast()], &[outputs[1], outputs[1]]).unwrap().has_null);
    let (ins, outs) = without_null(&[std::ptr::null(), here.cast()], &outputs);
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
