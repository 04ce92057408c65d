//! The dialect of gpushare (AliyunContainerService/gpushare-scheduler-extender, `docs/userguide.md`;
//! gpushare-device-plugin, `pkg/gpu/nvidia/const.go`) and of Alibaba Cloud's ACK, which uses the same names.
//!
//! `aliyun.com/gpu-mem` is memory in GiB, or in MiB if the device plugin runs with `--memory-unit=MiB`. The pod does
//! not say which. kerf decides by the number: no GPU has 279 GiB, and no useful request is below 279 MiB. If the label
//! or the limit `aliyun.com/gpu-count` asks for several GPUs, each gives an equal part ("Enable Multi-GPU Sharing with
//! Shared GPU Scheduling" of ACK's guide). A count without memory asks for whole GPUs.

use super::{Foreign, nvidia};
use crate::quantity::parse_count;
use crate::request::errors::Field;
use crate::request::{AskError, ContainerAsk, ContainerView, Dialect, PodView, Reading, Role, Want, limits};
use crate::units::{LARGEST_SIZE, MemoryMib};

const MEMORY: &str = "aliyun.com/gpu-mem";
const COUNT: &str = "aliyun.com/gpu-count";

/// The resource names by which a container asks in this dialect.
pub(super) const NAMES: [&str; 2] = [MEMORY, COUNT];

pub(super) fn ask(
    pod: &PodView,
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<Foreign>, AskError> {
    if !reading.knows(Dialect::Gpushare) {
        return Ok(None);
    }
    let gpus = nvidia::named(container, role, COUNT, Want::Whole)?;
    let Some(text) = limits::amount(container, MEMORY)? else {
        return Ok(gpus.map(|ask| Foreign::of_gpus(Dialect::Gpushare, ask)));
    };
    let count = match gpus {
        Some(gpus) => gpus.count,
        None => labelled(pod)?.unwrap_or(1),
    };
    let each = MemoryMib(memory(container, text)?.div_ceil(u64::from(count.max(1))));
    let want = Want::Size(each.nominal());
    let ask = ContainerAsk::new(&container.name, role, want, count, format!("{MEMORY}: {text}"));
    Ok(Some(Foreign { dialect: Dialect::Gpushare, ask: ask.of_distinct_gpus(), memory: Some(each) }))
}

/// The number of GPUs in the pod's label; `None` without the label.
fn labelled(pod: &PodView) -> Result<Option<u32>, AskError> {
    let Some(text) = pod.metadata.labels.get(COUNT) else { return Ok(None) };
    let count = text.parse::<u32>().ok().filter(|count| *count > 0);
    let field = Field::Label(COUNT.to_owned());
    count.map(Some).ok_or_else(|| AskError::Count { field, text: text.clone() })
}

/// The amount in MiB, whichever unit it was written in.
fn memory(container: &ContainerView, text: &str) -> Result<u64, AskError> {
    // The amount may exceed the memory of one GPU, because it is for all GPUs together.
    const MOST_GPUS: u64 = 16;
    let most = LARGEST_SIZE.share_memory().0;
    match parse_count(text) {
        Some(gib @ 1..) if gib <= u64::from(LARGEST_SIZE.0) => Ok(gib * 1024),
        Some(mib) if mib > 0 && mib <= most * MOST_GPUS => Ok(mib),
        _ => Err(AskError::Amount {
            field: limits::field(&container.name, MEMORY),
            text: text.to_owned(),
            unit: "GiB, or of MiB over 278,",
            most,
        }),
    }
}
