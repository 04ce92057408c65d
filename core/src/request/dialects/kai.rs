//! The dialects of KAI scheduler (kai-scheduler/KAI-Scheduler, `pkg/common/constants`, `docs/gpu-sharing`, and
//! `gpurequesthandler/gpu_request_handler.go` for what it refuses) and of run:ai, from whose scheduler KAI comes
//! ("Setting Dynamic GPU Fractions via YAML" of run:ai's documentation).
//!
//! `gpu-fraction` is a part of a GPU's memory, `gpu-memory` an amount in MiB, `gpu-fraction-num-devices` the number of
//! GPUs. They are for the container that `gpu-fraction-container-name` names, else for the first; in run:ai's dialect
//! they are for the second one of a Kubeflow pipeline's pod. `gpu-sm-percentage` is a share of compute. run:ai also
//! accepts a part of a GPU as the limit `nvidia.com/gpu: 0.5`, on as many GPUs as `gpu-fraction-num-devices` says.

use super::{Foreign, fraction, mebibytes, nvidia};
use crate::quantity::parse_count;
use crate::request::errors::Field;
use crate::request::{AskError, ContainerAsk, ContainerView, Dialect, PodView, Reading, Role, Want, limits};
use crate::units::ComputePercent;

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";
const COMPUTE: &str = "gpu-sm-percentage";

/// A pod that asks in this dialect has at least one of these annotations.
pub(super) const ASKING: [&str; 3] = [FRACTION, MEMORY, DEVICES];

/// Keys that kerf has no equivalent for: bursts into memory that other pods leave unused, and cores by number.
pub(super) const IGNORED: [&str; 4] =
    ["gpu-fraction.limit", "gpu-memory.limit", "gpu-sm-cores", "runai-gpu-limit"];

/// Prefix of labels on pods whose first container belongs to Kubeflow.
const PIPELINES: &str = "pipelines.kubeflow.org";

pub(super) fn ask(
    pod: &PodView,
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<Foreign>, AskError> {
    let dialect = [Dialect::Kai, Dialect::Runai].into_iter().find(|dialect| reading.knows(*dialect));
    let Some(dialect) = dialect else { return Ok(None) };
    let note = |key| pod.metadata.annotations.get(key).map(String::as_str);
    let (part, memory) = (note(FRACTION), note(MEMORY));
    let asked = match (part, memory) {
        (Some(text), None) => Ok((FRACTION, text)),
        (None, Some(text)) => Ok((MEMORY, text)),
        (Some(part), Some(memory)) => Err((part, memory)),
        (None, None) => return idle(pod, reading).map(|()| None),
    };
    if chosen(pod, dialect, reading)? != Some(container.name.as_str()) {
        return Ok(None);
    }
    let (key, text) = asked.map_err(|(part, memory)| both(container, part, memory))?;
    let field = |key: &str| Field::Annotation(key.to_owned());
    let (want, memory) =
        if key == FRACTION { fraction(field(key), text, reading)? } else { mebibytes(field(key), text)? };
    let mut ask = ContainerAsk::new(&container.name, role, want, 1, format!("{key}: {text}"));
    ask.count = devices(pod)?;
    if let Some(text) = note(COMPUTE) {
        let percent = text.parse::<u8>().ok().and_then(ComputePercent::new);
        let bad = || AskError::Compute { field: field(COMPUTE), text: text.to_owned() };
        ask.compute = Some(percent.ok_or_else(bad)?);
    }
    Ok(Some(Foreign { dialect, ask: ask.of_distinct_gpus(), memory }))
}

fn both(container: &ContainerView, part: &str, memory: &str) -> AskError {
    AskError::Twice {
        container: container.name.clone(),
        first: format!("{FRACTION}: {part}"),
        second: format!("{MEMORY}: {memory}"),
    }
}

/// The number of GPUs, 1 without the annotation.
fn devices(pod: &PodView) -> Result<u32, AskError> {
    let Some(text) = pod.metadata.annotations.get(DEVICES) else { return Ok(1) };
    let count = text.parse::<u32>().ok().filter(|count| *count > 0);
    count.ok_or_else(|| AskError::Count { field: Field::Annotation(DEVICES.to_owned()), text: text.clone() })
}

/// Refuses a number of GPUs in a pod that asks for no part of a GPU, neither by annotation nor by run:ai's limit.
fn idle(pod: &PodView, reading: &Reading) -> Result<(), AskError> {
    let has_part = |container| {
        limits::amount(container, nvidia::GPU).is_ok_and(|a| a.is_some_and(|a| parse_count(a).is_none()))
    };
    let is_limited =
        reading.knows(Dialect::Runai) && pod.spec.in_order().any(|(container, _)| has_part(container));
    if pod.metadata.annotations.contains_key(DEVICES) && !is_limited {
        return Err(AskError::NothingAsked { key: DEVICES.to_owned(), container: "the pod".to_owned() });
    }
    Ok(())
}

/// The container that the annotations are for; `None` in a pod without containers. Containers that an injector put
/// first are skipped.
fn chosen<'p>(pod: &'p PodView, dialect: Dialect, reading: &Reading) -> Result<Option<&'p str>, AskError> {
    let containers = pod.spec.own_containers(|name| reading.is_sidecar(name));
    if let Some(name) = pod.metadata.annotations.get(CONTAINER) {
        let named = pod.spec.in_order().find(|(container, _)| container.name == *name);
        let no_container = || AskError::NoContainer { key: CONTAINER.to_owned(), container: name.clone() };
        return named.map(|(container, _)| Some(container.name.as_str())).ok_or_else(no_container);
    }
    let pipeline =
        dialect == Dialect::Runai && pod.metadata.labels.keys().any(|label| label.starts_with(PIPELINES));
    let index = usize::from(pipeline && containers.len() > 1);
    Ok(containers.get(index).map(|container| container.name.as_str()))
}

/// A container's request by run:ai's limit: a part of a GPU, or whole GPUs.
pub(super) fn limit_ask(
    pod: &PodView,
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<Foreign>, AskError> {
    if !reading.knows(Dialect::Runai) {
        return Ok(None);
    }
    let Some(text) = limits::amount(container, nvidia::GPU)? else { return Ok(None) };
    if parse_count(text).is_some() {
        // A whole number means the same in those dialects. HAMi's reader must see it, because HAMi's other names say
        // which part of it.
        if reading.knows(Dialect::Nvidia) || reading.knows(Dialect::Hami) {
            return Ok(None);
        }
        let whole = nvidia::named(container, role, nvidia::GPU, Want::Whole)?;
        return Ok(whole.map(|ask| Foreign::of_gpus(Dialect::Runai, ask)));
    }
    let (want, memory) = fraction(limits::field(&container.name, nvidia::GPU), text, reading)?;
    let by = format!("{}: {text}", nvidia::GPU);
    let ask = ContainerAsk::new(&container.name, role, want, devices(pod)?, by);
    Ok(Some(Foreign { dialect: Dialect::Runai, ask: ask.of_distinct_gpus(), memory }))
}
