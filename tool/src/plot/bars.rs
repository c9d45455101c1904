//! Bars in groups.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Deserialize;

use super::{COLOURS, GRID, LEGEND_PIXELS, SIZE, tick, write};

/// One series of bars, with one in each group, and its name in the legend.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bars {
    pub name: String,
    /// At least 0; None if the group has no such bar.
    pub values: Vec<Option<f64>>,
}

/// Draws a group of bars for each of `groups`, on an axis from 0, with `note` below, and writes the SVG to `path`.
pub fn bars(
    path: &Path,
    (title, note): (&str, &str),
    label: &str,
    groups: &[String],
    bars: &[Bars],
) -> Result<(), String> {
    let values = || bars.iter().flat_map(|bars| &bars.values).flatten();
    let max = values().copied().fold(0.0, f64::max);
    if max <= 0.0 || values().any(|value| !(0.0..=f64::MAX).contains(value)) {
        return Err(format!("{}: there is nothing to plot: bars need numbers above 0", path.display()));
    }
    if let Some(bars) = bars.iter().find(|bars| bars.values.len() != groups.len()) {
        return Err(format!("{:?} has {} of {} bars", bars.name, bars.values.len(), groups.len()));
    }
    let step = tick(max / 8.0);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    write(path, (SIZE.0, 480), note, |area| {
        let (area, legend) = area.split_horizontally(SIZE.0 - LEGEND_PIXELS);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(35)
            .y_label_area_size(75)
            // The last tick must be within the range.
            .build_cartesian_2d(0.0..groups.len() as f64, (0.0..step * ((max / step).ceil() + 1e-6)).step(step))?;
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

#[cfg(test)]
mod tests {
    use super::super::tests::hex;
    use super::*;

    #[test]
    fn a_bar_chart_has_a_bar_for_each_value_above_0() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kind = |name: &str, values: &[Option<f64>]| Bars { name: name.into(), values: values.into() };
        let groups = ["one".to_owned(), "two".to_owned()];
        let kinds = [kind("4 hosts", &[Some(93.5), Some(40.0)]), kind("8 hosts", &[None, Some(0.25)])];
        bars(file.path(), ("title", ""), "% of the bound", &groups, &kinds).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let filled = |index: usize| text.matches(&format!("fill=\"{}\"", hex(COLOURS[index]))).count() - 1;
        assert_eq!([0, 1].map(filled), [2, 1], "the legend does not count");
        for part in ["\none\n", "\ntwo\n", "8 hosts", "% of the bound", "\n0\n", "\n100\n"] {
            assert!(text.contains(part), "no {part:?}");
        }
        let error = bars(file.path(), ("title", ""), "", &groups, &[kind("a", &[Some(1.0)])]).unwrap_err();
        assert!(error.contains("\"a\" has 1 of 2 bars"), "{error}");
        let error = bars(file.path(), ("title", ""), "", &groups[..1], &[kind("a", &[Some(0.0)])]).unwrap_err();
        assert!(error.contains("nothing to plot"), "{error}");
    }
}
