//! Draws the demo as an animated picture, from the output of a real run and its times.

use std::fmt::Write as _;
use std::time::Duration;

use anstyle_svg::Term;

/// Lines that the picture shows at once.
const ROWS: usize = 40;
/// The height of a line in `anstyle_svg`.
const LINE_PX: usize = 18;
/// Longer pauses are shortened to this. The times that the demo prints stay real.
const PAUSE_LIMIT: Duration = Duration::from_millis(1200);
/// How long the last frame is shown before the animation restarts.
const LAST_FRAME_DELAY: Duration = Duration::from_secs(8);

/// The printed lines, with their times.
#[derive(Debug, Default)]
pub struct Recording {
    lines: Vec<(Duration, String)>,
}

impl Recording {
    /// Adds text that was printed at this time after the start. It may have several lines and styles.
    pub fn add(&mut self, at: Duration, text: &str) {
        self.lines.extend(text.lines().map(|line| (at, line.to_owned())));
        if text.is_empty() {
            self.lines.push((at, String::new()));
        }
    }

    /// The picture: all lines in one column that moves up behind a window, and a cover over the lines that
    /// are not printed yet.
    pub fn svg(&self, command: &str) -> String {
        let text: String = self.lines.iter().flat_map(|(_, line)| [line.as_str(), "\n"]).collect();
        let column = Term::new().background(false).render_svg(&format!("$ {command}\n{text}"));
        let height = ROWS * LINE_PX + 20;
        let width = width(&column);
        let frames = self.frames();
        let length = frames.last().map_or(Duration::ZERO, |frame| frame.0) + LAST_FRAME_DELAY;
        let lines = |rows: &dyn Fn(usize) -> i64| keyframes(&frames, length, rows);
        let shown = |count: usize| (count.min(ROWS) * LINE_PX + 14).cast_signed() as i64;
        let gone = |count: usize| -((count.saturating_sub(ROWS) * LINE_PX).cast_signed() as i64);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
             <title>{command}, recorded; pauses over {:.1} s are shortened</title>\n\
             <style>\n\
             .column, .cover {{ animation: {:.1}s step-end infinite }}\n\
             .column {{ animation-name: column }}\n.cover {{ animation-name: cover }}\n\
             @keyframes column {{ {} }}\n@keyframes cover {{ {} }}\n</style>\n\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#000\"/>\n\
             <g class=\"column\">{column}</g>\n\
             <rect class=\"cover\" width=\"100%\" height=\"100%\" fill=\"#000\"/>\n</svg>\n",
            PAUSE_LIMIT.as_secs_f64(),
            length.as_secs_f64(),
            lines(&gone),
            lines(&shown),
        )
    }

    /// For each change: its time, and how many lines are printed by then, including the command's.
    fn frames(&self) -> Vec<(Duration, usize)> {
        let mut frames = vec![(Duration::ZERO, 1)];
        let (mut shown, mut real) = (Duration::ZERO, Duration::ZERO);
        for (index, (at, _)) in self.lines.iter().enumerate() {
            shown += at.saturating_sub(real).min(PAUSE_LIMIT);
            real = *at;
            match frames.last_mut() {
                Some(last) if last.0 == shown => last.1 = index + 2,
                _ => frames.push((shown, index + 2)),
            }
        }
        frames
    }
}

fn keyframes(frames: &[(Duration, usize)], length: Duration, pixels: &dyn Fn(usize) -> i64) -> String {
    frames.iter().fold(String::new(), |mut text, (at, count)| {
        let percent = 100.0 * at.as_secs_f64() / length.as_secs_f64();
        let _ = write!(text, "{percent:.2}% {{ transform: translateY({}px) }} ", pixels(*count));
        text
    })
}

/// The width that the column's SVG states.
fn width(svg: &str) -> usize {
    let said = svg.split_once("width=\"").and_then(|(_, rest)| rest.split_once("px\""));
    said.and_then(|(number, _)| number.parse().ok()).unwrap_or(900)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_appear_when_they_were_printed_and_long_pauses_are_cut() {
        let mut recording = Recording::default();
        recording.add(Duration::from_millis(500), "one\ntwo");
        recording.add(Duration::from_secs(30), "");
        recording.add(Duration::from_secs(30), "\u{1b}[1mthree\u{1b}[0m");
        let ms = Duration::from_millis;
        assert_eq!(recording.frames(), [(ms(0), 1), (ms(500), 3), (ms(1700), 5)]);
        let svg = recording.svg("cargo xtask demo");
        assert!(svg.contains("$ cargo xtask demo") && svg.contains("three") && !svg.contains('\u{1b}'));
        // At 500 ms of 9.7 s, three lines of 18 pixels are visible, and the column has not moved.
        assert!(svg.contains("5.15% { transform: translateY(68px) }"), "{svg}");
        assert!(svg.contains("5.15% { transform: translateY(0px) }"), "{svg}");
    }
}
