//! The command-line tool: starts jobs, measures and simulates collectives, and lists what is available.

mod bench;
mod diagnose;
mod draw;
mod explain;
mod info;
#[cfg(target_os = "linux")]
mod launcher;
mod list;
mod origin;
mod pages;
mod parse;
mod plot;
mod progress;
mod ranks;
#[cfg(target_os = "linux")]
mod run;
mod simulate;
#[cfg(test)]
#[path = "../../src/testing/tier.rs"]
mod tier;
#[cfg(target_os = "linux")]
mod top;
mod trace;
mod tune;
mod verbs;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

const EXAMPLES: &str = "\
Examples:
  gloo-rs run -n 4 -- ./program                  start four ranks on this host
  gloo-rs bench allreduce -n 4 --sizes 4..64Mi:4  how long an allreduce of each size takes
  gloo-rs info                                   what this build and this host have

`gloo-rs COMMAND --help` explains a command's options.";

/// Collective communications for training jobs: start jobs, measure, simulate, and list what is available
#[derive(Parser)]
#[command(name = "gloo-rs", version, about, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    #[cfg(target_os = "linux")]
    Run(Box<run::Args>),
    /// Used by `run --hosts` on each host
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Node(launcher::node::Args),
    Bench(Box<bench::Args>),
    Diagnose(diagnose::Args),
    #[cfg(target_os = "linux")]
    Top(top::Args),
    Tune(Box<tune::Args>),
    Info(info::Args),
    List(list::Args),
    Simulate(Box<simulate::Args>),
    Plot(draw::Args),
    /// Used by the build: writes man pages, and completion for shells
    #[command(hide = true)]
    Pages(pages::Args),
}

/// An error of a command.
#[derive(Debug)]
pub struct Failure {
    /// The message for the user.
    pub message: String,
    /// Exit status: [`USAGE`], [`FAILED`], or 126 or 127, as of a shell, for a program that could not be started.
    pub code: u8,
}

/// Exit status: the command line is invalid, and nothing was done.
pub const USAGE: u8 = 2;
/// Exit status: the command failed.
pub const FAILED: u8 = 1;
/// Exit status of a job that has reached its time limit, as that of timeout(1).
pub const TIMED_OUT: u8 = 124;
/// Exit status of a process whose output is no longer read, as a shell reports one that SIGPIPE killed.
pub const UNREAD: u8 = 128 + 13;

impl Failure {
    /// An error in the command line.
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
    let args = std::env::args_os();
    #[cfg(target_os = "linux")]
    let args = run::as_clap_reads_them(args.collect());
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => return refuse(&error),
        // Help or the version.
        Err(text) => return ExitCode::from(end(written(text.print()).map_err(Failure::from))),
    };
    let code = match cli.command {
        #[cfg(target_os = "linux")]
        Command::Run(args) => run::run(*args),
        #[cfg(target_os = "linux")]
        Command::Node(args) => launcher::node::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Diagnose(args) => diagnose::run(args),
        #[cfg(target_os = "linux")]
        Command::Top(args) => top::run(&args),
        Command::Tune(args) => tune::run(*args),
        Command::Info(args) => info::run(args),
        Command::List(args) => list::run(args),
        Command::Simulate(args) => simulate::run(*args),
        Command::Plot(args) => draw::run(args),
        Command::Pages(args) => pages::run(args, Cli::command()),
    };
    ExitCode::from(code)
}

/// Prints why the command failed to standard error, and returns `code`.
fn fail(message: &str, code: u8) -> u8 {
    say(message);
    code
}

/// Prints what is wrong with the command line, and returns the exit status.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.render();
    let mut stderr = std::io::stderr();
    let text = if stderr.is_terminal() { text.ansi().to_string() } else { text.to_string() };
    // The text has colours only on a terminal, as in `say`.
    let _ = stderr.write_all(text.as_bytes());
    ExitCode::from(USAGE)
}

/// Prints a message to standard error.
fn say(message: &str) {
    // In one write, so that those of several ranks do not mix. If standard error cannot be written either, the message
    // is lost.
    let _ = std::io::stderr().write_all(format!("gloo-rs: {message}\n").as_bytes());
}

/// The exit status of a command with this result; prints the error.
fn end(result: Result<(), Failure>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(Failure { message, code }) => fail(&message, code),
    }
}

/// Writes `text` and a newline to standard output, and flushes it.
fn print(text: &str) -> Result<(), String> {
    written(writeln!(std::io::stdout().lock(), "{text}"))
}

/// Flushes standard output. If its reader has ended (`| head`), the process ends silently by SIGPIPE, as other programs
/// do.
fn written(result: io::Result<()>) -> Result<(), String> {
    let result = result.and_then(|()| std::io::stdout().flush());
    if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        #[cfg(unix)]
        // SAFETY: neither call accesses memory of this process; the default action of SIGPIPE runs none of its code.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::raise(libc::SIGPIPE);
        }
        // SIGPIPE is blocked, or this system has none.
        std::process::exit(UNREAD.into());
    }
    result.map_err(|error| format!("cannot write to standard output: {error}"))
}

/// Whether standard output is a pipe whose reader has ended.
#[cfg(unix)]
fn unread() -> bool {
    let mut poll = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: `poll` is one entry, as the count says, and lives until the call returns.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLERR != 0 }
}

/// `false`: this system does not tell.
#[cfg(not(unix))]
fn unread() -> bool {
    false
}
