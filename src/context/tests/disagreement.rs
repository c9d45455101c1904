//! Ranks in different calls, on each link, find out about each other at the latest at the deadline.

use super::*;
use crate::collective::{Collective, Shape};
use crate::types::DataType;

const TIMEOUT: Duration = Duration::from_millis(300);

/// A collective, its number of elements, and its root.
pub type Made = (Collective, usize, usize);

pub fn make(context: &Context, (collective, count, root): Made, timeout: Duration) -> Result<()> {
    let is_root = root == context.rank();
    let inputs = usize::from(collective != Collective::Barrier && (collective != Collective::Broadcast || is_root));
    let outputs = usize::from(collective != Collective::Barrier && (collective != Collective::Gather || is_root));
    let shape = Shape { inputs, outputs, root, ..Shape::new(collective, context.rank(), context.size(), count) };
    let input = vec![1u64; shape.input_len(0)];
    let mut output = vec![0u64; shape.output_len(0)];
    let call = Call {
        inputs: &[input.as_ptr().cast()][..inputs],
        outputs: &[output.as_mut_ptr().cast()][..shape.outputs],
        tag: 3,
        timeout: Some(timeout),
        ..Call::new(shape, DataType::Uint64)
    };
    // SAFETY: the vectors have the lengths of the shape, and live until the call returns.
    unsafe { context.run(&call) }
}

/// Contexts of ranks that share memory, or that use sockets.
fn contexts(size: usize, shared: bool) -> Vec<Arc<Context>> {
    let options = ContextOptions { check_calls: Some(false), ..Default::default() };
    agreement::on_this_host(size, shared, options)
}

#[test]
fn a_disagreement_has_one_name_on_each_link() {
    let usual = (Collective::Allreduce, 10, 0);
    for (usual, odd) in [
        (usual, (Collective::Allgather, 10, 0)),
        (usual, (Collective::Barrier, 0, 0)),
        (usual, (Collective::Alltoall, 1000, 0)),
        ((Collective::Reduce, 10, 0), (Collective::Reduce, 10, 1)),
        ((Collective::Reduce, 10, 0), (Collective::Gather, 10, 1)),
        (usual, (Collective::Allreduce, 11, 0)),
    ] {
        for (size, shared) in [(2, true), (2, false), (3, true), (3, false)] {
            let contexts = contexts(size, shared);
            let (failed, together) = (std::sync::Mutex::new(Vec::new()), std::sync::Barrier::new(size));
            run(&contexts, |context| {
                together.wait();
                let made = make(context, if context.rank() == 1 { odd } else { usual }, 4 * TIMEOUT);
                let Err(error) = made else { return };
                let broken = context.broken().expect("a call has failed").details().rank;
                failed.lock().unwrap().push((error.kind(), error.details().rank, broken, error.message().to_owned()));
            });
            let failed = failed.into_inner().unwrap();
            let what = format!("{usual:?} and {odd:?}, {size} ranks, shared: {shared}: {failed:#?}");
            assert!(!failed.is_empty(), "{what}");
            for (kind, rank, broken, _) in &failed {
                assert_eq!((*kind, *rank), (ErrorKind::Mismatch, *broken), "{what}");
            }
        }
    }
}

/// Rank 1 is in the next call, which is right: rank 0 is still in the one before, since rank 2 is late.
#[test]
fn a_rank_that_is_late_is_no_disagreement() {
    for shared in [true, false] {
        let contexts = contexts(3, shared);
        run(&contexts, |context| {
            if context.rank() == 2 {
                return;
            }
            let gathered =
                make(context, (Collective::Gather, 10, 0), if context.rank() == 0 { 20 * TIMEOUT } else { TIMEOUT });
            if context.rank() == 1 {
                gathered.unwrap();
                let error = make(context, (Collective::Barrier, 0, 0), TIMEOUT).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            } else {
                assert_ne!(gathered.unwrap_err().kind(), ErrorKind::Mismatch);
            }
        });
    }
}
