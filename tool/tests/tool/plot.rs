//! Tests of `gloo-rs plot` as a process.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::launcher::{gloo_rs, text};

/// Draws `chart`; returns the SVG as well.
fn plot(chart: &str) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chart.svg");
    let mut tool = gloo_rs(&["plot", file.to_str().unwrap()]).stdin(Stdio::piped()).spawn().unwrap();
    tool.stdin.take().unwrap().write_all(chart.as_bytes()).unwrap();
    (tool.wait_with_output().unwrap(), std::fs::read_to_string(file).unwrap_or_default())
}

#[test]
fn charts_of_both_kinds_have_labels_with_any_characters() {
    let lines = r#"{"title": "a \"b\"", "x": {"label": "\u00b5s \"median\"", "unit": "bytes"}, "y": {"label": "t\u0069me", "unit": "seconds"},
        "series": [{"name": "ring", "points": [[4, 2.5e-5], [64, 2.6e-5]]}]}"#;
    let (output, svg) = plot(lines);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(["µs &quot;median&quot;", "time", "ring"].iter().all(|label| svg.contains(label)), "{svg}");
    let bars = r#"{"title": "t", "note": "measured <here>", "label": "\u0025", "groups": ["a"], "bars": [{"name": "b", "values": [1]}]}"#;
    let (output, svg) = plot(bars);
    assert!(
        output.status.success() && svg.contains("\n%\n") && svg.contains("measured &lt;here&gt;"),
        "{}{svg}",
        text(&output.stderr)
    );
}

#[test]
fn errors_name_what_is_wrong_in_a_chart() {
    for (chart, part) in [
        (r#"{"title": "t", "y": {"label": "y", "unit": "bytes"}, "series": []}"#, "missing field `x`"),
        (r#"{"title": "t", "x": {"label": "x", "unit": "metres"}, "series": []}"#, "unknown variant `metres`"),
        (r#"{"title": "t", "label": "l", "bars": []}"#, "missing field `groups`"),
        (r#"{"title": "t"}"#, "it has either `series` or `bars`"),
        (r#"{"series": [], "bars": []}"#, "it has either `series` or `bars`"),
        (r#"{"title": "t", "serie": [], "series": []}"#, "unknown field `serie`, expected one of `title`, `note`"),
        (
            r#"{"title": "t", "label": "l", "groups": [], "bars": [{"name": "b", "value": [1]}]}"#,
            "unknown field `value`",
        ),
        ("{", "EOF"),
    ] {
        let (output, svg) = plot(chart);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), &*svg), (Some(1), ""), "{chart}");
        assert!(said.contains("standard input is not a chart: ") && said.contains(part), "{chart}: {said}");
    }
}
