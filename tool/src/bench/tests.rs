use gloo_rs::collective::Collective;
use gloo_rs::reduce;
use gloo_rs::types::{DataType, ReduceOp};

use super::pattern::{PERIOD, Pattern, decode};
use super::workload::{Request, Subject, fill, verify};
use crate::tier::Tier;

fn every_reduction() -> impl Iterator<Item = (DataType, ReduceOp)> {
    let pairs = DataType::ALL.iter().flat_map(|dtype| ReduceOp::ALL.iter().map(|op| (*dtype, *op)));
    pairs.filter(|(dtype, op)| op.supports(*dtype))
}

/// Number of elements in which two sequences differ.
fn differences(left: &[u8], right: &[u8], dtype: DataType) -> usize {
    let pairs = left.chunks(dtype.size()).zip(right.chunks(dtype.size()));
    pairs.filter(|(left, right)| decode(left, dtype) != decode(right, dtype)).count()
}

/// The reduction of the contributions by the library's own kernels, in the given order.
fn by_kernels(pattern: &Pattern, dtype: DataType, op: ReduceOp, order: &[usize]) -> Vec<u8> {
    let kernel = reduce::kernel(dtype, op).unwrap();
    let mut result = pattern.contribution(order[0]);
    for &next in &order[1..] {
        let right = pattern.contribution(next);
        // SAFETY: all three have PERIOD elements; the kernel allows the result to be the left operand.
        unsafe { kernel(result.as_mut_ptr(), result.as_ptr(), right.as_ptr(), PERIOD) };
    }
    if op == ReduceOp::Average {
        // SAFETY: the result has PERIOD elements.
        unsafe { reduce::divide(dtype).unwrap()(result.as_mut_ptr(), PERIOD, order.len() as u64) };
    }
    result
}

#[test]
fn expected_values_are_those_that_the_kernels_compute_in_any_order() {
    let numbers = Tier::from_environment().of(&[1, 3][..], &[1, 2, 3, 8, 31], &[1, 2, 3, 8, 31]);
    for (dtype, op) in every_reduction() {
        for &contributions in numbers {
            let pattern = Pattern::new(dtype, Some(op), contributions, 5).unwrap();
            let expected = pattern.reduced(0..contributions);
            let forwards: Vec<_> = (0..contributions).collect();
            let stride: Vec<_> = (0..contributions).map(|i| (i * 7 + 3) % contributions).collect();
            for order in [&forwards, &stride] {
                let got = by_kernels(&pattern, dtype, op, order);
                assert_eq!(differences(&got, &expected, dtype), 0, "{op} of {contributions} {dtype}");
            }
        }
    }
}

#[test]
fn a_contribution_that_is_missing_or_of_another_thread_changes_every_result() {
    let numbers = Tier::from_environment().of(&[3][..], &[2, 3, 8], &[2, 3, 8]);
    for (dtype, op) in every_reduction() {
        for &contributions in numbers {
            let what = format!("{op} of {contributions} {dtype}");
            let pattern = Pattern::new(dtype, Some(op), contributions, 0).unwrap();
            let expected = pattern.reduced(0..contributions);
            for missing in 0..contributions {
                let others: Vec<_> = (0..contributions).filter(|&other| other != missing).collect();
                let got = by_kernels(&pattern, dtype, op, &others);
                assert!(differences(&got, &expected, dtype) > PERIOD / 50, "{what} without {missing}");
            }
            let other = Pattern::new(dtype, Some(op), contributions, 1).unwrap().reduced(0..contributions);
            assert!(differences(&other, &expected, dtype) > PERIOD / 50, "{what} of another thread");
        }
    }
}

#[test]
fn data_is_not_zero_and_differs_by_rank_and_by_position() {
    for &dtype in DataType::ALL {
        let pattern = Pattern::new(dtype, None, 4, 0).unwrap();
        let (first, second) = (pattern.contribution(0), pattern.contribution(1));
        let zeros = vec![0; first.len()];
        assert!(differences(&first, &zeros, dtype) > PERIOD / 3, "{dtype}");
        assert!(differences(&first, &second, dtype) > PERIOD / 3, "{dtype}");
        for shift in [1, 2, 1024, 4096] {
            let bytes = shift * dtype.size();
            let moved = differences(&first[bytes..], &first[..first.len() - bytes], dtype);
            assert!(moved > (PERIOD - shift) / 3, "{dtype} shifted by {shift}");
        }
    }
}

#[test]
fn inexact_reductions_are_refused() {
    assert!(Pattern::new(DataType::Bfloat16, Some(ReduceOp::Sum), 256, 0).is_ok());
    let refused = Pattern::new(DataType::Bfloat16, Some(ReduceOp::Sum), 257, 0).unwrap_err();
    assert!(refused.contains("sum of 257 values of type bfloat16"), "{refused}");
    assert!(Pattern::new(DataType::Int8, Some(ReduceOp::Average), 128, 0).is_err());
    assert!(Pattern::new(DataType::Int8, Some(ReduceOp::Sum), 100_000, 0).is_ok());
    assert!(Pattern::new(DataType::Bfloat16, Some(ReduceOp::Max), 100_000, 0).is_ok());
}

fn request(subject: Subject, ranks: usize) -> Request {
    let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
    Request { subject, dtype, op, ranks, root: 0, buffers: 1, in_place: false }
}

#[test]
fn every_wrong_element_is_found_and_named() {
    let allgather = request(Subject::Collective(Collective::Allgather), 3);
    let work = allgather.workload(1, 3 * 10_000 * 4, 0).unwrap();
    assert_eq!((work.bytes, work.output_len(0)), (120_000, 30_000));
    let mut output = vec![0; 120_000];
    fill(&mut output, &work.after[0], 4);
    verify(&output, &work.after[0], work.dtype).unwrap();
    for element in [0, 8190, 8191, 9_999, 10_000, 20_000, 29_999] {
        let mut wrong = output.clone();
        let bytes = &mut wrong[element * 4..][..4];
        let right = f32::from_ne_bytes(bytes.try_into().unwrap());
        bytes.copy_from_slice(&0.5f32.to_ne_bytes());
        let found = verify(&wrong, &work.after[0], work.dtype).unwrap_err();
        assert_eq!(found, format!("element {element}: expected {right}, got 0.5"));
    }
    // Blocks in the wrong order.
    output.rotate_left(40_000);
    assert!(verify(&output, &work.after[0], work.dtype).unwrap_err().starts_with("element 0: "));
}

#[test]
fn both_sides_agree_on_the_data_between_two_ranks() {
    for ranks in [1, 2, 3, 5] {
        for elements in [1, 7, 50_000] {
            let request = request(Subject::Collective(Collective::Alltoallv), ranks);
            let works: Vec<_> = (0..ranks).map(|rank| request.workload(rank, elements * 4, 0).unwrap()).collect();
            let filled = |pieces: &[_], len: usize| {
                let mut bytes = vec![0; len * 4];
                fill(&mut bytes, pieces, 4);
                bytes
            };
            for (to, receiver) in works.iter().enumerate() {
                let mut received = Vec::new();
                for sender in &works {
                    let counts = sender.shape().unwrap().send_counts.to_vec();
                    let start: usize = counts[..to].iter().sum();
                    let sent = filled(&sender.inputs[0], sender.input_len(0));
                    received.extend_from_slice(&sent[start * 4..][..counts[to] * 4]);
                }
                assert_eq!(received, filled(&receiver.after[0], receiver.output_len(0)), "{ranks} ranks, to {to}");
            }
        }
    }
}

#[test]
fn sizes_are_those_of_nccl_tests_and_never_zero() {
    let bytes = |collective, ranks, bytes| {
        let work = request(Subject::Collective(collective), ranks).workload(0, bytes, 0).unwrap();
        (work.bytes, work.shape().unwrap().count)
    };
    assert_eq!(bytes(Collective::Allreduce, 3, 4096), (4096, 1024));
    assert_eq!(bytes(Collective::Allreduce, 3, 1), (4, 1));
    // Everything that a rank has at the end, or at the beginning, in blocks of one length.
    assert_eq!(bytes(Collective::Allgather, 4, 4096), (4096, 256));
    assert_eq!(bytes(Collective::Alltoall, 3, 4096), (3 * 341 * 4, 341));
    assert_eq!(bytes(Collective::Scatter, 4, 4), (16, 1));
    assert_eq!(bytes(Collective::Gather, 4, 64), (64, 4));
    assert_eq!(bytes(Collective::ReduceScatter, 3, 4096).0, 4096);
    assert_eq!(bytes(Collective::PairwiseExchange, 8, 4096), (3 * 341 * 4, 341));
    assert_eq!(bytes(Collective::Barrier, 4, 4096), (0, 0));
}

#[test]
fn every_shape_is_valid_for_the_library() {
    for &collective in Collective::ALL {
        for ranks in 1..=Tier::from_environment().of(4, 8, 8) {
            for in_place in [false, true] {
                for (root, buffers) in [(0, 1), (ranks - 1, 3)] {
                    let request =
                        Request { root, buffers, in_place, ..request(Subject::Collective(collective), ranks) };
                    if request.check().is_err() {
                        continue;
                    }
                    for rank in 0..ranks {
                        let work = request.workload(rank, 1000, 0).unwrap();
                        let shape = work.shape().unwrap();
                        shape.check().unwrap();
                        let what = format!("{} on rank {rank} of {ranks}, {buffers}, {in_place}", collective.name());
                        for index in 0..shape.inputs {
                            assert_eq!(shape.input_len(index), work.input_len(index), "{what}");
                        }
                        assert_eq!(shape.outputs, work.after.len(), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn invalid_requests_are_refused_before_ranks_start() {
    let refused = |request: Request| request.check().unwrap_err();
    let allreduce = request(Subject::Collective(Collective::Allreduce), 4);
    assert!(allreduce.check().is_ok());
    assert!(refused(Request { root: 4, ..allreduce }).contains("--root is 4, but the number of ranks is 4"));
    assert!(refused(Request { op: ReduceOp::BitXor, ..allreduce }).contains("no xor of float32"));
    let of = |collective, ranks| request(Subject::Collective(collective), ranks);
    assert!(refused(Request { buffers: 2, ..of(Collective::Scan, 4) }).contains("--inputs is 2; scan takes 1"));
    let reduce = Request { buffers: 2, in_place: true, ..of(Collective::Reduce, 4) };
    assert!(refused(reduce).contains("reduce in place takes 1"));
    assert!(refused(Request { in_place: true, ..of(Collective::Alltoallv, 4) }).contains("not work in place"));
    assert!(refused(of(Collective::PairwiseExchange, 6)).contains("power of two"));
    assert!(refused(request(Subject::SendRecv, 1)).contains("at least 2 ranks"));
    assert!(refused(Request { op: ReduceOp::Average, ..of(Collective::Scan, 2) }).contains("scan has no average"));
}
