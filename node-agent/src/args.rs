//! The agent's flags.

use clap::Parser;
use kerf_core::names::NodeName;
use kerf_runtime::args::{AdminArgs, ClientArgs, LogArgs};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Cuts a node's GPUs into the slices that its GpuNode wants, and hands them to the kubelet.
#[derive(Debug, Clone, Parser)]
#[command(name = "kerf-node-agent", version)]
pub struct Args {
    /// The node's name.
    #[arg(long, env = "NODE_NAME", value_parser = |name: &str| Ok::<_, std::convert::Infallible>(NodeName::new(name)))]
    pub node: NodeName,
    /// NVML: a path, or a name that the loader finds.
    #[arg(long, default_value = "libnvidia-ml.so.1")]
    pub nvml: OsString,
    /// The kubelet's folder, with `device-plugins/` and `pod-resources/` in it.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// How often everything is looked at anew, whatever was announced: seconds with `s`, or `ms`, or `m`.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub resync: Duration,
    /// How it logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// How it finds the API server.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Where it answers an operator.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Reads `30s`, `500ms` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let malformed = || format!("{text:?} is no duration; write it like 30s, 500ms or 2m");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| malformed())?;
    let milliseconds = match &text[digits..] {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        _ => None,
    };
    let duration = milliseconds.map(Duration::from_millis).ok_or_else(malformed)?;
    if duration.is_zero() { Err("must be more than zero".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_units() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_mins(2)));
        for text in ["", "30", "s", "0s", "-1s", "30h", "99999999999999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_node_is_all_that_must_be_told() {
        let args = Args::try_parse_from(["kerf-node-agent", "--node", "n1"]).unwrap();
        assert_eq!(args.node.as_str(), "n1");
        assert_eq!(args.kubelet_dir, PathBuf::from("/var/lib/kubelet"));
    }
}
