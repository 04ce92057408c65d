//! The lines of JSON that the client prints (`deploy/examples/sharing/client/client.py`).

use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    Start(Start),
    Turns(Turns),
    End {
        /// The time in seconds since 1970, by the node's clock.
        at: f64,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Start {
    pub gpu: Option<String>,
    pub torch: Option<String>,
    pub driver: Option<String>,
}

/// The turns that ended in about one second. Times are seconds since 1970 by the node's clock, which all copies share.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Turns {
    /// The end of the previous line's turns.
    pub begin: f64,
    pub end: f64,
    /// Whether the warm-up was over at `begin`.
    pub warm: bool,
    pub seconds: Vec<f64>,
    /// Readings of the GPU and the machine at `end`.
    #[serde(default)]
    pub sensors: Sensors,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Sensors {
    pub power_w: Option<f64>,
    /// The GPU's energy since its driver was loaded.
    pub energy_j: Option<f64>,
    pub temperature_c: Option<f64>,
    /// The part of the last second in which a kernel ran.
    pub gpu_percent: Option<f64>,
    pub memory_mib: Option<f64>,
    /// Hundredths of seconds that the machine's processors were busy since boot.
    pub cpu_busy: Option<f64>,
    /// Hundredths of seconds that the machine's processors were idle since boot.
    pub cpu_idle: Option<f64>,
    pub context_switches: Option<f64>,
}

impl Line {
    /// Parses a line of a log. Other lines are `None`, because the container may print anything.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_output_between_the_lines_is_skipped() {
        let start =
            r#"{"kind": "start", "at": 1.5, "workload": "yolos", "gpu": "NVIDIA H200", "torch": "2.11"}"#;
        let expected = Start { gpu: Some("NVIDIA H200".into()), torch: Some("2.11".into()), driver: None };
        assert_eq!(Line::read(start), Some(Line::Start(expected)));
        let turns = r#"{"kind": "turns", "begin": 1, "end": 2, "warm": true, "seconds": [0.5], "sensors": {"power_w": 90}}"#;
        let Some(Line::Turns(turns)) = Line::read(turns) else { panic!("{turns}") };
        assert_eq!(
            (turns.seconds, turns.sensors.power_w, turns.sensors.energy_j),
            (vec![0.5], Some(90.0), None)
        );
        assert_eq!(Line::read(r#"{"kind": "end", "at": 9, "turns": 3}"#), Some(Line::End { at: 9.0 }));
        for other in ["", "loading weights", "{}", "3", r#"{"kind": "turns", "begin": 1}"#] {
            assert_eq!(Line::read(other), None, "{other}");
        }
    }
}
