pub(crate) mod compiled;
mod shared;

use proptest::prelude::*;

use super::*;
use crate::schedule::{Action, Builder, Dependency, Side, Span, Step};

const IN: Buffer = Buffer::Input(0);
const OUT: Buffer = Buffer::Output(0);

/// Ranks with one input and one output of `len` elements each. The expected result is the same on all ranks.
struct Plain {
    ranks: usize,
    len: usize,
    in_place: bool,
    tokens: bool,
    host: fn(Rank) -> u32,
    expected: fn(Rank, usize) -> Expect,
}

impl Contract for Plain {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn len(&self, _: Rank, buffer: Buffer) -> Option<usize> {
        let exists = buffer == OUT || (buffer == IN && !self.in_place);
        exists.then_some(self.len)
    }

    fn contributions(&self, _: Rank) -> u32 {
        1
    }

    fn initial(&self, rank: Rank, buffer: Buffer, element: usize) -> Option<Leaf> {
        (buffer == IN || self.in_place).then_some(Leaf { rank, input: 0, element })
    }

    fn expected(&self, rank: Rank, _: u32, element: usize) -> Expect {
        (self.expected)(rank, element)
    }

    fn host(&self, rank: Rank) -> u32 {
        (self.host)(rank)
    }

    fn synchronizes(&self) -> bool {
        self.tokens
    }
}

fn plain(ranks: usize, len: usize, expected: fn(Rank, usize) -> Expect) -> Plain {
    Plain { ranks, len, in_place: false, tokens: false, host: |_| 0, expected }
}

fn anything(_: Rank, _: usize) -> Expect {
    Expect::Anything
}

fn sum_of_two(_: Rank, element: usize) -> Expect {
    Expect::Reduced { ranks: 0..2, element, divisor: 1, in_order: false }
}

fn all(buffer: Buffer) -> Span {
    Span::new(buffer, 0, 4)
}

/// The schedule that `write` writes for each rank.
fn schedules(ranks: usize, write: impl Fn(&mut Builder, Rank)) -> Vec<Schedule> {
    let one = |rank| {
        let mut b = Builder::new();
        write(&mut b, rank);
        b.build()
    };
    (0..ranks).map(one).collect()
}

/// Two ranks exchange all elements; lower ranks are the left operand.
fn exchange() -> Vec<Schedule> {
    schedules(2, |b, rank| {
        b.send(1 - rank, all(IN));
        b.recv_reduce(1 - rank, all(OUT), all(IN), if rank == 0 { Side::Right } else { Side::Left });
    })
}

#[track_caller]
fn refused(schedules: &[Schedule], contract: &Plain, why: &str) {
    let error = verify(schedules, contract).expect_err("must be refused");
    assert!(error.message().contains(why), "{error}");
}

#[test]
fn valid_schedules_are_accepted() {
    let report = verify(exchange(), &plain(2, 4, sum_of_two)).unwrap();
    let traffic = Traffic { messages: 1, elements: 4, scratch: 0 };
    assert_eq!(report.expressions.len(), 1);
    assert_eq!(report, Report { steps: 1, traffic: vec![traffic; 2], in_order: true, folds: true, ..report.clone() });
}

#[test]
fn another_order_on_another_rank_gives_other_bits() {
    let both_left = schedules(2, |b, rank| {
        b.send(1 - rank, all(IN));
        b.recv_reduce(1 - rank, all(OUT), all(IN), Side::Left);
    });
    refused(&both_left, &plain(2, 4, sum_of_two), "in a different order");
}

#[test]
fn two_ranks_that_both_wait_for_the_others_receive() {
    // With buffered sends this would work.
    let in_place = schedules(2, |b, rank| {
        b.send(1 - rank, all(OUT));
        b.recv(1 - rank, all(OUT));
    });
    let swapped = |rank, element| Expect::Copy(Leaf { rank: 1 - rank, input: 0, element });
    refused(&in_place, &Plain { in_place: true, ..plain(2, 4, swapped) }, "deadlock");
}

#[test]
fn a_deadlock_that_only_large_segments_have() {
    // Rank 0 sends each element after receiving the one before; rank 1 sends each element back on arrival.
    let leapfrog = schedules(2, |b, rank| {
        if rank == 0 {
            b.recv(1, Span::new(OUT, 1, 2));
            b.send(1, Span::new(OUT, 0, 2));
        } else {
            let scratch = b.scratch(2);
            b.recv(0, scratch);
            b.send(0, scratch);
        }
    });
    let contract = Plain { in_place: true, ..plain(2, 4, anything) };
    refused(&leapfrog, &contract, "deadlock: ");
}

proptest! {
    /// The verifier executes whole messages in one order; other segment lengths and orders give the same result.
    #[test]
    fn segments_and_order_change_nothing(
        steps in prop::collection::vec((0usize..3, 0usize..3, 0usize..40, 0usize..40, 1usize..12), 1..25),
    ) {
        let random = schedules(3, |b, rank| {
            for &(from, to, read, write, len) in &steps {
                let (read, write) = (Span::new(OUT, read, len), Span::new(OUT, write, len));
                match () {
                    () if from != to => {
                        if rank == from {
                            b.send(to, read);
                        }
                        if rank == to {
                            b.recv(from, write);
                        }
                    }
                    () if rank == from && !read.overlaps(write) => b.copy(read, write),
                    () => {}
                }
            }
        });
        let contract = Plain { in_place: true, ..plain(3, 52, anything) };
        verify(&random, &contract).unwrap();
        execute_in_segments(&random, &contract).unwrap();
    }
}

#[test]
fn an_element_reduced_twice() {
    let twice = schedules(2, |b, rank| {
        for _ in 0..2 {
            b.send(1 - rank, all(IN));
        }
        b.recv_reduce(1 - rank, all(OUT), all(IN), Side::Left);
        b.recv_reduce(1 - rank, all(OUT), all(OUT), Side::Left);
    });
    refused(&twice, &plain(2, 4, sum_of_two), "reduces a contribution twice");
}

#[test]
fn elements_that_do_not_belong_together() {
    let shifted = schedules(2, |b, rank| {
        b.send(1 - rank, Span::new(IN, 1, 3));
        b.recv_reduce(1 - rank, Span::new(OUT, 0, 3), Span::new(IN, 0, 3), Side::Left);
    });
    refused(&shifted, &plain(2, 4, sum_of_two), "reduces different elements, 1 and 0");
}

#[test]
fn undefined_memory_is_not_read() {
    let undefined = schedules(2, |b, rank| {
        b.send(1 - rank, all(OUT));
        let scratch = b.scratch(4);
        b.recv(1 - rank, scratch);
    });
    refused(&undefined, &plain(2, 4, anything), "comes from undefined memory");
}

#[test]
fn averages_are_divided_once_by_the_right_number_and_at_the_end() {
    let average = |_, element| Expect::Reduced { ranks: 0..2, element, divisor: 2, in_order: false };
    let divided = |by: &'static [u32]| {
        let mut schedules = exchange();
        for schedule in &mut schedules {
            for (i, &by) in by.iter().enumerate() {
                let after = vec![Dependency { step: 1 + i as u32, shift: 0 }];
                let step = Step { action: Action::Divide { span: all(OUT), by }, channel: 0, after };
                schedule.steps.push(step);
            }
        }
        schedules
    };
    assert!(verify(divided(&[2]), &plain(2, 4, average)).is_ok());
    refused(&divided(&[]), &plain(2, 4, average), "divided by 2");
    refused(&divided(&[4]), &plain(2, 4, average), "divided by 2");
    refused(&divided(&[2, 2]), &plain(2, 4, average), "divides ");
    refused(&divided(&[0]), &plain(2, 4, average), "divides by zero");
    let early = schedules(2, |b, rank| {
        b.copy(all(IN), all(OUT));
        b.divide(all(OUT), 2);
        b.send(1 - rank, all(IN));
        b.recv_reduce(1 - rank, all(OUT), all(OUT), if rank == 0 { Side::Right } else { Side::Left });
    });
    refused(&early, &plain(2, 4, average), "already divided");
}

#[test]
fn ranks_out_of_order() {
    let ordered = |_, element| Expect::Reduced { ranks: 0..2, element, divisor: 1, in_order: true };
    assert!(verify(exchange(), &plain(2, 4, ordered)).is_ok());
    let reversed = schedules(2, |b, rank| {
        b.send(1 - rank, all(IN));
        b.recv_reduce(1 - rank, all(OUT), all(IN), if rank == 0 { Side::Left } else { Side::Right });
    });
    refused(&reversed, &plain(2, 4, ordered), "out of order");
    assert!(!verify(&reversed, &plain(2, 4, sum_of_two)).unwrap().in_order);
}

#[test]
fn unmatched_messages() {
    let contract = plain(2, 4, anything);
    refused(
        &schedules(2, |b, rank| {
            if rank == 0 {
                b.send(1, all(IN))
            }
        }),
        &contract,
        "never receives",
    );
    refused(
        &schedules(2, |b, rank| {
            if rank == 0 {
                b.recv(1, all(OUT))
            }
        }),
        &contract,
        "never sends",
    );
    let lengths = schedules(2, |b, rank| match rank {
        0 => b.send(1, all(IN)),
        _ => b.recv(0, Span::new(OUT, 0, 3)),
    });
    refused(&lengths, &contract, "4 elements sent, 3 received");
    refused(&schedules(2, |b, rank| b.send(rank, all(IN))), &contract, "is not a valid peer");
    refused(&schedules(2, |b, _| b.send(2, all(IN))), &contract, "is not a valid peer");
    let mut channels = exchange();
    channels[0].steps[0].channel = 1;
    refused(&channels, &contract, "channel 1 where 0 is next");
    refused(&exchange()[..1], &contract, "1 schedules for 2 ranks");
}

#[test]
fn invalid_spans() {
    let contract = plain(1, 4, anything);
    refused(&schedules(1, |b, _| b.copy(all(IN), Span::new(OUT, 1, 4))), &contract, "ends after");
    let mut wrapping = schedules(1, |b, _| b.copy(all(IN), all(OUT)));
    wrapping[0].steps[0].action = Action::Copy { from: all(IN), into: Span::new(OUT, usize::MAX - 1, 4) };
    refused(&wrapping, &contract, "ends after");
    refused(&schedules(1, |b, _| b.copy(all(OUT), all(IN))), &contract, "writes an input");
    refused(&schedules(1, |b, _| b.copy(all(IN), all(Buffer::Output(1)))), &contract, "there is no Output(1)");
    refused(&schedules(1, |b, _| b.copy(all(IN), all(Buffer::Scratch))), &contract, "ends after");
    let overlapping = schedules(1, |b, _| b.copy(Span::new(OUT, 0, 3), Span::new(OUT, 1, 3)));
    refused(&overlapping, &contract, "overlapping");
    let untouched = plain(1, 4, |_, element| if element == 3 { Expect::Untouched } else { Expect::Anything });
    assert!(verify(schedules(1, |b, _| b.copy(Span::new(IN, 0, 3), Span::new(OUT, 0, 3))), &untouched).is_ok());
    refused(&schedules(1, |b, _| b.copy(all(IN), all(OUT))), &untouched, "element 3 must not be written");
}

#[test]
fn unordered_conflicting_steps() {
    // Different paths may order different elements; without one of them a step is too early.
    let halves = schedules(1, |b, _| {
        b.copy(all(IN), all(OUT));
        let scratch = b.scratch(4);
        b.copy(Span::new(OUT, 0, 2), scratch.slice(0, 2));
        b.copy(Span::new(OUT, 2, 2), scratch.slice(2, 2));
        b.copy(all(IN), all(OUT));
    });
    let contract = plain(1, 4, |rank, element| Expect::Copy(Leaf { rank, input: 0, element }));
    assert!(verify(&halves, &contract).is_ok());
    for index in 0..2 {
        let mut broken = halves.clone();
        broken[0].steps[3].after.remove(index);
        refused(&broken, &contract, "does not wait for");
    }
    let mut forwards = halves;
    forwards[0].steps[1].after[0].step = 2;
    refused(&forwards, &contract, "which is not before it");
}

#[test]
fn several_paths_each_for_some_elements() {
    // The last step reads what the first writes, and depends on it only through the two steps between, which access
    // other memory.
    let scratch = |offset, len| Span::new(Buffer::Scratch, offset, len);
    let copy = |from, into, after: &[(u32, isize)]| Step {
        action: Action::Copy { from, into },
        channel: 0,
        after: after.iter().map(|&(step, shift)| Dependency { step, shift }).collect(),
    };
    let right = Schedule {
        steps: vec![
            copy(all(IN), all(OUT), &[]),
            copy(Span::new(IN, 0, 2), scratch(0, 2), &[(0, 0)]),
            copy(Span::new(IN, 2, 2), scratch(2, 2), &[(0, 2)]),
            copy(all(OUT), scratch(4, 4), &[(1, 0), (2, -2)]),
        ],
        scratch: 8,
    };
    let contract = plain(1, 4, anything);
    assert!(verify([&right], &contract).is_ok());
    for (missing, first) in [(0, 0), (1, 2)] {
        let mut broken = right.clone();
        broken.steps[3].after.remove(missing);
        refused(&[broken], &contract, &format!("Output(0), element {first}: rank 0, step 3"));
    }
    let mut late = right;
    late.steps[2].after[0].shift = 1;
    refused(&[late], &contract, "Output(0), element 2: rank 0, step 3");
}

#[test]
fn a_barrier_that_a_rank_can_leave_too_early() {
    let contract = |ranks| Plain { tokens: true, ..plain(ranks, 0, anything) };
    // If the next token depends only on the last received one, rank 0 never depends on rank 3 (5 before it).
    let chain = |ranks: usize, follow_all: bool| {
        schedules(ranks, |b, rank| {
            let mut token = b.scratch(1);
            let mut distance = 1;
            while distance < ranks {
                b.send((rank + distance) % ranks, token);
                let heard = b.scratch(1);
                b.recv((rank + ranks - distance) % ranks, heard);
                if follow_all {
                    b.copy(heard, token);
                } else {
                    token = heard;
                }
                distance *= 2;
            }
        })
    };
    assert!(verify(chain(8, true), &contract(8)).is_ok());
    refused(&chain(8, false), &contract(8), "rank 0 may finish before rank 3 has begun");
}
