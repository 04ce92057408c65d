//! The dialect of HAMi (Project-HAMi/HAMi, `pkg/device/nvidia/device.go`: `GenerateResourceRequests`,
//! `mutateContainerResource`; its defaults in `docs/config.md`).
//!
//! `nvidia.com/gpu` is the number of GPUs of which a container gets a part. The part is `nvidia.com/gpumem` MiB, or
//! `nvidia.com/gpumem-percentage` of the memory, or all of it. `nvidia.com/gpucores` is the percentage of the cores.
//! One of these without a number of GPUs means one GPU. The annotations that select GPUs are read with kerf's own
//! (`selectors`).

use super::{Foreign, mebibytes, nvidia, part};
use crate::kind::IsolationClass;
use crate::quantity::parse_count;
use crate::request::{AskError, ContainerAsk, ContainerView, Dialect, PodView, Reading, Role, Want, limits};
use crate::units::{ComputePercent, MemoryMib};

const MEMORY: &str = "nvidia.com/gpumem";
const PERCENTAGE: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";
const PRIORITY: &str = "nvidia.com/priority";

/// The resource names of this dialect, apart from those that it shares with NVIDIA's.
pub(super) const NAMES: [&str; 4] = [MEMORY, PERCENTAGE, CORES, PRIORITY];

/// A pod that asks in this dialect has at least one of these names.
pub(super) const ASKING: [&str; 4] = [nvidia::GPU, MEMORY, PERCENTAGE, CORES];

/// Keys that kerf has no equivalent for. HAMi's priorities order the tasks of one GPU, and its NUMA binding selects
/// among GPUs.
pub(super) const IGNORED_NAMES: [&str; 1] = [PRIORITY];
pub(super) const IGNORED: [&str; 1] = ["nvidia.com/numa-bind"];

/// The annotation that selects HAMi's way to isolate.
const MODE: &str = "nvidia.com/vgpu-mode";

pub(super) fn ask(
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<Foreign>, AskError> {
    if !reading.knows(Dialect::Hami) {
        return Ok(None);
    }
    let amount = |name| limits::amount(container, name);
    let (memory, percentage, cores) = (amount(MEMORY)?, amount(PERCENTAGE)?, amount(CORES)?);
    let gpus = nvidia::named(container, role, nvidia::GPU, Want::Whole)?;
    if gpus.is_some()
        && [memory, percentage, cores].iter().all(Option::is_none)
        && reading.knows(Dialect::Nvidia)
    {
        // A count without a part means the same in both dialects, and NVIDIA's reader comes next.
        return Ok(None);
    }
    let said = [(MEMORY, memory), (PERCENTAGE, percentage), (CORES, cores)];
    let Some((by, text)) = said.iter().find_map(|(name, text)| Some((*name, (*text)?))) else {
        return Ok(gpus.map(|ask| Foreign::of_gpus(Dialect::Hami, ask)));
    };
    let (want, memory) = want(container, memory, percentage, reading)?;
    let count = gpus.map_or(1, |ask| ask.count);
    let mut ask = ContainerAsk::new(&container.name, role, want, count, format!("{by}: {text}"));
    // A whole GPU has all of its compute, so the share adds nothing.
    ask.compute = compute(container, cores)?.filter(|_| want != Want::Whole);
    Ok(Some(Foreign { dialect: Dialect::Hami, ask: ask.of_distinct_gpus(), memory }))
}

/// The part of each GPU. HAMi uses the amount if a percentage is set too, and kerf does the same.
fn want(
    container: &ContainerView,
    memory: Option<&str>,
    percentage: Option<&str>,
    reading: &Reading,
) -> Result<(Want, Option<MemoryMib>), AskError> {
    let field = |name| limits::field(&container.name, name);
    if let Some(text) = memory {
        return mebibytes(field(MEMORY), text);
    }
    let Some(text) = percentage else { return Ok((Want::Whole, None)) };
    match parse_count(text) {
        Some(100) => Ok((Want::Whole, None)),
        Some(percent @ 1..100) => part(field(PERCENTAGE), u128::from(percent) * 10_000, reading),
        _ => Err(AskError::Amount {
            field: field(PERCENTAGE),
            text: text.to_owned(),
            unit: "percent",
            most: 100,
        }),
    }
}

fn compute(container: &ContainerView, cores: Option<&str>) -> Result<Option<ComputePercent>, AskError> {
    let Some(text) = cores else { return Ok(None) };
    let percent =
        parse_count(text).and_then(|percent| u8::try_from(percent).ok()).and_then(ComputePercent::new);
    let field = limits::field(&container.name, CORES);
    percent.map(Some).ok_or_else(|| AskError::Compute { field, text: text.to_owned() })
}

/// The class that the mode corresponds to. HAMi's own library and MPS both isolate memory.
pub(super) fn isolation(pod: &PodView) -> Option<IsolationClass> {
    match pod.metadata.annotations.get(MODE)?.as_str() {
        "mig" => Some(IsolationClass::Hardware),
        "hami-core" | "mps" => Some(IsolationClass::Memory),
        _ => None,
    }
}
