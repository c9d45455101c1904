//! Starts the ranks of a job and waits until the last has ended: here those of this host; in [`remote`] through helpers on
//! other hosts ([`node`]), each of which acts there as this launcher would.
//!
//! One thread runs a poll loop over the ranks' output and the signals, and waits for nothing else ([`output`]). A rank is killed when the thread that started it ends
//! (`PR_SET_PDEATHSIG`), so this must be the thread that lives longest.

mod authority;
pub mod binding;
mod connection;
mod frame;
pub mod hosts;
pub mod node;
mod output;
mod port;
mod prefix;
mod rank;
pub mod remote;
mod signals;

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::parse::counted;
use binding::Bind;
use gloo_rs::net::ports::PORT_RANGE;
use gloo_rs::secret::{JobToken, TOKEN_VARIABLE};
use gloo_rs::transport::shm::ptracer;
use node::Control;
use output::{Outputs, Target};
use rank::{Forwarded, Outcome, Rank, Stream};
use serde::{Deserialize, Serialize};
use signals::Signals;

/// Time for a process to end after SIGKILL; it may have to release much memory.
const KILLED_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// The job to start.
#[derive(Clone, Serialize, Deserialize)]
pub struct Job {
    pub program: OsString,
    pub args: Vec<OsString>,
    /// Variables for the ranks, besides those that give their rank.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether to prefix output lines with their rank. Otherwise the ranks inherit the launcher's output.
    pub prefix: bool,
    /// Time for ranks to end after they were asked to.
    pub grace: Duration,
    /// How to bind ranks; `None` for cores if there are enough.
    pub bind: Option<Bind>,
    pub part: Part,
}

/// The ranks of a job that are started on one host.
#[derive(Clone, Serialize, Deserialize)]
pub struct Part {
    pub first_rank: usize,
    pub ranks: usize,
    /// Number of ranks of the whole job.
    pub size: usize,
    /// If the job is on several hosts: this host's name, and the address of rank 0's store.
    pub host: Option<(String, Master)>,
    /// Whether rank 0 gets input.
    pub input: bool,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Master {
    pub address: String,
    pub port: u16,
}

impl Job {
    /// A job on this host, with a random token.
    pub fn new(program: OsString, args: Vec<OsString>, ranks: usize) -> Result<Self, Failure> {
        // The system stops processes that read from a terminal outside of its foreground process group, and each rank leads a group.
        // SAFETY: the call accesses no memory of this process.
        let input = unsafe { libc::isatty(libc::STDIN_FILENO) } == 0;
        let part = Part { first_rank: 0, ranks, size: ranks, host: None, input };
        let mut environment = Vec::new();
        // A token in the environment, even an empty one, is inherited.
        if std::env::var_os(TOKEN_VARIABLE).is_none() {
            let token = JobToken::random_text()
                .map_err(|error| Failure::from(format!("cannot generate a token for the job: {error}")))?;
            environment.push((TOKEN_VARIABLE.into(), token.into()));
        }
        Ok(Self { program, args, environment, prefix: true, grace: Duration::from_secs(5), bind: None, part })
    }
}

impl Job {
    /// The value that a variable has for the ranks, unless their host's login sets it.
    fn variable(&self, name: &str) -> Option<OsString> {
        let given = self.environment.iter().rev().find(|(given, _)| given == name);
        given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name))
    }

    /// Lets the ranks use TLS, with certificates of an authority for this job alone.
    pub fn use_tls(&mut self) -> Result<(), Failure> {
        self.environment.extend(authority::environment()?);
        Ok(())
    }
}

/// Runs `job` until it ends and returns the exit status: that of the rank that failed first, 128 plus the
/// signal if one killed it, or 0. Prints to standard error which rank failed and how. Fails if the job could not be started.
pub fn launch(job: &Job) -> Result<u8, Failure> {
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

/// As [`launch`]; a helper has the connection to its launcher in `control`.
fn start(job: &Job, control: Option<Control>) -> Result<u8, Failure> {
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
    let mut running = Running {
        ranks: Vec::new(),
        streams: Vec::new(),
        outputs: Outputs::new(),
        signals,
        asked: None,
        failed: None,
        grace: job.grace,
        control,
        first_rank: job.part.first_rank,
        host: job.part.host.as_ref().map(|(host, _)| host.clone()),
    };
    for index in 0..job.part.ranks {
        let cores = sets.as_ref().map(|sets| sets[index]);
        if let Err(error) = running.add(job, index, &master, cores) {
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

/// The variables that give each rank its place in the job.
pub const POSITION: [&str; 7] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_RS_STORE"];

/// Whom each rank lets trace it where the system asks for that: this process with all that descend from it, which are the ranks of this host
/// and what they start, unless the user says anything but the number of a process, which would be that of another launcher or host.
fn whom_ranks_let_trace(job: &Job) -> OsString {
    let given = job.variable(ptracer::VARIABLE);
    let is_process = |text: &OsStr| text != "0" && text.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    given.filter(|text| !is_process(text)).unwrap_or_else(|| std::process::id().to_string().into())
}

/// The command of the `index`th rank of this host.
fn command(job: &Job, index: usize, master: &Master, piped_input: bool) -> Command {
    let Part { first_rank, ranks, size, input, .. } = &job.part;
    let rank = first_rank + index;
    let Master { address, port } = master;
    let url_address = if address.contains(':') { format!("[{address}]") } else { address.clone() };
    let numbers = [rank, *size, index, *ranks].map(|number| number.to_string());
    let store = [address.clone(), port.to_string(), format!("tcp://{url_address}:{port}")];
    let position = numbers.into_iter().chain(store);
    let mut command = Command::new(&job.program);
    command
        .args(&job.args)
        .envs(job.environment.iter().map(|(name, value)| (name, value)))
        .envs(POSITION.into_iter().zip(position))
        .env(ptracer::VARIABLE, whom_ranks_let_trace(job));
    command.stdin(match (rank, input, piped_input) {
        (0, true, true) => Stdio::piped(),
        (0, true, false) => Stdio::inherit(),
        _ => Stdio::null(),
    });
    if job.prefix || piped_input {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command
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
    asked: Option<(i32, Instant)>,
    failed: Option<Failed>,
    grace: Duration,
    /// The launcher on another host, if this is its helper.
    control: Option<Control>,
    first_rank: usize,
    /// This host's name, if the job is on several hosts.
    host: Option<String>,
}

impl Running {
    /// Adds a rank that has been started.
    fn add(&mut self, job: &Job, index: usize, master: &Master, cores: Option<libc::cpu_set_t>) -> io::Result<()> {
        let mut command = command(job, index, master, self.control.is_some());
        let (rank, mut child) = Rank::start(&mut command, self.signals.mask_before(), cores)?;
        self.ranks.push(rank);
        let prefix = if job.prefix { format!("[{}] ", self.first_rank + index) } else { String::new() };
        if let Some(pipe) = child.stdout.take() {
            let target = if self.control.is_some() { Target::Frames(frame::kind::OUTPUT) } else { Target::Stdout };
            self.streams.push((index, Stream::new(pipe.into(), target, &prefix)?));
        }
        if let Some(pipe) = child.stderr.take() {
            self.streams.push((index, Stream::new(pipe.into(), self.errors(), &prefix)?));
        }
        if let (Some(control), Some(pipe)) = (&mut self.control, child.stdin.take()) {
            control.feed(pipe.into())?;
        }
        Ok(())
    }

    /// Waits until the ranks have ended and, if they fail, also the processes that they have started; and until the output is written.
    fn supervise(mut self) -> u8 {
        let mut buffer = vec![0; 64 << 10];
        while !self.ended() {
            let asked = self.asked.map(|(_, deadline)| deadline);
            self.turn(self.failed.as_ref().map_or(asked, |failed| Some(failed.deadline)), &mut buffer);
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
        self.deliver(&mut buffer)
    }

    /// Waits until the output is written, and returns the exit status. If a signal has asked the job to end, who reads the output has as
    /// much time as ranks have to end. A helper waits as long as its launcher lives.
    fn deliver(&mut self, buffer: &mut [u8]) -> u8 {
        let mut deadline = None;
        loop {
            self.write();
            if self.outputs.is_empty() {
                return self.code();
            }
            if let Some((signal, _)) = self.asked.filter(|_| self.control.is_none()) {
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
        let timeout = wait_until(deadline.into_iter().chain(silence).min());
        // A stream is not read while there is no room for it; poll ignores the number.
        let descriptor = |stream: &Stream| if self.outputs.has_room(stream.target) { stream.as_raw_fd() } else { -1 };
        let streams = self.streams.iter().map(|(_, stream)| descriptor(stream));
        let mut polls: Vec<_> = streams.chain([self.signals.as_raw_fd()]).map(readable).collect();
        polls.extend(self.control.iter().flat_map(Control::polls).chain(self.outputs.polls()));
        // SAFETY: the pointer and the count are those of the vector. If the call is interrupted, every `revents` stays zero.
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
        self.write();
    }

    /// Writes the output as far as that is possible without waiting.
    fn write(&mut self) {
        while let Err((target, error)) = self.outputs.flush() {
            self.lose(target, &error);
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
        let before = self.asked.map(|(signal, _)| signal);
        let first = before.is_none() || signal == libc::SIGTERM && before != Some(libc::SIGTERM);
        if first && matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP) {
            self.asked = Some((signal, Instant::now() + self.grace));
        }
    }

    /// Ends the ranks that still run after a signal has asked them to end.
    fn ask_again(&mut self) {
        let due = self.asked.filter(|(_, deadline)| self.failed.is_none() && Instant::now() >= *deadline);
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
