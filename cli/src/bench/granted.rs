//! Checks kerf's own records on the pods: did each copy get the slice of its row? Otherwise its figures would stand in
//! the wrong row. No I/O.

use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{AssignedSlice, AssignmentDocument, RequestDocument, Shape};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::mig::ComputeProfile;
use kerf_core::names::{GpuUuid, SliceId};
use kerf_core::units::ComputePercent;
use thiserror::Error;

#[derive(Debug, Clone, Copy)]
pub struct Expected<'e> {
    pub container: &'e str,
    pub kind: Kind,
    pub gpu: &'e GpuUuid,
    /// The part of the compute that the copy asked for; `None` if it asked for no limit, and for anything but an MPS
    /// share.
    pub threads: Option<ComputePercent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    pub id: SliceId,
    pub shape: Shape,
}

#[derive(Debug, Error)]
pub enum Mismatch {
    /// The pod has no request document, so the webhook did not admit it.
    #[error(
        "pod {0} has no {key}: kerf's webhook has not admitted it; is it installed, and does it serve this namespace?",
        key = keys::REQUEST
    )]
    NotAdmitted(String),
    #[error("pod {pod}: its record cannot be read")]
    Unreadable { pod: String, source: anyhow::Error },
    #[error(
        "pod {pod} was given {got} and not {wanted}; the policy for its namespace decides (kerf policy explain)"
    )]
    Kind { pod: String, got: String, wanted: Kind },
    #[error("pod {pod} has its slice on {got} and not on {wanted}, where the others are")]
    Gpu { pod: String, got: String, wanted: String },
    #[error("pod {pod} was assigned {got}, not what it asked for")]
    Slice { pod: String, got: String },
}

/// Checks that the webhook allowed the kind that is measured. It needs only the pod's request document, so it fails
/// early for a pod that is never scheduled.
pub fn chosen(pod: &Pod, expected: &Expected) -> Result<(), Mismatch> {
    let name = name(pod);
    let text = annotation(pod, keys::REQUEST).ok_or_else(|| Mismatch::NotAdmitted(name.clone()))?;
    let unreadable = |source: anyhow::Error| Mismatch::Unreadable { pod: name.clone(), source };
    let request = RequestDocument::parse(text).map_err(|error| unreadable(error.into()))?;
    let asked = request.containers.iter().find(|asked| asked.name == expected.container);
    if asked.is_some_and(|asked| asked.may_be(expected.kind)) {
        return Ok(());
    }
    let got = asked.map_or_else(|| "nothing".to_owned(), |asked| asked.resource.to_string());
    Err(Mismatch::Kind { pod: name, got, wanted: expected.kind })
}

/// The slice that the pod was assigned; `None` while it is pending.
pub fn granted(pod: &Pod, expected: &Expected) -> Result<Option<Granted>, Mismatch> {
    chosen(pod, expected)?;
    let pod_name = name(pod);
    let Some(text) = annotation(pod, keys::ASSIGNMENT) else { return Ok(None) };
    let assigned: AssignmentDocument = serde_json::from_str(text)
        .map_err(|error| Mismatch::Unreadable { pod: pod_name.clone(), source: error.into() })?;
    let mine = |slice: &&AssignedSlice| slice.container == expected.container;
    let slices: Vec<AssignedSlice> = assigned.slices.iter().filter(mine).cloned().collect();
    let other = |slices: &[AssignedSlice]| {
        let shapes = slices.iter().map(|slice| slice.shape.to_string());
        let devices = assigned.devices.iter().filter(|given| given.container == expected.container);
        let all: Vec<String> = shapes.chain(devices.map(ToString::to_string)).collect();
        let got = if all.is_empty() { "no slice".to_owned() } else { all.join(", ") };
        Mismatch::Slice { pod: pod_name.clone(), got }
    };
    let [slice] = &slices[..] else { return Err(other(&slices)) };
    if slice.gpu != *expected.gpu {
        let (got, wanted) = (slice.gpu.to_string(), expected.gpu.to_string());
        return Err(Mismatch::Gpu { pod: pod_name, got, wanted });
    }
    let threads_differ = expected.kind == Kind::Mps && slice.shape.compute() != expected.threads;
    if slice.shape.kind() != expected.kind || threads_differ {
        return Err(other(&slices));
    }
    Ok(Some(Granted { id: slice.id.clone(), shape: slice.shape }))
}

pub fn profile(shape: Shape) -> Option<String> {
    let whole = shape.instance()?.profile;
    let part = shape.part().and_then(|part| ComputeProfile::new(part.compute, whole));
    Some(part.map_or_else(|| whole.to_string(), |part| part.to_string()))
}

pub fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
#[path = "granted_tests.rs"]
mod tests;
