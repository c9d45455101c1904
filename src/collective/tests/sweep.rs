//! Verifies every algorithm in the lists of all collectives for 1 to 16 ranks, by `make test` to 128, and by `make
//! test-more` for powers of two and some of their neighbours up to 1024; those on shared memory for as many as can
//! share it. An algorithm that is added to a list is covered automatically.

use std::collections::HashSet;

use super::calls::{Form, Sample, forms, is_full};
use super::*;
use crate::schedule::compiled::Compiled;

/// Maximum number of ranks whose calls are verified in all forms.
const ALL_FORMS: usize = 6;
/// Maximum number of ranks whose calls are verified in two forms; above, it is one. `make test` has it for fewer.
const TWO_FORMS: usize = 64;
const TWO_FORMS_IN_TEST: usize = 24;
/// Above that, powers of two and their neighbours; not all of the largest, which take most of the time.
const LARGE: [usize; 7] = [129, 255, 256, 257, 511, 513, 1024];
/// Maximum number of ranks with measured links, whose trees are expensive to compute.
const MEASURED: usize = 64;
/// Maximum number of ranks that share memory.
const SHARED: usize = 64;

fn prove_form(collective: Collective, algorithm: &Algorithm, size: usize, form: Form) {
    let Some(sample) = Sample::new(collective, algorithm, size, form) else { return };
    let (mut shapes, name) = (sample.shapes(), collective.name());
    if let Err(error) = verify_all(&shapes, algorithm) {
        panic!("{name} {}, {size} ranks, {form:?}: {error}", algorithm.name);
    }
    // The caller of every second rank has a buffer for each block, then that of every rank; by `make test` one of the two,
    // and of few of the larger numbers of ranks.
    let some = size <= TWO_FORMS_IN_TEST || matches!(size, 31..=33 | 64 | 128);
    let ways = [2, 1].into_iter().filter(|ranks| match Tier::from_environment() {
        Tier::More => true,
        _ => some && size % 2 + 1 == *ranks,
    });
    for ranks in ways {
        for shape in shapes.iter_mut().filter(|shape| shape.rank.is_multiple_of(ranks)) {
            *shape = Shape { blocks: true, ..*shape };
            if shape.check().is_err() {
                return;
            }
        }
        if let Err(error) = verify_all(&shapes, algorithm) {
            panic!("{name} {} in blocks, {size} ranks, {form:?}: {error}", algorithm.name);
        }
    }
}

/// A form in which no part is empty and not all parts are equal, alternately in place and not; it depends on the number
/// of ranks.
fn full_form(collective: Collective, algorithm: &Algorithm, size: usize) -> Form {
    let mut all = forms(collective, algorithm, size);
    all.retain(|form| {
        is_full(collective, size, form) && (form.topology == 0 || algorithm.uses != Uses::Links || size <= MEASURED)
    });
    let in_place = |form: &Form| (form.inputs == 0) == size.is_multiple_of(2);
    if all.iter().any(in_place) {
        all.retain(in_place);
    }
    all[size * 5 / 2 % all.len()]
}

/// The ranks of two caches in turns.
fn two_caches(size: usize) -> Vec<u32> {
    (0..size).map(|rank| rank as u32 % 2).collect()
}

/// Each algorithm that is said to fold does so in every form, and each other one has a form in which it does not.
#[test]
fn algorithms_that_fold_do_so_in_every_form_and_no_others() {
    let max = Tier::from_environment().of(6, 17, 33);
    for &collective in Collective::ALL.iter().filter(|collective| collective.has_order()) {
        for algorithm in collective.algorithms() {
            let order = if collective.folds(algorithm) { Order::Ranks } else { Order::Any };
            let mut folds = true;
            for size in 1..=max {
                for (text, report, _) in in_order(collective, algorithm, size, order) {
                    folds &= report.folds;
                    assert!(report.folds || order == Order::Any, "{text}");
                }
                if !folds {
                    break;
                }
            }
            assert_eq!(folds, collective.folds(algorithm), "{} {}", collective.name(), algorithm.name);
        }
    }
}

/// Verifies the schedules of `algorithm` in every form that it has for the order. Returns what each is called, what the
/// verifier says, and whether every rank combines all contributions at once, or none.
fn in_order(
    collective: Collective,
    algorithm: &'static Algorithm,
    size: usize,
    order: Order,
) -> impl Iterator<Item = (String, Report, bool)> {
    forms(collective, algorithm, size).into_iter().filter_map(move |form| {
        let domains = two_caches(size);
        let sample = Sample::new(collective, algorithm, size, form)?;
        let mut shapes = sample.shapes();
        if algorithm.uses == Uses::Domains {
            shapes.iter_mut().for_each(|shape| shape.domains = &domains);
        }
        shapes.iter_mut().for_each(|shape| shape.order = order);
        let contributions = shapes[0].contributions();
        let are_alike = shapes.iter().all(|shape| shape.contributions() == contributions);
        if order == Order::Reproducible && !(are_alike && shapes[0].folds(algorithm)) {
            return None;
        }
        let text = format!("{} {}, {size} ranks, {form:?}", collective.name(), algorithm.name);
        let report = verify_all(&shapes, algorithm).unwrap_or_else(|error| panic!("{text}: {error}"));
        let all = size * contributions;
        let at_once = |shape: &Shape<'_>| {
            // Their generator makes the schedules of all ranks.
            if algorithm.uses == Uses::Links {
                return false;
            }
            let mut schedule = algorithm.schedule(shape).unwrap();
            match Compiled::new(&schedule, &[], size, true) {
                Some(program) if algorithm.uses == Uses::SharedMemory && size > 1 => program.combines_at_once(all),
                _ => schedule.fold(all).is_some(),
            }
        };
        let is_at_once = shapes.iter().all(at_once);
        Some((text, report, is_at_once))
    })
}

/// In reproducible calls of the algorithms that fold, every result is one combination of all contributions: it has each
/// once, as the verifier says, and no combination has fewer. No other algorithm is like that.
#[test]
fn reproducible_calls_combine_all_contributions_at_once() {
    let max = Tier::from_environment().of(5, 12, 33);
    for &collective in Collective::ALL.iter().filter(|collective| collective.has_order()) {
        for algorithm in collective.algorithms() {
            let is_eligible = collective.folds(algorithm);
            let (mut checked, mut all_at_once) = (0, true);
            for size in 1..=max {
                let order = if is_eligible { Order::Reproducible } else { Order::Any };
                for (text, _, at_once) in in_order(collective, algorithm, size, order) {
                    // Up to two contributions are added once by any algorithm.
                    (checked, all_at_once) = (checked + 1, all_at_once && (at_once || size < 3));
                    assert!(at_once || !is_eligible || size < 3, "{text}");
                }
                if !all_at_once {
                    break;
                }
            }
            assert!(checked > 0, "{} {}", collective.name(), algorithm.name);
            assert_eq!(all_at_once, is_eligible, "{} {}", collective.name(), algorithm.name);
        }
    }
}

/// Each algorithm that is said to compute all elements by one expression does so in every form, whatever its length, and
/// each other one has a form in which it does not.
#[test]
fn algorithms_with_one_expression_for_all_elements_have_one_in_every_form_and_no_others() {
    let max = Tier::from_environment().of(5, 12, 33);
    let allreduce = Collective::Allreduce;
    let has_one = |algorithm: &&Algorithm| (1..=max).all(|size| has_one_expression(allreduce, algorithm, size));
    let names = |algorithm: &Algorithm| algorithm.name;
    let found: Vec<_> = allreduce.algorithms().iter().filter(has_one).map(names).collect();
    let said = allreduce.algorithms().iter().filter(|algorithm| allreduce.is_uniform(algorithm));
    assert_eq!(found, said.map(names).collect::<Vec<_>>());
}

/// Whether calls of `size` ranks that differ in their length alone compute all elements by one expression, in each form.
fn has_one_expression(collective: Collective, algorithm: &Algorithm, size: usize) -> bool {
    let domains = two_caches(size);
    // Only calls of one buffer are joined.
    let all = forms(collective, algorithm, size).into_iter();
    let mut all = all.filter(|form| form.inputs <= 1 && form.outputs == 1 && form.elements == 1);
    all.all(|form| {
        let expressions = [1, 2, size, 3 * size + 1, 40].into_iter().flat_map(|elements| {
            let Some(sample) = Sample::new(collective, algorithm, size, Form { elements, ..form }) else {
                return Vec::new();
            };
            let mut shapes = sample.shapes();
            if algorithm.uses == Uses::Domains {
                shapes.iter_mut().for_each(|shape| shape.domains = &domains);
            }
            verify_all(&shapes, algorithm).unwrap_or_else(|error| panic!("{form:?}: {error}")).expressions
        });
        expressions.collect::<HashSet<u64>>().len() <= 1
    })
}

/// Rebuilding a schedule changes nothing but what blocks need: without them, the result equals the original.
#[test]
fn a_schedule_without_blocks_is_made_anew_as_it_is() {
    for &collective in Collective::ALL {
        for algorithm in collective.algorithms() {
            for size in [1, 2, 3, 6].into_iter().take(Tier::from_environment().of(3, 4, 4)) {
                let domains = two_caches(size);
                for form in forms(collective, algorithm, size) {
                    let Some(sample) = Sample::new(collective, algorithm, size, form) else { continue };
                    for shape in sample.shapes() {
                        let shape = Shape { domains: &domains, ..shape };
                        let schedule = (algorithm.generate)(&shape).unwrap();
                        let text = format!("{} {}, {size} ranks, {form:?}", collective.name(), algorithm.name);
                        assert_eq!(schedule.in_blocks(None, None), schedule, "{text}");
                    }
                }
            }
        }
    }
}

fn largest(algorithm: &Algorithm) -> usize {
    if algorithm.uses.needs_shared_memory() { SHARED } else { usize::MAX }
}

/// Every number of ranks.
fn every_size(collective: Collective) {
    let tier = Tier::from_environment();
    let (max, two_forms) = (tier.of(16, 128, 128), tier.of(16, TWO_FORMS_IN_TEST, TWO_FORMS));
    for algorithm in collective.algorithms() {
        for size in 1..=max.min(largest(algorithm)) {
            let all = forms(collective, algorithm, size);
            if size <= tier.of(4, ALL_FORMS, ALL_FORMS) {
                all.into_iter().for_each(|form| prove_form(collective, algorithm, size, form));
                continue;
            }
            prove_form(collective, algorithm, size, full_form(collective, algorithm, size));
            // One further form.
            let form = all[size * 11 % all.len()];
            if size <= two_forms && (form.topology == 0 || algorithm.uses != Uses::Links || size <= MEASURED) {
                prove_form(collective, algorithm, size, form);
            }
        }
    }
}

fn large_sizes(collective: Collective) {
    for algorithm in collective.algorithms() {
        for size in LARGE.into_iter().filter(|&size| size <= largest(algorithm)) {
            prove_form(collective, algorithm, size, full_form(collective, algorithm, size));
        }
    }
}

macro_rules! sweeps {
    ($($name:ident $collective:ident),*) => {
        mod few {
            $(#[test]
            fn $name() {
                super::every_size(super::Collective::$collective);
            })*
        }
        mod many {
            $(#[test]
            #[ignore = "make test-more"]
            fn $name() {
                super::large_sizes(super::Collective::$collective);
            })*
        }
        #[test]
        fn no_collective_is_left_out() {
            assert_eq!(Collective::ALL, [$(Collective::$collective),*]);
        }
    };
}

sweeps! {
    allreduce Allreduce, reduce Reduce, reduce_scatter ReduceScatter, broadcast Broadcast, allgather Allgather,
    allgatherv Allgatherv, gather Gather, gatherv Gatherv, scatter Scatter, scatterv Scatterv, alltoall Alltoall,
    alltoallv Alltoallv, barrier Barrier, pairwise_exchange PairwiseExchange, scan Scan, exscan Exscan
}
