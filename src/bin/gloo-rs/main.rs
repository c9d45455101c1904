//! The command-line tool: starts jobs, measures collectives, and shows what there is.

mod launcher;
mod parse;
mod run;

use std::process::ExitCode;

use clap::Parser;

/// Collective communications for training jobs: start jobs, measure, and see what there is
#[derive(Parser)]
#[command(name = "gloo-rs", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(run::Args),
}

fn main() -> ExitCode {
    let code = match Cli::parse().command {
        Command::Run(args) => run::run(args),
    };
    ExitCode::from(code)
}

/// Says on standard error why the command failed, and returns `code`.
fn fail(message: &str, code: u8) -> u8 {
    eprintln!("gloo-rs: {message}");
    code
}
