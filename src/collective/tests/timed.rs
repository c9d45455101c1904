//! Allreduces in groups, grids and trees, played on a network: as fast as they are priced, and faster than a ring where
//! they should be.

use super::*;
use crate::schedule::cost::{Link, Network};
use crate::schedule::simulate::{Options, Simulation, simulate};

const REMOTE: Link = Link { latency: 10e-6, bandwidth: 1e9 };
const LOCAL: Link = Link { latency: 1e-6, bandwidth: 20e9 };
const GAMMA: f64 = 0.05e-9;
const MIB: usize = 1 << 20;

fn play(name: &str, call: Shape<'_>, options: &Options<'_>) -> Simulation {
    let algorithm = call.collective.algorithm(name).unwrap();
    simulate(call.size, &|rank| (algorithm.generate)(&Shape { rank, ..call }), options).unwrap()
}

fn price(name: &str, call: Shape<'_>, options: &Options<'_>) -> Cost {
    let Options { network, element_bytes, segment_bytes, .. } = options;
    let case = Case { shape: &call, element_bytes: *element_bytes, segment_bytes: *segment_bytes, network };
    (call.collective.algorithm(name).unwrap().cost)(&case)
}

#[test]
fn explore() {
    let hosts = |per_host, consecutive| Network {
        local: LOCAL,
        remote: REMOTE,
        gamma: GAMMA,
        per_host,
        consecutive,
        cores: 64,
    };
    for (what, network, per_host) in
        [("flat", Network::flat(REMOTE, GAMMA), 1), ("hosts4", hosts(4, true), 4), ("one", hosts(1 << 20, true), 1)]
    {
        for size in [4usize, 6, 8, 12, 16, 17, 64, 256] {
            let groups: Vec<u32> = if per_host > 1 { (0..size as u32).map(|r| r / per_host).collect() } else { vec![] };
            for bytes in [1024usize, MIB, 64 * MIB] {
                for segment in [1 << 40, 64 << 10] {
                    if segment < 1 << 30 && size > 64 {
                        continue;
                    }
                    for name in ["ring_segmented", "hierarchical", "torus_2d", "torus_nd", "mesh_2d", "spanning_trees"]
                    {
                        let call = Shape { groups: &groups, ..shape(Collective::Allreduce, size, bytes / 4) };
                        let options = Options { segment_bytes: segment, ..Options::new(network) };
                        let simulated = play(name, call, &options);
                        let cost = price(name, call, &options);
                        println!(
                            "ZZ {what} {size} {bytes} {} {name} sim {:.1} cost {:.1} ratio {:.3} msgs {} {} sent {} {}",
                            segment >> 16,
                            simulated.seconds * 1e6,
                            cost.path * 1e6,
                            cost.path / simulated.seconds,
                            simulated.messages,
                            cost.messages,
                            simulated.sent.iter().sum::<u64>(),
                            cost.sent
                        );
                    }
                }
            }
        }
    }
}
