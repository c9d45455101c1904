//! Charts as SVG files, over the `plotters` crate.
//!
//! Series differ by colour and by marker: the colours are those that people with any common colour blindness tell apart (Okabe
//! and Ito 2008), and there are more pairs of both than there are algorithms.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::parse::{duration_text, size_text};

/// Colours of series, in the order in which they are given out.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
const MARKERS: usize = 4;

const SIZE: (u32, u32) = (1000, 600);
const LEGEND: u32 = 210;

/// What an axis counts, and so how its ticks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `4`, `1Ki`, `64Mi`.
    Bytes,
    /// Plain numbers, in powers of two.
    Ranks,
    /// Seconds: `10 µs`, `1 ms`.
    Seconds,
}

/// An axis with a logarithmic scale.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// What stands beside it.
    pub label: &'a str,
    /// What it counts.
    pub unit: Unit,
}

/// A line with a marker at each point; both coordinates of a point are above 0.
#[derive(Clone, Debug)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

impl Unit {
    fn base(self) -> f64 {
        match self {
            Self::Bytes | Self::Ranks => 2.0,
            Self::Seconds => 10.0,
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Bytes => size_text(value.round() as usize),
            Self::Ranks => format!("{}", value.round()),
            Self::Seconds => duration_text(value),
        }
    }

    /// Powers of the base around `values`, and how many powers lie between two ticks, of which there are to be `ticks` at most.
    fn range(self, values: impl Iterator<Item = f64> + Clone, ticks: i32) -> (std::ops::Range<f64>, f64) {
        let log = |value: f64| value.ln() / self.base().ln();
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(log(value)), high.max(log(value)));
        }
        // A value that is a power of the base lies on the frame.
        let (low, mut high) = ((low + 1e-9).floor(), (high - 1e-9).ceil());
        high = high.max(low + 1.0);
        let every = ((high - low) / f64::from(ticks)).ceil();
        (self.base().powf(low)..self.base().powf(low + every * ((high - low) / every).ceil()), self.base().powf(every))
    }
}

/// Draws `series` on logarithmic axes and writes the SVG to `path`.
pub fn lines(path: &Path, title: &str, x: Axis<'_>, y: Axis<'_>, series: &[Series]) -> Result<(), String> {
    if series.iter().all(|series| series.points.is_empty()) {
        return Err(format!("{}: there is nothing to plot", path.display()));
    }
    write(path, SIZE, |area| {
        let (area, legend) = area.split_horizontally(SIZE.0 - LEGEND);
        let points = series.iter().flat_map(|series| &series.points);
        let (x_range, x_base) = x.unit.range(points.clone().map(|point| point.0), 14);
        let (y_range, y_base) = y.unit.range(points.map(|point| point.1), 10);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(45)
            .y_label_area_size(75)
            .build_cartesian_2d(x_range.log_scale().base(x_base), y_range.log_scale().base(y_base))?;
        chart
            .configure_mesh()
            .x_desc(x.label)
            .y_desc(y.label)
            .x_labels(15)
            .y_labels(11)
            .x_label_formatter(&|value| x.unit.text(*value))
            .y_label_formatter(&|value| y.unit.text(*value))
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .bold_line_style(BLACK.mix(0.15))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (index, Series { points, .. }) in series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            chart.draw_series([PathElement::new(points.clone(), colour.stroke_width(2))])?;
            chart.draw_series(points.iter().map(|&point| EmptyElement::at(point) + marker(index)))?;
        }
        for (index, Series { name, .. }) in series.iter().enumerate() {
            let y = 60 + 22 * index as i32;
            let colour = COLOURS[index % COLOURS.len()];
            legend.draw(&PathElement::new(vec![(0, y), (30, y)], colour.stroke_width(2)))?;
            legend.draw(&(EmptyElement::at((15, y)) + marker(index)))?;
            legend.draw(&Text::new(name.clone(), (38, y - 6), ("sans-serif", 14)))?;
        }
        Ok(())
    })
}

/// The marker of the series with that index, around the place that it is put at.
fn marker(index: usize) -> Polygon<(i32, i32)> {
    // Each round of colours begins with another marker, and neighbours differ as well.
    let corners: &[(i32, i32)] = match (index + index / COLOURS.len()) % MARKERS {
        0 => &[(-5, -2), (-2, -5), (2, -5), (5, -2), (5, 2), (2, 5), (-2, 5), (-5, 2)],
        1 => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
        2 => &[(0, -6), (6, 5), (-6, 5)],
        _ => &[(-6, 0), (0, -6), (6, 0), (0, 6)],
    };
    Polygon::new(corners, COLOURS[index % COLOURS.len()].filled())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Draws on white, and writes the file only if all went well.
fn write(
    path: &Path,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Failed<'static>>,
) -> Result<(), String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let drawn = area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present());
        drawn.map_err(|error| format!("cannot draw {}: {error}", path.display()))?;
    }
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_powers_that_hold_all_values() {
        let range = |unit: Unit, values: &[f64], ticks| unit.range(values.iter().copied(), ticks);
        assert_eq!(range(Unit::Bytes, &[4.0, 1024.0], 14), (4.0..1024.0, 2.0));
        assert_eq!(range(Unit::Bytes, &[1.0, f64::from(1 << 20)], 14), (1.0..f64::from(1 << 20), 4.0));
        assert_eq!(range(Unit::Ranks, &[3.0, 5.0], 14), (2.0..8.0, 2.0));
        assert_eq!(range(Unit::Ranks, &[8.0], 14), (8.0..16.0, 2.0));
        let (time, base) = range(Unit::Seconds, &[2e-6, 0.5], 10);
        assert!((time.start * 1e6 - 1.0).abs() < 1e-9 && (time.end - 1.0).abs() < 1e-9 && base == 10.0, "{time:?}");
    }

    #[test]
    fn a_chart_has_a_line_for_each_series() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let named = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.into() };
        let series: Vec<_> =
            (1..=9).map(|i| named(&format!("a<{i}>"), &[(4.0, 1e-6 * f64::from(i)), (64e6, 0.1)])).collect();
        let (x, y) = (Axis { label: "bytes", unit: Unit::Bytes }, Axis { label: "time", unit: Unit::Seconds });
        lines(file.path(), "title & more", x, y, &series).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("title &amp; more") && text.contains("a&lt;9&gt;"), "what is special in XML is escaped");
        assert!(text.contains("1Ki") && text.contains("100 µs"), "ticks are written in units");
        let polylines = text.matches("stroke-width=\"2\"").count();
        assert!(polylines >= 18, "{polylines}: a line in the chart and one in the legend");
        let error = lines(file.path(), "title", x, y, &[]).unwrap_err();
        assert!(error.contains("nothing to plot"), "{error}");
        let error = lines(Path::new("/nowhere/a.svg"), "title", x, y, &series).unwrap_err();
        assert!(error.contains("cannot write /nowhere/a.svg"), "{error}");
    }
}
