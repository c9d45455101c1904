//! Contexts with TCP links to some peers and in-memory links to others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, ContextOptions};
use crate::error::Result;
use crate::testing::loopback::{LinkModel, Network, Node};
use crate::transport::device::{Device, DeviceOptions};
use crate::transport::{CloseNotice, Connector, ConnectorEvent, Description, Part, Peers, Provided, Provider, Reach};
use crate::types::{DataType, Rank};

/// In-memory links to some ranks.
#[derive(Clone)]
struct InMemory {
    network: Network,
    node: Arc<Node>,
    over_memory: fn(Rank, Rank) -> bool,
}

impl Provider for InMemory {
    fn part(&self, provided: &mut Provided<'_>) -> Result<Part> {
        let Part { connector, .. } = self.node.part(provided)?;
        Ok(InMemoryConnector { of: self.clone(), connector }.into())
    }
}

struct InMemoryConnector {
    of: InMemory,
    connector: Box<dyn Connector>,
}

impl Connector for InMemoryConnector {
    fn reach(&mut self, peers: &Peers, rank: Rank) -> Result<Reach> {
        if (self.of.over_memory)(peers.rank, rank) { self.connector.reach(peers, rank) } else { Ok(Reach::No) }
    }
    fn connect(&mut self, rank: Rank) {
        self.connector.connect(rank);
    }
    fn give_up(&mut self, rank: Rank) {
        self.connector.give_up(rank);
    }
    fn close(&mut self, close_notice: CloseNotice, has_failed: bool) {
        self.connector.close(close_notice, has_failed);
    }
    fn is_busy(&self) -> bool {
        true
    }
    fn progress(&mut self, peers: &Peers, now: Instant, events: &mut Vec<ConnectorEvent>) {
        self.of.network.step(now);
        self.connector.progress(peers, now, events);
    }
    fn next_timer(&self) -> Option<Instant> {
        // In-memory links have no descriptor, so a sleeping thread must check them frequently.
        let soon = Instant::now() + Duration::from_millis(1);
        Some(self.of.network.next_event(self.of.node.number()).unwrap_or(soon).max(soon))
    }
    fn describe(&self, peers: &Peers, rank: Rank) -> Description {
        self.connector.describe(peers, rank)
    }
}

/// Runs `work` on ranks that are threads, with in-memory links that read large messages, and with such that place them.
fn ranks(size: usize, over_memory: fn(Rank, Rank) -> bool, work: impl Fn(&Arc<Context>) + Sync) {
    ranks_with((Some(500), None), size, over_memory, &work);
    ranks_with((None, Some(500)), size, over_memory, &work);
}

/// Like [`ranks`], with in-memory links that read or place messages longer than these.
fn ranks_with(
    above: (Option<usize>, Option<usize>),
    size: usize,
    over_memory: fn(Rank, Rank) -> bool,
    work: &(impl Fn(&Arc<Context>) + Sync),
) {
    let delay = Duration::from_micros(1)..Duration::from_micros(50);
    let (reads_above, places_above) = above;
    let network = Network::new(1, LinkModel { delay, capacity: 100_000, piece: 20_000, reads_above, places_above });
    let options = ContextOptions { timeout: Duration::from_secs(30), ..Default::default() };
    let contexts: Vec<_> = (0..size)
        .map(|rank| {
            let named = DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
            let memory = InMemory { network: network.clone(), node: Node::new(&network, |_| {}), over_memory };
            Context::new(Device::over(&named, vec![Box::new(memory)]).unwrap(), rank, size, &options).unwrap()
        })
        .collect();
    let addresses: Vec<_> = contexts.iter().map(|c| c.lock().unwrap().messenger.address()).collect();
    for context in &contexts {
        for (rank, address) in addresses.iter().enumerate() {
            context.lock().unwrap().messenger.set_peer(rank, address).unwrap();
        }
    }
    std::thread::scope(|scope| contexts.iter().for_each(|context| drop(scope.spawn(|| work(context)))));
}

/// Ranks 2i and 2i + 1 have in-memory links.
fn in_pairs(a: Rank, b: Rank) -> bool {
    a / 2 == b / 2
}

#[test]
fn collectives_span_both_kinds_of_link() {
    ranks(4, in_pairs, |context| {
        for algorithm in ["ring", "halving_doubling", "direct"] {
            for count in [1, 1000, 40_000] {
                let input: Vec<i64> = (0..count).map(|i| i + context.rank() as i64).collect();
                let mut output = vec![0i64; input.len()];
                let call = Call {
                    inputs: &[input.as_ptr().cast()],
                    outputs: &[output.as_mut_ptr().cast()],
                    algorithm: Some(algorithm).filter(|name| Collective::Allreduce.algorithm(name).is_ok()),
                    max_segment_bytes: Some(64 << 10),
                    ..Call::new(Shape::new(Collective::Allreduce, context.rank(), 4, input.len()), DataType::Int64)
                };
                // SAFETY: the vectors have the lengths given by the shape and live until the call returns.
                unsafe { context.run(&call) }.unwrap();
                assert!(output.iter().enumerate().all(|(i, sum)| *sum == 4 * i as i64 + 6));
            }
        }
    });
}

#[test]
fn a_receive_from_any_rank_spans_both_kinds_of_link() {
    const ROUNDS: usize = 30;
    ranks(4, in_pairs, |context| {
        let mut memory = vec![context.rank() as u8; 70_000];
        // SAFETY: the vector lives longer than the buffer.
        let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()) }.unwrap();
        if context.rank() > 0 {
            for round in 0..ROUNDS {
                buffer.send(0, 9, 0, [1, 70_000][round % 2]).unwrap();
                buffer.wait_send(None).unwrap();
            }
            return;
        }
        let (mut seen, mut received) = ([0; 4], 0);
        for _ in 0..3 * ROUNDS {
            buffer.recv(&[1, 2, 3], 9, 0, 70_000).unwrap();
            let (rank, bytes) = buffer.wait_recv(None).unwrap().unwrap();
            seen[rank] += 1;
            received += bytes;
        }
        assert_eq!((seen, received), ([0, ROUNDS, ROUNDS, ROUNDS], 3 * ROUNDS / 2 * 70_001));
    });
}
