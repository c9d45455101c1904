//! A rank forks while its other threads are in collectives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gloo_rs::context::{Context, ContextOptions};
use gloo_rs::error::ErrorKind;
use gloo_rs::rendezvous::Store;

use super::calls::count_ranks;
use super::job::{Job, LONG, Rank, SIZE, VICTIM, by_collective, device, wait_all};

pub fn one_rank(rank: &Rank) {
    if rank.what == "orphan" {
        return leave_an_orphan(rank);
    }
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let idle = rank.connect("idle", &[0, 1, 2, 3], &options).unwrap();
    assert_eq!(count_ranks(&idle).unwrap(), SIZE as f32);
    rank.run_all(LONG, &[0, 1, 2, 3], |contexts| {
        if rank.rank == VICTIM {
            std::thread::sleep(Duration::from_millis(100));
            let began = Instant::now();
            // SAFETY: the child uses only the library's functions that are documented for this case, allocates memory,
            // and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the child ends by `_exit` and never drops its own `idle`, so this reference is released only
                // once.
                let idle = unsafe { Arc::from_raw(Arc::as_ptr(&idle)) };
                // SAFETY: the call accesses no memory; the timer ends the child if it hangs.
                unsafe { libc::alarm(25) };
                let code = in_the_child(idle, contexts[0].1.clone(), rank);
                // SAFETY: ends the process without running destructors.
                unsafe { libc::_exit(code) };
            }
            let mut status = 0;
            // SAFETY: the call writes an int to `status`.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child ended with {}, by signal {}", status >> 8, status & 127);
            assert!(began.elapsed() < Duration::from_secs(30));
        }
        // The handles that the child has destroyed still work here.
        assert_eq!(count_ranks(&idle).unwrap(), SIZE as f32);
        for (_, context) in contexts {
            assert!(context.broken().is_none());
        }
        rank.mark("looked/");
        if rank.rank == VICTIM {
            wait_all(&*rank.store, "looked/");
            contexts.iter().for_each(|(_, context)| context.close());
        }
    });
}

/// The rank that will be killed has a child, which does nothing; the others wait for that rank.
fn leave_an_orphan(rank: &Rank) {
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let context = rank.connect("orphan", &[0, 1, 2, 3], &options).unwrap();
    assert_eq!(count_ranks(&context).unwrap(), SIZE as f32);
    if rank.rank == VICTIM {
        // SAFETY: after fork, the child makes async-signal-safe system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the calls access no memory. The timer ends the child if the test does not.
            unsafe {
                libc::alarm(300);
                libc::pause();
                libc::_exit(0);
            }
        }
        rank.store.set("child", child.to_string().as_bytes()).unwrap();
    }
    // Who is killed earlier would end this first call of another rank.
    rank.mark("connected/");
    let started = Instant::now();
    // The rank that will be killed waits for its end.
    let result =
        if rank.rank == VICTIM { rank.store.get("never", LONG).map(drop) } else { count_ranks(&context).map(drop) };
    rank.report("orphan", started, &result);
}

#[test]
fn a_child_that_lives_on_does_not_hide_that_its_parent_was_killed() {
    let mut job = Job::start_with("fork", "orphan", &Default::default(), vec![("GLOO_RS_SHM", "0".into())]);
    let child: i32 = String::from_utf8(job.store.get("child", LONG).unwrap()).unwrap().parse().unwrap();
    wait_all(&job.store, "connected/");
    job.signal(VICTIM, libc::SIGKILL);
    job.children[VICTIM].wait().unwrap();
    // SAFETY: the calls access no memory. The child is in this job only, and lives until it is killed here.
    let lives = || unsafe { libc::kill(child, 0) } == 0;
    assert!(lives());
    let others: Vec<_> = [0, 1, 3].into_iter().map(|rank| job.children[rank].wait().unwrap()).collect();
    let lived = lives();
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let reports = job.finish(&[VICTIM]);
    assert!(lived && others.iter().all(|status| status.success()), "{reports:?}");
    assert_eq!(reports.len(), 3, "{reports:?}");
    for report in reports {
        assert_eq!(report.kind, "ConnectionLost", "{}", report.text);
        assert!(report.text.contains("rank 2 at 127.0.0.1:"), "{}", report.text);
    }
}

/// Returns 0 if everything behaves as documented.
fn in_the_child(idle: Arc<Context>, running: Arc<Context>, rank: &Rank) -> i32 {
    let refused = |context: &Context| {
        let error = count_ranks(context).unwrap_err();
        error.kind() == ErrorKind::InvalidOperation && error.message().contains("this process is a child by fork")
    };
    if !refused(&idle) || !refused(&running) || !idle.is_inherited() {
        return 1;
    }
    if running.broken().is_none_or(|e| !e.message().contains("child by fork")) {
        return 2;
    }
    let options = ContextOptions::default();
    if Context::new(rank.device.clone(), 0, 1, &options).err().is_none_or(|e| e.kind() != ErrorKind::InvalidOperation) {
        return 3;
    }
    idle.close();
    drop(idle);
    // A context of the child's own works.
    let own = Context::new(device(), 0, 1, &options).unwrap();
    if count_ranks(&own).ok() != Some(1.0) { 4 } else { 0 }
}

#[test]
fn a_child_by_fork_is_refused_and_does_not_affect_the_job() {
    for (_, reports) in by_collective(&Job::start("fork", "-").finish(&[]), &[0, 1, 2, 3]) {
        for report in reports {
            // Nothing failed before rank 2 closed its contexts.
            let expected =
                if report.rank == VICTIM { "rank 2 has closed this context" } else { " has closed its context" };
            assert!(report.text.contains(expected), "{}", report.text);
        }
    }
}
