//! Tests of the verifier: it rejects schedules with any single fault.

use super::calls::{Form, Sample, TOPOLOGIES, has_whole_buffers};
use super::*;
use crate::schedule::verify::execute_in_segments;
use crate::schedule::{Action, Readers, Schedule, Side, Span};

/// A few calls of every algorithm, which together use every kind of step, with three elements per rank.
fn samples() -> Vec<(Sample, &'static Algorithm)> {
    let mut samples = Vec::new();
    for &collective in Collective::ALL {
        for (number, algorithm) in collective.algorithms().iter().enumerate() {
            for size in [2, 6, 4].into_iter().take(Tier::from_environment().of(2, 3, 3)) {
                for inputs in [0, 1] {
                    let elements = if has_whole_buffers(collective) { 3 * size } else { 3 };
                    let topology = (number + size / 2 + inputs) % TOPOLOGIES;
                    let form = Form { elements, inputs, outputs: 1, root: size - 1, average: true, base: 3, topology };
                    let sample = Sample::new(collective, algorithm, size, form);
                    let valid = |sample: &Sample| sample.shapes().iter().all(|shape| shape.check().is_ok());
                    samples.extend(sample.filter(valid).map(|sample| (sample, algorithm)));
                }
            }
        }
    }
    samples
}

#[test]
fn segments_and_order_change_nothing() {
    for (sample, algorithm) in samples() {
        let shapes = sample.shapes();
        let schedules: Vec<Schedule> = shapes.iter().map(|shape| (algorithm.generate)(shape).unwrap()).collect();
        let result = execute_in_segments(&schedules, &CollectiveContract::new(&shapes));
        result.unwrap_or_else(|e| panic!("{}, {} ranks: {e}", algorithm.name, shapes.len()));
    }
}

/// Applies every fault that `damages` returns to every step, one at a time, and requires that the verifier rejects
/// each.
fn must_be_caught(what: &str, damages: impl Fn(&Schedule, usize, &Shape<'_>) -> Vec<Schedule>) {
    let mut caught = 0;
    for (sample, algorithm) in samples() {
        let shapes = sample.shapes();
        let right: Vec<Schedule> = shapes.iter().map(|shape| (algorithm.generate)(shape).unwrap()).collect();
        let contract = CollectiveContract::new(&shapes);
        prove_schedules(&right, &contract).unwrap_or_else(|e| panic!("{}: {e}", algorithm.name));
        for (rank, shape) in shapes.iter().enumerate() {
            for step in 0..right[rank].steps.len() {
                for damaged in damages(&right[rank], step, shape) {
                    let with_damage = right.iter().enumerate().map(|(r, own)| if r == rank { &damaged } else { own });
                    assert!(
                        prove_schedules(with_damage, &contract).is_err(),
                        "{what} goes unnoticed: {} {}, {} ranks, {} inputs, rank {rank}, step {step}: {:?}",
                        shape.collective.name(),
                        algorithm.name,
                        shape.size,
                        shape.inputs,
                        damaged.steps.get(step),
                    );
                    caught += 1;
                }
            }
        }
    }
    assert!(caught > 100, "{what}: only {caught} cases");
}

fn with(schedule: &Schedule, step: usize, action: Action) -> Schedule {
    let mut damaged = schedule.clone();
    damaged.steps[step].action = action;
    damaged
}

/// How many elements of `target` must be finished before `step` works on its first `progress` elements.
fn finished(schedule: &Schedule, step: u32, progress: usize, target: u32) -> usize {
    let before = schedule.steps[step as usize].after.iter().filter(|d| d.step >= target).map(|d| {
        let action = &schedule.steps[d.step as usize].action;
        let len = action.progress();
        match (progress as isize + d.shift).clamp(0, len as isize) as usize {
            0 => 0,
            // Steps on shared memory are executed whole.
            _ if action.is_shared() && d.step == target => len,
            _ if action.is_shared() => finished(schedule, d.step, len, target),
            first if d.step == target => first,
            first => finished(schedule, d.step, first, target),
        }
    });
    before.max().unwrap_or(0)
}

/// Whether `step` still waits for the same elements of `target` through other dependencies, so that the fault is
/// harmless.
fn still_waits(right: &Schedule, damaged: &Schedule, step: usize, target: u32) -> bool {
    let wait = |schedule, progress| finished(schedule, step as u32, progress, target);
    let action = &right.steps[step].action;
    let min = if action.is_shared() { action.progress() } else { 1 };
    (min..=action.progress()).all(|progress| wait(damaged, progress) >= wait(right, progress))
}

/// Whether `step` must wait for `target`. The wait for readers also waits for those who write what was published, for
/// the sake of later writers, and here are none.
fn matters(schedule: &Schedule, step: usize, target: u32) -> bool {
    let is_publication = matches!(schedule.steps[target as usize].action, Action::Publish { .. });
    schedule.steps[step].action != Action::AwaitReaders || is_publication
}

#[test]
fn a_dropped_dependency() {
    must_be_caught("a dropped dependency", |schedule, step, _| {
        let drop = |index| {
            let mut damaged = schedule.clone();
            let dropped = damaged.steps[step].after.remove(index);
            (matters(schedule, step, dropped.step) && !still_waits(schedule, &damaged, step, dropped.step))
                .then_some(damaged)
        };
        (0..schedule.steps[step].after.len()).filter_map(drop).collect()
    });
}

#[test]
fn a_dependency_one_element_short() {
    must_be_caught("a short dependency", |schedule, step, _| {
        let shorten = |index: usize| {
            let mut damaged = schedule.clone();
            let short = &mut damaged.steps[step].after[index];
            short.shift -= 1;
            let target = short.step;
            (matters(schedule, step, target) && !still_waits(schedule, &damaged, step, target)).then_some(damaged)
        };
        (0..schedule.steps[step].after.len()).filter_map(shorten).collect()
    });
}

#[test]
fn another_peer() {
    must_be_caught("another peer", |schedule, step, shape| {
        let others = (0..shape.size as u32 + 1).filter_map(|peer| {
            let action = match schedule.steps[step].action {
                Action::Send { to, from } if peer != to => Action::Send { to: peer, from },
                Action::Recv { from, into } if peer != from => Action::Recv { from: peer, into },
                Action::RecvReduce { from, into, with, incoming } if peer != from => {
                    Action::RecvReduce { from: peer, into, with, incoming }
                }
                Action::Fetch { from, publication, at, into } if peer != from => {
                    Action::Fetch { from: peer, publication, at, into }
                }
                Action::FetchReduce { from, publication, at, into, with, incoming } if peer != from => {
                    Action::FetchReduce { from: peer, publication, at, into, with, incoming }
                }
                Action::Publish { to: Readers::One(to), from } if peer != to => {
                    Action::Publish { to: Readers::One(peer), from }
                }
                _ => return None,
            };
            Some(with(schedule, step, action))
        });
        others.collect()
    });
}

#[test]
fn a_shifted_or_shortened_span() {
    must_be_caught("a changed span", |schedule, step, shape| {
        if shape.collective == Collective::Barrier {
            return Vec::new();
        }
        let changes: [fn(Span) -> Span; 3] = [
            |span| Span { offset: span.offset + 1, ..span },
            |span| Span { offset: span.offset.wrapping_sub(1), ..span },
            |span| Span { len: span.len - 1, ..span },
        ];
        let all = changes.into_iter().flat_map(|change| match schedule.steps[step].action {
            Action::Send { to, from } => vec![Action::Send { to, from: change(from) }],
            Action::Recv { from, into } => vec![Action::Recv { from, into: change(into) }],
            Action::RecvReduce { from, into, with, incoming } => vec![
                Action::RecvReduce { from, into: change(into), with, incoming },
                Action::RecvReduce { from, into, with: change(with), incoming },
                Action::RecvReduce { from, into: change(into), with: change(with), incoming },
            ],
            // The own block is published with the others.
            Action::Copy { .. } if shape.shared && shape.collective == Collective::Alltoall => vec![],
            Action::Copy { from, into } => vec![
                Action::Copy { from: change(from), into },
                Action::Copy { from, into: change(into) },
                Action::Copy { from: change(from), into: change(into) },
            ],
            Action::Reduce { left, right, into } => vec![
                Action::Reduce { left: change(left), right, into },
                Action::Reduce { left, right: change(right), into },
                Action::Reduce { left, right, into: change(into) },
            ],
            Action::Divide { span, by } => vec![Action::Divide { span: change(span), by }],
            Action::AwaitReaders => vec![],
            // A signal, or elements that nobody fetches.
            shared if shared.is_shared() && shared.elements() == 0 => vec![],
            Action::Publish { to, from } => {
                let changed = change(from);
                // Nobody may fetch the last element.
                if changed.len == from.len { vec![Action::Publish { to, from: changed }] } else { vec![] }
            }
            Action::Fetch { from, publication, at, into } => {
                vec![Action::Fetch { from, publication, at, into: change(into) }]
            }
            Action::FetchReduce { from, publication, at, into, with, incoming } => vec![
                Action::FetchReduce { from, publication, at, into: change(into), with, incoming },
                Action::FetchReduce { from, publication, at, into, with: change(with), incoming },
                Action::FetchReduce { from, publication, at, into: change(into), with: change(with), incoming },
            ],
        });
        all.map(|action| with(schedule, step, action)).collect()
    });
}

#[test]
fn another_action() {
    must_be_caught("another action", |schedule, step, shape| {
        let actions = match schedule.steps[step].action {
            Action::Send { .. } => vec![],
            Action::Fetch { from, publication, at, into } if shape.collective.reduces() && into.len > 0 => {
                vec![Action::FetchReduce { from, publication, at, into, with: into, incoming: Side::Left }]
            }
            Action::FetchReduce { from, publication, at, into, .. } => {
                vec![Action::Fetch { from, publication, at, into }]
            }
            Action::Recv { from, into } if shape.collective.reduces() => {
                vec![Action::RecvReduce { from, into, with: into, incoming: Side::Left }]
            }
            Action::RecvReduce { from, into, .. } => vec![Action::Recv { from, into }],
            Action::Reduce { left, right, into } => {
                vec![Action::Reduce { left, right: left, into }, Action::Reduce { left: right, right, into }]
            }
            Action::Divide { span, by } => vec![Action::Divide { span, by: by + 1 }, Action::Divide { span, by: 0 }],
            _ => vec![],
        };
        actions.into_iter().map(|action| with(schedule, step, action)).collect()
    });
}

#[test]
fn another_publication_or_another_part_of_it() {
    must_be_caught("another publication", |schedule, step, shape| {
        let (number, at) = match schedule.steps[step].action.publication() {
            Some((_, number, at)) => (number, at),
            None => return Vec::new(),
        };
        let is_signal = schedule.steps[step].action.elements() == 0;
        let parts = if is_signal || shape.collective == Collective::Barrier {
            vec![]
        } else {
            vec![at + 1, at.wrapping_sub(1)]
        };
        let others = [(number + 1, at), (number.wrapping_sub(1), at)]
            .into_iter()
            .chain(parts.into_iter().map(|at| (number, at)));
        let changed = others.map(|(publication, at)| match schedule.steps[step].action {
            Action::Fetch { from, into, .. } => Action::Fetch { from, publication, at, into },
            Action::FetchReduce { from, into, with, incoming, .. } => {
                Action::FetchReduce { from, publication, at, into, with, incoming }
            }
            other => other,
        });
        changed.map(|action| with(schedule, step, action)).collect()
    });
}

#[test]
fn no_wait_for_the_readers() {
    must_be_caught("a missing wait", |schedule, step, _| {
        if schedule.steps[step].action != Action::AwaitReaders {
            return Vec::new();
        }
        let mut damaged = schedule.clone();
        damaged.steps.remove(step);
        for later in &mut damaged.steps[step..] {
            later.after.retain(|d| d.step != step as u32);
            later.after.iter_mut().filter(|d| d.step > step as u32).for_each(|d| d.step -= 1);
        }
        vec![damaged]
    });
}

#[test]
fn a_publication_for_other_readers() {
    must_be_caught("other readers", |schedule, step, shape| match schedule.steps[step].action {
        Action::Publish { to: Readers::All, from } if shape.sharing().len() > 2 => {
            let one = Action::Publish { to: Readers::One((shape.rank as u32 + 1) % shape.size as u32), from };
            vec![with(schedule, step, one)]
        }
        Action::Publish { from, .. } if shape.sharing().len() > 2 => {
            vec![with(schedule, step, Action::Publish { to: Readers::All, from })]
        }
        _ => Vec::new(),
    });
}
