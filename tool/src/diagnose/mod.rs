//! `gloo-rs diagnose`: compares what the flight recorders of a job's ranks have written.

pub mod analysis;
mod pickle;
pub mod record;
#[cfg(test)]
mod tests;
mod timeline;

use std::fmt::Write;
use std::path::PathBuf;

use crate::{Failure, trace};
use analysis::{Behind, Disagreement, Findings, Stuck, compare};
use record::{Entry, Record};

const EXAMPLES: &str = "\
Examples:
  GLOO_RS_RECORDER=/tmp/job_ gloo-rs run -n 4 -- ./program   each rank writes a file if a collective fails
  gloo-rs diagnose /tmp/job_*                                who was behind, and who disagreed
  gloo-rs diagnose --trace /tmp/job.json /tmp/job_*          the calls of all ranks against time, for Perfetto
  gloo-rs diagnose --pickle /tmp/torch_ /tmp/job_*           the same records, for PyTorch's torchfrtrace";

/// Compare what the flight recorders of a context's ranks have written: which rank is behind, in which call, and which
/// ranks disagree
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files of one context, one of each rank
    #[arg(required = true, value_name = "FILES")]
    files: Vec<PathBuf>,

    /// Write each record as a file PREFIX and rank, which PyTorch's torchfrtrace reads; calls for which that has no
    /// name are left out
    #[arg(long, value_name = "PREFIX")]
    pickle: Option<PathBuf>,

    /// Write a Chrome trace, which Perfetto shows: the calls of all ranks against time, by the clocks of their hosts
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs the command, and returns its exit status.
pub fn run(args: Args) -> u8 {
    crate::end(diagnose(&args))
}

fn diagnose(args: &Args) -> Result<(), Failure> {
    let mut records = Vec::new();
    for path in &args.files {
        let record = Record::read(path)?;
        let other = records.iter().position(|other: &Record| other.rank == record.rank);
        if let Some(other) = other {
            let (first, second) = (args.files[other].display(), path.display());
            return Err(Failure::usage(format!("{first} and {second} are both of rank {}", record.rank)));
        }
        if let Some(first) = records.first().filter(|first: &&Record| first.size != record.size) {
            let (own, path) = (record.size, path.display());
            return Err(Failure::usage(format!(
                "{path} is of a context of {own} ranks, and {} of one of {}: these are not of one context",
                args.files[0].display(),
                first.size
            )));
        }
        records.push(record);
    }
    if let Some(prefix) = &args.pickle {
        for (path, record) in args.files.iter().zip(&records) {
            pickle::convert(path, prefix, record.rank)?;
        }
    }
    records.sort_by_key(|record| record.rank);
    if let Some(path) = &args.trace {
        let (spans, about) = timeline::spans(&records);
        trace::write(path, spans, &about).map_err(Failure::usage)?;
    }
    Ok(crate::print(report(&records).trim_end())?)
}

/// What the records show, for a reader.
fn report(records: &[Record]) -> String {
    let found = compare(records);
    let size = records.first().map_or(0, |record| record.size);
    let mut text = format!("{size} ranks, of which {} have a record here\n", records.len());
    text.push_str(&findings(records, &found));
    if found == (Findings { missing: found.missing.clone(), ..Findings::default() }) {
        text.push_str("no call is in progress or has failed, and all that are in several records are the same\n");
    }
    // Nothing fails that writes to a string.
    if !found.missing.is_empty() {
        let _ = writeln!(text, "{} no record here: lost, or not at its end", has(&found.missing));
    }
    for record in records {
        if let Some(broken) = &record.broken {
            let _ = writeln!(text, "rank {} says: {broken}", record.rank);
        }
    }
    text
}

/// What was found in the records: who is behind, who disagrees, and in which calls all are.
pub fn findings(records: &[Record], found: &Findings) -> String {
    let mut text = String::new();
    // Nothing fails that writes to a string.
    found.disagreements.iter().for_each(|one| disagreement(&mut text, records, one));
    found.behind.iter().for_each(|one| behind(&mut text, records, one));
    found.stuck.iter().for_each(|one| stuck(&mut text, records, one, found));
    text
}

fn behind(text: &mut String, records: &[Record], one: &Behind) {
    let Behind { collective, tag, number, inside, behind, elsewhere } = one;
    let call = format!("{collective} number {number} on tag {tag}");
    let _ = writeln!(text, "{} behind: not in {call}, in which {}", is(behind), is(inside));
    calls(text, records, one.key(), inside);
    for record in of(records, behind) {
        let _ = match elsewhere.iter().find(|(rank, _)| *rank == record.rank) {
            Some((rank, at)) => {
                let entry = &record.entries[*at];
                writeln!(text, "  rank {rank}: in {} instead: {}", named(entry), entry.progress(record.time_ns))
            }
            None => {
                let last = record.entries.last();
                let last = last.map_or("after none".to_owned(), |last| {
                    format!("its last was {}, {}", named(last), last.progress(record.time_ns))
                });
                writeln!(text, "  rank {}: in no collective; {last}", record.rank)
            }
        };
    }
}

fn disagreement(text: &mut String, records: &[Record], one: &Disagreement) {
    let Disagreement { collective, tag, number, groups } = one;
    let _ = writeln!(text, "ranks disagree about {collective} number {number} on tag {tag}");
    for group in groups {
        let first = of(records, group).next().and_then(|record| find(record, (collective, *tag, *number)));
        if let Some(entry) = first {
            let _ = writeln!(text, "  {}: {} (fingerprint {})", ranks(group), entry.what(), entry.fingerprint);
        }
    }
}

fn stuck(text: &mut String, records: &[Record], one: &Stuck, found: &Findings) {
    let Stuck { collective, tag, number, inside, ended, waits_for_none } = one;
    let call = format!("{collective} number {number} on tag {tag}");
    let whole = if found.missing.is_empty() { "all ranks have" } else { "all ranks with a record have" };
    let _ = writeln!(text, "{} in {call}, which {whole} begun", is(inside));
    calls(text, records, (collective, *tag, *number), inside);
    if !ended.is_empty() {
        let _ = writeln!(text, "  {}: ended it", ranks(ended));
    }
    if !waits_for_none.is_empty() && waits_for_none.len() < inside.len() {
        let _ = writeln!(text, "  {} for none of the others there", waits(waits_for_none));
    }
}

/// A line for each of these ranks about the call `key`.
fn calls(text: &mut String, records: &[Record], key: (&str, u64, u32), inside: &[usize]) {
    for record in of(records, inside) {
        if let Some(entry) = find(record, key) {
            let _ = writeln!(text, "  rank {}: {}, {}", record.rank, entry.what(), entry.progress(record.time_ns));
            if !entry.waits.is_empty() {
                let _ = writeln!(text, "    {}", entry.waits);
            }
        }
    }
}

impl Behind {
    fn key(&self) -> (&str, u64, u32) {
        (&self.collective, self.tag, self.number)
    }
}

fn of<'a>(records: &'a [Record], ranks: &'a [usize]) -> impl Iterator<Item = &'a Record> {
    records.iter().filter(|record| ranks.contains(&record.rank))
}

fn find<'a>(record: &'a Record, (collective, tag, number): (&str, u64, u32)) -> Option<&'a Entry> {
    record.entries.iter().find(|entry| (entry.line(), entry.number) == ((collective, tag), number))
}

fn named(entry: &Entry) -> String {
    format!("{} number {} on tag {}", entry.collective, entry.number, entry.tag)
}

/// `rank 2`, or `ranks 0, 1 and 3`.
pub fn ranks(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".into(),
        [rank] => format!("rank {rank}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(usize::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

fn is(of: &[usize]) -> String {
    format!("{} {}", ranks(of), if of.len() > 1 { "are" } else { "is" })
}

fn has(of: &[usize]) -> String {
    format!("{} {}", ranks(of), if of.len() > 1 { "have" } else { "has" })
}

fn waits(of: &[usize]) -> String {
    format!("{} {}", ranks(of), if of.len() > 1 { "wait" } else { "waits" })
}
