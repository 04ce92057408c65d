//! Reads what a container printed from the log files of the kubelet and containerd.

use std::fs;

use crate::real_node::Places;
use k8s_openapi::api::core::v1::Pod;

/// The lines that a run of the container has printed so far. Runs count from 0. Empty without a log file.
pub fn lines(places: &Places, pod: &Pod, container: &str, run: i32) -> Vec<String> {
    let metadata = &pod.metadata;
    let [namespace, name, uid] =
        [&metadata.namespace, &metadata.name, &metadata.uid].map(|part| part.clone().unwrap_or_default());
    let folder = places.pod_logs().join(format!("{namespace}_{name}_{uid}"));
    let text = fs::read_to_string(folder.join(container).join(format!("{run}.log"))).unwrap_or_default();
    text.lines().filter_map(printed).map(str::to_owned).collect()
}

/// The text of a log line `<time> <stream> <F or P> <text>`.
fn printed(line: &str) -> Option<&str> {
    line.splitn(4, ' ').nth(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_line_stands_behind_time_stream_and_tag() {
        let line = "2026-01-01T00:00:00.000000000Z stdout F SEES {\"a\": 1}";
        assert_eq!(printed(line), Some("SEES {\"a\": 1}"));
        assert_eq!(printed("half a line"), None);
    }
}
