//! A process whose descriptors have run out.

use std::time::{Duration, Instant};

use gloo_rs::context::{Context, ContextOptions};

use crate::calls::Case;
use crate::job::{COUNT, Job, LONG, Rank, SLACK, VICTIM, assert_complete, by_cell, by_collective, device, wait_all};

const TIMEOUT: Duration = Duration::from_millis(1500);

/// Allows no descriptors beyond those that are open; returns what was allowed.
fn exhaust_descriptors() -> libc::rlimit {
    let open = std::fs::File::open("/dev/null").unwrap();
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&open) as libc::rlim_t;
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both structs are valid. Descriptors above the limit stay open; new ones get the lowest free number.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
        let limit = libc::rlimit { rlim_cur: lowest, ..before };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    before
}

fn allow(limit: &libc::rlimit) {
    // SAFETY: the struct is valid.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
}

/// Rank 2 has none left when the collectives begin: it can neither connect nor accept.
pub fn one_rank(rank: &Rank) {
    let contexts = rank.contexts(TIMEOUT);
    // Before the others begin: whoever has connected to it needs no descriptor of it any more.
    let before = (rank.rank == VICTIM).then(exhaust_descriptors);
    rank.mark("ready/");
    wait_all(&*rank.store, "ready/");
    std::thread::scope(|scope| {
        for (collective, context) in &contexts {
            scope.spawn(move || {
                let started = Instant::now();
                let result = Case::new(*collective, COUNT).run(context);
                rank.report(collective.name(), started, &result);
            });
        }
    });
    if let Some(before) = before {
        allow(&before);
    }
    rank.go_on(&[0, 1, 2, 3]);
}

#[test]
fn descriptors_run_out_in_every_collective() {
    let reports = Job::start("descriptors", "-").finish(&[]);
    // Others have tried to connect to it.
    let cannot_accept =
        "; this process cannot accept connections: Too many open files (os error 24): this process may have ";
    assert!(reports.iter().any(|r| r.rank == VICTIM && r.text.contains(cannot_accept)), "{reports:#?}");
    for (collective, reports) in by_collective(&reports, &[0, 1, 2, 3]) {
        let mut seen = false;
        for report in &reports {
            let text = &report.text;
            if report.rank != VICTIM && report.kind == "Ok" {
                // Its part did not need rank 2.
                continue;
            }
            assert!(report.elapsed < TIMEOUT + Duration::from_secs(1) + SLACK, "{:?}: {text}", report.elapsed);
            assert!(matches!(report.kind.as_str(), "Timeout" | "ConnectionLost"), "{}: {text}", report.kind);
            assert_complete(collective, report);
            if report.rank == VICTIM {
                assert!(text.contains("Too many open files (os error 24)"), "{text}");
            } else {
                let told = ["its process has not answered", "Too many open files (os error 24)"];
                seen |= text.contains("rank 2 at 127.0.0.1:") && told.iter().any(|t| text.contains(t));
            }
        }
        assert!(seen, "{reports:#?}");
    }
}

/// What needs descriptors at the beginning says that there are none.
pub fn one_rank_without_descriptors(rank: &Rank) {
    if rank.rank != VICTIM {
        return;
    }
    let started = Instant::now();
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let (own, kept) = (device(), rank.store.clone());
    let before = exhaust_descriptors();
    let made = Context::new(own.clone(), 0, 2, &options).map(drop);
    let device = gloo_rs::transport::tcp::Device::create(&Default::default()).map(drop);
    let store = gloo_rs::rendezvous::TcpStore::connect("127.0.0.1", rank.port, Duration::from_millis(300)).map(drop);
    allow(&before);
    drop(kept);
    rank.report("context", started, &made);
    rank.report("device", started, &device);
    rank.report("store", started, &store);
    // And with descriptors again all is well.
    drop(Context::new(own.clone(), 0, 2, &options).unwrap());
}

#[test]
fn without_descriptors_nothing_begins() {
    let cells = by_cell(&Job::start("rendezvous", "-").finish(&[]));
    for cell in ["context", "device", "store"] {
        let report = &cells[cell][0];
        assert!(report.text.contains("Too many open files (os error 24)"), "{cell}: {report:?}");
        let kind = if cell == "store" { "Timeout" } else { "ResourceExhausted" };
        assert_eq!(report.kind, kind, "{cell}: {report:?}");
    }
}
