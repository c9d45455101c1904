//! Two messengers over a link in memory, on memory that the tests own. Small enough for Miri, which does not support
//! sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::matching::EAGER_BYTES;
use super::*;
use crate::reduce::{self, Pairwise, Side};
use crate::transport::{Interest, Link};
use crate::types::{DataType, ReduceOp, Space};

/// The bytes in transit in one direction.
type Pipe = Arc<Mutex<Vec<u8>>>;

/// One end of a link; each call transfers at most `bytes`.
struct Pipes {
    out: Pipe,
    into: Pipe,
    bytes: usize,
}

// Copies slices: Miri takes its time for each byte that is moved alone.
impl Link for Pipes {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut out = self.out.lock().unwrap();
        let mut left = self.bytes;
        for part in parts {
            let n = part.len().min(left);
            out.extend_from_slice(&part[..n]);
            left -= n;
        }
        Ok(self.bytes - left)
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut from = self.into.lock().unwrap();
        let mut done = 0;
        for part in parts {
            let n = part.len().min(from.len().min(self.bytes) - done);
            part[..n].copy_from_slice(&from[done..done + n]);
            done += n;
        }
        from.drain(..done);
        if done > 0 { Ok(done) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn end(self: Box<Self>, _: Vec<u8>, _: Vec<u8>) {}
}

/// Ranks 0 and 1.
struct Pair([Messenger; 2]);

impl Pair {
    fn new(bytes: usize) -> Self {
        let pipes = [Pipe::default(), Pipe::default()];
        Self([0, 1].map(|rank| {
            let mut messenger = crate::testing::links::messenger(rank, 2);
            let link = Pipes { out: pipes[rank].clone(), into: pipes[1 - rank].clone(), bytes };
            messenger.established(1 - rank, Box::new(link), 1);
            messenger
        }))
    }

    fn send(&mut self, slot: u64, message: &[u8]) {
        let token = Token { owner: slot as u32, detail: 0 };
        let (space, from, bytes) = (Space::USER, message.as_ptr(), message.len());
        // SAFETY: the tests keep the message until it has been received.
        unsafe { self.0[0].send(Send { to: 1, space, slot, fingerprint: 0, from, bytes, more: false, token }) };
    }

    fn recv(&mut self, slot: u64, into: *mut u8, bytes: usize, reduce: Option<ReduceInto>) {
        let token = Token { owner: slot as u32, detail: 1 };
        let (from, space) = (Source::Rank(0), Space::USER);
        // SAFETY: the tests keep the memory until the receive has ended, or is cancelled.
        unsafe {
            self.0[1].recv(Recv {
                from,
                space,
                slot,
                fingerprint: 0,
                into,
                bytes,
                exact: true,
                more: false,
                reduce,
                token,
            })
        };
    }

    /// Moves everything that can be moved, or for so many turns; what has ended at rank 1.
    fn play(&mut self, turns: usize) -> Vec<Event> {
        let [mut sent, mut received] = [Vec::new(), Vec::new()];
        for _ in 0..turns {
            let moved = self.0[0].progress(Instant::now(), &mut sent);
            if !(self.0[1].progress(Instant::now(), &mut received) | moved) {
                break;
            }
        }
        received
    }
}

fn numbers(bytes: usize) -> Vec<u8> {
    let mut some = (0..251u8).collect::<Vec<_>>().repeat(bytes / 251 + 1);
    some.truncate(bytes);
    some
}

const ALL: usize = usize::MAX;

#[test]
fn messages_arrive_where_the_receiver_wants_them() {
    for (bytes, pieces) in [(0, 4096), (5, 7), (5, 4096), (9000, 4096), (EAGER_BYTES + 1, 1 << 14)] {
        for is_expected in [true, false] {
            let (message, mut memory, mut pair) = (numbers(bytes), vec![0; bytes], Pair::new(pieces));
            let into = memory.as_mut_ptr();
            if is_expected {
                pair.recv(3, into, bytes, None);
            }
            pair.send(3, &message);
            let mut ended = pair.play(ALL);
            if !is_expected {
                assert!(ended.is_empty());
                pair.recv(3, into, bytes, None);
                ended = pair.play(ALL);
            }
            let [Event { outcome: Outcome::Done { rank: 0, bytes: got }, .. }] = ended[..] else { panic!("{ended:?}") };
            assert_eq!((got, &memory), (bytes, &message));
        }
    }
}

#[test]
fn what_arrives_is_reduced_into_place() {
    for (elements, pieces) in [(3, 7), (3, 4096), (2000, 4096)] {
        let (message, with, mut pair) = (numbers(elements * 4), numbers(elements * 4), Pair::new(pieces));
        let mut memory = vec![0u8; elements * 4];
        let kernel = reduce::kernel(DataType::Int32, ReduceOp::BitXor).unwrap();
        let into =
            ReduceInto { kernel: Pairwise::Kernel(kernel), with: with.as_ptr(), incoming: Side::Left, element: 4 };
        pair.recv(3, memory.as_mut_ptr(), elements * 4, Some(into));
        pair.send(3, &message);
        assert_eq!(pair.play(ALL).len(), 1);
        assert!(memory.iter().all(|byte| *byte == 0), "a number and itself differ in no bit");
    }
}

#[test]
fn memory_of_a_receive_that_is_taken_back_may_be_freed() {
    for turns in [0, 1, 2, 4] {
        let (message, mut pair) = (numbers(9000), Pair::new(1000));
        let mut memory = vec![0; message.len()];
        pair.recv(3, memory.as_mut_ptr(), memory.len(), None);
        pair.send(3, &message);
        assert!(pair.play(turns).is_empty());
        pair.0[1].cancel(3);
        drop(memory);
        assert!(pair.play(ALL).is_empty());
    }
}
