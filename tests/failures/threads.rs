//! Ranks that are threads of one process: what needs none of its own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions, Reduction};
use gloo_rs::error::{Error, ErrorKind};
use gloo_rs::rendezvous::{Store, in_process::InProcessStore};
use gloo_rs::types::{DataType, ReduceOp};

use crate::job::{LONG, SLACK, device};

/// A context that measures nothing, so that connections are made by calls only.
fn connect(store: &dyn Store, rank: usize, size: usize, timeout: Duration) -> Result<Arc<Context>, Error> {
    let options = ContextOptions { timeout, tuning: Some("default".into()), ..Default::default() };
    let context = Context::new(device(), rank, size, &options)?;
    context.connect(store)?;
    Ok(context)
}

struct Allreduce {
    collective: Collective,
    root: usize,
    count: usize,
    dtype: DataType,
    op: ReduceOp,
    algorithm: Option<&'static str>,
}

const ALLREDUCE: Allreduce = Allreduce {
    collective: Collective::Allreduce,
    root: 0,
    count: 1000,
    dtype: DataType::Float32,
    op: ReduceOp::Sum,
    algorithm: Some("ring_segmented"),
};

impl Allreduce {
    fn with_timeout(&self, context: &Context, timeout: Duration) -> Result<(), Error> {
        context.set_timeout(timeout);
        self.run(context)
    }

    fn run(&self, context: &Context) -> Result<(), Error> {
        let input = vec![1u8; self.count * 8 * context.size()];
        let mut output = vec![0u8; self.count * 8 * context.size()];
        let inputs = if self.collective == Collective::Broadcast && context.rank() != self.root { 0 } else { 1 };
        let shape = Shape::new(self.collective, context.rank(), context.size(), self.count);
        let shape = Shape { root: self.root, inputs, ..shape };
        let call = Call {
            inputs: &[input.as_ptr()][..shape.inputs],
            outputs: &[output.as_mut_ptr()],
            algorithm: self.algorithm,
            reduction: Reduction::Op(self.op),
            tag: 3,
            ..Call::new(shape, self.dtype)
        };
        // SAFETY: the vectors are at least as long as the shape says and live until the call returns.
        unsafe { context.run(&call) }
    }
}

/// Runs rank 0 with `odd` and the others with the plain allreduce; the errors by rank.
fn disagree(size: usize, odd: &Allreduce) -> Vec<Error> {
    let store = InProcessStore::new();
    let errors = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (store, errors) = (store.clone(), &errors);
            scope.spawn(move || {
                let context = connect(&*store, rank, size, Duration::from_secs(20)).unwrap();
                let result = if rank == 0 { odd.run(&context) } else { ALLREDUCE.run(&context) };
                // The root of a broadcast sends and is done: it has seen nothing wrong.
                if rank == 0 && odd.collective == Collective::Broadcast && result.is_ok() {
                    return;
                }
                let error = result.unwrap_err();
                assert!(context.broken().is_some());
                assert!(ALLREDUCE.run(&context).unwrap_err().message().contains("the context is broken"));
                errors.lock().unwrap().push((rank, error));
            });
        }
    });
    let mut errors = errors.into_inner().unwrap();
    errors.sort_by_key(|(rank, _)| *rank);
    errors.into_iter().map(|(_, e)| e).collect()
}

#[test]
fn ranks_in_different_calls_notice_and_say_so() {
    let started = Instant::now();
    let cases = [
        (
            "another collective",
            Allreduce { collective: Collective::Broadcast, algorithm: None, ..ALLREDUCE },
            "broadcast",
        ),
        ("another type", Allreduce { dtype: DataType::Int32, ..ALLREDUCE }, "of int32 by sum"),
        ("another operation", Allreduce { op: ReduceOp::Max, ..ALLREDUCE }, "of float32 by max"),
        ("another count", Allreduce { count: 999, ..ALLREDUCE }, "there too, but its counts, root, segment size or"),
        ("another algorithm", Allreduce { algorithm: Some("ring_chunked"), ..ALLREDUCE }, "allreduce ring_chunked"),
    ];
    for (what, odd, expected) in cases {
        for size in [2, 4] {
            let errors = disagree(size, &odd);
            // Whoever meets a message of the other call first says so; rank 0 itself sees the plain allreduce.
            let own = |e: &Error| e.message().starts_with("rank 0: ");
            let told = |e: &&Error| {
                let expected = if own(e) { "allreduce ring_segmented of float32 by sum" } else { expected };
                e.kind() == ErrorKind::Mismatch
                    && e.message().contains(" is in another")
                    && e.message().contains(expected)
            };
            let told = errors.iter().any(|e| told(&e));
            assert!(told, "{what}, {size} ranks: {errors:#?}");
            assert!(errors.iter().all(|e| e.message().contains("rank ")), "{errors:#?}");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(20), "somebody waited for the timeout");
}

#[test]
fn a_context_that_was_never_connected_says_so() {
    let context = Context::new(device(), 1, 2, &ContextOptions::default()).unwrap();
    let error = ALLREDUCE.run(&context).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOperation);
    assert!(error.message().contains("the context is not connected"), "{error}");
    // It is as good as before.
    assert!(context.broken().is_none());
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        for rank in [0, 1, 3] {
            let store = store.clone();
            scope.spawn(move || {
                let error = connect(&*store, rank, 5, Duration::from_secs(2)).err().unwrap();
                assert_eq!(error.kind(), ErrorKind::Timeout);
                assert!(error.message().contains("2 of 5 ranks have not arrived: 2, 4"), "{error}");
            });
        }
    });
}

#[test]
fn two_processes_with_one_rank_are_told() {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        let twins: Vec<_> = (0..2)
            .map(|_| {
                let store = store.clone();
                scope.spawn(move || connect(&*store, 1, 2, Duration::from_secs(5)).err())
            })
            .collect();
        // Both twins have said that they are rank 1 before rank 0 collects.
        std::thread::sleep(Duration::from_millis(200));
        connect(&*store, 0, 2, Duration::from_secs(5)).unwrap();
        let errors: Vec<Error> = twins.into_iter().filter_map(|t| t.join().unwrap()).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].message().contains("two processes have the same rank"), "{}", errors[0]);
    });
}

#[test]
fn a_silent_rank_is_named_after_the_timeout() {
    let store = InProcessStore::new();
    let over = Arc::new(std::sync::Barrier::new(3));
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let (store, over) = (store.clone(), over.clone());
            scope.spawn(move || {
                let context = connect(&*store, rank, 3, LONG).unwrap();
                let started = Instant::now();
                let result = if rank == 2 { Ok(()) } else { ALLREDUCE.with_timeout(&context, Duration::from_secs(1)) };
                let elapsed = started.elapsed();
                over.wait();
                if rank == 2 {
                    return;
                }
                let error = result.unwrap_err();
                assert!(elapsed < Duration::from_secs(2) + SLACK, "{elapsed:?}");
                let text = error.message();
                assert!(text.contains("allreduce ring_segmented of 1000 float32 (4000 bytes), tag 3"), "{text}");
                // Rank 0 waits for rank 2; rank 1 waits for rank 0, or has heard of its end.
                let named = ["receive 0 of", "from rank 2 at 127.0.0.1:", "from rank 0 at 127.0.0.1:", "gave up"];
                assert!(named.iter().any(|n| text.contains(n)) && text.contains("1s"), "{text}");
            });
        }
    });
}

#[test]
fn a_rank_that_is_gone_before_it_was_ever_needed_is_noticed() {
    let store = InProcessStore::new();
    let arrived = Arc::new(std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (store, arrived) = (store.clone(), arrived.clone());
            scope.spawn(move || {
                let context = connect(&*store, rank, 2, Duration::from_secs(30)).unwrap();
                if rank == 1 {
                    drop(context);
                    arrived.wait();
                    return;
                }
                arrived.wait();
                let started = Instant::now();
                let error = ALLREDUCE.run(&context).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionLost);
                assert!(error.message().contains("rank 1 at 127.0.0.1:"), "{error}");
                assert!(error.message().contains("is gone: cannot connect to"), "{error}");
                assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
            });
        }
    });
}

#[test]
fn a_rank_that_gives_up_ends_those_that_wait_for_others() {
    let store = InProcessStore::new();
    let connected = Arc::new(std::sync::Barrier::new(3));
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let (store, connected) = (store.clone(), connected.clone());
            scope.spawn(move || {
                let context = connect(&*store, rank, 3, Duration::from_secs(30)).unwrap();
                // Everyone is connected to everyone.
                let all = Allreduce { algorithm: Some("recursive_doubling"), ..ALLREDUCE };
                all.run(&context).unwrap();
                Allreduce { collective: Collective::Alltoall, algorithm: None, count: 300, ..ALLREDUCE }
                    .run(&context)
                    .unwrap();
                connected.wait();
                // A binomial broadcast from rank 0: rank 2 waits for rank 0 only, which waits for nobody. Rank 1 is in
                // another call, and gives up.
                let started = Instant::now();
                let result = match rank {
                    0 => Ok(()),
                    1 => {
                        Allreduce { op: ReduceOp::Max, ..ALLREDUCE }.with_timeout(&context, Duration::from_millis(500))
                    }
                    _ => Allreduce { collective: Collective::Broadcast, algorithm: None, ..ALLREDUCE }.run(&context),
                };
                let elapsed = started.elapsed();
                connected.wait();
                assert!(elapsed < Duration::from_millis(1500) + SLACK, "{elapsed:?}");
                if rank != 0 {
                    let error = result.unwrap_err();
                    assert!(rank == 1 || error.message().contains("rank 1"), "{error}");
                }
            });
        }
    });
}
