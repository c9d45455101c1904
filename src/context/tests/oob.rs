//! Contexts that are connected by an allgather of the caller.

use std::sync::{Barrier, Mutex};
use std::thread::ThreadId;

use super::agreement::{NARROW, choices, connected, file};
use super::split::sum;
use super::*;

/// An allgather between threads.
struct Table {
    rows: Mutex<Vec<Vec<u8>>>,
    barrier: Barrier,
}

impl Table {
    fn new(size: usize) -> Self {
        Self { rows: Mutex::new(vec![Vec::new(); size]), barrier: Barrier::new(size) }
    }

    fn exchange(&self, rank: usize, input: &[u8], output: &mut [u8]) {
        self.rows.lock().unwrap()[rank] = input.to_vec();
        self.barrier.wait();
        output.copy_from_slice(&self.rows.lock().unwrap().concat());
        self.barrier.wait();
    }
}

/// Each rank's result, and the threads on which its function was called.
type Ended = (Arc<Context>, Result<()>, Vec<ThreadId>);

/// Connects a context for each of `options` by an allgather. `then` may change its result; it gets the rank, the number
/// of the call, and all records.
pub fn connect(options: &[ContextOptions], then: impl Fn(usize, usize, &mut [u8]) -> Result<()> + Sync) -> Vec<Ended> {
    let size = options.len();
    let table = Table::new(size);
    let connect = |rank: usize| {
        let context = Context::new(device(), rank, size, &options[rank]).unwrap();
        let mut threads = Vec::new();
        let result = context.connect_oob(&mut |input, output| {
            threads.push(std::thread::current().id());
            table.exchange(rank, input, output);
            then(rank, threads.len(), output)
        });
        if result.is_err() {
            // Callers close a context after an error: peers are notified at once.
            context.close();
        }
        assert!(threads.iter().all(|thread| *thread == std::thread::current().id()));
        (context, result, threads)
    };
    let connect = &connect;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || connect(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn options() -> ContextOptions {
    ContextOptions { timeout: Duration::from_secs(20), ..Default::default() }
}

#[test]
fn a_context_is_what_it_would_be_over_a_store() {
    let (_file, narrow) = file(NARROW);
    let over_store = connected(&[Some(narrow.as_str()), Some("default"), None]);
    let over_store: Vec<_> = over_store.into_iter().map(Result::unwrap).collect();
    let tuned = |tuning: Option<&str>| ContextOptions {
        tuning: tuning.map(str::to_owned),
        connect: Connect::Full,
        ..options()
    };
    let ended = connect(&[tuned(Some(&narrow)), tuned(Some("default")), tuned(None)], |_, _, _| Ok(()));
    for ((context, result, calls), other) in ended.iter().zip(&over_store) {
        result.as_ref().unwrap();
        assert_eq!(calls.len(), 3);
        assert_eq!(context.hosts(), other.hosts());
        assert_eq!(choices(context), choices(other));
        assert_eq!(context.tuners.current().network().local, other.tuners.current().network().local);
        let guard = context.lock().unwrap();
        assert!((0..3).all(|peer| peer == context.rank() || matches!(guard.messenger.is_connected(peer), Ok(true))));
        assert_eq!(guard.begun, 0);
    }
    let contexts: Vec<_> = ended.into_iter().map(|(context, ..)| context).collect();
    run(&contexts, |context| assert_eq!(sum(context, 1, 0), context.size() as u64));
}

#[test]
fn one_rank_and_many_connect() {
    for size in [1, 2, 9] {
        let contexts: Vec<_> =
            connect(&vec![options(); size], |_, _, _| Ok(())).into_iter().map(|ended| ended.0).collect();
        run(&contexts, |context| assert_eq!(sum(context, 1, 0), context.size() as u64));
    }
}

#[test]
fn what_the_function_fails_with_is_what_connecting_fails_with() {
    for last in [1, 2, 3] {
        let ended = connect(&vec![options(); 2], |rank, number, _| match (rank, number) {
            (_, number) if number == last => Err(Error::new(ErrorKind::Callback, format!("no more, says {rank}"))),
            _ => Ok(()),
        });
        for (rank, (_, result, calls)) in ended.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), calls.len()), (ErrorKind::Callback, last));
            let text = format!("rank {rank}: cannot connect by the caller's allgather: no more, says {rank}");
            assert_eq!(error.message(), text);
        }
    }
}

/// The records of two ranks.
fn halves(all: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    all.split_at_mut(all.len() / 2)
}

#[test]
fn what_the_function_brings_is_checked() {
    type Harm = fn(&mut [u8]);
    let harms: [(Harm, &str); 7] = [
        (|all| all.fill(0), "has not come back in its place"),
        (|all| halves(all).1.fill(0), "rank 1 is nothing that a rank gives"),
        (|all| halves(all).1[9..11].fill(0xff), "the record of rank 1 says that it has 65535 bytes"),
        (
            |all| {
                let (own, other) = halves(all);
                own.swap_with_slice(other)
            },
            "has not come back in its place",
        ),
        (
            |all| {
                let (own, other) = halves(all);
                other.copy_from_slice(own)
            },
            "the record of rank 0 is in the place of that of rank 1",
        ),
        (|all| halves(all).1[15] = 3, "rank 1 is one of 3 ranks, and this rank one of 2"),
        (|all| halves(all).1[9] -= 1, "another size?"),
    ];
    for at in [1, 2] {
        for (harm, text) in harms {
            let ended = connect(&vec![options(); 2], |rank, number, all| {
                if (rank, number) == (0, at) {
                    harm(all);
                }
                Ok(())
            });
            let (_, result, calls) = &ended[0];
            let error = result.as_ref().unwrap_err();
            assert!(error.kind() == ErrorKind::Mismatch && error.message().contains(text), "{text}: {error}");
            assert_eq!((calls.len(), ended[1].2.len()), (3, 3));
            // The other rank, whose records were not changed, gets the error too.
            let other = ended[1].1.as_ref().unwrap_err();
            assert!(other.kind() == ErrorKind::Mismatch && other.message().contains("rank 0: "), "{other}");
            assert!(other.message().contains(text), "{text}: {other}");
        }
    }
}

#[test]
fn a_rank_that_cannot_go_on_says_so_to_all() {
    let wrong = ContextOptions { tuning: Some("/no/such/file".into()), ..options() };
    let late = ContextOptions { timeout: Duration::from_millis(1), ..options() };
    for (all, culprit, kind, text) in [
        ([wrong, options(), options()], 0, ErrorKind::Io, "/no/such/file"),
        (
            [options(), options(), late],
            2,
            ErrorKind::Timeout,
            "the caller's allgather has returned after more than 1ms",
        ),
    ] {
        let ended = connect(&all, |rank, _, _| {
            if rank == culprit {
                std::thread::sleep(2 * all[rank].timeout.min(Duration::from_millis(1)));
            }
            Ok(())
        });
        for (rank, (_, result, calls)) in ended.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert!(error.kind() == kind && error.message().contains(text), "rank {rank}: {error}");
            assert!(error.message().contains(&format!("rank {culprit}: ")), "{error}");
            assert_eq!(calls.len(), 3);
        }
    }
}

#[test]
fn a_context_that_was_closed_before_is_told_to_all() {
    let table = Table::new(2);
    let contexts: Vec<_> = (0..2).map(|rank| Context::new(device(), rank, 2, &options()).unwrap()).collect();
    contexts[1].close();
    run(&contexts, |context| {
        let error = context.connect_oob(&mut |input, output| {
            table.exchange(context.rank(), input, output);
            Ok(())
        });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.message().contains("rank 1 has closed this context"), "{error}");
    });
}
