//! What algorithms say they cost is what they cost on the simulator, which plays their schedules on the same model.

use super::*;
use crate::schedule::cost::Network;
use crate::schedule::simulate::{Options, Simulation, simulate};

/// Cuts nothing.
const WHOLE: usize = 1 << 40;

/// 10 µs, 10 GB/s, 50 GB/s of reductions.
const NETWORK: Network = Network::flat(Link { latency: 10e-6, bandwidth: 10e9 }, 2e-11);

fn played(call: &Shape<'static>, algorithm: &Algorithm, network: &Network, segment_bytes: usize) -> Simulation {
    let options = Options { segment_bytes, ..Options::new(*network) };
    simulate(call.size, &|rank| (algorithm.generate)(&Shape { rank, ..*call }), &options).unwrap()
}

fn priced(call: &Shape<'static>, algorithm: &Algorithm, network: &Network, segment_bytes: usize) -> Cost {
    (algorithm.cost)(&Case { shape: call, element_bytes: 4, segment_bytes, network })
}

#[test]
fn table() {
    for collective in [Collective::Allreduce, Collective::Reduce, Collective::Broadcast, Collective::Barrier] {
        for algorithm in collective.algorithms() {
            if algorithm.name == "local" {
                continue;
            }
            for size in [4, 8, 16, 64, 5, 6, 7, 12, 100] {
                for bytes in [256, 1 << 16, 1 << 20, 1 << 26] {
                    for segment in [WHOLE, 1 << 16] {
                        let buffers = usize::from(collective != Collective::Barrier);
                        let call = Shape { inputs: 0, outputs: buffers, ..Shape::new(collective, 0, size, bytes / 4) };
                        let (p, c) =
                            (played(&call, algorithm, &NETWORK, segment), priced(&call, algorithm, &NETWORK, segment));
                        println!(
                            "{:9} {:18} P {:3} S {:8} seg {:8} sim {:12.3} cost {:12.3} ratio {:6.3} messages {} {} sent {} {} reduced {} {} steps {}",
                            collective.name(),
                            algorithm.name,
                            size,
                            bytes,
                            if segment == WHOLE { 0 } else { segment },
                            p.seconds * 1e6,
                            c.path * 1e6,
                            c.path / p.seconds,
                            p.messages,
                            c.messages,
                            p.sent.iter().sum::<u64>(),
                            c.sent,
                            p.reduced.iter().sum::<u64>(),
                            c.reduced,
                            p.steps
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn trees() {
    for collective in [Collective::Allreduce, Collective::Reduce, Collective::Broadcast] {
        let algorithm = collective.algorithm("double_binary_tree").unwrap();
        for size in [2, 4, 8, 16, 32, 64, 256, 1024, 7, 12, 100] {
            for ratio in [0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0] {
                for pieces in [1, 4, 64] {
                    for gamma in [0.0, 0.2, 0.8] {
                        // u = 1 s: S/2 = 2^16 bytes at 2^16 bytes a second
                        let network =
                            Network::flat(Link { latency: ratio * 1e-3, bandwidth: 65536.0e3 }, gamma / 65536.0e3);
                        let call = Shape { inputs: 0, ..Shape::new(collective, 0, size, 32768) };
                        let p = played(&call, algorithm, &network, 65536 / pieces);
                        let c = priced(&call, algorithm, &network, 65536 / pieces);
                        println!(
                            "TREE {} {} {} {} {} {} {} {}",
                            collective.name(),
                            size,
                            ratio,
                            pieces,
                            gamma,
                            p.seconds,
                            c.path,
                            p.steps
                        );
                    }
                }
            }
        }
    }
}
