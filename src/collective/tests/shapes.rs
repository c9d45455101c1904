//! The shapes that [`Shape::check`] rejects, and its error messages.

use super::*;
use crate::error::ErrorKind;

/// A valid call, on the root of four ranks.
fn fine(collective: Collective) -> Shape<'static> {
    let buffers = usize::from(collective != Collective::Barrier);
    Shape {
        send_counts: &[1, 2, 3, 4],
        recv_counts: &[1, 2, 3, 4],
        inputs: buffers,
        outputs: buffers,
        destinations: 2,
        ..shape(collective, 4, 5)
    }
}

#[track_caller]
fn refused(shape: Shape<'_>, why: &str) {
    let error = shape.check().expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let begin = format!("{} on rank {}: ", shape.collective.name(), shape.rank);
    assert!(error.message().starts_with(&begin), "{error}");
    assert!(error.message().contains(why), "{error}: does not say {why:?}");
}

#[test]
fn ranks() {
    for &collective in Collective::ALL {
        let fine = fine(collective);
        fine.check().unwrap();
        refused(Shape { size: 0, ..fine }, "size is 0; it must be 1 to 4294967295");
        refused(Shape { size: usize::MAX, ..fine }, "size is 18446744073709551615");
        refused(Shape { rank: 4, ..fine }, "rank is 4, but size is 4");
        refused(Shape { root: 7, ..fine }, "root is 7, but size is 4");
    }
}

#[test]
fn numbers_of_buffers() {
    use Collective::*;
    let on = |collective, rank, inputs, outputs| Shape { rank, inputs, outputs, ..fine(collective) };
    for rank in [0, 1] {
        refused(on(Allreduce, rank, 1, 0), "outputs is 0; it must be at least 1");
        for collective in [ReduceScatter, Allgather, Allgatherv, Alltoall, Alltoallv, PairwiseExchange, Scan, Exscan] {
            refused(on(collective, rank, 1, 0), "outputs is 0; it must be 1");
            refused(on(collective, rank, 1, 2), "outputs is 2; it must be 1");
        }
        for collective in [Allgatherv, Alltoall, Scan, Exscan] {
            refused(on(collective, rank, 2, 1), "inputs is 2; it must be 0 to 1");
        }
        for collective in [Alltoallv, PairwiseExchange] {
            refused(on(collective, rank, 0, 1), "inputs is 0; it must be 1");
        }
        refused(on(Barrier, rank, 1, 0), "inputs is 1; it must be 0");
        refused(on(Barrier, rank, 0, 1), "outputs is 1; it must be 0");
    }
    refused(on(Reduce, 0, 1, 0), "outputs is 0; it must be 1");
    refused(on(Reduce, 1, 0, 0), "outputs is 0; it must be 1");
    refused(on(Reduce, 1, 1, 2), "outputs is 2; it must be 0 to 1");
    on(Reduce, 1, 1, 1).check().unwrap();
    on(Reduce, 1, 3, 0).check().unwrap();
    refused(on(Broadcast, 0, 2, 1), "inputs is 2; it must be 0 to 1");
    refused(on(Broadcast, 0, 0, 0), "outputs is 0; it must be at least 1");
    refused(on(Broadcast, 1, 1, 1), "inputs is 1; it must be 0");
    refused(on(Broadcast, 1, 0, 0), "outputs is 0; it must be at least 1");
    on(Broadcast, 0, 1, 0).check().unwrap();
    for collective in [Gather, Gatherv] {
        refused(on(collective, 0, 1, 0), "outputs is 0; it must be 1");
        refused(on(collective, 1, 0, 0), "inputs is 0; it must be 1");
        refused(on(collective, 1, 1, 1), "outputs is 1; it must be 0");
    }
    for collective in [Scatter, Scatterv] {
        refused(on(collective, 0, 1, 0), "outputs is 0; it must be 1");
        refused(on(collective, 1, 1, 1), "inputs is 1; it must be 0");
    }
    refused(on(Scatter, 0, 3, 1), "inputs is 3; it must be 0 to 1 or size");
    refused(on(Scatterv, 0, 4, 1), "inputs is 4; it must be 0 to 1");
    on(Scatter, 0, 4, 1).check().unwrap();
}

#[test]
fn counts_for_each_rank() {
    use Collective::*;
    for collective in [ReduceScatter, Allgatherv, Alltoallv, Gatherv] {
        refused(Shape { recv_counts: &[1; 3], ..fine(collective) }, "recv_counts has 3 entries, but size is 4");
    }
    for collective in [Alltoallv, Scatterv] {
        refused(Shape { send_counts: &[1; 5], ..fine(collective) }, "send_counts has 5 entries, but size is 4");
    }
    // Only the root has the counts.
    Shape { rank: 1, recv_counts: &[], outputs: 0, ..fine(Gatherv) }.check().unwrap();
    Shape { rank: 1, send_counts: &[], inputs: 0, ..fine(Scatterv) }.check().unwrap();
    let unlike = Shape { rank: 2, recv_counts: &[1; 4], ..fine(Alltoallv) };
    refused(unlike, "send_counts[2] is 3 but recv_counts[2] is 1");
}

/// Counts of other ranks, where an algorithm needs them.
#[test]
fn counts_that_others_have() {
    use Collective::*;
    let call = |collective, rank, count, counts| {
        let (gathers, is_root) = (collective == Gatherv, rank == 0);
        let (inputs, outputs) = (usize::from(gathers || is_root), usize::from(!gathers || is_root));
        Shape { rank, count, counts, inputs, outputs, ..fine(collective) }
    };
    let own: &[usize] = &[1, 2, 3, 4];
    for (collective, name) in [(Gatherv, "recv_counts"), (Scatterv, "send_counts")] {
        call(collective, 0, 5, own).check().unwrap();
        call(collective, 2, 3, own).check().unwrap();
        refused(call(collective, 2, 3, &own[..3]), "counts has 3 entries; it must have 4");
        refused(call(collective, 0, 5, &[1, 2, 3, 5]), &format!("counts and {name} differ"));
    }
    refused(call(Gatherv, 2, 7, own), "this rank sends 7 elements, but the root, rank 0, expects 3 from it");
    refused(call(Scatterv, 2, 7, own), "this rank expects 7 elements, but the root, rank 0, sends it 3");
    refused(call(Gatherv, 1, 2, &[usize::MAX, 2, 1, 1]), "the sum of counts is more than 9223372036854775807");
    let all = [own, own, own, own].concat();
    let alltoallv = Shape { rank: 2, recv_counts: &[3; 4], ..fine(Alltoallv) };
    Shape { counts: &all, ..alltoallv }.check().unwrap();
    refused(Shape { counts: own, ..alltoallv }, "counts has 4 entries; it must have 16");
    refused(Shape { counts: &[3; 16], ..alltoallv }, "this rank's row of counts and send_counts differ");
    let wrong = Shape { counts: &all, recv_counts: &[3, 9, 3, 3], ..alltoallv };
    refused(wrong, "this rank expects 9 elements from rank 1, which sends 3");
    for (collective, name) in [(Gatherv, "binomial"), (Scatterv, "binomial"), (Alltoallv, "bruck")] {
        let algorithm = collective.algorithm(name).unwrap();
        let error = (algorithm.generate)(&fine(collective)).unwrap_err();
        assert!(error.message().contains("needs the counts of other ranks"), "{error}");
    }
}

#[test]
fn groups_dims_and_links() {
    for &collective in Collective::ALL {
        let fine = fine(collective);
        let placed = Shape { groups: &[7, 0, 7, 0], dims: &[2, 1, 2], links: &[1; 16], ..fine };
        placed.check().unwrap();
        refused(Shape { groups: &[0; 3], ..fine }, "groups has 3 entries, but size is 4");
        refused(Shape { groups: &[0; 5], ..fine }, "groups has 5 entries, but size is 4");
        refused(Shape { dims: &[4, 0], ..fine }, "dims[1] is 0");
        refused(Shape { dims: &[2, 3], ..fine }, "dims is 2 x 3, that is 6 ranks, but size is 4");
        refused(Shape { dims: &[1], ..fine }, "dims is 1, that is 1 ranks, but size is 4");
        let wrapping: &[usize] = &[usize::MAX / 2 + 1, 2, 4];
        refused(Shape { dims: wrapping, ..fine }, "that is 18446744073709551615 ranks");
        refused(Shape { links: &[1; 15], ..fine }, "links has 15 entries, not size x size, and size is 4");
    }
}

#[test]
fn lengths_that_overflow() {
    use Collective::*;
    let huge = isize::MAX as usize + 1;
    for collective in
        [Allreduce, Reduce, Broadcast, Allgather, Gather, Scatter, Alltoall, PairwiseExchange, Scan, Exscan]
    {
        refused(Shape { count: huge, ..fine(collective) }, "more than 9223372036854775807 elements");
    }
    for collective in [Allgather, Gather, Scatter, Alltoall] {
        refused(Shape { count: usize::MAX / 4 + 2, ..fine(collective) }, "more than 9223372036854775807 elements");
    }
    refused(Shape { count: usize::MAX / 2 + 2, ..fine(PairwiseExchange) }, "more than");
    let wrapping: &[usize] = &[usize::MAX, 2, 0, 0];
    for collective in [ReduceScatter, Allgatherv, Gatherv, Scatterv, Alltoallv] {
        refused(Shape { send_counts: wrapping, recv_counts: wrapping, ..fine(collective) }, "more than");
    }
}

#[test]
fn what_only_some_collectives_have() {
    use Collective::*;
    for &collective in Collective::ALL {
        let call = Shape { average: true, ..fine(collective) };
        match collective {
            Allreduce | Reduce | ReduceScatter => call.check().unwrap(),
            _ => refused(call, "averages are not supported"),
        }
    }
    refused(
        Shape { average: true, inputs: 1 << 31, ..fine(Allreduce) },
        "cannot average 4 ranks times 2147483648 buffers",
    );
    refused(Shape { size: 6, ..fine(PairwiseExchange) }, "size is 6; it must be a power of two");
    refused(Shape { destinations: 3, ..fine(PairwiseExchange) }, "destinations is 3; 4 ranks have at most 2");
}

#[test]
fn what_only_some_algorithms_can() {
    let bcube = Collective::Allreduce.algorithm("bcube").unwrap();
    let error = (bcube.generate)(&Shape { base: 1, ..fine(Collective::Allreduce) }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("base is 1; it must be at least 2"), "{error}");
    let error = Collective::Allreduce.algorithm("bitonic").map(|a| a.name).unwrap_err();
    assert!(error.message().contains("auto, ring_segmented, ring_chunked, halving_doubling"), "{error}");
}

#[test]
fn lengths_of_buffers() {
    use Collective::*;
    let lengths = |s: Shape<'_>| (s.input_len(0), s.output_len(0));
    for collective in [Allreduce, Reduce, Broadcast, Scan, Exscan] {
        assert_eq!(lengths(fine(collective)), (5, 5));
    }
    assert_eq!(lengths(fine(ReduceScatter)), (10, 1));
    assert_eq!(lengths(Shape { inputs: 0, ..fine(ReduceScatter) }), (0, 10));
    assert_eq!(lengths(fine(Allgather)), (5, 20));
    assert_eq!(lengths(Shape { inputs: 3, ..fine(Allgather) }), (5, 60));
    assert_eq!(lengths(Shape { inputs: 0, ..fine(Allgather) }), (0, 20));
    assert_eq!(lengths(Shape { rank: 2, ..fine(Allgatherv) }), (3, 10));
    assert_eq!(lengths(fine(Gather)), (5, 20));
    assert_eq!(lengths(Shape { rank: 1, outputs: 0, ..fine(Gather) }), (5, 0));
    assert_eq!(lengths(Shape { rank: 2, root: 2, ..fine(Gatherv) }), (3, 10));
    assert_eq!(lengths(Shape { rank: 1, outputs: 0, ..fine(Gatherv) }), (5, 0));
    assert_eq!(lengths(fine(Scatter)), (20, 5));
    assert_eq!(lengths(Shape { inputs: 4, ..fine(Scatter) }), (5, 5));
    assert_eq!(lengths(Shape { inputs: 0, ..fine(Scatter) }), (0, 20));
    assert_eq!(lengths(Shape { inputs: 0, rank: 1, ..fine(Scatter) }), (0, 5));
    assert_eq!(lengths(Shape { rank: 2, root: 2, ..fine(Scatterv) }), (10, 3));
    assert_eq!(lengths(Shape { inputs: 0, ..fine(Scatterv) }), (0, 10));
    assert_eq!(lengths(Shape { inputs: 0, rank: 1, ..fine(Scatterv) }), (0, 5));
    assert_eq!(lengths(fine(Alltoall)), (20, 20));
    assert_eq!(lengths(Shape { recv_counts: &[1, 0, 0, 0], ..fine(Alltoallv) }), (10, 1));
    assert_eq!(lengths(fine(PairwiseExchange)), (10, 10));
    assert_eq!(lengths(fine(Barrier)), (0, 0));
    assert_eq!(fine(Allreduce).input_len(1), 0, "there is no such input");
}
