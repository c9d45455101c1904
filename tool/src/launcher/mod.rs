//! Starts the ranks of a job and waits until the last has ended: here those of this host; in [`remote`] through helpers
//! on other hosts ([`node`]), each of which acts there as this launcher would.
//!
//! One thread runs a poll loop over the ranks' output and the signals, and waits for nothing else ([`output`]). A rank
//! is killed when the thread that started it ends (`PR_SET_PDEATHSIG`), so this must be the thread that lives longest.

mod authority;
pub mod binding;
mod connection;
mod frame;
pub mod hosts;
pub mod job;
mod log;
pub mod node;
mod output;
mod port;
mod prefix;
mod rank;
pub mod remote;
mod signals;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::parse::counted;
use gloo_rs::net::ports::PORT_RANGE;
use job::{Job, Limit, Master};
use node::Control;
use output::{Outputs, Target};
use rank::{Forwarded, Outcome, Rank, Stream};
use signals::Signals;

/// Time for a process to end after SIGKILL; it may have to release much memory.
const KILLED_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How a job has ended.
pub struct Ended {
    /// The exit status: that of the rank that failed first, 128 plus the signal if one killed it, or 0.
    pub code: u8,
    /// Whether it has failed by itself, so that starting the ranks anew may help: no signal and no time limit has ended
    /// it.
    pub by_itself: bool,
}

/// Runs `job` until it ends. Prints to standard error which rank failed and how. Fails if the job could not be started.
pub fn launch(job: &Job) -> Result<Ended, Failure> {
    start(job, None)
}

/// Sets an attribute of this process that is a number.
fn set(attribute: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    // The kernel reads five arguments, four of them unsigned long, whatever is passed.
    let unused: libc::c_ulong = 0;
    // SAFETY: the call accesses no memory of this process.
    match unsafe { libc::prctl(attribute, value, unused, unused, unused) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Like [`launch`]; a helper has the connection to its launcher in `control`.
fn start(job: &Job, control: Option<Control>) -> Result<Ended, Failure> {
    let here = |what: &str, error: io::Error| Failure::from(format!("{what}: {error}"));
    let signals = Signals::catch().map_err(|error| here("cannot receive signals", error))?;
    // Adopts orphans of the ranks, to know when all processes of a rank's group have ended.
    set(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(|error| here("cannot adopt orphans", error))?;
    let master = match &job.part.host {
        Some((_, master)) => master.clone(),
        None => {
            let port = port::free(Ipv4Addr::LOCALHOST, job.variable(PORT_RANGE));
            let port = port.map_err(|error| here("cannot find a free port on 127.0.0.1", error))?;
            Master { address: "127.0.0.1".into(), port }
        }
    };
    let sets = binding::sets(job.bind, job.part.ranks)?;
    let mut logs = job.logs()?.into_iter();
    let mut running = Running {
        ranks: Vec::new(),
        streams: Vec::new(),
        outputs: Outputs::new(),
        signals,
        stop_signal: None,
        failed: None,
        by_itself: false,
        limit: job.limit,
        grace: job.grace,
        control,
        first_rank: job.part.first_rank,
        host: job.part.host.as_ref().map(|(host, _)| host.clone()),
    };
    for index in 0..job.part.ranks {
        let cores = sets.as_ref().map(|sets| sets[index]);
        if let Err(error) = running.add(job, index, &master, cores, logs.next()) {
            running.abandon();
            return Err(Failure {
                message: format!(
                    "cannot start rank {}: {}: {error}",
                    job.part.first_rank + index,
                    job.program.display()
                ),
                code: if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 },
            });
        }
    }
    Ok(running.supervise())
}

/// The state after the job has failed.
struct Failed {
    code: u8,
    /// When the next signal is sent.
    deadline: Instant,
    /// Whether the ranks have got SIGKILL, not only SIGTERM.
    killed: bool,
}

struct Running {
    ranks: Vec<Rank>,
    /// With the rank that each belongs to.
    streams: Vec<(usize, Stream)>,
    outputs: Outputs,
    signals: Signals,
    /// The signal that asked the ranks to end, and until when they may take.
    stop_signal: Option<(i32, Instant)>,
    failed: Option<Failed>,
    /// Whether that is because a rank has.
    by_itself: bool,
    /// Until it is reached.
    limit: Option<Limit>,
    grace: Duration,
    /// The launcher on another host, if this is its helper.
    control: Option<Control>,
    first_rank: usize,
    /// The name of this host, if the job is on several hosts.
    host: Option<String>,
}

impl Running {
    /// Adds a rank that has been started.
    fn add(
        &mut self,
        job: &Job,
        index: usize,
        master: &Master,
        cores: Option<libc::cpu_set_t>,
        logs: Option<log::Pair>,
    ) -> io::Result<()> {
        let mut command = job.command(index, master, self.control.is_some());
        let (output, errors) = logs.map_or((None, None), |logs| (Some(logs.output), Some(logs.errors)));
        let (rank, mut child) = Rank::start(&mut command, self.signals.mask_before(), cores)?;
        self.ranks.push(rank);
        let prefix = if job.prefix { format!("[{}] ", self.first_rank + index) } else { String::new() };
        if let Some(pipe) = child.stdout.take() {
            let target = if self.control.is_some() { Target::Frames(frame::kind::OUTPUT) } else { Target::Stdout };
            self.streams.push((index, Stream::new(pipe.into(), target, &prefix, output)?));
        }
        if let Some(pipe) = child.stderr.take() {
            self.streams.push((index, Stream::new(pipe.into(), self.errors(), &prefix, errors)?));
        }
        if let (Some(control), Some(pipe)) = (&mut self.control, child.stdin.take()) {
            control.feed(pipe.into())?;
        }
        Ok(())
    }

    /// Waits until the ranks have ended and, if they fail, also the processes that they have started; and until the
    /// output is written.
    fn supervise(mut self) -> Ended {
        let mut buffer = vec![0; 64 << 10];
        while !self.ended() {
            let stop = self.stop_signal.map(|(_, deadline)| deadline);
            self.turn(self.failed.as_ref().map_or(stop, |failed| Some(failed.deadline)), &mut buffer);
            if self.patience_ended() {
                break;
            }
        }
        while let Some((_, mut stream)) = self.streams.pop() {
            stream.drain(&mut buffer, &mut self.outputs);
        }
        if self.control.is_some() {
            self.outputs.push(Target::Frames(frame::kind::DONE), &[self.code()]);
        }
        let code = self.deliver(&mut buffer);
        Ended { code, by_itself: self.by_itself && self.stop_signal.is_none() }
    }

    /// Waits until the output is written, and returns the exit status. If a signal has asked the job to end, who reads
    /// the output has as much time as ranks have to end. A helper waits as long as its launcher lives.
    fn deliver(&mut self, buffer: &mut [u8]) -> u8 {
        let mut deadline = None;
        loop {
            self.write();
            if self.outputs.is_empty() {
                return self.code();
            }
            if let Some((signal, _)) = self.stop_signal.filter(|_| self.control.is_none()) {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.grace);
                if Instant::now() >= deadline {
                    return self.failed.as_ref().map_or((128 + signal) as u8, |failed| failed.code);
                }
            }
            self.turn(deadline, buffer);
        }
    }

    fn code(&self) -> u8 {
        self.failed.as_ref().map_or(0, |failed| failed.code)
    }

    fn ended(&self) -> bool {
        let ranks_ended = self.ranks.iter().all(|rank| rank.outcome.is_some());
        ranks_ended && (self.failed.is_none() || self.ranks.iter().all(|rank| !rank.group_lives()))
    }

    /// Waits for an event, at most until `deadline`, and handles all that have come.
    fn turn(&mut self, deadline: Option<Instant>, buffer: &mut [u8]) {
        let silence = self.control.as_ref().and_then(Control::deadline);
        let limit = self.limit.map(|limit| limit.end);
        let timeout = wait_until(deadline.into_iter().chain(silence).chain(limit).min());
        // A stream is not read while there is no room for it; poll ignores the number.
        let descriptor = |stream: &Stream| if self.outputs.has_room(stream.target) { stream.as_raw_fd() } else { -1 };
        let streams = self.streams.iter().map(|(_, stream)| descriptor(stream));
        let mut polls: Vec<_> = streams.chain([self.signals.as_raw_fd()]).map(readable).collect();
        polls.extend(self.control.iter().flat_map(Control::polls).chain(self.outputs.polls()));
        // SAFETY: the pointer and the count are those of the vector. If the call is interrupted, every `revents` stays
        // zero.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
        let mut index = 0;
        self.streams.retain_mut(|(_, stream)| {
            let ready = polls[index].revents != 0;
            index += 1;
            !ready || !matches!(stream.forward(buffer, &mut self.outputs), Forwarded::End)
        });
        while let Some(signal) = self.signals.next() {
            self.take(signal);
        }
        self.listen();
        self.reap(buffer);
        self.ask_again();
        self.check_limit();
        self.write();
    }

    /// Writes the output as far as that is possible without waiting.
    fn write(&mut self) {
        while let Err((target, error)) = self.outputs.flush() {
            self.lose(target, &error);
        }
        for why in self.outputs.lost_logs() {
            self.say(&why);
            if self.failed.is_none() {
                self.end_all(crate::FAILED);
            }
        }
    }

    /// Handles an error of writing the ranks' output to `target`.
    fn lose(&mut self, target: Target, error: &io::Error) {
        // If the reader has ended (`| head`), the ranks get SIGPIPE, as they would without a launcher. A helper whose
        // launcher has ended detects this when it reads.
        self.streams.retain(|(_, stream)| !self.outputs.is_lost(stream.target));
        if error.kind() == io::ErrorKind::BrokenPipe || self.control.is_some() {
            return;
        }
        self.say(&target.lost(error));
        if self.failed.is_none() {
            self.end_all(crate::FAILED);
        }
    }

    /// Passes on a signal, and applies its effect to the launcher.
    fn take(&mut self, signal: i32) {
        if signal == libc::SIGCHLD {
            return;
        }
        self.pass_on(signal);
        if signal == libc::SIGTSTP {
            // SAFETY: the call accesses no memory of this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }

    /// Sends `signal` to the ranks. If it asks them to end, their time limit starts.
    fn pass_on(&mut self, signal: i32) {
        self.signal_ranks(signal);
        let before = self.stop_signal.map(|(signal, _)| signal);
        let first = before.is_none() || signal == libc::SIGTERM && before != Some(libc::SIGTERM);
        if first && matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP) {
            self.stop_signal = Some((signal, Instant::now() + self.grace));
        }
    }

    /// Ends the ranks that still run after a signal has asked them to end.
    fn ask_again(&mut self) {
        let due = self.stop_signal.filter(|(_, deadline)| self.failed.is_none() && Instant::now() >= *deadline);
        let Some((signal, deadline)) = due else { return };
        let left = self.ranks.iter().filter(|rank| rank.outcome.is_none()).count();
        if left == 0 {
            return;
        }
        let (name, seconds) = (signals::name(signal), self.grace.as_secs_f64());
        self.say(&format!("{} still running {seconds} s after {name}; ending them", counted(left, "rank")));
        self.end_all((128 + signal) as u8);
        // After SIGTERM they have had their time.
        if let Some(failed) = self.failed.as_mut().filter(|_| signal == libc::SIGTERM) {
            failed.deadline = deadline;
        }
    }

    /// Ends the ranks that still run when the job's time is over.
    fn check_limit(&mut self) {
        let Some(Limit { time, .. }) = self.limit.take_if(|limit| limit.is_over()) else { return };
        let left = self.ranks.iter().filter(|rank| rank.outcome.is_none()).count();
        if left > 0 && self.failed.is_none() {
            let seconds = time.as_secs_f64();
            self.say(&format!("{} still running after {seconds} s (--timeout); ending them", counted(left, "rank")));
            self.end_all(crate::TIMED_OUT);
        }
    }

    fn signal_ranks(&self, signal: i32) {
        for rank in self.ranks.iter().filter(|rank| rank.outcome.is_none() || rank.group_lives()) {
            rank.signal_group(signal);
        }
    }

    /// Waits for processes that have ended, and ends the job if a rank failed.
    fn reap(&mut self, buffer: &mut [u8]) {
        let mut failures: Vec<(usize, Outcome)> = Vec::new();
        loop {
            let mut status = 0;
            // SAFETY: the call writes an int to `status`.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            if pid <= 0 {
                break;
            }
            // Other processes are orphans of a rank.
            let Some(rank) = self.ranks.iter().position(|rank| rank.pid == pid && rank.outcome.is_none()) else {
                continue;
            };
            let outcome = Outcome::from_wait_status(status);
            self.ranks[rank].outcome = Some(outcome);
            let own = self.streams.iter_mut().filter(|(of, _)| *of == rank);
            own.for_each(|(_, stream)| stream.drain(buffer, &mut self.outputs));
            if outcome != Outcome::Exited(0) {
                failures.push((rank, outcome));
            }
        }
        // A killed rank is more likely the cause than one that exited; otherwise the order is not known.
        failures.sort_by_key(|(_, outcome)| matches!(outcome, Outcome::Exited(_)));
        if self.failed.is_none() && !failures.is_empty() {
            self.fail(&failures);
        }
    }

    fn fail(&mut self, failures: &[(usize, Outcome)]) {
        // Ranks that end because the reader of their output has ended have not failed.
        let code = failures[0].1.code();
        if code == crate::UNREAD && crate::unread() {
            return self.end_all(code);
        }
        self.by_itself = true;
        for &(rank, outcome) in failures {
            self.say(&format!("{} {outcome}", self.name(rank)));
        }
        let left = self.ranks.iter().filter(|rank| rank.outcome.is_none()).count();
        if left > 0 {
            self.say(&format!("ending the other ranks ({left} still running)"));
        }
        self.end_all(code);
    }

    /// Sends SIGTERM to the ranks and starts their time limit.
    fn end_all(&mut self, code: u8) {
        self.failed = Some(Failed { code, deadline: Instant::now() + self.grace, killed: false });
        self.signal_ranks(libc::SIGTERM);
        // A stopped process would not handle the signal.
        self.signal_ranks(libc::SIGCONT);
    }

    /// Kills processes that have not ended in time. Returns whether to give up because SIGKILL had no effect.
    fn patience_ended(&mut self) -> bool {
        let Some(failed) = self.failed.as_mut().filter(|failed| Instant::now() >= failed.deadline) else {
            return false;
        };
        failed.deadline = Instant::now() + KILLED_ENDS_WITHIN;
        let killed_before = std::mem::replace(&mut failed.killed, true);
        for index in 0..self.ranks.len() {
            if self.ranks[index].outcome.is_some() {
                continue;
            }
            let what = if killed_before {
                "has not ended since SIGKILL; leaving it".to_owned()
            } else {
                format!("did not end within {} s of SIGTERM; killing it", self.grace.as_secs_f64())
            };
            self.say(&format!("{} {what}", self.name(index)));
        }
        self.signal_ranks(libc::SIGKILL);
        killed_before
    }

    /// Kills all started processes at once.
    fn abandon(&mut self) {
        for rank in &self.ranks {
            rank.signal_group(libc::SIGKILL);
            let mut status = 0;
            // SAFETY: the call writes an int to `status`.
            while unsafe { libc::waitpid(rank.pid, &mut status, 0) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }

    /// Where messages go: to this process's standard error, or to the launcher's.
    fn errors(&self) -> Target {
        if self.control.is_some() { Target::Frames(frame::kind::ERROR) } else { Target::Stderr }
    }

    /// Prints a message, on this host or through the launcher.
    fn say(&mut self, message: &str) {
        self.outputs.say(self.errors(), message);
    }

    fn name(&self, index: usize) -> String {
        let on = self.host.as_ref().map_or(String::new(), |host| format!(" on {host}"));
        format!("rank {} (pid {}{on})", self.first_rank + index, self.ranks[index].pid)
    }
}

fn readable(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Converts a deadline to a timeout for `poll`.
fn wait_until(deadline: Option<Instant>) -> i32 {
    deadline
        .map_or(-1, |deadline| deadline.saturating_duration_since(Instant::now()).as_millis().min(60_000) as i32 + 1)
}
