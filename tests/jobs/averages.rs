//! Averages of float16: of numbers whose sum overflows, of equal numbers, and how far they are from the exact ones.

use std::sync::Arc;
use std::time::Duration;

use half::f16;

use crate::support::Random;
use crate::support::tier::Tier;
use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions, Reduction};
use gloo_rs::rendezvous::in_process::InProcessStore;
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::{DataType, ReduceOp};

const COUNT: usize = 4400;

/// Runs `work` on `size` ranks that are threads.
fn threads(size: usize, shared_memory: bool, work: impl Fn(&Context) + Sync) {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (store, work) = (store.clone(), &work);
            scope.spawn(move || {
                let hostname = Some("127.0.0.1".into());
                let options = DeviceOptions { hostname, shared_memory: Some(shared_memory), ..Default::default() };
                let device: Arc<Device> = Device::create(&options).unwrap();
                let options = ContextOptions { timeout: Duration::from_secs(60), ..Default::default() };
                let context = Context::new(device, rank, size, &options).unwrap();
                context.connect(&*store).unwrap();
                work(&context);
            });
        }
    });
}

/// The elements of each rank's block.
fn counts(size: usize) -> Vec<usize> {
    (0..size).map(|rank| COUNT / size + rank).collect()
}

fn total(size: usize) -> usize {
    counts(size).iter().sum()
}

/// Element `i` of input `n` of `rank`.
type Value<'a> = &'a dyn Fn(usize, usize, usize) -> f16;

/// The averages that every collective and algorithm gives this rank for `value`, each with its name and the index of
/// its first element.
fn averages(context: &Context, shares: bool, inputs: usize, value: Value<'_>) -> Vec<(String, usize, Vec<f16>)> {
    let (rank, size) = (context.rank(), context.size());
    assert!((0..size).all(|other| other == rank || context.shares_memory(other).unwrap() == shares));
    let (counts, total) = (counts(size), total(size));
    let own: Vec<Vec<f16>> = (0..inputs.max(1)).map(|n| (0..total).map(|i| value(rank, n, i)).collect()).collect();
    let groups: Vec<u32> = (0..size as u32).map(|rank| rank % 2).collect();
    let mut results = Vec::new();
    for collective in [Collective::Allreduce, Collective::Reduce, Collective::ReduceScatter] {
        for algorithm in collective.algorithms().iter().filter(|algorithm| size == 1 || algorithm.name != "local") {
            if algorithm.uses.needs_shared_memory() && !shares {
                continue;
            }
            for groups in [&[][..], &groups] {
                let counts = if collective == Collective::ReduceScatter { &counts[..] } else { &[] };
                let mut output = vec![f16::ZERO; total];
                if inputs == 0 {
                    output.clone_from(&own[0]);
                }
                let shape = Shape {
                    inputs,
                    groups,
                    recv_counts: counts,
                    root: size / 2,
                    average: true,
                    ..Shape::new(collective, rank, size, if counts.is_empty() { total } else { 0 })
                };
                let call = Call {
                    inputs: &own.iter().take(inputs).map(|input| input.as_ptr().cast()).collect::<Vec<_>>(),
                    outputs: &[output.as_mut_ptr().cast()],
                    algorithm: Some(algorithm.name),
                    reduction: Reduction::Op(ReduceOp::Average),
                    max_segment_bytes: Some(512),
                    ..Call::new(shape, DataType::Float16)
                };
                // SAFETY: the vectors are as long as the shape says and live until the call returns.
                unsafe { context.run(&call) }.unwrap();
                let (first, len) = match collective {
                    Collective::Reduce if rank != size / 2 => (0, 0),
                    Collective::ReduceScatter => (counts[..rank].iter().sum(), counts[rank]),
                    _ => (0, total),
                };
                output.truncate(len);
                let what = format!("{} {}, {size} ranks, {inputs} inputs", collective.name(), algorithm.name);
                results.push((what, first, output));
            }
        }
    }
    results
}

fn jobs() -> impl Iterator<Item = (usize, bool, usize)> {
    let step = Tier::from_environment().of(3, 1, 1);
    let sizes = [(1, [2, 3]), (2, [1, 3]), (3, [0, 1]), (5, [1, 2]), (8, [0, 1])];
    let one = |(size, inputs): (usize, [usize; 2])| inputs.map(|inputs| [(size, false, inputs), (size, true, inputs)]);
    sizes.into_iter().flat_map(one).flatten().filter(|(size, shares, _)| *size > 1 || *shares).step_by(step)
}

/// Whatever their number, and however large they are.
#[test]
fn the_average_of_equal_numbers_is_that_number() {
    for (size, shares, inputs) in jobs() {
        threads(size, shares, |context| {
            // Every number, among them infinities and subnormals; not a NaN.
            for start in (0..0x7C01).step_by(COUNT * Tier::from_environment().of(3, 1, 1)) {
                let bits = |i: usize| ((start + i % COUNT).min(0x7C00) | (i & 1) << 15) as u16;
                for (what, first, output) in averages(context, shares, inputs, &|_, _, i| f16::from_bits(bits(i))) {
                    for (i, value) in output.iter().enumerate() {
                        assert_eq!(value.to_bits(), bits(first + i), "{what}: element {i}");
                    }
                }
            }
        });
    }
}

/// Numbers of one magnitude, of both signs or of one, from subnormal ones to the largest.
#[test]
fn averages_are_near_the_exact_ones() {
    for (size, shares, inputs) in jobs() {
        threads(size, shares, |context| {
            let exponents = [-24, 0, 15, -16, -14];
            for exponent in exponents.into_iter().take(Tier::from_environment().of(3, 5, 5)) {
                for negative in [0, 1] {
                    let value = |rank: usize, n: usize, i: usize| {
                        let mut random = Random::new((rank * 1000 + n * 100_000 + i) as u64 * 31 + negative);
                        let sign = if random.next() & negative == 0 { 1.0 } else { -1.0 };
                        let fraction = 1.0 + (random.next() % 1024) as f64 / 1024.0;
                        f16::from_f64(sign * fraction.min(1.999) * 2f64.powi(exponent))
                    };
                    let contributions = (size * inputs.max(1)) as f64;
                    // Each number may be rounded by half of the distance of two neighbours, and again the mean of the
                    // first `k` of `n`, which weighs `k / n`.
                    let distance = 2f64.powi((exponent - 10).max(-24));
                    let max = distance / 2.0 * (contributions + 1.0) / 2.0;
                    let all: Vec<_> = (0..size).flat_map(|rank| (0..inputs.max(1)).map(move |n| (rank, n))).collect();
                    let sum = |i| all.iter().map(|(rank, n)| value(*rank, *n, i).to_f64()).sum::<f64>();
                    let exact: Vec<f64> = (0..total(size)).map(|i| sum(i) / contributions).collect();
                    for (what, first, output) in averages(context, shares, inputs, &value) {
                        for (i, (got, exact)) in output.iter().zip(&exact[first..]).enumerate() {
                            let error = (got.to_f64() - exact).abs();
                            assert!(error <= max, "{what}, 2^{exponent}, element {i}: {got} for {exact}");
                        }
                    }
                }
            }
        });
    }
}
