//! Starts the ranks of a job on this host and stays with them until the last has ended.
//!
//! One thread does it all, from one poll loop over the ranks' output and the signals: a rank is to die with the thread that
//! started it (`PR_SET_PDEATHSIG`), so that must be the thread that lives longest.

mod prefix;
mod rank;
mod signals;

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gloo_rs::secret::{JobToken, TOKEN_VARIABLE};
use rank::{Forwarded, Outcome, Rank, Stream, Target};
use signals::Signals;

/// How long a process that got SIGKILL may take to end; it may have much memory to give back.
const KILLED_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// What to start.
pub struct Job {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub ranks: usize,
    /// Whether to mark output lines with their rank. Otherwise the ranks write where the launcher would.
    pub prefix: bool,
    /// Time between SIGTERM and SIGKILL for the ranks that are left when one fails.
    pub grace: Duration,
}

/// Runs `job` to its end and returns the exit status that tells of it: that of the rank that failed first, 128 and the
/// signal if one killed it, or 0. Says on standard error which rank failed and how. Fails if the job could not be started.
pub fn launch(job: &Job) -> Result<u8, StartError> {
    let here = |what: &str, error: io::Error| StartError { message: format!("{what}: {error}"), code: 1 };
    let signals = Signals::catch().map_err(|error| here("cannot receive signals", error))?;
    // Adopts what ranks leave behind, to know when all of a rank's group has ended.
    // SAFETY: no memory is involved.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } != 0 {
        return Err(here("cannot adopt orphans", io::Error::last_os_error()));
    }
    // One that the user has set stands, also an empty one, and is inherited.
    let token = match std::env::var_os(TOKEN_VARIABLE) {
        Some(_) => None,
        None => Some(JobToken::random_text().map_err(|error| here("cannot draw a token for the job", error))?),
    };
    let port = free_port().map_err(|error| here("cannot find a free port on 127.0.0.1", error))?;
    let mut running = Running { ranks: Vec::new(), streams: Vec::new(), signals, failed: None, grace: job.grace };
    for rank in 0..job.ranks {
        let mut command = command(job, rank, port, token.as_deref());
        match Rank::start(&mut command, running.signals.mask_before(), &format!("[{rank}] ")) {
            Ok((started, streams)) => {
                running.ranks.push(started);
                running.streams.extend(streams.into_iter().map(|stream| (rank, stream)));
            }
            Err(error) => {
                running.abandon();
                return Err(StartError {
                    message: format!("cannot start rank {rank}: {}: {error}", job.program.display()),
                    code: if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 },
                });
            }
        }
    }
    Ok(running.supervise())
}

/// Why no job runs.
#[derive(Debug)]
pub struct StartError {
    pub message: String,
    /// As a shell's: 127 if there is no such program, 126 if it cannot be executed, else 1.
    pub code: u8,
}

/// The command of one rank, with its place in the job in its environment.
fn command(job: &Job, rank: usize, port: u16, token: Option<&str>) -> Command {
    let mut command = Command::new(&job.program);
    command
        .args(&job.args)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", job.ranks.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("LOCAL_WORLD_SIZE", job.ranks.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("GLOO_RS_STORE", format!("tcp://127.0.0.1:{port}"));
    command.envs(token.map(|token| (TOKEN_VARIABLE, token)));
    // A terminal stops those who read from it outside of its foreground group, which a rank is.
    // SAFETY: no memory is involved.
    let terminal = unsafe { libc::isatty(libc::STDIN_FILENO) } == 1;
    command.stdin(if rank == 0 && !terminal { Stdio::inherit() } else { Stdio::null() });
    if job.prefix {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command
}

/// A TCP port of loopback that was free just now. Rank 0 is to bind it; should somebody else get it first, rank 0 fails and
/// says so. Keeping it bound here would rule that out, but also any program that binds it without SO_REUSEADDR.
fn free_port() -> io::Result<u16> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let address = socket.local_addr()?.as_socket();
    address.map(|address| address.port()).ok_or_else(|| io::Error::other("the socket has no address"))
}

/// The end of a job that has failed.
struct Failed {
    code: u8,
    /// When patience ends.
    deadline: Instant,
    /// Whether the ranks have got SIGKILL, not only SIGTERM.
    killed: bool,
}

struct Running {
    ranks: Vec<Rank>,
    /// With the rank that each is of.
    streams: Vec<(usize, Stream)>,
    signals: Signals,
    failed: Option<Failed>,
    grace: Duration,
}

impl Running {
    /// Stays with the ranks until they have ended. If they fail, also with what they started.
    fn supervise(mut self) -> u8 {
        let mut buffer = vec![0; 64 << 10];
        while !self.ended() {
            let timeout = match &self.failed {
                Some(failed) => {
                    failed.deadline.saturating_duration_since(Instant::now()).as_millis().min(60_000) as i32 + 1
                }
                None => -1,
            };
            let streams = self.streams.iter().map(|(_, stream)| stream.as_raw_fd());
            let descriptors = streams.chain([self.signals.as_raw_fd()]);
            let mut polls: Vec<_> =
                descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
            // SAFETY: as many entries as said. An interrupted call leaves every `revents` zero.
            unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
            self.forward(&polls, &mut buffer);
            while let Some(signal) = self.signals.next() {
                self.take(signal);
            }
            self.reap(&mut buffer);
            if self.patience_ended() {
                break;
            }
        }
        for (_, stream) in &mut self.streams {
            stream.drain(&mut buffer);
        }
        self.failed.map_or(0, |failed| failed.code)
    }

    fn ended(&self) -> bool {
        let ranks_ended = self.ranks.iter().all(|rank| rank.outcome.is_some());
        ranks_ended && (self.failed.is_none() || self.ranks.iter().all(|rank| !rank.group_lives()))
    }

    /// Brings on what the ranks have written.
    fn forward(&mut self, polls: &[libc::pollfd], buffer: &mut [u8]) {
        let mut gone = None;
        let mut index = 0;
        self.streams.retain_mut(|(_, stream)| {
            let ready = polls[index].revents != 0;
            index += 1;
            match if ready { stream.forward(buffer) } else { Forwarded::Nothing } {
                Forwarded::Bytes(_) | Forwarded::Nothing => true,
                Forwarded::End => false,
                Forwarded::TargetGone => {
                    gone = Some(stream.target);
                    false
                }
            }
        });
        // Nobody reads it any more (`| head`): the ranks get SIGPIPE, as they would have without a launcher between.
        if let Some(target) = gone {
            self.streams.retain(|(_, stream)| stream.target != target);
        }
    }

    /// Passes on a signal, and does itself what it asks for.
    fn take(&mut self, signal: i32) {
        if signal == libc::SIGCHLD {
            return;
        }
        self.signal_ranks(signal);
        if signal == libc::SIGTSTP {
            // SAFETY: no memory is involved.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }

    fn signal_ranks(&self, signal: i32) {
        for rank in self.ranks.iter().filter(|rank| rank.outcome.is_none() || rank.group_lives()) {
            rank.signal_group(signal);
        }
    }

    /// Collects who has ended, and ends the job if one failed.
    fn reap(&mut self, buffer: &mut [u8]) {
        let mut failures: Vec<(usize, Outcome)> = Vec::new();
        loop {
            let mut status = 0;
            // SAFETY: `status` is the int that the call fills.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            if pid <= 0 {
                break;
            }
            // Others are orphans of a rank's.
            let Some(rank) = self.ranks.iter().position(|rank| rank.pid == pid && rank.outcome.is_none()) else {
                continue;
            };
            let outcome = Outcome::from_wait_status(status);
            self.ranks[rank].outcome = Some(outcome);
            for (_, stream) in self.streams.iter_mut().filter(|(of, _)| *of == rank) {
                stream.drain(buffer);
            }
            if outcome != Outcome::Exited(0) {
                failures.push((rank, outcome));
            }
        }
        // One that was killed is the cause rather than one that gave up; beyond that nobody can tell who was first.
        failures.sort_by_key(|(_, outcome)| matches!(outcome, Outcome::Exited(_)));
        if self.failed.is_none() && !failures.is_empty() {
            self.fail(&failures);
        }
    }

    fn fail(&mut self, failures: &[(usize, Outcome)]) {
        for &(rank, outcome) in failures {
            say(&format!("rank {rank} (pid {}) {outcome}", self.ranks[rank].pid));
        }
        let left = self.ranks.iter().filter(|rank| rank.outcome.is_none()).count();
        if left > 0 {
            say(&format!("ending the other ranks ({left} still running)"));
        }
        self.failed = Some(Failed { code: failures[0].1.code(), deadline: Instant::now() + self.grace, killed: false });
        self.signal_ranks(libc::SIGTERM);
        // A stopped process would not even notice.
        self.signal_ranks(libc::SIGCONT);
    }

    /// Kills what has not ended in time. Whether to give up, because even that does not help.
    fn patience_ended(&mut self) -> bool {
        let Some(failed) = self.failed.as_mut().filter(|failed| Instant::now() >= failed.deadline) else {
            return false;
        };
        failed.deadline = Instant::now() + KILLED_ENDS_WITHIN;
        let killed_before = std::mem::replace(&mut failed.killed, true);
        for (index, rank) in self.ranks.iter().enumerate().filter(|(_, rank)| rank.outcome.is_none()) {
            let what = if killed_before {
                "has not ended since SIGKILL; leaving it".to_owned()
            } else {
                format!("did not end within {} s of SIGTERM; killing it", self.grace.as_secs_f64())
            };
            say(&format!("rank {index} (pid {}) {what}", rank.pid));
        }
        self.signal_ranks(libc::SIGKILL);
        killed_before
    }

    /// Ends at once what has been started.
    fn abandon(&mut self) {
        for rank in &self.ranks {
            rank.signal_group(libc::SIGKILL);
            let mut status = 0;
            // SAFETY: `status` is the int that the call fills.
            while unsafe { libc::waitpid(rank.pid, &mut status, 0) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

fn say(message: &str) {
    // If standard error is gone there is nobody to tell.
    let _ = Target::Stderr.write(format!("gloo-rs: {message}\n").as_bytes());
}
