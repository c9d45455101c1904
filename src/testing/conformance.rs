//! The requirements on links and connections, tested for each kind of link; see `docs/links.md`.

mod mixed;

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::messaging::{Event, Messenger, Outcome, Recv, Remote, Send, Source, Token};
#[cfg(feature = "tls")]
use crate::net::tls;
use crate::secret::JobToken;
use crate::sys::{self, PollerKind};
use crate::testing::loopback::{LinkModel, Network, Node, Random};
use crate::transport::device::{self, DeviceOptions};
use crate::transport::{Connections, ConnectorEvent, Device, Interest, Link, ReceivedNotice, tcp};
use crate::types::Space;

/// Two ranks of a context with one kind of link.
struct Pair {
    connections: [Connections; 2],
    devices: [Arc<dyn Device>; 2],
    /// Advances the time.
    step: Box<dyn Fn() -> Instant>,
    /// Whether messages are written to the receiver's memory: then a link may break where one is cancelled.
    places: bool,
}

/// Number of steps before a test fails; for TCP, with steps of a millisecond, half a minute.
const TRIES: usize = 30_000;

fn over_tcp() -> Pair {
    between_devices(false, tcp::Transport::Tcp, 1)
}

fn over_several_connections() -> Pair {
    between_devices(false, tcp::Transport::Tcp, 3)
}

/// By each way to wait for sockets that is not the system's best.
fn over_tcp_by_others() -> Vec<Pair> {
    let others = [
        tcp::Transport::By(PollerKind::Poll),
        #[cfg(feature = "uv")]
        tcp::Transport::Uv,
    ];
    let each = |transport: tcp::Transport| [1, 2].map(|streams| between_devices(false, transport.clone(), streams));
    others.into_iter().flat_map(each).collect()
}

#[cfg(feature = "tls")]
fn over_tls(streams: u32) -> Pair {
    let authority = tls::tests::Authority::new();
    between_devices(false, tcp::Transport::Tls(authority.member()), streams)
}

fn over_shared_memory() -> Pair {
    let mut pair = between_devices(true, tcp::Transport::Tcp, 1);
    let addresses = pair.connections.each_ref().map(|connector| connector.address().clone());
    let found = pair.connections.each_mut().map(|connector| connector.open_memory(&addresses));
    pair.connections.iter_mut().for_each(|connector| connector.share_memory(&found).unwrap());
    assert!(pair.shares_memory());
    pair
}

fn between_devices(shared_memory: bool, transport: tcp::Transport, streams: u32) -> Pair {
    let device = || -> Arc<dyn Device> {
        let hostname = Some(Ipv4Addr::LOCALHOST.to_string());
        let (shared_memory, transport, streams) = (Some(shared_memory), Some(transport.clone()), Some(streams));
        let options = DeviceOptions { hostname, shared_memory, transport, streams, ..Default::default() };
        device::Device::create(&options).unwrap()
    };
    let step = || {
        std::thread::sleep(Duration::from_millis(1));
        Instant::now()
    };
    pair([device(), device()], Box::new(step))
}

/// The variable that names ports of this host's devices, as `GLOO_RS_IB_HCA` does: if it is set, the tests run over
/// queue pairs of these ports alone. `scripts/test-ibverbs.sh` sets it where there are some.
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
const PORTS: &str = "GLOO_RS_TEST_IBVERBS";

#[cfg(all(feature = "ibverbs", target_os = "linux"))]
fn over_ibverbs() -> Option<Pair> {
    let hca = std::env::var(PORTS).ok()?;
    let device = || -> Arc<dyn Device> {
        let ibverbs = crate::transport::ibverbs::Options { hca: Some(hca.clone()), ..Default::default() };
        let options = DeviceOptions {
            hostname: Some(Ipv4Addr::LOCALHOST.to_string()),
            shared_memory: Some(false),
            transport: Some(tcp::Transport::Ibverbs),
            ibverbs: Some(ibverbs),
            ..Default::default()
        };
        device::Device::create(&options).unwrap()
    };
    let step = || {
        std::thread::sleep(Duration::from_millis(1));
        Instant::now()
    };
    Some(Pair { places: true, ..pair([device(), device()], Box::new(step)) })
}

#[cfg(not(all(feature = "ibverbs", target_os = "linux")))]
fn over_ibverbs() -> Option<Pair> {
    None
}

thread_local! {
    /// The seed of the next network in memory: each behaves differently, and in each run of a test the same.
    static SEED: Cell<u64> = Cell::new(std::thread::current().name().map_or(7, |name| {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hasher.finish()
    }));
}

fn over_memory(reads_above: Option<usize>, places_above: Option<usize>) -> Pair {
    over_network(SEED.replace(SEED.get().wrapping_add(1)), reads_above, places_above)
}

/// Like [`over_memory`], with the network of this seed.
fn over_network(seed: u64, reads_above: Option<usize>, places_above: Option<usize>) -> Pair {
    let delay = Duration::from_micros(1)..Duration::from_micros(500);
    let network = Network::new(seed, LinkModel { delay, capacity: 100_000, piece: 5000, reads_above, places_above });
    let node = || -> Arc<dyn Device> { Node::new(&network, |_| panic!("this test does not sleep")) };
    let nodes = [node(), node()];
    let step = move || {
        network.step(network.now() + Duration::from_micros(100));
        network.now()
    };
    Pair { places: places_above.is_some(), ..pair(nodes, Box::new(step)) }
}

/// By queue pairs of a simulated fabric, with so many ports on each side.
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
fn over_queue_pairs(rails: usize) -> Pair {
    use crate::testing::fake_ibverbs::{DeviceModel, Fabric, LeftBehind, fabric_node};
    use crate::transport::ibverbs::rail::PathOptions;
    let delay = Duration::from_micros(1)..Duration::from_micros(500);
    let model =
        LinkModel { delay: delay.clone(), capacity: 100_000, piece: 5000, reads_above: None, places_above: None };
    let network = Network::new(7, model);
    let fabric = Fabric::beside(&network, 7, delay);
    let left = LeftBehind::new(&network);
    let node = |rank: usize| -> Arc<dyn Device> {
        let device = |rail: usize| DeviceModel::roce(&format!("fake{rail}"), (rank * rails + rail) as u16);
        fabric.add_node(rank, (0..rails).map(device).collect());
        let path = PathOptions { traffic_class: 0, timeout: 10, retry_count: 3 };
        fabric_node(&network, &fabric, &left, path, |_| panic!("this test does not sleep"))
    };
    let nodes = [node(0), node(1)];
    let step = move || {
        network.step(network.now() + Duration::from_micros(100));
        fabric.progress();
        left.progress();
        network.now()
    };
    Pair { places: true, ..pair(nodes, Box::new(step)) }
}

fn pair(devices: [Arc<dyn Device>; 2], step: Box<dyn Fn() -> Instant>) -> Pair {
    let mut rank = 0;
    let mut connections = devices.each_ref().map(|device| {
        rank += 1;
        let mut connector = device.clone().connections(&JobToken::none()).unwrap();
        connector.set_rank(rank - 1, 2);
        connector
    });
    let addresses = [0, 1].map(|i: usize| connections[i].address().clone());
    for (connector, peer) in connections.iter_mut().zip([1, 0]) {
        connector.set_peer(peer, addresses[peer].clone()).unwrap();
    }
    Pair { connections, devices, step, places: false }
}

/// Runs a check for each kind of link.
fn each(check: impl Fn(Pair)) {
    if let Some(pair) = over_ibverbs() {
        return check(pair);
    }
    check(over_tcp());
    check(over_several_connections());
    over_tcp_by_others().into_iter().for_each(&check);
    #[cfg(feature = "tls")]
    [1, 2].into_iter().for_each(|streams| check(over_tls(streams)));
    check(over_shared_memory());
    check(over_memory(None, None));
    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    [1, 2].into_iter().for_each(|rails| check(over_queue_pairs(rails)));
    check(over_memory(Some(1000), None));
    check(over_memory(None, Some(1000)));
}

impl Pair {
    /// Whether the ranks share memory. Then links are established by themselves, and a descriptor is readable only
    /// while a rank says that it sleeps.
    fn shares_memory(&self) -> bool {
        self.connections.iter().all(|connector| connector.local_ranks().is_some())
    }

    /// Lets some time pass.
    fn pass_time(&self) {
        for _ in 0..50 {
            (self.step)();
        }
    }

    /// The events that the connector of `side` reports now.
    fn events(&mut self, side: usize) -> Vec<ConnectorEvent> {
        let now = (self.step)();
        let mut events = Vec::new();
        self.connections[side].progress(now, &mut events);
        events
    }

    /// Establishes the link; side 0 connects.
    fn links(&mut self) -> [Box<dyn Link>; 2] {
        self.connections[0].connect(1);
        let mut links = [None, None];
        let mut numbers = [0, 1];
        for _ in 0..TRIES {
            for side in 0..2 {
                for event in self.events(side) {
                    match event {
                        ConnectorEvent::Established { rank, link, connection } => {
                            assert_eq!(rank, 1 - side);
                            assert!(links[side].replace(link).is_none(), "established twice");
                            numbers[side] = connection;
                        }
                        ConnectorEvent::Unreachable { error, .. } | ConnectorEvent::Failed { error } => {
                            panic!("{error}")
                        }
                        ConnectorEvent::Ready { .. } => {}
                    }
                }
            }
            if links.iter().all(Option::is_some) {
                assert_eq!(numbers[0], numbers[1], "the sides know different numbers");
                return links.map(|link| link.expect("there"));
            }
        }
        panic!("no connection");
    }

    /// Whether the connector of `side` reports matching conditions within `tries` steps.
    fn reports(&mut self, side: usize, wanted: impl Fn(Interest) -> bool, tries: usize) -> bool {
        (0..tries)
            .any(|_| self.events(side).iter().any(|h| matches!(h, ConnectorEvent::Ready { of, .. } if wanted(*of))))
    }
}

/// Receives the bytes that are available.
fn receive(link: &mut dyn Link, max: usize) -> Result<Vec<u8>, ErrorKind> {
    let (mut first, mut second) = (vec![0; max / 3], vec![0; max - max / 3]);
    let n =
        link.receive(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).map_err(|error| error.kind())?;
    first.extend_from_slice(&second);
    first.truncate(n);
    Ok(first)
}

/// Receives like [`receive`], in place if the link can: until `max` bytes have come, or more.
fn receive_in_place(link: &mut dyn Link, max: usize) -> Result<Vec<u8>, ErrorKind> {
    let mut all = Vec::new();
    let received = link.receive_in_place(&mut |bytes| {
        all.extend_from_slice(bytes);
        all.len() < max
    });
    let Some(received) = received else { return receive(link, max) };
    assert_eq!(received.map_err(|error| error.kind())?, all.len());
    Ok(all)
}

/// Receives until the stream ends or `wanted` bytes have arrived.
fn receive_all(pair: &Pair, link: &mut dyn Link, wanted: usize) -> (Vec<u8>, bool) {
    receive_sent(pair, None, link, wanted)
}

/// Like [`receive_all`], with the other end, which may hold some of the bytes.
fn receive_sent(pair: &Pair, mut sender: Option<&mut dyn Link>, link: &mut dyn Link, wanted: usize) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    for _ in 0..TRIES {
        match receive(link, 70_000) {
            Ok(bytes) if bytes.is_empty() => return (all, true),
            Ok(bytes) => all.extend_from_slice(&bytes),
            Err(ErrorKind::WouldBlock) => {
                (pair.step)();
                sender.iter_mut().for_each(|sender| sender.flush());
            }
            Err(kind) => panic!("{kind:?} after {} bytes", all.len()),
        }
        if all.len() >= wanted {
            return (all, false);
        }
    }
    panic!("{} of {wanted} bytes have come", all.len());
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..bytes).map(|_| random.bits() as u8).collect()
}

/// Sends until the link accepts no more; returns the number of accepted bytes.
fn fill(link: &mut dyn Link, data: &[u8]) -> usize {
    let mut sent = 0;
    loop {
        match link.send(&[IoSlice::new(&data[sent..])]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return sent,
            Err(error) => panic!("{error}"),
        }
        assert!(sent < data.len(), "the link accepted {sent} bytes without limit");
    }
}

#[test]
fn all_bytes_arrive_in_order_in_both_directions() {
    each(|mut pair| {
        let mut links = pair.links();
        let sent = [noise(1, 400_000), noise(2, 300_000)];
        let (mut out, mut got) = ([0, 0], [Vec::new(), Vec::new()]);
        let mut random = Random::new(3);
        for _ in 0..TRIES {
            for side in 0..2 {
                let rest = &sent[side][out[side]..];
                let cut = random.below(rest.len() + 1).min(1 + random.below(30_000));
                let parts = [&rest[..cut / 2], &[], &rest[cut / 2..cut]].map(IoSlice::new);
                if cut > 0 {
                    match links[side].send(&parts) {
                        Ok(n) => {
                            assert!(n > 0 && n <= cut);
                            out[side] += n;
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                    }
                }
                let receive = if random.one_in(2) { receive } else { receive_in_place };
                match receive(links[side].as_mut(), 1 + random.below(50_000)) {
                    Ok(bytes) => {
                        assert!(!bytes.is_empty(), "the stream ended although neither side ended it");
                        got[1 - side].extend_from_slice(&bytes);
                    }
                    Err(kind) => assert_eq!(kind, ErrorKind::WouldBlock),
                }
            }
            if got.iter().zip(&sent).all(|(got, sent)| got.len() == sent.len()) {
                assert!(got == sent);
                return;
            }
            if random.one_in(4) {
                (pair.step)();
            }
        }
        panic!("{} and {} bytes have come", got[0].len(), got[1].len());
    });
}

#[test]
fn a_full_link_accepts_nothing_until_the_peer_has_received() {
    let data = noise(4, 64 << 20);
    each(|mut pair| {
        let [mut a, mut b] = pair.links();
        let sent = fill(a.as_mut(), &data);
        assert!(sent > 0);
        a.watch(Interest { readable: true, writable: true }).unwrap();
        let (got, ended) = receive_sent(&pair, Some(a.as_mut()), b.as_mut(), sent);
        assert!(!ended && got == data[..sent]);
        assert!(pair.reports(0, |of| of.writable, TRIES), "room is not reported");
        a.watch(Interest { readable: true, writable: false }).unwrap();
        assert!(!pair.reports(0, |of| of.writable, 20), "room is reported although it is not watched");
        assert!(fill(a.as_mut(), &data) > 0);
    });
}

#[test]
fn a_watched_link_is_reported_while_it_is_readable() {
    each(|mut pair| {
        let [mut a, mut b] = pair.links();
        let mut descriptors = Vec::new();
        if !pair.shares_memory() {
            pair.connections[1].descriptors(&mut descriptors);
        }
        // Events left over from connecting.
        while pair.reports(1, |of| of.readable, 20) {
            assert_eq!(receive(b.as_mut(), 10), Err(ErrorKind::WouldBlock));
        }
        if !descriptors.is_empty() && pair.connections[1].sleep(false) {
            // A descriptor tells of what comes after that only.
            assert!(!sys::poll(&descriptors[..1], Duration::ZERO));
            assert_eq!(a.send(&[IoSlice::new(b"wake")]).unwrap(), 4);
            let woken = (0..TRIES).any(|_| {
                (pair.step)();
                sys::poll(&descriptors[..1], Duration::ZERO)
            });
            assert!(woken && pair.reports(1, |of| of.readable, TRIES));
            assert_eq!(receive_all(&pair, b.as_mut(), 4).0, b"wake");
            pair.connections[1].wake(true);
            pair.connections[1].sleep(false);
            assert!(!sys::poll(&descriptors[..1], Duration::ZERO));
            descriptors.clear();
        }
        assert!(descriptors.is_empty() || !sys::poll(&descriptors[..1], Duration::ZERO));
        assert_eq!(a.send(&[IoSlice::new(b"first")]).unwrap(), 5);
        assert!(pair.reports(1, |of| of.readable, TRIES));
        assert!(descriptors.is_empty() || sys::poll(&descriptors[..1], Duration::ZERO));
        b.watch(Interest::default()).unwrap();
        assert!(!pair.reports(1, |_| true, 20), "it is not watched");
        assert!(descriptors.is_empty() || !sys::poll(&descriptors[..1], Duration::ZERO));
        b.watch(Interest { readable: true, writable: false }).unwrap();
        assert!(pair.reports(1, |of| of.readable, TRIES), "data that arrived while it was not watched");
        assert_eq!(receive_all(&pair, b.as_mut(), 5).0, b"first");
        assert!(!pair.reports(1, |of| of.readable, 20), "there is nothing more");
        a.end(Vec::new(), Vec::new());
        assert!(pair.reports(1, |of| of.readable, TRIES), "the end is not reported");
        assert!(receive_all(&pair, b.as_mut(), 1).1);
    });
}

#[test]
fn the_close_notice_arrives_after_all_data_even_on_a_full_link() {
    let data = noise(5, 64 << 20);
    each(|mut pair| {
        let [mut a, mut b] = pair.links();
        let sent = fill(a.as_mut(), &data);
        a.end(b"good".to_vec(), b"bye".to_vec());
        let (got, ended) = receive_all(&pair, b.as_mut(), usize::MAX);
        assert!(ended);
        assert_eq!(got.len(), sent + 7);
        assert!(got[..sent] == data[..sent] && got.ends_with(b"goodbye"));
    });
}

#[test]
fn a_link_that_is_dropped_ends_on_the_other_side() {
    each(|mut pair| {
        let [a, mut b] = pair.links();
        drop(a);
        for _ in 0..TRIES {
            match receive(b.as_mut(), 100) {
                Err(ErrorKind::WouldBlock) => drop((pair.step)()),
                Ok(bytes) if bytes.is_empty() => return,
                Ok(bytes) => panic!("{bytes:?}"),
                Err(_) => return,
            }
        }
        panic!("no end");
    });
}

/// Sends on a link whose other end is gone fail eventually, without a signal.
#[test]
fn sending_to_a_peer_that_is_gone_fails() {
    each(|mut pair| {
        let [mut a, b] = pair.links();
        drop(b);
        for _ in 0..TRIES {
            match a.send(&[IoSlice::new(&[0; 100])]) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return,
                _ => drop(pair.events(0)),
            }
        }
        panic!("the link still accepts bytes");
    });
}

/// Two ranks with the whole message protocol.
struct Ranks {
    messengers: [Messenger; 2],
    devices: [Arc<dyn Device>; 2],
    step: Box<dyn Fn() -> Instant>,
    events: [Vec<Event>; 2],
}

impl Ranks {
    fn new(Pair { connections, devices, step, .. }: Pair) -> Self {
        let mut rank = 0;
        let messengers = connections.map(|connector| {
            rank += 1;
            Messenger::new(rank - 1, 2, connector, None)
        });
        Self { messengers, devices, step, events: Default::default() }
    }

    fn progress(&mut self) {
        let now = (self.step)();
        for (messenger, events) in self.messengers.iter_mut().zip(&mut self.events) {
            // The test has no context that the device could notify.
            messenger.arrived(now);
            messenger.progress(now, events);
        }
    }

    /// The outcome of the operation of `owner` on `side`.
    fn end(&mut self, side: usize, owner: u32) -> Outcome {
        for _ in 0..TRIES {
            if let Some(at) = self.events[side].iter().position(|event| event.token.owner == owner) {
                return self.events[side].remove(at).outcome;
            }
            self.progress();
        }
        panic!(
            "no end of {owner} on side {side}: {}",
            self.messengers[side].diagnosis().describe(owner, Instant::now())
        );
    }

    fn done(&mut self, side: usize, owner: u32) -> usize {
        match self.end(side, owner) {
            Outcome::Done { rank, bytes } if rank == 1 - side => bytes,
            other => panic!("{other:?}"),
        }
    }
}

fn token(owner: u32) -> Token {
    Token { owner, detail: 0 }
}

fn send(data: &[u8], to: usize, slot: u64, owner: u32) -> Send {
    let (space, from, bytes) = (Space::USER, data.as_ptr(), data.len());
    Send { to, space, slot, fingerprint: 0, from, bytes, more: false, token: token(owner) }
}

fn recv(data: &mut [u8], from: usize, slot: u64, owner: u32) -> Recv {
    let (space, into, bytes, from) = (Space::USER, data.as_mut_ptr(), data.len(), Source::Rank(from));
    let (fingerprint, exact, reduce) = (0, false, None);
    Recv { from, space, slot, fingerprint, into, bytes, exact, more: false, reduce, token: token(owner) }
}

/// A measurement of a link gives its receive up when it has taken too long; the message comes all the same.
#[test]
fn a_message_of_a_collective_whose_receive_was_cancelled_does_no_harm() {
    each(|pair| {
        let mut ranks = Ranks::new(pair);
        let space = Space::collective(1, 0);
        let (late, next, mut first, mut second) =
            (noise(3, 65_536), noise(4, 65_536), vec![0; 65_536], vec![0; 65_536]);
        let receive = |into: &mut [u8], owner| Recv { space, exact: true, ..recv(into, 0, 5, owner) };
        // SAFETY: the first receive is cancelled, all other operations are waited for, before the vectors are dropped.
        unsafe {
            // The links exist before anything is granted.
            ranks.messengers[0].send(send(&[1], 1, 9, 9));
            ranks.messengers[1].recv(recv(&mut [0], 0, 9, 9));
            ranks.done(1, 9);
            ranks.messengers[1].recv(receive(&mut first, 1));
            (0..50).for_each(|_| ranks.progress());
            ranks.messengers[1].cancel(1);
            first.fill(7);
            ranks.messengers[0].send(Send { space, ..send(&late, 1, 5, 1) });
            (0..50).for_each(|_| ranks.progress());
            // Where the message waits for its receive, as it is not known to be late.
            let waits = ranks.messengers[1].diagnosis().unmatched(5).next().is_some();
            if let Err(error) = ranks.messengers[1].is_connected(0) {
                // The loopback exposes the receive's own memory, and so may break; the others lend theirs.
                assert_eq!(ranks.devices[1].transport(), "loopback", "{error}");
            } else if !waits && ranks.events[0].iter().any(|event| event.token.owner == 1) {
                ranks.messengers[1].recv(receive(&mut second, 2));
                ranks.messengers[0].send(Send { space, ..send(&next, 1, 5, 2) });
                ranks.done(1, 2);
                assert!(second == next);
            }
        }
        assert!(first.iter().all(|byte| *byte == 7));
        (0..2).for_each(|side| ranks.messengers[side].cancel(1));
    });
}

#[test]
fn messages_of_all_sizes_pass_whether_or_not_the_receive_is_posted_first() {
    each(|pair| {
        let mut ranks = Ranks::new(pair);
        for (number, bytes) in [0usize, 1, 100, 65_536, 65_537, 1_000_000].into_iter().enumerate() {
            let owner = number as u32;
            for late in [false, true] {
                let (sent, mut got) = (noise(owner.into(), bytes), vec![0; bytes]);
                // SAFETY: the loop body waits for both operations before the vectors are dropped.
                unsafe {
                    if !late {
                        ranks.messengers[1].recv(recv(&mut got, 0, 5, owner));
                    }
                    ranks.messengers[0].send(send(&sent, 1, 5, owner));
                    if late {
                        (0..20).for_each(|_| ranks.progress());
                        ranks.messengers[1].recv(recv(&mut got, 0, 5, owner));
                    }
                }
                assert_eq!((ranks.done(1, owner), ranks.done(0, owner)), (bytes, bytes));
                assert!(got == sent);
            }
        }
    });
}

/// A message that is announced to a receive which is then cancelled, or whose send is: the links keep nothing of
/// either.
#[test]
fn what_was_exposed_for_cancelled_messages_is_used_again() {
    each(|pair| {
        let mut ranks = Ranks::new(pair);
        let (sent, mut given_up, mut got) = (noise(15, 300_000), vec![7; 300_000], vec![0; 300_000]);
        // SAFETY: the operations with the vectors are cancelled or waited for before these are used or dropped.
        unsafe {
            for cancelled in [[1].as_slice(), &[0], &[1, 0], &[0, 1]] {
                for steps in [1, 3, 6, 10, 20] {
                    ranks.messengers[1].recv(recv(&mut given_up, 0, 1, 1));
                    ranks.messengers[0].send(send(&sent, 1, 1, 1));
                    (0..steps).for_each(|_| ranks.progress());
                    cancelled.iter().for_each(|side| ranks.messengers[*side].cancel(1));
                    given_up.fill(7);
                    (0..50).for_each(|_| ranks.progress());
                    assert!(!cancelled.contains(&1) || given_up.iter().all(|byte| *byte == 7));
                    (0..2).for_each(|side| ranks.messengers[side].cancel(1));
                    (0..50).for_each(|_| ranks.progress());
                    ranks.events.iter_mut().for_each(Vec::clear);
                    if ranks.messengers.iter().enumerate().any(|(side, own)| own.is_connected(1 - side).is_err()) {
                        // The loopback exposes the receive's own memory, and so may break; the others lend theirs.
                        assert_eq!(ranks.devices[1].transport(), "loopback");
                        return;
                    }
                    while ranks.messengers[1].queued_bytes(0) > 0 {
                        ranks.messengers[1].recv(recv(&mut got, 0, 1, 2));
                        ranks.done(1, 2);
                        assert!(got == sent);
                        got.fill(0);
                    }
                }
            }
        }
        (0..200).for_each(|_| ranks.progress());
        for messenger in &ranks.messengers {
            assert_eq!(messenger.remaining_state(), None);
        }
    });
}

#[test]
fn cancelling_a_receive_frees_its_memory_and_affects_no_other_message() {
    each(|pair| {
        let mut ranks = Ranks::new(pair);
        let (sent, mut given_up, mut got) = (noise(6, 300_000), vec![7; 300_000], vec![0; 300_000]);
        // SAFETY: the cancelled receive does not use its vector any more, and the test waits for the receive of the
        // other message; the vectors are not dropped before that.
        unsafe {
            ranks.messengers[1].recv(recv(&mut given_up, 0, 1, 1));
            (0..5).for_each(|_| ranks.progress());
            ranks.messengers[1].cancel(1);
            ranks.messengers[0].send(send(&sent, 1, 2, 2));
            ranks.messengers[1].recv(recv(&mut got, 0, 2, 2));
        }
        assert_eq!(ranks.done(1, 2), sent.len());
        assert!(got == sent && given_up.iter().all(|byte| *byte == 7));
    });
}

/// Reads the peer's memory without blocking; returns the number of bytes.
fn read(link: &mut dyn Link, key: u32, offset: usize, into: &mut [u8]) -> Result<usize, ErrorKind> {
    link.remote_memory().expect("it reads memory").read(key, offset, into).map_err(|error| error.kind())
}

#[test]
fn memory_can_be_read_while_it_is_registered_and_the_link_is_established() {
    each(|mut pair| {
        let is_read = pair.shares_memory() && crate::sys::process::may_read_memory();
        let [mut a, mut b] = pair.links();
        assert_eq!(a.remote_memory().is_some(), b.remote_memory().is_some(), "both ends, or neither");
        assert!(a.remote_memory().is_some() || !is_read, "the system permits it");
        if a.remote_memory().is_none() {
            return;
        }
        let data = noise(10, 300_000);
        let register = |link: &mut dyn Link, key: u32| {
            let memory = link.remote_memory().expect("it reads memory");
            // A registration may fail at any time.
            // SAFETY: `data` lives longer than the links.
            (0..TRIES).any(|_| unsafe { memory.register(key, data.as_ptr(), data.len()) }.is_ok())
        };
        assert!(register(a.as_mut(), 5) && register(a.as_mut(), 6));
        // Memory that is shared is read at once.
        let (mut got, mut done, mut reported) = (vec![0; 250_000], 0, pair.shares_memory());
        for _ in 0..TRIES {
            let end = got.len().min(done + 5000);
            match read(b.as_mut(), 5, 40_000 + done, &mut got[done..end]) {
                Ok(n) => {
                    assert!(n > 0);
                    done += n;
                }
                Err(kind) => {
                    assert_eq!(kind, ErrorKind::WouldBlock);
                    assert!(pair.reports(1, |of| of.readable, TRIES), "that it can be read on is not reported");
                    reported = true;
                }
            }
            if done == got.len() {
                break;
            }
        }
        assert!(got == data[40_000..290_000] && reported);
        let outcomes = |link: &mut dyn Link, key, offset, length: usize| {
            let mut into = vec![0; length];
            (0..100).map(|_| read(link, key, offset, &mut into)).find(|result| *result != Err(ErrorKind::WouldBlock))
        };
        assert_eq!(outcomes(b.as_mut(), 5, 299_999, 2), Some(Err(ErrorKind::NotFound)), "beyond its end");
        assert_eq!(outcomes(b.as_mut(), 7, 0, 1), Some(Err(ErrorKind::NotFound)), "not registered");
        a.remote_memory().expect("as before").unregister(5);
        assert_eq!(outcomes(b.as_mut(), 5, 0, 1), Some(Err(ErrorKind::NotFound)), "unregistered");
        assert!(matches!(outcomes(b.as_mut(), 6, 0, 1), Some(Ok(1))), "the other is still registered");
        a.end(Vec::new(), Vec::new());
        assert!(!matches!(outcomes(b.as_mut(), 6, 0, 1), Some(Ok(_))), "the link has ended");
    });
}

/// Two ends of a link that places messages, a to b; a key is used once.
struct Placer {
    pair: Pair,
    a: Box<dyn Link>,
    b: Box<dyn Link>,
    key: u32,
}

impl Placer {
    /// `None` if the link does not place messages.
    fn new(mut pair: Pair) -> Option<Self> {
        let [mut a, mut b] = pair.links();
        assert_eq!(a.placement().is_some(), b.placement().is_some(), "both ends, or neither");
        let eager_bytes = [a.placement()?.eager_bytes(), b.placement()?.eager_bytes()];
        assert_eq!(eager_bytes[0], eager_bytes[1]);
        assert!(a.remote_memory().is_none() && b.remote_memory().is_none(), "one of both at most");
        Some(Self { pair, a, b, key: 0 })
    }

    /// Exposes memory at b under a new key, and tells a.
    fn expose(&mut self, into: Option<*mut u8>, bytes: usize) -> u32 {
        for _ in 0..TRIES {
            self.key += 1;
            // Memory may be refused at any time.
            // SAFETY: the tests keep the memory until it is withdrawn or the link has ended.
            if unsafe { self.b.placement().unwrap().expose(self.key, into, bytes) } {
                assert_eq!(self.b.send(&[IoSlice::new(b"k")]).unwrap(), 1);
                assert_eq!(receive_all(&self.pair, self.a.as_mut(), 1).0, b"k");
                return self.key;
            }
        }
        panic!("no memory is exposed");
    }

    fn place(&mut self, key: u32, message: &[u8], ticket: u32) -> bool {
        // SAFETY: the tests keep the message until the ticket has been returned or cancelled, or the link has ended.
        unsafe { self.a.placement().unwrap().place(key, message.as_ptr(), message.len(), ticket) }
    }

    /// Places a message at b, in memory of b or of the link. Returns the key.
    fn expose_and_place(&mut self, into: Option<*mut u8>, message: &[u8], ticket: u32) -> u32 {
        for _ in 0..TRIES {
            let key = self.expose(into, message.len());
            if self.place(key, message, ticket) {
                return key;
            }
            self.b.placement().unwrap().withdraw(key, true);
        }
        panic!("no message is placed");
    }
}

#[test]
fn a_message_is_placed_before_what_is_sent_later_arrives() {
    each(|pair| {
        let Some(mut placer) = Placer::new(pair) else { return };
        for (number, bytes) in [1, 1000, 5000, 300_000, 65_536, 17].repeat(5).into_iter().enumerate() {
            let (message, mut memory, ticket) = (noise(number as u64, bytes), vec![0; bytes], number as u32);
            let into = (number % 3 > 0).then_some(memory.as_mut_ptr());
            let key = placer.expose_and_place(into, &message, ticket);
            // With several ports nothing is accepted until those that follow no order have finished.
            let accepted = (0..TRIES).any(|_| {
                placer.pair.events(0);
                matches!(placer.a.send(&[IoSlice::new(b"h")]), Ok(1))
            });
            assert!(accepted, "the link accepts nothing");
            assert_eq!(receive_all(&placer.pair, placer.b.as_mut(), 1).0, b"h");
            let placement = placer.b.placement().unwrap();
            match placement.placed(key) {
                Some(bytes) => assert!(bytes == message),
                None => assert!(into.is_some() && memory == message),
            }
            placement.withdraw(key, true);
            let mut finished = placer.a.placement().unwrap().finished();
            if finished.is_none() {
                assert!(placer.pair.reports(0, |of| of.readable, TRIES), "the ticket is not reported");
                finished = placer.a.placement().unwrap().finished();
            }
            assert_eq!(finished, Some(ticket));
            assert_eq!(placer.a.placement().unwrap().finished(), None);
        }
    });
}

#[test]
fn nothing_is_placed_under_an_unknown_key_or_in_memory_of_another_length() {
    each(|pair| {
        let Some(mut placer) = Placer::new(pair) else { return };
        let (message, mut memory) = (noise(1, 5000), vec![7; 5000]);
        for bytes in [4999, 1, 5001] {
            let key = placer.expose(Some(memory.as_mut_ptr()), 5000);
            assert!(!placer.place(key + 1, &message, 1));
            assert!(!placer.place(key, &noise(1, bytes), 1));
            placer.b.placement().unwrap().withdraw(key, true);
        }
        placer.pair.pass_time();
        assert!(memory.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn memory_that_is_withdrawn_is_not_written() {
    for _ in 0..10 {
        each(|pair| {
            let Some(mut placer) = Placer::new(pair) else { return };
            let (message, mut memory) = (noise(1, 5000), vec![0; 5000]);
            let key = placer.expose_and_place(Some(memory.as_mut_ptr()), &message, 1);
            placer.b.placement().unwrap().withdraw(key, false);
            memory.fill(7);
            placer.pair.pass_time();
            assert!(memory.iter().all(|byte| *byte == 7));
            // The link has broken, or still works.
            if matches!(receive(placer.a.as_mut(), 10), Err(ErrorKind::WouldBlock)) {
                assert_eq!(placer.a.send(&[IoSlice::new(b"on")]).unwrap_or(0), 2);
                assert_eq!(receive_all(&placer.pair, placer.b.as_mut(), 2).0, b"on");
            }
        });
    }
}

#[test]
fn a_message_that_is_cancelled_is_not_read_any_more() {
    for ticket in 0..20 {
        each(|pair| {
            let Some(mut placer) = Placer::new(pair) else { return };
            let (mut message, mut memory) = (noise(1, 5000), vec![0; 5000]);
            let expected = message.clone();
            let into = (ticket % 2 > 0).then_some(memory.as_mut_ptr());
            let key = placer.expose_and_place(into, &message, ticket);
            assert_eq!(placer.a.send(&[IoSlice::new(b"h")]).unwrap(), 1);
            placer.a.placement().unwrap().cancel(ticket);
            message.fill(7);
            placer.pair.pass_time();
            assert_eq!(placer.a.placement().unwrap().finished(), None);
            // What was sent behind it arrives only if it has been written.
            match receive(placer.b.as_mut(), 10) {
                Ok(bytes) => {
                    assert_eq!(bytes, b"h");
                    assert!(placer.b.placement().unwrap().placed(key).is_none_or(|bytes| bytes == expected));
                    assert!(into.is_none() || memory == expected || memory.iter().all(|byte| *byte == 0));
                }
                Err(_) => {
                    assert!(!matches!(receive(placer.a.as_mut(), 10), Err(ErrorKind::WouldBlock)), "it has not broken");
                    let sent = placer.a.send(&[IoSlice::new(b"on")]).map_err(|error| error.kind());
                    assert_eq!(sent, Err(ErrorKind::WouldBlock), "it can still be ended");
                }
            }
        });
    }
}

#[test]
fn no_memory_is_used_after_the_end_of_a_link_that_places_messages() {
    for ticket in 0..20 {
        each(|pair| {
            let Some(mut placer) = Placer::new(pair) else { return };
            let (mut message, mut memory) = (noise(1, 5000), vec![0; 5000]);
            let expected = message.clone();
            let key = placer.expose_and_place(Some(memory.as_mut_ptr()), &message, ticket);
            assert_eq!(placer.a.send(&[IoSlice::new(b"hea")]).unwrap(), 3);
            let Placer { pair, a, mut b, .. } = placer;
            if ticket % 2 == 0 {
                // The side that receives.
                drop(b);
                memory.fill(7);
                pair.pass_time();
                assert!(memory.iter().all(|byte| *byte == 7));
                return;
            }
            a.end(b"der".to_vec(), b"bye".to_vec());
            message.fill(7);
            let (mut got, mut words) = (Vec::new(), None);
            for _ in 0..TRIES {
                let mut part = [0; 100];
                match b.receive(&mut [IoSliceMut::new(&mut part)]) {
                    Ok(0) => break,
                    Ok(n) => got.extend_from_slice(&part[..n]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => drop((pair.step)()),
                    Err(error) => {
                        let inner = error.into_inner().expect("the close notice");
                        words = Some(inner.downcast::<ReceivedNotice>().expect("the close notice").0);
                        break;
                    }
                }
            }
            match words {
                // The stream has broken.
                Some(words) => assert!(words == b"bye" && got.is_empty()),
                None => {
                    assert_eq!(got, b"headerbye");
                    assert!(b.placement().unwrap().placed(key).is_none_or(|bytes| bytes == expected));
                }
            }
        });
    }
}

#[test]
fn a_message_whose_send_is_cancelled_still_arrives() {
    each(|pair| {
        let places = pair.places;
        assert!(cancelled(pair).is_ok() || places);
    });
}

#[test]
fn a_link_that_places_messages_may_break_where_a_send_is_cancelled() {
    let broken: Vec<u64> = (0..60).filter(|seed| cancelled(over_network(*seed, None, Some(1000))).is_err()).collect();
    assert!((1..20).contains(&broken.len()), "{broken:?}");
}

/// Whether messages arrive whose sends are cancelled while they are in flight, or why the link has broken.
fn cancelled(pair: Pair) -> Result<(), Error> {
    let mut ranks = Ranks::new(pair);
    for late in [false, true] {
        let (mut sent, mut got) = (noise(11, 200_000), vec![0; 200_000]);
        let expected = sent.clone();
        // SAFETY: the send is cancelled before its vector is changed, the receive is waited for; the vectors are
        // not dropped before that.
        unsafe {
            if !late {
                ranks.messengers[1].recv(recv(&mut got, 0, 3, 2));
            }
            ranks.messengers[0].send(send(&sent, 1, 3, 1));
            (0..20).for_each(|_| ranks.progress());
            ranks.messengers[0].cancel(1);
            sent.fill(0);
            if late {
                ranks.messengers[1].recv(recv(&mut got, 0, 3, 2));
            }
        }
        match ranks.end(1, 2) {
            Outcome::Failed(error) if error.kind() == crate::error::ErrorKind::ConnectionLost => return Err(error),
            outcome => assert!(matches!(outcome, Outcome::Done { rank: 0, bytes: 200_000 }), "{outcome:?}"),
        }
        assert!(got == expected);
        ranks.events[0].clear();
    }
    (0..200).for_each(|_| ranks.progress());
    for messenger in &ranks.messengers {
        assert_eq!(messenger.remaining_state(), None);
    }
    Ok(())
}

#[test]
fn a_message_has_been_sent_if_its_receiver_ends_the_link_after_it() {
    for _ in 0..5 {
        each(|pair| {
            let mut ranks = Ranks::new(pair);
            let (sent, mut got) = (noise(13, 200_000), vec![0; 200_000]);
            // SAFETY: the receive is waited for, and the messengers are dropped before the vectors.
            unsafe {
                ranks.messengers[1].recv(recv(&mut got, 0, 3, 1));
                ranks.messengers[0].send(send(&sent, 1, 3, 1));
            }
            ranks.done(1, 1);
            ranks.messengers[1].close(&Error::invalid("the end"), None);
            // The receiver's last bytes arrive before the sender looks again.
            for _ in 0..10 {
                (ranks.step)();
            }
            assert_eq!(ranks.done(0, 1), sent.len());
            drop(ranks);
        });
    }
}

/// A message without memory is offered if the one before it is, because it must not overtake it.
#[test]
fn an_empty_message_cancelled_behind_an_offer_still_arrives() {
    // With this seed the memory of the first message can be registered. If it could not, the second one would not be
    // offered.
    let mut ranks = Ranks::new(over_network(7, Some(1000), None));
    let (sent, mut got) = (noise(12, 200_000), vec![0; 200_000]);
    let nothing = Send { from: std::ptr::null(), bytes: 0, ..send(&sent, 1, 3, 2) };
    // SAFETY: the sends are cancelled, the receives are waited for; the vectors are not dropped before that.
    unsafe {
        // Establish the link.
        ranks.messengers[0].send(send(&[], 1, 4, 3));
        ranks.messengers[1].recv(recv(&mut [], 0, 4, 3));
        ranks.done(1, 3);
        ranks.messengers[0].send(send(&sent, 1, 3, 1));
        ranks.messengers[0].send(nothing);
        (0..20).for_each(|_| ranks.progress());
        [1, 2].into_iter().for_each(|owner| ranks.messengers[0].cancel(owner));
        ranks.messengers[1].recv(recv(&mut got, 0, 3, 1));
        ranks.messengers[1].recv(recv(&mut [], 0, 3, 2));
    }
    assert_eq!((ranks.done(1, 1), ranks.done(1, 2)), (sent.len(), 0));
    assert!(got == sent);
}

#[test]
fn puts_and_gets_pass() {
    each(|pair| {
        let mut ranks = Ranks::new(pair);
        let (mut memory, local, mut back) = (vec![0; 200_000], noise(8, 100_000), vec![0; 50_000]);
        // SAFETY: every operation is waited for before its vector is dropped, and the region is unregistered before
        // that.
        unsafe {
            let region = ranks.messengers[1].register(memory.as_mut_ptr(), memory.len()).unwrap();
            let remote = |offset| Remote { rank: 1, region, offset };
            ranks.messengers[0].put(remote(1000), local.as_ptr(), local.len(), token(1));
            ranks.done(0, 1);
            ranks.messengers[0].get(remote(1500), back.as_mut_ptr(), back.len(), token(2));
            ranks.done(0, 2);
            ranks.messengers[0].get(remote(199_999), back.as_mut_ptr(), 2, token(3));
            let Outcome::Failed(error) = ranks.end(0, 3) else { panic!("past the end") };
            assert!(error.message().contains("rank 1"), "{error}");
            ranks.messengers[1].unregister(region);
            ranks.messengers[0].put(remote(0), local.as_ptr(), 1, token(4));
            assert!(matches!(ranks.end(0, 4), Outcome::Failed(_)));
        }
        assert!(memory[1000..101_000] == local && memory[..1000].iter().all(|byte| *byte == 0));
        assert!(back == local[500..50_500]);
    });
}

#[test]
fn malformed_bytes_end_the_link_and_the_error_names_the_rank() {
    each(|mut pair| {
        let [a, mut b] = pair.links();
        let Pair { connections: [connector, _other], devices: _devices, step, .. } = pair;
        let mut messenger = Messenger::new(0, 2, connector, None);
        messenger.established(1, a, 77);
        assert_eq!(b.send(&[IoSlice::new(&noise(9, 40))]).unwrap(), 40);
        let mut events = Vec::new();
        for _ in 0..TRIES {
            messenger.progress(step(), &mut events);
            if let Err(error) = messenger.is_connected(1) {
                assert!(error.message().starts_with("rank 1 at ") && error.message().contains("malformed"), "{error}");
                return;
            }
        }
        panic!("the malformed bytes were not noticed");
    });
}
