//! Charts as SVG files, over the `plotters` crate.
//!
//! Series differ by colour, and also by marker and dashes, for readers who do not see colours. The colours can be distinguished with
//! any common colour blindness (Okabe and Ito 2008), and there are at least as many pairs of marker and dashes as a collective has algorithms.
//! The series `auto` is a thick black line on top of all others.

use std::path::Path;

use gloo_rs::schedule::simulate::{Activity, Trace};
use gloo_rs::tuner::file::AUTO;
use gloo_rs::types::Rank;
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Deserialize;

use crate::parse::{duration_text, size_text, unit_of_duration};

/// Colours of series, in the order of their use.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const MARKERS: usize = 5;
/// Pixels of a dash and of the gap after it, used in turn when all markers are used; the first is a solid line.
const DASHES: [Option<(i32, i32)>; 4] = [None, Some((9, 5)), Some((2, 4)), Some((16, 10))];

const GRID: RGBColor = RGBColor(215, 215, 215);
const SIZE: (u32, u32) = (1000, 600);
const LEGEND: u32 = 210;

/// The unit of an axis, which determines how its ticks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// `4`, `1Ki`, `64Mi`.
    Bytes,
    /// Plain numbers, in powers of two.
    Ranks,
    /// Seconds: `10 µs`, `1 ms`.
    Seconds,
    /// Plain numbers, in powers of ten.
    Number,
}

/// An axis with a logarithmic scale.
#[derive(Clone, Debug, Deserialize)]
pub struct Axis {
    pub label: String,
    pub unit: Unit,
}

impl Axis {
    pub fn new(label: &str, unit: Unit) -> Self {
        Self { label: label.to_owned(), unit }
    }
}

/// A line with a marker at each point; both coordinates of a point are above 0.
#[derive(Clone, Debug, Deserialize)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Ordered by x.
    pub points: Vec<(f64, f64)>,
}

impl Unit {
    fn base(self) -> f64 {
        match self {
            Self::Bytes | Self::Ranks => 2.0,
            Self::Seconds | Self::Number => 10.0,
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Bytes => size_text(value.round() as usize),
            Self::Ranks => format!("{}", value.round()),
            Self::Seconds => duration_text(value),
            // Powers of ten: numbers below 1 have only the digits that they need.
            Self::Number => format!("{value:.0$}", (-value.log10().round()).max(0.0) as usize),
        }
    }

    /// Powers of the base that enclose `values`, and how many powers lie between two ticks, so that there are at most `ticks`.
    fn range(self, values: impl Iterator<Item = f64> + Clone, ticks: i32) -> (std::ops::Range<f64>, f64) {
        let log = |value: f64| value.ln() / self.base().ln();
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(log(value)), high.max(log(value)));
        }
        // A value that is a power of the base is on the frame.
        let (low, mut high) = ((low + 1e-9).floor(), (high - 1e-9).ceil());
        high = high.max(low + 1.0);
        let every = ((high - low) / f64::from(ticks)).ceil();
        (self.base().powf(low)..self.base().powf(low + every * ((high - low) / every).ceil()), self.base().powf(every))
    }
}

/// Draws `series` on logarithmic axes and writes the SVG to `path`.
pub fn lines(path: &Path, title: &str, x: &Axis, y: &Axis, series: &[Series]) -> Result<(), String> {
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
            .x_desc(&*x.label)
            .y_desc(&*y.label)
            .x_labels(15)
            .y_labels(11)
            .x_label_formatter(&|value| x.unit.text(*value))
            .y_label_formatter(&|value| y.unit.text(*value))
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        // The last one drawn is on top.
        let styled = styles(series);
        for (Series { points, .. }, style) in styled.iter().rev() {
            match style.dash {
                None => chart.draw_series([PathElement::new(points.clone(), style.stroke())])?,
                Some((dash, gap)) => {
                    chart.draw_series([DashedPathElement::new(points.clone(), dash, gap, style.stroke())])?
                }
            };
            chart.draw_series(points.iter().map(|&point| EmptyElement::at(point) + style.marker()))?;
        }
        for (index, (Series { name, .. }, style)) in styled.iter().enumerate() {
            let y = 60 + 22 * index as i32;
            let ends = vec![(0, y), (36, y)];
            match style.dash {
                None => legend.draw(&PathElement::new(ends, style.stroke()))?,
                Some((dash, gap)) => legend.draw(&DashedPathElement::new(ends, dash, gap, style.stroke()))?,
            }
            legend.draw(&(EmptyElement::at((18, y)) + style.marker()))?;
            legend.draw(&Text::new(name.clone(), (44, y - 6), ("sans-serif", 14)))?;
        }
        Ok(())
    })
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Style {
    colour: RGBColor,
    width: u32,
    marker: usize,
    dash: Option<(i32, i32)>,
}

/// Each series with its style; `auto` comes first.
fn styles(series: &[Series]) -> Vec<(&Series, Style)> {
    let (auto, others): (Vec<_>, Vec<_>) = series.iter().partition(|series| series.name == AUTO);
    let thick = Style { colour: BLACK, width: 5, marker: 0, dash: None };
    let others = others.into_iter().enumerate().map(|(index, series)| (series, Style::of(index)));
    auto.into_iter().map(|series| (series, thick)).chain(others).collect()
}

impl Style {
    fn of(index: usize) -> Self {
        let dash = DASHES[index / MARKERS % DASHES.len()];
        // The numbers of colours and of markers have no common divisor, so that markers repeat with other colours.
        Self { colour: COLOURS[index % COLOURS.len()], width: 2, marker: index % MARKERS, dash }
    }

    fn stroke(self) -> ShapeStyle {
        self.colour.stroke_width(self.width)
    }

    /// The coordinates of the marker around its centre.
    fn marker(self) -> Polygon<(i32, i32)> {
        let corners: &[(i32, i32)] = match self.marker {
            0 => &[(-5, -2), (-2, -5), (2, -5), (5, -2), (5, 2), (2, 5), (-2, 5), (-5, 2)],
            1 => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
            2 => &[(0, -6), (6, 5), (-6, 5)],
            3 => &[(-6, 0), (0, -6), (6, 0), (0, 6)],
            _ => &[(0, 6), (6, -5), (-6, -5)],
        };
        Polygon::new(corners, self.colour.filled())
    }
}

/// One series of bars, with one in each group, and its name in the legend.
#[derive(Clone, Debug, Deserialize)]
pub struct Bars {
    pub name: String,
    /// At least 0; None if the group has no such bar.
    pub values: Vec<Option<f64>>,
}

/// Draws a group of bars for each of `groups`, on an axis from 0, and writes the SVG to `path`.
pub fn bars(path: &Path, title: &str, label: &str, groups: &[String], bars: &[Bars]) -> Result<(), String> {
    let values = || bars.iter().flat_map(|bars| &bars.values).flatten();
    let most = values().copied().fold(0.0, f64::max);
    if most <= 0.0 || values().any(|value| !(0.0..=f64::MAX).contains(value)) {
        return Err(format!("{}: there is nothing to plot: bars need numbers above 0", path.display()));
    }
    if let Some(bars) = bars.iter().find(|bars| bars.values.len() != groups.len()) {
        return Err(format!("{:?} has {} of {} bars", bars.name, bars.values.len(), groups.len()));
    }
    let step = tick(most / 8.0);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    write(path, (SIZE.0, 480), |area| {
        let (area, legend) = area.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(35)
            .y_label_area_size(75)
            // The last tick must be within the range.
            .build_cartesian_2d(0.0..groups.len() as f64, (0.0..step * ((most / step).ceil() + 1e-6)).step(step))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc(label)
            .y_labels(12)
            .y_label_formatter(&|value| format!("{value:.decimals$}"))
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        // A fifth of a group's width is a gap between groups.
        let width = 0.8 / bars.len() as f64;
        for (number, Bars { values, .. }) in bars.iter().enumerate() {
            let begin = |group: usize| group as f64 + 0.1 + width * number as f64;
            let bar = |(group, value): (usize, &Option<f64>)| {
                let corners = [(begin(group), 0.0), (begin(group) + width, (*value)?)];
                Some(Rectangle::new(corners, COLOURS[number % COLOURS.len()].filled()))
            };
            chart.draw_series(values.iter().enumerate().filter_map(bar))?;
        }
        let centred = TextStyle::from(("sans-serif", 14).into_font()).pos(Pos::new(HPos::Center, VPos::Top));
        chart.draw_series(groups.iter().enumerate().map(|(group, name)| {
            EmptyElement::at((group as f64 + 0.5, 0.0)) + Text::new(name.clone(), (0, 8), centred.clone())
        }))?;
        for (number, Bars { name, .. }) in bars.iter().enumerate() {
            let y = 60 + 22 * number as i32;
            legend.draw(&Rectangle::new([(0, y - 6), (20, y + 6)], COLOURS[number % COLOURS.len()].filled()))?;
            legend.draw(&Text::new(name.clone(), (28, y - 6), ("sans-serif", 14)))?;
        }
        Ok(())
    })
}

/// In pixels.
const ROW: u32 = 24;
/// Bars of one kind with at most this distance are drawn as one.
const GAP: f64 = 0.5;

/// Draws the activity of `ranks`, a row each, against time: sends, receives and reductions in a lane each, as recorded in `trace`.
pub fn gantt(path: &Path, title: &str, ranks: &[Rank], trace: &[Trace]) -> Result<(), String> {
    let last = trace.iter().map(|work| work.end).max().unwrap_or(0);
    if last == 0 {
        return Err(format!("{}: there is nothing to plot: nothing takes time", path.display()));
    }
    let (left, right, top) = (80, 15, 70);
    let height = top + ROW * ranks.len() as u32 + 50;
    let width = f64::from(SIZE.0 - left - right);
    let x = |time: u64| f64::from(left) + time as f64 / last as f64 * width;
    let row = |index: usize| (top + ROW * index as u32) as i32;
    let mut bars = trace.to_vec();
    bars.sort_unstable_by_key(|bar| (bar.rank, bar.activity, bar.begin, bar.end));
    write(path, (SIZE.0, height), |area| {
        area.draw(&Text::new(title.to_owned(), (left as i32, 12), ("sans-serif", 18)))?;
        for (lane, (name, colour)) in LANES.into_iter().enumerate() {
            let at = left as i32 + 110 * lane as i32;
            area.draw(&Rectangle::new([(at, 44), (at + 14, 52)], colour.filled()))?;
            area.draw(&Text::new(name, (at + 20, 41), ("sans-serif", 14)))?;
        }
        for (index, rank) in ranks.iter().enumerate() {
            let y = row(index);
            let shade = if index % 2 == 0 { SHADE } else { WHITE };
            let corners = [(left as i32, y), ((SIZE.0 - right) as i32, y + ROW as i32)];
            area.draw(&Rectangle::new(corners, shade.filled()))?;
            area.draw(&Text::new(format!("rank {rank}"), (8, y + 6), ("sans-serif", 13)))?;
            let own = &bars[bars.partition_point(|bar| bar.rank < *rank)..];
            let own = own.iter().take_while(|bar| bar.rank == *rank).filter(|bar| bar.begin < bar.end);
            let mut open: Option<(Activity, f64, f64)> = None;
            let draw = |bar: Option<(Activity, f64, f64)>| match bar {
                Some((activity, begin, end)) => area.draw(&lane_bar(activity, begin, end, y)),
                None => Ok(()),
            };
            for bar in own {
                let (begin, end) = (x(bar.begin), x(bar.end));
                match &mut open {
                    // Wide bars keep a gap, so that segments can be distinguished.
                    Some((activity, since, until))
                        if *activity == bar.activity && begin - *until < GAP && end - *since < 4.0 =>
                    {
                        *until = until.max(end);
                    }
                    _ => draw(open.replace((bar.activity, begin, end)))?,
                }
            }
            draw(open)?;
        }
        let bottom = row(ranks.len());
        let (step, from) = (tick(last as f64 / 10.0), left as i32);
        area.draw(&PathElement::new([(from, bottom), ((SIZE.0 - right) as i32, bottom)], BLACK.stroke_width(1)))?;
        // All ticks in the unit of the last, including 0.
        let (unit, name) = unit_of_duration(last as f64 * 1e-12);
        let decimals = (unit / (step * 1e-12)).log10().ceil().max(0.0) as usize;
        for number in 0..=(last as f64 / step) as u32 {
            let time = f64::from(number) * step;
            let text = format!("{:.decimals$} {name}", time * 1e-12 / unit);
            let at = x(time as u64) as i32;
            area.draw(&PathElement::new([(at, bottom), (at, bottom + 5)], BLACK.stroke_width(1)))?;
            let style = TextStyle::from(("sans-serif", 13).into_font()).pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(text, (at, bottom + 9), style))?;
        }
        Ok(())
    })
}

const SHADE: RGBColor = RGBColor(245, 245, 245);
const LANES: [(&str, RGBColor); 3] = [("send", COLOURS[0]), ("receive", COLOURS[4]), ("reduce", COLOURS[3])];

/// A bar between two x coordinates, in the activity's lane of the row at `y`.
fn lane_bar(activity: Activity, begin: f64, end: f64, y: i32) -> Rectangle<(i32, i32)> {
    let lane = activity as i32;
    let top = y + 2 + 7 * lane;
    // Adjacent bars keep a white pixel between them.
    let (begin, end) = (begin.round() as i32, end.round() as i32);
    let end = if end - begin > 3 { end - 1 } else { end.max(begin + 1) };
    Rectangle::new([(begin, top), (end, top + 6)], LANES[lane as usize].1.filled())
}

/// The smallest round number (1, 2 or 5 followed by zeros) that is at least `least`.
fn tick(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|&tick| tick >= least).unwrap_or(10.0 * power)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Draws on a white background, and writes the file only if drawing succeeds.
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
    fn ticks_are_round() {
        assert_eq!([1.0, 1.1, 2.0, 4.9, 5.1, 99.0, 1001.0].map(tick), [1.0, 2.0, 2.0, 5.0, 10.0, 100.0, 2000.0]);
    }

    #[test]
    fn a_gantt_chart_has_a_bar_for_each_activity_of_each_rank() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let work = |rank, activity, begin, end| Trace { rank, activity, peer: Some(0), begin, end, bytes: 4 };
        let trace = [
            work(7, Activity::Receive, 500_000, 900_000),
            work(3, Activity::Send, 0, 50_000),
            Trace { peer: Some(9), ..work(3, Activity::Send, 100_000, 200_000) },
            Trace { peer: Some(5), ..work(3, Activity::Send, 600_000, 1_000_000) },
            work(7, Activity::Reduce, 900_000, 900_001),
            work(7, Activity::Reduce, 900_001, 900_002),
            work(9, Activity::Send, 0, 1_000_000),
        ];
        gantt(file.path(), "title", &[3, 7], &trace).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("rank 3") && text.contains("rank 7") && !text.contains("rank 9"));
        let bars = |lane: usize| text.matches(&format!("fill=\"{}\"", hex(LANES[lane].1))).count() - 1;
        assert_eq!(
            [0, 1, 2].map(bars),
            [3, 1, 1],
            "bars of different peers stay apart, narrow ones are one; the legend does not count"
        );
        let ticks: Vec<_> = text.lines().filter(|line| line.ends_with(" µs")).collect();
        assert_eq!(
            ticks,
            [
                "0.0 µs", "0.1 µs", "0.2 µs", "0.3 µs", "0.4 µs", "0.5 µs", "0.6 µs", "0.7 µs", "0.8 µs", "0.9 µs",
                "1.0 µs"
            ]
        );
        let error = gantt(file.path(), "title", &[3], &[]).unwrap_err();
        assert!(error.contains("nothing takes time"), "{error}");
    }

    fn hex(RGBColor(r, g, b): RGBColor) -> String {
        format!("#{r:02X}{g:02X}{b:02X}")
    }

    #[test]
    fn no_two_lines_look_alike_and_auto_is_thick_and_black() {
        let most = gloo_rs::collective::Collective::ALL.iter().map(|collective| collective.algorithms().len()).max();
        let series = |name: String| Series { name, points: vec![(4.0, 1.0), (8.0, 2.0)] };
        let names = (0..most.unwrap()).map(|index| format!("z{index}")).chain(["auto".into()]);
        let series: Vec<_> = names.map(series).collect();
        let styled = styles(&series);
        assert_eq!((styled.len(), styled[0].0.name.as_str()), (series.len(), "auto"));
        for (index, (_, style)) in styled.iter().enumerate() {
            // Also for readers who see no colours, or on paper.
            let same =
                |other: &Style| (other.marker, other.dash, other.width) == (style.marker, style.dash, style.width);
            assert!(styled[..index].iter().all(|(_, other)| !same(other)), "{index}: {style:?}");
            assert_eq!(style.colour == BLACK && style.width > 2, index == 0);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let (x, y) = (Axis::new("x", Unit::Bytes), Axis::new("y", Unit::Seconds));
        lines(file.path(), "title", &x, &y, &series).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let thick: Vec<_> = text.match_indices("stroke=\"#000000\" stroke-width=\"5\"").collect();
        let thin = text.rfind("stroke-width=\"2\" points").unwrap();
        assert_eq!(thick.len(), 2, "in the chart and in the legend");
        let thin_in_chart = text[..thick[0].0].matches("stroke-width=\"2\"").count();
        assert!(
            thin_in_chart >= series.len() - 1 && thin > 0,
            "{thin_in_chart}: the line of auto lies before the others"
        );
    }

    #[test]
    fn a_bar_chart_has_a_bar_for_each_value_above_0() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kind = |name: &str, values: &[Option<f64>]| Bars { name: name.into(), values: values.into() };
        let groups = ["one".to_owned(), "two".to_owned()];
        let kinds = [kind("4 hosts", &[Some(93.5), Some(40.0)]), kind("8 hosts", &[None, Some(0.25)])];
        bars(file.path(), "title", "% of the bound", &groups, &kinds).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let filled = |index: usize| text.matches(&format!("fill=\"{}\"", hex(COLOURS[index]))).count() - 1;
        assert_eq!([0, 1].map(filled), [2, 1], "the legend does not count");
        for part in ["\none\n", "\ntwo\n", "8 hosts", "% of the bound", "\n0\n", "\n100\n"] {
            assert!(text.contains(part), "no {part:?}");
        }
        let error = bars(file.path(), "title", "", &groups, &[kind("a", &[Some(1.0)])]).unwrap_err();
        assert!(error.contains("\"a\" has 1 of 2 bars"), "{error}");
        let error = bars(file.path(), "title", "", &groups[..1], &[kind("a", &[Some(0.0)])]).unwrap_err();
        assert!(error.contains("nothing to plot"), "{error}");
    }

    #[test]
    fn a_chart_has_a_line_for_each_series() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let named = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.into() };
        let series: Vec<_> =
            (1..=9).map(|i| named(&format!("a<{i}>"), &[(4.0, 1e-6 * f64::from(i)), (64e6, 0.1)])).collect();
        let (x, y) = (Axis::new("bytes", Unit::Bytes), Axis::new("time", Unit::Seconds));
        lines(file.path(), "title & more", &x, &y, &series).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("title &amp; more") && text.contains("a&lt;9&gt;"), "what is special in XML is escaped");
        assert!(text.contains("1Ki") && text.contains("100 µs"), "ticks are written in units");
        let polylines = text.matches("stroke-width=\"2\"").count();
        assert!(polylines >= 18, "{polylines}: a line in the chart and one in the legend");
        assert!(!text.contains("#000000\" stroke-width=\"5\""), "none of them is auto");
        let error = lines(file.path(), "title", &x, &y, &[]).unwrap_err();
        assert!(error.contains("nothing to plot"), "{error}");
        let error = lines(Path::new("/nowhere/a.svg"), "title", &x, &y, &series).unwrap_err();
        assert!(error.contains("cannot write /nowhere/a.svg"), "{error}");
    }
}
