//! Ranks that make different calls of a collective on a tag, or disagree on a root or a count, and then continue:
//! messages that remain of one call never become the data of the next.

use super::*;
use crate::collective::{Collective, Shape};
use crate::types::DataType;
use Collective::*;

const SIZE: usize = 4;
const COUNT: usize = 4;
/// Above the eager limit, so that messages wait for their receives.
const LARGE: usize = 40_000;

/// A call as one rank makes it. The data that it sends identifies the call.
#[derive(Clone, Debug)]
struct Made {
    collective: Collective,
    algorithm: &'static str,
    label: u32,
    root: usize,
    count: usize,
    send: Vec<usize>,
    recv: Vec<usize>,
}

fn value(rank: usize, label: u32) -> u32 {
    (rank as u32 + 1) * 1000 + label
}

impl Made {
    fn new(collective: Collective, algorithm: &'static str, label: u32, count: usize) -> Self {
        Self { collective, algorithm, label, root: 0, count, send: vec![count; SIZE], recv: vec![count; SIZE] }
    }

    fn shape(&self, rank: usize) -> Shape<'_> {
        let is_root = rank == self.root;
        let (inputs, outputs) = match self.collective {
            Barrier => (0, 0),
            Broadcast | Scatter | Scatterv if !is_root => (0, 1),
            Reduce | Gather | Gatherv if !is_root => (1, 0),
            _ => (1, 1),
        };
        let sends = self.collective == Alltoallv || self.collective == Scatterv && is_root;
        let receives =
            matches!(self.collective, ReduceScatter | Allgatherv | Alltoallv) || self.collective == Gatherv && is_root;
        Shape {
            root: self.root,
            inputs,
            outputs,
            send_counts: if sends { &self.send } else { &[] },
            recv_counts: if receives { &self.recv } else { &[] },
            destinations: if self.collective == PairwiseExchange { 2 } else { 0 },
            ..Shape::new(self.collective, rank, SIZE, self.count)
        }
    }

    /// Makes the call, and returns the output.
    fn make(&self, context: &Context, tag: u64) -> Result<Vec<u32>> {
        let shape = self.shape(context.rank());
        let input = vec![value(context.rank(), self.label); shape.input_len(0)];
        let mut output = vec![0u32; shape.output_len(0)];
        let call = Call {
            inputs: &[input.as_ptr().cast()][..shape.inputs],
            outputs: &[output.as_mut_ptr().cast()][..shape.outputs],
            algorithm: Some(self.algorithm),
            tag,
            ..Call::new(shape, DataType::Uint32)
        };
        // SAFETY: the vectors are as long as the shape says and live until the call returns.
        unsafe { context.run(&call) }.map(|()| output)
    }

    /// The expected output if all ranks make this call.
    fn expected(&self, rank: usize) -> Vec<u32> {
        let sum = |ranks: std::ops::Range<usize>| ranks.map(|rank| value(rank, self.label)).sum::<u32>();
        let blocks = |lens: &[usize]| {
            let block = |(from, len): (usize, &usize)| vec![value(from, self.label); *len];
            lens.iter().enumerate().flat_map(block).collect::<Vec<u32>>()
        };
        let (each, is_root) = (vec![self.count; SIZE], rank == self.root);
        match self.collective {
            Allreduce => vec![sum(0..SIZE); self.count],
            Reduce if is_root => vec![sum(0..SIZE); self.count],
            ReduceScatter => vec![sum(0..SIZE); self.recv[rank]],
            Scan => vec![sum(0..rank + 1); self.count],
            Exscan => vec![sum(0..rank); self.count],
            Broadcast | Scatter | Scatterv => vec![value(self.root, self.label); self.count],
            Allgather | Alltoall => blocks(&each),
            Gather if is_root => blocks(&each),
            Gatherv if is_root => blocks(&self.recv),
            Allgatherv | Alltoallv => blocks(&self.recv),
            PairwiseExchange => [rank ^ 1, rank ^ 2].map(|from| vec![value(from, self.label); self.count]).concat(),
            Reduce | Gather | Gatherv | Barrier => Vec::new(),
        }
    }
}

/// Makes the `calls` of each rank. `odd` makes a different call, after which no rank gets a wrong result or hangs.
fn no_rank_gets_messages_of_another_call(
    what: &str,
    odd: usize,
    odd_label: u32,
    calls: impl Fn(usize) -> Vec<Made> + Sync,
) {
    let contexts = group(SIZE);
    let noticed = std::sync::Mutex::new(Vec::new());
    run(&contexts, |context| {
        let rank = context.rank();
        for made in calls(rank) {
            match made.make(context, 5) {
                Ok(output) => assert!(
                    (rank, made.label) == (odd, odd_label) || output == made.expected(rank),
                    "{what}: rank {rank} gets a wrong result from {made:?}: {:?}",
                    &output[..output.len().min(20)]
                ),
                Err(error) => {
                    noticed.lock().unwrap().push(error);
                    // This rank may have failed between two calls. Closing notifies ranks that wait for it.
                    context.close();
                    return;
                }
            }
        }
    });
    let noticed = noticed.into_inner().unwrap();
    let of = |kind| noticed.iter().filter(|error| error.kind() == kind).count();
    assert!(of(ErrorKind::Mismatch) > 0, "{what}: nobody notices: {noticed:#?}");
    // The reason may be lost if a connection is closed with unread data.
    assert_eq!(of(ErrorKind::Mismatch) + of(ErrorKind::ConnectionLost), noticed.len(), "{what}: {noticed:#?}");
}

/// All ranks make `usual` three times; before that, `odd` makes `makes`.
fn after(what: &str, odd: usize, usual: &Made, makes: &Made) {
    no_rank_gets_messages_of_another_call(what, odd, 0, |rank| {
        let first = if rank == odd { makes } else { usual };
        let later = (1..4).map(|label| Made { label, ..usual.clone() });
        [first.clone()].into_iter().chain(later).collect()
    });
}

fn algorithms(collective: Collective) -> impl Iterator<Item = &'static str> {
    let messages = collective.algorithms().iter().filter(|algorithm| !algorithm.uses.needs_shared_memory());
    messages.map(|algorithm| algorithm.name).filter(|name| *name != "local")
}

#[test]
fn a_rank_that_once_passes_no_elements_gets_none_of_that_call_later() {
    for &collective in Collective::ALL.iter().filter(|collective| **collective != Barrier) {
        for (algorithm, odd) in algorithms(collective).flat_map(|name| [(name, 1), (name, 3)]) {
            let usual = Made::new(collective, algorithm, 0, COUNT);
            let none = Made::new(collective, algorithm, 0, 0);
            after(&format!("{} {algorithm}, nothing on rank {odd}", collective.name()), odd, &usual, &none);
        }
    }
}

#[test]
fn large_messages_that_nobody_took_are_not_taken_later() {
    for (collective, odd) in [(Broadcast, 1), (Scatter, 3), (Gather, 1), (Gatherv, 1), (Alltoall, 3), (Allgather, 1)] {
        let algorithm = algorithms(collective).next().unwrap();
        let usual = Made::new(collective, algorithm, 0, LARGE);
        let none = Made::new(collective, algorithm, 0, 0);
        after(&format!("{} of much, nothing on rank {odd}", collective.name()), odd, &usual, &none);
    }
}

#[test]
fn one_count_of_a_list_that_differs_moves_nothing_to_the_next_call() {
    for count in [COUNT, LARGE] {
        let but = |rank: usize| (0..SIZE).map(|other| if other == rank { 0 } else { count }).collect::<Vec<_>>();
        let usual = |collective| Made::new(collective, algorithms(collective).next().unwrap(), 0, count);
        let check = |odd: usize, makes: Made| {
            let what = format!("{} where rank {odd} makes {makes:?}", makes.collective.name());
            after(&what, odd, &usual(makes.collective), &makes);
        };
        check(0, Made { recv: but(2), ..usual(Gatherv) });
        check(2, Made { count: 0, ..usual(Gatherv) });
        check(0, Made { send: but(2), ..usual(Scatterv) });
        check(2, Made { count: 0, ..usual(Scatterv) });
        for odd in 0..SIZE {
            check(odd, Made { send: but(3 - odd), ..usual(Alltoallv) });
            check(odd, Made { recv: but(3 - odd), ..usual(Alltoallv) });
        }
    }
}

#[test]
fn another_root_once_moves_nothing_to_the_next_call() {
    let cases = [
        (Broadcast, "one_to_all", 1),
        (Broadcast, "binomial", 3),
        (Scatter, "direct", 1),
        (Scatterv, "direct", 1),
        (Gather, "direct", 2),
        (Gatherv, "direct", 2),
        (Reduce, "flat", 2),
    ];
    for (collective, algorithm, root) in cases {
        // A rank that only sends completes; if two wait for each other, the call times out.
        let odd = if matches!(collective, Broadcast | Scatter | Scatterv) { root } else { 1 };
        let usual = Made::new(collective, algorithm, 0, COUNT);
        let other = Made { root, ..usual.clone() };
        after(&format!("{} {algorithm}, root {root} on rank {odd}", collective.name()), odd, &usual, &other);
    }
}

#[test]
fn a_call_that_one_rank_skips_or_makes_twice_is_noticed_in_the_next_with_another_root() {
    let make = |collective, root, label| {
        let algorithm = algorithms(collective).next().unwrap();
        Made { root, ..Made::new(collective, algorithm, label, COUNT) }
    };
    let cases = |collectives: [Collective; 3], odd: usize, times: usize| {
        for collective in collectives {
            let what = format!("{} {times} times on rank {odd}", collective.name());
            no_rank_gets_messages_of_another_call(&what, odd, 0, |rank| {
                let first = vec![make(collective, 0, 0); if rank == odd { times } else { 1 }];
                let later = (1..7).map(|label| make(collective, if label % 2 == 0 { 0 } else { 3 }, label));
                first.into_iter().chain(later).collect()
            });
        }
    };
    // Only a rank that need not wait for others reaches its next call.
    let (down, up) = ([Broadcast, Scatter, Scatterv], [Gather, Gatherv, Reduce]);
    cases(down, 1, 0);
    cases(down, 0, 2);
    cases(up, 0, 0);
    cases(up, 2, 2);
}

#[test]
fn threads_in_different_collectives_share_a_tag() {
    const ROUNDS: u32 = 200;
    let contexts = group(SIZE);
    run(&contexts, |context| {
        std::thread::scope(|scope| {
            // The last two share their counts first.
            for (collective, algorithm) in [
                (Allreduce, "ring"),
                (Broadcast, "binomial"),
                (Alltoall, "pairwise"),
                (Barrier, "dissemination"),
                (Gatherv, "binomial"),
                (Alltoallv, "bruck"),
            ] {
                scope.spawn(move || {
                    for label in 0..ROUNDS {
                        let count = if label % 20 == 7 { LARGE } else { 1 + label as usize % COUNT };
                        let made = Made::new(collective, algorithm, label, count);
                        let output = made.make(context, 5).unwrap();
                        assert!(output == made.expected(context.rank()), "{made:?}");
                    }
                });
            }
        });
    });
}

#[test]
fn the_error_names_both_calls() {
    let contexts = group(2);
    run(&contexts, |context| {
        let count = |label| if (context.rank(), label) == (1, 2) { 0 } else { COUNT };
        let call = |label| {
            let (shape, mut memory) = (Shape::new(Broadcast, context.rank(), 2, count(label)), [label; COUNT]);
            let call = Call {
                inputs: &[[label; COUNT].as_ptr().cast()][..usize::from(context.rank() == 0)],
                outputs: &[memory.as_mut_ptr().cast()],
                algorithm: Some("binomial"),
                tag: 7,
                ..Call::new(Shape { inputs: usize::from(context.rank() == 0), ..shape }, DataType::Uint32)
            };
            // SAFETY: the arrays are as long as the shape says and live until the call returns.
            unsafe { context.run(&call) }
        };
        (0..3).for_each(|label| call(label).unwrap());
        let result = call(3);
        if context.rank() == 1 {
            let error = result.unwrap_err();
            let broadcast = "broadcast binomial of uint32";
            let text = format!(
                "is in another collective: {broadcast}, its number 3 on tag 7, where this rank is in number 4, {broadcast}: \
                 one of them has made a call that the other has not, or they differed in an earlier one's root or counts"
            );
            assert!(error.kind() == ErrorKind::Mismatch && error.message().ends_with(&text), "{error}");
        }
    });
}

#[test]
fn threads_with_tags_of_their_own_never_differ() {
    const THREADS: u32 = 4;
    let contexts = group(3);
    run(&contexts, |context| {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for call in 0..300u32 {
                        // Some tags repeatedly, some once; with equal and with different positions in the table.
                        let tag = match call % 3 {
                            0 => thread,
                            1 => 64 * thread,
                            _ => 1_000_000 * (thread + 1) + 640 * call,
                        } + if call % 3 == 1 { 10_000 } else { 0 };
                        let mut sum = [call];
                        let output = [sum.as_mut_ptr().cast()];
                        let call = Call {
                            outputs: &output,
                            tag: u64::MAX - u64::from(tag),
                            ..Call::new(
                                Shape { inputs: 0, ..Shape::new(Allreduce, context.rank(), 3, 1) },
                                DataType::Uint32,
                            )
                        };
                        // SAFETY: the array is as long as the shape says and lives until the call returns.
                        unsafe { context.run(&call) }.unwrap();
                    }
                });
            }
        });
    });
}
