//! Failures that can be tested with ranks that are threads of one process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gloo_rs::context::{Context, ContextOptions};
use gloo_rs::error::{Error, ErrorKind};
use gloo_rs::rendezvous::{Store, in_process::InProcessStore};

use super::calls::count_ranks;
use super::job::{LONG, device};

/// A context that measures nothing, so that only calls make connections.
fn connect(store: &dyn Store, rank: usize, size: usize, timeout: Duration) -> Result<Arc<Context>, Error> {
    let options = ContextOptions { timeout, tuning: Some("default".into()), ..Default::default() };
    let context = Context::new(device(), rank, size, &options)?;
    context.connect(store)?;
    Ok(context)
}

#[test]
fn a_context_that_was_never_connected_says_so() {
    let context = Context::new(device(), 1, 2, &ContextOptions::default()).unwrap();
    let error = count_ranks(&context).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOperation);
    assert!(error.message().contains("the context is not connected"), "{error}");
    // The context is still usable.
    assert!(context.broken().is_none());
}

#[test]
fn the_error_names_a_rank_that_never_comes() {
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
fn two_processes_with_the_same_rank_get_an_error() {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        let twin = || {
            let store = store.clone();
            scope.spawn(move || connect(&*store, 1, 2, LONG).err())
        };
        // Both processes have claimed rank 1 before rank 0 reads the claims: one claim is appended to the other.
        let claims = || store.get("host/1", LONG).unwrap().len();
        let first = twin();
        let one = claims();
        let twins = [first, twin()];
        let until = Instant::now() + LONG;
        while claims() < 2 * one {
            assert!(Instant::now() < until, "one of them does not come");
            std::thread::yield_now();
        }
        connect(&*store, 0, 2, LONG).unwrap();
        let errors: Vec<Error> = twins.into_iter().filter_map(|t| t.join().unwrap()).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].message().contains("two processes have the same rank"), "{}", errors[0]);
    });
}

#[test]
fn a_rank_that_has_closed_its_context_before_the_first_connection_is_noticed() {
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
                let error = count_ranks(&context).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionLost);
                assert!(error.message().contains("rank 1 at 127.0.0.1:"), "{error}");
                assert!(error.message().contains("has closed its context"), "{error}");
                assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
            });
        }
    });
}
