//! Jobs on several hosts: a [connection](super::connection) to each host by ssh, which runs a helper there
//! ([`super::node`]). As on one host, the loop waits for nothing but events.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::connection::Node;
use super::frame::{self, Hello, INPUT_WINDOW_BYTES, Task, kind};
use super::hosts::Hosts;
use super::job::{Job, Limit, Master, Part};
use super::output::{Outputs, Target};
use super::rank::{Forwarded, Outcome};
use super::signals::{self, Signals};
use super::{Ended, readable, wait_until};
use crate::Failure;
use crate::parse::counted;
use gloo_rs::net::ports::PORT_RANGE;

/// Time that the helpers may take beyond `--grace` to end their ranks.
const HELPERS_END_WITHIN: Duration = Duration::from_secs(10);
/// The maximum number of bytes of one read.
const READ_BYTES: usize = 16 << 10;

/// Runs `job` on `hosts` until it ends, as [`super::launch`] does on this host.
pub fn launch(job: &Job, hosts: &Hosts) -> Result<Ended, Failure> {
    let here = |what: String, error: io::Error| Failure::from(format!("{what}: {error}"));
    let signals = Signals::catch().map_err(|error| here("cannot receive signals".into(), error))?;
    let directory =
        std::env::current_dir().map_err(|error| here("cannot determine the current directory".into(), error))?.into();
    let mut running = Running {
        job,
        hosts,
        directory,
        nodes: Vec::new(),
        outputs: Outputs::new(),
        signals,
        start_deadline: Instant::now() + hosts.lost_after,
        next_beat: Instant::now() + hosts.lost_after / 4,
        stop_signal: None,
        failed: None,
        by_itself: false,
        limit: job.limit,
        window: INPUT_WINDOW_BYTES,
        input: job.part.input,
    };
    let mut first_rank = 0;
    for place in &hosts.hosts {
        // Rank 0's helper chooses the port before it knows the job.
        let ports = job.variable(PORT_RANGE).filter(|range| first_rank == 0 && !range.is_empty());
        let ports = ports.map(|range| range.to_string_lossy().into_owned());
        match Node::start(place, first_rank, ports.as_deref(), hosts, running.signals.mask_before()) {
            Ok(node) => running.nodes.push(node),
            Err(error) => {
                running.nodes.iter_mut().for_each(Node::cut);
                return Err(here(
                    format!("cannot start {}", hosts.command(&place.0).join(OsStr::new(" ")).display()),
                    error,
                ));
            }
        }
        first_rank += place.1;
    }
    Ok(running.supervise())
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
    outputs: Outputs,
    signals: Signals,
    /// When all helpers must have started.
    start_deadline: Instant,
    /// When helpers get the next sign of life.
    next_beat: Instant,
    /// The first signal that asked the job to end, and until when who reads the output may hold it up.
    stop_signal: Option<(i32, Instant)>,
    failed: Option<Failed>,
    /// Whether that is because ranks have, or the connection to a host whose ranks had been started.
    by_itself: bool,
    /// Until it is reached.
    limit: Option<Limit>,
    /// How many bytes of its input may be sent to rank 0 now.
    window: usize,
    /// Whether standard input is still open.
    input: bool,
}

impl Running<'_> {
    /// Waits until the job has ended and the output is written.
    fn supervise(mut self) -> Ended {
        while !self.nodes.iter().all(|node| node.ended) {
            self.turn(None);
        }
        let code = self.deliver();
        Ended { code, by_itself: self.by_itself && self.stop_signal.is_none() }
    }

    /// Waits until the output is written, and returns the exit status.
    fn deliver(&mut self) -> u8 {
        let code = |failed: &Option<Failed>, otherwise| failed.as_ref().map_or(otherwise, |failed| failed.code);
        // After a signal, who reads the output has as much time as ranks have to end, as on one host.
        let mut deadline = None;
        loop {
            self.write();
            if self.outputs.is_empty() {
                return code(&self.failed, 0);
            }
            if let Some((signal, _)) = self.stop_signal {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.job.grace);
                if Instant::now() >= deadline {
                    return code(&self.failed, (128 + signal) as u8);
                }
            }
            self.turn(deadline);
        }
    }

    /// Waits for an event, at most until `deadline`, and handles all that have come.
    fn turn(&mut self, deadline: Option<Instant>) {
        self.wait(deadline);
        if Instant::now() >= self.next_beat {
            self.next_beat = Instant::now() + self.hosts.lost_after / 4;
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
        self.check_deadlines();
        self.write();
    }

    /// Waits for an event, at most until `deadline`.
    fn wait(&self, deadline: Option<Instant>) {
        let mut polls = vec![readable(self.signals.as_raw_fd())];
        polls.extend(self.outputs.polls());
        let errors_have_room = self.outputs.has_room(Target::Stderr);
        for node in &self.nodes {
            let from = node.from.as_ref().filter(|_| !node.is_held_up(&self.outputs));
            let errors = node.errors.as_ref().filter(|_| errors_have_room);
            polls.extend(from.map(|from| readable(from.as_raw_fd())));
            polls.extend(errors.map(|errors| readable(errors.as_raw_fd())));
            let waiting = node.into.as_ref().filter(|_| !node.pending.is_empty());
            polls.extend(waiting.map(|i| libc::pollfd { fd: i.as_raw_fd(), events: libc::POLLOUT, revents: 0 }));
        }
        if self.takes_input() {
            polls.push(readable(libc::STDIN_FILENO));
        }
        let stop = self.stop_signal.filter(|_| self.is_held_up()).map(|(_, deadline)| deadline);
        let patience = self.failed.as_ref().map(|failed| failed.deadline);
        let start = self.silent().map(|_| self.start_deadline);
        let limit = self.limit.map(|limit| limit.end);
        let deadlines = [Some(self.next_beat), start, stop, patience, limit, deadline];
        let timeout = wait_until(deadlines.into_iter().flatten().min());
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
            self.say(&format!("{} before all ranks were started", signals::name(signal)));
            return self.fail((128 + signal) as u8);
        }
        if ends {
            // Ranks get SIGTERM after --grace, and SIGKILL after as much time again.
            self.stop_signal.get_or_insert((signal, Instant::now() + 2 * self.job.grace));
        }
        self.nodes.iter_mut().filter(|node| node.has_task).for_each(|node| node.send(kind::SIGNAL, &[signal as u8]));
        if signal == libc::SIGTSTP {
            // SAFETY: the call accesses no memory of this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }

    /// Reads the output of a helper and its ssh process, as far as there is room for it.
    fn hear(&mut self, index: usize) {
        let mut bytes = [0; READ_BYTES];
        let node = &mut self.nodes[index];
        if let Some(errors) = &mut node.errors
            && self.outputs.has_room(Target::Stderr)
            && matches!(errors.forward(&mut bytes, &mut self.outputs), Forwarded::End)
        {
            node.errors = None;
        }
        self.decode(index);
        let node = &mut self.nodes[index];
        if node.is_held_up(&self.outputs) {
            return;
        }
        let Some(from) = &mut node.from else { return };
        match from.read(&mut bytes) {
            Ok(0) => node.from = None,
            Ok(read) => node.decoder.push(&bytes[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            Err(_) => node.from = None,
        }
        self.decode(index);
    }

    /// Executes the frames that have come, up to one that is held up.
    fn decode(&mut self, index: usize) {
        while !self.nodes[index].is_held_up(&self.outputs) {
            let node = &mut self.nodes[index];
            match node.decoder.next() {
                Ok(Some((kind, payload))) => self.understand(index, kind, &payload),
                Ok(None) => return,
                Err(error) => {
                    let message = format!("host {}: {error}", node.name());
                    node.abandon();
                    self.say(&message);
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
                    let version = hello.map_or("another".into(), |hello| hello.version);
                    let program = &self.hosts.program;
                    let own = env!("CARGO_PKG_VERSION");
                    let message = format!("host {}: {program} is version {version} there, and {own} here", node.name());
                    node.cut();
                    self.say(&message);
                    self.fail(1);
                }
            },
            (kind::OUTPUT, bytes) => self.outputs.push(Target::Stdout, bytes),
            (kind::ERROR, bytes) => self.outputs.push(Target::Stderr, bytes),
            (kind::TAKEN, &[a, b, c, d]) => {
                self.window = (self.window + u32::from_le_bytes([a, b, c, d]) as usize).min(INPUT_WINDOW_BYTES);
            }
            (kind::DONE, &[code]) => {
                node.done = Some(code);
                if code != 0 {
                    self.by_itself |= self.failed.is_none();
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
            match frame::encode_value(kind::TASK, &task) {
                Ok(frame) => node.pending.extend(frame),
                Err(error) => {
                    self.say(&format!("cannot send the job to other hosts: {error}"));
                    return self.fail(1);
                }
            }
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
        let mut bytes = [0; READ_BYTES];
        let length = self.window.min(READ_BYTES);
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
                let mut bytes = [0; READ_BYTES];
                if let Some(errors) = &mut node.errors {
                    errors.drain(&mut bytes, &mut self.outputs);
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
        while !self.nodes[index].is_held_up(&self.outputs)
            && let Some(from) = &self.nodes[index].from
        {
            let mut poll = readable(from.as_raw_fd());
            // SAFETY: `poll` is one entry, as the count says, and lives until the call returns.
            if unsafe { libc::poll(&mut poll, 1, 0) } <= 0 {
                self.nodes[index].from = None;
            }
            self.hear(index);
        }
        let node = &mut self.nodes[index];
        if node.is_held_up(&self.outputs) {
            return;
        }
        node.ended = true;
        if node.done.is_some() || self.failed.is_some() {
            return;
        }
        let outcome = node.ssh.outcome.map_or(String::new(), |outcome| outcome.to_string());
        let ssh = &node.by;
        let program = &self.hosts.program;
        let had_task = node.has_task;
        let why = match (had_task, node.ssh.outcome) {
            (true, _) => format!("the connection is lost: {ssh} {outcome}; its ranks end"),
            (false, Some(Outcome::Exited(126 | 127))) => {
                format!("cannot run {program} there (--remote-path): {ssh} {outcome}")
            }
            (false, _) => format!("cannot start ranks there: {ssh} {outcome}"),
        };
        let said = node.decoder.before_greeting().filter(|said| !said.is_empty());
        let said = said.map_or(String::new(), |said| format!(": {said}"));
        let message = format!("host {}: {why}{said}", node.name());
        self.say(&message);
        self.by_itself = had_task;
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
            self.say(&format!("ending the ranks of {}", counted(others, "other host")));
        }
        for node in &mut self.nodes {
            if node.has_task {
                node.send(kind::END, &[]);
            } else {
                node.cut();
            }
        }
    }

    /// A host whose helper is waited for.
    fn silent(&self) -> Option<&Node> {
        self.nodes.iter().find(|node| node.port.is_none() && self.failed.is_none())
    }

    /// Whether who does not read the output holds up a helper.
    fn is_held_up(&self) -> bool {
        self.nodes.iter().any(|node| node.is_held_up(&self.outputs))
    }

    /// Ends the job if a helper does not start in time. Drops output that is not read if a signal has asked the job to
    /// end, and disconnects from helpers that do not end in time after the job has failed.
    fn check_deadlines(&mut self) {
        let now = Instant::now();
        if let Some(node) = self.silent().filter(|_| now >= self.start_deadline) {
            let (name, seconds) = (node.name(), self.hosts.lost_after.as_secs_f64());
            let program = &self.hosts.program;
            self.say(&format!("host {name}: no answer from {program} node after {seconds} s (--lost-after)"));
            self.fail(1);
        }
        if let Some(Limit { time, .. }) = self.limit.take_if(|limit| limit.is_over())
            && self.failed.is_none()
            && !self.nodes.iter().all(|node| node.ended)
        {
            self.say(&format!("the job still runs after {} s (--timeout); ending it", time.as_secs_f64()));
            self.fail(crate::TIMED_OUT);
        }
        let mut held_up = self.is_held_up();
        if held_up && self.stop_signal.is_some_and(|(_, deadline)| now >= deadline) {
            self.outputs.discard_full();
            held_up = false;
        }
        let Some(failed) = self.failed.as_mut().filter(|failed| now >= failed.deadline) else { return };
        failed.deadline = now + HELPERS_END_WITHIN;
        if held_up {
            return;
        }
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if node.ended {
                continue;
            }
            let late = (!node.reaped).then(|| node.name());
            node.abandon();
            if let Some(name) = late {
                self.say(&format!("host {name} did not end in time; closing the connection to it"));
            }
        }
    }

    /// Writes the output as far as that is possible without waiting.
    fn write(&mut self) {
        while let Err((target, error)) = self.outputs.flush() {
            match target {
                // Messages are lost, the job goes on.
                Target::Stderr => {}
                // The reader of the output has ended (`| head`).
                _ if error.kind() == io::ErrorKind::BrokenPipe => self.fail(crate::UNREAD),
                _ => {
                    if self.failed.is_none() {
                        self.say(&target.lost(&error));
                    }
                    self.fail(crate::FAILED);
                }
            }
        }
    }

    fn say(&mut self, message: &str) {
        self.outputs.say(Target::Stderr, message);
    }
}
