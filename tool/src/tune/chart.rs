//! Charts of the measured times.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gloo_rs::collective::Collective;
use gloo_rs::tuner::file::AUTO;

use super::grid::Point;
use super::report::by_collective;
use crate::plot::{self, Axis, Series, Unit};

/// Draws time against bytes, one chart for each collective with sizes; if there are several, the file's name contains the collective.
pub fn plot(path: &Path, points: &[Point], ranks: usize, transport: &str) -> Result<(), String> {
    let mut all = by_collective(points);
    all.remove(&Collective::Barrier);
    let several = all.len() > 1;
    for (collective, points) in all {
        let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for point in points {
            let times = point.times.iter().map(|time| (time.name, time.sample));
            for (name, sample) in times.chain([(AUTO, point.auto.0)]) {
                // A logarithmic axis cannot show a time of zero, which a coarse clock may give.
                lines.entry(name).or_default().push((point.bytes as f64, sample.us.max(1e-3) / 1e6));
            }
        }
        let series: Vec<_> = lines.into_iter().map(|(name, points)| Series { name: name.to_owned(), points }).collect();
        let file = if several { named(path, collective.name()) } else { path.to_owned() };
        let title = format!("{} over {transport}, {ranks} ranks", collective.name());
        let (bytes, time) = (Axis::new("bytes", Unit::Bytes), Axis::new("time", Unit::Seconds));
        plot::lines(&file, &title, &bytes, &time, &series)?;
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
    }
}
