//! The command-line tool: starts jobs, measures and simulates collectives, and shows what there is.

mod bench;
mod draw;
mod explain;
mod info;
mod launcher;
mod list;
mod parse;
mod plot;
mod ranks;
mod run;
mod simulate;
mod tune;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

/// Collective communications for training jobs: start jobs, measure, simulate, and see what there is
#[derive(Parser)]
#[command(name = "gloo-rs", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(Box<run::Args>),
    /// What `run --hosts` starts on each host
    #[command(hide = true)]
    Node,
    Bench(Box<bench::Args>),
    Tune(Box<tune::Args>),
    Info(info::Args),
    List(list::Args),
    Simulate(Box<simulate::Args>),
    Plot(draw::Args),
}

/// Why a command fails.
#[derive(Debug)]
pub struct Failure {
    /// For people.
    pub message: String,
    /// Exit status: [`USAGE`], [`FAILED`], or, of a program that could not be started, 126 or 127 as a shell's.
    pub code: u8,
}

/// Exit status: the command line makes no sense, and nothing was done.
pub const USAGE: u8 = 2;
/// Exit status: what was asked for has failed.
pub const FAILED: u8 = 1;
/// Exit status of what ends because nobody reads its output any more, as a shell reports a process that SIGPIPE killed.
pub const UNREAD: u8 = 128 + libc::SIGPIPE as u8;

impl Failure {
    /// The command line makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: USAGE }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { message, code: FAILED }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => error.exit(),
        // Help or the version: output as any other.
        Err(text) => return ExitCode::from(end(written(text.print()).map_err(Failure::from))),
    };
    let code = match cli.command {
        Command::Run(args) => run::run(*args),
        Command::Node => launcher::node::run(),
        Command::Bench(args) => bench::run(*args),
        Command::Tune(args) => tune::run(*args),
        Command::Info(args) => info::run(args),
        Command::List(args) => list::run(args),
        Command::Simulate(args) => simulate::run(*args),
        Command::Plot(args) => draw::run(args),
    };
    ExitCode::from(code)
}

/// Says on standard error why the command failed, and returns `code`.
fn fail(message: &str, code: u8) -> u8 {
    // If standard error is gone there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "gloo-rs: {message}");
    code
}

/// The exit status of a command that ended so; says why it failed.
fn end(result: Result<(), Failure>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(Failure { message, code }) => fail(&message, code),
    }
}

/// Writes `text` and a line end to standard output, at once.
fn print(text: &str) -> Result<(), String> {
    written(writeln!(std::io::stdout().lock(), "{text}"))
}

/// Completes what was written to standard output. If nobody reads it any more (`| head`), the process ends as others then do:
/// without a word, by SIGPIPE.
fn written(result: io::Result<()>) -> Result<(), String> {
    let result = result.and_then(|()| std::io::stdout().flush());
    if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        // SAFETY: no memory is involved; the default action of SIGPIPE runs no code of this process.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::raise(libc::SIGPIPE);
        }
        // It is blocked.
        std::process::exit(UNREAD.into());
    }
    result.map_err(|error| format!("cannot write to standard output: {error}"))
}

/// Whether standard output is a pipe that nobody reads any more.
fn unread() -> bool {
    let mut poll = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: one entry, as said.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLERR != 0 }
}
