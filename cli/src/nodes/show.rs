//! Nodes as text, JSON or YAML. Pure.

use super::Output;
use super::draw::{self, Paint};
use super::offered::{self, Offered};
use crate::gpu::columns::Columns;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeSpec, GpuNodeStatus, SliceStatus};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// What is known of the nodes.
#[derive(Debug, Default)]
pub struct Shown {
    /// Those that kerf serves.
    pub managed: Vec<Managed>,
    /// What NVIDIA's device plugin offers on others.
    pub offered: Vec<Offered>,
}

/// A node that kerf serves.
#[derive(Debug)]
pub struct Managed {
    /// Its name.
    pub name: String,
    /// What can be read of it, or why not.
    pub read: Result<(GpuNodeSpec, GpuNodeStatus), String>,
}

/// All of it.
pub fn render(shown: &Shown, output: Output, width: usize, paint: Paint<'_>) -> anyhow::Result<String> {
    Ok(match output {
        Output::Drawing => drawing(shown, width, paint),
        Output::Wide => wide(shown),
        Output::Json => format!("{:#}\n", document(shown)),
        Output::Yaml => serde_saphyr::to_string(&document(shown))?,
    })
}

fn drawing(shown: &Shown, width: usize, paint: Paint<'_>) -> String {
    let mut text = String::new();
    for node in &shown.managed {
        match &node.read {
            Err(why) => {
                let _infallible = writeln!(text, "{}: {why}", node.name);
            }
            Ok((spec, status)) => {
                for trouble in troubles(status) {
                    let _infallible = writeln!(text, "{}: {trouble}", node.name);
                }
                for line in draw::node(&node.name, spec, status, width, paint) {
                    let _infallible = writeln!(text, "{line}");
                }
            }
        }
    }
    if !shown.offered.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        let _infallible =
            write!(text, "{gap}Served by NVIDIA's device plugin:\n{}", offered::table(&shown.offered));
    }
    if text.is_empty() {
        "No node has GPUs that kerf or NVIDIA's device plugin serves.\n".to_owned()
    } else {
        text
    }
}

/// What the agent says that is not well, but for single GPUs, which say it themselves.
fn troubles(status: &GpuNodeStatus) -> Vec<String> {
    if status.conditions.is_empty() {
        return vec!["its agent has not reported yet".to_owned()];
    }
    let bad = status.conditions.iter().filter(|it| it.status != ConditionStatus::True);
    let bad = bad.filter(|it| it.kind != Condition::GPUS_HEALTHY);
    bad.map(|it| format!("{} is not true ({}): {}", it.kind, it.reason, it.message)).collect()
}

fn wide(shown: &Shown) -> String {
    let mut columns = Columns::new([
        "NODE",
        "GPU",
        "MODEL",
        "SLICE",
        "SHAPE",
        "MIB",
        "STATE",
        "POD",
        "CONTAINER",
        "DEVICE",
    ]);
    for node in &shown.managed {
        let Ok((spec, status)) = &node.read else { continue };
        for gpu in &status.gpus {
            let slices: Vec<_> = status.slices.iter().filter(|slice| slice.gpu == gpu.uuid).collect();
            let start = || [node.name.clone(), gpu.index.to_string(), gpu.model.clone()];
            if slices.is_empty() {
                let [name, index, model] = start();
                let none = || "-".to_owned();
                columns.row([name, index, model, none(), none(), none(), none(), none(), none(), none()]);
            }
            for slice in slices {
                let [name, index, model] = start();
                let (pod, container) = owner(spec, slice).unwrap_or_default();
                let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
                columns.row([
                    name,
                    index,
                    model,
                    dash(slice.id.as_ref().map(ToString::to_string).unwrap_or_default()),
                    slice.shape.to_string(),
                    slice.memory.0.to_string(),
                    format!("{:?}", slice.state),
                    dash(pod),
                    dash(container),
                    dash(slice.device.as_ref().map(ToString::to_string).unwrap_or_default()),
                ]);
            }
        }
    }
    let rowless: Vec<String> = shown.managed.iter().filter_map(rowless).collect();
    let has_rows = rowless.len() < shown.managed.len();
    let mut text = if has_rows || rowless.is_empty() {
        columns.write("No node is served by kerf.")
    } else {
        String::new()
    };
    for line in rowless {
        let _infallible = writeln!(text, "{line}");
    }
    if !shown.offered.is_empty() {
        let _infallible = write!(text, "\n{}", offered::table(&shown.offered));
    }
    text
}

/// Why a node has no row in the table, which has one for each GPU at least.
fn rowless(node: &Managed) -> Option<String> {
    let why = match &node.read {
        Err(why) => why.clone(),
        Ok((_, status)) if !status.gpus.is_empty() => return None,
        Ok((_, status)) => {
            let troubles = troubles(status);
            if troubles.is_empty() { "its agent reports no GPU".to_owned() } else { troubles.join("; ") }
        }
    };
    Some(format!("{}: {why}", node.name))
}

/// The pod, with its namespace, and the container that have a slice or were promised it.
fn owner(spec: &GpuNodeSpec, slice: &SliceStatus) -> Option<(String, String)> {
    if let Some(holder) = &slice.holder {
        return Some((holder.key().to_string(), holder.container.clone()));
    }
    let wanted = spec.slices.iter().find(|wanted| Some(&wanted.id) == slice.id.as_ref())?;
    let reservation = wanted.reservation.as_ref()?;
    Some((reservation.key().to_string(), reservation.container.clone()))
}

fn document(shown: &Shown) -> Value {
    json!({
        "managed": shown.managed.iter().map(managed).collect::<Vec<_>>(),
        "devicePlugin": shown.offered,
    })
}

fn managed(node: &Managed) -> Value {
    match &node.read {
        Err(why) => json!({"name": node.name, "unreadable": why}),
        Ok((spec, status)) => {
            let slice = |slice: &SliceStatus| {
                let owner = owner(spec, slice);
                json!({
                    "id": slice.id, "shape": slice.shape, "state": slice.state, "memoryMib": slice.memory,
                    "device": slice.device, "resource": slice.resource, "message": slice.message,
                    "pod": owner.as_ref().map(|(pod, _)| pod), "container": owner.as_ref().map(|(_, container)| container),
                })
            };
            let gpus: Vec<Value> = status
                .gpus
                .iter()
                .map(|gpu| {
                    let slices =
                        status.slices.iter().filter(|it| it.gpu == gpu.uuid).map(slice).collect::<Vec<_>>();
                    json!({
                        "uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "memoryMib": gpu.memory,
                        "kinds": gpu.kinds, "message": gpu.message, "slices": slices,
                    })
                })
                .collect();
            json!({"name": node.name, "ready": status.is_ready(), "troubles": troubles(status), "gpus": gpus})
        }
    }
}
