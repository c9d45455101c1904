//! A rank is stopped, or does not make the call: after their timeout the others name the rank that they waited for.

use std::time::Duration;

use gloo_rs::context::ContextOptions;
use gloo_rs::rendezvous::Store;

use super::job::{Job, LONG, Rank, Report, SLACK, VICTIM, assert_complete, by_collective};

const TIMEOUT: Duration = Duration::from_millis(1500);
const OTHERS: [usize; 3] = [0, 1, 3];

pub fn one_rank(rank: &Rank) {
    if rank.what == "rendezvous" {
        return rendezvous(rank);
    }
    if rank.what == "absent" && rank.rank == VICTIM {
        let contexts = rank.contexts(LONG);
        std::thread::scope(|scope| {
            for (collective, context) in &contexts {
                let first = super::calls::Case::new(*collective, super::job::COUNT);
                scope.spawn(move || first.run(context).unwrap());
            }
        });
        rank.mark("running/");
        rank.store.wait(&["gone on/0", "gone on/1", "gone on/3"], LONG).unwrap();
        for (_, context) in contexts {
            // The silent rank gets the reason from the others, which have timed out.
            let broken = context.broken().unwrap();
            assert!(broken.message().contains(" gave up: rank "), "{broken}");
        }
        return;
    }
    let left: &[usize] = if rank.rank == VICTIM { &[VICTIM] } else { &OTHERS };
    rank.run_all(TIMEOUT, left, |_| rank.mark("in the middle/"));
    rank.mark("gone on/");
}

#[test]
fn a_rank_is_stopped() {
    stop_in_the_middle(Job::start("silent", "stopped"));
}

/// Stops a rank of the job until the others have given up, and checks what all say.
pub fn stop_in_the_middle(job: Job) {
    job.wait_all("in the middle/");
    std::thread::sleep(Duration::from_millis(100));
    job.signal(VICTIM, libc::SIGSTOP);
    job.store.wait(&["gone on/0", "gone on/1", "gone on/3"], LONG).unwrap();
    job.signal(VICTIM, libc::SIGCONT);
    let reports = job.finish(&[]);
    let of = |victim: bool| reports.iter().filter(|r| (r.rank == VICTIM) == victim).cloned().collect::<Vec<_>>();
    assert_blamed(&of(false), "connected, but it has not answered for 0.");
    // Once it continues it gets the reason from the others, or has timed out itself, in a wait or while it was copying.
    for (_, reports) in by_collective(&of(true), &[VICTIM]) {
        let Report { kind, text, .. } = &reports[0];
        assert!(matches!(kind.as_str(), "Timeout" | "ConnectionLost"), "{kind}: {text}");
        let may = [" gave up: rank ", "timed out after 1.5s", "the timeout has passed while this rank was copying"];
        assert!(may.iter().any(|reason| text.contains(reason)), "{text}");
    }
}

#[test]
fn a_rank_never_comes_to_the_call() {
    let reports = Job::start("silent", "absent").finish(&[]);
    assert_blamed(&reports, "connected; it says that it is in no collective, after 1 on this context");
}

/// Every rank names the rank that it waited for, and one of them describes rank 2 with `so`.
fn assert_blamed(reports: &[Report], so: &str) {
    for (collective, reports) in by_collective(reports, &OTHERS) {
        let mut blamed = 0;
        for report in &reports {
            let text = &report.text;
            assert_complete(collective, report);
            assert!(report.elapsed < TIMEOUT + Duration::from_secs(1) + SLACK, "{:?}: {text}", report.elapsed);
            assert!(matches!(report.kind.as_str(), "Timeout" | "ConnectionLost"), "{}: {text}", report.kind);
            assert!(text.contains("timed out after 1.5s, in collective number "), "{text}");
            let waits = ["waiting to receive ", "waiting to send ", "waiting for rank "];
            assert!(waits.iter().any(|w| text.contains(w)), "{text}");
            blamed += usize::from(text.contains("rank 2 at 127.0.0.1:") && text.contains(so));
        }
        assert!(blamed > 0, "{}: {reports:#?}", collective.name());
        assert!(reports.iter().any(|r| r.kind == "Timeout"), "{}: {reports:#?}", collective.name());
    }
}

fn rendezvous(rank: &Rank) {
    if rank.rank == VICTIM {
        return;
    }
    let started = std::time::Instant::now();
    let options = ContextOptions { timeout: TIMEOUT, ..Default::default() };
    let result = rank.connect("short of one", &[0, 1, 2, 3], &options).map(drop);
    rank.report("rendezvous", started, &result);
}

#[test]
fn a_rank_never_comes_to_the_rendezvous() {
    let reports = Job::start("silent", "rendezvous").finish(&[]);
    assert_eq!(reports.len(), 3);
    for report in reports {
        assert_eq!(report.kind, "Timeout", "{}", report.text);
        assert!(report.text.contains("after 1.5s, 1 of 4 ranks have not arrived: 2"), "{}", report.text);
        assert!(report.text.contains("tcp://127.0.0.1:"), "{}", report.text);
        assert!(report.elapsed < TIMEOUT + Duration::from_secs(1) + SLACK);
    }
}
