//! Several requests that were started: in which order ranks wait for them, and how.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::job::{Job, contexts_on, contexts_sharing, play_over, reliable};
use super::sleep;
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, Reduction, Request};
use crate::engine::shared::program::MAX_LENGTHS;
use crate::error::Error;
use crate::testing::loopback::{Network, Node};
use crate::transport::{Device, Sharing};
use crate::types::{DataType, ReduceOp};

/// Longer than any call takes whose ranks are all in it.
const LONG: Duration = Duration::from_secs(1);

/// Where the ranks of a job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// They exchange messages.
    Apart,
    /// They share memory in this way.
    OneHost(Sharing),
}

const PLACES: [Place; 3] = [Place::Apart, Place::OneHost(Sharing::Processes), Place::OneHost(Sharing::Segments)];

impl Place {
    /// Algorithms of an allreduce of which a rank waits for what others combine.
    fn algorithms(self) -> &'static [&'static str] {
        match self {
            Self::Apart => &["halving_doubling", "ring", "reduce_broadcast", "recursive_doubling"],
            Self::OneHost(_) => &["shared_flat", "shared_slices", "ring"],
        }
    }

    /// `count` contexts for each of `size` ranks, on one device for each rank.
    fn contexts(self, network: &Network, size: usize, count: usize) -> Vec<Vec<Arc<Context>>> {
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
struct LongPublications((usize, usize));

impl LongPublications {
    fn begin() -> Self {
        Self(MAX_LENGTHS.replace((0, 512)))
    }
}

impl Drop for LongPublications {
    fn drop(&mut self) {
        MAX_LENGTHS.set(self.0);
    }
}

unsafe extern "C" fn adds(
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    count: usize,
    _: *mut c_void,
) -> i32 {
    for i in 0..count {
        // SAFETY: the library passes `count` elements of the call's type.
        unsafe { *into.cast::<i64>().add(i) = *left.cast::<i64>().add(i) + *right.cast::<i64>().add(i) };
    }
    0
}

/// A sum of numbers in place.
#[derive(Clone, Copy, Debug)]
struct Sum {
    algorithm: &'static str,
    /// Computed by a function of the caller.
    by_function: bool,
    tag: u64,
}

impl Sum {
    fn request(self, context: &Arc<Context>, data: &mut [i64]) -> Request {
        let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), data.len());
        let reduction = match self.by_function {
            true => Reduction::User { function: adds, user: std::ptr::null_mut() },
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
        unsafe { context.request_checked(&call, None, None) }.unwrap()
    }
}

/// Two ranks start two requests with functions of the caller, and wait for them in opposite orders.
fn wait_in_opposite_orders(place: Place, algorithm: &'static str) {
    let _long = LongPublications::begin();
    let network = Network::new(1, reliable());
    let all = place.contexts(&network, 2, 1);
    let ended = play_over(&network, &all[0], |network, context| {
        let (rank, began) = (context.rank(), network.now());
        let mut data = [vec![1 + rank as i64; 1000], vec![10 * (1 + rank as i64); 1000]];
        let [one, other] = &mut data;
        let sum = |tag| Sum { algorithm, by_function: true, tag };
        let requests = [sum(1).request(context, one), sum(2).request(context, other)];
        requests.iter().for_each(|request| request.start().unwrap());
        let order = [&requests[rank], &requests[1 - rank]];
        let what = |error: Error| format!("{place:?}, {algorithm}: {error}");
        order.iter().for_each(|request| request.wait().map_err(what).unwrap());
        assert!(network.now() - began < LONG);
        drop(requests);
        assert!(data[0].iter().all(|sum| *sum == 3) && data[1].iter().all(|sum| *sum == 30));
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn who_waits_for_one_request_calls_the_functions_of_others() {
    for place in PLACES {
        for algorithm in place.algorithms() {
            wait_in_opposite_orders(place, algorithm);
        }
    }
}
