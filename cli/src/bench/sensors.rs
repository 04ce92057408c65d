//! Writes `sensors.csv`: readings of the GPU and the machine, one line per second and copy. No I/O.

use super::lines::{Sensors, Turns};
use super::window::{Copy, Window};
use std::fmt::Write;

pub const HEAD: &str = "point,copies,copy,begin,end,counted,turns,mean_seconds,power_w,energy_j,temperature_c,gpu_percent,\
memory_mib,cpu_percent,context_switches_per_second\n";

/// The lines of one point. A value that was not read is empty. Rates are empty in a copy's first line, because they
/// need two readings.
pub fn rows(point: &str, copies: &[&Copy], window: Window) -> String {
    let mut text = String::new();
    for (number, copy) in copies.iter().enumerate() {
        let mut before: Option<&Turns> = None;
        for turns in &copy.turns {
            let row = row(turns, before, window);
            let _infallible = writeln!(text, "{point},{},{number},{row}", copies.len());
            before = Some(turns);
        }
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "turns of a second are few")]
fn row(turns: &Turns, before: Option<&Turns>, window: Window) -> String {
    let Turns { begin, end, seconds, sensors, .. } = turns;
    let mean = (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64);
    let Sensors { power_w, energy_j, temperature_c, gpu_percent, memory_mib, .. } = *sensors;
    let rates = before.map(|before| rates(before, turns)).unwrap_or_default();
    let cells = [mean, power_w, energy_j, temperature_c, gpu_percent, memory_mib, rates.0, rates.1].map(cell);
    format!("{begin:.3},{end:.3},{},{},{}", u8::from(window.holds(turns)), seconds.len(), cells.join(","))
}

/// How busy the machine's processors were, in percent of all of them, and its context switches per second.
fn rates(before: &Turns, now: &Turns) -> (Option<f64>, Option<f64>) {
    let grown = |read: fn(&Sensors) -> Option<f64>| Some(read(&now.sensors)? - read(&before.sensors)?);
    let busy = grown(|sensors| sensors.cpu_busy).zip(grown(|sensors| sensors.cpu_idle));
    let busy = busy.filter(|(busy, idle)| busy + idle > 0.0).map(|(busy, idle)| 100.0 * busy / (busy + idle));
    let span = now.end - before.end;
    (busy, grown(|sensors| sensors.context_switches).filter(|_| span > 0.0).map(|switches| switches / span))
}

fn cell(value: Option<f64>) -> String {
    value
        .map(|value| format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::lines::Line;
    use super::*;

    #[test]
    fn each_second_is_a_line_and_rates_start_at_the_second_line() {
        let mut copy = Copy::default();
        for (second, text) in [
            r#""warm": false, "seconds": [0.25, 0.5], "sensors": {"cpu_busy": 100, "cpu_idle": 900, "context_switches": 5}"#,
            r#""warm": true, "seconds": [1.0], "sensors": {"power_w": 90.5, "cpu_busy": 150, "cpu_idle": 1050, "context_switches": 9}"#,
            r#""warm": true, "seconds": []"#,
        ]
        .iter()
        .enumerate()
        {
            let line = format!(r#"{{"kind": "turns", "begin": {second}, "end": {}, {text}}}"#, second + 1);
            copy.add(Line::read(&line).unwrap());
        }
        let window = Window::from_copies([&copy].into_iter()).unwrap();
        let expected = "mps,1,0,0.000,1.000,0,2,0.375,,,,,,,\n\
            mps,1,0,1.000,2.000,1,1,1,90.5,,,,,25,4\n\
            mps,1,0,2.000,3.000,1,0,,,,,,,,\n";
        assert_eq!(rows("mps", &[&copy], window), expected);
        let columns = |text: &str| text.lines().map(|line| line.split(',').count()).max();
        assert_eq!(columns(HEAD), columns(expected));
    }
}
