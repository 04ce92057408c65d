//! KAI scheduler (kai-scheduler/KAI-Scheduler, `pkg/common/constants`, `docs/gpu-sharing`, and
//! `gpurequesthandler/gpu_request_handler.go` for what it refuses) and run:ai, whose scheduler it was ("Setting Dynamic GPU
//! Fractions via YAML" of run:ai's documentation).
//!
//! `gpu-fraction` is a part of a GPU's memory, `gpu-memory` an amount in MiB, `gpu-fraction-num-devices` on how many GPUs.
//! The first container gets it, or the one that `gpu-fraction-container-name` names; in run:ai's dialect the second one of
//! a pod of Kubeflow's pipelines. `gpu-sm-percentage` is a share of compute. run:ai also takes a part of a GPU as the limit
//! `nvidia.com/gpu: 0.5`.

use super::{Foreign, fraction, mebibytes, nvidia};
use crate::policy::Dialect;
use crate::quantity::parse_count;
use crate::request::errors::Field;
use crate::request::{AskError, ContainerAsk, ContainerView, PodView, Reading, Role, Want, limits};
use crate::units::ComputePercent;

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";
const COMPUTE: &str = "gpu-sm-percentage";

/// What kerf does not give: more than was asked for, while nobody else wants it, and cores by number.
pub(super) const IGNORED: [&str; 4] =
    ["gpu-fraction.limit", "gpu-memory.limit", "gpu-sm-cores", "runai-gpu-limit"];

/// Labels of pods whose first container is Kubeflow's.
const PIPELINES: &str = "pipelines.kubeflow.org";

/// What a container asks for by annotation.
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
    if chosen(pod, dialect)? != Some(container.name.as_str()) {
        return Ok(None);
    }
    let (key, text) = match (part, memory) {
        (Some(text), None) => (FRACTION, text),
        (None, Some(text)) => (MEMORY, text),
        (Some(part), Some(memory)) => return Err(both(container, part, memory)),
        (None, None) => return idle(pod).map(|()| None),
    };
    let field = |key: &str| Field::Annotation(key.to_owned());
    let (want, memory) =
        if key == FRACTION { fraction(field(key), text, reading)? } else { mebibytes(field(key), text)? };
    let mut ask = ContainerAsk::new(&container.name, role, want, 1, format!("{key}: {text}"));
    if let Some(text) = note(DEVICES) {
        let count = text.parse::<u32>().ok().filter(|count| *count > 0);
        ask.count = count.ok_or_else(|| AskError::Count { field: field(DEVICES), text: text.to_owned() })?;
    }
    if let Some(text) = note(COMPUTE) {
        let percent = text.parse::<u8>().ok().and_then(ComputePercent::new);
        let bad = || AskError::Compute { field: field(COMPUTE), text: text.to_owned() };
        ask.compute = Some(percent.ok_or_else(bad)?);
    }
    Ok(Some(Foreign { dialect, ask, memory }))
}

fn both(container: &ContainerView, part: &str, memory: &str) -> AskError {
    AskError::Twice {
        container: container.name.clone(),
        first: format!("{FRACTION}: {part}"),
        second: format!("{MEMORY}: {memory}"),
    }
}

/// Refuses a number of GPUs of which nothing is asked.
fn idle(pod: &PodView) -> Result<(), AskError> {
    if pod.metadata.annotations.contains_key(DEVICES) {
        return Err(AskError::NothingAsked { key: DEVICES.to_owned(), container: "the pod".to_owned() });
    }
    Ok(())
}

/// The container that the annotations are for; `None` in a pod without containers.
fn chosen(pod: &PodView, dialect: Dialect) -> Result<Option<&str>, AskError> {
    let containers = &pod.spec.containers;
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

/// What a container asks for by run:ai's limit: a part of a GPU, or whole ones.
pub(super) fn limit_ask(
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<Foreign>, AskError> {
    if !reading.knows(Dialect::Runai) {
        return Ok(None);
    }
    let Some(text) = limits::amount(container, nvidia::GPU)? else { return Ok(None) };
    if parse_count(text).is_some() {
        // A GPU by itself is the same in those dialects, and HAMi's other names tell what of it.
        if reading.knows(Dialect::Nvidia) || reading.knows(Dialect::Hami) {
            return Ok(None);
        }
        let whole = nvidia::named(container, role, nvidia::GPU, Want::Whole)?;
        return Ok(whole.map(|ask| Foreign { dialect: Dialect::Runai, ask, memory: None }));
    }
    let (want, memory) = fraction(limits::field(&container.name, nvidia::GPU), text, reading)?;
    let ask = ContainerAsk::new(&container.name, role, want, 1, format!("{}: {text}", nvidia::GPU));
    Ok(Some(Foreign { dialect: Dialect::Runai, ask, memory }))
}
