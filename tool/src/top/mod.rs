//! `gloo-rs top`: asks processes that run what their contexts are doing.

mod ask;
mod view;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gloo_rs::net::monitor::Question;

use crate::{Failure, parse};
use ask::ask;

const EXAMPLES: &str = "\
Examples:
  GLOO_RS_TOP=1 gloo-rs run -n 4 -- ./program   a job whose ranks may be asked
  gloo-rs top 4711                              what they are doing, every second; 4711 is the launcher, or any rank
  gloo-rs top --once --json 4711                the same once, as a JSON object
  gloo-rs top --dump /tmp/job_ 4711             write their records, for `gloo-rs diagnose /tmp/job_*`";

/// Show what the ranks of a running job are doing: calls in progress, for how long, for whom they wait, who is late,
/// and bytes
///
/// A process answers if its environment has GLOO_RS_TOP=1, and only its own user and root. Shown are the contexts of
/// the process PID and of all that descend from it, with all ranks of this host that answer.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A rank's process, or one from which ranks descend, such as their launcher
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    process: u32,

    /// Show it once
    #[arg(long)]
    once: bool,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", value_parser = parse::seconds, default_value = "1", conflicts_with = "once")]
    interval: Duration,

    /// Say who is behind in a call once a rank has been in it for so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse::seconds, default_value = "1")]
    late: Duration,

    /// Print JSON: an object in a line for each look
    #[arg(long)]
    json: bool,

    /// Write each rank's record to a file, whose name is PREFIX and the rank; between them, with several contexts, that
    /// of the context
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["json", "once", "interval"])]
    dump: Option<PathBuf>,
}

/// Runs the command, and returns its exit status.
pub fn run(args: &Args) -> u8 {
    crate::end(match &args.dump {
        Some(prefix) => dump(args.process, prefix),
        None => watch(args),
    })
}

fn watch(args: &Args) -> Result<(), Failure> {
    let is_screen = !args.once && !args.json && std::io::stdout().is_terminal();
    let mut before: Option<(Instant, view::Totals)> = None;
    loop {
        let reply = match ask(args.process, Question::Present) {
            // It was there before.
            Err(_) if before.is_some() && !ask::exists(args.process) => return Ok(()),
            reply => reply?,
        };
        let at = Instant::now();
        let (groups, unanswered) = view::groups(reply);
        let patience = u64::try_from(args.late.as_nanos()).unwrap_or(u64::MAX);
        let text = if args.json {
            view::json(&groups, &unanswered, patience)
        } else {
            let since = before.as_ref().map(|(then, totals)| (at.duration_since(*then), totals));
            view::text(&groups, &unanswered, patience, since)
        };
        if is_screen {
            // To the upper left corner, and clear what is below.
            crate::written(write!(std::io::stdout().lock(), "\x1b[H\x1b[J"))?;
        } else if before.is_some() && !args.json {
            crate::print("")?;
        }
        crate::print(text.trim_end())?;
        if args.once {
            return Ok(());
        }
        before = Some((at, view::totals(&groups)));
        std::thread::sleep(args.interval);
    }
}

fn dump(process: u32, prefix: &Path) -> Result<(), Failure> {
    let reply = ask(process, Question::Record)?;
    let (groups, unanswered) = view::groups(reply);
    for group in &groups {
        for (record, (_, document)) in group.records.iter().zip(&group.sources) {
            let mut name = prefix.as_os_str().to_owned();
            if groups.len() > 1 {
                name.push(format!("{}_", group.name));
            }
            name.push(record.rank.to_string());
            std::fs::write(&name, document.get())
                .map_err(|error| Failure::usage(format!("cannot write {}: {error}", name.display())))?;
            crate::print(&name.display().to_string())?;
        }
    }
    if unanswered.is_empty() { Ok(()) } else { Err(view::unanswered(&unanswered).into()) }
}
