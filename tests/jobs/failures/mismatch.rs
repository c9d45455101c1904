//! Rank 2 makes another call than the others, in every collective and in every way; with and without `check_calls`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gloo_rs::collective::Collective;
use gloo_rs::context::ContextOptions;
use gloo_rs::types::{DataType, ReduceOp};

use super::calls::{Case, count_ranks};
use super::job::{Job, Rank, Report, SIZE, SLACK, VICTIM, by_cell, wait_all};

/// Blocks below the eager limit, so ranks that only send may return before the mismatch is noticed.
const TIMEOUT: Duration = Duration::from_secs(2);
const COUNT: usize = 100;
/// What is said of messages that no call of this rank takes.
const UNKNOWN_HERE: &str = " with this tag, which no thread here has called";
/// Cells that a process runs at the same time.
const THREADS: usize = 12;

/// The calls of rank 2 that differ from the others' `collective`, each with a name for the difference.
fn odd_calls(collective: Collective) -> Vec<(&'static str, Case)> {
    use Collective::*;
    let usual = usual(collective);
    let other = if collective == Allreduce { Broadcast } else { Allreduce };
    let has_root = matches!(collective, Reduce | Broadcast | Gather | Gatherv | Scatter | Scatterv);
    let mut odd = vec![("collective", self::usual(other)), ("tag", Case { tag: 4, ..usual })];
    if collective != Barrier {
        odd.push(("count", Case { count: COUNT + 1, ..usual }));
        odd.push(("type", Case { dtype: DataType::Int32, ..usual }));
    }
    if collective.reduces() {
        odd.push(("operation", Case { op: ReduceOp::Max, ..usual }));
    }
    if has_root {
        odd.push(("root", Case { root: 1, ..usual }));
    }
    let mut names = collective
        .algorithms()
        .iter()
        .filter(|a| !a.uses.needs_shared_memory())
        .map(|a| a.name)
        .filter(|name| *name != "local");
    if let Some(name) = names.rfind(|name| Some(*name) != usual.algorithm) {
        odd.push(("algorithm", Case { algorithm: Some(name), ..usual }));
    }
    odd
}

/// With an explicit algorithm, so that another count does not select another one.
fn usual(collective: Collective) -> Case {
    let name = collective.algorithms().iter().map(|a| a.name).find(|name| *name != "local");
    Case { algorithm: name, ..Case::new(collective, COUNT) }
}

fn cells() -> Vec<(String, Collective, &'static str, Case)> {
    let of = |c: &Collective| {
        let name = |what: &str| format!("{}, another {what}", c.name());
        odd_calls(*c).into_iter().map(|(what, odd)| (name(what), *c, what, odd)).collect::<Vec<_>>()
    };
    Collective::ALL.iter().flat_map(of).collect()
}

pub fn one_rank(rank: &Rank) {
    let checked = rank.what == "checked";
    let (cells, next) = (cells(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                // All ranks take them in the same order, so the first one left is the next on all ranks.
                while let Some((cell, collective, _, odd)) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let options =
                        ContextOptions { check_calls: Some(checked), timeout: TIMEOUT * 10, ..Default::default() };
                    let context = rank.connect(cell, &[0, 1, 2, 3], &options).unwrap();
                    // All ranks are connected to all.
                    Case::new(Collective::Alltoall, 1).run(&context).unwrap();
                    rank.mark(&format!("{cell}/met/"));
                    wait_all(&*rank.store, &format!("{cell}/met/"));
                    context.set_timeout(TIMEOUT);
                    let started = Instant::now();
                    let case = if rank.rank == VICTIM { *odd } else { usual(*collective) };
                    let result = case.run(&context);
                    rank.report(cell, started, &result);
                    if checked && case.tag == 3 && odd.tag == 3 {
                        assert!(context.broken().is_none());
                        assert_eq!(count_ranks(&context).unwrap(), SIZE as f32);
                    } else {
                        // Ranks that return early stay connected until the others have returned, too.
                        rank.mark(&format!("{cell}/done/"));
                        wait_all(&*rank.store, &format!("{cell}/done/"));
                        assert!(result.is_ok() || context.broken().is_some());
                    }
                }
            });
        }
    });
}

fn reports(what: &str) -> Vec<(String, Collective, &'static str, Case, Vec<Report>)> {
    let mut by_cell = by_cell(&Job::start("mismatch", what).finish(&[]));
    let with_reports = |(cell, collective, what, odd): (String, Collective, &'static str, Case)| {
        let reports = by_cell.remove(&cell).unwrap();
        assert_eq!(reports.len(), SIZE, "{cell}");
        for report in &reports {
            assert!(report.elapsed < TIMEOUT + Duration::from_secs(1) + SLACK, "{cell}: {report:#?}");
        }
        (cell, collective, what, odd, reports)
    };
    cells().into_iter().map(with_reports).collect()
}

/// A call as errors describe it: `allreduce ring of float32 by sum`.
fn name(case: &Case) -> String {
    let op = if case.collective.reduces() { format!(" by {}", case.op) } else { String::new() };
    format!("{} {} of {}{op}", case.collective.name(), case.algorithm.unwrap(), case.dtype)
}

#[test]
fn a_rank_in_another_call_is_noticed_by_ranks_that_get_its_messages() {
    for (cell, collective, what, odd, reports) in reports("unchecked") {
        let failed: Vec<&Report> = reports.iter().filter(|r| r.kind != "Ok").collect();
        let all = || format!("{cell}: {reports:#?}");
        assert!(!failed.is_empty(), "{}", all());
        for report in &failed {
            let start = format!("rank {}: ", report.rank);
            assert!(report.text.starts_with(&start) && report.text.contains(" at 127.0.0.1:"), "{}", all());
        }
        let says = |part: &str| failed.iter().any(|r| r.text.contains(part));
        let names_either = says(&name(&odd)) || says(&name(&usual(collective)));
        match what {
            "tag" => {
                // No message matches one with another tag: after the timeout, the diagnostic replies name the other
                // calls.
                assert!(failed.iter().any(|r| r.kind == "Timeout"), "{}", all());
                let told = format!("connected; it says that it is in {}", name(&odd));
                let done = "connected; it says that it is in no collective";
                assert!([told.as_str(), done].iter().any(|t| says(t)), "{}", all());
            }
            // No message of one call matched one of the other: after the timeout, the diagnostic replies name the other
            // calls.
            _ if failed.iter().any(|r| r.kind == "Timeout") => {
                assert!(says(UNKNOWN_HERE) || says("; it says that it is in "), "{}", all());
                assert!(names_either || says("it says that it is in no collective"), "{}", all());
            }
            _ => {
                let noticed = failed.iter().filter(|r| r.kind == "Mismatch").count();
                assert!(noticed > 0, "{}", all());
                let noticed =
                    [UNKNOWN_HERE, " is in another collective: ", "the counts that it was called with differ"];
                assert!(noticed.iter().any(|part| says(part)), "{}", all());
                // Messages of two collectives do not meet, and another thread of that rank might make the call later. A
                // rank that began earlier may tell the others.
                let found = |r: &Report| r.text.contains(noticed[1]) && !r.text.contains(" gave up: ");
                let early = |r: &&Report| r.elapsed < TIMEOUT && found(r);
                assert!(what != "collective" || !failed.iter().any(early), "{}", all());
                assert!(names_either || says("the counts that it was called with differ"), "{}", all());
            }
        }
    }
}

#[test]
fn with_check_calls_every_rank_names_all_calls() {
    for (cell, collective, what, odd, reports) in reports("checked") {
        if what == "tag" {
            // Calls with other tags are not compared with each other, so this is like a rank that does not come.
            assert!(
                reports.iter().all(|r| matches!(r.kind.as_str(), "Timeout" | "ConnectionLost")),
                "{cell}: {reports:#?}"
            );
            continue;
        }
        let (_, verdict) = reports[0].text.split_once(": ranks disagree about this call: ").unwrap();
        for report in &reports {
            assert_eq!(report.kind, "Mismatch", "{cell}: {report:#?}");
            assert!(report.text.starts_with(&format!("rank {}: ", report.rank)), "{}", report.text);
            assert!(report.text.ends_with(&format!(": ranks disagree about this call: {verdict}")), "{}", report.text);
        }
        if what == "count" && matches!(collective, Collective::Gatherv | Collective::Scatterv) {
            let (from, to) = if collective == Collective::Gatherv { (2, 0) } else { (0, 2) };
            let (sends, expects) = if collective == Collective::Gatherv { (101, 100) } else { (100, 101) };
            assert_eq!(verdict, format!("rank {from} sends {sends} elements to rank {to}, which expects {expects}"));
        } else if what == "count" && collective == Collective::Alltoallv {
            assert!(
                verdict.starts_with("rank 0 sends 100 elements to rank 2, which expects 101; rank 1 sends"),
                "{verdict}"
            );
        } else {
            let calls = |case: &Case| format!("{} {}", case.collective.name(), case.algorithm.unwrap());
            assert!(verdict.starts_with(&format!("rank 2 calls {}", calls(&odd))), "{verdict}");
            assert!(verdict.contains(&format!("; ranks 0, 1, 3 call {}", calls(&usual(collective)))), "{verdict}");
            let (odd_says, usual_says) = verdict.split_once("; ").unwrap();
            let tells = match what {
                "type" => odd_says.contains(" int32") && usual_says.contains(" float32"),
                "operation" => odd_says.contains(" by max") && usual_says.contains(" by sum"),
                "root" => odd_says.contains(", root 1") && usual_says.contains(", root 0"),
                "count" => odd_says.contains("101") && usual_says.contains("100"),
                _ => true,
            };
            assert!(tells, "{cell}: {verdict}");
        }
    }
}
