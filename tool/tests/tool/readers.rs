//! `gloo-rs run` whose output is read late or not at all, on one host and on another one that is this machine.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, ChildStdout};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use crate::launcher::{Elsewhere, Job, PATIENCE, assert_ends, gloo_rs, kill, text};

/// Whether who writes to the pipe of `output` has to wait. Its number of bytes does not tell: pages may be partly
/// filled.
fn is_full(output: &ChildStdout) -> bool {
    let path = format!("/proc/self/fd/{}", output.as_raw_fd());
    let writer = fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    let mut poll = libc::pollfd { fd: writer.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: `poll` is one entry, as the count says, and lives until the call returns.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    assert!(ready >= 0);
    ready == 0
}

/// Starts two ranks `here` or `there`, and waits until their launcher has to wait for who reads its output.
fn start(elsewhere: &Elsewhere, place: &str, grace: &str, script: &str) -> (Child, ChildStdout) {
    let mut command = match place {
        "here" => gloo_rs(&["run", "-n", "2", "--grace", grace, "--", "sh", "-c", script]),
        _ => elsewhere.command(&["--grace", grace], script),
    };
    let mut job = command.spawn().unwrap();
    let output = job.stdout.take().unwrap();
    let began = Instant::now();
    while !is_full(&output) {
        assert!(began.elapsed() < PATIENCE, "{place}: its output has room");
        thread::sleep(Duration::from_millis(5));
    }
    (job, output)
}

#[test]
fn a_reader_may_pause_for_longer_than_hosts_may_be_silent() {
    let elsewhere = Elsewhere::new();
    let mut job = elsewhere.command(&["--lost-after", "4"], "seq 1 200000").spawn().unwrap();
    let mut output = BufReader::new(job.stdout.take().unwrap());
    let mut lines = String::new();
    output.read_line(&mut lines).unwrap();
    // `less` of somebody who reads.
    thread::sleep(Duration::from_secs(10));
    output.read_to_string(&mut lines).unwrap();
    let ended = job.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), &*text(&ended.stderr)), (Some(0), ""));
    for rank in 0..2 {
        let mark = format!("[{rank}] ");
        let numbers = lines.lines().filter_map(|line| line.strip_prefix(&mark)?.parse::<u32>().ok());
        assert!(numbers.eq(1..=200_000), "rank {rank}");
    }
}

/// Waits until ranks have made all of these files.
fn wait_for(files: &[String]) {
    let began = Instant::now();
    while !files.iter().all(|file| fs::exists(file).unwrap()) {
        assert!(began.elapsed() < PATIENCE, "no {files:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn signals_reach_ranks_whose_output_is_not_read() {
    let elsewhere = Elsewhere::new();
    for place in ["here", "there"] {
        let got = elsewhere.path(place);
        // One rank's output may fill the pipe before the other one has its trap.
        let ready = elsewhere.path(&format!("{place}-ready"));
        let script = format!("trap 'touch {got}$RANK; exit 0' TERM; touch {ready}$RANK; seq 1 100000000 & wait");
        let (mut job, mut output) = start(&elsewhere, place, "60", &script);
        wait_for(&[0, 1].map(|rank| format!("{ready}{rank}")));
        kill(job.id() as i32, libc::SIGTERM);
        wait_for(&[0, 1].map(|rank| format!("{got}{rank}")));
        output.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(job.wait().unwrap().code(), Some(0), "{place}");
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_though_the_output_is_not_read() {
    let elsewhere = Elsewhere::new();
    for place in ["here", "there"] {
        let (go, got) = (elsewhere.path(&format!("{place}-go")), elsewhere.path(&format!("{place}-got")));
        let script = format!(
            "if [ $RANK = 1 ]; then while [ ! -e {go} ]; do sleep 0.02; done; exit 3; fi
             trap 'touch {got}; exit 0' TERM; seq 1 100000000 & wait"
        );
        let (mut job, mut output) = start(&elsewhere, place, "60", &script);
        fs::write(&go, "").unwrap();
        wait_for(&[got]);
        output.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(job.wait().unwrap().code(), Some(3), "{place}");
    }
}

#[test]
fn a_job_that_a_signal_ends_does_not_wait_for_a_reader_that_never_reads() {
    let elsewhere = Elsewhere::new();
    for place in ["here", "there"] {
        let (job, output) = start(&elsewhere, place, "0.2", "exec yes");
        kill(job.id() as i32, libc::SIGTERM);
        let ended = job.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(128 + libc::SIGTERM), "{place}");
        assert!(text(&ended.stderr).contains("was killed by signal 15 (SIGTERM)"), "{place}: {ended:?}");
        drop(output);
    }
}

/// A terminal that nobody reads: the side of whoever shows it, and that of programs.
fn terminal() -> [OwnedFd; 2] {
    let mut sides = [0; 2];
    let [shows, programs] = &mut sides;
    // SAFETY: the call writes two descriptors; the other pointers may be null.
    let made = unsafe { libc::openpty(shows, programs, ptr::null_mut(), ptr::null(), ptr::null()) };
    assert_eq!(made, 0);
    // SAFETY: both are new and have no other owner.
    sides.map(|side| unsafe { OwnedFd::from_raw_fd(side) })
}

#[test]
fn a_job_on_a_terminal_that_is_stopped_ends_by_a_signal() {
    let elsewhere = Elsewhere::new();
    let begun = elsewhere.path("begun");
    let script = format!("touch {begun}$RANK; exec yes");
    let [shows, programs] = terminal();
    let mut command = gloo_rs(&["run", "-n", "2", "--grace", "0.2", "--", "sh", "-c", &script]);
    let mut job = command.stdout(programs.try_clone().unwrap()).stderr(programs).spawn().unwrap();
    wait_for(&[0, 1].map(|rank| format!("{begun}{rank}")));
    // Time to fill what is between the ranks and the terminal.
    thread::sleep(Duration::from_millis(500));
    kill(job.id() as i32, libc::SIGTERM);
    assert_eq!(job.wait().unwrap().code(), Some(128 + libc::SIGTERM));
    drop(shows);
}

#[test]
fn ranks_that_write_do_not_outlive_their_launcher() {
    let elsewhere = Elsewhere::new();
    let go = elsewhere.path("go");
    let script = format!("echo $$; while [ ! -e {go} ]; do sleep 0.02; done; exec yes");
    let job = Job::spawn(elsewhere.command(&["--lost-after", "4"], &script));
    let pids = job.pids(2);
    // The launcher stops, as if the network were cut: the connection takes some output of the ranks, and says nothing.
    job.signal(libc::SIGSTOP);
    fs::write(&go, "").unwrap();
    pids.into_iter().for_each(assert_ends);
    job.signal(libc::SIGKILL);
    job.end();
}
