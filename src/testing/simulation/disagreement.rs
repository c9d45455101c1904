//! Ranks that disagree about the number of elements one of them sends, in the collectives with individual counts.

use std::time::Duration;

use super::idle;
use super::job::play_on;
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, ContextOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::{LinkModel, Network};
use crate::types::{DataType, Rank};

const SIZE: usize = 3;
const COLLECTIVES: [Collective; 3] = [Collective::Gatherv, Collective::Scatterv, Collective::Alltoallv];
/// Long enough for data to arrive, and for a failed rank to notify the others.
const SOON: Duration = Duration::from_millis(10);

/// A call in which rank `from` sends `sent` elements to rank `to`, which expects `expected`. All other pairs agree on
/// one segment of `segment` elements.
struct MismatchedCall {
    collective: Collective,
    segment: usize,
    sent: usize,
    expected: usize,
}

impl MismatchedCall {
    /// The sender and the receiver; 0 is the root.
    fn ends(&self) -> [Rank; 2] {
        match self.collective {
            Collective::Gatherv => [2, 0],
            Collective::Scatterv => [0, 2],
            _ => [1, 2],
        }
    }

    fn make(&self, context: &Context) -> Result<()> {
        use Collective::*;
        let (rank, is_root, [from, to]) = (context.rank(), context.rank() == 0, self.ends());
        let with = |mismatched: bool, other: Rank, count: usize| {
            let mut counts = vec![self.segment; SIZE];
            if mismatched {
                counts[other] = count;
            }
            counts
        };
        let (sent, received) = (with(rank == from, to, self.sent), with(rank == to, from, self.expected));
        let lists = |here: bool, list| if here { list } else { Vec::new() };
        let (sent, received) = match self.collective {
            Gatherv => (Vec::new(), lists(is_root, received)),
            Scatterv => (lists(is_root, sent), Vec::new()),
            _ => (sent, received),
        };
        let count = match rank {
            _ if self.collective == Alltoallv => 0,
            _ if rank == from && !is_root => self.sent,
            _ if rank == to && !is_root => self.expected,
            _ => self.segment,
        };
        let shape = Shape {
            inputs: usize::from(self.collective != Scatterv || is_root),
            outputs: usize::from(self.collective != Gatherv || is_root),
            send_counts: &sent,
            recv_counts: &received,
            ..Shape::new(self.collective, rank, SIZE, count)
        };
        let input = vec![0i64; shape.input_len(0)];
        let mut output = vec![0i64; shape.output_len(0)];
        let call = Call {
            algorithm: Some(self.collective.algorithms()[0].name),
            inputs: &[input.as_ptr().cast()][..shape.inputs],
            outputs: &[output.as_mut_ptr().cast()][..shape.outputs],
            max_segment_bytes: Some(8 * self.segment),
            ..Call::new(shape, DataType::Int64)
        };
        // SAFETY: the vectors have the lengths given by the shape and live until the call returns.
        unsafe { context.run(&call) }
    }

    /// The errors of sender and receiver: of this call, of a later one in which they exchange nothing, or, if that has
    /// ended before the other rank has noticed, of the context.
    fn errors(&self, seed: u64) -> [(bool, Error); 2] {
        let link_model = LinkModel {
            delay: Duration::from_micros(1)..Duration::from_micros(20),
            capacity: 1 << 20,
            piece: 1 << 20,
            reads_above: None,
            places_above: None,
        };
        let options = ContextOptions { check_calls: Some(false), agrees: false, ..Default::default() };
        let network = Network::new(seed, link_model);
        let mut errors = play_on(&network, SIZE, &options, |network, context| {
            let began = network.now();
            let first = self.make(context).err();
            let at_once = first.is_some();
            let error = first.or_else(|| {
                idle(network, SOON);
                MismatchedCall { sent: 0, expected: 0, ..*self }.make(context).err()
            });
            assert!(network.now().duration_since(began) < 2 * SOON, "rank {} waited: {error:?}", context.rank());
            idle(network, SOON);
            error.or_else(|| context.broken()).map(|error| (at_once, error))
        });
        let of = |rank: usize| errors[rank].take().expect("the rank has ended");
        self.ends().map(of).map(|error| error.unwrap_or_else(|| panic!("seed {seed}: a rank has noticed nothing")))
    }
}

/// Orders of events in which each call is played.
const SEEDS: u64 = 10;

const SMALL: usize = 4;
/// Number of elements of a segment that is too large for an eager message.
const LARGE: usize = EAGER_BYTES / 8 + 1;

#[test]
fn sending_more_or_less_than_expected_fails_on_both_ranks() {
    for (seed, collective) in (0..SEEDS).flat_map(|seed| COLLECTIVES.map(|collective| (seed, collective))) {
        for segment in [SMALL, LARGE] {
            for (sent, expected) in [(2, 1), (1, 2), (3, 1), (3, 2)].map(|(a, b)| (a * segment, b * segment)) {
                let call = MismatchedCall { collective, segment, sent, expected };
                let what = format!("{} of {sent} for {expected} in {segment}", collective.name());
                let [sender, receiver] = call.errors(seed);
                let [from, to] = call.ends();
                for (rank, (_, error)) in [(from, &sender), (to, &receiver)] {
                    assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}: rank {rank}: {error}");
                    let follows = if sent > expected {
                        "behind which more follows, where no more is expected"
                    } else {
                        "behind which nothing follows, where more is expected"
                    };
                    let text = format!(
                        "rank {from} at node {from} sent a message of {} bytes as message 0 of tag 0, ",
                        8 * segment
                    );
                    assert!(error.message().contains(&text) && error.message().contains(follows), "{what}: {error}");
                }
                // Small segments are sent eagerly, so the sender may have finished.
                assert!(receiver.0 && (sender.0 || segment == SMALL || sent < expected), "{what}");
            }
        }
    }
}

/// In this case the receiver posts no receive that could detect the message.
#[test]
fn sending_to_a_rank_that_expects_nothing_fails_in_the_next_such_call_at_the_latest() {
    for (seed, collective) in (0..SEEDS).flat_map(|seed| COLLECTIVES.map(|collective| (seed, collective))) {
        let call = MismatchedCall { collective, segment: SMALL, sent: SMALL, expected: 0 };
        let [from, _] = call.ends();
        for (_, error) in call.errors(seed) {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let text = format!("rank {from} at node {from} has sent 32 bytes of {} ", collective.name());
            assert!(error.message().contains(&text), "{error}");
            assert!(error.message().contains("where none were expected from it: the counts"), "{error}");
        }
    }
}
