//! The event queue, ordered by time.

/// A radix heap (Ahuja, Mehlhorn, Orlin and Tarjan 1990). No event is earlier than the last one removed, so an event is
/// only compared with the current time: it is in the bucket of the highest bit in which the two differ, and moves to a
/// lower bucket at most once per bit. Simultaneous events leave in the order of insertion.
pub(super) struct Queue {
    /// The time of the last event removed.
    now: u64,
    /// `buckets[0]`: events at the current time, of which `next` have been removed. `buckets[i]`: bit `i - 1` is the
    /// highest that differs.
    buckets: [Vec<(u64, u64)>; 65],
    next: usize,
}

impl Queue {
    pub fn new() -> Self {
        Self { now: 0, buckets: [const { Vec::new() }; 65], next: 0 }
    }

    /// Adds an event; `time` must not be before the last event removed.
    pub fn push(&mut self, time: u64, event: u64) {
        debug_assert!(time >= self.now);
        let bucket = u64::BITS - (time ^ self.now).leading_zeros();
        self.buckets[bucket as usize].push((time, event));
    }

    /// Removes the earliest event and returns it with its time.
    pub fn pop(&mut self) -> Option<(u64, u64)> {
        if self.next == self.buckets[0].len() {
            self.buckets[0].clear();
            self.next = 0;
            let first = self.buckets.iter().position(|bucket| !bucket.is_empty())?;
            let mut bucket = std::mem::take(&mut self.buckets[first]);
            self.now = bucket.iter().map(|&(time, _)| time).min()?;
            for (time, event) in bucket.drain(..) {
                self.push(time, event);
            }
            // Keep the bucket's memory.
            self.buckets[first] = bucket;
        }
        let event = self.buckets[0][self.next];
        self.next += 1;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_come_in_order_and_equal_ones_as_they_were_put(
            rounds in proptest::collection::vec((proptest::collection::vec(0u64..40, 0..6), 0usize..5), 1..60),
            scale in prop_oneof![Just(1u64), Just(1 << 20), Just(1 << 57)],
        ) {
            let mut queue = Queue::new();
            // The reference: sorted by time, then by order of insertion.
            let mut reference = std::collections::BTreeSet::new();
            let (mut now, mut number) = (0, 0);
            for (delays, pops) in rounds {
                for delay in delays {
                    let time = now.max(delay * scale);
                    queue.push(time, number);
                    reference.insert((time, number));
                    number += 1;
                }
                for _ in 0..pops {
                    let popped = queue.pop();
                    prop_assert_eq!(popped, reference.pop_first());
                    now = popped.map_or(now, |(time, _)| time);
                }
            }
            while let Some(expected) = reference.pop_first() {
                prop_assert_eq!(queue.pop(), Some(expected));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }
}
