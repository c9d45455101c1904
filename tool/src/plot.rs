//! Charts as SVG files, over the `plotters` crate.
//!
//! Series differ by colour, and also by marker and dashes, for readers who do not see colours. The colours can be
//! distinguished with any common colour blindness (Okabe and Ito 2008), and there are at least as many pairs of marker
//! and dashes as a collective has algorithms. The series `auto` is a thick black line on top of all others. Where only
//! the lowest line of each place matters, the lines that are the lowest nowhere are grey, and each of the others has
//! its name where it is the lowest.

mod bars;
mod gantt;

use std::ops::Range;
use std::path::Path;

use gloo_rs::tuner::file::AUTO;
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Deserialize;

pub use self::bars::{Bars, bars};
pub use self::gantt::gantt;
use crate::parse::{duration_text, size_text};

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
const LEGEND_PIXELS: u32 = 210;
/// Pixels for the note under a chart.
const NOTE_PIXELS: u32 = 24;
/// The colour of the note, and of lines that are the lowest nowhere.
const GREY: RGBColor = RGBColor(150, 150, 150);
/// The part of the lowest number at which an axis begins under which there are names.
const ROOM_BELOW: f64 = 0.7;
/// An axis over at most this many powers of ten has ticks at twice and five times each, too.
const FEW_DECADES: f64 = 3.0;

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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
            // Numbers below 1 have only the digits that they need.
            Self::Number => format!("{value:.0$}", (-(value * 1.000_001).log10().floor()).max(0.0) as usize),
        }
    }

    /// The range of an axis that holds `values`, and its ticks, at most about `max`: powers of the base or, of ten,
    /// where these are few, also twice and five times each.
    fn axis(self, values: impl Iterator<Item = f64>, max: i32) -> (Range<f64>, Vec<f64>) {
        let log = |value: f64| value.ln() / self.base().ln();
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(log(value)), high.max(log(value)));
        }
        // A value that is a tick is on the frame.
        let (low, high) = (low + 1e-9, high - 1e-9);
        let (first, last) = (low.floor(), high.ceil().max(low.floor() + 1.0));
        if self.base() == 10.0 && high - low <= FEW_DECADES {
            let powers = first as i32..=last as i32;
            let ticks: Vec<f64> =
                powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power))).collect();
            let begin = ticks.iter().rposition(|tick| log(*tick) <= low).unwrap_or(0);
            let end = ticks.iter().position(|tick| log(*tick) >= high).unwrap_or(ticks.len() - 1).max(begin + 1);
            return (ticks[begin]..ticks[end], ticks[begin..=end].to_vec());
        }
        let every = ((last - first) / f64::from(max)).ceil();
        let steps = ((last - first) / every).ceil() as i32;
        let ticks: Vec<f64> = (0..=steps).map(|step| self.base().powf(first + every * f64::from(step))).collect();
        (ticks[0]..ticks[ticks.len() - 1], ticks)
    }
}

/// Lines on logarithmic axes.
pub struct Lines<'a> {
    pub title: &'a str,
    /// Under the chart: where the numbers come from.
    pub note: &'a str,
    pub x: &'a Axis,
    pub y: &'a Axis,
    pub series: &'a [Series],
    /// Whether only the lowest line of each place matters.
    pub lowest: bool,
}

/// Draws the lines and writes the SVG to `path`.
pub fn lines(path: &Path, chart: &Lines<'_>) -> Result<(), String> {
    let Lines { title, note, x, y, series, lowest } = *chart;
    if series.iter().all(|series| series.points.is_empty()) {
        return Err(format!("{}: there is nothing to plot", path.display()));
    }
    write(path, SIZE, note, |area| {
        let (area, legend) = area.split_horizontally(SIZE.0 - LEGEND_PIXELS);
        let points = series.iter().flat_map(|series| &series.points);
        let (x_range, x_ticks) = x.unit.axis(points.clone().map(|point| point.0), 14);
        let (mut y_range, y_ticks) = y.unit.axis(points.clone().map(|point| point.1), 10);
        if lowest {
            // Room for names.
            y_range.start = points.fold(y_range.start, |start, point| start.min(ROOM_BELOW * point.1));
        }
        let last = x_range.end;
        let (x_count, y_count) = (x_ticks.len(), y_ticks.len());
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(45)
            .y_label_area_size(75)
            .build_cartesian_2d(
                x_range.log_scale().with_key_points(x_ticks),
                y_range.log_scale().with_key_points(y_ticks),
            )?;
        chart
            .configure_mesh()
            .x_desc(&*x.label)
            .y_desc(&*y.label)
            .x_labels(x_count)
            .y_labels(y_count)
            .x_label_formatter(&|value| x.unit.text(*value))
            .y_label_formatter(&|value| y.unit.text(*value))
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        // The last one drawn is on top.
        let styled = styles(series, lowest);
        for (Series { points, .. }, style, _) in styled.iter().rev() {
            match style.dash {
                None => chart.draw_series([PathElement::new(points.clone(), style.stroke())])?,
                Some((dash, gap)) => {
                    chart.draw_series([DashedPathElement::new(points.clone(), dash, gap, style.stroke())])?
                }
            };
            chart.draw_series(points.iter().map(|&point| EmptyElement::at(point) + style.marker()))?;
        }
        for (Series { name, .. }, style, place) in &styled {
            // Where a line that rises is not, and inside the frame.
            let side = if place.is_some_and(|place| place.0 < last) { HPos::Left } else { HPos::Right };
            let font = TextStyle::from(("sans-serif", 14, FontStyle::Bold).into_font()).color(&style.colour);
            let text = Text::new(name.clone(), (0, 9), font.pos(Pos::new(side, VPos::Top)));
            chart.draw_series(place.map(|place| EmptyElement::at(place) + text))?;
        }
        for (index, (Series { name, .. }, style, _)) in styled.iter().enumerate() {
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

/// Where the name of a series stands beside its line, if it does.
type Place = Option<(f64, f64)>;

/// Each series with its style, and the place for its name, if it has one there: `auto` comes first, then, if only the
/// lowest lines matter, those that are the lowest anywhere.
fn styles(series: &[Series], lowest: bool) -> Vec<(&Series, Style, Place)> {
    let (auto, others): (Vec<_>, Vec<_>) = series.iter().partition(|series| series.name == AUTO);
    let thick = Style { colour: BLACK, width: 5, marker: 0, dash: None };
    let places = if lowest { places(&others) } else { vec![None; others.len()] };
    let mut others: Vec<_> = others.into_iter().zip(places).collect();
    others.sort_by_key(|(_, place)| lowest && place.is_none());
    let styled = others.into_iter().enumerate().map(|(index, (series, place))| {
        let style = Style::of(index);
        let loses = lowest && place.is_none();
        (series, if loses { Style { colour: GREY, width: 1, ..style } } else { style }, place)
    });
    auto.into_iter().map(|series| (series, thick, None)).chain(styled).collect()
}

/// Returns the middle of the longest stretch on which each series is the lowest.
fn places(series: &[&Series]) -> Vec<Place> {
    let mut xs: Vec<f64> = series.iter().flat_map(|series| &series.points).map(|point| point.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let lowest = |x: &f64| {
        let points = series
            .iter()
            .enumerate()
            .flat_map(|(index, series)| series.points.iter().map(move |point| (index, *point)));
        points.filter(|(_, point)| point.0 == *x).min_by(|a, b| a.1.1.total_cmp(&b.1.1))
    };
    let winners: Vec<(usize, (f64, f64))> = xs.iter().filter_map(lowest).collect();
    let mut longest = vec![&winners[..0]; series.len()];
    for stretch in winners.chunk_by(|a, b| a.0 == b.0) {
        let own = &mut longest[stretch[0].0];
        if stretch.len() > own.len() {
            *own = stretch;
        }
    }
    longest.iter().map(|stretch| stretch.get(stretch.len() / 2).map(|(_, point)| *point)).collect()
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

/// The smallest round number (1, 2 or 5 followed by zeros) that is at least `min`.
fn tick(min: f64) -> f64 {
    let power = 10f64.powf(min.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|&tick| tick >= min).unwrap_or(10.0 * power)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Draws on a white background, with `note` below, and writes the file only if drawing succeeds.
fn write(
    path: &Path,
    (width, height): (u32, u32),
    note: &str,
    draw: impl FnOnce(&Area<'_>) -> Result<(), Failed<'static>>,
) -> Result<(), String> {
    let mut text = String::new();
    {
        let below = if note.is_empty() { 0 } else { NOTE_PIXELS };
        let whole = SVGBackend::with_string(&mut text, (width, height + below)).into_drawing_area();
        let (area, foot) = whole.split_vertically(height);
        let noted = |()| foot.draw(&Text::new(note.to_owned(), (12, 4), ("sans-serif", 12).into_font().color(&GREY)));
        let drawn = whole.fill(&WHITE).and_then(|()| draw(&area)).and_then(noted).and_then(|()| whole.present());
        drawn.map_err(|error| format!("cannot draw {}: {error}", path.display()))?;
    }
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn hex(RGBColor(r, g, b): RGBColor) -> String {
        format!("#{r:02X}{g:02X}{b:02X}")
    }

    fn of<'a>(title: &'a str, series: &'a [Series], x: &'a Axis, y: &'a Axis) -> Lines<'a> {
        Lines { title, note: "", x, y, series, lowest: false }
    }

    #[test]
    fn ticks_are_powers_that_hold_all_values() {
        let axis = |unit: Unit, values: &[f64], max| {
            let (range, ticks) = unit.axis(values.iter().copied(), max);
            assert!((range.start, range.end) == (ticks[0], ticks[ticks.len() - 1]));
            ticks
        };
        assert_eq!(axis(Unit::Bytes, &[4.0, 32.0], 14), [4.0, 8.0, 16.0, 32.0]);
        let ticks = axis(Unit::Bytes, &[1.0, f64::from(1 << 20)], 14);
        assert!(ticks[1] == 4.0 && ticks.last() == Some(&f64::from(1 << 20)), "{ticks:?}");
        assert_eq!(axis(Unit::Ranks, &[3.0, 5.0], 14), [2.0, 4.0, 8.0]);
        assert_eq!(axis(Unit::Ranks, &[8.0], 14), [8.0, 16.0]);
        let texts = |unit: Unit, values: &[f64]| {
            axis(unit, values, 10).into_iter().map(|tick| unit.text(tick)).collect::<Vec<_>>()
        };
        assert_eq!(texts(Unit::Seconds, &[3e-5, 4e-4]), ["20 µs", "50 µs", "100 µs", "200 µs", "500 µs"]);
        assert_eq!(texts(Unit::Seconds, &[1e-5, 1e-2]).len(), 10, "three decades");
        assert_eq!(texts(Unit::Seconds, &[2e-6, 0.5]), ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
        assert_eq!(texts(Unit::Number, &[0.3, 3.0]), ["0.2", "0.5", "1", "2", "5"]);
        assert_eq!(texts(Unit::Number, &[7.0]), ["5", "10"]);
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!([1.0, 1.1, 2.0, 4.9, 5.1, 99.0, 1001.0].map(tick), [1.0, 2.0, 2.0, 5.0, 10.0, 100.0, 2000.0]);
    }

    #[test]
    fn no_two_lines_look_alike_and_auto_is_thick_and_black() {
        let max = gloo_rs::collective::Collective::ALL.iter().map(|collective| collective.algorithms().len()).max();
        let series = |name: String| Series { name, points: vec![(4.0, 1.0), (8.0, 2.0)] };
        let names = (0..max.unwrap()).map(|index| format!("z{index}")).chain(["auto".into()]);
        let series: Vec<_> = names.map(series).collect();
        let styled = styles(&series, false);
        assert_eq!((styled.len(), styled[0].0.name.as_str()), (series.len(), "auto"));
        for (index, (_, style, _)) in styled.iter().enumerate() {
            // Readers who see no colours, or paper, can tell them apart, too.
            let same =
                |other: &Style| (other.marker, other.dash, other.width) == (style.marker, style.dash, style.width);
            assert!(styled[..index].iter().all(|(_, other, _)| !same(other)), "{index}: {style:?}");
            assert_eq!(style.colour == BLACK && style.width > 2, index == 0);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let (x, y) = (Axis::new("x", Unit::Bytes), Axis::new("y", Unit::Seconds));
        lines(file.path(), &of("title", &series, &x, &y)).unwrap();
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
    fn lines_that_are_the_lowest_somewhere_stand_out_and_have_their_names_there() {
        let named = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.into() };
        let series = [
            named("never", &[(4.0, 9e-6), (8.0, 9e-6), (16.0, 9e-6), (32.0, 9e-6), (64.0, 9e-6)]),
            named("far", &[(4.0, 5e-6), (8.0, 5e-6), (16.0, 5e-6), (32.0, 5e-6), (64.0, 5e-6)]),
            named("near", &[(4.0, 1e-6), (8.0, 6e-6), (16.0, 7e-6)]),
            named(AUTO, &[(4.0, 1e-7)]),
        ];
        let styled = styles(&series, true);
        let found: Vec<_> = styled.iter().map(|(series, style, place)| (&*series.name, style.colour, *place)).collect();
        let far = ("far", COLOURS[0], Some((32.0, 5e-6)));
        assert_eq!(found, [(AUTO, BLACK, None), far, ("near", COLOURS[1], Some((4.0, 1e-6))), ("never", GREY, None)]);
        assert!(styles(&series, false).iter().all(|(_, style, place)| style.colour != GREY && place.is_none()));
        let file = tempfile::NamedTempFile::new().unwrap();
        let (x, y) = (Axis::new("x", Unit::Bytes), Axis::new("y", Unit::Seconds));
        lines(file.path(), &Lines { title: "t", note: "tcp & more", x: &x, y: &y, series: &series, lowest: true })
            .unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let count = |name: &str| text.matches(&format!("\n{name}\n")).count();
        assert_eq!((count("far"), count("near"), count("never"), count("tcp &amp; more")), (2, 2, 1, 1), "{text}");
    }

    #[test]
    fn a_chart_has_a_line_for_each_series() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let named = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.into() };
        let series: Vec<_> =
            (1..=9).map(|i| named(&format!("a<{i}>"), &[(4.0, 1e-6 * f64::from(i)), (64e6, 0.1)])).collect();
        let (x, y) = (Axis::new("bytes", Unit::Bytes), Axis::new("time", Unit::Seconds));
        lines(file.path(), &of("title & more", &series, &x, &y)).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("title &amp; more") && text.contains("a&lt;9&gt;"), "what is special in XML is escaped");
        assert!(text.contains("1Ki") && text.contains("100 µs"), "ticks are written in units");
        let polylines = text.matches("stroke-width=\"2\"").count();
        assert!(polylines >= 18, "{polylines}: a line in the chart and one in the legend");
        assert!(!text.contains("#000000\" stroke-width=\"5\""), "none of them is auto");
        let error = lines(file.path(), &of("title", &[], &x, &y)).unwrap_err();
        assert!(error.contains("nothing to plot"), "{error}");
        let error = lines(Path::new("/nowhere/a.svg"), &of("title", &series, &x, &y)).unwrap_err();
        assert!(error.contains("cannot write /nowhere/a.svg"), "{error}");
    }
}
