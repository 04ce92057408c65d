//! Writes `docs/refusals.md`, where users look up the webhook's messages. It is made of the same cases as
//! `refusals.json`, so that the page never differs from the program.

use serde_json::Value;
use std::fmt::Write as _;

const HEAD: &str = "\
# Refusals

What kerf's webhook refuses, with a pod that gets it and the answer: the message names the field and the remedy.
The webhook's tests, which know every case, make this page (`KERF_UPDATE=1 cargo test -p kerf-webhook refusal`).

A pod that was created and stays pending says why in its events: [when something is wrong](troubleshooting.md#a-pod-stays-pending).
`kerf policy check` says what is wrong with a policy file.

Where the policy matters:

| policy | what it says |
|---|---|
| `dialects` | takes other systems' dialects, but not `mig` |
| `bounded` | allows 5 to 40 GB a slice, 60 GB and 4 slices a pod |
| `shares` | has time slices only |
| `pool` | allows A100-80GB for MIG and T4-16GB for MPS, on nodes with `pool: research` |
| `closed`, `open` | refuses pods that could command an MPS daemon, or allows them (`mps.rootContainers`) |
| `nothing` | denies |

## Refused pods

| the pod says | the answer |
|---|---|
";

const WARNINGS: &str = "
## Warnings

These pods are created, and `kubectl` shows the warning.

| the pod says | the warning |
|---|---|
";

pub(super) fn page(cases: &[Value], warned: &[Value]) -> String {
    let mut page = HEAD.to_owned();
    rows(&mut page, cases);
    page += WARNINGS;
    rows(&mut page, warned);
    page
}

fn rows(page: &mut String, cases: &[Value]) {
    for case in cases {
        let text = escape(case["text"].as_str().unwrap());
        let place = case["where"].as_str().map(|place| format!("<br>{place}")).unwrap_or_default();
        writeln!(page, "| {}{place} | {text} |", said(&case["pod"])).unwrap();
    }
}

/// The fields by which the pod differs from the page's other pods, one per line.
fn said(pod: &Value) -> String {
    let mut lines = Vec::new();
    leaves("", pod, &mut lines);
    lines.iter().map(|line| format!("`{}`", line.replace('|', "\\|"))).collect::<Vec<_>>().join("<br>")
}

/// Short names for the paths that most cases use.
const SHORT: [(&str, &str); 5] = [
    ("metadata.labels[policy]", "policy"),
    ("metadata.annotations", "annotations"),
    ("metadata.labels", "labels"),
    ("spec.containers[0].resources.limits", "limits"),
    ("spec.containers[0]", "container"),
];

/// The fields that every pod of the page has. They get no line, because they explain nothing.
const ALIKE: [&str; 6] = [
    "apiVersion: v1",
    "kind: Pod",
    "metadata.name: refused",
    "container.name: main",
    "image: none",
    "policy: plain",
];

fn leaves(path: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let nested = match (path, key.contains(['/', '-', '.']) || path.ends_with("labels")) {
                    ("", _) => key.clone(),
                    (_, true) => format!("{path}[{key}]"),
                    (_, false) => format!("{path}.{key}"),
                };
                leaves(&nested, value, lines);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                leaves(&format!("{path}[{index}]"), value, lines);
            }
        }
        Value::Object(_) | Value::Array(_) => {}
        Value::String(text) => line(path, text, lines),
        other => line(path, &other.to_string(), lines),
    }
}

fn line(path: &str, text: &str, lines: &mut Vec<String>) {
    let path = SHORT.iter().fold(path.to_owned(), |path, (long, short)| path.replace(long, short));
    let line = format!("{path}: {text}");
    if !ALIKE.iter().any(|alike| line.ends_with(alike)) {
        lines.push(line);
    }
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}
