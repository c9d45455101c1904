//! `gloo-rs plot`: draws a chart of given numbers; the benchmarks' scripts use it.

use std::io::Read;
use std::path::PathBuf;

use serde::Deserialize;

use crate::plot::{self, Axis, Bars, Series};
use crate::{Failure, parse};

/// Draw a chart of numbers that are read as JSON from standard input
///
/// Lines: {"title":, "x": {"label":, "unit":}, "y": {...}, "series": [{"name":, "points": [[x, y], ...]}, ...]}; units are bytes,
/// ranks, seconds and number; axes are logarithmic. Bars: {"title":, "label":, "groups": [name, ...], "bars": [{"name":,
/// "values": [...]}, ...]}, with a value, or null, for each group.
#[derive(clap::Args)]
pub struct Args {
    /// The SVG to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Chart<'a> {
    Lines {
        title: String,
        #[serde(borrow)]
        x: Axis<'a>,
        #[serde(borrow)]
        y: Axis<'a>,
        series: Vec<Series>,
    },
    Bars {
        title: String,
        label: String,
        groups: Vec<String>,
        bars: Vec<Bars>,
    },
}

/// Runs the command and returns the exit status.
pub fn run(args: Args) -> u8 {
    crate::end(draw(&args))
}

fn draw(args: &Args) -> Result<(), Failure> {
    let path = &args.file;
    let fails = |why| Failure::usage(format!("cannot write {}: {why}", path.display()));
    parse::writable(path).map_err(fails)?;
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    let chart = serde_json::from_str(&text).map_err(|error| format!("standard input is not a chart: {error}"))?;
    match chart {
        Chart::Lines { title, x, y, series } => {
            let has_logarithm = |value: f64| value > 0.0 && value.is_finite();
            if !series
                .iter()
                .flat_map(|series| &series.points)
                .all(|point| has_logarithm(point.0) && has_logarithm(point.1))
            {
                return Err("logarithmic axes need numbers above 0".to_owned().into());
            }
            plot::lines(path, &title, x, y, &series)?;
        }
        Chart::Bars { title, label, groups, bars } => plot::bars(path, &title, &label, &groups, &bars)?,
    }
    Ok(())
}
