//! Publications and fetches.

use super::*;
use crate::schedule::Readers;

/// Three ranks publish their elements, and each reduces those of all in rank order.
fn published(write: impl Fn(&mut Builder, Rank)) -> Vec<Schedule> {
    schedules(3, |b, rank| {
        b.publish(Readers::All, all(IN));
        let others = (0..3).filter(|&from| from != rank);
        let parts: Vec<Span> = others
            .map(|from| {
                let part = b.scratch(4);
                b.fetch(from, 0, 0, part);
                part
            })
            .collect();
        write(b, rank);
        b.reduce(parts[0], parts[1], all(OUT));
        b.await_readers();
    })
}

/// The step of the last rank that `is` finds.
fn step_of(schedules: &mut [Schedule], is: impl Fn(&Action) -> bool) -> &mut Step {
    schedules[2].steps.iter_mut().rev().find(|step| is(&step.action)).unwrap()
}

#[test]
fn what_is_published_is_fetched_by_its_readers() {
    let contract = plain(3, 4, anything);
    let right = || published(|_, _| ());
    let report = verify(right(), &contract).unwrap();
    assert_eq!((report.steps, report.traffic[0].messages), (1, 0));
    let is_fetch = |action: &Action| matches!(action, Action::Fetch { .. });
    let changed = |change: fn(&mut Action)| {
        let mut schedules = right();
        change(&mut step_of(&mut schedules, is_fetch).action);
        schedules
    };
    let set = |of: fn(&mut u32, &mut u32, &mut usize)| {
        let mut schedules = right();
        let Action::Fetch { from, publication, at, .. } = &mut step_of(&mut schedules, is_fetch).action else {
            panic!()
        };
        of(from, publication, at);
        schedules
    };
    refused(&set(|from, _, _| *from = 2), &contract, "from rank 2, which is not another rank of the same host");
    refused(&set(|from, _, _| *from = 9), &contract, "from rank 9, which is not another rank of the same host");
    refused(&set(|from, _, _| *from = 0), &contract, "rank 2 fetches publication 0 of rank 0 in several steps");
    let elsewhere = |action: &mut Action| {
        let Action::Fetch { into, .. } = *action else { panic!() };
        *action = Action::Copy { from: all(IN), into };
    };
    refused(&changed(elsewhere), &contract, "rank 2 does not fetch publication 0 of rank 1, which is for All");
    refused(&set(|_, publication, _| *publication = 1), &contract, "publication 1 of rank 1, which never publishes it");
    refused(&set(|_, _, at| *at = 1), &contract, "from element 1 of publication 0 of rank 1, which has 4");
    refused(&set(|_, _, at| *at = usize::MAX), &contract, "of publication 0 of rank 1, which has 4");
    let shorter = |action: &mut Action| {
        let Action::Fetch { into, .. } = action else { panic!() };
        *into = into.slice(0, 0);
    };
    refused(&changed(shorter), &contract, "undefined memory");
    let two_hosts = Plain { host: |rank| u32::from(rank == 2), ..plain(3, 4, anything) };
    refused(
        &right(),
        &two_hosts,
        "rank 0, step 2 (Fetch, 4 elements) fetches from rank 2, which is not another rank of the same host",
    );
    let published_to = |to: Readers| {
        let mut schedules = right();
        let publish = step_of(&mut schedules, |action| matches!(action, Action::Publish { .. }));
        publish.action = Action::Publish { to, from: all(IN) };
        schedules
    };
    for rank in [1, 7] {
        let why = format!("rank 0 fetches publication 0 of rank 2, which is for One({rank})");
        refused(&published_to(Readers::One(rank)), &contract, &why);
        let set = Readers::set([rank as Rank]);
        refused(
            &published_to(set),
            &contract,
            &format!("rank 0 fetches publication 0 of rank 2, which is for {set:?}"),
        );
    }
    verify(published_to(Readers::set([0, 1])), &contract).unwrap();
    let more = "publication 0 of rank 2 is for rank 63, which does not exist";
    refused(&published_to(Readers::set([0, 1, 63])), &contract, more);
    let nobody = schedules(2, |b, _| {
        b.publish(Readers::set([]), all(IN));
        b.await_readers();
    });
    refused(&nobody, &plain(2, 4, anything), "publication 0 of rank 0 is for nobody");
    let mut renumbered = right();
    step_of(&mut renumbered, |action| matches!(action, Action::Publish { .. })).channel = 1;
    refused(&renumbered, &contract, "publication 1 where 0 is next");
}

#[test]
fn publishing_ends_with_the_wait_for_readers() {
    let contract = plain(3, 4, anything);
    let mut without = published(|_, _| ());
    without[2].steps.pop();
    refused(&without, &contract, "rank 2 does not wait for the readers of its last publication");
    let mut before = published(|_, _| ());
    step_of(&mut before, |action| *action == Action::AwaitReaders).after.clear();
    refused(&before, &contract, "(AwaitReaders, 1 elements) does not wait for rank 2, step 0");
    // A wait before a publication never ends, because it is for the fetches of all.
    let twice = schedules(2, |b, rank| {
        for number in 0..2 {
            b.publish(Readers::One(1 - rank as u32), all(IN));
            b.await_readers();
            b.fetch(1 - rank, number, 0, all(OUT));
        }
    });
    refused(&twice, &plain(2, 4, anything), "deadlock: ");
    let unordered = schedules(2, |b, rank| {
        (0..2).for_each(|_| {
            b.publish(Readers::One(1 - rank as u32), all(IN));
        });
        (0..2).for_each(|number| b.fetch(1 - rank, number, 0, all(OUT)));
        b.await_readers();
    });
    verify(&unordered, &plain(2, 4, anything)).unwrap();
    let mut unordered = unordered;
    unordered[1].steps[1].after.clear();
    refused(&unordered, &plain(2, 4, anything), "(Publish, 4 elements) does not wait for rank 1, step 0");
}

/// Publications may be written piece by piece, as fast as all readers read.
#[test]
fn readers_of_the_same_publications_fetch_them_in_one_order() {
    let contract = plain(3, 4, anything);
    let read = |order: fn(Rank) -> [Rank; 2], to: Readers| {
        schedules(3, |b, rank| {
            if to == Readers::All {
                b.publish(to, all(IN));
            } else {
                (1..3).for_each(|distance| {
                    b.publish(Readers::One(((rank + 3 - distance) % 3) as u32), all(IN));
                });
            }
            for from in order(rank) {
                let number = if to == Readers::All { 0 } else { (from + 3 - rank) % 3 - 1 };
                b.fetch(from, number as u32, 0, all(OUT));
            }
            b.await_readers();
        })
    };
    let in_turns: fn(Rank) -> [Rank; 2] = |rank| [(rank + 1) % 3, (rank + 2) % 3];
    let in_order: fn(Rank) -> [Rank; 2] = |rank| [[1, 2], [0, 2], [0, 1]][rank];
    verify(read(in_order, Readers::All), &contract).unwrap();
    refused(&read(in_turns, Readers::All), &contract, "deadlock: ");
    verify(read(in_turns, Readers::One(0)), &contract).unwrap();
}

/// Rank 0 publishes for the others what may be written as fast as both read; rank 1 sends rank 2 a message, before or
/// after it has read, for which rank 2 waits before it reads.
#[test]
fn a_reader_that_waits_for_a_message_of_another_reader() {
    let read = |first: bool| {
        schedules(3, |b, rank| match rank {
            0 => {
                b.publish(Readers::All, all(IN));
                b.await_readers();
            }
            1 => {
                b.fetch(0, 0, 0, all(OUT));
                b.send(2, all(if first { IN } else { OUT }));
            }
            _ => {
                b.recv(1, all(OUT));
                b.fetch(0, 0, 0, all(OUT));
            }
        })
    };
    let contract = plain(3, 4, anything);
    verify(read(true), &contract).unwrap();
    refused(&read(false), &contract, "deadlock: ");
    // A publication in place of the message gives the same result.
    let read = |first: bool| {
        schedules(3, |b, rank| match rank {
            0 => {
                b.publish(Readers::All, all(IN));
                b.await_readers();
            }
            1 => {
                if first {
                    b.publish(Readers::One(2), all(IN));
                }
                b.fetch(0, 0, 0, all(OUT));
                if !first {
                    b.publish(Readers::One(2), all(OUT));
                }
                b.await_readers();
            }
            _ => {
                b.fetch(1, 0, 0, all(OUT));
                b.fetch(0, 0, 0, all(OUT));
            }
        })
    };
    verify(read(true), &contract).unwrap();
    refused(&read(false), &contract, "deadlock: ");
}

/// A publication may be written piece by piece beside messages, too, so each reader fetches it in one step.
#[test]
fn a_publication_is_fetched_once_beside_messages() {
    let twice = schedules(3, |b, rank| match rank {
        0 => {
            b.publish(Readers::One(1), all(IN));
            b.await_readers();
        }
        1 => {
            (0..2).for_each(|half| b.fetch(0, 0, 2 * half, Span::new(OUT, 2 * half, 2)));
            b.send(2, all(OUT));
        }
        _ => b.recv(1, all(OUT)),
    });
    refused(&twice, &plain(3, 4, anything), "rank 1 fetches publication 0 of rank 0 in several steps");
}

#[test]
fn two_ranks_that_fetch_before_they_publish() {
    let late = schedules(2, |b, rank| {
        b.fetch(1 - rank, 0, 0, all(OUT));
        b.publish(Readers::One(1 - rank as u32), all(OUT));
        b.await_readers();
    });
    refused(&late, &plain(2, 4, anything), "deadlock: ");
}

/// Two ranks swap halves of their outputs in place: `write` is called after rank 1 has fetched from rank 0.
fn in_place(write: impl Fn(&mut Builder, Rank)) -> Vec<Schedule> {
    schedules(2, |b, rank| {
        let kept = b.scratch(4);
        match rank {
            0 => {
                b.publish(Readers::One(1), all(OUT));
            }
            _ => b.fetch(0, 0, 0, kept.slice(0, 2)),
        }
        write(b, rank);
        if rank == 0 {
            b.await_readers();
        }
    })
}

#[test]
fn what_is_published_is_not_written_before_it_is_read() {
    let contract = Plain { in_place: true, ..plain(2, 4, anything) };
    let half = |offset| Span::new(OUT, offset, 2);
    // Nobody fetches the second half.
    let free = |b: &mut Builder, rank: Rank| {
        if rank == 0 {
            b.copy(half(0), half(2))
        }
    };
    verify(in_place(free), &contract).unwrap();
    let early = |b: &mut Builder, rank: Rank| {
        if rank == 0 {
            b.copy(half(2), half(0))
        }
    };
    refused(&in_place(early), &contract, "may be before rank 1, step 0 (Fetch, 2 elements) has read it");
    let one_too_many = |b: &mut Builder, rank: Rank| {
        if rank == 0 {
            b.copy(half(2).slice(0, 1), Span::new(OUT, 1, 1))
        }
    };
    refused(&in_place(one_too_many), &contract, "rank 0, Output(0), element 1: rank 0");
    // A message, or a publication, from the reader after its fetch says that it is done.
    for by_message in [false, true] {
        for ordered in [false, true] {
            let told = in_place(|b, rank| {
                // What the reader has fetched, or something else.
                let said = if ordered { Span::new(Buffer::Scratch, 0, 2) } else { half(0) };
                match (rank, by_message) {
                    (0, true) => b.recv(1, half(0)),
                    (0, false) => b.fetch(1, 0, 0, half(0)),
                    (_, true) => b.send(0, said),
                    (_, false) => {
                        b.publish(Readers::One(0), said);
                        b.await_readers();
                    }
                }
            });
            if ordered {
                verify(told, &contract).unwrap();
            } else {
                refused(&told, &contract, "may be before rank 1, step 0 (Fetch, 2 elements) has read it");
            }
        }
    }
    let late = schedules(2, |b, rank| {
        if rank == 0 {
            b.publish(Readers::One(1), all(OUT));
            b.await_readers();
            b.copy(half(2), half(0));
        } else {
            let kept = b.scratch(4);
            b.fetch(0, 0, 0, kept);
        }
    });
    verify(&late, &contract).unwrap();
    let mut unordered = late;
    unordered[0].steps[2].after.clear();
    refused(&unordered, &contract, "does not wait for rank 0, step 0 (Publish, 4 elements)");
    unordered[0].steps[2].after = vec![Dependency { step: 0, shift: 0 }];
    refused(&unordered, &contract, "may be before rank 1, step 0 (Fetch, 4 elements) has read it");
}

/// A send does not say that its message has arrived.
#[test]
fn what_was_sent_may_not_have_been_received() {
    let half = Span::new(OUT, 0, 2);
    let told = in_place(|b, rank| match rank {
        0 => {
            b.send(1, Span::new(OUT, 2, 2));
            b.copy(Span::new(OUT, 2, 2), half);
        }
        _ => b.recv(0, Span::new(Buffer::Scratch, 0, 2)),
    });
    let contract = Plain { in_place: true, ..plain(2, 4, anything) };
    refused(&told, &contract, "may be before rank 1, step 0 (Fetch, 2 elements) has read it");
}
