//! Runs the tool as a process, and jobs of `gloo-rs run` on one host and on others.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Time limit that is reached only by a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The tool, with its output captured; it is ended if it hangs.
pub fn gloo_rs(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gloo-rs"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("RANK").env_remove("WORLD_SIZE");
    let end_if_stuck = || {
        // SAFETY: alarm is async-signal-safe. The timer survives exec, and ends the launcher, and with it the ranks.
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

/// A job that runs during the test, which reads its output as it is written.
pub struct Job {
    pub launcher: Child,
    lines: Receiver<String>,
}

impl Job {
    pub fn spawn(mut command: Command) -> Self {
        // The process that runs the tests may ignore these, as under nohup or in a shell's background, and they would
        // stay ignored.
        let defaults = || {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGQUIT] {
                // SAFETY: sets the default action, which runs no code of this process.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: `signal` is async-signal-safe.
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

    /// The process ids that the ranks print: `count` lines `[rank] pid`, in the order of ranks.
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

/// A host with two slots that is reached by a script in place of ssh: this machine.
pub struct Elsewhere(TempDir);

impl Elsewhere {
    pub fn new() -> Self {
        // The last argument is the command for the host's shell, which knows nothing of the variables here.
        Self::reached_by("for command; do :; done; exec env -i PATH=\"$PATH\" sh -c \"$command\"")
    }

    /// One that is reached by this script.
    pub fn reached_by(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("hosts"), "somewhere slots=2\n").unwrap();
        let ssh = folder.path().join("ssh");
        fs::write(&ssh, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// A job of two ranks there.
    pub fn command(&self, options: &[&str], script: &str) -> Command {
        let (hosts, ssh) = (self.path("hosts"), self.path("ssh"));
        gloo_rs(&[&["run", "--hosts", &hosts, "--ssh", &ssh], options, &["--", "sh", "-c", script]].concat())
    }
}

/// Sends `signal` to a process that has not been waited for, so that its id is still valid.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: the call accesses no memory; the process is one that this test has started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Waits until the process has ended; it must not have been waited for yet.
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
