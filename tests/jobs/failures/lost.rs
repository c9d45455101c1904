//! A rank is killed, its connections are reset, or it closes its contexts, in the middle of every collective.

use std::os::fd::RawFd;
use std::time::Duration;

use super::job::{Job, LONG, Rank, Report, SIZE, VICTIM, assert_complete, by_collective};

pub fn one_rank(rank: &Rank) {
    let left: &[usize] = if rank.what == "killed" { &[0, 1, 3] } else { &[0, 1, 2, 3] };
    rank.run_all(LONG, left, |contexts| {
        rank.mark("in the middle/");
        if rank.rank != VICTIM {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
        match rank.what.as_str() {
            "reset" => reset_connections(rank.port),
            "closed" => contexts.iter().for_each(|(_, context)| context.close()),
            _ => {}
        }
    });
}

/// Breaks every connection of this process except those to the store: the kernel sends a reset to the other end.
fn reset_connections(store: u16) {
    let folder = std::fs::read_dir("/proc/self/fd").unwrap();
    let all: Vec<RawFd> = folder.map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let mut cut = 0;
    for fd in all {
        // SAFETY: a zeroed address is valid, and the call writes at most the given length to it; calls on descriptors
        // that are not connected sockets fail. Connecting to an unspecified address dissolves the existing connection.
        unsafe {
            let mut address: libc::sockaddr_in = std::mem::zeroed();
            let mut length = size_of::<libc::sockaddr_in>() as u32;
            let connected = libc::getpeername(fd, (&raw mut address).cast(), &mut length) == 0;
            if !connected || address.sin_family != libc::AF_INET as u16 || u16::from_be(address.sin_port) == store {
                continue;
            }
            let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
            cut += usize::from(libc::connect(fd, &nowhere, size_of::<libc::sockaddr>() as u32) == 0);
        }
    }
    assert!(cut >= 16, "only {cut} connections");
}

const OTHERS: [usize; 3] = [0, 1, 3];

fn assert_prompt(report: &Report) {
    assert!(report.elapsed < Duration::from_secs(15), "it took {:?}: {}", report.elapsed, report.text);
}

#[test]
fn a_rank_is_killed() {
    kill_in_the_middle(Job::start("lost", "killed"));
}

/// Kills a rank of the job, and checks what the others say.
pub fn kill_in_the_middle(mut job: Job) {
    job.wait_all("in the middle/");
    std::thread::sleep(Duration::from_millis(100));
    job.children[VICTIM].kill().unwrap();
    for (collective, reports) in by_collective(&job.finish(&[VICTIM]), &OTHERS) {
        for report in reports {
            assert_complete(collective, &report);
            assert_prompt(&report);
            // Ranks that did not communicate with the victim get the reason from the rank that noticed first.
            let text = &report.text;
            assert_eq!(report.kind, "ConnectionLost", "{text}");
            let beginning = text.split("; meanwhile this rank waited ").next().unwrap();
            let (_, seen) = beginning.rsplit_once("rank 2 at 127.0.0.1:").unwrap_or_else(|| panic!("{text}"));
            let ways = [
                " is gone: the connection ended without a goodbye",
                " broke while receiving: ",
                " broke while sending: ",
                " broke while reading its memory: its process, ",
            ];
            assert!(ways.iter().any(|way| seen.contains(way)), "{text}");
            assert!(text.matches(" gave up: ").count() <= 1, "one step from the beginning: {text}");
        }
    }
}

#[test]
fn a_rank_s_connections_are_reset() {
    let reports = Job::start("lost", "reset").finish(&[]);
    for (collective, reports) in by_collective(&reports, &[0, 1, 2, 3]) {
        let mut reset = false;
        for report in reports {
            assert_complete(collective, &report);
            assert_prompt(&report);
            let text = &report.text;
            assert_eq!(report.kind, "ConnectionLost", "{text}");
            // Timing decides which end notices first; connections between other ranks did not break.
            assert!(text.contains("rank 2"), "{text}");
            assert!(text.contains(" broke while ") || text.contains(" is gone: "), "{text}");
            reset |= text.contains("Connection reset by peer (os error 104)");
        }
        assert!(reset, "{}", collective.name());
    }
}

#[test]
fn a_rank_closes_its_context_while_all_others_wait() {
    let reports = Job::start("lost", "closed").finish(&[]);
    for (collective, reports) in by_collective(&reports, &[0, 1, 2, 3]) {
        assert_eq!(reports.len(), SIZE);
        for report in reports {
            assert_prompt(&report);
            let text = &report.text;
            if report.rank == VICTIM {
                assert_eq!(report.kind, "Closed", "{text}");
                assert!(text.contains("rank 2 has closed this context"), "{text}");
            } else {
                assert_complete(collective, &report);
                assert_eq!(report.kind, "ConnectionLost", "{text}");
                assert!(text.contains("rank 2 at 127.0.0.1:") && text.contains(" has closed its context"), "{text}");
            }
        }
    }
}
