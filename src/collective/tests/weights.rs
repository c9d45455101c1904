//! The weights of means, of every algorithm that computes averages.

use super::calls::{Form, Sample, forms};
use super::*;
use crate::schedule::weights::weights;

/// All operands of a reduction have one number of contributions, whichever the algorithm and the form of the call, and
/// all contributions are in the result, since the last reduction of the elements of an output is of all.
#[test]
fn every_average_can_be_a_mean_of_means() {
    let mut reductions = 0;
    for collective in [Collective::Allreduce, Collective::Reduce, Collective::ReduceScatter] {
        for algorithm in collective.algorithms() {
            for size in (1..=13).chain([16, 24, 31, 33, 64]).take(Tier::from_environment().of(4, 17, 18)) {
                for form in forms(collective, algorithm, size) {
                    if size > 8 && (form.elements <= size || form.topology != 0 && algorithm.uses == Uses::Links) {
                        continue;
                    }
                    let Some(sample) = Sample::new(collective, algorithm, size, Form { average: true, ..form }) else {
                        continue;
                    };
                    let shapes: Vec<_> = sample.shapes().iter().map(|s| Shape { means: true, ..*s }).collect();
                    let rank = (form.elements + form.root) % size;
                    let own = (algorithm.generate)(&shapes[rank]).unwrap();
                    let found = mean::weights(&shapes[rank], algorithm, &own).unwrap_or_else(|e| {
                        panic!("{} {}, {size} ranks, {form:?}: {e}", collective.name(), algorithm.name)
                    });
                    let schedules: Vec<_> = shapes.iter().map(|s| (algorithm.generate)(s).unwrap()).collect();
                    assert_eq!(
                        weights(&schedules, rank).unwrap(),
                        found,
                        "the other ranks' buffers make no difference"
                    );
                    let all = (size * shapes[rank].contributions()) as u32;
                    assert!(found.iter().all(|[left, right]| left + right <= all), "{found:?}");
                    reductions += found.iter().filter(|weights| **weights != [0, 0]).count();
                }
            }
        }
    }
    assert!(reductions > 5_000, "{reductions}");
}
