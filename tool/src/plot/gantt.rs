//! What ranks do, against time.

use std::path::Path;

use gloo_rs::schedule::simulate::{Activity, Trace};
use gloo_rs::types::Rank;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{COLOURS, SIZE, tick, write};
use crate::parse::unit_of_duration;

/// In pixels.
const ROW_PIXELS: u32 = 24;
/// Bars of one kind with at most this distance are drawn as one.
const GAP: f64 = 0.5;

/// Draws the activity of `ranks`, a row each, against time: sends, receives and reductions in a lane each, as recorded
/// in `trace`.
///
/// `note` stands below.
pub fn gantt(path: &Path, (title, note): (&str, &str), ranks: &[Rank], trace: &[Trace]) -> Result<(), String> {
    let last = trace.iter().map(|work| work.end).max().unwrap_or(0);
    if last == 0 {
        return Err(format!("{}: there is nothing to plot: nothing takes time", path.display()));
    }
    let (left, right, top) = (80, 15, 70);
    let height = top + ROW_PIXELS * ranks.len() as u32 + 50;
    let width = f64::from(SIZE.0 - left - right);
    let x = |time: u64| f64::from(left) + time as f64 / last as f64 * width;
    let row = |index: usize| (top + ROW_PIXELS * index as u32) as i32;
    let mut bars = trace.to_vec();
    bars.sort_unstable_by_key(|bar| (bar.rank, bar.activity, bar.begin, bar.end));
    write(path, (SIZE.0, height), note, |area| {
        area.draw(&Text::new(title.to_owned(), (left as i32, 12), ("sans-serif", 18)))?;
        for (lane, (name, colour)) in LANES.into_iter().enumerate() {
            let at = left as i32 + 110 * lane as i32;
            area.draw(&Rectangle::new([(at, 44), (at + 14, 52)], colour.filled()))?;
            area.draw(&Text::new(name, (at + 20, 41), ("sans-serif", 14)))?;
        }
        for (index, rank) in ranks.iter().enumerate() {
            let y = row(index);
            let shade = if index % 2 == 0 { SHADE } else { WHITE };
            let corners = [(left as i32, y), ((SIZE.0 - right) as i32, y + ROW_PIXELS as i32)];
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

#[cfg(test)]
mod tests {
    use super::super::tests::hex;
    use super::*;

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
        gantt(file.path(), ("title", ""), &[3, 7], &trace).unwrap();
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
        let error = gantt(file.path(), ("title", ""), &[3], &[]).unwrap_err();
        assert!(error.contains("nothing takes time"), "{error}");
    }
}
