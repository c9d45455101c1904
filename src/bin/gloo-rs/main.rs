//! The command-line tool: starts jobs, measures and simulates collectives, and shows what there is.

mod bench;
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

use std::io::Write;
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
}

fn main() -> ExitCode {
    let code = match Cli::parse().command {
        Command::Run(args) => run::run(*args),
        Command::Node => launcher::node::run(),
        Command::Bench(args) => bench::run(*args),
        Command::Tune(args) => tune::run(*args),
        Command::Info(args) => info::run(args),
        Command::List(args) => list::run(args),
        Command::Simulate(args) => simulate::run(*args),
    };
    ExitCode::from(code)
}

/// Says on standard error why the command failed, and returns `code`.
fn fail(message: &str, code: u8) -> u8 {
    // If standard error is gone there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "gloo-rs: {message}");
    code
}

/// Writes `text` and a line end to standard output, at once.
fn print(text: &str) -> Result<(), String> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("cannot write the output: {error}"))
}
