//! The results of tuning: a table or lines of JSON, the tuning file, and charts.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use gloo_rs::collective::Collective;
use gloo_rs::tuner::file::{AUTO, Choice, Tuning};
use serde::Serialize;

use super::crossover::{self, Sample};
use super::grid::Point;
use crate::parse::{self, size_text};

/// A point as `--json` prints it.
#[derive(Serialize)]
struct Row<'a> {
    collective: &'static str,
    ranks: usize,
    bytes: usize,
    best: &'static str,
    best_us: f64,
    /// The algorithm that auto selected.
    auto: &'static str,
    auto_us: f64,
    ratio: f64,
    verified: bool,
    times_us: BTreeMap<&'a str, f64>,
}

/// The summary at the end.
#[derive(Serialize)]
pub struct Summary {
    /// Ratios of the time of auto to that of the best algorithm, over all sizes.
    median_ratio: f64,
    worst_ratio: f64,
    #[serde(skip)]
    worst: String,
    /// By collective, the smallest size that was left out because of the budget.
    pub unmeasured: BTreeMap<&'static str, usize>,
    links: Vec<Constant>,
    /// Other constants of the cost model that were measured, by their names in a tuning file.
    constants: BTreeMap<&'static str, f64>,
    reduction_bytes_per_s: Option<f64>,
}

#[derive(Serialize)]
struct Constant {
    link: &'static str,
    latency_us: f64,
    bandwidth: f64,
}

impl Point {
    /// Returns the best of the algorithms that `auto` may select.
    fn best(&self) -> (&'static str, Sample) {
        let free = self.times.iter().filter(|time| time.free);
        let min = free.min_by(|a, b| a.sample.us.total_cmp(&b.sample.us));
        min.map_or((AUTO, self.auto.0), |time| (time.name, time.sample))
    }

    /// Ratio of the time of `auto` to that of the best algorithm.
    fn ratio(&self) -> f64 {
        if self.best().1.us > 0.0 { self.auto.0.us / self.best().1.us } else { 1.0 }
    }
}

pub fn head(ranks: usize, transport: &str) -> String {
    format!(
        "# {ranks} ranks over {transport}, float32, sum\n{:<18} {:>8}  {:<22}{:>12}  {:<22}{:>12} {:>9} verified",
        "collective", "size", "best", "µs", "auto's choice", "µs", "auto/best"
    )
}

pub fn line(point: &Point, ranks: usize, json: bool) -> Result<String, String> {
    let Point { collective, bytes, times, auto: (auto, chosen), verified, .. } = point;
    let (best, Sample { us, .. }) = point.best();
    if json {
        let times_us = times.iter().map(|time| (time.name, time.sample.us)).collect();
        let row = Row {
            collective: collective.name(),
            ranks,
            bytes: *bytes,
            best,
            best_us: us,
            auto: chosen,
            auto_us: auto.us,
            ratio: point.ratio(),
            verified: *verified,
            times_us,
        };
        return serde_json::to_string(&row).map_err(|error| error.to_string());
    }
    let (name, size, ratio) = (collective.name(), size_text(*bytes), point.ratio());
    let verified = if *verified { "yes" } else { "NO" };
    Ok(format!("{name:<18} {size:>8}  {best:<22}{us:>12.2}  {chosen:<22}{:>12.2} {ratio:>9.2} {verified:>8}", auto.us))
}

impl Summary {
    pub fn new(points: &[Point], tuning: &Tuning, unmeasured: BTreeMap<&'static str, usize>) -> Self {
        let mut ratios: Vec<_> = points.iter().map(|point| (point.ratio(), point)).collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let worst = ratios
            .last()
            .map(|(ratio, point)| (*ratio, format!("{} of {}", point.collective.name(), size_text(point.bytes))));
        let (worst_ratio, worst) = worst.unwrap_or((1.0, String::new()));
        let constant = |link, of: Option<gloo_rs::schedule::cost::Link>| {
            of.map(|of| Constant { link, latency_us: (of.latency * 1e9).round() / 1e3, bandwidth: of.bandwidth })
        };
        Self {
            median_ratio: ratios.get(ratios.len() / 2).map_or(1.0, |(ratio, _)| *ratio),
            worst_ratio,
            worst,
            unmeasured,
            links: [constant("local", tuning.local), constant("remote", tuning.remote)].into_iter().flatten().collect(),
            constants: tuning.constants.clone(),
            reduction_bytes_per_s: tuning.gamma.filter(|gamma| *gamma > 0.0).map(|gamma| 1.0 / gamma),
        }
    }

    pub fn text(&self, json: bool) -> Result<String, String> {
        if json {
            return serde_json::to_string(self).map_err(|error| error.to_string());
        }
        let Self { median_ratio, worst_ratio, worst, unmeasured, links, constants, reduction_bytes_per_s } = self;
        let mut lines = vec![format!("# auto/best: median {median_ratio:.2}, worst {worst_ratio:.2} ({worst})")];
        for Constant { link, latency_us, bandwidth } in links {
            lines.push(format!("# {link}: {latency_us:.2} µs, {:.3} GB/s", bandwidth / 1e9));
        }
        lines.extend(constants.iter().map(|(name, value)| format!("# {name}: {value}")));
        if let Some(bytes) = reduction_bytes_per_s {
            lines.push(format!("# reduction: {:.3} GB/s", bytes / 1e9));
        }
        for (collective, bytes) in unmeasured {
            lines.push(format!("# {collective}: from {} on not measured: --budget does not reach", size_text(*bytes)));
        }
        Ok(lines.join("\n"))
    }
}

/// Up to this size only latency matters: the best algorithm for the smallest measured size is the best for smaller
/// ones.
const SHORT_BYTES: usize = 1 << 10;

/// The choices for the tuning file.
pub fn choices(points: &[Point], ranks: usize, hosts: usize) -> Vec<Choice> {
    let mut choices = Vec::new();
    for (collective, points) in by_collective(points) {
        let names: Vec<_> = collective.algorithms().iter().map(|algorithm| algorithm.name).collect();
        // If only some ranks know the size, auto cannot depend on it.
        if collective != Collective::Barrier && points.iter().any(|point| point.call_bytes == 0) {
            continue;
        }
        let sample = |point: &Point, name| {
            point.times.iter().find(|time| time.free && time.name == name).map(|time| time.sample)
        };
        let row = |point: &&Point| (point.call_bytes, names.iter().map(|name| sample(point, *name)).collect());
        let rows: Vec<crossover::Row> = points.iter().map(row).collect();
        let choice = |up_to, algorithm: &str| Choice {
            collective,
            ranks,
            hosts: Some(hosts),
            up_to,
            algorithm: algorithm.to_owned(),
            segment_bytes: None,
        };
        choices.extend(rows.first().filter(|row| row.0 > SHORT_BYTES).map(|row| choice(row.0 - 1, AUTO)));
        let found = crossover::choices(&rows);
        choices.extend(found.into_iter().map(|(up_to, index)| choice(up_to, names[index])));
    }
    choices
}

/// In the order of collectives; sizes in the order of measurement, which is ascending.
pub fn by_collective(points: &[Point]) -> BTreeMap<Collective, Vec<&Point>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    points.iter().for_each(|point| all.entry(point.collective).or_default().push(point));
    all
}

/// The contents of an existing file, whose entries for other collectives, numbers of ranks and of hosts are kept.
pub fn read(path: &Path) -> Result<Tuning, String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        return Err(format!("--output: there is no directory {}", parent.display()));
    }
    let old = if path.exists() { Tuning::read(path).map_err(|error| error.to_string()) } else { Ok(Tuning::default()) };
    let fails = |why| format!("cannot write {}: {why}", path.display());
    let old = old.and_then(|old| parse::writable(&partial(path)).map(|()| old).map_err(fails));
    old.map_err(|error| format!("--output: {error}"))
}

/// Replaces the entries of `old` for which `new` has entries. Those of `old` for any number of hosts are for that of
/// `new`, too.
pub fn merged(mut old: Tuning, new: Tuning) -> Tuning {
    let replaces = |n: &Choice, choice: &Choice| {
        (n.collective, n.ranks) == (choice.collective, choice.ranks)
            && (choice.hosts.is_none() || choice.hosts == n.hosts)
    };
    old.choices.retain(|choice| !new.choices.iter().any(|n| replaces(n, choice)));
    old.choices.extend(new.choices);
    old.choices.sort_by_key(|choice| (choice.collective, choice.ranks, choice.hosts, choice.up_to));
    Tuning {
        local: new.local.or(old.local),
        remote: new.remote.or(old.remote),
        gamma: new.gamma.or(old.gamma),
        constants: old.constants.into_iter().chain(new.constants).collect(),
        choices: old.choices,
        links: if new.links.is_empty() { old.links } else { new.links },
    }
}

/// The temporary file.
fn partial(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parent.join(format!(".gloo-rs-tune.{}", std::process::id()))
}

/// Writes the file atomically.
pub fn write(path: &Path, tuning: &Tuning) -> Result<(), String> {
    let partial = partial(path);
    let written = std::fs::File::create(&partial)
        .and_then(|mut file| file.write_all(tuning.to_toml().as_bytes()))
        .and_then(|()| std::fs::rename(&partial, path));
    written.map_err(|error| {
        // The file may not even exist.
        let _ = std::fs::remove_file(&partial);
        format!("cannot write {}: {error}", path.display())
    })
}
