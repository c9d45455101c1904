//! Contexts with TCP links to some peers and in-memory links to others.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, ContextOptions};
use crate::error::Result;
use crate::log::LogCallback;
use crate::net::address::Address;
use crate::net::handshake::Identity;
use crate::secret::JobToken;
use crate::sys::Pollable;
use crate::transport::loopback::{LinkModel, Network, Node};
use crate::transport::{
    BackgroundProgress, Clock, CloseNotice, Connector, ConnectorEvent, Device, SystemClock, Watch, tcp,
};
use crate::types::{DataType, Rank};

/// The in-memory address of each rank, by its TCP identity.
type MemoryAddresses = Arc<Mutex<HashMap<Identity, Address>>>;

/// A device with in-memory links to some ranks and TCP links to the others.
struct Mixed {
    tcp: Arc<tcp::Device>,
    network: Network,
    node: Arc<Node>,
    memory_addresses: MemoryAddresses,
    over_memory: fn(Rank, Rank) -> bool,
}

struct MixedConnector {
    rank: Rank,
    tcp: Box<dyn Connector>,
    memory: Box<dyn Connector>,
    network: Network,
    node: usize,
    memory_addresses: MemoryAddresses,
    over_memory: fn(Rank, Rank) -> bool,
}

impl MixedConnector {
    fn of(&mut self, rank: Rank) -> &mut dyn Connector {
        if (self.over_memory)(self.rank, rank) { self.memory.as_mut() } else { self.tcp.as_mut() }
    }
}

impl Connector for MixedConnector {
    fn set_rank(&mut self, rank: Rank, size: usize) {
        self.rank = rank;
        self.tcp.set_rank(rank, size);
        self.memory.set_rank(rank, size);
    }
    fn address(&self) -> &Address {
        self.tcp.address()
    }
    fn set_sockets(&mut self, sockets: Vec<SocketAddr>) {
        self.tcp.set_sockets(sockets);
    }
    fn set_peer(&mut self, rank: Rank, address: Address) -> Result<()> {
        let memory_address = self.memory_addresses.lock().unwrap()[&address.identity].clone();
        self.memory.set_peer(rank, memory_address)?;
        self.tcp.set_peer(rank, address)
    }
    fn peer(&self, rank: Rank) -> Option<&Address> {
        self.tcp.peer(rank)
    }
    fn knows_any_peer(&self) -> bool {
        self.tcp.knows_any_peer()
    }
    fn connect(&mut self, rank: Rank) {
        self.of(rank).connect(rank);
    }
    fn give_up(&mut self, rank: Rank) {
        self.of(rank).give_up(rank);
    }
    fn close(&mut self, close_notice: CloseNotice, has_failed: bool) {
        self.tcp.close(close_notice.clone(), has_failed);
        self.memory.close(close_notice, has_failed);
    }
    fn is_busy(&self) -> bool {
        true
    }
    fn progress(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>) {
        self.network.step(now);
        self.memory.progress(now, events);
        self.tcp.progress(now, events);
    }
    fn next_timer(&self) -> Option<Instant> {
        // In-memory links have no descriptor, so a sleeping thread must check them frequently.
        let soon = Instant::now() + Duration::from_millis(1);
        let memory = self.network.next_event(self.node).unwrap_or(soon).max(soon);
        Some(self.tcp.next_timer().map_or(memory, |timer| timer.min(memory)))
    }
    fn descriptors(&self, into: &mut Vec<Pollable>) {
        self.tcp.descriptors(into);
    }
    fn location(&self, rank: Rank) -> Option<String> {
        if (self.over_memory)(self.rank, rank) { self.memory.location(rank) } else { self.tcp.location(rank) }
    }
    fn why_not_connected(&self, rank: Rank) -> String {
        self.tcp.why_not_connected(rank)
    }
}

impl Device for Mixed {
    fn connector(self: Arc<Self>, token: &JobToken) -> Result<Box<dyn Connector>> {
        let tcp = self.tcp.clone().connector(token)?;
        let memory = self.node.clone().connector(token)?;
        self.memory_addresses.lock().unwrap().insert(tcp.address().identity, memory.address().clone());
        let (network, node, memory_addresses) =
            (self.network.clone(), self.node.number(), self.memory_addresses.clone());
        Ok(Box::new(MixedConnector {
            rank: 0,
            tcp,
            memory,
            network,
            node,
            memory_addresses,
            over_memory: self.over_memory,
        }))
    }
    fn watch(
        self: Arc<Self>,
        connector: &dyn Connector,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Watch>> {
        self.tcp.clone().watch(connector, context)
    }
    fn provisional_sockets(&self, store: Option<SocketAddr>) -> Result<Vec<SocketAddr>> {
        self.tcp.provisional_sockets(store)
    }
    fn listen(&self, store: Option<SocketAddr>, all_addresses: &[Address], rank: Rank) -> Result<Vec<SocketAddr>> {
        self.tcp.listen(store, all_addresses, rank)
    }
    fn listen_anywhere(&self) -> Result<Vec<SocketAddr>> {
        self.tcp.listen_anywhere()
    }
    fn log(&self) -> Option<LogCallback> {
        None
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }
    fn transport(&self) -> &'static str {
        "tcp"
    }
    fn is_inherited(&self) -> bool {
        false
    }
    fn accept_error(&self) -> Option<io::Error> {
        None
    }
}

/// Runs `work` on ranks that are threads, with in-memory links that read large messages, and with such that place them.
fn ranks(size: usize, over_memory: fn(Rank, Rank) -> bool, work: impl Fn(&Arc<Context>) + Sync) {
    ranks_with((Some(500), None), size, over_memory, &work);
    ranks_with((None, Some(500)), size, over_memory, &work);
}

/// As [`ranks`], with in-memory links that read or place messages longer than these.
fn ranks_with(
    above: (Option<usize>, Option<usize>),
    size: usize,
    over_memory: fn(Rank, Rank) -> bool,
    work: &(impl Fn(&Arc<Context>) + Sync),
) {
    let delay = Duration::from_micros(1)..Duration::from_micros(50);
    let (reads_above, places_above) = above;
    let network = Network::new(1, LinkModel { delay, capacity: 100_000, piece: 20_000, reads_above, places_above });
    let memory_addresses = MemoryAddresses::default();
    let options = ContextOptions { timeout: Duration::from_secs(30), ..Default::default() };
    let contexts: Vec<_> = (0..size)
        .map(|rank| {
            let named = tcp::DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
            let (tcp, node) = (tcp::Device::create(&named).unwrap(), Node::new(&network, |_| {}));
            let (network, memory_addresses) = (network.clone(), memory_addresses.clone());
            Context::new(Arc::new(Mixed { tcp, network, node, memory_addresses, over_memory }), rank, size, &options)
                .unwrap()
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
