//! Draws `sharing.svg`: the mean time of a turn by the number of copies, one line for each technology. No I/O.

use super::{Point, Technology};
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;

/// The plot's left, top, right and bottom edges.
const AREA: [f64; 4] = [70.0, 50.0, 560.0, 360.0];

/// Colours that colour-blind people can distinguish (Okabe and Ito), in the order of [`Technology::ALL`].
const COLOURS: [&str; 5] = ["#d55e00", "#0072b2", "#56b4e9", "#000000", "#009e73"];

const LINE_HEIGHT: f64 = 16.0;

pub fn picture(title: &str, points: &[Point]) -> String {
    let most = points.iter().map(|point| point.copies).max().unwrap_or(1).max(2);
    let step = tick(points.iter().map(|point| point.figures.mean_seconds).fold(0.0, f64::max));
    let highest = points.iter().map(|point| point.figures.mean_seconds).fold(step, f64::max);
    let scale = Scale { most: f64::from(most), highest: (highest / step).ceil() * step };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"26\" font-size=\"16\">{}</text>\n",
        AREA[0],
        escaped(title)
    );
    text += &axes(&scale, step, points);
    let mut ends = Vec::new();
    for (technology, colour) in Technology::ALL.into_iter().zip(COLOURS) {
        let mut of: Vec<&Point> = points.iter().filter(|point| point.technology == technology).collect();
        of.sort_by_key(|point| point.copies);
        let Some(last) = of.last() else { continue };
        let end = (scale.x(last.copies), scale.y(last.figures.mean_seconds));
        ends.push((end, technology, colour));
        text += &line(&scale, &of, colour);
    }
    text += &names(ends);
    text + "</svg>\n"
}

struct Scale {
    most: f64,
    highest: f64,
}

impl Scale {
    fn x(&self, copies: u32) -> f64 {
        AREA[0] + (AREA[2] - AREA[0]) * f64::from(copies) / self.most
    }

    fn y(&self, seconds: f64) -> f64 {
        AREA[3] - (AREA[3] - AREA[1]) * seconds / self.highest
    }
}

/// A round step. It divides the axis into two to five parts, because more labels would be hard to read.
fn tick(highest: f64) -> f64 {
    if highest <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(highest.log10().floor());
    let steps = [0.2, 0.5, 1.0, 2.0].map(|step| step * power);
    steps.into_iter().find(|step| highest / step <= 5.0).unwrap_or(power)
}

fn axes(scale: &Scale, step: f64, points: &[Point]) -> String {
    let [left, _, right, bottom] = AREA;
    let mut text = String::new();
    let mut value = 0.0;
    while value <= scale.highest * 1.001 {
        let y = scale.y(value);
        let _infallible = writeln!(
            text,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 4.0,
            number(value)
        );
        value += step;
    }
    let mut copies: Vec<u32> = points.iter().map(|point| point.copies).collect();
    copies.sort_unstable();
    copies.dedup();
    for copies in copies {
        let x = scale.x(copies);
        let _infallible = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{copies}</text>",
            bottom + 20.0
        );
    }
    let middle = f64::midpoint(left, right);
    let _infallible = writeln!(
        text,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">copies on one GPU</text>\n\
         <text x=\"{left}\" y=\"44\">mean seconds of a turn</text>",
        bottom + 42.0
    );
    text
}

fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn line(scale: &Scale, points: &[&Point], colour: &str) -> String {
    let at = |point: &&Point| (scale.x(point.copies), scale.y(point.figures.mean_seconds));
    let path: Vec<String> = points.iter().map(at).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let mut text = format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
        path.join(" ")
    );
    for (x, y) in points.iter().map(at) {
        let _infallible = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
    }
    text
}

/// The names at the lines' ends. They are moved apart, so that they do not overlap.
fn names(mut ends: Vec<((f64, f64), Technology, &str)>) -> String {
    ends.sort_by(|a, b| a.0.1.total_cmp(&b.0.1));
    let (mut text, mut free) = (String::new(), f64::MIN);
    for ((x, y), technology, colour) in ends {
        let y = y.max(free);
        free = y + LINE_HEIGHT;
        let _infallible = writeln!(
            text,
            "<text x=\"{}\" y=\"{:.1}\" fill=\"{colour}\">{technology}</text>",
            x + 12.0,
            y + 4.0
        );
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
