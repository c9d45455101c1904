//! What one rank fails with while the ranks connect, all ranks fail with, at once, and blame the same rank.

use std::net::TcpListener;

use super::*;
use crate::rendezvous::{InProcessStore, Store};
use crate::transport::Sharing;
use crate::version::Version;

/// Nothing here may end by it.
fn options() -> ContextOptions {
    ContextOptions { timeout: Duration::from_secs(300), ..Default::default() }
}

/// The ranks connect; all fail with this kind, blame this rank, and say why.
fn all_fail(contexts: &[Arc<Context>], kind: ErrorKind, blamed: Rank, why: &str) {
    let store = InProcessStore::new();
    run(contexts, |context| {
        let error = context.connect(&*store).unwrap_err();
        let rank = context.rank();
        assert_eq!(error.kind(), kind, "rank {rank}: {error}");
        assert!(error.message().contains(why), "rank {rank}: {error}");
        assert!(rank == blamed || error.details().rank == Some(blamed), "rank {rank}: {error}");
    });
}

#[test]
fn a_rank_that_fails_in_the_first_round_says_so_to_all() {
    for odd in 0..3 {
        let contexts: Vec<_> = (0..3).map(|rank| Context::new(device(), rank, 3, &options()).unwrap()).collect();
        contexts[odd].close();
        all_fail(&contexts, ErrorKind::Closed, odd, &format!("rank {odd} has closed this context"));
    }
}

/// Claims are shorter than that.
#[test]
fn a_rank_that_fails_in_the_first_round_for_a_long_reason_says_all_of_it() {
    let reason = Error::new(ErrorKind::ConnectionLost, format!("{} and no more", "for many reasons, ".repeat(12)));
    for odd in 0..3 {
        let contexts: Vec<_> = (0..3).map(|rank| Context::new(device(), rank, 3, &options()).unwrap()).collect();
        contexts[odd].lock().unwrap().break_with(&reason, None);
        all_fail(&contexts, ErrorKind::InvalidOperation, odd, reason.message());
    }
}

/// It cannot listen: its port is taken.
#[test]
fn a_rank_that_fails_in_the_second_round_says_so_to_all() {
    for odd in 0..3 {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let make = |rank| {
            let own = DeviceOptions { port: if rank == odd { port } else { 0 }, ..Default::default() };
            Context::new(Device::create(&own).unwrap(), rank, 3, &options()).unwrap()
        };
        let contexts: Vec<_> = (0..3).map(make).collect();
        all_fail(&contexts, ErrorKind::Io, odd, &format!("127.0.0.1:{port}"));
    }
}

/// It has met ranks of other hosts before.
#[test]
fn a_rank_that_fails_in_the_third_round_says_so_to_all() {
    for odd in 0..3 {
        let own = || {
            let hostname = Some("127.0.0.1".into());
            Device::create(&DeviceOptions { hostname, shared_memory: Some(true), ..Default::default() }).unwrap()
        };
        let contexts: Vec<_> = (0..3).map(|rank| Context::new(own(), rank, 3, &options()).unwrap()).collect();
        contexts[odd].hosts.set([0, 0, 1].into()).unwrap();
        all_fail(&contexts, ErrorKind::InvalidOperation, odd, "make a new context");
    }
}

/// Where no memory is shared there is no third round.
#[test]
fn rank_0_tells_those_that_wait_for_its_tuning() {
    let own = || {
        let hostname = Some("127.0.0.1".into());
        Device::create(&DeviceOptions { hostname, shared_memory: Some(false), ..Default::default() }).unwrap()
    };
    let contexts: Vec<_> = (0..3).map(|rank| Context::new(own(), rank, 3, &options()).unwrap()).collect();
    contexts[0].hosts.set([0, 0, 1].into()).unwrap();
    // Rank 1 answers measurements for a quarter of this.
    contexts.iter().for_each(|context| context.set_timeout(Duration::from_secs(12)));
    all_fail(&contexts, ErrorKind::InvalidOperation, 0, "make a new context");
}

#[test]
fn who_is_claimed_twice_all_ranks_blame() {
    let store = InProcessStore::new();
    let contexts: Vec<_> = (0..3).map(|rank| Context::new(device(), rank, 3, &options()).unwrap()).collect();
    // Another process has the place of rank 1.
    let mut other = claim::make(Version::OWN, 3, &contexts[1].content(0).unwrap()).unwrap();
    other[0] ^= 1;
    store.set("host/1", &other).unwrap();
    let twice = |context: &Arc<Context>| {
        let error = context.connect(&*store).unwrap_err();
        assert_eq!((error.kind(), error.details().rank), (ErrorKind::Mismatch, Some(1)), "{error}");
        assert!(error.message().contains("rank 1 is claimed twice"), "{error}");
    };
    // It finds out by itself; rank 0 does when it is there, and rank 2 hears it from rank 0.
    twice(&contexts[1]);
    run(&[contexts[0].clone(), contexts[2].clone()], twice);
}

/// Rank 1 publishes everything but what it has found of the memory, and ends. Another one takes its place in the next
/// attempt.
#[test]
fn a_rank_that_is_replaced_after_others_have_opened_its_memory_shares_its_own() {
    let own = || {
        let hostname = Some("127.0.0.1".into());
        Device::create(&DeviceOptions { hostname, shared_memory: Some(true), ..Default::default() }).unwrap()
    };
    let make = |rank| Context::new(own(), rank, 2, &options()).unwrap();
    let (zero, first) = (make(0), make(1));
    let store = InProcessStore::new();
    let address = || first.content(0).unwrap();
    store.set("host/1", &claim::make(Version::OWN, 2, &address()).unwrap()).unwrap();
    store.set("address/1", &address()).unwrap();
    zero.set_timeout(Duration::from_millis(300));
    assert_eq!(zero.connect(&*store).unwrap_err().kind(), ErrorKind::Timeout);
    drop(first);
    zero.set_timeout(options().timeout);
    let second = [zero, make(1)];
    let store = InProcessStore::new();
    run(&second, |context| {
        context.connect(&*store).unwrap();
        assert!(context.shares_memory(1 - context.rank()).unwrap());
        context.set_timeout(Duration::from_secs(20));
        assert_eq!(split::sum(context, 1, 0), 2);
    });
    // Memory that is in use stays that of these ranks.
    let third = [second[0].clone(), make(1)];
    all_fail(&third, ErrorKind::InvalidOperation, 0, "make a new context");
}

/// The third round is one of these numbers for each rank.
#[test]
fn what_ranks_find_of_memory_is_never_taken_for_a_refusal() {
    for found in [Sharing::Nothing, Sharing::Segments, Sharing::Processes, Sharing::NoRoom] {
        assert_ne!(found.number(), b'r');
    }
}

#[test]
fn a_context_that_was_broken_says_by_whom() {
    let contexts = group(2);
    let reason =
        Error::new(ErrorKind::ConnectionLost, "rank 1 is gone").with_rank(1).with_errno(Some(libc::ECONNRESET));
    contexts[0].lock().unwrap().break_with(&reason, Some(&reason));
    let error = contexts[0].connect(&*InProcessStore::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{error}");
    assert!(error.message().contains("the context is broken: rank 1 is gone"), "{error}");
    assert_eq!((error.details().rank, error.details().errno), (Some(1), Some(libc::ECONNRESET)), "{error}");
}
