//! Draws Prometheus' answers to the dashboard's queries, in the dashboard's order, without I/O.

use std::fmt::Write;

use super::dashboard::{Panel, Target};
use super::prometheus::Series;

const LABEL: &str =
    "drawn from the answers of Prometheus to the dashboard's queries; not a screenshot of Grafana";

/// Pixels of each of the 24 columns, of each row, and between two panels.
const COLUMN: f64 = 42.0;
const ROW: f64 = 22.0;
const GAP: f64 = 6.0;

/// Height of the heading above the panels.
const HEAD: f64 = 50.0;

/// The largest number of a panel's lines that get a name.
const NAMED: usize = 7;

/// The approximate width of a letter.
const LETTER: f64 = 5.3;

/// Colours that are distinct for people with any colour vision (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// A panel with the answers to its queries.
#[derive(Debug)]
pub struct Drawn<'d> {
    pub panel: &'d Panel,
    /// Each query with its series.
    pub answers: Vec<(&'d Target, Vec<Series>)>,
}

impl Drawn<'_> {
    /// Its lines, each with its name.
    fn lines(&self) -> impl Iterator<Item = (String, &[(f64, f64)])> {
        let all =
            self.answers.iter().flat_map(|(target, series)| series.iter().map(move |one| (target, one)));
        all.filter(|(_, one)| !one.values.is_empty()).map(|(target, one)| (name(target, one), &*one.values))
    }
}

/// The picture of the panels that have an answer. `run` describes the measurement.
#[must_use]
pub fn picture(run: &str, panels: &[Drawn<'_>]) -> String {
    let answered: Vec<&Drawn<'_>> = panels.iter().filter(|drawn| drawn.lines().next().is_some()).collect();
    let (mut body, mut bottom, mut row) = (String::new(), HEAD, None);
    let (mut top, mut shift) = (HEAD, 0.0);
    for drawn in answered {
        let place = drawn.panel.grid_pos;
        // A row of panels begins below the last answered one, so rows without an answer leave no gap.
        if row != Some(place.y) {
            (row, top, shift) = (Some(place.y), bottom, 0.0);
        }
        let (width, height) = (f64::from(place.w) * COLUMN - GAP, f64::from(place.h).min(8.0) * ROW - GAP);
        body += &panel(drawn, [GAP + shift, top, width, height]);
        shift += width + GAP;
        bottom = bottom.max(top + height + GAP);
    }
    let width = 24.0 * COLUMN + GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {bottom}\" font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"{width}\" height=\"{bottom}\" fill=\"white\"/>\n\
         <text x=\"{GAP}\" y=\"20\" font-size=\"15\">kerf: {}</text>\n<text x=\"{GAP}\" y=\"38\">{LABEL}</text>\n{body}</svg>\n",
        escaped(run)
    )
}

fn panel(drawn: &Drawn<'_>, [x, y, width, height]: [f64; 4]) -> String {
    let unit = drawn.panel.field_config.defaults.unit.as_deref().unwrap_or("short");
    let mut text = format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#fafafa\" stroke=\"#d0d0d0\"/>\n\
         <text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>\n",
        x + 6.0,
        y + 14.0,
        escaped(&drawn.panel.title)
    );
    let below = [x + 6.0, y + 22.0, width - 12.0, height - 28.0];
    text += &match drawn.panel.kind.as_str() {
        "stat" => number(drawn, unit, below),
        "table" => list(drawn, below),
        _ => lines(drawn, unit, below),
    };
    text
}

/// The last value in large digits.
fn number(drawn: &Drawn<'_>, unit: &str, [x, y, ..]: [f64; 4]) -> String {
    let last = drawn.lines().next().and_then(|(_, values)| values.last().copied());
    let value = last.map_or_else(String::new, |(_, value)| shown(value, unit));
    format!("<text x=\"{x}\" y=\"{}\" font-size=\"22\">{value}</text>\n", y + 30.0)
}

/// The last values, each with its labels.
fn list(drawn: &Drawn<'_>, [x, y, width, height]: [f64; 4]) -> String {
    let mut text = String::new();
    let mut at = y + 12.0;
    for (name, values) in drawn.lines() {
        if at > y + height {
            break;
        }
        let value = values.last().map_or_else(String::new, |(_, value)| shown(*value, "short"));
        let line = escaped(&cut(&format!("{name}: {value}"), width));
        let _infallible = writeln!(text, "<text x=\"{x}\" y=\"{at:.0}\">{line}</text>");
        at += 12.0;
    }
    text
}

/// The lines over time, with the names of the first ones.
fn lines(drawn: &Drawn<'_>, unit: &str, [x, y, width, height]: [f64; 4]) -> String {
    let points = || drawn.lines().flat_map(|(_, values)| values.iter().copied());
    let (first, last) = bounds(points().map(|(at, _)| at));
    let (lowest, highest) = bounds(points().map(|(_, value)| value).chain([0.0]));
    let (area, names) = (width * 0.62, x + width * 0.62 + 44.0);
    let left = x + 38.0;
    let scale = |value: f64, (from, to): (f64, f64), length: f64| {
        if to > from { (value - from) / (to - from) * length } else { 0.0 }
    };
    let place = |(at, value): &(f64, f64)| {
        let right = left + scale(*at, (first, last), area);
        format!("{right:.1},{:.1}", y + height - scale(*value, (lowest, highest), height - 4.0))
    };
    let mut text = format!(
        "<line x1=\"{left}\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\" stroke=\"#d0d0d0\"/>\n\
         <text x=\"{2}\" y=\"{3}\" text-anchor=\"end\">{4}</text>\n\
         <text x=\"{2}\" y=\"{0}\" text-anchor=\"end\">{5}</text>\n",
        y + height,
        left + area,
        left - 3.0,
        y + 8.0,
        shown(highest, unit),
        shown(lowest, unit)
    );
    for ((number, (name, values)), colour) in drawn.lines().enumerate().zip(COLOURS.iter().cycle()) {
        let path: Vec<String> = values.iter().map(place).collect();
        let path = path.join(" ");
        let _infallible = writeln!(
            text,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        );
        if number < NAMED {
            let at = y + 8.0 + 12.0 * f64::from(u32::try_from(number).unwrap_or(0));
            let name = escaped(&cut(&name, x + width - names));
            let _infallible =
                writeln!(text, "<text x=\"{names:.0}\" y=\"{at:.0}\" fill=\"{colour}\">{name}</text>");
        }
    }
    text
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
}

/// The name of a line: the query's legend, or all labels.
fn name(target: &Target, series: &Series) -> String {
    if target.legend_format.is_empty() || !target.legend_format.contains("{{") && series.labels.len() > 1 {
        let labels = series.labels.iter().filter(|(label, _)| !label.starts_with("__"));
        let labels: Vec<_> = labels.map(|(label, value)| format!("{label} {value}")).collect();
        return [target.legend_format.clone(), labels.join(", ")].join(" ").trim().to_owned();
    }
    let with =
        |text: String, (label, value): (&String, &String)| text.replace(&format!("{{{{{label}}}}}"), value);
    let named = series.labels.iter().fold(target.legend_format.clone(), with);
    let parts = named.split("{{").map(|part| part.split_once("}}").map_or(part, |(_, rest)| rest));
    parts.collect::<Vec<_>>().concat()
}

/// A value in its unit, rounded for display.
fn shown(value: f64, unit: &str) -> String {
    match unit {
        "percentunit" => format!("{:.0} %", value * 100.0),
        "bytes" => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]),
        "s" if value.abs() >= 1.0 => format!("{value:.1} s"),
        "s" => format!("{:.1} ms", value * 1000.0),
        "reqps" | "wps" => format!("{value:.1}/s"),
        _ => format!("{value:.1}").trim_end_matches(".0").to_owned(),
    }
}

fn scaled(value: f64, step: f64, names: &[&str]) -> String {
    let (mut value, mut names) = (value, names.iter());
    let mut name = names.next();
    while value.abs() >= step {
        let Some(next) = names.next() else { break };
        (value, name) = (value / step, Some(next));
    }
    format!("{value:.0} {}", name.copied().unwrap_or_default())
}

/// The part of a text that fits into the width.
fn cut(text: &str, width: f64) -> String {
    let mut room = width;
    let fits = text.chars().take_while(|_| {
        room -= LETTER;
        room > 0.0
    });
    let fitting: String = fits.collect();
    if fitting.len() == text.len() { fitting } else { format!("{fitting}…") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_its_unit() {
        for (value, unit, text) in [
            (0.5, "percentunit", "50 %"),
            (0.0125, "s", "12.5 ms"),
            (90.0, "s", "90.0 s"),
            (3.0 * 1024.0 * 1024.0, "bytes", "3 MiB"),
            (7.0, "short", "7"),
        ] {
            assert_eq!(shown(value, unit), text);
        }
    }

    #[test]
    fn a_name_without_room_is_cut() {
        assert_eq!(cut("namespace", 9.5 * LETTER), "namespace");
        assert_eq!(cut("namespace", 4.5 * LETTER), "name…");
    }

    #[test]
    fn a_line_is_called_by_its_legend_or_by_its_labels() {
        let target = |legend: &str| Target {
            ref_id: "A".to_owned(),
            expr: String::new(),
            legend_format: legend.to_owned(),
            datasource: None,
        };
        let labels = [("kind", "mig"), ("state", "held")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let series = Series { labels: labels.into(), values: Vec::new() };
        assert_eq!(name(&target("{{kind}} {{state}}"), &series), "mig held");
        assert_eq!(name(&target("{{kind}} {{none}}p50"), &series), "mig p50");
        assert_eq!(name(&target(""), &series), "kind mig, state held");
        assert_eq!(name(&target("info"), &series), "info kind mig, state held");
    }

    #[test]
    fn panels_without_an_answer_are_left_out_and_drawn_ones_have_titles() {
        let text = r#"{"id": 1, "type": "stat", "title": "A & B", "gridPos": {"x": 0, "y": 1, "w": 3, "h": 4},
                       "targets": [{"refId": "A", "expr": "a"}]}"#;
        let panel: Panel = serde_json::from_str(text).unwrap();
        let series = |values| Series { labels: [].into(), values };
        let drawn =
            |values| Drawn { panel: &panel, answers: vec![(&panel.targets[0], vec![series(values)])] };
        let picture = picture("a run", &[drawn(vec![]), drawn(vec![(0.0, 1.0), (2.0, 3.0)])]);
        assert_eq!(picture.matches("A &amp; B").count(), 1);
        assert!(
            picture.contains("not a screenshot of Grafana") && picture.contains(">3</text>"),
            "{picture}"
        );
    }
}
