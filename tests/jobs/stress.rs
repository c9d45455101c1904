//! Many threads on every rank at the same time: collectives, messages of all sizes in few slots, receives from any
//! rank, waits that time out or are aborted, and buffers that are dropped during operations. No message is lost, mixed
//! up, or written to a wrong address.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::tier::Tier;
use crate::support::{Case, Random};
use gloo_rs::context::{Context, ContextOptions, UnboundBuffer};
use gloo_rs::error::ErrorKind;
use gloo_rs::rendezvous::in_process::InProcessStore;
use gloo_rs::transport::device::{Device, DeviceOptions};

const RANKS: usize = 3;
/// Below, at, and above the eager limit; the last is more than a socket accepts at once.
const SIZES: [usize; 8] = [16, 17, 1000, 65_535, 65_536, 65_537, 200_000, 3_000_000];
const MAX_MESSAGE_BYTES: usize = 3_000_000;
const MEMORY_AFTERWARDS: u8 = 0xee;
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `work` on ranks that are threads, each with its own device, context and sockets.
fn ranks(work: impl Fn(&Arc<Context>) + Sync) {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (store, work) = (store.clone(), &work);
            scope.spawn(move || {
                let options = DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
                let device = Device::create(&options).unwrap();
                let options = ContextOptions { timeout: PATIENCE, ..Default::default() };
                let context = Context::new(device.clone(), rank, RANKS, &options).unwrap();
                context.connect(&*store).unwrap();
                work(&context);
            });
        }
    });
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..][..8].try_into().unwrap())
}

/// A message that identifies itself: its length, its number, and then bytes computed from both.
fn fill(message: &mut [u8], number: u64) {
    let bytes = message.len();
    message[..8].copy_from_slice(&(bytes as u64).to_le_bytes());
    message[8..16].copy_from_slice(&number.to_le_bytes());
    for (i, chunk) in message[16..].chunks_mut(8).enumerate() {
        let value = (number ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        chunk.copy_from_slice(&value[..chunk.len()]);
    }
}

/// The number of the message at the beginning of `memory`; checks that the message is complete.
fn number_of(memory: &[u8]) -> u64 {
    let (bytes, number) = (word(memory, 0) as usize, word(memory, 1));
    assert!(SIZES.contains(&bytes), "a length of {bytes}");
    let mut expected = vec![0; bytes];
    fill(&mut expected, number);
    assert!(memory[..bytes] == expected, "message {number} of {bytes} bytes is damaged");
    number
}

fn buffer(context: &Arc<Context>, memory: &mut [u8]) -> UnboundBuffer {
    // SAFETY: callers drop the buffer before they touch the memory again.
    unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()).unwrap() }
}

/// Waits for a receive with many short timeouts, and sometimes aborts the wait itself.
fn wait_recv(buffer: &UnboundBuffer, random: &mut Random) -> usize {
    let started = Instant::now();
    loop {
        if random.chance(8) {
            buffer.abort_wait_recv();
        }
        let moment = if random.chance(2) { None } else { Some(Duration::from_micros(random.next() % 2000)) };
        match buffer.wait_recv(moment) {
            Ok(Some((rank, _))) => return rank,
            Ok(None) => {}
            Err(error) => assert!(error.kind() == ErrorKind::Timeout && started.elapsed() < PATIENCE, "{error}"),
        }
    }
}

struct Message {
    from: usize,
    to: usize,
    slot: u64,
    bytes: usize,
    /// Received from any rank; such slots are not used for other messages.
    any: bool,
}

/// Batches of messages, the same list on every rank; each rank posts its part in an order of its own.
fn messages(context: &Arc<Context>, lane: u64, batches: usize) {
    let rank = context.rank();
    let mut shared = Random::new(1000 + lane);
    let mut own = Random::new(lane * 100 + rank as u64);
    for batch in 0..batches as u64 {
        let list: Vec<Message> = (0..1 + shared.below(24))
            .map(|_| {
                let any = shared.chance(3);
                // A rank may be several batches ahead: its messages must not match a receive from any rank of this
                // batch.
                let batch = if any { batch + 1 } else { 0 };
                let slot = (lane << 32 | batch) << 8 | shared.below(3) as u64;
                let bytes = if shared.chance(12) { MAX_MESSAGE_BYTES } else { shared.pick(&SIZES[..7]) };
                Message { from: shared.below(RANKS), to: shared.below(RANKS), slot, bytes, any }
            })
            .collect();
        let number = |index: usize| batch << 16 | index as u64;
        let sent: Vec<usize> = (0..list.len()).filter(|i| list[*i].from == rank).collect();
        let received: Vec<usize> = (0..list.len()).filter(|i| list[*i].to == rank).collect();
        let longest = |index: usize| {
            // In a receive from any rank, the messages of one slot may come in any order.
            let same = |m: &&Message| m.to == rank && m.slot == list[index].slot;
            list.iter().filter(same).map(|m| m.bytes).max().unwrap()
        };
        let mut from: Vec<Vec<u8>> = sent.iter().map(|i| vec![0; list[*i].bytes]).collect();
        sent.iter().zip(&mut from).for_each(|(i, memory)| fill(memory, number(*i)));
        let room = |i: &usize| if list[*i].any { longest(*i) } else { list[*i].bytes + own_room(*i) };
        let mut into: Vec<Vec<u8>> = received.iter().map(|i| vec![0; room(i)]).collect();
        let sends: Vec<_> = from.iter_mut().map(|m| buffer(context, m)).collect();
        let recvs: Vec<_> = into.iter_mut().map(|m| buffer(context, m)).collect();
        let (mut s, mut r) = (0, 0);
        while s < sent.len() || r < received.len() {
            if r == received.len() || (s < sent.len() && own.chance(2)) {
                let message = &list[sent[s]];
                sends[s].send(message.to, message.slot, 0, message.bytes).unwrap();
                s += 1;
            } else {
                let message = &list[received[r]];
                let all: Vec<usize> = (0..RANKS).collect();
                let ranks = if message.any { &all[..] } else { &[message.from] };
                let bytes = room(&received[r]);
                recvs[r].recv(ranks, message.slot, 0, bytes).unwrap();
                r += 1;
            }
        }
        let ranks: Vec<usize> = recvs.iter().map(|recv| wait_recv(recv, &mut own)).collect();
        for (send, index) in sends.iter().zip(&sent) {
            assert_eq!(send.wait_send(None).unwrap(), Some(list[*index].to));
        }
        drop((sends, recvs));
        let mut came = Vec::new();
        for ((memory, index), rank) in into.iter().zip(&received).zip(ranks) {
            let n = (number_of(memory) & 0xffff) as usize;
            assert_eq!(number(n), number_of(memory), "a message of another batch");
            assert!(list[*index].any || n == *index, "message {n} came for message {index}");
            assert_eq!((list[n].from, list[n].to, list[n].slot), (rank, context.rank(), list[*index].slot));
            came.push(n);
        }
        came.sort_unstable();
        assert_eq!(came, received);
    }
}

/// Sometimes a receive is longer than its message, across the eager limit.
fn own_room(index: usize) -> usize {
    [0, 0, 70_000][index % 3]
}

const LAST: u64 = u64::MAX;
const CARELESS: u64 = 0x77 << 16;
const STOP: u64 = 0x88 << 16;

/// Sends to the next rank with buffers that are dropped at any time, until that rank has enough. Finally sends one
/// message in every slot.
fn careless_sends(context: &Arc<Context>, rounds: u64) {
    let to = (context.rank() + 1) % RANKS;
    let mut random = Random::new(7 + context.rank() as u64);
    for number in 0..rounds {
        let bytes = if random.chance(10) { MAX_MESSAGE_BYTES } else { random.pick(&SIZES[..7]) };
        let mut memory = vec![0; bytes];
        fill(&mut memory, number);
        let send = buffer(context, &mut memory);
        send.send(to, CARELESS | random.below(3) as u64, 0, bytes).unwrap();
        match random.below(3) {
            0 => drop(send.wait_send(Some(Duration::from_micros(random.next() % 3000)))),
            1 => std::thread::sleep(Duration::from_micros(random.next() % 500)),
            _ => {}
        }
        drop(send);
        memory.fill(MEMORY_AFTERWARDS);
    }
    let mut memory = vec![0; MAX_MESSAGE_BYTES];
    let stop = buffer(context, &mut memory[..1]);
    stop.recv(&[to], STOP, 0, 1).unwrap();
    assert_eq!(stop.wait_recv(None).unwrap(), Some((to, 1)));
    drop(stop);
    fill(&mut memory, LAST);
    let send = buffer(context, &mut memory);
    (0..3).for_each(|slot| send.send(to, CARELESS | slot, 0, MAX_MESSAGE_BYTES).unwrap());
    (0..3).for_each(|_| assert_eq!(send.wait_send(None).unwrap(), Some(to)));
}

/// Receives those, with buffers that are dropped at any time; finally receives in every slot up to the last message.
fn careless_recvs(context: &Arc<Context>, rounds: usize) {
    let from = (context.rank() + RANKS - 1) % RANKS;
    let mut random = Random::new(77 + context.rank() as u64);
    let mut dropped = Vec::new();
    for _ in 0..rounds {
        let mut memory = vec![0; MAX_MESSAGE_BYTES];
        let recv = buffer(context, &mut memory);
        let ranks = [from, context.rank()];
        let ranks = if random.chance(3) { &ranks[..] } else { &ranks[..1] };
        recv.recv(ranks, CARELESS | random.below(3) as u64, 0, MAX_MESSAGE_BYTES).unwrap();
        let result = recv.wait_recv(Some(Duration::from_micros(random.next() % 3000)));
        drop(recv);
        if let Ok(came) = result {
            assert_eq!(came.expect("nobody aborts").1, word(&memory, 0) as usize);
            assert_ne!(number_of(&memory), LAST);
        }
        memory.fill(MEMORY_AFTERWARDS);
        dropped.push(memory);
        if dropped.len() > 8 {
            check_untouched(&dropped.remove(0));
        }
    }
    let mut stop = [1];
    let send = buffer(context, &mut stop);
    send.send(from, STOP, 0, 1).unwrap();
    assert_eq!(send.wait_send(None).unwrap(), Some(from));
    for slot in 0..3 {
        let mut memory = vec![0; MAX_MESSAGE_BYTES];
        loop {
            let recv = buffer(context, &mut memory);
            recv.recv(&[from], CARELESS | slot, 0, MAX_MESSAGE_BYTES).unwrap();
            assert_eq!(recv.wait_recv(None).unwrap().unwrap().0, from);
            drop(recv);
            if number_of(&memory) == LAST {
                break;
            }
        }
    }
    dropped.iter().for_each(|memory| check_untouched(memory));
}

fn check_untouched(memory: &[u8]) {
    assert!(memory.iter().all(|b| *b == MEMORY_AFTERWARDS), "written to after the buffer was dropped");
}

fn collectives(context: &Context, tag: u64, calls: usize) {
    let mut random = Random::new(500 + tag);
    for number in 0..calls {
        let case = Case::random(&mut random, context.size(), tag);
        if let Err(error) = case.run(context) {
            panic!("tag {tag}, call {number}: {error}");
        }
    }
}

#[test]
fn everything_at_once() {
    // Under a sanitizer, all of it would take a thread longer than others have patience for it.
    let part = Tier::from_environment().of(5, 1, 1);
    let part: usize = std::env::var("GLOO_RS_TEST_STRESS_PART").map_or(part, |part| part.parse().unwrap());
    ranks(|context| {
        std::thread::scope(|scope| {
            for tag in 0..2 {
                scope.spawn(move || collectives(context, tag, 200 / part));
            }
            for lane in 1..3 {
                scope.spawn(move || messages(context, lane, 100 / part));
            }
            scope.spawn(|| careless_recvs(context, 250 / part));
            careless_sends(context, 400 / part as u64);
        });
    });
}
