//! A ring in ordinary memory, where Miri and ThreadSanitizer see all accesses. The model has every order of few events;
//! these have many events.

use super::*;
use crate::testing::loopback::Random;

/// Lines of a ring, so few that it is passed often.
const LINES: usize = 16;

struct Memory {
    lines: Vec<Line>,
    consumed: AtomicU64,
}

// SAFETY: the ends of the ring order all accesses to the lines.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        Self { lines: (0..LINES).map(|_| Line::new()).collect(), consumed: AtomicU64::new(0) }
    }

    fn producer(&self) -> Producer {
        // SAFETY: the memory outlives the ends in these tests.
        unsafe { Producer::new(self.lines.as_ptr(), LINES, &self.consumed) }
    }

    fn consumer(&self) -> Consumer {
        // SAFETY: as above.
        unsafe { Consumer::new(self.lines.as_ptr(), LINES, &self.consumed) }
    }
}

/// Receives into two parts.
fn pop(consumer: &mut Consumer, random: &mut Random) -> io::Result<Vec<u8>> {
    let mut into = vec![0; 1 + random.below(400)];
    let cut = random.below(100).min(into.len());
    let (first, second) = into.split_at_mut(cut);
    let (got, _) = consumer.pop(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])?;
    into.truncate(got);
    Ok(into)
}

#[test]
fn a_thread_receives_what_another_one_sends() {
    const BYTES: usize = if cfg!(miri) { 5_000 } else { 2_000_000 };
    let memory = Memory::new();
    let byte = |at: usize| (at % 251) as u8;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut producer, mut random, mut at) = (memory.producer(), Random::new(1), 0);
            while at < BYTES {
                let data: Vec<u8> = (at..BYTES.min(at + 1 + random.below(300))).map(byte).collect();
                let (first, second) = data.split_at(random.below(data.len() + 1));
                match producer.push(&[IoSlice::new(first), IoSlice::new(second)]) {
                    Ok(sent) => at += sent,
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        let (mut consumer, mut random, mut at) = (memory.consumer(), Random::new(2), 0);
        while at < BYTES {
            match pop(&mut consumer, &mut random) {
                Ok(got) => {
                    assert!(got.iter().enumerate().all(|(i, got)| *got == byte(at + i)), "from byte {at} on");
                    at += got.len();
                }
                Err(_) => std::thread::yield_now(),
            }
        }
    });
}

/// Whatever the other side writes, an end gives an error, or some bytes, and stays within the ring.
#[test]
fn nonsense_in_a_ring_is_refused() {
    let mut random = Random::new(3);
    let (mut malformed, mut received) = (0, 0);
    for _ in 0..if cfg!(miri) { 20 } else { 5_000 } {
        let memory = Memory::new();
        let (mut producer, mut consumer) = (memory.producer(), memory.consumer());
        for _ in 0..30 {
            let at = random.below(LINES);
            let word = match random.below(4) {
                0 => stamp(consumer.at, LINES as u64, random.below(500)),
                1 => stamp(random.below(100) as u64, LINES as u64, random.below(1 << LENGTH_BITS)),
                2 => random.below(3 * LINES) as u64,
                _ => random.bits(),
            };
            if random.below(4) == 0 {
                memory.consumed.store(word, Ordering::Relaxed);
            } else {
                memory.lines[if random.below(2) == 0 { at } else { consumer.at as usize % LINES }]
                    .stamp
                    .store(word, Ordering::Relaxed);
            }
            let outcomes = [
                pop(&mut consumer, &mut random).map(|got| got.len()),
                producer.push(&[IoSlice::new(&vec![7; random.below(2000)])]),
            ];
            for outcome in outcomes {
                match outcome {
                    Ok(n) => received += n,
                    Err(e) => malformed += u32::from(e.kind() == io::ErrorKind::InvalidData),
                }
            }
        }
    }
    assert!(malformed > 0 && received > 0);
}
