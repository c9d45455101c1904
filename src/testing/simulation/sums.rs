//! Sums that ranks start: where the ranks are, and how a sum is computed.

use std::sync::Arc;
use std::time::Duration;

use super::job::{Job, contexts_on, contexts_sharing, play_over, reliable};
use super::sleep;
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, Reduction, Request};
use crate::engine::shared::program::MAX_LENGTHS;
use crate::testing::loopback::{Network, Node, NodeStatus};
use crate::testing::user_function::add;
use crate::transport::{Device, Sharing};
use crate::types::{DataType, ReduceOp};

/// Longer than any call takes whose ranks are all in it.
pub(super) const LONG: Duration = Duration::from_secs(1);
/// Less than a message takes.
pub(super) const SHORT: Duration = Duration::from_nanos(100);

/// Where the ranks of a job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// They exchange messages.
    Apart,
    /// They share memory in this way.
    OneHost(Sharing),
}

pub(super) const PLACES: [Place; 3] =
    [Place::Apart, Place::OneHost(Sharing::Processes), Place::OneHost(Sharing::Segments)];

impl Place {
    /// Algorithms of an allreduce of which a rank waits for what others combine.
    pub(super) fn algorithms(self) -> &'static [&'static str] {
        match self {
            Self::Apart => &["halving_doubling", "ring", "reduce_broadcast", "recursive_doubling"],
            Self::OneHost(_) => &["shared_flat", "shared_slices", "ring"],
        }
    }

    /// `count` contexts for each of `size` ranks, on one device for each rank.
    pub(super) fn contexts(self, network: &Network, size: usize, count: usize) -> Vec<Vec<Arc<Context>>> {
        let device = |_| -> Arc<dyn Device> {
            match self {
                Self::Apart => Node::new(network, sleep),
                Self::OneHost(_) => Node::sharing(network, 1, sleep),
            }
        };
        let (devices, options): (Vec<_>, _) = ((0..size).map(device).collect(), Job::options(false));
        let contexts = |_| match self {
            Self::Apart => contexts_on(devices.clone(), &options),
            Self::OneHost(found) => contexts_sharing(devices.clone(), &options, found),
        };
        (0..count).map(contexts).collect()
    }
}

/// Publications of a job are longer than what is copied as a whole as long as this exists.
pub(super) struct LongPublications((usize, usize));

impl LongPublications {
    pub(super) fn begin() -> Self {
        Self(MAX_LENGTHS.replace((0, 512)))
    }
}

impl Drop for LongPublications {
    fn drop(&mut self) {
        MAX_LENGTHS.set(self.0);
    }
}

/// A sum of numbers in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sum {
    pub algorithm: &'static str,
    /// Computed by a function of the caller.
    pub by_function: bool,
    pub tag: u64,
    /// May run beside others on its tag.
    pub in_order: bool,
}

impl Sum {
    pub(super) fn request(self, context: &Arc<Context>, data: &mut [i64]) -> Request {
        let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), data.len());
        let reduction = match self.by_function {
            true => Reduction::User { function: add::<i64>, user: std::ptr::null_mut() },
            false => Reduction::Op(ReduceOp::Sum),
        };
        let call = Call {
            outputs: &[data.as_mut_ptr().cast()],
            algorithm: Some(self.algorithm),
            tag: self.tag,
            reduction,
            ..Call::new(Shape { inputs: 0, ..shape }, DataType::Int64)
        };
        context.check(&call, None).unwrap();
        // SAFETY: the callers' arrays are as long as the shape says, outlive the request, and are not used while it is
        // active.
        unsafe { context.request_checked(&call, None, None, self.in_order) }.unwrap()
    }
}

/// Calls `sums` on each of three ranks, with the buffers of two sums, of which the last rank dies while they run: the
/// others return soon.
pub(super) fn while_a_rank_dies(sums: impl Fn(&Network, &Arc<Context>, [&mut [i64]; 2])) {
    let network = Network::new(1, reliable());
    let all = Place::Apart.contexts(&network, 3, 1);
    let ended = play_over(&network, &all[0], |network, context| {
        let mut data = [[1; 1000], [1; 1000]];
        if context.rank() == 2 {
            network.fail_after(2, 100, NodeStatus::Crashed);
        }
        let began = network.now();
        sums(network, context, data.each_mut().map(|data| &mut data[..]));
        assert!(network.now() - began < LONG);
    });
    assert!(ended[..2].iter().all(Option::is_some));
}
