//! Converts changes of a node's state. Rare parts are JSON in the form of the GpuNode's documents, so that they have
//! one schema.

use super::slice::{read_slice, write_slice};
use super::{Unreadable, cut, each, list_of, names, text};
use crate::limits::{GPUS, SLICES};
use crate::wire;
use kerf_core::contract::{Condition, GpuNodeStatus, GpuStatus, NodePolicy};
use kerf_core::ledger::{Change, SliceKey};
use kerf_core::units::SizeGb;
use serde_json::{Value, json};

pub fn read_change(change: wire::Change) -> Result<Change, Unreadable> {
    let gone = names("gone", change.gone, SLICES)?;
    Ok(Change {
        slices: each("slices", change.slices, SLICES, read_slice)?,
        gone: gone.into_iter().map(SliceKey::new).collect(),
        gpus: change.gpus.map(|gpus| read_gpus(&gpus)).transpose()?,
        policy: change.policy.map(|policy| read_policy(&policy)).transpose()?,
        conditions: change.conditions.map(|conditions| read_conditions(&conditions)).transpose()?,
        neutral_up_to: change.neutral_up_to_gb.map(SizeGb),
        closed: change.closed.map(|closed| text("closed", closed)).transpose()?,
    })
}

#[must_use]
pub fn write_change(number: u64, change: &Change) -> wire::Change {
    wire::Change {
        number,
        slices: change.slices.iter().map(write_slice).collect(),
        gone: change.gone.iter().map(|key| key.as_str().to_owned()).collect(),
        gpus: change.gpus.clone().map(write_gpus),
        policy: change.policy.as_ref().map(|policy| written(&json!(policy))),
        conditions: change.conditions.as_ref().map(|conditions| written(&json!(conditions))),
        neutral_up_to_gb: change.neutral_up_to.map(|size| size.0),
        closed: change.closed.as_deref().map(cut),
    }
}

fn written(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}

fn unreadable(field: &'static str) -> impl Fn(serde_json::Error) -> Unreadable {
    move |error| Unreadable::broken(field, format!("is unreadable: {error}"))
}

/// The form of the status has the MIG table of each model only once, so that a node of equal GPUs sends one table.
fn write_gpus(gpus: Vec<GpuStatus>) -> Vec<u8> {
    let mut document = json!(GpuNodeStatus { gpus, ..GpuNodeStatus::default() });
    written(&json!({"models": document["models"].take(), "gpus": document["gpus"].take()}))
}

fn read_gpus(document: &[u8]) -> Result<Vec<GpuStatus>, Unreadable> {
    let status: GpuNodeStatus = serde_json::from_slice(document).map_err(unreadable("gpus"))?;
    list_of("gpus", status.gpus, GPUS)
}

fn read_policy(document: &[u8]) -> Result<NodePolicy, Unreadable> {
    serde_json::from_slice(document).map_err(unreadable("policy"))
}

fn read_conditions(document: &[u8]) -> Result<Vec<Condition>, Unreadable> {
    serde_json::from_slice(document).map_err(unreadable("conditions"))
}
