//! A job, and what each of its ranks is started with.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::binding::Bind;
use super::{authority, log};
use crate::Failure;
use gloo_rs::environment::RESTART_COUNT;
use gloo_rs::secret::{JobToken, TOKEN_VARIABLE};
use gloo_rs::transport::shm::ptracer;
use serde::{Deserialize, Serialize};

/// The job to start.
#[derive(Clone, Serialize, Deserialize)]
pub struct Job {
    pub program: OsString,
    pub args: Vec<OsString>,
    /// Variables for the ranks, besides those that give their rank.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether to prefix output lines with their rank. Otherwise the ranks inherit the launcher's output.
    pub prefix: bool,
    /// The folder for files with each rank's output.
    pub log_dir: Option<PathBuf>,
    /// Time for ranks to end after they were asked to.
    pub grace: Duration,
    /// How to bind ranks; `None` for cores if there are enough.
    pub bind: Option<Bind>,
    /// How often the ranks were started before.
    pub restart: u32,
    /// When the job is ended; only its launcher knows that.
    #[serde(skip)]
    pub limit: Option<Limit>,
    pub part: Part,
}

/// The time limit of a job.
#[derive(Clone, Copy)]
pub struct Limit {
    pub end: Instant,
    pub time: Duration,
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

impl Limit {
    /// From now on.
    pub fn after(time: Duration) -> Self {
        Self { end: Instant::now() + time, time }
    }

    pub fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }
}

impl Job {
    /// A job on this host, with a random token.
    pub fn new(program: OsString, args: Vec<OsString>, ranks: usize) -> Result<Self, Failure> {
        // The system stops processes that read from a terminal outside of its foreground process group, and each rank
        // leads a group. SAFETY: the call accesses no memory of this process.
        let input = unsafe { libc::isatty(libc::STDIN_FILENO) } == 0;
        let part = Part { first_rank: 0, ranks, size: ranks, host: None, input };
        let mut environment = Vec::new();
        // A token in the environment, even an empty one, is inherited.
        if std::env::var_os(TOKEN_VARIABLE).is_none() {
            let token = JobToken::random_text()
                .map_err(|error| Failure::from(format!("cannot generate a token for the job: {error}")))?;
            environment.push((TOKEN_VARIABLE.into(), token.into()));
        }
        let (prefix, grace) = (true, Duration::from_secs(5));
        Ok(Self { program, args, environment, prefix, log_dir: None, grace, bind: None, restart: 0, limit: None, part })
    }

    /// The value that a variable has for the ranks, unless their host's login sets it.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        let given = self.environment.iter().rev().find(|(given, _)| given == name);
        given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name))
    }

    /// Lets the ranks use TLS, with certificates of an authority for this job alone.
    pub fn use_tls(&mut self) -> Result<(), Failure> {
        self.environment.extend(authority::environment()?);
        Ok(())
    }

    /// The files for the output and the errors of each rank of this host, if any are asked for.
    pub(super) fn logs(&self) -> Result<Vec<log::Pair>, Failure> {
        let Some(folder) = &self.log_dir else { return Ok(Vec::new()) };
        let first = self.part.first_rank;
        let logs = (first..first + self.part.ranks).map(|rank| log::Pair::create(folder, rank, self.restart));
        logs.collect::<Result<_, _>>().map_err(|why| Failure::usage(format!("--log-dir: {why}")))
    }

    /// The command of the `index`th rank of this host.
    pub(super) fn command(&self, index: usize, master: &Master, piped_input: bool) -> Command {
        let Part { first_rank, ranks, size, input, .. } = &self.part;
        let rank = first_rank + index;
        let Master { address, port } = master;
        let url_address = if address.contains(':') { format!("[{address}]") } else { address.clone() };
        let numbers = [rank, *size, index, *ranks, self.restart as usize].map(|number| number.to_string());
        let store = [address.clone(), port.to_string(), format!("tcp://{url_address}:{port}")];
        let position = numbers.into_iter().chain(store);
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(POSITION.into_iter().zip(position))
            .env(ptracer::VARIABLE, self.whom_ranks_let_trace());
        command.stdin(match (rank, input, piped_input) {
            (0, true, true) => Stdio::piped(),
            (0, true, false) => Stdio::inherit(),
            _ => Stdio::null(),
        });
        if self.prefix || piped_input || self.log_dir.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command
    }

    /// Whom each rank lets trace it where the system asks for that: this process with all that descend from it, which
    /// are the ranks of this host and what they start, unless the user says anything but the number of a process, which
    /// would be that of another launcher or host.
    fn whom_ranks_let_trace(&self) -> OsString {
        let given = self.variable(ptracer::VARIABLE);
        let is_process = |text: &OsStr| text != "0" && text.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        given.filter(|text| !is_process(text)).unwrap_or_else(|| std::process::id().to_string().into())
    }
}

/// The variables that give each rank its place in the job.
pub const POSITION: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    RESTART_COUNT,
    "MASTER_ADDR",
    "MASTER_PORT",
    "GLOO_RS_STORE",
];
