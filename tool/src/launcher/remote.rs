//! Jobs on several hosts: one ssh process for each host, which runs a helper there ([`super::node`]), and the frames between them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::frame::{self, Decoder, Hello, INPUT_WINDOW, Task, kind};
use super::hosts::Host;
use super::rank::{Forwarded, Outcome, Rank, Stream, Target, set_nonblocking};
use super::signals::{self, Signals};
use super::{Job, Master, Part, readable, wait_until};
use crate::Failure;

/// Time that the helpers may take beyond `--grace` to end their ranks.
const HELPERS_END_WITHIN: Duration = Duration::from_secs(10);
/// Most bytes of one read.
const PIECE: usize = 16 << 10;

/// How to connect to the hosts of a job.
pub struct Hosts {
    /// Each with its number of ranks, at least 1.
    pub hosts: Vec<(Host, usize)>,
    /// The command that connects to a host, with its arguments.
    pub ssh: Vec<String>,
    /// Path of this program on the hosts.
    pub program: OsString,
    /// The address of rank 0's host, if it is not its name.
    pub master: Option<String>,
    /// Time without data after which the launcher counts as lost on a host, or a host here.
    pub lost_after: Duration,
}

/// Runs `job` on `hosts` until it ends, as [`super::launch`] does on this host.
pub fn launch(job: &Job, hosts: &Hosts) -> Result<u8, Failure> {
    let here = |what: String, error: io::Error| Failure::from(format!("{what}: {error}"));
    let signals = Signals::catch().map_err(|error| here("cannot receive signals".into(), error))?;
    let directory =
        std::env::current_dir().map_err(|error| here("cannot determine the current directory".into(), error))?.into();
    let mut running = Running {
        job,
        hosts,
        directory,
        nodes: Vec::new(),
        signals,
        failed: None,
        window: INPUT_WINDOW,
        input: job.part.input,
    };
    let mut first_rank = 0;
    for (host, ranks) in &hosts.hosts {
        match Node::start(host, first_rank, *ranks, hosts, running.signals.mask_before()) {
            Ok(node) => running.nodes.push(node),
            Err(error) => {
                running.nodes.iter_mut().for_each(Node::cut);
                return Err(here(format!("cannot start {}", hosts.ssh.join(" ")), error));
            }
        }
        first_rank += ranks;
    }
    Ok(running.supervise())
}

/// One host's ssh process, and the state of its helper.
struct Node {
    host: Host,
    first_rank: usize,
    ranks: usize,
    ssh: Rank,
    /// Frames to the helper.
    into: Option<File>,
    pending: Vec<u8>,
    /// Frames from the helper, until it closes.
    from: Option<File>,
    decoder: Decoder,
    /// ssh's own error output.
    errors: Option<Stream>,
    port: Option<u16>,
    has_task: bool,
    /// Exit status of the helper's part of the job.
    done: Option<u8>,
    reaped: bool,
    /// Whether ssh has ended and all its output has been read.
    ended: bool,
}

impl Node {
    fn start(host: &Host, first_rank: usize, ranks: usize, how: &Hosts, mask: libc::sigset_t) -> io::Result<Self> {
        let (ssh, own) = how.ssh.split_first().ok_or(io::ErrorKind::NotFound)?;
        // ssh gives up after four intervals without data. Its first value of an option counts, so the caller's options come first.
        let interval = how.lost_after.as_secs().div_ceil(4).max(1);
        let mut command = Command::new(ssh);
        command
            .args(own)
            .args(["-T", "-oBatchMode=yes", "-oConnectTimeout=30", "-oServerAliveCountMax=4"])
            .arg(format!("-oServerAliveInterval={interval}"))
            .arg("--")
            .arg(&host.name)
            .arg(remote_command(&how.program))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (ssh, mut child) = Rank::start(&mut command, mask, None)?;
        let pipe = |pipe: Option<OwnedFd>| -> io::Result<OwnedFd> {
            let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
            set_nonblocking(pipe.as_raw_fd())?;
            Ok(pipe)
        };
        Ok(Self {
            host: host.clone(),
            first_rank,
            ranks,
            ssh,
            into: Some(pipe(child.stdin.take().map(Into::into))?.into()),
            pending: Vec::new(),
            from: Some(pipe(child.stdout.take().map(Into::into))?.into()),
            decoder: Decoder::after(frame::MAGIC),
            errors: Some(Stream::new(pipe(child.stderr.take().map(Into::into))?, Target::Stderr, "")?),
            port: None,
            has_task: false,
            done: None,
            reaped: false,
            ended: false,
        })
    }

    /// The host for messages: `node1 (ranks 2 to 3)`.
    fn name(&self) -> String {
        let last = self.first_rank + self.ranks - 1;
        let ranks =
            if self.ranks == 1 { format!("rank {last}") } else { format!("ranks {} to {last}", self.first_rank) };
        format!("{} ({ranks})", self.host.name)
    }

    fn send(&mut self, kind: u8, payload: &[u8]) {
        self.pending.extend(frame::encode(kind, payload));
        self.flush();
    }

    /// Writes as much as the pipe accepts. The end of the helper is detected by the end of its output.
    fn flush(&mut self) {
        let Some(into) = &mut self.into else { return self.pending.clear() };
        let mut written = 0;
        while written < self.pending.len() {
            match into.write(&self.pending[written..]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.into = None;
                    return self.pending.clear();
                }
            }
        }
        self.pending.drain(..written);
    }

    /// Ends the connection; the helper then kills its ranks.
    fn cut(&mut self) {
        self.into = None;
        if !self.reaped {
            self.ssh.signal_group(libc::SIGKILL);
        }
    }
}

/// The command for a host's shell. All shells take text in single quotes literally, except for a single quote.
fn remote_command(program: &OsString) -> OsString {
    let mut command = OsString::from("exec ");
    let text = program.to_string_lossy();
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+,".contains(&byte));
    if plain {
        command.push(program);
    } else {
        command.push(format!("'{}'", text.replace('\'', r"'\''")));
    }
    command.push(" node");
    command
}

/// The state after the job has failed.
struct Failed {
    code: u8,
    deadline: Instant,
}

struct Running<'a> {
    job: &'a Job,
    hosts: &'a Hosts,
    directory: OsString,
    nodes: Vec<Node>,
    signals: Signals,
    failed: Option<Failed>,
    /// How many bytes of its input may be sent to rank 0 now.
    window: usize,
    /// Whether standard input is still open.
    input: bool,
}

impl Running<'_> {
    fn supervise(mut self) -> u8 {
        let beat = self.hosts.lost_after / 4;
        let mut next_beat = Instant::now() + beat;
        while !self.nodes.iter().all(|node| node.ended) {
            self.wait(next_beat);
            if Instant::now() >= next_beat {
                next_beat = Instant::now() + beat;
                self.nodes.iter_mut().for_each(|node| node.send(kind::ALIVE, &[]));
            }
            while let Some(signal) = self.signals.next() {
                self.take(signal);
            }
            for index in 0..self.nodes.len() {
                self.nodes[index].flush();
                self.hear(index);
            }
            self.reap();
            self.give_tasks();
            self.feed();
            if self.failed.as_ref().is_some_and(|failed| Instant::now() >= failed.deadline) {
                self.cut_all();
            }
        }
        self.failed.map_or(0, |failed| failed.code)
    }

    /// Waits for an event.
    fn wait(&self, next_beat: Instant) {
        let mut polls = vec![readable(self.signals.as_raw_fd())];
        for node in &self.nodes {
            polls.extend(node.from.as_ref().map(|from| readable(from.as_raw_fd())));
            polls.extend(node.errors.as_ref().map(|errors| readable(errors.as_raw_fd())));
            let waiting = node.into.as_ref().filter(|_| !node.pending.is_empty());
            polls.extend(waiting.map(|i| libc::pollfd { fd: i.as_raw_fd(), events: libc::POLLOUT, revents: 0 }));
        }
        if self.takes_input() {
            polls.push(readable(libc::STDIN_FILENO));
        }
        let patience = self.failed.as_ref().map(|failed| failed.deadline);
        let timeout = wait_until(patience.into_iter().chain([next_beat]).min());
        // SAFETY: the pointer and the count are those of the array, which lives until the call returns.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
    }

    fn takes_input(&self) -> bool {
        self.input && self.window > 0 && self.nodes[0].has_task
    }

    /// Passes on a signal, and applies its effect to the launcher.
    fn take(&mut self, signal: i32) {
        if signal == libc::SIGCHLD {
            return;
        }
        let ends = matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP);
        if ends && self.failed.is_none() && self.nodes.iter().any(|node| !node.has_task) {
            say(&format!("{} before all ranks were started", signals::name(signal)));
            return self.fail((128 + signal) as u8);
        }
        self.nodes.iter_mut().filter(|node| node.has_task).for_each(|node| node.send(kind::SIGNAL, &[signal as u8]));
        if signal == libc::SIGTSTP {
            // SAFETY: the call accesses no memory of this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }

    /// Reads the output of a helper and its ssh process.
    fn hear(&mut self, index: usize) {
        let mut bytes = [0; PIECE];
        let node = &mut self.nodes[index];
        if let Some(errors) = &mut node.errors
            && matches!(errors.forward(&mut bytes), Forwarded::End | Forwarded::Lost(_))
        {
            node.errors = None;
        }
        let Some(from) = &mut node.from else { return };
        match from.read(&mut bytes) {
            Ok(0) => node.from = None,
            Ok(read) => node.decoder.push(&bytes[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            Err(_) => node.from = None,
        }
        loop {
            match self.nodes[index].decoder.next() {
                Ok(Some((kind, payload))) => self.understand(index, kind, &payload),
                Ok(None) => return,
                Err(error) => {
                    let node = &mut self.nodes[index];
                    say(&format!("host {}: {error}", node.name()));
                    node.from = None;
                    node.cut();
                    return self.fail(1);
                }
            }
        }
    }

    fn understand(&mut self, index: usize, kind: u8, payload: &[u8]) {
        let node = &mut self.nodes[index];
        match (kind, payload) {
            (kind::HELLO, _) => match serde_json::from_slice::<Hello>(payload) {
                Ok(hello) if hello.version == env!("CARGO_PKG_VERSION") => node.port = Some(hello.port),
                hello => {
                    let its = hello.map_or("another".into(), |hello| hello.version);
                    let program = self.hosts.program.display();
                    let own = env!("CARGO_PKG_VERSION");
                    say(&format!("host {}: {program} is version {its} there, and {own} here", node.name()));
                    node.cut();
                    self.fail(1);
                }
            },
            (kind::OUTPUT, bytes) => match Target::Stdout.write(bytes) {
                Ok(()) => {}
                // The reader of the output has ended (`| head`).
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.fail(crate::UNREAD),
                Err(error) => {
                    if self.failed.is_none() {
                        say(&Target::Stdout.lost(&error));
                    }
                    self.fail(crate::FAILED);
                }
            },
            (kind::ERROR, bytes) => {
                let _ = Target::Stderr.write(bytes);
            }
            (kind::TAKEN, &[a, b, c, d]) => {
                self.window = (self.window + u32::from_le_bytes([a, b, c, d]) as usize).min(INPUT_WINDOW);
            }
            (kind::DONE, &[code]) => {
                node.done = Some(code);
                if code != 0 {
                    self.fail(code);
                }
            }
            _ => {}
        }
    }

    /// Sends their part of the job to all helpers that have none, once the address of rank 0's store is known.
    fn give_tasks(&mut self) {
        let Some(port) = self.nodes[0].port else { return };
        if self.failed.is_some() {
            return;
        }
        let address = self.hosts.master.clone().unwrap_or_else(|| self.nodes[0].host.address().to_owned());
        let size = self.nodes.iter().map(|node| node.ranks).sum();
        for node in self.nodes.iter_mut().filter(|node| !node.has_task && node.port.is_some()) {
            let master = Master { address: address.clone(), port };
            let host = Some((node.host.name.clone(), master));
            let part = Part { first_rank: node.first_rank, ranks: node.ranks, size, host, input: self.job.part.input };
            let job = Job { part, ..self.job.clone() };
            let task = Task { job, directory: self.directory.clone(), lost_after: self.hosts.lost_after };
            // Only maps whose keys are not strings cannot be serialized.
            let Ok(task) = frame::encode_value(kind::TASK, &task) else { continue };
            node.pending.extend(task);
            node.flush();
            node.has_task = true;
        }
    }

    /// Forwards input to rank 0.
    fn feed(&mut self) {
        let mut poll = readable(libc::STDIN_FILENO);
        // SAFETY: `poll` is one entry, as the count says, and lives until the call returns.
        if !self.takes_input() || unsafe { libc::poll(&mut poll, 1, 0) } <= 0 {
            return;
        }
        let mut bytes = [0; PIECE];
        let length = self.window.min(PIECE);
        // The end of the input, or an error, ends rank 0's input.
        let read = super::node::read(&mut bytes[..length]).unwrap_or(0);
        self.window -= read;
        self.input = read > 0;
        self.nodes[0].send(kind::INPUT, &bytes[..read]);
    }

    /// Collects the ssh processes that have ended, and reports those that have ended too early.
    fn reap(&mut self) {
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            let mut status = 0;
            if node.reaped {
                continue;
            }
            // SAFETY: the call writes an int to `status`.
            if unsafe { libc::waitpid(node.ssh.pid, &mut status, libc::WNOHANG) } == node.ssh.pid {
                node.reaped = true;
                node.ssh.outcome = Some(Outcome::from_wait_status(status));
                // A process that ssh has started may keep the pipes open.
                let mut bytes = [0; PIECE];
                if let Some(errors) = &mut node.errors {
                    // If standard error cannot be written, the message is lost.
                    let _ = errors.drain(&mut bytes);
                }
            }
        }
        for index in 0..self.nodes.len() {
            self.hear_out(index);
        }
    }

    /// Reads the last output of a helper whose ssh process has ended.
    fn hear_out(&mut self, index: usize) {
        if !self.nodes[index].reaped || self.nodes[index].ended {
            return;
        }
        while let Some(from) = &self.nodes[index].from {
            let mut poll = readable(from.as_raw_fd());
            // SAFETY: `poll` is one entry, as the count says, and lives until the call returns.
            if unsafe { libc::poll(&mut poll, 1, 0) } <= 0 {
                self.nodes[index].from = None;
            }
            self.hear(index);
        }
        let node = &mut self.nodes[index];
        node.ended = true;
        if node.done.is_some() || self.failed.is_some() {
            return;
        }
        let outcome = node.ssh.outcome.map_or(String::new(), |outcome| outcome.to_string());
        let ssh = &self.hosts.ssh[0];
        let program = self.hosts.program.display();
        let why = match (node.has_task, node.ssh.outcome) {
            (true, _) => format!("the connection is lost: {ssh} {outcome}; its ranks end"),
            (false, Some(Outcome::Exited(126 | 127))) => {
                format!("cannot run {program} there (--remote-path): {ssh} {outcome}")
            }
            (false, _) => format!("cannot start ranks there: {ssh} {outcome}"),
        };
        let said = node.decoder.before_greeting().filter(|said| !said.is_empty());
        let said = said.map_or(String::new(), |said| format!(": {said}"));
        say(&format!("host {}: {why}{said}", node.name()));
        self.fail(1);
    }

    /// Ends the job with the exit status `code`, unless it has already failed.
    fn fail(&mut self, code: u8) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(Failed { code, deadline: Instant::now() + self.job.grace + HELPERS_END_WITHIN });
        let others = self.nodes.iter().filter(|node| node.done.is_none() && node.has_task && !node.reaped).count();
        if others > 0 && code != crate::UNREAD {
            say(&format!("ending the ranks of {others} other host{}", if others == 1 { "" } else { "s" }));
        }
        for node in &mut self.nodes {
            if node.has_task {
                node.send(kind::END, &[]);
            } else {
                node.cut();
            }
        }
    }

    /// Disconnects from helpers that do not end in time.
    fn cut_all(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| !node.ended) {
            if !node.reaped {
                say(&format!("host {} did not end in time; closing the connection to it", node.name()));
            }
            node.cut();
            node.from = None;
        }
        if let Some(failed) = &mut self.failed {
            failed.deadline = Instant::now() + HELPERS_END_WITHIN;
        }
    }
}

fn say(message: &str) {
    Target::Stderr.say(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reaches_a_shell_as_it_is() {
        let of = |program: &str| remote_command(&program.into()).into_string().unwrap();
        assert_eq!(of("/opt/gloo_rs-1.0/bin/gloo-rs"), "exec /opt/gloo_rs-1.0/bin/gloo-rs node");
        for program in ["/a b/x", "/it's/$HOME/`x`", "/ü;&"] {
            let command = of(program).replace("exec ", "printf %s ").replace(" node", "");
            let output = Command::new("sh").args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), program);
        }
    }
}
