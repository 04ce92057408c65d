//! The dialect of NVIDIA's device plugin: `nvidia.com/gpu` asks for GPUs, and `nvidia.com/gpu.shared` for time slices
//! of GPUs that are shared in equal parts (k8s-device-plugin, README, `renameByDefault`). The plugin's names for MIG
//! devices are a dialect of their own. They are read with kerf's names (`limits`), because they mean the same as
//! `kerf.dev/gpu-profile`.

use super::Foreign;
use crate::nvidia_keys::{GPU_MPS, GPU_SHARED};
use crate::request::{AskError, ContainerAsk, ContainerView, Dialect, Reading, Role, Want, limits};

pub(super) use crate::nvidia_keys::GPU;

/// The resource names by which a container asks in this dialect.
pub(super) const NAMES: [&str; 3] = [GPU, GPU_SHARED, GPU_MPS];

pub(super) fn ask(
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<Foreign>, AskError> {
    if !reading.knows(Dialect::Nvidia) {
        return Ok(None);
    }
    let mut found: Option<ContainerAsk> = None;
    for (name, want) in [(GPU, Want::Whole), (GPU_SHARED, Want::Replica), (GPU_MPS, Want::MpsReplica)] {
        match (&found, named(container, role, name, want)?) {
            (Some(first), Some(second)) => return Err(first.twice(&second)),
            (None, ask) => found = ask,
            (Some(_), None) => {}
        }
    }
    Ok(found.map(|ask| Foreign { dialect: Dialect::Nvidia, ask, memory: None }))
}

/// A request for `want`, with the count that the limit `name` has; `None` without the limit.
pub(super) fn named(
    container: &ContainerView,
    role: Role,
    name: &str,
    want: Want,
) -> Result<Option<ContainerAsk>, AskError> {
    let Some(text) = limits::amount(container, name)? else { return Ok(None) };
    let count = limits::count(limits::field(&container.name, name), text)?;
    Ok(Some(ContainerAsk::new(&container.name, role, want, count, format!("{name}: {text}"))))
}
