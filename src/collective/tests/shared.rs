//! The algorithms on shared memory.

use super::calls::{Sample, forms};
use super::*;
use crate::error::ErrorKind;
use crate::schedule::cost::{Link, Network, SharedMemory};
use crate::schedule::simulate::{Options, simulate};

/// The algorithms on shared memory, of all collectives.
fn all() -> impl Iterator<Item = (Collective, &'static Algorithm)> {
    let of = |&collective: &Collective| collective.algorithms().iter().map(move |algorithm| (collective, algorithm));
    Collective::ALL.iter().flat_map(of).filter(|(_, algorithm)| algorithm.uses == Uses::SharedMemory)
}

#[test]
fn few_ranks_in_every_form_reduce_in_rank_order() {
    for (collective, algorithm) in all() {
        for size in 1..=9 {
            for form in forms(collective, algorithm, size) {
                let Some(sample) = Sample::new(collective, algorithm, size, form) else { continue };
                let report = verify_all(&sample.shapes(), algorithm);
                let report =
                    report.unwrap_or_else(|e| panic!("{} {}, {form:?}: {e}", collective.name(), algorithm.name));
                assert!(report.in_order, "{} {}, {form:?}", collective.name(), algorithm.name);
                assert!(report.traffic.iter().all(|traffic| traffic.messages == 0));
            }
        }
    }
}

#[test]
fn ranks_without_shared_memory_are_refused() {
    for (collective, algorithm) in all() {
        let mut call = Calls::new(collective, 2, 8, 0);
        let error = (algorithm.generate)(&call.shape(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let why = format!("{} on rank 1: this algorithm needs shared memory", collective.name());
        assert!(error.message().starts_with(&why), "{error}");
        call.shared = true;
        (algorithm.generate)(&call.shape(1)).unwrap();
        // A single rank shares with nobody.
        (algorithm.generate)(&Calls::new(collective, 1, 8, 0).shape(0)).unwrap();
    }
}

#[test]
fn formulas_agree_with_the_simulator() {
    let memory = SharedMemory { signal: 2e-7, fetch: 5e-8, call: 1e-6, copy: 1e-10, read: 1.5e-10, by_value: 4096.0 };
    let link = Link { latency: 1e-5, bandwidth: 1e9 };
    let mut compared = 0;
    let mut wrong = Vec::new();
    for (collective, algorithm) in all() {
        for size in [2, 4, 7, 16] {
            for (elements, gamma) in [(64, 1e-10), (1024, 0.0), (1 << 18, 1e-10)] {
                let mut calls = Calls::new(collective, size, elements * size, 0);
                calls.shared = true;
                let network = Network { per_host: size, cores: size, memory, ..Network::flat(link, gamma) };
                let options = Options::new(network);
                let result = simulate(size, &|rank| (algorithm.generate)(&calls.shape(rank)), &options).unwrap();
                let cost = (algorithm.cost)(&Case {
                    shape: &calls.shape(0),
                    element_bytes: 4,
                    segment_bytes: options.segment_bytes,
                    network: &network,
                    constants: &Constants::BUILT_IN,
                });
                let ratio = cost.path / result.seconds;
                let moved = [&result.sent, &result.reduced].map(|bytes| bytes.iter().sum::<u64>() as f64);
                let priced = [cost.sent, cost.reduced];
                let same = moved.iter().zip(priced).all(|(a, b)| (a - b).abs() <= 1e-9 * b);
                if !(0.95..1.05).contains(&ratio) || !same || (result.messages, cost.messages) != (0, 0.0) {
                    wrong.push(format!(
                        "{} {}, {size} ranks, {elements}: {} s, {moved:?} bytes, priced at {cost:?}: {ratio:.3}",
                        collective.name(),
                        algorithm.name,
                        result.seconds,
                    ));
                }
                compared += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 100);
}
