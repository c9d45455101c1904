//! Random point-to-point messages, puts and gets, writes into bound buffers, and their expected results.

use std::sync::Arc;

use crate::context::{BoundBuffer, Context, RemoteKey, UnboundBuffer};
use crate::error::Result;
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::Random;
use crate::types::Rank;

/// A communication pattern.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Every rank sends to the next rank and receives from the previous one.
    Ring,
    /// Rank 0 receives from any rank; the others send to it.
    Any,
    /// Every rank puts into the next rank's buffer and gets from the previous rank's; they exchange the keys by
    /// messages.
    PutGet,
    /// Every rank writes into the buffer that the next rank has bound.
    Bound,
}

/// Messages between all ranks.
pub struct Messages {
    kind: Kind,
    bytes: usize,
    seed: u8,
}

/// Memory of former buffers, filled with a pattern that must not change.
pub struct Sealed(Vec<Box<[u8]>>);

const PATTERN: u8 = 0xb5;

impl Sealed {
    /// Whether the pattern is unchanged.
    pub fn is_sealed(&self) -> bool {
        self.0.iter().all(|memory| memory.iter().all(|byte| *byte == PATTERN))
    }
}

fn fill(memory: &mut [u8], of: Rank, seed: u8) {
    memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i as u8).wrapping_mul(31) ^ seed ^ (of as u8 + 1));
}

fn is_from(memory: &[u8], of: Rank, seed: u8) -> bool {
    let mut expected = vec![0; memory.len()];
    fill(&mut expected, of, seed);
    memory == expected
}

impl Messages {
    /// Random messages; with `large` they may be large enough to need a grant.
    pub fn random(random: &mut Random, large: bool) -> Self {
        let kind = [Kind::Ring, Kind::Any, Kind::PutGet, Kind::Bound][random.below(4)];
        let bytes = [0, 1, 8, 100, 600, EAGER_BYTES, EAGER_BYTES + 1, 70_001][random.below(if large { 8 } else { 5 })];
        Self { kind, bytes, seed: random.bits() as u8 }
    }

    /// Runs this rank's part. Returns its memory, whether or not that succeeded.
    pub fn run(&self, context: &Arc<Context>, slot: u64) -> (Result<()>, Sealed) {
        let mut memory: Vec<Box<[u8]>> = (0..4).map(|_| vec![0; self.bytes.max(128)].into()).collect();
        let result = self.exchange(context, slot, &mut memory);
        memory.iter_mut().for_each(|memory| memory.fill(PATTERN));
        (result, Sealed(memory))
    }

    fn exchange(&self, context: &Arc<Context>, slot: u64, memory: &mut [Box<[u8]>]) -> Result<()> {
        let (rank, size, bytes) = (context.rank(), context.size(), self.bytes);
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        fill(&mut memory[0], rank, self.seed);
        let pointers: Vec<(*mut u8, usize)> = memory.iter_mut().map(|m| (m.as_mut_ptr(), m.len())).collect();
        // SAFETY: `pointers` refer to `memory`, which lives longer than the buffers: this function drops them.
        let buffer = |n: usize| unsafe { context.unbound_buffer(pointers[n].0, pointers[n].1) };
        // SAFETY: `at + bytes` is at most the length of the memory, and no operation is in progress on it when it is
        // read.
        let bytes_of = |n: usize, at: usize, bytes: usize| unsafe {
            std::slice::from_raw_parts(pointers[n].0.add(at).cast_const(), bytes)
        };
        match self.kind {
            Kind::Ring => {
                let (send, recv) = (buffer(0)?, buffer(1)?);
                recv.recv(&[before], slot, 0, pointers[1].1)?;
                send.send(next, slot, 0, bytes)?;
                assert_eq!(recv.wait_recv(None)?, Some((before, bytes)));
                send.wait_send(None)?;
                assert!(is_from(bytes_of(1, 0, bytes), before, self.seed), "rank {rank}: wrong bytes");
            }
            Kind::Any if rank == 0 => {
                let recv = buffer(1)?;
                let mut seen = vec![false; size];
                let all: Vec<Rank> = (1..size).collect();
                for _ in 1..size {
                    recv.recv(&all, slot, 0, pointers[1].1)?;
                    let (from, length) = recv.wait_recv(None)?.expect("the wait is not aborted");
                    assert_eq!(length, bytes);
                    assert!(!std::mem::replace(&mut seen[from], true), "rank {from} came twice");
                    assert!(is_from(bytes_of(1, 0, bytes), from, self.seed), "wrong bytes of rank {from}");
                }
            }
            Kind::Any => {
                let send = buffer(0)?;
                send.send(0, slot, 0, bytes)?;
                send.wait_send(None)?;
            }
            Kind::PutGet => self.put_and_get(context, slot, &buffer, &bytes_of)?,
            Kind::Bound => {
                // SAFETY: `pointers` refer to `memory`, which lives longer than both buffers: this block's scope drops
                // them.
                let (send, recv): (BoundBuffer, BoundBuffer) = unsafe {
                    let recv = context.pair(before)?.recv_buffer(slot, pointers[1].0, pointers[1].1)?;
                    (context.pair(next)?.send_buffer(slot, pointers[0].0, pointers[0].1)?, recv)
                };
                send.send(0, bytes, 0)?;
                assert_eq!(recv.wait_recv(None)?, (0, bytes));
                send.wait_send(None)?;
                assert!(is_from(bytes_of(1, 0, bytes), before, self.seed), "rank {rank}: wrong bytes");
            }
        }
        Ok(())
    }

    fn put_and_get<'a>(
        &self,
        context: &Context,
        slot: u64,
        buffer: &dyn Fn(usize) -> Result<UnboundBuffer>,
        bytes_of: &dyn Fn(usize, usize, usize) -> &'a [u8],
    ) -> Result<()> {
        let (rank, size, bytes) = (context.rank(), context.size(), self.bytes);
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let (own, window, got, notes) = (buffer(0)?, buffer(1)?, buffer(2)?, buffer(3)?);
        // Messages to both neighbours: first the keys for puts and gets, later a confirmation that this rank has
        // finished its own.
        let length = 32;
        for (at, key) in [own.remote_key()?, window.remote_key()?].iter().enumerate() {
            let key = format!("{:length$}", key.to_string());
            let note = bytes_of(3, at * length, length).as_ptr().cast_mut();
            assert_eq!(key.len(), length);
            // SAFETY: the buffer has at least 128 bytes, four times `length`, and no operation is in progress on it.
            unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), note, length) };
        }
        let exchange = |slot: u64| -> Result<()> {
            notes.recv(&[before], slot, 2 * length, length)?;
            notes.recv(&[next], slot + 1, 3 * length, length)?;
            notes.send(next, slot, 0, length)?;
            notes.send(before, slot + 1, length, length)?;
            for _ in 0..2 {
                notes.wait_recv(None)?;
                notes.wait_send(None)?;
            }
            Ok(())
        };
        exchange(slot)?;
        let key = |at: usize| -> Result<RemoteKey> {
            std::str::from_utf8(bytes_of(3, at * length, length)).expect("text").trim_end().parse()
        };
        own.put(&key(3)?, 0, 0, 0, bytes)?;
        got.get(&key(2)?, 0, 0, 0, bytes)?;
        assert_eq!(own.wait_send(None)?, Some(next));
        assert_eq!(got.wait_send(None)?, Some(before));
        assert!(is_from(bytes_of(2, 0, bytes), before, self.seed), "rank {rank}: wrong bytes by a get");
        exchange(slot + 2)?;
        assert!(is_from(bytes_of(1, 0, bytes), before, self.seed), "rank {rank}: wrong bytes by a put");
        Ok(())
    }
}
