//! The load of a job on its store: proportional to the number of ranks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gloo_rs::context::{Context, ContextOptions};
use gloo_rs::error::ErrorKind;
use gloo_rs::rendezvous::InProcessStore;

use super::job::{LONG, SLACK, device, is};
use super::spy::{Spy, Used};

/// Number of requests that a wait of this length may make: after 100, 200 and 400 ms, and then every 800 ms.
fn turns(waited: Duration) -> usize {
    4 + (waited.as_millis() / 800) as usize
}

/// The traffic of each of `size` ranks while they connect, and the time that it took. Each rank has a thread.
fn rendezvous(size: usize) -> (Vec<Used>, Duration) {
    let base = InProcessStore::new();
    let device = device();
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let began = Instant::now();
    let connect = |rank: usize| {
        let store = Spy::new(base.clone(), |_| {});
        Context::new(device.clone(), rank, size, &options).unwrap().connect(&store).unwrap();
        store.used()
    };
    let connect = &connect;
    let used = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || connect(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    (used, began.elapsed())
}

#[test]
fn store_traffic_grows_with_the_ranks_and_not_with_their_square() {
    let mut longest = BTreeMap::new();
    for size in [4, 16, 64, 256] {
        let (used, took) = rendezvous(size);
        let turns = turns(took);
        let (zero, others) = used.split_first().unwrap();
        // In each of three rounds rank 0 writes its entry, reads the entries of all, and publishes the list; in the
        // first it also reads back its claim. Then it publishes its tuning.
        assert!((11..=7 + 4 * turns).contains(&zero.calls), "{zero:?} of {size} in {took:?}");
        assert!((8 + 3 * size..=8 + 3 * turns * size).contains(&zero.keys), "{zero:?} of {size} in {took:?}");
        for other in others {
            // Another rank writes its entry, and reads the list; it reads back its claim, and reads the tuning.
            assert!((8..=3 + 5 * turns).contains(&other.calls), "{other:?} of {size} in {took:?}");
            assert_eq!(other.keys, other.calls, "{other:?} of {size}");
            // Two lists, and the tuning; all have numbers of as many digits as a machine gives them.
            assert!(other.bytes <= 2 * (200 + 113 * size) + 1000 + 30 * turns, "{other:?} of {size}");
        }
        // Without the keys of waits that timed out.
        longest.insert(size, others.iter().map(|used| used.bytes - 10 * (used.calls - 8)).max().unwrap());
        println!("{size} ranks in {took:?}: rank 0 {zero:?}, rank 1 {:?}", others[0]);
    }
    // Four times as many ranks make the lists at most four times as long.
    for (small, large) in [(4, 16), (16, 64), (64, 256)] {
        assert!(longest[&large] <= longest[&small] * 4 + 100, "{longest:?}");
    }
}

/// All of `size` ranks but the `absent` wait for those, and fail with `parts`. Returns the largest traffic of a rank.
fn in_vain(size: usize, absent: &[usize], timeout: Duration, parts: &[&str]) -> Used {
    let base = InProcessStore::new();
    let device = device();
    let options = ContextOptions { timeout, ..Default::default() };
    let connect = |rank: usize| {
        let store = Spy::new(base.clone(), |_| {});
        let began = Instant::now();
        let error = Context::new(device.clone(), rank, size, &options).unwrap().connect(&store).unwrap_err();
        assert!(began.elapsed() < timeout + SLACK, "gave up only after {:?}: {error}", began.elapsed());
        is(&error, ErrorKind::Timeout, parts);
        store.used()
    };
    let connect = &connect;
    std::thread::scope(|scope| {
        let there = (0..size).filter(|rank| !absent.contains(rank));
        let ranks: Vec<_> = there.map(|rank| scope.spawn(move || connect(rank))).collect();
        let used = ranks.into_iter().map(|rank| rank.join().unwrap());
        used.max_by_key(|used| used.calls).unwrap()
    })
}

/// All ranks ask at the same moment which ranks are missing.
#[test]
fn ranks_that_wait_in_vain_do_not_flood_the_store() {
    let timeout = Duration::from_millis(1000);
    let calls = in_vain(128, &[77], timeout, &["after 1s, 1 of 128 ranks have not arrived: 77"]).calls;
    // Writes, reads back, waits, and requests its own key and twice for each halving.
    assert!(calls <= 2 + turns(timeout) + 2 + 2 * 7, "{calls} calls");
    let absent: Vec<usize> = (3..128).collect();
    let parts = ["at least 16 of 128 ranks have not arrived: 3, 4, 5, 6, ", ", 17, 18, ..."];
    let calls = in_vain(128, &absent, timeout, &parts).calls;
    assert!(calls <= 2 + turns(timeout) + 2 + 2 * 16 + 2 * 7, "{calls} calls");
}

/// A Redis server does not wait for keys: clients poll.
#[cfg(feature = "redis")]
#[test]
fn ranks_that_poll_a_redis_server_do_not_flood_it() {
    let server = super::redis_server::RedisServer::start(&[]);
    let processed = || {
        let statistics = server.ask("INFO stats");
        let line = statistics.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
        line.trim().parse::<usize>().unwrap()
    };
    let (size, timeout) = (16, Duration::from_millis(1500));
    let device = device();
    let options = ContextOptions { timeout, ..Default::default() };
    let before = processed();
    std::thread::scope(|scope| {
        for rank in 1..size {
            let (url, device, options) = (server.url("", "", ""), &device, &options);
            scope.spawn(move || {
                let store = gloo_rs::rendezvous::url::open(&url, rank, LONG).unwrap();
                let error = Context::new(device.clone(), rank, size, options).unwrap().connect(&*store).unwrap_err();
                is(&error, ErrorKind::Timeout, &["after 1.5s, 1 of 16 ranks have not arrived: 0"]);
            });
        }
    });
    let each = (processed() - before) / (size - 1);
    // A turn of a wait polls after 1, 2, 4, ..., 64 ms and then every 100 ms; at the end each rank requests all keys,
    // and again halves of them.
    let polls = turns(timeout) * 8 + timeout.as_millis() as usize / 100;
    assert!(each <= 10 + polls + 4 * size, "{each} commands of each rank");
    println!("{each} commands of each of {} ranks", size - 1);
}
