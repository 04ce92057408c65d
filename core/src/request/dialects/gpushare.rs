//! gpushare (AliyunContainerService/gpushare-scheduler-extender, `docs/userguide.md`; gpushare-device-plugin,
//! `pkg/gpu/nvidia/const.go`) and Alibaba Cloud's ACK, which goes by the same names.
//!
//! `aliyun.com/gpu-mem` is memory in GiB, or in MiB where the device plugin runs with `--memory-unit=MiB`. The pod does not
//! say which; but no GPU has 279 GiB, and nobody asks for less than 279 MiB. On several GPUs, by the label or the limit
//! `aliyun.com/gpu-count`, each has an equal part of it ("Enable Multi-GPU Sharing with Shared GPU Scheduling" of ACK's
//! guide). A count by itself is of whole GPUs.

use super::{Foreign, nvidia};
use crate::policy::Dialect;
use crate::quantity::parse_count;
use crate::request::errors::Field;
use crate::request::{AskError, ContainerAsk, ContainerView, PodView, Reading, Role, Want, limits};
use crate::units::{LARGEST_SIZE, MemoryMib};

const MEMORY: &str = "aliyun.com/gpu-mem";
const COUNT: &str = "aliyun.com/gpu-count";

/// The names that ask.
pub(super) const NAMES: [&str; 2] = [MEMORY, COUNT];

/// What a container asks for.
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

/// Of how many GPUs the label says that the memory is.
fn labelled(pod: &PodView) -> Result<Option<u32>, AskError> {
    let Some(text) = pod.metadata.labels.get(COUNT) else { return Ok(None) };
    let count = text.parse::<u32>().ok().filter(|count| *count > 0);
    let field = Field::Label(COUNT.to_owned());
    count.map(Some).ok_or_else(|| AskError::Count { field, text: text.clone() })
}

/// The memory in MiB.
fn memory(container: &ContainerView, text: &str) -> Result<u64, AskError> {
    // Over several GPUs it may be more than one has.
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
