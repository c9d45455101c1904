//! Connecting over a caller's store that waits without limit if the timeout is zero.

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::rendezvous::tests::{c_get, c_multi_get, c_wait, callbacks_over};
use crate::rendezvous::{InProcessStore, PrefixStore, Store, StoreCallbacks};

/// Number of calls with a timeout of zero.
static ZEROS: AtomicUsize = AtomicUsize::new(0);

fn look(timeout_ms: i64) {
    ZEROS.fetch_add(usize::from(timeout_ms == 0), Ordering::Relaxed);
}

unsafe extern "C" fn get(key: *const c_char, timeout_ms: i64, sink: *mut c_void, user: *mut c_void) -> u32 {
    look(timeout_ms);
    // SAFETY: called as [`StoreCallbacks`] requires.
    unsafe { c_get(key, timeout_ms, sink, user) }
}

unsafe extern "C" fn wait(keys: *const *const c_char, count: usize, timeout_ms: i64, user: *mut c_void) -> u32 {
    look(timeout_ms);
    // SAFETY: as above.
    unsafe { c_wait(keys, count, timeout_ms, user) }
}

unsafe extern "C" fn multi_get(
    keys: *const *const c_char,
    count: usize,
    timeout_ms: i64,
    sink: *mut c_void,
    user: *mut c_void,
) -> u32 {
    look(timeout_ms);
    // SAFETY: as above.
    unsafe { c_multi_get(keys, count, timeout_ms, sink, user) }
}

/// Exercises all functions that wait: ranks that connect alone, then ranks that connect over the same store, and direct
/// calls. Returns the errors of the ranks that were alone.
fn use_up(change: impl Fn(&mut StoreCallbacks)) -> Vec<Error> {
    let base = InProcessStore::new();
    let store: Arc<dyn Store> = Arc::new(callbacks_over(&base, |callbacks| {
        callbacks.get = Some(get);
        callbacks.wait = Some(wait);
        callbacks.multi_get = Some(multi_get);
        change(callbacks);
    }));
    let elsewhere = PrefixStore::new("elsewhere", store.clone());
    let connect = |store: &dyn Store, ranks: Range<usize>, timeout: Duration| -> Vec<Result<()>> {
        let one = |rank| {
            let options = ContextOptions { timeout, ..Default::default() };
            Context::new(device(), rank, 3, &options).unwrap().connect(store)
        };
        let one = &one;
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || one(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let short = Duration::from_millis(250);
    let alone = [connect(&*store, 0..1, short), connect(&elsewhere, 1..3, short)].concat();
    connect(&*store, 0..3, Duration::from_secs(20)).into_iter().for_each(Result::unwrap);
    for keys in [&["host/0", "nobody"][..], &["nobody", "host/0"]] {
        assert_eq!(store.multi_get(keys, Duration::from_millis(20)).unwrap_err().kind(), ErrorKind::Timeout);
    }
    assert_eq!(store.multi_get(&["hosts", "addresses"], Duration::from_secs(20)).unwrap().len(), 2);
    alone.into_iter().map(Result::unwrap_err).collect()
}

#[test]
fn a_store_whose_waits_block_is_never_asked_with_a_timeout_of_zero() {
    for (wait, multi_get) in [(true, true), (true, false), (false, true), (false, false)] {
        let lacks = |callbacks: &mut StoreCallbacks| {
            callbacks.wait = callbacks.wait.filter(|_| wait);
            callbacks.multi_get = callbacks.multi_get.filter(|_| multi_get);
        };
        ZEROS.store(0, Ordering::Relaxed);
        for error in use_up(lacks) {
            assert!(error.message().contains("of 3 ranks have not arrived: "), "{error}");
        }
        assert_ne!(ZEROS.load(Ordering::Relaxed), 0, "other stores are asked who is missing");

        ZEROS.store(0, Ordering::Relaxed);
        let blocks = |callbacks: &mut StoreCallbacks| {
            lacks(callbacks);
            callbacks.waits_block = 1;
        };
        for error in use_up(blocks) {
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(!error.message().contains("have not arrived"), "nobody can know that: {error}");
        }
        let store = callbacks_over(&InProcessStore::new(), blocks);
        store.set("k", b"v").unwrap();
        for result in [
            store.get("k", Duration::ZERO).map(drop),
            store.wait(&["k"], Duration::ZERO),
            store.multi_get(&["k"], Duration::ZERO).map(drop),
        ] {
            let error = result.unwrap_err();
            assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("its waits block"), "{error}");
        }
        assert_eq!(ZEROS.load(Ordering::Relaxed), 0);
    }
}
