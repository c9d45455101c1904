//! Steps, messages and bytes are those of the literature. S is `COUNT * size` elements here, so it is divisible by the
//! number of ranks.

use super::*;
use crate::schedule::verify::Traffic;

pub(super) const COUNT: usize = 4;

fn log2(size: usize) -> usize {
    size.ilog2() as usize
}

/// `ceil(log2(size))`
pub(super) fn height(size: usize) -> usize {
    log2(size.next_power_of_two())
}

fn allreduce(name: &str, size: usize, base: usize, in_place: bool) -> Report {
    let call = Shape { base, inputs: usize::from(!in_place), ..shape(Collective::Allreduce, size, COUNT * size) };
    prove(&all_ranks(call, |_| ()), name)
}

pub(super) fn all_send(report: &Report, messages: usize, elements: usize) {
    for traffic in &report.traffic {
        assert_eq!((traffic.messages, traffic.elements), (messages, elements), "{} ranks", report.traffic.len());
    }
}

#[test]
fn allreduce_rings() {
    for size in ranks() {
        for in_place in [false, true] {
            let report = allreduce("ring_segmented", size, 2, in_place);
            assert_eq!(report.steps, 2 * (size - 1));
            all_send(&report, 2 * (size - 1), 2 * COUNT * (size - 1));
            assert!(report.traffic.iter().all(|t| t.scratch == 0));
            let report = allreduce("ring_chunked", size, 2, in_place);
            assert_eq!(report.steps, 2 * (size - 1));
            all_send(&report, 4 * (size - 1), 2 * COUNT * (size - 1));
            assert!(size == 1 || report.traffic.iter().all(|t| t.scratch == COUNT));
        }
    }
}

#[test]
fn allreduce_halving_doubling() {
    for size in ranks() {
        let report = allreduce("halving_doubling", size, 2, true);
        if size.is_power_of_two() {
            assert_eq!(report.steps, 2 * log2(size));
            all_send(&report, 2 * log2(size), 2 * COUNT * (size - 1));
        }
        let blocks = size.count_ones() as usize;
        assert!(report.steps <= 2 * log2(size) + 2 * (blocks - 1), "{size} ranks: {} steps", report.steps);
        // The transfers between blocks are at most the whole buffer in each direction.
        assert!(report.traffic.iter().all(|t| t.elements <= 4 * COUNT * size && t.scratch == 0), "{size} ranks");
    }
}

#[test]
fn allreduce_recursive_doubling() {
    for size in ranks() {
        let report = allreduce("recursive_doubling", size, 2, false);
        if size.is_power_of_two() {
            assert_eq!(report.steps, log2(size));
            all_send(&report, log2(size), log2(size) * COUNT * size);
        } else {
            assert_eq!(report.steps, log2(size) + 2);
        }
        assert!(report.traffic.iter().all(|t| t.scratch <= COUNT * size));
    }
}

#[test]
fn allreduce_bcube() {
    for base in [2usize, 3, 4, 8] {
        for digits in 0..=6 {
            let size = base.pow(digits);
            if size <= max_ranks() {
                let report = allreduce("bcube", size, base, true);
                let digits = digits as usize;
                // A rank reduces the data of its group one part after the other.
                assert_eq!(report.steps, digits * (base - 1) + digits);
                all_send(&report, 2 * digits * (base - 1), 2 * COUNT * (size - 1));
            }
        }
    }
    for size in ranks() {
        all_send(
            &allreduce("bcube", size, 4, false),
            allreduce("bcube", size, 4, true).traffic[0].messages,
            2 * COUNT * (size - 1),
        );
    }
}

#[test]
fn allreduce_ring() {
    for size in ranks() {
        let report = allreduce("ring", size, 2, true);
        assert_eq!(report.steps, size - 1);
        all_send(&report, size - 1, COUNT * size * (size - 1));
        assert!(report.in_order);
        let buffers = report.traffic.iter().map(|t| t.scratch / (COUNT * size)).max().unwrap();
        assert!(buffers <= 2 * height(size) + 2, "{size} ranks: {buffers} buffers");
    }
}

#[test]
fn allreduce_tree() {
    for size in ranks() {
        let report = allreduce("tree", size, 2, true);
        // The root reduces one message after the other; in the broadcast all its messages are sent at once.
        assert!(report.steps <= 2 * height(size), "{size} ranks: {} steps", report.steps);
        assert!(!size.is_power_of_two() || report.steps == 2 * height(size));
        for (rank, traffic) in report.traffic.iter().enumerate() {
            let children = if rank == 0 { height(size) } else { rank.trailing_zeros() as usize };
            assert!(traffic.messages <= children + usize::from(rank > 0));
            assert_eq!((traffic.elements, traffic.scratch), (traffic.messages * COUNT * size, 0));
        }
        assert_eq!(report.traffic[0].messages, height(size));
        assert_eq!(report.traffic.iter().map(|t| t.messages).sum::<usize>(), 2 * (size - 1));
    }
}

#[test]
fn allreduce_reduce_broadcast() {
    for size in ranks() {
        let report = allreduce("reduce_broadcast", size, 2, false);
        let steps = if size > 1 { 2 } else { 0 };
        assert_eq!(report.steps, steps, "all receptions at once: none waits for another");
        let whole = COUNT * size;
        assert_eq!((report.traffic[0].elements, report.traffic[0].scratch), ((size - 1) * whole, (size - 1) * whole));
        assert!(report.traffic[1..].iter().all(|t| (t.messages, t.elements, t.scratch) == (1, whole, 0)));
    }
}

/// In the tree of each half every rank sends once up and receives once: `2 S` per rank on average, and no rank sends
/// more.
#[test]
fn double_binary_trees() {
    for size in ranks().skip(1) {
        let (whole, height) = (2 * COUNT * size, height(size));
        let call = Shape { inputs: 0, ..shape(Collective::Allreduce, size, whole) };
        let report = prove(&all_ranks(call, |_| ()), double_binary_tree::NAME);
        assert!(report.steps <= 3 * height, "{size} ranks: {} steps", report.steps);
        assert!(report.traffic.iter().all(|t| t.elements <= 2 * whole && t.messages <= 4 && t.scratch == 0));
        assert_eq!(report.traffic.iter().map(|t| t.elements).sum::<usize>(), 2 * (size - 1) * whole);
        for root in roots(size) {
            let call = Shape { root, inputs: 0, ..shape(Collective::Reduce, size, whole) };
            let report = prove(&all_ranks(call, |_| ()), double_binary_tree::NAME);
            assert!(report.steps <= 2 * height, "{size} ranks: {} steps", report.steps);
            for (rank, traffic) in report.traffic.iter().enumerate() {
                let sent = if rank == root { 0 } else { whole };
                assert!(
                    traffic.elements == sent && traffic.messages == sent / COUNT / size && traffic.scratch <= whole
                );
            }
            let call = Shape { root, inputs: 0, ..shape(Collective::Broadcast, size, whole) };
            let report = prove(&all_ranks(call, |_| ()), double_binary_tree::NAME);
            assert!(report.steps <= height, "{size} ranks: {} steps", report.steps);
            assert!(report.traffic.iter().all(|t| t.elements <= whole && t.scratch == 0));
            assert_eq!(report.traffic.iter().map(|t| t.elements).sum::<usize>(), (size - 1) * whole);
        }
    }
}

#[test]
fn reduce() {
    for size in ranks() {
        let root = size / 3;
        let call = Shape { root, ..shape(Collective::Reduce, size, COUNT * size) };
        let shapes = all_ranks(call, |s| s.outputs = usize::from(s.rank == root));
        let ring = prove(&shapes, "ring");
        let binomial = prove(&shapes, "binomial");
        let flat = prove(&shapes, "flat");
        assert_eq!(flat.steps, usize::from(size > 1), "all at once");
        assert_eq!(ring.steps, if size == 1 { 0 } else { size });
        assert_eq!(binomial.steps, height(size));
        for rank in 0..size {
            let Traffic { elements, scratch, .. } = ring.traffic[rank];
            assert_eq!(elements, COUNT * (size - 1) + if rank == root { 0 } else { COUNT });
            assert_eq!(scratch, if rank == root { 0 } else { 2 * COUNT }, "two chunks");
            let Traffic { messages, elements, .. } = binomial.traffic[rank];
            assert_eq!(messages, usize::from(rank != root));
            assert_eq!(elements, messages * COUNT * size);
            let sent = if rank == root { 0 } else { COUNT * size };
            assert_eq!(flat.traffic[rank].elements, sent);
            assert_eq!(flat.traffic[rank].scratch, (COUNT * size - sent) * (size - 1));
        }
    }
}

#[test]
fn broadcast() {
    for size in ranks() {
        let root = size / 3;
        let shapes = all_ranks(Shape { root, inputs: 0, ..shape(Collective::Broadcast, size, COUNT) }, |_| ());
        let report = prove(&shapes, "one_to_all");
        assert_eq!(report.steps, usize::from(size > 1));
        assert_eq!(report.traffic[root].elements, (size - 1) * COUNT);
        let report = prove(&shapes, "binomial");
        assert_eq!(report.traffic[root].messages, height(size));
        // The longest chain of dependent messages; the root's own sends do not depend on each other.
        assert!(report.steps <= height(size));
        assert!(!size.is_power_of_two() || report.steps == height(size));
        assert_eq!(report.traffic.iter().map(|t| t.messages).sum::<usize>(), size - 1);
        let report = prove(&shapes, "pipelined_chain");
        assert_eq!(report.steps, size - 1);
        let last = (root + size - 1) % size;
        assert!(report.traffic.iter().enumerate().all(|(rank, t)| t.elements == if rank == last { 0 } else { COUNT }));
    }
}

#[test]
fn broadcast_scatter_allgather() {
    for size in ranks().skip(1) {
        let root = size / 3;
        let call = Shape { root, inputs: 0, ..shape(Collective::Broadcast, size, COUNT * size) };
        let report = prove(&all_ranks(call, |_| ()), "scatter_allgather");
        // The root's block starts around the ring at once, but the last leaf's block must reach it first.
        assert!((size - 1..=height(size) + size - 1).contains(&report.steps), "{size} ranks: {}", report.steps);
        assert_eq!(report.traffic[root].elements, 2 * COUNT * (size - 1));
        assert!(report.traffic.iter().all(|t| t.elements <= 2 * COUNT * (size - 1) && t.scratch == 0));
    }
}

#[test]
fn barrier_tokens() {
    for size in ranks() {
        let shapes = all_ranks(Shape { inputs: 0, outputs: 0, ..shape(Collective::Barrier, size, 0) }, |_| ());
        all_send(&prove(&shapes, "dissemination"), height(size), height(size));
        all_send(&prove(&shapes, "all_to_all"), size - 1, size - 1);
        let report = prove(&shapes, "all_to_one");
        assert_eq!(report.traffic[0].messages, size - 1);
        assert!(report.traffic[1..].iter().all(|t| t.messages == 1));
    }
}

/// The largest number of ranks in these tests: hundreds.
#[test]
fn hundreds_of_ranks() {
    for size in [127, 200, 256].into_iter().take(Tier::from_environment().of(1, 3, 3)) {
        for name in ["ring_segmented", "halving_doubling", "recursive_doubling"] {
            prove(&all_ranks(shape(Collective::Allreduce, size, size + 1), |_| ()), name);
        }
    }
}
