//! The store ends or hangs before, during and after four ranks connect over it.

use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use gloo_rs::error::{Error, ErrorKind};
use gloo_rs::rendezvous::{Store, url};

use super::job::{Helper, LONG, SIZE, SLACK, allreduce, await_ranks, connect, each, in_time, is, tell};
use super::spy::Spy;

/// A timeout that ends while a store without a reply is asked again.
const TIMEOUT: Duration = Duration::from_millis(1250);

/// Not a test by itself: the process that serves a TCP store.
#[test]
#[ignore = "run by the tests of this file"]
fn serve() {
    tell(&url::open("tcp://127.0.0.1:0", 0, LONG).unwrap().describe());
}

fn serve_tcp() -> (Helper, String) {
    Helper::start("stores::gone::serve")
}

fn client(url: &str) -> Arc<dyn Store> {
    url::open(url, 1, LONG).unwrap()
}

/// Ranks 1 to 3 connect without rank 0; once they are in the store, `happen` is applied to it. Returns their errors,
/// and the times from then on.
fn without_rank_0(url: &str, timeout: Duration, happen: impl FnOnce()) -> Vec<(Error, Duration)> {
    let onlooker = client(url);
    std::thread::scope(|scope| {
        let ranks = scope.spawn(|| {
            each(1..SIZE, |rank| {
                let store = client(url);
                let error = in_time(timeout, || connect(&*store, rank, SIZE, timeout));
                is(&error, error.kind(), &[&format!("rank {rank}: cannot connect over {}", store.describe())]);
                (error, Instant::now())
            })
        });
        await_ranks(&*onlooker, &[1, 2, 3]);
        let at = Instant::now();
        happen();
        let errors = ranks.join().unwrap();
        errors.into_iter().map(|(error, when)| (error, when.saturating_duration_since(at))).collect()
    })
}

/// The points of the rendezvous at which rank 0 is about to access the store, by the key.
const POINTS: [&str; 4] = ["host/0", "hosts", "address/0", "addresses"];

/// What a [`Spy`] does before the first call for `point`.
fn once_at(point: &str, happen: impl FnOnce() + Send) -> impl Fn(&str) + Send + Sync {
    let happen = Mutex::new(Some(happen));
    move |key| {
        if key == point {
            happen.lock().unwrap().take().into_iter().for_each(|happen| happen());
        }
    }
}

/// All ranks connect, and when rank 0 gets to a point, `happen` is applied to the store at `url`. Returns their errors.
fn at_point(url: &str, point: &str, timeout: Duration, happen: impl FnOnce() + Send) -> Vec<Error> {
    let before = once_at(point, happen);
    let all_opened = Barrier::new(SIZE);
    let fails = |rank: usize| {
        let store = client(url);
        all_opened.wait();
        let error = match rank {
            0 => in_time(timeout, || connect(&Spy::new(store, &before), rank, SIZE, timeout)),
            _ => in_time(timeout, || connect(&*store, rank, SIZE, timeout)),
        };
        is(&error, error.kind(), &[&format!("rank {rank}: cannot connect over {url}")]);
        error
    };
    std::thread::scope(|scope| {
        let others = scope.spawn(|| each(1..SIZE, fails));
        // On this thread, since a server that it starts again ends with its thread.
        let zero = fails(0);
        let mut errors = others.join().unwrap();
        errors.insert(0, zero);
        errors
    })
}

/// All ranks find each other, and then `happen` is applied to the store: they connect to each other only afterwards.
fn after_rendezvous(url: &str, happen: impl FnOnce()) {
    let mut contexts = each(0..SIZE, |rank| connect(&*client(url), rank, SIZE, LONG).unwrap());
    happen();
    each(0..SIZE, |rank| (0..10).for_each(|_| allreduce(&contexts[rank])));
    contexts.clear();
}

#[test]
fn a_tcp_store_that_never_comes() {
    let (mut server, url) = serve_tcp();
    server.kill();
    let errors = each(1..SIZE, |rank| in_time(TIMEOUT, || url::open(&url, rank, TIMEOUT)));
    for error in errors {
        is(&error, ErrorKind::Timeout, &[&url, "no store to connect to after 1.", "Connection refused"]);
    }
}

#[test]
fn a_tcp_store_that_dies_during_rendezvous() {
    let (mut server, url) = serve_tcp();
    for (error, after) in without_rank_0(&url, LONG, || server.kill()) {
        is(&error, ErrorKind::ConnectionLost, &["get \"host", "lost the server at 127.0.0.1:"]);
        assert!(after < SLACK, "told only after {after:?}: {error}");
    }
}

#[test]
fn a_tcp_store_that_dies_at_any_point() {
    for point in POINTS {
        let (mut server, url) = serve_tcp();
        let began = Instant::now();
        for error in at_point(&url, point, LONG, || server.kill()) {
            is(&error, ErrorKind::ConnectionLost, &["lost the server at 127.0.0.1:"]);
        }
        assert!(began.elapsed() < LONG / 4, "{point}: told only after {:?}", began.elapsed());
    }
}

#[test]
fn a_tcp_store_that_hangs_during_rendezvous() {
    let (server, url) = serve_tcp();
    for (error, _) in without_rank_0(&url, TIMEOUT, || server.pause()) {
        is(&error, ErrorKind::Timeout, &["get \"host", "does not answer"]);
        assert!(!error.message().contains("have not arrived"), "nobody can know that: {error}");
    }
    // A rank that starts later cannot even write its own address into the store.
    server.progress();
    let store = client(&url);
    server.pause();
    let error = in_time(TIMEOUT, || connect(&*store, 0, SIZE, TIMEOUT));
    is(&error, ErrorKind::Timeout, &["rank 0: cannot connect over", "append to \"host/0\"", "does not answer"]);
}

#[test]
fn a_tcp_store_is_not_needed_after_rendezvous() {
    let (mut server, url) = serve_tcp();
    after_rendezvous(&url, || server.kill());
}

#[test]
fn a_directory_that_vanishes() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().canonicalize().unwrap().join("store").display());
    // At once, also while a rank writes there.
    let gone = || {
        let moved = directory.path().join("aside");
        std::fs::rename(directory.path().join("store"), &moved).unwrap();
        std::fs::remove_dir_all(moved).unwrap();
    };
    for (error, after) in without_rank_0(&url, LONG, gone) {
        is(&error, ErrorKind::Io, &["wait for \"host", "the directory is gone"]);
        assert!(after < SLACK, "told only after {after:?}: {error}");
    }
    for point in POINTS {
        let began = Instant::now();
        for error in at_point(&url, point, LONG, gone) {
            is(&error, ErrorKind::Io, &[&directory.path().join("store").display().to_string()]);
            let text = error.message();
            assert!(text.contains("the directory is gone") || text.contains("No such file or directory"), "{text}");
        }
        assert!(began.elapsed() < LONG / 4, "{point}: told only after {:?}", began.elapsed());
    }
    after_rendezvous(&url, gone);
}

#[cfg(feature = "redis")]
mod redis {
    use super::super::redis_server::RedisServer;
    use super::*;

    #[test]
    fn a_server_that_never_comes() {
        let mut server = RedisServer::start(&[]);
        let url = server.url("", "", "");
        server.kill();
        for error in each(0..SIZE, |rank| in_time(TIMEOUT, || url::open(&url, rank, TIMEOUT))) {
            is(&error, ErrorKind::Timeout, &[&url, "no answer from the server after 1.", "Connection refused"]);
        }
    }

    #[test]
    fn a_server_that_dies_during_rendezvous() {
        let mut server = RedisServer::start(&["--requirepass", "secret"]);
        for (error, _) in without_rank_0(&server.url(":secret", "3", "prefix=job/"), TIMEOUT, || server.kill()) {
            is(&error, ErrorKind::Timeout, &["\"host", "no answer from the server", "Connection refused"]);
            assert!(!error.message().contains("have not arrived"), "nobody can know that: {error}");
            assert!(!error.message().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_server_that_hangs_during_rendezvous() {
        let server = RedisServer::start(&[]);
        for (error, _) in without_rank_0(&server.url("", "", ""), TIMEOUT, || server.pause()) {
            is(&error, ErrorKind::Timeout, &["\"host", "no answer from the server", "does not answer"]);
        }
    }

    #[test]
    fn a_server_that_restarts_during_rendezvous_with_its_data() {
        let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let url = server.url("", "", "");
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                each(1..SIZE, |rank| allreduce(&connect(&*client(&url), rank, SIZE, LONG).unwrap()));
            });
            await_ranks(&*client(&url), &[1, 2, 3]);
            server.kill();
            // Long enough for all ranks to notice.
            std::thread::sleep(Duration::from_millis(400));
            server.start_again();
            allreduce(&connect(&*client(&url), 0, SIZE, LONG).unwrap());
            others.join().unwrap();
        });
    }

    #[test]
    fn a_server_that_restarts_during_rendezvous_without_its_data() {
        let mut server = RedisServer::start(&[]);
        let url = server.url("", "", "");
        let restart = || {
            server.kill();
            server.start_again();
        };
        for (error, after) in without_rank_0(&url, LONG, restart) {
            is(&error, ErrorKind::ConnectionLost, &["\"host", "lost the keys of this job"]);
            assert!(after < LONG / 4, "told only after {after:?}: {error}");
        }
    }

    #[test]
    fn a_server_that_restarts_without_its_data_at_any_point() {
        for point in POINTS {
            let mut server = RedisServer::start(&[]);
            let url = server.url("", "", "");
            let restart = || {
                server.kill();
                server.start_again();
            };
            let began = Instant::now();
            for error in at_point(&url, point, LONG, restart) {
                is(&error, ErrorKind::ConnectionLost, &["lost the keys of this job"]);
            }
            assert!(began.elapsed() < LONG / 2, "{point}: told only after {:?}", began.elapsed());
        }
    }

    #[test]
    fn a_server_that_restarts_with_its_data_at_any_point() {
        for point in POINTS {
            let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
            let url = server.url("", "", "");
            let before = once_at(point, || {
                server.kill();
                server.start_again();
            });
            let zero = Spy::new(client(&url), &before);
            std::thread::scope(|scope| {
                let others = scope.spawn(|| {
                    each(1..SIZE, |rank| allreduce(&connect(&*client(&url), rank, SIZE, LONG).unwrap()));
                });
                allreduce(&connect(&zero, 0, SIZE, LONG).unwrap());
                others.join().unwrap();
            });
        }
    }

    #[test]
    fn a_server_is_not_needed_after_rendezvous() {
        let mut server = RedisServer::start(&[]);
        let url = server.url("", "", "");
        after_rendezvous(&url, || server.kill());
    }
}
