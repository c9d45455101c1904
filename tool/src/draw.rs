//! `gloo-rs plot`: draws a chart of given numbers; the benchmarks' scripts use it.

use std::io::Read;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::plot::{self, Axis, Bars, Lines, Series};
use crate::{Failure, parse};

const EXAMPLES: &str = "\
Examples:
  gloo-rs plot times.svg < times.json";

/// Draw a chart of numbers that are read as JSON from standard input
///
/// Lines: {"title":, "x": {"label":, "unit":}, "y": {...}, "series": [{"name":, "points": [[x, y], ...]}, ...]}; units
/// are bytes, ranks, seconds and number; axes are logarithmic. Bars: {"title":, "label":, "groups": [name, ...],
/// "bars": [{"name":, "values": [...]}, ...]}, with a value, or null, for each group. Both may have a "note", which
/// stands below
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The SVG to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineChart {
    title: String,
    #[serde(default)]
    note: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BarChart {
    title: String,
    #[serde(default)]
    note: String,
    label: String,
    groups: Vec<String>,
    bars: Vec<Bars>,
}

/// The keys that tell the charts apart, so that errors can name what the one that is meant lacks.
#[derive(Deserialize)]
struct Keys {
    series: Option<IgnoredAny>,
    bars: Option<IgnoredAny>,
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    crate::end(draw(&args))
}

fn draw(args: &Args) -> Result<(), Failure> {
    let path = &args.file;
    let fails = |why| Failure::usage(format!("cannot write {}: {why}", path.display()));
    parse::writable_chart(path).map_err(fails)?;
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    let keys: Keys = parsed(&text)?;
    match (keys.series.is_some(), keys.bars.is_some()) {
        (true, false) => {
            let LineChart { title, note, x, y, series } = parsed(&text)?;
            let has_logarithm = |value: f64| value > 0.0 && value.is_finite();
            let mut points = series.iter().flat_map(|series| &series.points);
            if !points.all(|point| has_logarithm(point.0) && has_logarithm(point.1)) {
                return Err("logarithmic axes need numbers above 0".to_owned().into());
            }
            let chart = Lines { title: &title, note: &note, x: &x, y: &y, series: &series, lowest: false };
            plot::lines(path, &chart)?;
        }
        (false, true) => {
            let BarChart { title, note, label, groups, bars } = parsed(&text)?;
            plot::bars(path, (&title, &note), &label, &groups, &bars)?;
        }
        _ => return Err("standard input is not a chart: it has either `series` or `bars`".to_owned().into()),
    }
    Ok(())
}

fn parsed<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("standard input is not a chart: {error}"))
}
