//! Compares several algorithms over several sizes or numbers of ranks.

use gloo_rs::collective::Algorithm;
use gloo_rs::tuner::file::AUTO;

use super::{Args, Point};
use crate::origin;
use crate::parse::{counted, duration_text, size_text};
use crate::plot::{self, Axis, Lines, Series, Unit};
use crate::progress::Progress;

/// Simulates each algorithm at each point, prints a table or lines of JSON, and draws the chart.
pub fn run(args: &Args) -> Result<(), String> {
    let by_ranks = args.ranks.0.len() > 1;
    let places: Vec<(usize, usize)> = match by_ranks {
        true => args.ranks.0.iter().map(|&ranks| (ranks, args.bytes.0[0])).collect(),
        false => args.bytes.0.iter().map(|&bytes| (args.ranks.0[0], bytes)).collect(),
    };
    let algorithms = algorithms(args)?;
    let mut played = false;
    let name = |x: usize| if by_ranks { x.to_string() } else { size_text(x) };
    let width = |algorithm: &Algorithm| algorithm.name.len().max(8) + 2;
    let mut head = format!("{:>8}", if by_ranks { "ranks" } else { "bytes" });
    head.extend(algorithms.iter().map(|algorithm| format!("{:>1$}", algorithm.name, width(algorithm))));
    let mut times: Vec<Vec<(f64, f64)>> = vec![Vec::new(); algorithms.len()];
    // If all algorithms are compared: the one that auto selects.
    let mut auto = Vec::new();
    let mut network = String::new();
    let mut refused: Vec<Option<String>> = vec![None; algorithms.len()];
    let progress = Progress::of((places.len() * algorithms.len()) as u64, true);
    for (index, &(ranks, bytes)) in places.iter().enumerate() {
        let point = Point::new(args, ranks, bytes)?;
        network.clone_from(&point.surroundings.text);
        let x = if by_ranks { ranks } else { bytes };
        let mut line = format!("{:>8}", name(x));
        let cheapest = point.cheapest().ok();
        for (number, &algorithm) in algorithms.iter().enumerate() {
            progress.reach((index * algorithms.len() + number) as u64, format!("{} {}", algorithm.name, name(x)));
            let text = match point.run(algorithm, &[]) {
                Ok((row, simulation)) => {
                    if args.json {
                        let row = serde_json::to_string(&row).map_err(|error| error.to_string())?;
                        progress.suspend(|| crate::print(&row))?;
                    }
                    // A logarithmic axis cannot show a time of zero.
                    if simulation.seconds > 0.0 {
                        times[number].push((x as f64, simulation.seconds));
                        let chosen = cheapest.is_some_and(|cheapest| std::ptr::eq(cheapest, algorithm));
                        auto.extend(chosen.then_some((x as f64, simulation.seconds)));
                    }
                    played = true;
                    duration_text(simulation.seconds)
                }
                Err(error) => {
                    refused[number].get_or_insert(error);
                    "-".to_owned()
                }
            };
            line.push_str(&format!("{text:>0$}", width(algorithm)));
        }
        if !args.json {
            let text = if index == 0 { format!("{head}\n{line}") } else { line };
            progress.suspend(|| crate::print(&text))?;
        }
    }
    drop(progress);
    let notes: Vec<String> = algorithms
        .iter()
        .zip(&refused)
        .filter_map(|(algorithm, why)| Some(format!("- {}: {}", algorithm.name, why.as_ref()?)))
        .collect();
    if !played {
        return Err(format!("none of the algorithms can do it:\n{}", notes.join("\n")));
    }
    if !args.json && !notes.is_empty() {
        crate::print(&notes.join("\n"))?;
    }
    let Some(path) = &args.plot else { return Ok(()) };
    let (x, of) = match by_ranks {
        true => {
            let bytes = size_text(args.bytes.0[0]);
            (Axis::new("ranks", Unit::Ranks), format!("{bytes} bytes"))
        }
        false => (Axis::new("bytes", Unit::Bytes), counted(args.ranks.0[0], "rank")),
    };
    let series = algorithms.iter().zip(times).filter(|(_, points)| !points.is_empty());
    let series = series.map(|(algorithm, points)| Series { name: algorithm.name.into(), points });
    let all = algorithms.len() == args.collective.algorithms().len();
    let auto = (all && !auto.is_empty()).then(|| Series { name: AUTO.into(), points: auto });
    let series: Vec<_> = series.chain(auto).collect();
    let title = format!("{} of {of}, simulated", args.collective.name());
    let (note, time) = (origin::note(&network), Axis::new("time", Unit::Seconds));
    plot::lines(path, &Lines { title: &title, note: &note, x: &x, y: &time, series: &series, lowest: true })
}

/// The named algorithms, or all.
fn algorithms(args: &Args) -> Result<Vec<&'static Algorithm>, String> {
    if args.algorithm.is_empty() || args.algorithm.iter().any(|name| name == "all") {
        return Ok(args.collective.algorithms().iter().collect());
    }
    let named = args.algorithm.iter().map(|name| args.collective.algorithm(name));
    named.collect::<Result<_, _>>().map_err(|error| error.to_string())
}
