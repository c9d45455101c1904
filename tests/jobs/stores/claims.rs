//! Two jobs on one store, and a job after another: ranks of other processes are not taken for ranks of the same job.

use std::sync::Arc;
use std::time::Duration;

use gloo_rs::error::{Error, ErrorKind};
use gloo_rs::rendezvous::{PrefixStore, Store, TcpStore, url};

use super::job::{Helper, LONG, allreduce, await_ranks, connect, each, in_time, is, tell};

/// Environment variable that gives a helper process its store and rank.
const STORE: &str = "GLOO_RS_TEST_STORE";
const RANK: &str = "GLOO_RS_TEST_RANK";

fn open(url: &str) -> Arc<dyn Store> {
    url::open(url, 1, LONG).unwrap()
}

/// The error of each of `ranks` of two, well before its timeout.
fn refused(url: &str, ranks: std::ops::Range<usize>) -> Vec<Error> {
    let failures = each(ranks, |rank| in_time(Duration::ZERO, || connect(&*open(url), rank, 2, LONG)));
    failures.iter().for_each(|error| is(error, ErrorKind::Mismatch, &["prefix"]));
    failures
}

/// Not a test by itself: a whole job of two ranks, in a process that ends.
#[test]
#[ignore = "run by the tests of this file"]
fn a_job() {
    let url = std::env::var(STORE).unwrap();
    each(0..2, |rank| allreduce(&connect(&*open(&url), rank, 2, LONG).unwrap()));
    tell(&std::process::id().to_string());
}

/// Not a test by itself: one rank of a job of two, whose other rank does not come. Prints its error.
#[test]
#[ignore = "run by the tests of this file"]
fn a_rank() {
    let (url, rank) = (std::env::var(STORE).unwrap(), std::env::var(RANK).unwrap().parse().unwrap());
    let heard = connect(&*open(&url), rank, 2, LONG).err().map_or("nothing".to_owned(), |error| error.to_string());
    tell(&format!("{} {heard}", std::process::id()));
}

/// A store in a directory, and one with a server, which lives as long as the value next to its URL.
fn stores() -> [(String, Box<dyn std::any::Any>); 2] {
    let directory = tempfile::tempdir().unwrap();
    let server = TcpStore::serve("127.0.0.1", 0).unwrap();
    [(format!("file://{}", directory.path().display()), Box::new(directory)), (server.describe(), Box::new(server))]
}

#[test]
fn entries_of_another_process_are_refused_by_all_ranks_unless_the_prefix_differs() {
    for (url, _store) in stores() {
        let (mut job, id) = Helper::start_with("stores::claims::a_job", &[(STORE, &url)]);
        job.kill();
        for (rank, error) in refused(&url, 0..2).iter().enumerate() {
            let twice = format!("rank {rank} is claimed twice: by process {id} on ");
            is(error, error.kind(), &[&twice, &format!(", and by process {} on ", std::process::id()), "earlier job"]);
        }
        each(0..2, |rank| {
            let store = PrefixStore::new("attempt-2", open(&url));
            allreduce(&connect(&store, rank, 2, LONG).unwrap());
        });
    }
}

#[test]
fn two_jobs_on_one_store_both_get_an_error() {
    for (url, _store) in stores() {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| Helper::start_with("stores::claims::a_rank", &[(STORE, &url), (RANK, "0")]).1);
            await_ranks(&*open(&url), &[0]);
            // Rank 0 of this job claims second, and rank 1 first.
            let second = refused(&url, 0..1).remove(0);
            let first = refused(&url, 1..2).remove(0);
            let told = other.join().unwrap();
            let (id, heard) = told.split_once(' ').unwrap();
            let twice = format!("rank 0 is claimed twice: by process {id} on ");
            let by_this = format!(", and by process {} on ", std::process::id());
            is(&second, second.kind(), &[&twice, &by_this, "another job"]);
            is(&first, first.kind(), &["rank 0: rank 0 is claimed twice", &twice, &by_this]);
            assert!(heard.contains(&twice) && heard.contains(&by_this), "{heard}");
        });
    }
}

#[test]
fn ranks_of_two_jobs_with_different_sizes_or_names_get_an_error() {
    for (url, _store) in stores() {
        // Rank 0 and rank 1, of jobs with two and four ranks.
        let failures = each(0..2, |rank| in_time(Duration::ZERO, || connect(&*open(&url), rank, [2, 4][rank], LONG)));
        let (id, here) = (std::process::id(), "is one of 4 ranks, and this is a job of 2; ");
        for error in &failures {
            is(
                error,
                ErrorKind::Mismatch,
                &[&format!("rank 1, process {id} on "), here, "another job uses this store"],
            );
        }
    }
    for (url, _store) in stores() {
        let heard = each(0..2, |rank| {
            let (number, job) = (rank.to_string(), ["job=17", "job=18"][rank]);
            Helper::start_with("stores::claims::a_rank", &[(STORE, &url), (RANK, &number), ("GLOO_RS_JOB", job)]).1
        });
        for told in &heard {
            assert!(told.contains(" is of GLOO_RS_JOB=job=18, and this is GLOO_RS_JOB=job=17; "), "{told}");
            assert!(told.contains("another job uses this store"), "{told}");
        }
    }
}

/// The earlier attempt only claimed its ranks: its contexts are destroyed, and its processes try again.
#[test]
fn a_process_may_claim_its_rank_again_before_the_ranks_have_connected() {
    for (url, _store) in stores() {
        let store = open(&url);
        let error = connect(&*store, 0, 2, Duration::from_millis(300)).err().unwrap();
        is(&error, ErrorKind::Timeout, &["1 of 2 ranks have not arrived: 1"]);
        each(0..2, |rank| allreduce(&connect(&*open(&url), rank, 2, LONG).unwrap()));
        // Once ranks have connected over it, the store cannot be used again.
        refused(&url, 0..2);
    }
}
