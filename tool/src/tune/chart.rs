//! Charts of the measured times.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gloo_rs::collective::Collective;
use gloo_rs::tuner::file::AUTO;

use super::grid::Point;
use super::report::by_collective;
use crate::origin;
use crate::plot::{self, Axis, Lines, Series, Unit};

/// The file of each collective's chart. A barrier has none, since it has no sizes; if there are several others, the
/// names contain theirs.
pub fn files(path: &Path, collectives: &[Collective]) -> BTreeMap<Collective, PathBuf> {
    let drawn: BTreeSet<Collective> =
        collectives.iter().copied().filter(|collective| *collective != Collective::Barrier).collect();
    let several = drawn.len() > 1;
    let file = |collective: Collective| if several { named(path, collective.name()) } else { path.to_owned() };
    drawn.into_iter().map(|collective| (collective, file(collective))).collect()
}

/// Draws time against bytes, into these [`files`].
pub fn plot(
    files: &BTreeMap<Collective, PathBuf>,
    points: &[Point],
    ranks: usize,
    transport: &str,
) -> Result<(), String> {
    let note = origin::note(&format!("{transport}; {}", origin::machine()));
    for (collective, points) in by_collective(points) {
        let Some(file) = files.get(&collective) else { continue };
        let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for point in points {
            let times = point.times.iter().map(|time| (time.name, time.sample));
            for (name, sample) in times.chain([(AUTO, point.auto.0)]) {
                // A logarithmic axis cannot show a time of zero, which a coarse clock may give.
                lines.entry(name).or_default().push((point.bytes as f64, sample.us.max(1e-3) / 1e6));
            }
        }
        let series: Vec<_> = lines.into_iter().map(|(name, points)| Series { name: name.to_owned(), points }).collect();
        let title = format!("{} over {transport}, {ranks} ranks", collective.name());
        let (bytes, time) = (Axis::new("bytes", Unit::Bytes), Axis::new("time", Unit::Seconds));
        plot::lines(file, &Lines { title: &title, note: &note, x: &bytes, y: &time, series: &series, lowest: true })?;
    }
    Ok(())
}

/// `dir/name-collective.svg`.
fn named(path: &Path, collective: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{collective}.svg"));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_collective_has_a_file_of_its_own() {
        assert_eq!(named(Path::new("/a/b.c.svg"), "reduce"), Path::new("/a/b.c-reduce.svg"));
        assert_eq!(named(Path::new("times"), "reduce"), Path::new("times-reduce.svg"));
        let files =
            |collectives: &[Collective]| -> Vec<_> { files(Path::new("a.svg"), collectives).into_values().collect() };
        let (reduce, scan, barrier) = (Collective::Reduce, Collective::Scan, Collective::Barrier);
        assert_eq!(files(&[reduce, barrier, reduce]), [Path::new("a.svg")]);
        assert_eq!(files(&[reduce, scan]), [Path::new("a-reduce.svg"), Path::new("a-scan.svg")]);
    }
}
