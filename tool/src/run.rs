//! `gloo-rs run`: starts a job, on this host or on several.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::Failure;
use crate::launcher;
use crate::launcher::binding::Bind;
use crate::launcher::hosts::{self, Host, Hosts};
use crate::launcher::job::{self, Job, Limit};
use crate::launcher::remote;
use gloo_rs::environment::{self, TIMEOUT};

const EXAMPLES: &str = "\
Examples:
  gloo-rs run -n 4 -- ./program --its options          four ranks on this host
  gloo-rs run -H node0:8,node1:8 -- ./program          eight on each of two hosts, by ssh
  gloo-rs run --hosts hosts.txt -x DATA -- ./program   one for each slot of a file's hosts, with a variable from here
  gloo-rs run -n 8 --max-restarts 3 --log-dir logs -- ./program
                                                       starts all again after a failure, and keeps their output";

/// Start a job's ranks, on this host or on several
///
/// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in its environment, and the address of the store in
/// MASTER_ADDR, MASTER_PORT and GLOO_RS_STORE. Rank 0 serves that store. GLOO_RS_TOKEN is a random token of the job,
/// without which no process can join it; set it beforehand to choose one, or to an empty value for none. Rank 0 reads
/// this command's standard input unless that is a terminal; the others get empty input.
///
/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all ranks. SIGINT, SIGTERM and SIGHUP end the job; the
/// ranks have the time of --grace for it. When one rank fails, the others are ended, and the exit status is that of the
/// rank that failed: its own, or 128 plus the number of the signal that killed it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Number of ranks, also as `-np N`; default: with --hosts or --host the number of slots of the hosts
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), required_unless_present = "places")]
    ranks: Option<u32>,

    /// Start the ranks on the hosts of this file, by ssh. Its lines: `host`, `host slots=N` or `host:N`; `#` begins a
    /// comment
    #[arg(long, value_name = "FILE", group = "places")]
    hosts: Option<PathBuf>,

    /// Start the ranks on these hosts, with one slot each unless they name more. This host needs no ssh, here and in a
    /// file
    #[arg(short = 'H', long, value_name = "HOST[:SLOTS],..", group = "places", conflicts_with = "hosts")]
    host: Option<String>,

    /// The command that connects to a host: OpenSSH or a compatible one, with options. It is split at spaces; quotes
    /// have no effect
    #[arg(long, value_name = "COMMAND", default_value = "ssh", value_parser = ssh, requires = "places")]
    ssh: String,

    /// Path of this program on the hosts; default: its path here
    #[arg(long, value_name = "PATH", requires = "places")]
    remote_path: Option<OsString>,

    /// Name or address by which the other hosts reach the first host; default: its name in the file
    #[arg(long, value_name = "HOST", requires = "places", value_parser = host)]
    master_addr: Option<String>,

    /// Time without data after which a host counts as lost, and the launcher on a host; also the time to start there
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::parse::seconds, requires = "places")]
    lost_after: Duration,

    /// Set this variable for the ranks, or pass its value here on to other hosts. Variables that begin with GLOO_RS_
    /// are always passed on
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    environment: Vec<(OsString, OsString)>,

    /// Bind each rank to its share of the host's cores, or do not bind. Default: core if there is a core for each rank
    #[arg(long, value_name = "WHAT")]
    bind_to: Option<Bind>,

    /// Encrypt all connections between ranks, and to the store, with certificates of an authority that is made for this
    /// job alone and forgotten. Ranks of one host still share memory unless GLOO_RS_SHM is 0
    #[arg(long)]
    tls: bool,

    /// Leave the ranks' output unchanged, without the prefix `[rank] ` on each line
    #[arg(long)]
    no_prefix: bool,

    /// Time for ranks to end. When one rank has failed, the others get SIGTERM, and after this time SIGKILL. Ranks that
    /// still run this time after a SIGINT or SIGHUP was passed on get SIGTERM, and after as much time again SIGKILL
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = crate::parse::seconds)]
    grace: Duration,

    /// Time for the ranks to find each other, and timeout of calls that name none: sets GLOO_RS_TIMEOUT, whose default
    /// is 30
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
    start_timeout: Option<Duration>,

    /// End the job after this time, with exit status 124
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
    timeout: Option<Duration>,

    /// When a rank has failed, and the others have been ended, start all of them again, at most N times.
    /// GLOO_RS_RESTART_COUNT says how often that has happened. Each start has a port and a token of its own
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_restarts: u32,

    /// Also write what each rank writes to files in this folder, on the rank's host: rank-0.out, rank-0.err, ..., after
    /// a restart rank-0.restart-1.out
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,

    /// The program of every rank, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Checks the name or address of a host.
fn host(text: &str) -> Result<String, String> {
    gloo_rs::net::host::check(text).map(|()| text.to_owned()).map_err(str::to_owned)
}

/// [`seconds`](crate::parse::seconds), at least a millisecond.
fn timeout(text: &str) -> Result<Duration, String> {
    let long = |timeout: &Duration| *timeout >= Duration::from_millis(1);
    crate::parse::seconds(text)
        .ok()
        .filter(long)
        .ok_or_else(|| format!("{text:?} is not a number of seconds from 0.001 to 31536000"))
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
    if job::POSITION.contains(&name) {
        return Err(format!("this command itself gives each rank its {name}"));
    }
    let here = || std::env::var_os(name).ok_or_else(|| format!("{name} is not set here"));
    Ok((name.into(), value.map_or_else(here, |value| Ok(value.into()))?))
}

/// The command line with mpirun's `-np` as `-n`, up to the program: clap has no options with one dash and two letters.
pub fn as_clap_reads_them(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_none_or(|command| command != "run") {
        return args;
    }
    let options = <Args as clap::Args>::augment_args(clap::Command::new("run"));
    let mut at = 2;
    while let Some(text) =
        args.get(at).and_then(|arg| arg.to_str()).filter(|text| text.starts_with('-') && *text != "--")
    {
        let same = |option: &&clap::Arg| match text.strip_prefix("--") {
            Some(long) => option.get_long() == Some(long),
            None => text.len() == 2 && option.get_short() == text.chars().nth(1),
        };
        let takes_next = options.get_arguments().find(same).is_some_and(|option| option.get_action().takes_values());
        if text == "-np" {
            args[at] = "-n".into();
            at += 1;
        }
        at += 1 + usize::from(takes_next);
    }
    args
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    start(&args).unwrap_or_else(|error| crate::fail(&error.message, error.code))
}

fn start(args: &Args) -> Result<u8, Failure> {
    let hosts = args.on_hosts()?;
    let given = args.environment.iter().map(|(name, _)| name.clone());
    let variables = std::env::vars_os().map(|(name, _)| name).chain(given);
    environment::unread_of(variables).iter().for_each(|said| crate::say(said));
    let ranks = args.ranks.unwrap_or(1) as usize;
    let limit = args.timeout.map(Limit::after);
    let mut restart = 0;
    loop {
        let ended = match &hosts {
            None => launcher::launch(&args.job(ranks, restart, limit, false)?)?,
            // Where all are this host, there is nobody to connect to.
            Some(hosts) if hosts.hosts.iter().all(|(host, _)| host.is_here()) => {
                let ranks = hosts.hosts.iter().map(|(_, ranks)| ranks).sum();
                launcher::launch(&args.job(ranks, restart, limit, false)?)?
            }
            Some(hosts) => remote::launch(&args.job(ranks, restart, limit, true)?, hosts)?,
        };
        let over = limit.is_some_and(|limit| limit.is_over());
        if !ended.by_itself || over || restart == args.max_restarts {
            return Ok(ended.code);
        }
        restart += 1;
        crate::say(&format!("starting all ranks again: restart {restart} of at most {}", args.max_restarts));
    }
}

impl Args {
    /// The job, started for the `restart`th time after the first. On other hosts its ranks get the variables of the
    /// library from here.
    fn job(&self, ranks: usize, restart: u32, limit: Option<Limit>, elsewhere: bool) -> Result<Job, Failure> {
        let (program, arguments) =
            self.command.split_first().map(|(program, rest)| (program.clone(), rest.to_vec())).unwrap_or_default();
        let mut job = Job::new(program, arguments, ranks)?;
        job.prefix = !self.no_prefix;
        job.log_dir = self.log_dir.clone();
        job.grace = self.grace;
        job.bind = self.bind_to;
        (job.restart, job.limit) = (restart, limit);
        if elsewhere {
            job.environment
                .extend(std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"GLOO_RS_")));
        }
        job.environment.extend(self.environment.iter().cloned());
        let given = job.environment.len();
        job.environment.extend(self.start_timeout.map(|time| (TIMEOUT.into(), time.as_secs_f64().to_string().into())));
        if self.tls {
            job.use_tls()?;
        }
        let set_twice = |(name, _): &&(OsString, OsString)| self.environment.iter().any(|(given, _)| given == name);
        if let Some((name, _)) = job.environment[given..].iter().find(set_twice) {
            let options = if name == TIMEOUT { "--start-timeout" } else { "--tls" };
            return Err(Failure::usage(format!("-x {}: {options} sets it as well", name.display())));
        }
        Ok(job)
    }

    /// The hosts of the ranks, if the command line names any.
    fn on_hosts(&self) -> Result<Option<Hosts>, Failure> {
        let (option, hosts) = match (&self.hosts, &self.host) {
            (Some(file), _) => {
                let timeout = environment::default_timeout().map_err(|error| error.to_string())?;
                ("--hosts", hosts::read(file, timeout))
            }
            (None, Some(list)) => ("--host", hosts::parse_list(list)),
            (None, None) => return Ok(None),
        };
        let usage = |message: String| Failure::usage(format!("{option}: {message}"));
        let hosts = hosts.map_err(usage)?;
        let ranks = self.ranks.map_or_else(|| hosts.iter().map(|host| host.slots).sum(), |ranks| ranks as usize);
        let hosts = hosts::distribute(&hosts, ranks).map_err(usage)?;
        self.check_master(&hosts).map_err(usage)?;
        let here = std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
        let in_utf8 = |path: OsString| {
            path.into_string().map_err(|path| {
                Failure::usage(format!(
                    "--remote-path: {} is not in UTF-8, as a shell elsewhere needs it",
                    path.display()
                ))
            })
        };
        Ok(Some(Hosts {
            hosts,
            ssh: self.ssh.split_whitespace().map(str::to_owned).collect(),
            program: in_utf8(self.remote_path.clone().unwrap_or_else(|| here.clone().into()))?,
            own_program: here,
            master: self.master_addr.clone(),
            lost_after: self.lost_after.max(Duration::from_secs(1)),
        }))
    }

    /// Whether the other hosts can reach the first one by its name.
    fn check_master(&self, hosts: &[(Host, usize)]) -> Result<(), String> {
        match hosts {
            [(first, _), others @ ..]
                if first.is_loopback()
                    && self.master_addr.is_none()
                    && !others.iter().all(|(host, _)| host.is_here()) =>
            {
                let name = first.address();
                Err(format!(
                    "the first host is {name}, by which other hosts do not reach it: name it, or set --master-addr"
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        assert_eq!(host("node-0.cluster"), Ok("node-0.cluster".to_owned()));
        assert!(host("node0:29500").unwrap_err().contains("port"));
    }

    #[test]
    fn timeouts() {
        assert_eq!(timeout("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "0.0001", "-1", "x", "31536001"] {
            assert!(timeout(text).unwrap_err().contains("from 0.001"), "{text}");
        }
    }

    #[test]
    fn the_number_of_ranks_may_be_asked_for_as_of_mpirun() {
        for (given, expected) in [
            ("run -np 4 program -np 5", "run -n 4 program -np 5"),
            ("run -x A=-np --grace 1 --no-prefix -np 4 -- -np", "run -x A=-np --grace 1 --no-prefix -n 4 -- -np"),
            ("run --ssh -np -np 4 a", "run --ssh -np -n 4 a"),
            ("run --grace=1 -n4 a -np", "run --grace=1 -n4 a -np"),
            ("bench -np 4", "bench -np 4"),
            ("run", "run"),
        ] {
            let words = |text: &str| format!("gloo-rs {text}").split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(as_clap_reads_them(words(given)), words(expected), "{given}");
        }
    }
}
