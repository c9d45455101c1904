//! Allreduce algorithms that use groups, grids or links.

use super::*;
use crate::schedule::verify::Traffic;

const COUNT: usize = 4;

/// All kinds of groups: none, one, one per rank, equal and uneven, consecutive and interleaved.
pub(super) fn groupings(size: usize) -> Vec<Vec<u32>> {
    let number = |of: fn(usize, usize) -> usize| (0..size).map(|rank| of(rank, size) as u32).collect::<Vec<u32>>();
    vec![
        vec![],
        number(|_, _| 7),
        number(|rank, size| size - rank),
        number(|rank, size| 2 * rank / size),
        number(|rank, _| rank % 2),
        number(|rank, _| rank / 3),
        number(|rank, _| rank * 5 % 7 % 4),
        number(|rank, _| usize::from(rank > 0)),
        number(|rank, _| rank.isqrt()),
    ]
}

/// All ordered factorisations of `size`.
fn products(size: usize) -> Vec<Vec<usize>> {
    if size == 1 {
        return vec![vec![]];
    }
    let first = (2..=size).filter(|factor| size.is_multiple_of(*factor));
    first.flat_map(|first| products(size / first).into_iter().map(move |rest| [&[first], &rest[..]].concat())).collect()
}

/// All grids with two dimensions.
fn rectangles(size: usize) -> Vec<Vec<usize>> {
    (1..=size).filter(|n| size.is_multiple_of(*n)).map(|n| vec![n, size / n]).collect()
}

/// Bandwidths of all kinds of graphs.
fn graphs(size: usize) -> Vec<Vec<u32>> {
    let number = |of: fn(usize, usize, usize) -> u32| {
        let pairs = (0..size * size).map(|pair| (pair / size, pair % size));
        pairs.map(|(a, b)| of(a.max(b), a.min(b), size)).collect::<Vec<u32>>()
    };
    let mut one_way = number(|_, _, _| 5);
    one_way[size - 1] = 1;
    vec![
        vec![],
        number(|_, _, _| 1),
        number(|a, b, size| u32::from(a - b == 1 || a - b == size - 1)),
        number(|a, b, _| u32::from(a - b == 1) * 3),
        number(|_, b, _| u32::from(b == 0)),
        number(|a, b, size| if (2 * a < size) == (2 * b < size) { 100 } else { 7 }),
        number(|a, b, _| (a * 7 + b * 13) as u32 % 11 + 1),
        one_way,
    ]
}

/// Verifies `name` for calls with each of `topologies`, applied by `set`, with various counts and numbers of buffers.
fn prove_topologies<T>(name: &str, size: usize, topologies: &[T], set: impl for<'a> Fn(Shape<'a>, &'a T) -> Shape<'a>) {
    in_topologies(size, topologies, set, |shapes, _| drop(prove(shapes, name)));
}

/// Calls `check` with the shapes of all ranks of calls with each of `topologies`, applied by `set`, with various counts
/// and numbers of buffers, and with the topology.
pub(super) fn in_topologies<T>(
    size: usize,
    topologies: &[T],
    set: impl for<'a> Fn(Shape<'a>, &'a T) -> Shape<'a>,
    check: impl Fn(&[Shape<'_>], &T),
) {
    for (n, topology) in topologies.iter().enumerate() {
        for (m, count) in counts(size).into_iter().enumerate() {
            let forms = [(1, 1), (0, 1), (2, 1), (3, 2), (1, 3), (0, 2), (0, 3)];
            // All forms for few ranks; for more, different forms with each count; for many, one count per topology.
            let some = match size {
                1..=5 => 0..forms.len(),
                6..=12 => (n + m) % forms.len()..(n + m) % forms.len() + 1,
                _ if m == (n + size) % 6 => (n + size) % forms.len()..(n + size) % forms.len() + 1,
                _ => 0..0,
            };
            for (inputs, outputs) in forms[some].iter().copied() {
                let average = (n + m + inputs).is_multiple_of(2);
                let call = Shape { inputs, outputs, average, ..shape(Collective::Allreduce, size, count) };
                check(&all_ranks(set(call, topology), |_| ()), topology);
            }
        }
    }
}

#[test]
fn allreduce_in_groups() {
    for name in ["hierarchical", "hierarchical_direct", "torus_2d", "torus_nd", "mesh_2d"] {
        for size in ranks() {
            prove_topologies(name, size, &groupings(size), |call, groups| Shape { groups, ..call });
        }
    }
}

#[test]
fn allreduce_in_grids() {
    for size in ranks() {
        prove_topologies("torus_2d", size, &rectangles(size), |call, dims| Shape { dims, ..call });
        prove_topologies("mesh_2d", size, &rectangles(size), |call, dims| Shape { dims, ..call });
        prove_topologies("torus_nd", size, &products(size), |call, dims| Shape { dims, ..call });
    }
}

#[test]
fn allreduce_on_links() {
    for size in ranks() {
        let graphs = graphs(size);
        let some = if size <= 12 { &graphs[..] } else { &graphs[size % graphs.len()..][..1] };
        prove_topologies("spanning_trees", size, some, |call, links| Shape { links, ..call });
    }
}

fn report(name: &str, call: Shape<'_>) -> Report {
    prove(&all_ranks(Shape { inputs: 0, ..call }, |_| ()), name)
}

#[test]
fn hierarchical_sends_only_between_leaders() {
    // Three groups of four, two and three ranks; the leader is the first of each.
    let groups = &[4, 0, 4, 4, 1, 0, 1, 4, 1];
    let call = Shape { groups, ..shape(Collective::Allreduce, 9, 9 * COUNT) };
    let Report { steps, traffic, .. } = report("hierarchical", call);
    // The leader of four ranks reduces its members' data one after the other.
    assert_eq!(steps, 3 + 2 * (3 - 1) + 1);
    let count = 9 * COUNT;
    for (rank, members) in [(0, 3), (1, 1), (4, 2)] {
        let Traffic { messages, elements, scratch } = traffic[rank];
        assert_eq!((messages, elements, scratch), (members + 4, members * count + 2 * count * 2 / 3, 0));
    }
    for rank in [2, 3, 5, 6, 7, 8] {
        assert_eq!((traffic[rank].messages, traffic[rank].elements), (1, count));
    }
    for size in ranks() {
        // Members send concurrently: one message up, the ring, one message down.
        let pairs: Vec<u32> = (0..size as u32).map(|rank| rank / 2).collect();
        let call = Shape { groups: &pairs, ..shape(Collective::Allreduce, size, COUNT * size) };
        let leaders = size.div_ceil(2);
        assert_eq!(report("hierarchical", call).steps, 2 * (leaders - 1) + if size > 1 { 2 } else { 0 });
    }
}

#[test]
fn one_message_is_on_the_path_between_leaders_that_send_to_all_others() {
    // The groups are those of the test above.
    let groups = &[4, 0, 4, 4, 1, 0, 1, 4, 1];
    let count = 9 * COUNT;
    let call = Shape { groups, ..shape(Collective::Allreduce, 9, count) };
    let Report { steps, traffic, .. } = report("hierarchical_direct", call);
    assert_eq!(steps, 3 + 1 + 1);
    for (rank, members) in [(0, 3), (1, 1), (4, 2)] {
        let Traffic { messages, elements, scratch } = traffic[rank];
        assert_eq!((messages, elements, scratch), (members + 2, (members + 2) * count, 3 * count));
    }
    for rank in [2, 3, 5, 6, 7, 8] {
        let Traffic { messages, elements, scratch } = traffic[rank];
        assert_eq!((messages, elements, scratch), (1, count, 0));
    }
    for size in ranks() {
        let pairs: Vec<u32> = (0..size as u32).map(|rank| rank / 2).collect();
        let call = Shape { groups: &pairs, ..shape(Collective::Allreduce, size, COUNT * size) };
        let Report { steps, traffic, .. } = report("hierarchical_direct", call);
        assert_eq!(steps, [0, 0, 2, 2].get(size).copied().unwrap_or(3), "{size} ranks");
        let leaders = size.div_ceil(2);
        let sent = traffic.iter().map(|traffic| traffic.elements).sum::<usize>();
        assert_eq!(sent, COUNT * size * (2 * (size - leaders) + leaders * (leaders - 1)), "{size} ranks");
    }
}

#[test]
fn tori_send_as_little_as_rings_in_fewer_steps() {
    for size in ranks() {
        for dims in products(size) {
            let call = Shape { dims: &dims, ..shape(Collective::Allreduce, size, COUNT * size) };
            for name in ["torus_nd", "torus_2d"].into_iter().take(if dims.len() == 2 { 2 } else { 1 }) {
                let Report { steps, traffic, .. } = report(name, call);
                let expected = dims.iter().map(|extent| 2 * (extent - 1)).sum::<usize>();
                assert_eq!(steps, expected);
                for Traffic { messages, elements, scratch } in traffic {
                    assert_eq!((messages, elements, scratch), (expected, 2 * COUNT * (size - 1), 0));
                }
            }
        }
    }
}

#[test]
fn torus_2d_of_hosts_crosses_them_with_a_part_each() {
    // Four hosts of three ranks each, assigned round-robin.
    let groups: Vec<u32> = (0..12).map(|rank| rank % 4).collect();
    let call = Shape { groups: &groups, inputs: 0, ..shape(Collective::Allreduce, 12, 12 * COUNT) };
    let algorithm = Collective::Allreduce.algorithm("torus_2d").unwrap();
    for shape in all_ranks(call, |_| ()) {
        let schedule = (algorithm.generate)(&shape).unwrap();
        let sent = |crosses: bool| -> usize {
            let sends = schedule
                .steps
                .iter()
                .filter(|s| s.action.destination().is_some_and(|to| (to % 4 != shape.rank % 4) == crosses));
            sends.map(|s| s.action.elements()).sum()
        };
        assert_eq!(sent(false), 2 * 12 * COUNT * 2 / 3, "2S(n-1)/n in the row");
        assert_eq!(sent(true), 2 * (12 * COUNT / 3) * 3 / 4, "2(S/n)(m-1)/m in the column");
    }
}

#[test]
fn uneven_torus_sends_as_little() {
    for size in 2..=Tier::from_environment().of(14, 24, 24) {
        for groups in groupings(size) {
            let call = Shape { groups: &groups, ..shape(Collective::Allreduce, size, 60 * size) };
            for name in ["torus_2d", "torus_nd"] {
                let traffic = report(name, call).traffic;
                let sent = traffic.iter().map(|t| t.elements).sum::<usize>();
                assert_eq!(sent, 2 * 60 * size * (size - 1), "{name}, {groups:?}");
            }
        }
    }
}

#[test]
fn mesh_2d_talks_to_neighbours_only() {
    let algorithm = Collective::Allreduce.algorithm("mesh_2d").unwrap();
    for size in ranks() {
        for dims in rectangles(size) {
            let (n, m) = (dims[0], dims[1]);
            let call = Shape { dims: &dims, inputs: 0, ..shape(Collective::Allreduce, size, COUNT * size) };
            let shapes = all_ranks(call, |_| ());
            assert_eq!(prove(&shapes, "mesh_2d").steps, 2 * (n + m - 2));
            for shape in &shapes {
                let mut sent = std::collections::BTreeMap::<usize, usize>::new();
                for step in (algorithm.generate)(shape).unwrap().steps {
                    if let Some(to) = step.action.destination() {
                        *sent.entry(to).or_default() += step.action.elements();
                    }
                }
                for (to, elements) in sent {
                    let (x, y) = ((shape.rank % n).abs_diff(to % n), (shape.rank / n).abs_diff(to / n));
                    assert_eq!(x + y, 1, "rank {} sends to {to}", shape.rank);
                    // A line carries four quarters, two in each direction, up and down.
                    let max = if n == 1 || m == 1 { COUNT * size } else { 3 * COUNT * size / 4 + 2 };
                    assert!(elements <= max, "rank {} sends {elements} to {to}", shape.rank);
                }
            }
        }
    }
}

#[test]
fn spanning_trees_of_links_that_are_alike_are_stars() {
    // With given links and more ranks, one star fewer is close enough to the best rate.
    let alike = |size: usize| if (3..20).contains(&size) { vec![3; size * size] } else { vec![] };
    for size in ranks() {
        for links in [vec![], alike(size)] {
            let call = Shape { links: &links, ..shape(Collective::Allreduce, size, COUNT * size) };
            for Traffic { messages, elements, scratch } in report("spanning_trees", call).traffic {
                assert_eq!((messages, elements, scratch), (2 * (size - 1), 2 * COUNT * (size - 1), 0), "{size} ranks");
            }
        }
    }
}

#[test]
fn spanning_trees_avoid_a_slow_link() {
    let links: Vec<u32> = (0..64).map(|pair| if [1, 8].contains(&pair) { 1 } else { 100 }).collect();
    let call = Shape { links: &links, inputs: 0, ..shape(Collective::Allreduce, 8, 7000) };
    let algorithm = Collective::Allreduce.algorithm("spanning_trees").unwrap();
    let schedule = (algorithm.generate)(&call).unwrap();
    let over: usize =
        schedule.steps.iter().filter(|s| s.action.destination() == Some(1)).map(|s| s.action.elements()).sum();
    assert!(over <= 7000 / 100, "{over}");
    let error = (algorithm.generate)(&Shape { links: &[0; 64], ..call }).unwrap_err();
    assert!(error.message().contains("connects rank 0 and rank 1"), "{error}");
}
