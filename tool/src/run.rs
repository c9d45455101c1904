//! `gloo-rs run`: starts a job, on this host or on several.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Failure;
use crate::launcher::binding::Bind;
use crate::launcher::hosts;
use crate::launcher::remote::{self, Hosts};
use crate::launcher::{self, Job};
use gloo_rs::environment::{self, TIMEOUT};

/// Start a job's ranks, on this host or on several
///
/// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in its environment, and the address of the store in MASTER_ADDR,
/// MASTER_PORT and GLOO_RS_STORE. Rank 0 serves that store. GLOO_RS_TOKEN is a random token of the job, without which no process can
/// join it; set it beforehand to choose one, or to an empty value for none. Rank 0 reads this command's standard input unless that is a
/// terminal; the others get empty input.
///
/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all ranks. SIGINT, SIGTERM and SIGHUP end the job; the ranks
/// have the time of --grace for it. When one rank fails, the others are ended, and
/// the exit status is that of the rank that failed: its own, or 128 plus the number of the signal that killed it.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ranks; with --hosts the default is the number of slots of its hosts
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), required_unless_present = "hosts")]
    ranks: Option<u32>,

    /// Start the ranks on the hosts of this file, by ssh. Its lines: `host`, `host slots=N` or `host:N`; `#` begins a comment
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,

    /// The command that connects to a host: OpenSSH or a compatible one, with options. It is split at spaces; quotes have no effect
    #[arg(long, value_name = "COMMAND", default_value = "ssh", value_parser = ssh, requires = "hosts")]
    ssh: String,

    /// Path of this program on the hosts; default: its path here
    #[arg(long, value_name = "PATH", requires = "hosts")]
    remote_path: Option<OsString>,

    /// Name or address by which the other hosts reach the first host; default: its name in the file
    #[arg(long, value_name = "HOST", requires = "hosts", value_parser = crate::parse::host)]
    master_addr: Option<String>,

    /// Time without data after which a host counts as lost, and the launcher on a host; also the time to start there
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::parse::seconds, requires = "hosts")]
    lost_after: Duration,

    /// Set this variable for the ranks, or pass its value here on to other hosts. Variables that begin with GLOO_RS_ are always
    /// passed on
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    environment: Vec<(OsString, OsString)>,

    /// Bind each rank to its share of the host's cores, or do not bind. Default: core if there is a core for each rank
    #[arg(long, value_name = "WHAT")]
    bind_to: Option<Bind>,

    /// Encrypt all connections between ranks, and to the store, with certificates of an authority that is made for this job alone and
    /// forgotten. Ranks of one host still share memory unless GLOO_RS_SHM is 0
    #[arg(long)]
    tls: bool,

    /// Leave the ranks' output unchanged, without the prefix `[rank] ` on each line
    #[arg(long)]
    no_prefix: bool,

    /// Time for ranks to end. When one rank has failed, the others get SIGTERM, and after this time SIGKILL. Ranks that still run this
    /// time after a SIGINT or SIGHUP was passed on get SIGTERM, and after as much time again SIGKILL
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = crate::parse::seconds)]
    grace: Duration,

    /// Time for the ranks to find each other, and timeout of calls that name none: sets GLOO_RS_TIMEOUT, whose default is 30
    #[arg(long, value_name = "SECONDS", value_parser = crate::parse::timeout)]
    start_timeout: Option<Duration>,

    /// The program of every rank, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Checks the command that connects to a host.
fn ssh(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("there is no command in it".into()) } else { Ok(text.to_owned()) }
}

/// A variable for the ranks, with its value here if the text has none.
fn variable(text: &str) -> Result<(OsString, OsString), String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    if name.is_empty() {
        return Err("a variable has a name".into());
    }
    if launcher::POSITION.contains(&name) {
        return Err(format!("this command itself gives each rank its {name}"));
    }
    let here = || std::env::var_os(name).ok_or_else(|| format!("{name} is not set here"));
    Ok((name.into(), value.map_or_else(here, |value| Ok(value.into()))?))
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    start(args).unwrap_or_else(|error| crate::fail(&error.message, error.code))
}

fn start(args: Args) -> Result<u8, Failure> {
    let hosts = args.hosts.as_deref().map(|file| on_hosts(file, &args)).transpose()?;
    let mut command = args.command.into_iter();
    let program = command.next().unwrap_or_default();
    let mut job = Job::new(program, command.collect(), args.ranks.unwrap_or(1) as usize)?;
    job.prefix = !args.no_prefix;
    job.grace = args.grace;
    job.bind = args.bind_to;
    if hosts.is_some() {
        job.environment
            .extend(std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"GLOO_RS_")));
    }
    job.environment.extend(args.environment.iter().cloned());
    let given = job.environment.len();
    job.environment.extend(args.start_timeout.map(|time| (TIMEOUT.into(), time.as_secs_f64().to_string().into())));
    if args.tls {
        job.use_tls()?;
    }
    let set_twice = |(name, _): &&(OsString, OsString)| args.environment.iter().any(|(given, _)| given == name);
    if let Some((name, _)) = job.environment[given..].iter().find(set_twice) {
        let options = if name == TIMEOUT { "--start-timeout" } else { "--tls" };
        return Err(Failure::usage(format!("-x {}: {options} sets it as well", name.display())));
    }
    match hosts {
        None => launcher::launch(&job),
        Some(hosts) => remote::launch(&job, &hosts),
    }
}

fn on_hosts(file: &Path, args: &Args) -> Result<Hosts, Failure> {
    let usage = |message: String| Failure::usage(format!("--hosts: {message}"));
    let timeout = environment::default_timeout().map_err(|error| error.to_string())?;
    let hosts = hosts::read(file, timeout).map_err(usage)?;
    let ranks = args.ranks.map_or_else(|| hosts.iter().map(|host| host.slots).sum(), |ranks| ranks as usize);
    let here = || std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"));
    let program = args.remote_path.clone().map_or_else(|| here().map(PathBuf::into_os_string), Ok)?;
    let program = program.into_string().map_err(|path| {
        Failure::usage(format!("--remote-path: {} is not in UTF-8, as a shell elsewhere needs it", path.display()))
    })?;
    Ok(Hosts {
        hosts: hosts::distribute(&hosts, ranks).map_err(usage)?,
        ssh: args.ssh.split_whitespace().map(str::to_owned).collect(),
        program,
        master: args.master_addr.clone(),
        lost_after: args.lost_after.max(Duration::from_secs(1)),
    })
}
