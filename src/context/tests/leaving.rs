//! Ranks that are lost, and what those that are left agree on. Where each step may be the last one of a rank is in the
//! [simulation](crate::testing::simulation).

use super::*;
use crate::collective::{Collective, Shape};
use crate::types::DataType;

fn connected(size: usize, shared: bool, connect: Connect) -> Vec<Arc<Context>> {
    let options = ContextOptions { timeout: Duration::from_secs(60), connect, ..Default::default() };
    agreement::on_this_host(size, shared, options)
}

/// The ranks of `context`, gathered there.
fn gather(context: &Context, own: u64) -> Result<Vec<u64>> {
    let mut all = vec![0u64; context.size()];
    let call = Call {
        inputs: &[(&raw const own).cast()],
        outputs: &[all.as_mut_ptr().cast()],
        ..Call::new(Shape::new(Collective::Allgather, context.rank(), context.size(), 1), DataType::Uint64)
    };
    // SAFETY: the buffers are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }.map(|()| all)
}

#[test]
fn ranks_agree_on_a_healthy_a_failed_and_an_aborted_context() {
    for shared in [true, false] {
        let mut contexts = connected(4, shared, Connect::Lazy);
        run(&contexts, |context| {
            let agreed = context.agree(0b1111_0000 | 1 << context.rank(), None).unwrap();
            assert_eq!(agreed, Agreed { flags: 0b1111_0000, lost: Vec::new(), has_grown: false });
        });
        // Rank 1 leaves; a collective of the others fails.
        drop(contexts.remove(1));
        for aborts in [false, true] {
            run(&contexts, |context| {
                match aborts {
                    true if context.rank() == 2 => context.abort("rank 1 is not worth waiting for").unwrap(),
                    _ => drop(gather(context, 0).unwrap_err()),
                }
                let agreed = context.agree(3, None).unwrap();
                assert_eq!((agreed.flags, &agreed.lost), (3, &vec![1]));
                assert_eq!(context.lost_ranks(), [1]);
                // All have learnt of it.
                assert_eq!(agreed.has_grown, !aborts);
                let loss = context.loss(&agreed.lost);
                assert_eq!((loss.kind(), loss.details().rank), (ErrorKind::ConnectionLost, Some(1)));
                assert_eq!(loss.message(), format!("rank {}: rank 1 is lost", context.rank()));
            });
        }
    }
}

#[test]
fn the_ranks_that_are_left_get_a_context_in_their_order() {
    for (shared, connect) in [(true, Connect::Lazy), (false, Connect::Lazy), (false, Connect::Full)] {
        let mut contexts = connected(4, shared, connect);
        drop(contexts.remove(2));
        run(&contexts, |context| {
            gather(context, 0).unwrap_err();
            let smaller = context.shrink(None).unwrap();
            let rank = context.rank();
            assert_eq!((smaller.rank(), smaller.size()), ([0, 1, 9, 2][rank], 3));
            assert_eq!(context.lost_ranks(), [2]);
            assert_eq!(gather(&smaller, rank as u64).unwrap(), [0, 1, 3]);
            let shares = (0..3).any(|other| smaller.shares_memory(other).unwrap());
            assert_eq!(shares, shared, "memory is shared as before");
            // That one can be shrunk, too, and does not need the first.
            context.close();
            let again = smaller.shrink(None).unwrap();
            assert_eq!(gather(&again, rank as u64).unwrap(), [0, 1, 3]);
            assert!(smaller.lost_ranks().is_empty());
        });
    }
}

#[test]
fn a_rank_alone_agrees_with_itself() {
    let contexts = connected(1, false, Connect::Lazy);
    assert_eq!(contexts[0].agree(5, None).unwrap(), Agreed { flags: 5, lost: Vec::new(), has_grown: false });
    let smaller = contexts[0].shrink(None).unwrap();
    assert_eq!((smaller.rank(), smaller.size(), gather(&smaller, 7).unwrap()), (0, 1, vec![7]));
    contexts[0].close();
    for error in [contexts[0].agree(5, None).unwrap_err(), contexts[0].shrink(None).map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
}

#[test]
fn who_agrees_and_who_shrinks_are_told() {
    let contexts = connected(2, false, Connect::Lazy);
    run(&contexts, |context| {
        let (error, operation) = match context.rank() {
            0 => (context.agree(1, None).unwrap_err(), "agree"),
            _ => (context.shrink(None).map(drop).unwrap_err(), "shrink"),
        };
        let details = (error.kind(), error.details().rank, error.details().operation);
        assert_eq!(details, (ErrorKind::Mismatch, Some(1 - context.rank()), operation), "{error}");
    });
}

#[test]
fn a_rank_whose_shrink_times_out_is_lost_for_the_others() {
    let contexts = connected(3, false, Connect::Lazy);
    let error = contexts[1].shrink(Some(Duration::from_millis(100))).map(drop).unwrap_err();
    assert_eq!((error.kind(), error.details().rank), (ErrorKind::Timeout, Some(0)), "{error}");
    assert!(error.message().starts_with("rank 1: cannot shrink: timed out after 100ms: waiting for "), "{error}");
    run(&[contexts[0].clone(), contexts[2].clone()], |context| {
        let smaller = context.shrink(None).unwrap();
        assert_eq!(gather(&smaller, context.rank() as u64).unwrap(), [0, 2]);
    });
    // The context itself works.
    run(&contexts, |context| assert_eq!(gather(context, 1).unwrap(), [1; 3]));
}

#[test]
fn a_context_without_its_ranks_does_not_agree() {
    let context = Context::new(device(), 0, 2, &ContextOptions::default()).unwrap();
    for error in [context.agree(1, None).unwrap_err(), context.shrink(None).map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{error}");
        assert!(error.message().contains(" not connected"), "{error}");
    }
}

#[test]
fn closing_the_context_ends_an_agreement() {
    let contexts = connected(2, false, Connect::Lazy);
    std::thread::scope(|scope| {
        let agrees = scope.spawn(|| contexts[0].agree(1, None));
        while !contexts[0].agreements.as_ref().unwrap().is_awaited() {
            std::thread::yield_now();
        }
        let error = contexts[0].agree(1, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOperation, "two at a time: {error}");
        contexts[0].close();
        let error = agrees.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(error.message().contains("rank 0 has closed this context"), "{error}");
    });
    // The other one is alone.
    assert_eq!(contexts[1].agree(1, None).unwrap().lost, [0]);
}
