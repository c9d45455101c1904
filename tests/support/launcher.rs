//! `gloo-rs run` from outside, for the tests of one host and of several.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes; reached only when something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The tool, with its output to be read, which ends if it is stuck.
pub fn gloo_rs(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gloo-rs"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let end_if_stuck = || {
        // SAFETY: alarm is async-signal-safe. It outlives exec, and ends the launcher, and with it the ranks.
        unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
        Ok(())
    };
    // SAFETY: the closure only calls alarm.
    unsafe { command.pre_exec(end_if_stuck) };
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn sorted_lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A job that runs beside the test, which reads its output as it comes.
pub struct Job {
    pub launcher: Child,
    lines: Receiver<String>,
}

impl Job {
    pub fn spawn(mut command: Command) -> Self {
        // Whoever runs the tests may ignore these, as nohup and shells in the background do, and that would be handed on.
        let defaults = || {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGQUIT] {
                // SAFETY: a known signal and a known disposition.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: `signal` may be called between fork and exec.
        unsafe { command.pre_exec(defaults) };
        let mut launcher = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(launcher.stdout.take().unwrap());
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { launcher, lines }
    }

    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line of output")
    }

    /// The process ids that the ranks print: `count` lines of `[rank] pid`, in their order.
    pub fn pids(&self, count: usize) -> Vec<i32> {
        let mut lines: Vec<_> = (0..count).map(|_| self.line()).collect();
        lines.sort();
        lines.iter().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    }

    pub fn signal(&self, signal: i32) {
        kill(self.launcher.id() as i32, signal);
    }

    pub fn end(self) -> Output {
        self.launcher.wait_with_output().unwrap()
    }
}

/// Sends `signal` to a process that has not been waited for, so that the number is still its own.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: no memory is involved; the process is one that this test has started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Waits until the process has ended; nobody may have waited for it yet.
pub fn assert_ends(pid: i32) {
    let begin = Instant::now();
    loop {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return };
        if stat.rsplit(") ").next().unwrap().starts_with('Z') {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "process {pid} still runs: {stat}");
        thread::sleep(Duration::from_millis(5));
    }
}
