//! `gloo-rs run`: starts a job on this host.

use std::ffi::OsString;
use std::time::Duration;

use crate::launcher::{self, Job};

/// Start a job's ranks on this host
///
/// Each rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, and where the ranks meet in MASTER_ADDR,
/// MASTER_PORT and GLOO_RS_STORE. Rank 0 serves that store. GLOO_RS_TOKEN holds a random token of the job, which keeps
/// others out; set it beforehand to choose one, or none by an empty one. Rank 0 reads this command's standard input unless that is a
/// terminal; the others read nothing.
///
/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all ranks. When one rank fails, the others are ended, and
/// the exit status is that of the rank that failed: its own, or 128 and the signal that killed it.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,

    /// Leave the ranks' output as it is, instead of putting `[rank] ` before each line
    #[arg(long)]
    no_prefix: bool,

    /// Time that the other ranks have to end on SIGTERM, before SIGKILL, when one has failed
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = crate::parse::seconds)]
    grace: Duration,

    /// The program of every rank, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    let mut command = args.command.into_iter();
    let job = Job {
        program: command.next().unwrap_or_default(),
        args: command.collect(),
        ranks: args.ranks as usize,
        prefix: !args.no_prefix,
        grace: args.grace,
    };
    launcher::launch(&job).unwrap_or_else(|error| crate::fail(&error.message, error.code))
}
